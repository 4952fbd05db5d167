"""What the steps of a pack hand to one another.

options   the caller's keywords -> what they mean
target    the dataset's folder: what is there already; the finished one gets its name
journal   `out.partial`: whose it is, on which terms, which shards are finished
plan      parts of the source   -> groups of parts, one for each shard
shard     one group             -> a shard on disk and its summary in the journal
engine    runs `shard` in worker processes
columns   the summaries         -> columns and manifest
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

from fastdata.sources.base import Part, Source
from fastdata.types import Field


@dataclass(frozen=True)
class Listing:
    """What one pass over the parts of a source tells.

    Attributes:
        num_samples: None where only reading could tell.
        nbytes: of the source.
        sha256: of the parts' names and sizes in order.
    """

    num_parts: int
    num_samples: int | None
    nbytes: int
    sha256: str


@dataclass(frozen=True)
class Terms:
    """All that the bytes of a dataset depend on: who packs on equal terms may finish what another has begun.

    Attributes:
        options: as the manifest holds them; what is None or absent is the default.
        listing: of the source; None of an iterable.
        version: of this package.
        num_parts: into how many `--part` divides the shards; 1: one process packs all.
    """

    options: Mapping[str, Any]
    fields: tuple[Field, ...]
    classes: tuple[str, ...] | None
    listing: Listing | None
    version: str
    num_parts: int = 1


@dataclass(frozen=True)
class Job:
    """One pack, as its workers see it; picklable.

    Attributes:
        folder: `out.partial`, where everything is written.
        fields: the source's, with what the caller asked of them.
        on_error: "raise" or "skip".
        max_rejects: bad samples that may be skipped; None: any number.
        shuffle: seed of the order, or None for the source's order.
        validate: decode every payload once.
    """

    source: Source
    fields: tuple[Field, ...]
    store: str
    folder: Path
    on_error: str
    max_rejects: int | None
    shuffle: int | None
    validate: bool


@dataclass(frozen=True)
class Task:
    """One shard to pack."""

    number: int
    parts: tuple[Part, ...]


@dataclass(frozen=True)
class Reject:
    """A sample that was skipped: a line of rejects.jsonl."""

    source: str
    key: str
    reason: str
    nbytes: int


@dataclass
class ShardSummary:
    """What a finished shard tells the main process; its columns and rejects are in the journal.

    Attributes:
        num_drawn: good and bad samples that came from the source.
        nbytes_drawn: their bytes in the source.
        files: (path relative to the dataset, bytes, crc32) of each file of the shard.
        pixels: of each picture field: how many pixels it has, sums and sums of squares of the three channels.
        missing: fields that some sample has no value of.
        reasons: kinds of errors that samples were rejected for, and how often.
        notes: remarks about samples, and how often.
    """

    number: int
    num_samples: int = 0
    num_drawn: int = 0
    nbytes_drawn: int = 0
    files: list[tuple[str, int, int]] = field(default_factory=list)
    pixels: dict[str, tuple[int, list[int], list[int]]] = field(default_factory=dict)
    missing: set[str] = field(default_factory=set)
    reasons: Counter[str] = field(default_factory=Counter)
    notes: Counter[str] = field(default_factory=Counter)

    @property
    def num_rejected(self) -> int:
        """Bad samples."""
        return self.reasons.total()


class Status(Protocol):
    """Where a worker says what it is doing, so that a death can be told of and progress shown."""

    def at(self, what: str) -> None:
        """Name the sample that is being worked on."""

    def done(self, nbytes: int) -> None:
        """Count one sample of the source as done."""


@dataclass(frozen=True)
class Progress:
    """How far a pack or a verification is: samples and bytes of the source; totals are 0 while unknown."""

    num_samples: int
    nbytes: int
    total_nbytes: int


@dataclass(frozen=True)
class Packed:
    """The summary of a pack.

    Attributes:
        path: of the dataset; of a part the folder in which it waits for the others.
        already: the folder was there, packed with the same arguments; nothing was done.
        part: "3/16" where only a share of the shards was packed, which all the numbers are about then.
        resumed: samples in shards that an earlier run had finished.
        nbytes: of the shards.
        seconds: it took, by the clock.
        fingerprint: of the dataset; empty of a part.
        rejected: samples that were skipped; they are listed in rejects.jsonl.
        reasons: kinds of errors that samples were skipped for, and how often.
        notes: remarks about samples, and how often: "16 bit scaled to 8".
        ignored: what the source passed over, and how often.
    """

    path: str
    store: str
    num_samples: int
    num_shards: int
    nbytes: int
    seconds: float
    fingerprint: str
    classes: Sequence[str] | None
    rejected: int = 0
    already: bool = False
    part: str | None = None
    resumed: int = 0
    reasons: dict[str, int] = field(default_factory=dict)
    notes: dict[str, int] = field(default_factory=dict)
    ignored: dict[str, int] = field(default_factory=dict)
    warnings: Sequence[str] = ()

    @property
    def samples_per_s(self) -> float:
        """Samples packed by this run for each second of it."""
        return 0.0 if self.already or not self.seconds else (self.num_samples - self.resumed) / self.seconds

    def to_json(self) -> dict[str, Any]:
        """For `--json`."""
        return {**vars(self), "samples_per_s": self.samples_per_s}

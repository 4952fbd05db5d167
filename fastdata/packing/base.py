"""What the steps of a pack hand to one another.

plan      parts of the source  -> groups of parts, one for each shard
shard     one group            -> a shard on disk and its summary in the journal
engine    runs `shard` in worker processes
commit    the summaries        -> columns, manifest, and the folder's final name
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

from fastdata.sources.base import Part, Source
from fastdata.types import Field


@dataclass(frozen=True)
class Job:
    """One pack, as its workers see it; picklable.

    Attributes:
        folder: `out.partial`, where everything is written.
        fields: the source's, with what the caller asked of pictures.
        on_error: "raise" or "skip".
        shuffle: seed of the order, or None for the source's order.
    """

    source: Source
    fields: tuple[Field, ...]
    store: str
    folder: Path
    on_error: str
    shuffle: int | None

    def shard_name(self, number: int) -> str:
        """A shard's number as its file name has it."""
        return f"{number:05d}"

    def summary_path(self, number: int) -> Path:
        """Where a shard's columns wait for the commit; there once the shard is finished."""
        return self.folder / "journal" / f"{number:05d}.npz"


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
    """What a finished shard tells the main process; its columns are in the journal.

    Attributes:
        files: (path relative to the dataset, bytes, crc32) of each file of the shard.
        pixels: of each picture field: how many pixels it has, sums and sums of squares of the three channels.
        missing: fields that some sample has no value of.
    """

    number: int
    num_samples: int = 0
    files: list[tuple[str, int, int]] = field(default_factory=list)
    pixels: dict[str, tuple[int, list[int], list[int]]] = field(default_factory=dict)
    missing: set[str] = field(default_factory=set)
    rejects: list[Reject] = field(default_factory=list)
    notes: Counter[str] = field(default_factory=Counter)


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
        already: the folder was there, packed with the same arguments; nothing was done.
        nbytes: of the shards.
        seconds: it took, by the clock.
        rejected: samples that were skipped; they are listed in rejects.jsonl.
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
    notes: dict[str, int] = field(default_factory=dict)
    ignored: dict[str, int] = field(default_factory=dict)
    warnings: Sequence[str] = ()

    @property
    def samples_per_s(self) -> float:
        """Samples packed for each second."""
        return 0.0 if self.already or not self.seconds else self.num_samples / self.seconds

    def to_json(self) -> dict[str, Any]:
        """For `--json`."""
        return {**vars(self), "samples_per_s": self.samples_per_s}

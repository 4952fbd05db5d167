"""Cut a source's parts into shards, by the source's own sizes, before anything is read."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import numpy as np

from fastdata.packing.base import Task
from fastdata.seeding import hash_text, permute
from fastdata.sources.base import Part, Source

MAX_SHARD_NBYTES = 256_000_000
MIN_SHARD_NBYTES = 1_000_000
_SHARDS = 16  # as few as this many while a source is small: enough for the workers of one machine


@dataclass(frozen=True)
class Listing:
    """What one pass over the parts tells: how many, how large, and a hash of names and sizes in order."""

    num_parts: int
    nbytes: int
    sha256: str


def survey(source: Source) -> Listing:
    """Go over the parts once."""
    state, num, total = hashlib.sha256(), 0, 0
    for part in source.parts():
        name = part.name.encode("utf-8", "surrogateescape")
        state.update(f"{len(name)}:{part.nbytes}:".encode() + name)
        num, total = num + 1, total + part.nbytes
    return Listing(num, total, f"sha256:{state.hexdigest()}")


def default_shard_nbytes(total: int) -> int:
    """256 MB, or a sixteenth of the source where that is less, but at least 1 MB."""
    return min(MAX_SHARD_NBYTES, max(MIN_SHARD_NBYTES, -(-total // _SHARDS)))


def plan(source: Source, shard_nbytes: int, shuffle: int | None) -> Iterator[Task]:
    """Group parts, in order or shuffled, into shards of at most `shard_nbytes`, or of one part where that alone is larger."""
    parts: Iterable[Part] = source.parts()
    if shuffle is not None:
        listed = list(parts)
        order = permute(np.arange(len(listed)), len(listed), shuffle, hash_text("parts"))
        parts = (listed[i] for i in order.tolist())
    group: list[Part] = []
    number = total = 0
    for part in parts:
        if group and total + part.nbytes > shard_nbytes:
            yield Task(number, tuple(group))
            group, total, number = [], 0, number + 1
        group.append(part)
        total += part.nbytes
    if group:
        yield Task(number, tuple(group))

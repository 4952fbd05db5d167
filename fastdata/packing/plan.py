"""Cut a source's parts into shards, by the source's own sizes, before anything is read."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator

import numpy as np

from fastdata.errors import DatasetError
from fastdata.packing.base import Listing, Task
from fastdata.seeding import hash_text, permute
from fastdata.sources.base import Part, Source

MAX_SHARD_NBYTES = 256_000_000
MIN_SHARD_NBYTES = 1_000_000
_SHARDS = 16  # as few as this many while a source is small: enough for the workers of one machine


class _Count:
    """A listing while it grows."""

    def __init__(self) -> None:
        self._state, self._num, self._nbytes = hashlib.sha256(), 0, 0
        self._num_samples: int | None = 0

    def add(self, part: Part) -> Part:
        """Count one more part, and give it back."""
        name = part.name.encode("utf-8", "surrogateescape")
        self._state.update(f"{len(name)}:{part.nbytes}:".encode() + name)
        self._num, self._nbytes = self._num + 1, self._nbytes + part.nbytes
        if self._num_samples is not None:
            self._num_samples = None if part.num_samples is None else self._num_samples + part.num_samples
        return part

    def listing(self) -> Listing:
        return Listing(self._num, self._num_samples, self._nbytes, f"sha256:{self._state.hexdigest()}")


def survey(source: Source) -> Listing:
    """Go over the parts once."""
    count = _Count()
    for part in source.parts():
        count.add(part)
    return count.listing()


def default_shard_nbytes(total: int) -> int:
    """256 MB, or a sixteenth of the source where that is less, but at least 1 MB."""
    return min(MAX_SHARD_NBYTES, max(MIN_SHARD_NBYTES, -(-total // _SHARDS)))


def plan(source: Source, shard_nbytes: int, shuffle: int | None, surveyed: Listing) -> Iterator[Task]:
    """Group parts, in order or shuffled, into shards of at most `shard_nbytes`, or of one part where that alone is larger.

    Raises:
        DatasetError: at the end, when the parts are not those that were surveyed: the source has changed meanwhile.
    """
    count = _Count()
    parts: Iterable[Part] = map(count.add, source.parts())
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
    if (found := count.listing()) != surveyed:
        what = f"{surveyed.num_parts} parts of {surveyed.nbytes} bytes"
        got = (
            "others" if (found.num_parts, found.nbytes) == (surveyed.num_parts, surveyed.nbytes) else f"{found.num_parts} of {found.nbytes}"
        )
        raise DatasetError(f"expected the {what} that were listed first, got {got}: the source changed while it was packed")
    if group:
        yield Task(number, tuple(group))

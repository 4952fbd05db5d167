"""Pack one shard: read, validate, encode, write, flush, rename; its columns are the journal's to keep."""

from __future__ import annotations

import itertools
import os
import re
from array import array
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from fastdata import registry
from fastdata.codecs import open_codec
from fastdata.codecs.base import Codec
from fastdata.errors import DataError, DatasetError
from fastdata.manifest import digest
from fastdata.packing.base import Job, Reject, ShardSummary, Status, Task
from fastdata.seeding import hash64, hash_text
from fastdata.sources.base import Drawn, Part
from fastdata.stores.base import crc32, remove, sync
from fastdata.types import Array, Buffer, Encoded, Record, nbytes


def begins_alike(job: Job, task: Task, columns: Mapping[str, Array]) -> bool:
    """Tell whether the first good sample of a task is the first of a finished shard: all that can be told where names tell nothing."""
    rows = _Rows(job, ShardSummary(task.number))
    for drawn in itertools.chain.from_iterable(_read(job, window) for window in _windows(job, task)):
        try:
            _, digests = rows.encode(drawn)
        except DataError:
            continue
        return bool(digests == columns["digest"][0].tobytes())
    return False


def draw(job: Job, task: Task, status: Status) -> Iterator[Drawn]:
    """The samples of a task, in the order in which they are packed."""
    for window in _windows(job, task):
        status.at(window[0].name)
        yield from _read(job, window)


def _windows(job: Job, task: Task) -> Iterator[list[Part]]:
    """The parts that are held in memory at once: one, or where samples are shuffled among them, so many that they stay small."""
    mixed = job.shuffle is not None and any(part.num_samples != 1 for part in task.parts)
    window: list[Part] = []
    for part in task.parts:
        window.append(part)
        if not mixed or sum(part.nbytes for part in window) >= _WINDOW_NBYTES:
            yield window
            window = []
    if window:
        yield window


def _read(job: Job, window: list[Part]) -> Iterable[Drawn]:
    """The samples of some parts in the source's order, or shuffled in one that depends on the seed and the parts alone."""
    samples = itertools.chain.from_iterable(map(job.source.read, window))
    if job.shuffle is None:
        return samples
    drawn = list(samples)
    order = np.argsort(hash64(job.shuffle, hash_text("samples"), window[0].number, np.arange(len(drawn), dtype=np.uint64)), kind="stable")
    return [drawn[i] for i in order.tolist()]


def pack_shard(job: Job, number: int, samples: Iterable[Drawn], status: Status) -> tuple[ShardSummary, list[Reject], dict[str, Array]]:
    """Pack samples into the shard of this number.

    Returns:
        Its summary, with no samples when every one was rejected, and then nothing is left on disk; what was rejected; its columns.

    Raises:
        DataError: a bad sample, and the job does not skip, or not so many.
        DatasetError: the disk is full, or the folder cannot be written to.
    """
    module = registry.load("fastdata.stores", job.store, "--to")
    stem = f"{number:05d}"
    target = job.folder / "shards" / f"{stem}{module.SUFFIX}"
    temporary = target.with_name(f"{target.name}.tmp")
    rows = _Rows(job, ShardSummary(number))
    rejects: list[Reject] = []
    try:
        for leftover in (temporary, target):
            remove(leftover)
        writer = module.Writer(temporary, stem, rows.payloads)
        try:
            for drawn in samples:
                status.at(drawn.origin)
                try:
                    record, digests = rows.encode(drawn)
                    try:
                        writer.append(record)
                    except DataError as error:
                        raise DataError(f"{error}, of {drawn.origin}") from error
                except DataError as error:
                    if job.on_error == "raise":
                        raise
                    rejects.append(Reject(drawn.origin, drawn.key, str(error), drawn.nbytes))
                    rows.summary.reasons[_kind(error)] += 1
                    if job.max_rejects is not None and len(rejects) > job.max_rejects:
                        raise too_many(job.max_rejects, error) from error
                else:
                    rows.append(record, digests)
                    rows.summary.notes.update(drawn.notes)
                rows.summary.num_drawn += 1
                rows.summary.nbytes_drawn += drawn.nbytes
                status.done(drawn.nbytes)
            offsets = writer.close()
        except BaseException:
            writer.abort()
            remove(temporary)
            raise
        if not rows.summary.num_samples:
            remove(temporary)
            return rows.summary, rejects, {}
        files = sorted(temporary.iterdir()) if temporary.is_dir() else [temporary]
        sizes = [(p.stat().st_size, writer.crc32[p] if p in writer.crc32 else crc32(p)) for p in files]
        os.rename(temporary, target)
        sync(target.parent)
        files = [target / p.name if p != temporary else target for p in files]
        rows.summary.files = [(f"shards/{p.relative_to(target.parent)}", *size) for p, size in zip(files, sizes, strict=True)]
        return rows.summary, rejects, rows.columns(offsets)
    except OSError as error:
        if isinstance(error, DatasetError):
            raise
        raise DatasetError(f"expected to write shard {number}, got {error.strerror or error}, at {error.filename or target}") from error


def too_many(limit: int | str, last: DataError | str) -> DataError:
    """Say that a pack met more bad samples than it may."""
    return DataError(f"expected at most {limit} bad samples, got more, at --max-errors; the last: {last}")


def _kind(error: DataError) -> str:
    """What errors of a kind have in common: the reason without place, numbers and quoted names."""
    innermost: BaseException = error
    while isinstance(innermost.__cause__, DataError):
        innermost = innermost.__cause__  # each that wraps it adds where it was
    reason = str(innermost)
    return re.sub(r"'[^']*'|\"[^\"]*\"", "...", re.sub(r"\b(0x)?[0-9a-f]*\d[0-9a-f]*\b( [0-9a-f]{2}\b)*", "N", reason))


_WINDOW_NBYTES = 64 << 20
"""Bytes of parts whose samples are shuffled among each other, held in memory: dozens of parts of any source that has several samples in one."""

_SUMMED_PIXELS = 1 << 13
"""Pixels of a picture that are summed, at least, and less than twice as many: a fiftieth of the time that decoding takes (benchmarks.pack)."""


class _Rows:
    """The columns of a shard while it grows."""

    def __init__(self, job: Job, summary: ShardSummary) -> None:
        self.summary = summary
        self.codecs: list[tuple[str, Codec]] = [(f.name, open_codec(f)) for f in job.fields]
        self.payloads = tuple(codec.stored for _, codec in self.codecs if codec.payload)
        self._validate = job.validate
        self._planes = np.empty((3, 1, 0), np.uint8)
        self._dtypes = {f"{name}.{column}": dtype for name, codec in self.codecs for column, dtype in codec.columns.items()}
        self._dtypes |= {name: codec.field.dtype for name, codec in self.codecs if not codec.payload}
        # Not lists, whose numbers and strings take some hundred bytes a sample.
        self._numbers: dict[str, array[Any]] = {}
        self._strings: dict[str, tuple[bytearray, array[int]]] = {}
        self._digests = bytearray()

    def encode(self, drawn: Drawn) -> tuple[Record, bytes]:
        """Encode one sample whole, before anything of it is written.

        Raises:
            DataError: what is wrong, at which field, and where the sample is from.
        """
        if isinstance(drawn.sample, DataError):
            raise DataError(f"{drawn.sample}, at {drawn.origin}") from drawn.sample
        try:
            drawn.key.encode("utf-8", "surrogateescape")
        except UnicodeEncodeError as error:
            raise DataError(f"expected a key that UTF-8 can hold, got {drawn.key!r}, at {drawn.origin}") from error
        values: dict[str, Encoded | None] = {}
        scalars: dict[str, Any] = {}
        parts: list[tuple[str, str, tuple[int, ...], Buffer | None]] = []
        for name, codec in self.codecs:
            value = drawn.sample.get(name)
            try:
                if value is None and codec.field.dense:
                    raise DataError("expected a value, since all have one shape, got none")
                encoded = None if value is None else codec.encode(value, validate=self._validate)
            except DataError as error:
                raise DataError(f"{error}, at field {name!r} of {drawn.origin}") from error
            if codec.payload:
                values[name] = None if encoded is None else codec.to_store(encoded)
            else:
                scalars[name] = value.item() if isinstance(value, np.generic) else value
            if encoded is None:
                parts.append((name, "", (), None))
            else:
                info = encoded.columns
                data = encoded.data if isinstance(encoded.data, np.ndarray) else np.frombuffer(encoded.data, dtype=np.uint8)
                parts.append((name, str(info.get("encoding", codec.field.codec)), codec.shape(data, info), data))
        return Record(drawn.key, values, scalars), digest(parts)

    def append(self, record: Record, digests: bytes) -> None:
        """Add the columns of a record that the store took."""
        summary = self.summary
        self._add_string("key", record.key)
        self._digests += digests
        for name, codec in self.codecs:
            if not codec.payload:
                value = record.scalars[name]
                if value is None:
                    summary.missing.add(name)
                if codec.field.dtype == "str":
                    self._add_string(name, str(value or ""))
                else:
                    self._add_number(name, 0 if value is None else value)
                self._add_number(f"{name}.valid", value is not None)
                continue
            encoded = record.values[name]
            if encoded is None:
                summary.missing.add(name)
            self._add_number(f"{name}.nbytes", -1 if encoded is None else nbytes(encoded.data))
            for column, dtype in codec.columns.items():
                if dtype == "str":
                    self._add_string(f"{name}.{column}", "" if encoded is None else str(encoded.columns[column]))
                else:
                    self._add_number(f"{name}.{column}", 0 if encoded is None else encoded.columns[column])
            if encoded is not None:
                summary.notes.update(encoded.notes)
                if encoded.pixels is not None:
                    self._add_pixels(name, encoded.pixels)
        summary.num_samples += 1

    def _add_number(self, name: str, value: Any) -> None:
        numbers = self._numbers.get(name)
        if numbers is None:
            kind = np.dtype(self._dtypes.get(name, "int64")).kind
            numbers = self._numbers[name] = array({"f": "d", "u": "Q"}.get(kind, "q"))
        numbers.append(value)

    def _add_string(self, name: str, value: str) -> None:
        data, ends = self._strings.setdefault(name, (bytearray(), array("q", [0])))
        data += value.encode("utf-8", "surrogateescape")
        ends.append(len(data))

    def _add_pixels(self, name: str, pixels: Array) -> None:
        """Sum the channels of a picture, exactly; of a large one over evenly spaced rows, which tell its colours as well."""
        import cv2

        rows = pixels[:: max(1, pixels.shape[0] * pixels.shape[1] // _SUMMED_PIXELS)]
        row = np.ascontiguousarray(rows).reshape(1, -1, 3)
        if row.shape[1] > self._planes.shape[2]:
            self._planes = np.empty((3, 1, row.shape[1]), np.uint8)
        # Into memory that is there: new memory takes ten times as long.
        planes = cv2.split(row, [plane[:, : row.shape[1]] for plane in self._planes])
        num, sums, squares = self.summary.pixels.get(name, (0, [0] * 3, [0] * 3))
        self.summary.pixels[name] = (
            num + row.shape[1],
            [a + int(b) for a, b in zip(sums, cv2.sumElems(row), strict=False)],
            # OpenCV may take the root and square it again.
            [a + round(cv2.norm(plane, cv2.NORM_L2SQR)) for a, plane in zip(squares, planes, strict=True)],
        )

    def columns(self, offsets: Mapping[str, Sequence[int]]) -> dict[str, Array]:
        """All columns, with those of the store; strings as their bytes and offsets."""
        arrays: dict[str, Array] = {"digest": np.frombuffer(self._digests, np.uint8).reshape(self.summary.num_samples, -1)}
        for name, numbers in self._numbers.items():
            arrays[name] = np.array(numbers, self._dtypes.get(name, "bool" if name.endswith(".valid") else "int64"))
        for name, places in offsets.items():
            arrays[name] = np.array(places, "int64")
        for name, (data, ends) in self._strings.items():
            arrays[f"{name}:bytes"], arrays[f"{name}:offsets"] = np.frombuffer(data, np.uint8), np.array(ends, "int64")
        return arrays

"""Pack one shard: read, validate, encode, write, flush, rename, and leave its columns in the journal."""

from __future__ import annotations

import os
import shutil
from collections import defaultdict
from collections.abc import Iterable, Iterator
from pathlib import Path
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
from fastdata.stores.base import crc32, sync
from fastdata.types import Array, Buffer, Encoded, Record, nbytes


def draw(job: Job, task: Task, status: Status) -> Iterator[Drawn]:
    """The samples of a task, in the order in which they are packed."""
    for part in task.parts:
        status.at(part.name)
        yield from job.source.read(part) if job.shuffle is None else _shuffled(job, part, job.shuffle)


def _shuffled(job: Job, part: Part, seed: int) -> list[Drawn]:
    """A part's samples in an order that depends on the seed and the part alone."""
    drawn = list(job.source.read(part))
    order = np.argsort(hash64(seed, hash_text("samples"), part.number, np.arange(len(drawn), dtype=np.uint64)), kind="stable")
    return [drawn[i] for i in order.tolist()]


def pack_shard(job: Job, number: int, samples: Iterable[Drawn], status: Status) -> ShardSummary:
    """Pack samples into the shard of this number.

    Returns:
        Its summary; with no samples when every one was rejected, and then nothing is left on disk.

    Raises:
        DataError: a bad sample, and the job does not skip.
        DatasetError: the disk is full, or the folder cannot be written to.
    """
    module = registry.load("fastdata.stores", job.store, "--to")
    stem = job.shard_name(number)
    target = job.folder / "shards" / f"{stem}{module.SUFFIX}"
    temporary = target.with_name(f"{target.name}.tmp")
    _remove(temporary)
    rows = _Rows(job, ShardSummary(number))
    try:
        writer = module.Writer(temporary, stem, rows.payloads)
        try:
            for drawn in samples:
                status.at(drawn.origin)
                try:
                    record, digests = rows.encode(drawn)
                    writer.append(record)
                except DataError as error:
                    if job.on_error == "raise":
                        raise
                    rows.summary.rejects.append(Reject(drawn.origin, drawn.key, str(error), drawn.nbytes))
                else:
                    rows.append(record, digests)
                    rows.summary.notes.update(drawn.notes)
                status.done(drawn.nbytes)
            offsets = writer.close()
        except BaseException:
            writer.abort()
            raise
        if not rows.summary.num_samples:
            _remove(temporary)
            return rows.summary
        os.rename(temporary, target)
        sync(target.parent)
        files = sorted(p for p in target.iterdir()) if target.is_dir() else [target]
        rows.summary.files = [(f"shards/{p.relative_to(target.parent)}", p.stat().st_size, crc32(p)) for p in files]
        rows.save(job.summary_path(number), offsets)
    except OSError as error:
        if isinstance(error, DatasetError):
            raise
        raise DatasetError(f"expected to write shard {number}, got {error.strerror or error}, at {error.filename or target}") from error
    return rows.summary


class _Rows:
    """The columns of a shard while it grows."""

    def __init__(self, job: Job, summary: ShardSummary) -> None:
        self.summary = summary
        self.codecs: list[tuple[str, Codec]] = [(f.name, open_codec(f)) for f in job.fields]
        self.payloads = tuple(codec.field for _, codec in self.codecs if codec.payload)
        self._numbers: dict[str, list[Any]] = defaultdict(list)
        self._strings: dict[str, list[Any]] = defaultdict(list)
        self._digests: list[bytes] = []

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
                encoded = None if value is None else codec.encode(value)
            except DataError as error:
                raise DataError(f"{error}, at field {name!r} of {drawn.origin}") from error
            if codec.payload:
                values[name] = encoded
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
        self._strings["key"].append(record.key)
        self._digests.append(digests)
        for name, codec in self.codecs:
            if not codec.payload:
                value = record.scalars[name]
                if value is None:
                    summary.missing.add(name)
                if codec.field.dtype == "str":
                    self._strings[name].append(value or "")
                else:
                    self._numbers[name].append(0 if value is None else value)
                self._numbers[f"{name}.valid"].append(value is not None)
                continue
            encoded = record.values[name]
            if encoded is None:
                summary.missing.add(name)
            self._numbers[f"{name}.nbytes"].append(-1 if encoded is None else nbytes(encoded.data))
            for column, dtype in codec.columns.items():
                if dtype == "str":
                    self._strings[f"{name}.{column}"].append("" if encoded is None else str(encoded.columns[column]))
                else:
                    self._numbers[f"{name}.{column}"].append(0 if encoded is None else encoded.columns[column])
            if encoded is not None:
                summary.notes.update(encoded.notes)
                if encoded.pixels is not None:
                    self._add_pixels(name, encoded.pixels)
        summary.num_samples += 1

    def _add_pixels(self, name: str, pixels: Array) -> None:
        """Sum the channels of a picture, exactly."""
        import cv2

        num = pixels.shape[0] * pixels.shape[1]
        mean, deviation = (a[:, 0].astype(np.float64) for a in cv2.meanStdDev(pixels))
        # Both are integers that OpenCV divided: rounding gives them back up to some 10^14, far beyond any picture.
        sums = np.rint(mean * num).astype(np.int64).tolist()
        squares = np.rint((deviation**2 + mean**2) * num).astype(np.int64).tolist()
        total = self.summary.pixels.setdefault(name, (0, [0] * 3, [0] * 3))
        added = [a + b for a, b in zip(total[1], sums, strict=True)], [a + b for a, b in zip(total[2], squares, strict=True)]
        self.summary.pixels[name] = (total[0] + num, *added)

    def save(self, path: Path, offsets: Any) -> None:
        """Write the columns to the journal, by rename."""
        dtypes = {f"{name}.{column}": dtype for name, codec in self.codecs for column, dtype in codec.columns.items()}
        dtypes |= {name: codec.field.dtype for name, codec in self.codecs if not codec.payload}
        arrays: dict[str, Array] = {"digest": np.frombuffer(b"".join(self._digests), dtype=np.uint8).reshape(self.summary.num_samples, -1)}
        for name, numbers in self._numbers.items():
            default = "bool" if name.endswith(".valid") else "int64"
            arrays[name] = np.array(numbers, dtype=dtypes.get(name, default))
        for name, numbers in offsets.items():
            arrays[name] = np.array(numbers, dtype="int64")
        for name, strings in self._strings.items():
            encoded = [s.encode("utf-8", "surrogateescape") for s in strings]
            arrays[f"{name}:bytes"] = np.frombuffer(b"".join(encoded), dtype=np.uint8)
            arrays[f"{name}:offsets"] = np.concatenate([[0], np.cumsum([len(e) for e in encoded], dtype=np.int64)]).astype(np.int64)
        temporary = path.with_suffix(".tmp")
        with open(temporary, "wb") as file:
            np.savez(file, **arrays)  # type: ignore[arg-type]
            file.flush()
            os.fsync(file.fileno())
        os.rename(temporary, path)


def _remove(path: Path) -> None:
    """Remove what an earlier try may have left."""
    if path.is_dir():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)

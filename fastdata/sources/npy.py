"""Arrays along their first axis: one .npy, or the members of one .npz."""

from __future__ import annotations

import math
import os
import zipfile
import zlib
from collections.abc import Iterator
from functools import lru_cache
from pathlib import Path
from typing import IO, Literal

import numpy as np

from fastdata.errors import ArgumentError
from fastdata.sources import base
from fastdata.types import Array, Field, Sample

PART_NBYTES = 1 << 20
"""Bytes of rows that make a part: small beside a shard, large beside the cost of a part."""


_MAX_DEFLATION = 1032
"""Bytes that one byte of deflate can stand for at most: what claims more is no file of numpy's."""


@lru_cache(maxsize=1)
def _arrays(path: str, _stamp: tuple[int, int]) -> dict[str, Array]:
    """Map the arrays of a file by name ("" in a .npy); members that are compressed are unpacked whole, once per process."""
    with open(path, "rb") as file:
        if file.read(2) != b"PK":
            file.seek(0)
            return {"": _array(path, file, 0, os.path.getsize(path))}
    with zipfile.ZipFile(path) as archive:
        return {info.filename.removesuffix(".npy"): _member(path, archive, info) for info in archive.infolist()}


def _member(path: str, archive: zipfile.ZipFile, info: zipfile.ZipInfo) -> Array:
    if info.compress_type not in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED) or info.file_size > _MAX_DEFLATION * info.compress_size:
        raise ValueError(f"{info.file_size} bytes packed as {info.compress_size} by method {info.compress_type}")
    with archive.open(info) as member:
        if info.compress_type == zipfile.ZIP_DEFLATED:
            return _array(path, member, None, info.file_size)
        with open(path, "rb") as file:
            file.seek(info.header_offset + 26)  # the local header: 30 bytes, of which the last 4 are the lengths of name and extra field
            lengths = np.frombuffer(file.read(4), "<u2")
        return _array(path, member, info.header_offset + 30 + int(lengths.sum()), info.file_size)


def _array(path: str, file: IO[bytes], start: int | None, nbytes: int) -> Array:
    """Map the array that `file` gives, `nbytes` long from `start` in the file at `path`; where that is None, unpack it."""
    version = np.lib.format.read_magic(file)
    if version > (2, 0):
        raise ValueError(f"a header of version {version[0]}, which arrays of numbers do not need")
    shape, fortran, dtype = (np.lib.format.read_array_header_1_0 if version == (1, 0) else np.lib.format.read_array_header_2_0)(file)
    if dtype.hasobject:
        raise ValueError("an array of objects, which only pickle could load")
    size, left = math.prod(shape) * dtype.itemsize, nbytes - file.tell()
    if min(shape, default=0) < 0 or size > left:
        raise ValueError(f"an array {list(shape)} of {dtype} in {left} bytes")
    if not size:
        return np.zeros(shape, dtype)  # nothing could be mapped
    order: Literal["F", "C"] = "F" if fortran else "C"
    if start is not None:
        return np.memmap(path, dtype, "r", start + file.tell(), shape, order)
    return np.frombuffer(file.read(size), dtype).reshape(shape, order=order)


def _field(name: str, array: Array) -> Field:
    """Say what an array's rows are; `name` is "" in a .npy."""
    dtype = array.dtype.name
    if array.ndim == 1:
        return Field(name or "value", "scalar", "str" if array.dtype.kind == "U" else dtype)
    if dtype == "uint8" and array.ndim == 4 and array.shape[3] == 3:
        return Field(name or "image", "image", "uint8", array.shape[1:], dense=True, options={"image": "raw"})
    return Field(name or "array", "ndarray", dtype, array.shape[1:], dense=True)


class Source(base.Source):
    """Rows of arrays of numbers, without pickle. A part is a range of rows.

    uint8 [n, H, W, 3] are pictures, [n] scalars (of a .npz also of strings), all else dense arrays. A .npy has one field, `image`,
    `value` or `array`; a .npz one per member, by its name.
    """

    @classmethod
    def recognises(cls, path: Path) -> bool:
        """Say whether it is a file named .npy or .npz."""
        return path.is_file() and path.suffix.lower() in {".npy", ".npz"}

    def __init__(self, path: Path) -> None:
        super().__init__(path)
        base.require(path.is_file(), f"expected a .npy or .npz, got a folder, at {path}")
        self._path, self._stamp = os.fspath(path), base.stamp(os.fspath(path))
        try:
            arrays = _arrays(self._path, self._stamp)
        except (ValueError, EOFError, OSError, OverflowError, RuntimeError, zipfile.BadZipFile, zlib.error) as error:
            raise ArgumentError(f"expected arrays of numbers, got {error}, at {path}") from error
        shapes = ", ".join(f"{name or 'array'} {list(array.shape)}" for name, array in arrays.items())
        lengths = {array.shape[:1] for array in arrays.values()}
        base.require(len(lengths) == 1 and () not in lengths, f"expected arrays of equally many rows, got {shapes or 'none'}, at {path}")
        for name, array in arrays.items():
            known = array.dtype.name in base.DTYPES or (array.dtype.kind == "U" and array.ndim == 1)
            base.require(known, f"expected arrays of numbers, got {array.dtype} in {name or 'the array'}, at {path}")
        self._num_samples = lengths.pop()[0]
        base.require(self._num_samples > 0, f"expected rows, got none: {shapes}, at {path}")
        names = base.field_names(arrays, self._path) if "" not in arrays else {"": ""}
        self.fields = tuple(sorted((_field(names[name], array) for name, array in arrays.items()), key=lambda field: field.name == "label"))
        self._members = {_field(names[name], array).name: name for name, array in arrays.items()}
        self._row_nbytes = sum(array.nbytes // self._num_samples for array in arrays.values())
        base.require(self._row_nbytes > 0, f"expected rows with numbers, got empty ones: {shapes}, at {path}")

    def parts(self) -> Iterator[base.Part]:
        """List ranges of rows; `detail` is start and stop."""
        arrays = _arrays(self._path, self._stamp)
        rows = max(1, PART_NBYTES // self._row_nbytes)
        for start in range(0, self._num_samples, rows):
            stop = min(start + rows, self._num_samples)
            # Rows that change keep their size, so their bytes take part in the name.
            checksum = 0
            for name in self._members.values():
                checksum = zlib.crc32(np.ascontiguousarray(arrays[name][start:stop]).reshape(-1).view(np.uint8).data, checksum)
            nbytes = (stop - start) * self._row_nbytes
            yield base.Part(f"{start}-{stop} {checksum:08x}", nbytes, start, (start, stop), stop - start)

    def read(self, part: base.Part) -> Iterator[base.Drawn]:
        """Copy rows out of the mapped file.

        Raises:
            DataError: the file has changed since it was opened.
        """
        base.check_stamp(self._path, self._stamp)  # reading through a mapping of a file that was cut short would end the process
        arrays = _arrays(self._path, self._stamp)
        columns = {field.name: arrays[self._members[field.name]] for field in self.fields}
        for row in range(*part.detail):
            sample: Sample = {
                name: array[row].item() if array.ndim == 1 else np.array(array[row], array.dtype.newbyteorder("<"), order="C")
                for name, array in columns.items()
            }
            yield base.Drawn(str(row), f"{self._path}[{row}]", self._row_nbytes, sample)

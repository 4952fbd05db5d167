"""A shard is a folder of arrays: `<field>.npy` where all values have one shape, else `<field>.bin` and `<field>.offsets.npy`.

Offsets are int64 [n + 1] in elements: steps along the first dimension of the values.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from fastdata.errors import DataError
from fastdata.stores.base import ArrayReader, ArraySpool, map_npy, sync
from fastdata.stores.base import Writer as BaseWriter
from fastdata.types import Array, Field, Record

SUFFIX = ""
_HEADER_NBYTES = 128  # of a .npy of version 1.0: numpy pads the length so that it can be written again with another count


class Writer(BaseWriter):
    """Append elements; the headers of dense arrays are written at the end, when the count is known."""

    def __init__(self, path: Path, stem: str, fields: Sequence[Field]) -> None:
        super().__init__(path, stem, fields)
        path.mkdir()
        self._spools = [ArraySpool(path / f"{field.name}.{'npy' if field.dense else 'bin'}", field) for field in fields]
        for spool in self._spools:
            if spool.field.dense:
                spool.write(bytes(_HEADER_NBYTES))

    def append(self, record: Record) -> None:
        """Add the values to their files."""
        for spool in self._spools:
            value = record.values[spool.field.name]
            spool.append(None if value is None else value.data)

    def close(self) -> Mapping[str, Sequence[int]]:
        """Write headers and offsets."""
        for spool in self._spools:
            spool.close()
            offsets = spool.ends()
            if spool.field.dense:
                _write_header(spool.path, spool.dtype, (len(offsets) - 1, *spool.field.shape))
            else:
                target = spool.path.with_name(f"{spool.field.name}.offsets.npy")
                np.save(target, offsets, allow_pickle=False)
                sync(target)
                self.crc32[spool.path] = spool.crc32
        if not self._spools:
            (self.path / "empty").touch()  # all values are in columns, and a shard is what has files
        sync(self.path)
        return {}

    def abort(self) -> None:
        """Close the files."""
        for spool in self._spools:
            spool.abort()


def _write_header(path: Path, dtype: np.dtype[Any], shape: tuple[int, ...]) -> None:
    """Put the header of a .npy file before elements that are there."""
    text = f"{{'descr': {np.lib.format.dtype_to_descr(dtype)!r}, 'fortran_order': False, 'shape': {shape!r}, }}"
    if len(text) > _HEADER_NBYTES - 11:
        raise DataError(f"expected a shape whose description has {_HEADER_NBYTES - 11} characters, got {text}, at {path}; use --to lmdb")
    head = b"\x93NUMPY\x01\x00" + (_HEADER_NBYTES - 10).to_bytes(2, "little")
    with open(path, "r+b") as file:
        file.write(head + text.encode().ljust(_HEADER_NBYTES - 11) + b"\n")
        file.flush()
        os.fsync(file.fileno())


class Reader(ArrayReader):
    """Map the arrays."""

    def __init__(self, path: Path, fields: Sequence[Field], num_samples: int, column: Callable[[str], Array]) -> None:
        self.dense, self.ragged = {}, {}
        for field in fields:
            if field.dense:
                self.dense[field.name] = map_npy(path / f"{field.name}.npy").view(np.ndarray)
                continue
            offsets = map_npy(path / f"{field.name}.offsets.npy").view(np.ndarray)
            target, shape = path / f"{field.name}.bin", (int(offsets[-1]), *field.shape)
            dtype = np.dtype(field.dtype).newbyteorder("<")
            # An empty file cannot be mapped.
            elements = np.memmap(target, dtype, "r", shape=shape).view(np.ndarray) if target.stat().st_size else np.empty(shape, dtype)
            self.ragged[field.name] = elements, offsets
        self.check(path, num_samples, fields)

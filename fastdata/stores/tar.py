"""A shard is a tar that WebDataset reads; the columns `<field>.offset` and `<field>.nbytes` say where each value's bytes lie in it.

Of arrays, which are .npy members, these are the bytes of the elements: they begin behind the 128 bytes of the .npy header.

Members are `<shard>-<index in shard>.<extension>`, in the ustar format, without times, owners or padding beyond the two closing blocks.
"""

from __future__ import annotations

import io
import json
import os
import re
import tarfile
from array import array
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import numpy as np

from fastdata.errors import DataError, ShardError
from fastdata.stores.base import Output, to_elements
from fastdata.stores.base import Reader as BaseReader
from fastdata.stores.base import Writer as BaseWriter
from fastdata.types import Array, Field, Int64Array, Record, Values, nbytes

SUFFIX = ".tar"
SEQUENTIAL = True
_BLOCK = 512
_NAME_NBYTES = 100  # of a ustar header
_NPY_HEADER = 128  # bytes before the elements in a .npy of version 1.0
_MAX_NBYTES = 8 << 30  # what the eleven octal digits of a ustar header hold
_ZEROS = bytes(_BLOCK)
_TEMPLATE = tarfile.TarInfo("").tobuf(tarfile.USTAR_FORMAT)
_CHECKSUM = sum(_TEMPLATE[:124]) + sum(_TEMPLATE[135:148]) + 8 * ord(" ") + sum(_TEMPLATE[156:])


class Writer(BaseWriter):
    """Write members one behind the other."""

    def __init__(self, path: Path, stem: str, fields: Sequence[Field]) -> None:
        super().__init__(path, stem, fields)
        self._output = Output(path)
        self._at = 0
        self._num = 0
        self._offsets = {field.name: array("q") for field in fields}
        self._prefixes = _prefixes(fields)
        taken = {f"{self._prefixes[field.name]}json" for field in fields if field.codec == "json"}
        self._scalars = next(name for name in ("json", "scalars.json", "_scalars.json") if name not in taken)

    def append(self, record: Record) -> None:
        """Write the payloads, then the label as .cls, then all other scalars as one .json."""
        members: list[tuple[str | None, str, bytes | bytearray | memoryview, int]] = []
        for name, value in record.values.items():
            if value is None:
                continue
            header = _NPY_HEADER if isinstance(value.data, np.ndarray) else 0
            if nbytes(value.data) + header >= _MAX_NBYTES:
                raise DataError(f"expected a value under 8 GiB in a tar, got {nbytes(value.data)} bytes, at field {name!r}; use --to mmap")
            data = _npy_header(value.data) + value.data.tobytes() if isinstance(value.data, np.ndarray) else value.data
            members.append((name, self._prefixes[name] + value.extension, data, header))
        scalars = {name: value for name, value in record.scalars.items() if value is not None}
        if isinstance(label := scalars.get("label"), int):
            del scalars["label"]
            members.append((None, "cls", b"%d" % label, 0))
        if scalars:
            members.append((None, self._scalars, json.dumps(scalars, separators=(",", ":")).encode(), 0))
        if not members:
            members.append((None, "json", b"{}", 0))
        names = [f"{self.stem}-{self._num:06d}.{extension}" for _, extension, _, _ in members]
        if len(longest := max(names, key=len)) > _NAME_NBYTES:
            raise DataError(
                f"expected a name of at most {_NAME_NBYTES} characters in a tar, got {longest!r}; use a shorter name of the field"
            )
        offsets = dict.fromkeys(self._offsets, -1)
        for name, (field, _, data, header) in zip(names, members, strict=True):
            at = self._write(name, data)
            if field is not None:
                offsets[field] = at + header
        for field, at in offsets.items():
            self._offsets[field].append(at)
        self._num += 1

    def _write(self, name: str, data: bytes | bytearray | memoryview) -> int:
        """Write one member; give the offset of its data."""
        size = nbytes(data)
        padding = -size % _BLOCK
        self._output.write(_header(name, size), data, _ZEROS[:padding])
        start = self._at + _BLOCK
        self._at = start + size + padding
        return start

    def close(self) -> Mapping[str, Sequence[int]]:
        """Write the closing blocks; give the offsets of the members' data."""
        self._output.write(_ZEROS, _ZEROS)
        self._output.close()
        self.crc32[self.path] = self._output.crc32
        return {f"{name}.offset": offsets for name, offsets in self._offsets.items()}

    def abort(self) -> None:
        """Close the file."""
        self._output.abort()


def _header(name: str, size: int) -> bytes:
    """The header of a regular file, 0644, of nobody and no time; `tarfile` makes the same in some thirty microseconds more."""
    head, digits = name.encode("ascii"), b"%011o" % size
    checksum = _CHECKSUM + sum(head) + sum(digits)
    return b"".join(
        (head.ljust(_NAME_NBYTES, b"\0"), _TEMPLATE[100:124], digits, _TEMPLATE[135:148], b"%06o\0 " % checksum, _TEMPLATE[156:])
    )


def _prefixes(fields: Sequence[Field]) -> dict[str, str]:
    """What stands before each field's extension: nothing for the first field of a kind, else its name and a dot.

    The manifest decides, not what a sample happens to hold. Raw pictures and arrays both are .npy, so an array beside pictures has its name.
    """
    prefixes: dict[str, str] = {}
    kinds = {"ndarray"} if any(field.codec == "image" for field in fields) else set()
    for field in fields:
        prefixes[field.name] = f"{field.name}." if field.codec in kinds else ""
        kinds.add(field.codec)
    return prefixes


class Reader(BaseReader):
    """Read members by offset, each with its header, so that something else in its place is noticed."""

    def __init__(self, path: Path, fields: Sequence[Field], num_samples: int, column: Callable[[str], Array]) -> None:
        self._path, self._column = path, column
        self._descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        self._nbytes = os.fstat(self._descriptor).st_size

    def __del__(self) -> None:
        if (descriptor := getattr(self, "_descriptor", None)) is not None:
            os.close(descriptor)

    def read(self, field: Field, rows: Int64Array) -> Values:
        """Read in the order of the offsets, which a disk likes."""
        offsets = self._column(f"{field.name}.offset")[rows]
        sizes = self._column(f"{field.name}.nbytes")[rows]
        if field.dense and (offsets < 0).any():
            raise ShardError(f"expected a value, got none, at sample {rows[np.argmin(offsets)]} of {self._path}")
        values: list[Array] = [np.empty((0, *field.shape), dtype=field.dtype)] * len(rows)
        for i in np.argsort(offsets, kind="stable").tolist():
            if offsets[i] >= 0:
                values[i] = self._member(field, int(offsets[i]), int(sizes[i]))
        return np.concatenate(values) if field.dense else values

    def place(self, field: Field, row: int) -> str:
        offset = int(self._column(f"{field.name}.offset")[row])
        return "" if offset < 0 else f"offset {offset} of {field.name}"

    def _member(self, field: Field, offset: int, size: int) -> Array:
        """One value as elements, read together with what stands before it, so that something else in its place is noticed."""
        if offset < _BLOCK or size < 0:
            raise ShardError(f"expected a value behind the first {_BLOCK} bytes, got {size} bytes at offset {offset} of {self._path}")
        if offset + size > self._nbytes:
            there = max(0, self._nbytes - offset)
            raise ShardError(f"expected {size} bytes, got {there}, at offset {offset} of {self._path}: the shard ends early")
        before = min(offset, _BLOCK + _NPY_HEADER)
        block = os.pread(self._descriptor, before + size, offset - before)
        is_array = block[before - _NPY_HEADER : before - _NPY_HEADER + 6] == b"\x93NUMPY" and before == _BLOCK + _NPY_HEADER
        head = block[:_BLOCK] if is_array else block[before - _BLOCK : before]
        if head[257:262] != b"ustar":
            raise ShardError(f"expected a member of a tar, got {head[:8].hex(' ')}, at offset {offset} of {self._path}")
        expected, digits = size + _NPY_HEADER * is_array, head[124:135]
        if digits != b"%011o" % expected:
            got = int(digits, 8) if re.fullmatch(rb"[0-7]{11}", digits) else digits.hex(" ")
            raise ShardError(f"expected a member of {expected} bytes, got {got}, at offset {offset} of {self._path}")
        return to_elements(field, block[before:])


def _npy_header(array: Array) -> bytes:
    """What a .npy file has before the elements.

    Raises:
        DataError: it is longer than what readers expect, which takes a shape of some twenty dimensions.
    """
    file = io.BytesIO()
    description = np.lib.format.header_data_from_array_1_0(array)
    np.lib.format.write_array_header_1_0(file, description)
    if file.tell() != _NPY_HEADER:
        raise DataError(
            f"expected an array whose .npy header has {_NPY_HEADER} bytes, got {file.tell()} for {list(array.shape)}; use --to lmdb"
        )
    return file.getvalue()

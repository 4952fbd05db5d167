"""Tars as WebDataset has them: one, or a folder of them; files whose paths differ only behind the first dot of their names are a sample."""

from __future__ import annotations

import io
import json
import math
import os
import re
import zipfile
import zlib
from array import array
from collections import Counter
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple

import numpy as np

from fastdata.errors import ArgumentError, DataError
from fastdata.sources import base
from fastdata.types import Array, Field, Int64Array, Sample

PART_NBYTES = 1 << 20
"""Bytes of samples that make a part: small beside a shard, large beside the cost of a part."""

MAX_SLOTS = 100
"""Different extensions: more than any corpus has, fewer than where names have numbers behind their first dot."""

_BLOCK = 512
_MAX_EXTRA_NBYTES = 1 << 20  # of a long name or a pax header: far above any path, far below memory
_NPY_HEAD_NBYTES = 16 << 10  # numpy refuses longer headers

_REGULAR, _WITHOUT_DATA, _LONG_NAME, _PAX, _PASSED, _SPARSE = b"0\x007", b"123456", b"L", b"x", b"Kg", b"S"  # types of headers
_RECORD = re.compile(rb"(\d{1,7}) ([^=]+)=")
_COMPRESSED = {b"\x1f\x8b": "gunzip", b"BZh": "bunzip2", b"\xfd7zXZ": "unxz", b"\x28\xb5\x2f\xfd": "unzstd"}
_EXTENSIONS = (".tar", ".tar.gz", ".tgz")
_PICKLES = frozenset({"pyd", "pickle", "pkl", "pt", "pth", "ten"})
_CLASS = re.compile(rb"\s*-?[0-9]{1,18}\s*")


class _Member(NamedTuple):
    """One entry of a tar: where its headers start, where its data are, where the next entry starts; crc32 of the headers."""

    name: str
    regular: bool
    start: int
    data: int
    nbytes: int
    stop: int
    crc: int


class _Tar(NamedTuple):
    """A tar that was looked through.

    `ranges` are [start, stop] in bytes; `parts` are [end of its ranges, samples, bytes, crc32 of headers].
    """

    path: str
    stamp: tuple[int, int]
    ranges: Int64Array
    parts: Int64Array


def _members(file: BinaryIO, nbytes: int, start: int, stop: int) -> Iterator[_Member]:
    """Read headers from `start` to `stop`, or to the closing blocks; data are passed over.

    Raises:
        DataError: the tar is damaged or cut short, with the offset.
        ArgumentError: a sparse member.
    """
    at = begin = start
    crc, extra = 0, dict[bytes, bytes]()
    while at < stop:
        file.seek(at)
        header = file.read(_BLOCK)
        if header == bytes(_BLOCK):
            return
        size, kind = _parse(header, at), header[156:157]
        crc, data = zlib.crc32(header, crc), at + _BLOCK
        if kind in _WITHOUT_DATA:
            size = 0
        elif kind in _REGULAR and extra.get(b"size", b"").isdigit():
            size = int(extra[b"size"][:20])
        if data + size > nbytes:
            raise DataError(f"expected {size} bytes of a member, got {nbytes - data}, at offset {data}: the tar is cut short")
        at = data + size + -size % _BLOCK
        if kind in (_PAX, _LONG_NAME):
            if size > _MAX_EXTRA_NBYTES:
                raise DataError(f"expected a name of less than {_MAX_EXTRA_NBYTES} bytes, got {size}, at offset {data}")
            found = file.read(size)
            crc = zlib.crc32(found, crc)
            extra |= _records(found, data) if kind == _PAX else {b"path": found.partition(b"\0")[0]}
        elif kind not in _PASSED:
            name = (extra.get(b"path") or _name(header)).decode("utf-8", "surrogateescape")
            if kind == _SPARSE or any(key.startswith(b"GNU.sparse.") for key in extra):
                raise ArgumentError(f"expected whole files, got a sparse one, {name!r}, at {file.name}; make the tar without --sparse")
            regular = kind in _REGULAR and not name.endswith("/")
            yield _Member(name, regular, begin, data, size, at, crc)
            begin, crc, extra = at, 0, {}


def _parse(header: bytes, at: int) -> int:
    """Check a header; give the size of what follows."""
    if len(header) < _BLOCK:
        raise DataError(f"expected a header or the closing blocks of a tar, got its end, at offset {at}: the tar is cut short")
    checksum, size = _number(header[148:156]), _number(header[124:136])
    if checksum != sum(header) - sum(header[148:156]) + 8 * ord(" ") or size < 0:
        raise DataError(f"expected a header of a tar with its checksum, got {header[:8].hex(' ')} ..., at offset {at}")
    return size


def _number(field: bytes) -> int:
    """Read octal digits, or the binary form of sizes from 8 GiB on; -1 where there is neither."""
    if field[0] == 0x80:
        return int.from_bytes(field[1:], "big")
    digits = field.partition(b"\0")[0].strip()
    return int(digits or b"0", 8) if not digits.strip(b"01234567") else -1


def _name(header: bytes) -> bytes:
    """Take the name out of a header, with the prefix that POSIX puts elsewhere."""
    name, prefix = header[:100].partition(b"\0")[0], header[345:500].partition(b"\0")[0]
    return prefix + b"/" + name if prefix and header[257:263] == b"ustar\0" else name


def _records(data: bytes, at: int) -> dict[bytes, bytes]:
    """Take apart a pax header: records `<length> <key>=<value>` with a line end, where the length counts the whole record."""
    found, position = dict[bytes, bytes](), 0
    while position < len(data):
        match = _RECORD.match(data, position)
        stop = position + int(match[1]) if match else 0
        if not match or stop < match.end() + 1 or data[stop - 1 : stop] != b"\n":
            raise DataError(f"expected a pax header, got {data[position : position + 20]!r}, at offset {at + position}")
        found[match[2]] = data[match.end() : stop - 1]
        position = stop
    return found


def _npy(data: bytes) -> tuple[tuple[int, ...], bool, np.dtype[Any], int]:
    """Read the header of a .npy: shape, whether columns come first, dtype, and where the elements begin.

    Raises:
        DataError: it is none.
    """
    file = io.BytesIO(data)
    try:
        version = np.lib.format.read_magic(file)
        read = np.lib.format.read_array_header_1_0 if version == (1, 0) else np.lib.format.read_array_header_2_0
        shape, fortran, dtype = read(file)
    except MemoryError:
        raise
    except Exception as error:  # whatever Python's parser stumbles over in a damaged header
        raise DataError(f"expected a .npy, got {data[:8].hex(' ') or 'an empty file'}: {error}") from error
    return shape, fortran, dtype, file.tell()


def _array(data: bytes) -> Array:
    """Read a .npy of numbers; the header is checked against the bytes that are there.

    Raises:
        DataError: damaged, or not of numbers.
    """
    shape, fortran, dtype, start = _npy(data)
    if dtype.name not in base.DTYPES:
        raise DataError(f"expected numbers in a .npy, got {dtype}")
    if min(shape, default=0) < 0 or len(data) - start != math.prod(shape) * dtype.itemsize:
        raise DataError(f"expected an array {list(shape)} of {dtype} in a .npy, got {len(data) - start} bytes")
    return np.frombuffer(data, dtype, offset=start).reshape(shape, order="F" if fortran else "C")


def _has_pickles(slot: str, data: bytes) -> bool:
    """Tell whether what begins with `data` (of a .npz: all of it) could only be read by unpickling."""
    last = slot.rpartition(".")[2]
    if last == "npy":
        return _npy(data)[2].hasobject
    if last != "npz":
        return last in _PICKLES
    broken = (DataError, OSError, EOFError, RuntimeError, NotImplementedError, zipfile.BadZipFile, zlib.error)
    with suppress(*broken), zipfile.ZipFile(io.BytesIO(data)) as archive:
        return any(_npy(archive.open(info).read(_NPY_HEAD_NBYTES))[2].hasobject for info in archive.infolist())
    return False


def _field(slot: str, data: bytes) -> Field:
    """Say what the files of a slot are, by how the first of them begins.

    Raises:
        DataError: a .npy that is none, or not of numbers.
    """
    prefix, _, last = slot.rpartition(".")
    name = prefix.replace(".", "_") or {"image": "image", "cls": "label", "txt": "text", "json": "json", "npy": "array"}.get(last, last)
    if last == "image":
        return base.picture_field(name)
    if last in {"txt", "json"}:
        return Field(name, "text" if last == "txt" else "json")
    if last == "cls":
        return Field(name, "scalar", "int64")
    if last != "npy":
        return Field(slot, "bytes")
    shape, _, dtype, _ = _npy(data)
    if dtype.name not in base.DTYPES:
        raise DataError(f"expected numbers in a .npy, got {dtype}")
    if dtype == np.uint8 and shape[2:] == (3,):
        return base.picture_field(name if prefix else "image")
    return Field(name, "ndarray", dtype.name, shape[1:]) if shape else Field(name, "scalar", dtype.name)


class Source(base.Source):
    """Samples of one tar, or of those right in a folder, in the order of their names' bytes. A part is a range of a tar, or some.

    Files are fields by their extensions, in any case: of pictures `image`, .cls `label`, .txt `text`, .json `json`, .npy `array` (uint8
    [H, W, 3] are pictures, others ragged arrays), any other bytes by its own name. With a name before it (`mask.png`, `boxes.npy`) that
    is the field. Dots in names of folders part nothing. Hidden files, folders, links and devices are ignored and counted, so are files
    without an extension. Nothing is ever unpacked to disk, so keys may be any path.

    Opening reads all headers, once, and of each extension's first file the beginning. What is remembered is a few numbers for each part. The
    files of a sample may lie apart in their tar, of which the user is warned; a field that a sample has twice is its error. A tar that is
    damaged or cut short gives the samples before that place, and an error in place of the sample that it breaks off at.
    """

    @classmethod
    def recognises(cls, path: Path) -> bool:
        """Say whether it is a file named .tar (or .tar.gz or .tgz, which opening refuses), or a folder of mostly such."""
        return base.mostly(path, _EXTENSIONS)

    def __init__(self, path: Path) -> None:
        super().__init__(path)
        self._slots: dict[str, Field] = {}
        self._troubles: list[str] = []
        self._unread: dict[str, str] = {}
        self._num_apart = 0
        self._tars = [self._look_through(file) for file in base.containers(path, _EXTENSIONS, self.ignored)]
        for slot, why in self._unread.items():
            base.require(slot in self._slots, why)
        first = self._troubles[0] if self._troubles else ""
        base.require(bool(self._slots), f"expected samples in tars, got none{first and f' ({first})'}, at {path}")
        self.trouble = first + (f" ({len(self._troubles) - 1} more like this)" if len(self._troubles) > 1 else "") or None
        if self._num_apart:
            self.warnings.append(f"the files of {self._num_apart} samples do not follow one another in their tar: reading jumps")
        kinds = {field.name: field for field in self._slots.values()}
        for slot, field in self._slots.items():
            same = field == kinds[field.name]
            base.require(
                same, f"expected files of one kind for field {field.name!r}, got .{slot} beside {kinds[field.name].codec}, at {path}"
            )
        names = base.field_names(kinds, os.fspath(path))
        self._slots = {slot: replace(field, name=names[field.name]) for slot, field in self._slots.items()}
        self.fields = tuple(sorted({field.name: field for field in self._slots.values()}.values(), key=lambda field: field.name == "label"))

    def _look_through(self, path: str) -> _Tar:
        """Read all headers of a tar, and of files of a new kind the beginning."""
        stamp, rows, start = base.stamp(path), array("q"), -1
        nbytes = stamp[0]
        with open(path, "rb") as file:
            head = file.read(8)
            for magic, tool in _COMPRESSED.items():
                found = f"got a compressed one, at {path}; unpack it with {tool}"
                base.require(not head.startswith(magic), f"expected a tar that is not compressed, {found}")
            try:
                for member in _members(file, nbytes, 0, nbytes + _BLOCK):
                    if name := _name_of(member, self.ignored):
                        self._learn(name[1], member, file)
                        rows.extend((hash(name[0]), hash(name), member.start, member.stop, member.nbytes, member.crc))
                if behind := _behind(file):
                    cure = "; if tars were joined, unpack them with tar -i"
                    self._troubles.append(f"expected nothing behind the end of a tar, got more, at offset {behind} of {path}{cure}")
            except DataError as error:
                self._troubles.append(f"{error}, of {path}")
                start = 0
            members = np.frombuffer(rows, np.int64).reshape(-1, 6)
            first = _first_alike(members[:, 1])
            if len(again := np.flatnonzero(first != np.arange(len(members)))):
                twice = members[[first[again[0]], again[0]], 2].tolist()
                one, other = (next(_members(file, nbytes, at, nbytes)).name for at in twice)
                self._troubles.append(f"expected one file for each field of a sample, got {one!r} and {other!r}, in {path}")
        if start < 0 or not len(members):
            ranges, parts, num_apart = _cut(members, np.arange(len(members)))
        else:
            # The sample that a damaged tar breaks off at may lack files, so it goes with the error.
            others = np.flatnonzero(members[:, 0] != members[-1, 0])
            start = int(members[others[-1], 3]) if len(others) else 0
            ranges, parts, num_apart = _cut(members[others], others)
        if start >= 0:
            ranges = np.append(ranges, [[start, nbytes + _BLOCK]], axis=0)
            parts = np.append(parts, [[len(ranges), 1, nbytes - start, 0]], axis=0)
        self._num_apart += num_apart
        return _Tar(path, stamp, ranges, parts)

    def _learn(self, slot: str, member: _Member, file: BinaryIO) -> None:
        """Say what the files of a slot are, where none has told it before."""
        if slot in self._slots:
            return
        where = f"at {member.name} of {file.name}"
        cure = "keys end at the first dot of a name, so rename files that have more"
        base.require(len(self._slots) < MAX_SLOTS, f"expected at most {MAX_SLOTS} extensions, got also .{slot}, {where}; {cure}")
        file.seek(member.data)
        data = file.read(member.nbytes if slot.endswith("npz") else min(member.nbytes, _NPY_HEAD_NBYTES))
        try:
            pickled = _has_pickles(slot, data)
            base.require(
                not pickled, f"expected files that are read without unpickling, got .{slot}, {where}; convert them to .npy or .json"
            )
            self._slots[slot] = _field(slot, data)
        except DataError as error:
            self._unread[slot] = f"{error}, {where}"

    def parts(self) -> Iterator[base.Part]:
        """List ranges of the tars; `detail` is the tar's number and [start, stop] in bytes."""
        number = 0
        for index, tar in enumerate(self._tars):
            begin = 0
            for end, num_samples, nbytes, crc in tar.parts.tolist():
                ranges = tuple((start, stop) for start, stop in tar.ranges[begin:end].tolist())
                name = f"{os.path.basename(tar.path)} {ranges[0][0]}-{ranges[-1][1]} {crc:08x}"
                yield base.Part(name, nbytes, number, (index, ranges), num_samples)
                begin, number = end, number + num_samples

    def read(self, part: base.Part) -> Iterator[base.Drawn]:
        """Read the headers again, then the files of one sample after another."""
        index, ranges = part.detail
        path, stamp = self._tars[index].path, self._tars[index].stamp
        base.check_stamp(path, stamp)
        samples: dict[str, list[tuple[str, _Member]]] = {}
        with open(path, "rb") as file:
            try:
                for start, stop in ranges:
                    for member in _members(file, stamp[0], start, stop):
                        if name := _name_of(member, Counter()):
                            samples.setdefault(name[0], []).append((name[1], member))
            except DataError as error:
                key = next(reversed(samples), str(part.number))
                yield base.Drawn(key, f"{path}:{key}", part.nbytes, error)
                return
            for key, files in samples.items():
                nbytes = sum(member.nbytes for _, member in files)
                try:
                    sample, notes = self._sample(file, files)
                    yield base.Drawn(key, f"{path}:{key}", nbytes, sample, notes)
                except DataError as error:
                    yield base.Drawn(key, f"{path}:{key}", nbytes, error)

    def _sample(self, file: BinaryIO, files: list[tuple[str, _Member]]) -> tuple[Sample, tuple[str, ...]]:
        sample: Sample = dict.fromkeys(field.name for field in self.fields)
        names: dict[str, str] = {}
        notes: tuple[str, ...] = ()
        for slot, member in files:
            field = self._slots[slot]
            if field.name in names:
                raise DataError(f"expected one file for field {field.name!r}, got {names[field.name]!r} and {member.name!r}")
            names[field.name] = member.name
            file.seek(member.data)
            data = file.read(member.nbytes)
            try:
                sample[field.name] = _value(field, slot, data)
            except DataError as error:
                raise DataError(f"{error}, at {member.name!r}") from error
            if field.codec == "image" and not slot.endswith("npy"):
                notes += base.misnamed(member.name, data)
        return sample, notes


def _name_of(member: _Member, ignored: Counter[str]) -> tuple[str, str] | None:
    """Part a member's path into the key of its sample and its slot, or count why it is passed over.

    The slot is the extension in lower case, where "image" stands for those of pictures.
    """
    folder, slash, file = member.name.rpartition("/")
    stem, _, extension = file.partition(".")
    if not member.regular:
        ignored["folders, links and devices"] += 1
    elif any(base.is_hidden(part) for part in member.name.split("/") if part not in {".", ".."}):
        ignored["hidden or system files and folders"] += 1
    elif not extension:
        ignored["files without an extension"] += 1
    else:
        prefix, dot, last = extension.lower().rpartition(".")
        return folder + slash + stem, prefix + dot + ("image" if last in base.PICTURES else last)
    return None


def _behind(file: BinaryIO) -> int:
    """Find the first byte that is not 0 from here on; 0: there is none."""
    while data := file.read(PART_NBYTES):
        if rest := data.lstrip(b"\0"):
            return file.tell() - len(rest)
    return 0


def _first_alike(numbers: Int64Array) -> Int64Array:
    """Of each number, the position where it comes first."""
    _, first, which = np.unique(numbers, return_index=True, return_inverse=True)
    return first[which]


def _cut(members: Int64Array, positions: Int64Array) -> tuple[Int64Array, Int64Array, int]:
    """Cut a tar into parts, samples in the order in which they begin.

    Args:
        members: [n, 6]: hashes of key and of name, start, stop, bytes, crc32.
        positions: [n], numbers of the members in the tar; where they follow one another they are read in one go.

    Returns:
        `_Tar.ranges` and `_Tar.parts`, and the number of samples whose members do not follow one another.
    """
    if not len(members):
        return np.empty((0, 2), np.int64), np.empty((0, 4), np.int64), 0
    first = _first_alike(members[:, 0])
    order = np.argsort(first, kind="stable")
    members, positions, sample = members[order], positions[order], first[order]
    same, jumps = np.diff(sample, prepend=-1) == 0, np.diff(positions, prepend=-2) != 1
    begins = np.flatnonzero(~same)
    nbytes = np.add.reduceat(members[:, 4], begins)
    heads = np.flatnonzero(np.diff((np.cumsum(nbytes) - nbytes) // PART_NBYTES, prepend=-1))
    cuts = begins[heads]
    num_apart = len(np.unique(sample[same & jumps]))
    jumps[cuts] = True
    starts = np.flatnonzero(jumps)
    ranges = np.stack([members[starts, 2], members[np.append(starts[1:], len(members)) - 1, 3]], axis=1)
    ends = np.searchsorted(starts, np.append(cuts[1:], len(members)))
    crcs = [zlib.crc32(group.tobytes()) for group in np.split(members[:, 5], cuts[1:])]
    parts = np.stack([ends, np.diff(heads, append=len(begins)), np.add.reduceat(nbytes, heads), crcs], axis=1)
    return ranges, parts, num_apart


def _value(field: Field, slot: str, data: bytes) -> Any:
    """Make a file into what its codec takes.

    Raises:
        DataError: it is not what its extension says.
    """
    last = slot.rpartition(".")[2]
    if last == "npy":
        value = _array(data)
        if field.codec == "scalar" and value.shape:
            raise DataError(f"expected one number in a .npy, got an array {list(value.shape)}")
        return value.item() if field.codec == "scalar" else value
    if last == "cls":
        if not _CLASS.fullmatch(data):
            raise DataError(f"expected the number of a class, got {base.short(data)}")
        return int(data)
    if last == "txt":
        return base.decode_text(data, "file")
    if last == "json":
        try:
            return json.loads(data)
        except (ValueError, RecursionError) as error:
            raise DataError(f"expected JSON, got {base.short(data)}: {error}") from error
    return data

"""Arrays of an HDF5 file: along their first axis, or one for each sample."""

from __future__ import annotations

import itertools
import math
import os
import zlib
from array import array
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from functools import lru_cache
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from fastdata.errors import ArgumentError, DataError
from fastdata.pictures import HEAD_NBYTES, picture_format
from fastdata.sources import base
from fastdata.types import Field, Int64Array, Sample

PART_NBYTES = 1 << 20
"""Bytes of rows that make a part: small beside a shard, large beside the cost of a part."""

MAX_CHUNK_NBYTES = 64 << 20
"""Bytes of a chunk up to which parts are of whole chunks, since each is unpacked as one; a shuffled part is held in memory."""

MAX_FIELDS = 100
"""Datasets of different kinds: more than any corpus has, fewer than where each sample has a group."""

MAX_RATIO = 4096
"""Bytes that a byte of the file may stand for. Deflate reaches 1032; what claims more has no data, and is refused before memory is taken."""

_HEAD = 1000  # rows that tell whether strings are documents
_PROBES = 8  # rows that tell whether bytes are pictures
_BLOCK = 1 << 16  # rows whose sizes are looked at in one go
_MAX_MEMBERS = 1000  # samples of a part whose names it carries
_CACHE_NBYTES = 64 << 20  # of unpacked chunks of a dataset: more than a chunk of labels, which serves many parts
_ERRORS = (OSError, RuntimeError, ValueError, KeyError, TypeError)  # what h5py raises for damaged data


class _Column(NamedTuple):
    """A field, the path of its dataset and, where values are ragged and lie one behind the other, of their offsets."""

    field: Field
    data: str
    offsets: str | None = None


class _Group(NamedTuple):
    """A group whose datasets may be one for each sample.

    `kind` is what they have in common, None where that is too little; `varies`: they are not all of one length; `nbytes` is the size of each.
    """

    path: str
    names: list[str]
    kind: tuple[Any, ...] | None
    varies: bool
    nbytes: Int64Array


def _open(path: str) -> Any:
    """Open without a lock, since shared file systems and read-only mounts refuse it."""
    import h5py

    return h5py.File(path, "r", locking=False, rdcc_nbytes=_CACHE_NBYTES)


@lru_cache(maxsize=1)
def _opened(_pid: int, path: str, _mtime_ns: int) -> Any:
    """Open a file for reading; the last one stays open in this process."""
    return _open(path)


def _walk(file: Any, ignored: Counter[str]) -> Iterator[tuple[str, list[str]]]:
    """Yield each group ("" is the root, others end with a slash) with the names of its datasets; nothing outside of the file is followed.

    Raises:
        ArgumentError: a link to another file.
    """
    import h5py

    seen, groups = set[Any](), [""]
    while groups:
        path = groups.pop()
        group = file[path or "/"]
        address = h5py.h5o.get_info(group.id).addr
        if address in seen:
            continue
        seen.add(address)
        kinds: dict[Any, list[str]] = {h5py.Group: [], h5py.Dataset: []}
        for name in sorted(group):
            link = group.get(name, getlink=True)
            outside = isinstance(link, h5py.ExternalLink)
            base.require(not outside, f"expected data in the file, got a link to another one, at {path + name!r} of {file.filename}")
            kind = group.get(name, getclass=True) if isinstance(link, h5py.HardLink) else None
            if kind in kinds:
                kinds[kind].append(name)
            else:
                ignored["soft links and named types"] += 1
        groups += [f"{path}{name}/" for name in reversed(kinds[h5py.Group])]
        if names := kinds[h5py.Dataset]:
            yield path, sorted(names, key=lambda name: (len(name.lstrip("0")), name.lstrip("0"), name)) if _are_numbers(names) else names


def _are_numbers(names: list[str]) -> bool:
    return all(name.isascii() and name.isdigit() for name in names)


def _kind(dataset: Any) -> str | None:
    """Tell what the elements are: "str", "rows" of numbers, or "numbers"; None: something that no field holds."""
    import h5py

    if h5py.check_string_dtype(dataset.dtype):
        return "str"
    row = h5py.check_vlen_dtype(dataset.dtype)
    if row is not None:
        # Rows of the other byte order come out of h5py as they are in the file, under the wrong dtype.
        return "rows" if isinstance(row, np.dtype) and row.isnative and row.name in base.DTYPES else None
    return "numbers" if dataset.dtype.name in base.DTYPES else None


def _checked(file: Any, path: str) -> Any:
    """Open a dataset.

    Raises:
        ArgumentError: its data are elsewhere, or it claims more than the file can hold, or is of another dtype.
    """
    import h5py

    dataset, where = file[path], f"at dataset {path!r} of {file.filename}"
    if dataset.shape is None:
        return dataset
    base.require(not dataset.is_virtual and not dataset.external, f"expected data in the file, got some in another one, {where}")
    limit = MAX_RATIO * os.path.getsize(file.filename)
    base.require(dataset.nbytes <= limit, f"expected at most {limit} bytes in a file of this size, got {dataset.nbytes}, {where}")
    row = h5py.check_vlen_dtype(dataset.dtype)
    found = "references" if h5py.check_ref_dtype(dataset.dtype) else dataset.dtype if row is None else f"rows of {row!r}"
    base.require(_kind(dataset) is not None, f"expected numbers, strings or rows of numbers, got {found}, {where}")
    return dataset


def _look_at(file: Any, path: str, names: list[str]) -> _Group:
    """Find what the datasets of a group have in common."""
    kinds, lengths, nbytes = set[Any](), set[Any](), array("q")
    for name in names:
        dataset = _checked(file, path + name)
        shape = dataset.shape
        is_picture = dataset.dtype == np.uint8 and len(shape or ()) == 3 and shape[2] == 3
        kinds.add(("pictures",) if is_picture else (_kind(dataset), dataset.dtype, shape and (len(shape), *shape[1:])))
        lengths.add(shape and shape[0])
        nbytes.append(dataset.nbytes)
    kind = kinds.pop() if len(kinds) == 1 else None
    return _Group(path, names, kind, len(lengths) > 1, np.frombuffer(nbytes, np.int64))


def _value_field(name: str, kind: str | None, dtype: Any, shape: tuple[int, ...] | None, examples: list[Any]) -> Field:
    """Say what values are that are no dense arrays; `shape` is theirs behind the first dimension, None of scalars.

    Raises:
        ArgumentError: strings in arrays, or arrays without elements.
    """
    if kind == "str" and shape is None:
        strings = base.Column()
        strings.pictures = False  # paths of pictures stay strings: nobody said which folder they would count from
        for value in examples:
            strings.add(value.decode(errors="replace"), base.STRING)
        return strings.field(name, "json")
    base.require(kind != "str", f"expected one string for each sample, got arrays of them, at {name!r}")
    if shape is None:
        return Field(name, "scalar", dtype.name)
    base.require(0 not in shape, f"expected arrays with elements, got {['n', *shape]}, at {name!r}")
    pictures = [picture_format(np.asarray(value).tobytes()) for value in examples] if dtype == np.uint8 and not shape else []
    if (dtype == np.uint8 and shape[1:] == (3,)) or 2 * sum(map(bool, pictures)) > len(examples):
        return base.picture_field(name)
    return Field(name, "ndarray", dtype.name, shape)


class Source(base.Source):
    """Datasets of equally many rows, or groups of datasets that are one for each sample. A part is a range of rows, or some samples.

    Rows: uint8 [n, H, W, 3] are pictures, other [n, ...] dense arrays, [n] scalars or strings; rows of uneven length are ragged arrays,
    of uint8 pictures where they are picture files, whether HDF5 keeps their lengths or a dataset `<name>.offsets` [n + 1] does. Fields are
    named by the dataset, in groups with the group's name and _ before it; what has no rows is ignored and counted.

    A group whose datasets have one dtype and one shape behind the first dimension, and differ in that (or are named by numbers), has one for
    each sample: their name is its key. Several such groups have the same names, and each is a field. Numbers order samples by value.

    Nothing outside of the file is followed.
    """

    @classmethod
    def recognises(cls, path: Path) -> bool:
        """Say whether it is a file named .h5, .hdf5 or .hdf."""
        return path.is_file() and path.suffix.lower() in {".h5", ".hdf5", ".hdf"}

    def __init__(self, path: Path) -> None:
        super().__init__(path)
        base.require(path.is_file(), f"expected a file of HDF5, got a folder, at {path}")
        self._path, self._stamp = os.fspath(path), base.stamp(os.fspath(path))
        self._columns: list[_Column] = []
        self._names: list[str] = []
        try:
            with _open(self._path) as file:
                groups = [_look_at(file, group, names) for group, names in _walk(file, self.ignored)]
                if any(self._is_of_samples(group) for group in groups):
                    self._settle_samples(file, groups)
                else:
                    self._settle_rows(file, groups)
        except ArgumentError:
            raise
        except _ERRORS as error:
            raise ArgumentError(f"expected a file of HDF5, got {error}, at {path}") from error
        names = base.field_names((column.field.name for column in self._columns), self._path)
        columns = [column._replace(field=replace(column.field, name=names[column.field.name])) for column in self._columns]
        self._columns = sorted(columns, key=lambda column: column.field.name == "label")
        self.fields = tuple(column.field for column in self._columns)

    @staticmethod
    def _is_of_samples(group: _Group) -> bool:
        """Tell a group of one dataset for each sample; the root only by numbers as names or by many of them."""
        if group.kind is None or len(group.names) < 2 or not {f"{name}.offsets" for name in group.names}.isdisjoint(group.names):
            return False
        return _are_numbers(group.names) or (group.varies and (bool(group.path) or len(group.names) > MAX_FIELDS))

    def _settle_samples(self, file: Any, groups: list[_Group]) -> None:
        """Make each group a field."""
        self._names = groups[0].names
        self._nbytes = sum((group.nbytes for group in groups), np.zeros(len(self._names), np.int64))
        for group in groups:
            where = f"at group {group.path or '/'!r} of {self._path}"
            base.require(
                group.names == self._names, f"expected datasets of the same names as in {groups[0].path or '/'!r}, got others, {where}"
            )
            alike = group.kind is not None and group.kind[0] != "rows"
            base.require(alike, f"expected datasets of one dtype and one shape behind the first dimension, got others, {where}")
            first = file[group.path + group.names[0]]
            kind, shape = _kind(first), first.shape[1:] if first.shape else None
            num = _HEAD if kind == "str" else _PROBES if first.dtype == np.uint8 and first.ndim == 1 else 0
            examples = [file[group.path + name][()] for name in group.names[:num]]
            if group.kind == ("pictures",):
                field = base.picture_field(group.path[:-1] or "image")
            else:
                field = _value_field(group.path[:-1] or ("value" if shape is None else "array"), kind, first.dtype, shape, examples)
            self._columns.append(_Column(field, group.path))

    def _settle_rows(self, file: Any, groups: list[_Group]) -> None:
        """Make each dataset a field."""
        tops = list(dict.fromkeys(group.path.partition("/")[0] for group in groups if group.path))
        many = len(tops) > 1 and _are_numbers(tops)
        base.require(not many, f"expected groups of fields, got one for each sample, {base.few(tops, len(tops))}, at {self._path}")
        num = sum(len(group.names) for group in groups)
        base.require(num <= MAX_FIELDS, f"expected at most {MAX_FIELDS} datasets, got {num}, at {self._path}")
        lengths: dict[str, int] = {}
        for group in groups:
            for name in group.names:
                path, stem = group.path + name, name.removesuffix(".offsets")
                data = file[path]
                if stem != name and stem in group.names:
                    continue
                if not data.shape:
                    self.ignored["datasets without rows"] += 1
                    continue
                offsets = f"{path}.offsets" if f"{name}.offsets" in group.names else None
                if offsets is not None:
                    fits = file[offsets].dtype.kind in "iu" and file[offsets].ndim == 1 and len(file[offsets]) > 0
                    base.require(
                        fits, f"expected offsets, integers [n + 1], got {file[offsets].dtype} {file[offsets].shape}, at {offsets!r}"
                    )
                lengths[path] = len(data) if offsets is None else len(file[offsets]) - 1
                self._columns.append(_Column(_row_field(file, path, offsets), path, offsets))
        found = [f"{path} {length}" for path, length in lengths.items()]
        base.require(bool(found), f"expected datasets with rows, got none, at {self._path}")
        same = len(set(lengths.values())) == 1
        base.require(same, f"expected datasets of equally many rows, got {base.few(found, len(found))}, at {self._path}")
        self._num_samples = next(iter(lengths.values()))
        base.require(self._num_samples > 0, f"expected rows, got none, at {self._path}")
        self._measure(file)

    def _measure(self, file: Any) -> None:
        """Tell what a row takes where all take the same, and how many rows are unpacked together."""
        dense, known, uneven = {}, 0, False
        for column in self._columns:
            data = file[column.data]
            known += data.id.get_storage_size()
            uneven |= _kind(data) != "numbers"
            if _kind(data) == "numbers" and column.offsets is None:
                dense[column.data] = data.nbytes // self._num_samples
        # Rows of uneven length are in a heap that nobody can ask about.
        self._row_nbytes = sum(dense.values()) + (max(0, self._stamp[0] - known) // self._num_samples if uneven else 0)
        chunks = file[max(dense, key=lambda path: dense[path])].chunks if dense else None
        self._step = chunks[0] if chunks and chunks[0] * self._row_nbytes <= MAX_CHUNK_NBYTES else 1

    def parts(self) -> Iterator[base.Part]:
        """List ranges of rows, whose `detail` is start and stop, or samples, whose `detail` is their names."""
        if self._names:
            cuts = _cuts(self._nbytes, 1, _MAX_MEMBERS)
            for start, stop in itertools.pairwise(cuts):
                names = tuple(self._names[start:stop])
                crc = zlib.crc32(self._nbytes[start:stop].tobytes(), zlib.crc32("\0".join(names).encode("utf-8", "surrogateescape")))
                yield base.Part(f"{start}-{stop} {crc:08x}", int(self._nbytes[start:stop].sum()), start, names, stop - start)
            return
        block = self._step * max(1, _BLOCK // self._step)
        for begin in range(0, self._num_samples, block):
            found = []
            # Closed before anything is yielded: another process may be forked then.
            with _open(self._path) as file:
                sizes = self._sizes(file, begin, min(begin + block, self._num_samples))
                for start, stop in itertools.pairwise(_cuts(sizes, self._step, block)):
                    crc = 0
                    for column in self._columns:
                        crc = zlib.crc32(_tell(file, column, begin + start, begin + stop), crc)
                    found.append((begin + start, begin + stop, int(sizes[start:stop].sum()), crc))
            for start, stop, nbytes, crc in found:
                yield base.Part(f"{start}-{stop} {crc:08x}", nbytes, start, (start, stop), stop - start)

    def _sizes(self, file: Any, start: int, stop: int) -> Int64Array:
        """Bytes of each of some rows; what lies between offsets that do not grow counts nothing."""
        sizes = np.full(stop - start, self._row_nbytes, np.int64)
        for column in self._columns:
            if column.offsets is not None:
                data = file[column.data]
                lengths = np.diff(file[column.offsets][start : stop + 1].astype(np.int64))
                sizes += lengths.clip(0, len(data)) * (data.dtype.itemsize * math.prod(data.shape[1:]))
        return sizes

    def read(self, part: base.Part) -> Iterator[base.Drawn]:
        """Read rows, or datasets one after another.

        Raises:
            DataError: the file has changed since it was opened.
        """
        base.check_stamp(self._path, self._stamp)
        file = _opened(os.getpid(), self._path, self._stamp[1])
        if self._names:
            for number, name in enumerate(part.detail, part.number):
                try:
                    sample: Sample | DataError = {c.field.name: _value(c.field, file[c.data + name][()]) for c in self._columns}
                except _ERRORS as error:
                    sample = error if isinstance(error, DataError) else DataError(f"expected data that can be read, got {error}")
                yield base.Drawn(name, f"{self._path}[{name!r}]", int(self._nbytes[number]), sample)
            return
        start, stop = part.detail
        sizes = self._sizes(file, start, stop).tolist()
        for row, (nbytes, sample) in enumerate(zip(sizes, self._samples(file, start, stop), strict=True), start):
            yield base.Drawn(str(row), f"{self._path}[{row}]", nbytes, sample)

    def _samples(self, file: Any, start: int, stop: int) -> list[Sample | DataError]:
        """Read rows together; where one is bad, the halves for themselves."""
        try:
            values = {column.field.name: _column_values(file, column, start, stop) for column in self._columns}
        except _ERRORS as error:
            if stop - start == 1:
                return [error if isinstance(error, DataError) else DataError(f"expected data that can be read, got {error}")]
            middle = (start + stop) // 2
            return self._samples(file, start, middle) + self._samples(file, middle, stop)
        return [{name: column[i] for name, column in values.items()} for i in range(stop - start)]


def _row_field(file: Any, path: str, offsets: str | None) -> Field:
    """Say what the rows of a dataset are."""
    import h5py

    data, shape = file[path], file[path].shape[1:]
    kind = _kind(data)
    if offsets is not None:
        pairs = itertools.pairwise(file[offsets][: _PROBES + 1].tolist())
        heads = [data[a : min(b, a + HEAD_NBYTES)] for a, b in pairs if 0 <= a <= b <= len(data)]
        return _value_field(path, kind, data.dtype, shape, heads)
    if kind == "rows":
        base.require(
            not shape, f"expected one row of numbers for each sample, got {['n', *shape]} of them, at dataset {path!r} of {file.filename}"
        )
        return _value_field(path, kind, h5py.check_vlen_dtype(data.dtype), (), list(data[:_PROBES]))
    if not shape:
        return _value_field(path, kind, data.dtype, None, list(data[:_HEAD]) if kind == "str" else [])
    base.require(
        kind == "numbers" and 0 not in shape,
        f"expected rows of numbers, got {data.dtype} {list(data.shape)}, at dataset {path!r} of {file.filename}",
    )
    if data.dtype == np.uint8 and len(shape) == 3 and shape[2] == 3:
        return Field(path, "image", "uint8", shape, dense=True, options={"image": "raw"})
    return Field(path, "ndarray", data.dtype.name, shape, dense=True)


def _column_values(file: Any, column: _Column, start: int, stop: int) -> list[Any]:
    """Read the values of some rows of a dataset.

    Raises:
        DataError: offsets that lead out of the dataset, or strings that are not UTF-8.
    """
    data = file[column.data]
    if column.offsets is None:
        return [_value(column.field, row) for row in data[start:stop]]
    ends = file[column.offsets][start : stop + 1].astype(np.int64).tolist()
    if ends[0] < 0 or ends[-1] > len(data) or any(a > b for a, b in itertools.pairwise(ends)):
        raise DataError(f"expected offsets that grow up to {len(data)}, got {base.short(ends)}, at field {column.field.name!r}")
    elements = data[ends[0] : ends[-1]]
    return [_value(column.field, elements[a - ends[0] : b - ends[0]]) for a, b in itertools.pairwise(ends)]


def _value(field: Field, value: Any) -> Any:
    """Make what the library gives into what the field's codec takes, with no tie to the rows around it."""
    if isinstance(value, bytes):
        return base.decode_text(bytes(value), "string")
    if field.codec == "scalar":
        return value.item()
    if field.codec == "image" and value.ndim == 1:
        return value.tobytes()
    return np.array(value, value.dtype.newbyteorder("<"), order="C")


def _cuts(sizes: Int64Array, step: int, most: int) -> list[int]:
    """Cut rows into parts of about `PART_NBYTES`, of whole steps and of at most so many rows; give where parts begin, and the end."""
    begins = np.arange(0, len(sizes), step)
    steps = np.add.reduceat(sizes, begins)
    number = np.maximum((np.cumsum(steps) - steps) // PART_NBYTES, 0)
    heads = begins[np.flatnonzero((np.diff(number, prepend=-1) > 0) | (begins % most == 0))]
    return [*heads.tolist(), len(sizes)]


def _tell(file: Any, column: _Column, start: int, stop: int) -> bytes:
    """What changes with the content of rows, had without unpacking many: those that are numbers; else the first, or its size when packed."""
    data = file[column.data]
    if column.offsets is not None:
        ends = file[column.offsets][start : stop + 1]
        first = int(np.clip(int(ends[0]), 0, len(data)))
        return bytes(ends.tobytes() + data[first : first + _PROBES].tobytes())
    if data.ndim == 1 and _kind(data) == "numbers":
        return bytes(data[start:stop].tobytes())
    if data.chunks and data.id.get_create_plist().get_nfilters():
        chunk = (start - start % data.chunks[0], *(0 for _ in data.shape[1:]))
        return b"%d" % data.id.get_chunk_info_by_coord(chunk).size
    return np.asarray(data[start]).tobytes()

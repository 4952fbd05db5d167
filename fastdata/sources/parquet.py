"""Columns of Parquet: one .parquet, a folder of them, or a folder that Hugging Face datasets saved (which holds Arrow files)."""

from __future__ import annotations

import json
import os
import re
import zlib
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from functools import lru_cache
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from fastdata.errors import ArgumentError, DataError
from fastdata.pictures import picture_format
from fastdata.sources import base
from fastdata.types import Array, Field, Sample

PART_NBYTES = 1 << 20
"""Bytes of rows that make a part of a small row group: small beside a shard, large beside the cost of a part."""

MAX_PARTS = 16
"""Parts of a larger row group. Rows can only be read from the start of theirs, so out of order each part may cost half of the group."""

MAX_PART_NBYTES = 64 << 20
"""Bytes of rows that a part has at most, since a shuffled part is held in memory."""

HEAD, HEAD_NBYTES = 1000, 16 << 20
"""Rows, and bytes of them, that tell what types leave open: documents, pictures, the shape of lists in lists."""

_BUFFER_NBYTES = 1 << 20  # read of a column at a time; without it, all of a row group is
_LABELS = 1 << 16  # rows of labels read at a time
_PANDAS_INDEX = re.compile(r"__index_level_\d+__")
_STRINGS, _BINARIES = {"string", "large_string", "string_view"}, {"binary", "large_binary", "binary_view"}


def _arrow() -> Any:
    """Import pyarrow, with what reads Parquet and Arrow files."""
    try:
        import pyarrow.ipc
        import pyarrow.parquet
    except ImportError as error:
        cure = "pip install 'fastdata-torch[parquet]'"
        raise ArgumentError(f"expected the package pyarrow to read Parquet and Arrow files, got none; {cure}") from error
    return pyarrow


def _errors() -> tuple[type[Exception], ...]:
    """What pyarrow raises for damaged data."""
    return OSError, ValueError, _arrow().lib.ArrowException


def _first_line(error: Exception) -> str:
    return str(error).partition("\n")[0] or type(error).__name__


class _Group(NamedTuple):
    """A row group of a Parquet file, or a record batch of an Arrow file (`number` None), whose rows count from the file's first."""

    file: int
    number: int | None
    first: int
    num_rows: int
    nbytes: int
    crc: int

    def nbytes_until(self, row: int) -> int:
        """Bytes of the first rows, where each is taken for as large as the others."""
        return self.nbytes * row // self.num_rows

    @property
    def batch_rows(self) -> int:
        """Rows of about the size of a small part."""
        return max(1, min(self.num_rows * PART_NBYTES // max(1, self.nbytes), 4096))


class _Rows:
    """Rows of a stream of record batches, which goes on from where the last part ended."""

    def __init__(self, batches: Iterator[Any]) -> None:
        self.row = 0
        self._batches, self._rest = batches, None

    def take(self, start: int, stop: int) -> Iterator[Any]:
        """Yield what record batches have of the rows; fewer, where the stream ends early."""
        while self.row < stop:
            batch = next(self._batches, None) if self._rest is None else self._rest
            if batch is None:
                return
            begin, end = max(start - self.row, 0), min(stop - self.row, batch.num_rows)
            self._rest = batch.slice(end) if end < batch.num_rows else None
            self.row += end
            if begin < end:
                yield batch.slice(begin, end - begin)


def _batches(path: str, groups: list[int] | None, num_rows: int, columns: list[str] | None = None) -> Iterator[Any]:
    """Read an Arrow file by its record batches, or row groups of a Parquet file `num_rows` at a time."""
    arrow = _arrow()
    if path.endswith(".arrow"):
        return iter(arrow.ipc.open_stream(arrow.memory_map(path)))
    file = arrow.parquet.ParquetFile(path, buffer_size=_BUFFER_NBYTES, page_checksum_verification=True)
    found: Iterator[Any] = file.iter_batches(num_rows, row_groups=groups, columns=columns, use_threads=False)
    return found


@lru_cache(maxsize=1)
def _rows(_pid: int, path: str, _mtime_ns: int, group: int | None, num_rows: int) -> _Rows:
    """Open a row group or an Arrow file; the last one stays open in this process."""
    return _Rows(_batches(path, None if group is None else [group], num_rows))


def _plain(column: Any) -> Any:
    """Turn times (in UTC) and decimals into strings, and an extension's values into what they are stored as.

    Raises:
        ArrowException: of a type that no string is made of, or a value that is out of range.
    """
    arrow = _arrow()
    if isinstance(column.type, arrow.BaseExtensionType):
        column = column.storage
    if arrow.types.is_timestamp(column.type):
        column = column.cast(arrow.timestamp(column.type.unit))
    told = arrow.types.is_temporal(column.type) or arrow.types.is_decimal(column.type)
    return column.cast(arrow.string()) if told else column


def _whole(column: Any) -> Iterator[Any]:
    """Pass on a column, or of a damaged one the rows that are whole, one by one."""
    try:
        column.validate(full=True)
    except _errors():
        if len(column) > 1:
            for row in range(len(column)):
                yield from _whole(column.slice(row, 1))
    else:
        yield column


def _is_list(kind: Any) -> bool:
    types = _arrow().types
    return bool(types.is_list(kind) or types.is_large_list(kind) or types.is_fixed_size_list(kind))


def _is_number(kind: Any) -> bool:
    types = _arrow().types
    return bool(types.is_integer(kind) or types.is_floating(kind) or types.is_boolean(kind))


def _dtype(kind: Any) -> str:
    """Name a type of numbers as numpy does; pyarrow may need pandas for that."""
    return {"halffloat": "float16", "float": "float32", "double": "float64"}.get(str(kind), str(kind))


def _is_file(kind: Any) -> bool:
    """Tell bytes, also beside a path, as Hugging Face has pictures and sounds."""
    if _arrow().types.is_struct(kind):
        children = {field.name: str(field.type) for field in kind}
        return set(children) == {"bytes", "path"} and children["bytes"] in _BINARIES and children["path"] in _STRINGS
    return str(kind) in _BINARIES or bool(_arrow().types.is_fixed_size_binary(kind))


def _is_json(kind: Any) -> bool:
    types = _arrow().types
    if _is_list(kind):
        return _is_json(kind.value_type)
    if types.is_map(kind):
        return _is_json(kind.key_type) and _is_json(kind.item_type)
    if types.is_struct(kind):
        return all(_is_json(field.type) for field in kind)
    return str(kind) in _STRINGS or _is_number(kind) or bool(types.is_null(kind))


def _array(scalar: Any) -> Array:
    """Make lists of numbers, or of such lists, an array; its trailing shape is lost where it is empty.

    Raises:
        DataError: a null among them, or lists of uneven lengths.
    """
    import pyarrow.compute

    values, shape = scalar.values, [len(scalar.values)]
    while not values.null_count and _is_list(values.type):
        lengths = pyarrow.compute.unique(pyarrow.compute.list_value_length(values)).to_pylist()
        if len(lengths) > 1:
            raise DataError(f"expected lists of equal lengths, got some of {lengths[0]} and some of {lengths[1]}")
        shape += lengths
        values = values.flatten()
    if values.null_count:
        raise DataError("expected numbers, got null in a list")
    return np.array(values.to_numpy(zero_copy_only=False)).reshape(shape)


def _field(name: str, columns: list[Any]) -> Field | None:
    """Say what a column is, by its type and the first rows; None: there is no field for it."""
    types, kind = _arrow().types, columns[0].type
    if types.is_dictionary(kind):
        kind = kind.value_type
    if str(kind) in _STRINGS or types.is_null(kind):
        strings = base.Column()
        strings.pictures = False  # paths of pictures stay strings: nobody said which folder they would count from
        for value in (value for column in columns for value in column.to_pylist() if value is not None):
            strings.add(value, base.STRING)
        return strings.field(name, "json")
    if _is_number(kind):
        return Field(name, "scalar", _dtype(kind))
    if _is_file(kind):
        values = [value for column in columns for value in column.to_pylist() if value is not None]
        files = [data for value in values if (data := value["bytes"] if isinstance(value, dict) else value) is not None]
        pictures = sum(picture_format(data) is not None for data in files)
        # Of a struct whose bytes all are elsewhere nothing tells what they are; most are pictures.
        return base.picture_field(name) if 2 * pictures > len(files) or (not files and types.is_struct(kind)) else Field(name, "bytes")
    return _list_field(name, columns) or (Field(name, "json") if _is_json(kind) else None)


def _list_field(name: str, columns: list[Any]) -> Field | None:
    """Say of lists of numbers what arrays they make; None where they make none of one trailing shape."""
    kind, sizes = columns[0].type, list[int | None]()
    while _is_list(kind):
        sizes.append(kind.list_size if _arrow().types.is_fixed_size_list(kind) else None)
        kind = kind.value_type
    if not sizes or not _is_number(kind):
        return None
    dtype, shape = _dtype(kind), tuple(size for size in sizes[1:] if size is not None)
    if len(shape) < len(sizes) - 1:
        try:
            found = {array.shape[1:] for column in columns for scalar in column if scalar.is_valid and len(array := _array(scalar))}
        except DataError:
            return None
        if len(found) != 1:
            return None
        shape = found.pop()
    if dtype == "uint8" and shape[1:] == (3,):
        return base.picture_field(name)
    if 0 in shape:
        return None
    if None in sizes or not sizes[0] or any(column.null_count for column in columns):
        return Field(name, "ndarray", dtype, shape)
    return Field(name, "ndarray", dtype, (sizes[0], *shape), dense=True)


def _class_names(info: Any) -> dict[str, tuple[str, ...]]:
    """Find the columns of labels, and their names, in what Hugging Face says of a dataset."""
    features = info.get("features") if isinstance(info, dict) else None
    found = features.items() if isinstance(features, dict) else ()
    labels = {name: feature.get("names") for name, feature in found if isinstance(feature, dict) and feature.get("_type") == "ClassLabel"}
    return {name: tuple(map(str, names)) for name, names in labels.items() if isinstance(names, list)}


def _parse(data: bytes, where: str) -> dict[str, Any]:
    """Parse an object of JSON.

    Raises:
        ArgumentError: it is none.
    """
    try:
        found = json.loads(data)
    except (ValueError, RecursionError) as error:
        raise ArgumentError(f"expected an object of JSON, got {error}, at {where}") from error
    base.require(isinstance(found, dict), f"expected an object of JSON, got {base.short(found)}, at {where}")
    return dict(found)


def _is_saved(path: Path) -> bool:
    """Tell a folder that a `save_to_disk` wrote, of a dataset or of several."""
    return (path / "dataset_dict.json").is_file() or ((path / "state.json").is_file() and (path / "dataset_info.json").is_file())


def _saved_files(path: Path) -> tuple[list[str], str, Any]:
    """Name the Arrow files of a `save_to_disk`, the fingerprint of their content, and its description.

    Raises:
        ArgumentError: it holds several datasets, a selection of rows, or names files elsewhere.
    """
    if (path / "dataset_dict.json").is_file():
        splits = _parse((path / "dataset_dict.json").read_bytes(), f"{path}/dataset_dict.json").get("splits")
        raise ArgumentError(f"expected one dataset, got a folder of several, {splits}, at {path}; pack each on its own")
    state = _parse((path / "state.json").read_bytes(), f"{path}/state.json")
    selected = state.get("_indices_files") or state.get("_indices_data_files")
    base.require(not selected, f"expected a dataset of all its rows, got a selection, at {path}; save it after flatten_indices()")
    files = state.get("_data_files")
    names = [file.get("filename") if isinstance(file, dict) else None for file in files] if isinstance(files, list) else []
    for name in names:
        inside = isinstance(name, str) and os.path.basename(name) == name and (path / name).is_file()
        base.require(inside, f"expected a file of the folder, got {base.short(name)}, at _data_files of {path}/state.json")
    description = _parse((path / "dataset_info.json").read_bytes(), f"{path}/dataset_info.json")
    return [os.path.join(path, str(name)) for name in names], str(state.get("_fingerprint")), description


def _outline(number: int, path: str, fingerprint: str) -> tuple[Any, dict[str, Any], list[_Group]]:
    """Read the schema of a file, the types of its columns, and what groups of rows it has; data are passed over.

    Raises:
        ArgumentError: it cannot be read.
    """
    arrow, groups, first = _arrow(), list[_Group](), 0
    try:
        if not path.endswith(".arrow"):
            file, crc = arrow.parquet.ParquetFile(path), _footer_crc(path)
            for index in range(file.metadata.num_row_groups):
                group = file.metadata.row_group(index)
                groups.append(_Group(number, index, first, group.num_rows, group.total_byte_size, crc))
                first += group.num_rows
            return file.schema_arrow, _types(file.schema_arrow), groups
        mapped = arrow.memory_map(path)
        stream = arrow.ipc.open_stream(mapped)
        start, crc = mapped.tell(), zlib.crc32(fingerprint.encode())
        for batch in stream:
            groups.append(_Group(number, None, first, batch.num_rows, mapped.tell() - start, crc))
            first, start = first + batch.num_rows, mapped.tell()
        if start >= mapped.size():  # behind the last batch there is a mark
            raise ValueError("no mark of its end: it is cut short")
        return stream.schema, _types(stream.schema), groups
    except _errors() as error:
        raise ArgumentError(f"expected a file of Parquet or Arrow, got {_first_line(error)}, at {path}") from error


def _types(schema: Any) -> dict[str, Any]:
    return dict(zip(schema.names, schema.types, strict=True))


def _footer_crc(path: str) -> int:
    """Checksum what a Parquet file says of itself: sizes and, of most columns, least and largest values, which change with the content."""
    # Asking the library column by column ends the process where the footer is damaged.
    with open(path, "rb") as file:
        file.seek(-8, os.SEEK_END)
        nbytes = int.from_bytes(file.read(4), "little")
        file.seek(-8 - nbytes, os.SEEK_END)
        return zlib.crc32(file.read(nbytes))


_Row = tuple[str | None, Sample | DataError, tuple[str, ...]]  # key, if there is one, sample, notes


class Source(base.Source):
    """Rows of one .parquet, of those right in a folder by the bytes of their names, or of the Arrow files of a `save_to_disk`.

    A part is a range of rows in a row group or record batch, which are read in pieces and never joined. Null is a missing value. Numbers
    keep their dtype; strings are text when named text, prompt or completion or long; binary, also beside a path as Hugging Face has it, are
    pictures where most of the first are; lists of numbers are ragged arrays, of fixed lengths dense ones, uint8 [H, W, 3] pictures; times
    (in UTC) and decimals are strings; other lists, structs and maps of such are JSON. `class` means `label`, and so does a single column of
    Hugging Face's ClassLabel: its names are the classes, -1 is a missing label. A label of strings is the index among its distinct values,
    sorted by their bytes, for which that column is read once. `key` is the sample's key and no field; else the first picture's path;
    else the running number.
    """

    @classmethod
    def recognises(cls, path: Path) -> bool:
        """Say whether it is a file named .parquet, a folder of mostly such, or one of a `save_to_disk`."""
        return base.mostly(path, (".parquet",)) or _is_saved(path)

    def __init__(self, path: Path) -> None:
        super().__init__(path)
        saved = _saved_files(path) if _is_saved(path) else None
        self._files, fingerprint, description = saved or (base.containers(path, (".parquet",), self.ignored), "", None)
        arrow = _arrow()
        self._stamps = [base.stamp(file) for file in self._files]
        self._groups: list[_Group] = []
        schema, class_names = self._outlines(fingerprint, description)
        base.require(bool(self._groups), f"expected rows, got none, at {path}")
        wanted = [name for name in schema.names if name != "key" and not _PANDAS_INDEX.fullmatch(name)]
        base.require(bool(wanted), f"expected columns, got {schema.names}, at {path}")
        clean, label = base.field_names(wanted, os.fspath(path)), self._label(wanted, class_names)
        self._key = schema.names.index("key") if "key" in schema.names else None
        self._columns: dict[int, Field] = {}
        self._meanings: dict[int | str, str] = {}
        heads = self._heads()
        for name in wanted:
            index, kind = schema.names.index(name), schema.field(name).type
            try:
                examples = [_plain(arrow.nulls(0, kind)), *(_plain(head.column(index)) for head in heads)]
                field = _field("label" if name == label else clean[name], examples)
            except arrow.lib.ArrowException:
                field = None
            if field is None:
                kinds = "numbers, strings, bytes, times, or lists or structs of numbers and strings"
                raise ArgumentError(f"expected a column of {kinds}, got {kind}, at column {name!r} of {path}")
            self._columns[index] = self._with_classes(field, name, class_names.get(name)) if name == label else field
        self.fields = tuple(sorted(self._columns.values(), key=lambda field: field.name == "label"))

    def _outlines(self, fingerprint: str, description: Any) -> tuple[Any, dict[str, tuple[str, ...]]]:
        """List the row groups of all files; give the schema and the class names that they have in common."""
        first: tuple[Any, dict[str, tuple[str, ...]]] | None = None
        expected: dict[str, Any] = {}
        for number, file in enumerate(self._files):
            schema, kinds, groups = _outline(number, file, fingerprint)
            info = (schema.metadata or {}).get(b"huggingface")
            names = _class_names(_parse(info, file).get("info") if info else description)
            first, expected = first or (schema, names), expected or kinds
            for name in expected | kinds:
                same = kinds.get(name) == expected.get(name)
                wrong = "labels of other names" if same else kinds.get(name)
                same = same and names.get(name) == first[1].get(name)
                base.require(same, f"expected {expected.get(name)} as in {self._files[0]}, got {wrong}, at column {name!r} of {file}")
            # Readers go by position, so columns of another order are another schema.
            base.require(schema.names == first[0].names, f"expected columns {first[0].names}, got {schema.names}, at {file}")
            self._groups += [group for group in groups if group.num_rows]
        if first is None:
            raise ArgumentError("expected data files, got none, at _data_files of state.json")
        return first

    def _label(self, columns: list[str], class_names: Mapping[str, Any]) -> str | None:
        """Tell the column of labels."""
        with_names = [name for name in columns if name in class_names]
        named = [name for name in columns if name in {"label", "class"}] or (with_names if len(with_names) == 1 else [])
        base.require(len(named) < 2, f"expected one of 'label' and 'class', got both in {columns}, at {self._files[0]}; rename one")
        if others := [name for name in with_names if name not in named]:
            self.warnings.append(
                f"only one column of labels keeps the names of its classes; these are plain numbers: {base.few(others, len(others))}"
            )
        return named[0] if named else None

    def _heads(self) -> list[Any]:
        """Read the first rows; what is damaged is passed over."""
        found, left, nbytes = list[Any](), HEAD, 0
        with suppress(*_errors()):
            for file in self._files:
                for batch in _batches(file, None, self._groups[0].batch_rows):
                    batch = batch.slice(0, left)
                    left -= batch.num_rows
                    with suppress(*_errors()):
                        batch.validate(full=True)
                        found.append(batch)
                        nbytes += batch.nbytes
                    if not left or nbytes >= HEAD_NBYTES:
                        return found
        return found

    def _with_classes(self, field: Field, column: str, names: tuple[str, ...] | None) -> Field:
        """Make labels of numbers that have names, or of strings, classes."""
        if names is not None and field.dtype.startswith(("int", "uint")) and field.codec == "scalar":
            self.classes, self._meanings = names, dict(enumerate(names))
        elif field.codec == "text" or field.dtype == "str":
            if (found := self._distinct(column)) is None:
                self.warnings.append(f"labels are long or of more than {base.MAX_CLASSES} kinds: they are strings, not classes")
                return field
            self.classes = tuple(sorted(found, key=lambda name: name.encode("utf-8", "surrogatepass")))
            self._meanings = {name: name for name in self.classes}
        else:
            return field
        self._number(self.classes or ())
        return Field(field.name, "scalar", "int64", options={"classes": True})

    def _distinct(self, column: str) -> set[str] | None:
        """Read one column for its distinct strings; None where they cannot be names of classes."""
        found: set[str] = set()
        for file in self._files:
            try:
                for batch in _batches(file, None, _LABELS, [column]):
                    for labels in _whole(batch.column(column)):
                        found.update(label for label in labels.unique().to_pylist() if label is not None)
                    if len(found) > base.MAX_CLASSES or any(len(name) > base.LONG for name in found):
                        return None
            except _errors() as error:
                raise ArgumentError(f"expected labels, got {_first_line(error)}, at column {column!r} of {file}") from error
        return found

    def _number(self, classes: Sequence[str]) -> None:
        numbers = {name: number for number, name in enumerate(classes)}
        self._labels = {value: numbers[name] for value, name in self._meanings.items()}

    def name_classes(self, classes: Sequence[str]) -> None:
        super().name_classes(classes)
        self._number(classes)

    def parts(self) -> Iterator[base.Part]:
        """List ranges of rows; `detail` is which of all row groups it is, start and stop in it."""
        number = 0
        for index, group in enumerate(self._groups):
            name = os.path.basename(self._files[group.file])
            wanted = max(-(-group.nbytes // MAX_PART_NBYTES), min(MAX_PARTS, -(-group.nbytes // PART_NBYTES)), 1)
            count = min(wanted, group.num_rows)
            for i in range(count):
                start, stop = group.num_rows * i // count, group.num_rows * (i + 1) // count
                nbytes = group.nbytes_until(stop) - group.nbytes_until(start)
                tells = f"{name} {group.first + start}-{group.first + stop} {group.crc:08x}"
                yield base.Part(tells, nbytes, number, (index, start, stop), stop - start)
                number += stop - start

    def read(self, part: base.Part) -> Iterator[base.Drawn]:
        """Read rows on from where the last part ended, or from the start of the row group.

        Raises:
            DataError: the file has changed since it was opened.
        """
        index, start, stop = part.detail
        group = self._groups[index]
        path = self._files[group.file]
        base.check_stamp(path, self._stamps[group.file])
        for row, (key, sample, notes) in enumerate(self._samples(group, start, stop), start):
            number, nbytes = part.number + row - start, group.nbytes_until(row + 1) - group.nbytes_until(row)
            yield base.Drawn(str(number) if key is None else key, f"{path}[{group.first + row}]", nbytes, sample, notes)

    def _samples(self, group: _Group, start: int, stop: int) -> Iterator[_Row]:
        """Read rows of a group; where it is damaged, the rest of them are errors."""
        stamp, offset = self._stamps[group.file], group.first if group.number is None else 0
        opening = os.getpid(), self._files[group.file], stamp[1], group.number, group.batch_rows
        damage = DataError("expected as many rows as the file says, got fewer")
        try:
            rows = _rows(*opening)
            if rows.row > offset + start:
                _rows.cache_clear()
                rows = _rows(*opening)
            for batch in rows.take(offset + start, offset + stop):
                yield from self._convert(batch)
                start += batch.num_rows
        except _errors() as error:
            _rows.cache_clear()
            damage = DataError(f"expected rows that can be read, got {_first_line(error)}")
        for _ in range(start, stop):
            yield None, damage, ()

    def _convert(self, batch: Any) -> Iterator[_Row]:
        """Make samples of rows; one after another where they are not all whole."""
        try:
            batch.validate(full=True)
            columns = [(field, _plain(batch.column(index))) for index, field in self._columns.items()]
        except _errors() as error:
            if batch.num_rows == 1:
                yield None, DataError(f"expected a row that can be read, got {_first_line(error)}"), ()
            else:
                for row in range(batch.num_rows):
                    yield from self._convert(batch.slice(row, 1))
            return
        for row in range(batch.num_rows):
            key = None if self._key is None else batch.column(self._key)[row].as_py()
            sample: Sample = dict.fromkeys(field.name for field in self.fields)
            wrong, notes = list[DataError](), tuple[str, ...]()
            for field, column in columns:
                path = _path(column[row]) if field.codec == "image" else None
                key = path if key is None else key
                try:
                    sample[field.name] = value = self._value(field, column[row])
                except _errors() as error:
                    wrong.append(DataError(f"{error}, at field {field.name!r}"))
                    continue
                if path is not None and base.is_picture(path) and value is not None:
                    notes += base.misnamed(path, value)
            yield None if key is None else str(key), wrong[0] if wrong else sample, notes

    def _value(self, field: Field, scalar: Any) -> Any:
        """Make a value into what the field's codec takes; None of null.

        Raises:
            DataError: it does not fit.
        """
        if not scalar.is_valid:
            return None
        if _is_list(scalar.type) and field.codec != "json":
            array = _array(scalar)
            return array if len(array) else array.reshape(0, *field.shape)
        value = scalar.as_py()
        if isinstance(value, dict) and field.codec in {"image", "bytes"}:
            if value["bytes"] is None and value["path"] is not None:
                raise DataError(f"expected the bytes of a file, got its path alone, {value['path']!r}")
            return value["bytes"]
        if field.options.get("classes"):
            if value == -1:  # Hugging Face's missing label
                return None
            if value not in self._labels:
                raise DataError(f"expected one of {len(self._meanings)} classes, got {base.short(value)}")
            return self._labels[value]
        return value


def _path(scalar: Any) -> str | None:
    """The path beside the bytes of a file, where there is one."""
    value = scalar["path"].as_py() if _arrow().types.is_struct(scalar.type) and scalar.is_valid else None
    return value or None

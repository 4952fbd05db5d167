"""The contract of a source: where samples come from.

A file of this folder defines a class `Source` derived from the one here. A source is opened on a path (or, for "python", an object),
looks at it once, and is sent to the packing workers, so it pickles and holds no handles. It imports no torch.
"""

from __future__ import annotations

import io
import os
import re
import stat
import zlib
from abc import ABC, abstractmethod
from array import array
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import islice
from pathlib import Path
from typing import Any, BinaryIO, ClassVar, Literal, NamedTuple

import numpy as np

from fastdata.errors import ArgumentError, DataError
from fastdata.pictures import picture_format
from fastdata.types import Field, Int64Array, Sample

_EXTENSIONS = {
    "jpeg": ("jpg", "jpeg", "jpe", "jfif"),
    "png": ("png",),
    "gif": ("gif",),
    "webp": ("webp",),
    "bmp": ("bmp",),
    "tiff": ("tif", "tiff"),
    "jp2": ("jp2",),
    "avif": ("avif",),
    "ppm": ("ppm", "pgm", "pbm"),
}
PICTURES = frozenset(extension for extensions in _EXTENSIONS.values() for extension in extensions)
"""Extensions of picture files, in lower case. What a file really is, its bytes tell."""

TEXTS = frozenset({"text", "prompt", "completion"})
"""Names of string columns that are documents, however short their values are."""

DTYPES = frozenset(["bool", "int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64", "float16", "float32", "float64"])
"""What arrays and numbers may be made of."""

LONG = 200
"""Characters above which a string makes its column documents (codec `text`), not short strings in a column file."""

MAX_CLASSES = 1_000_000
"""Distinct labels above which a column of strings numbers no classes, since their table would be held in memory: about 100 MB."""

_READ_NBYTES = 64 << 20
PART_NBYTES = 64 << 10
"""Bytes of rows, and of the pictures that they name, that make a part: small beside a shard, large beside the cost of a part."""

BOM = b"\xef\xbb\xbf"
"""A byte order mark in UTF-8: dropped at the start of a file."""


@dataclass(frozen=True, slots=True)
class Part:
    """A small share of a source: the unit that shards are cut from. Picklable, without payloads.

    Attributes:
        name: what the part is, relative to the source; enters the source's hash together with `nbytes`.
        nbytes: size of what it will read, as the source tells it before reading.
        number: running number in the source of its first sample; where only reading could tell it, of the part itself.
        detail: what `read` needs besides: a byte range, a row.
        num_samples: good and bad ones that `read` will give; None where only reading could tell.
    """

    name: str
    nbytes: int
    number: int
    detail: Any = None
    num_samples: int | None = 1


@dataclass(frozen=True, slots=True)
class Drawn:
    """One sample out of a source, or why it could not be had.

    Attributes:
        key: relative path with extension, the source's own key, or the running number in decimal.
        origin: where a person finds it, for errors: `photos/cat/7.jpg`, `train.jsonl:12`.
        nbytes: size in the source, in bytes.
        sample: values before encoding (a picture as the bytes of its file), or the error.
        notes: remarks that the summary of a pack counts.
    """

    key: str
    origin: str
    nbytes: int
    sample: Sample | DataError
    notes: tuple[str, ...] = ()


class Source(ABC):
    """A corpus, split into parts in a fixed order that depends on its data alone.

    Attributes:
        fields: what the samples hold, in the manifest's order; `label` after what it labels.
        classes: class names, where label i is `classes[i]`; None when labels have no names or there are none.
        ignored: what was passed over, and how often; complete once `parts` was listed to its end.
        warnings: sentences that the user should see before training.
        trouble: why packing stops before it starts, unless bad samples are skipped; None where all looks well.
        comparable: names and sizes of the parts tell the content, so that packing it again is recognised.
        splits: parts may be read apart, in any order, by other processes. False: there is one part, read once, where the source was opened.
        options: keyword arguments that `__init__` takes behind the path; on the command line `--<option>`.
    """

    options: ClassVar[frozenset[str]] = frozenset()
    fields: tuple[Field, ...]
    classes: tuple[str, ...] | None = None
    ignored: Counter[str]
    warnings: list[str]
    trouble: str | None = None
    comparable: bool = True
    splits: bool = True

    @classmethod
    @abstractmethod
    def recognises(cls, path: Path) -> bool:
        """Say, after a cheap look, whether `path` is of this kind."""

    @abstractmethod
    def __init__(self, path: Path) -> None:
        """Look at the source: fields, classes, everything that can be refused before work starts.

        Raises:
            ArgumentError: it is empty, not of this kind, or misses files.
        """
        self.ignored = Counter()
        self.warnings = []

    def name_classes(self, classes: Sequence[str]) -> None:
        """Number labels by another class table than the source's own, before parts are listed; samples come in its order where classes order them.

        Raises:
            ArgumentError: labels have no names, or some that the table lacks.
        """
        require(self.classes is not None, "expected labels with names, got a source without, at --classes")
        unknown = sorted(set(self.classes or ()) - set(classes))
        require(not unknown, f"expected classes of the table that was given, got also {few(unknown, len(unknown))}, at --classes")
        self.classes = tuple(classes)

    @abstractmethod
    def parts(self) -> Iterator[Part]:
        """List the parts, without reading payloads and in bounded memory; each call lists them anew in the same order."""

    @abstractmethod
    def read(self, part: Part) -> Iterator[Drawn]:
        """Read the samples of one part, in order.

        A bad sample is a `Drawn` with an error that does not repeat its `origin`, and the next ones follow.
        """


def is_picture(name: str) -> bool:
    """Tell by the extension whether a file is taken for a picture."""
    return "." in name and name.rpartition(".")[2].lower() in PICTURES


def is_hidden(name: str) -> bool:
    """Tell a hidden or system file or folder by its name: .DS_Store, ._twin, Thumbs.db, desktop.ini, __MACOSX, .ipynb_checkpoints."""
    return name.startswith(".") or name.lower() in {"thumbs.db", "ehthumbs.db", "desktop.ini", "__macosx", "$recycle.bin", "@eadir"}


def entries(root: str, below: str, ignored: Counter[str], hidden: bool = False) -> Iterator[str]:
    """Name what is in the folder `below` of `root` as it comes, hidden and system entries only if `hidden`; folders end with a slash.

    A link to a folder that is listed below `root` anyway is counted and left out.

    Raises:
        ArgumentError: the folder cannot be read.
    """
    folder = os.path.join(root, below)
    try:
        with os.scandir(folder) as found:
            for entry in found:
                if not hidden and is_hidden(entry.name):
                    ignored["hidden or system files and folders"] += 1
                elif not _is_folder(entry):
                    yield entry.name
                elif entry.is_symlink() and _listed_anyway(root, entry.path, hidden):
                    ignored["links to folders that are listed anyway"] += 1
                else:
                    yield entry.name + "/"
    except OSError as error:
        raise ArgumentError(f"expected a folder that can be read, got {error.strerror}, at {folder}") from error


def listing(root: str, below: str, ignored: Counter[str], hidden: bool = False) -> Iterator[str]:
    """Name the `entries` of a folder, sorted by bytes, as whole paths are: the slash takes part in the order.

    Memory: the names as bytes, about 60 bytes each.

    Raises:
        ArgumentError: the folder cannot be read.
    """
    return map(os.fsdecode, sorted(map(os.fsencode, entries(root, below, ignored, hidden))))


def _is_folder(entry: os.DirEntry[str]) -> bool:
    try:
        return entry.is_dir()
    except OSError:  # a link to itself
        return False


def _listed_anyway(root: str, link: str, hidden: bool) -> bool:
    target = os.path.relpath(os.path.realpath(link), os.path.realpath(root))
    names = target.split(os.sep)
    return target == "." or (names[0] != os.pardir and (hidden or not any(map(is_hidden, names))))


def walk(root: str, ignored: Counter[str], below: str = "", hidden: bool = False) -> Iterator[tuple[str, int]]:
    """List files in the folder `below` of `root` ("" or ending with a slash) as (path from `root`, size), by the bytes of the path.

    Links to folders outside are followed, each folder once; others are counted and passed over. A link to nothing is listed with size 0,
    so that reading it says what is wrong. Memory: one folder's names for each level of depth.

    Raises:
        ArgumentError: a folder cannot be read.
    """
    seen: set[tuple[int, int]] = set()
    stack = [(below, listing(root, below, ignored, hidden))]
    while stack:
        prefix, names = stack[-1]
        name = next(names, None)
        if name is None:
            stack.pop()
            continue
        path = prefix + name
        try:
            status = os.stat(os.path.join(root, path))
        except OSError as error:
            require(not name.endswith("/"), f"expected a folder that can be read, got {error.strerror}, at {os.path.join(root, path)}")
            yield path, 0
            continue
        if path.endswith("/"):
            folder = (status.st_dev, status.st_ino)
            if folder in seen:
                ignored["links to folders that are listed anyway"] += 1
            else:
                seen.add(folder)
                stack.append((path, listing(root, path, ignored, hidden)))
        elif stat.S_ISREG(status.st_mode):
            yield path, status.st_size
        else:
            ignored["pipes, sockets and devices"] += 1


def holds(root: str, wanted: Callable[[str], bool], below: str = "", hidden: bool = False) -> bool:
    """Tell whether `walk` would list a file whose name is `wanted`, as soon as one is seen, holding no names of files.

    Raises:
        ArgumentError: a folder cannot be read.
    """
    seen: set[str] = set()
    folders = [below]
    while folders:
        folder = folders.pop()
        place = os.path.realpath(os.path.join(root, folder))
        if place in seen:  # a link to a folder that links back
            continue
        seen.add(place)
        for name in entries(root, folder, Counter(), hidden):
            path = os.path.join(root, folder, name)
            if name.endswith("/"):
                folders.append(folder + name)
            elif wanted(name) and (os.path.isfile(path) or not os.path.exists(path)):
                return True
    return False


def containers(path: Path, extensions: tuple[str, ...], ignored: Counter[str]) -> list[str]:
    """Name the file itself, or the visible files right in a folder that end so, in any case, by the bytes of their names.

    Raises:
        ArgumentError: the folder or one of the files cannot be read, or there is none.
    """
    found = [os.fspath(path)]
    if path.is_dir():
        names = list(listing(os.fspath(path), "", ignored))
        found = [os.path.join(path, name) for name in names if name.lower().endswith(extensions)]
        if other := len(names) - len(found):
            ignored["files and folders of other kinds"] += other
    require(bool(found), f"expected files named {' or '.join(extensions)}, got none, at {path}")
    for file in found:
        require(os.path.isfile(file) and os.access(file, os.R_OK), f"expected a file that can be read, got one that cannot, at {file}")
    return found


def mostly(path: Path, extensions: tuple[str, ...]) -> bool:
    """Tell a file that ends so, in any case, or a folder in which most visible files and folders do."""
    if not path.is_dir():
        return path.name.lower().endswith(extensions)
    fitting = [name.lower().endswith(extensions) for name in entries(os.fspath(path), "", Counter())]
    return 2 * sum(fitting) > len(fitting)


def read_file(path: str | Path) -> bytes:
    """Read a whole file.

    Raises:
        DataError: it is empty, gone, a link to nothing, no regular file, or may not be read.
    """
    try:
        # Three calls of the system, where open() makes some eight; without O_NONBLOCK a pipe would wait for its other end.
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
        try:
            status = os.fstat(descriptor)
            regular = stat.S_ISREG(status.st_mode)
            data = os.read(descriptor, status.st_size + 1) if regular else b""
            if len(data) != status.st_size and regular:
                data += b"".join(iter(lambda: os.read(descriptor, _READ_NBYTES), b""))
        finally:
            os.close(descriptor)
    except OSError as error:
        raise unreadable(path, error) from error
    except ValueError as error:  # a NUL, or half a character
        raise DataError(f"expected a file, got a name that none can have: {error}") from error
    if not regular:
        raise DataError("expected a file, got a folder, pipe, socket or device")
    if not data:
        raise DataError("expected a file with content, got an empty file (0 bytes)")
    return data


def unreadable(path: str | Path, error: OSError) -> DataError:
    """Say why a file cannot be read."""
    broken = os.path.islink(path) and not os.path.exists(path)
    return DataError(f"expected a file, got {'a link to nothing' if broken else error.strerror}")


def draw_file(root: str, part: Part, sample: Callable[[bytes], Sample]) -> Drawn:
    """Read the file that a part is, and make a sample of its bytes; its key is the path from `root`."""
    origin = os.path.join(root, part.name)
    try:
        data = read_file(origin)
        return Drawn(part.name, origin, part.nbytes, sample(data), misnamed(part.name, data))
    except DataError as error:
        return Drawn(part.name, origin, part.nbytes, error)


def misnamed(name: str, data: bytes) -> tuple[str, ...]:
    """Note a picture whose bytes are of another format than its name says."""
    found = picture_format(data)
    return () if found is None or name.rpartition(".")[2].lower() in _EXTENSIONS[found] else ("a picture named as another format",)


def stamp(path: str) -> tuple[int, int]:
    """Tell size and time of change of a file, which `check_stamp` compares."""
    status = os.stat(path)
    return status.st_size, status.st_mtime_ns


def check_stamp(path: str, opened: tuple[int, int]) -> None:
    """Refuse a file that is no longer what it was when the source was opened.

    Raises:
        DataError: its size or time of change is another.
    """
    try:
        found = stamp(path)
    except OSError as error:
        raise DataError(f"expected the file that was opened, got {error.strerror}, at {path}") from error
    if found != opened:
        raise DataError(f"expected the file that was opened, got one that has changed while it was packed, at {path}")


def decode_text(data: bytes, unit: str) -> str:
    """Decode strict UTF-8; `unit` is what positions count from.

    Raises:
        DataError: with the first bad byte and its position, from 0.
    """
    try:
        return data.decode()
    except UnicodeDecodeError as error:
        raise DataError(f"expected UTF-8, got the byte 0x{data[error.start]:02x} at position {error.start} of the {unit}") from error


def require(condition: bool, message: str) -> None:
    """Refuse the source unless `condition`.

    Raises:
        ArgumentError: with `message`.
    """
    if not condition:
        raise ArgumentError(message)


def short(value: Any) -> str:
    """Show a value in an error: at most 60 characters, and its type."""
    try:
        text = repr(value)
    except (RecursionError, ValueError):  # nested without end, or an integer of thousands of digits
        text = "a value that cannot be shown"
    return f"{text if len(text) <= 60 else text[:57] + '...'} ({type(value).__name__})"


def few(names: Iterable[str], count: int) -> str:
    """Show the first ten of `count` names."""
    shown = [repr(name) for name in islice(names, 10)]
    return ", ".join(shown) + (f" and {count - len(shown)} more" if count > len(shown) else "")


def field_names(names: Iterable[str], where: str) -> dict[str, str]:
    """Turn the names found into names of fields: other characters than letters, digits and _ become _.

    Raises:
        ArgumentError: two become the same, or one is reserved.
    """
    found = list(names)
    cleaned = {name: re.sub("[^A-Za-z0-9_]", "_", name) or "_" for name in found}
    cleaned = {name: f"_{clean}" if clean[0].isdigit() else clean for name, clean in cleaned.items()}
    for reserved in ("index", "key"):
        require(
            reserved not in cleaned.values(),
            f"expected other names than {reserved!r}, which is reserved, got {found}, at {where}; rename it",
        )
    require(
        len(set(cleaned.values())) == len(found),
        f"expected names that differ in letters, digits and _, got {found}, at {where}; rename some",
    )
    return cleaned


class Kind(NamedTuple):
    """What one value is: a codec, a dtype, and the shape behind the first dimension (None: of an empty list, which fits any)."""

    codec: str
    dtype: str = "uint8"
    shape: tuple[int, ...] | None = ()


STRING, BOOLEAN, INTEGER, FLOAT = (Kind("scalar", dtype) for dtype in ("str", "bool", "int64", "float64"))
_KINDS: dict[type, Kind] = {str: STRING, bool: BOOLEAN, float: FLOAT}


def kind_of(value: Any) -> Kind:
    """Tell the kind of a value as JSON has them; a string is a scalar here, whatever its column makes of it.

    Raises:
        DataError: an integer beyond int64, or lists nested without end.
    """
    if kind := _KINDS.get(type(value)):
        return kind
    if isinstance(value, int):
        _check_int64(value, value)
        return INTEGER
    if isinstance(value, (str, float)):
        return STRING if isinstance(value, str) else FLOAT
    try:
        return (_kind_of_list(value) if isinstance(value, list) else None) or Kind("json")
    except RecursionError as error:
        raise DataError("expected a value that is not nested hundreds of times, got one that is") from error


def _check_int64(smallest: int, largest: int) -> None:
    if smallest < -(2**63) or largest >= 2**63:
        wrong = smallest if smallest < -(2**63) else largest
        raise DataError(
            f"expected an integer of 64 bits, got {wrong if wrong.bit_length() < 1000 else f'one of {wrong.bit_length()} bits'}"
        )


def _kind_of_list(values: list[Any]) -> Kind | None:
    types = set(map(type, values))
    if types <= {int, float}:
        if types == {int}:
            _check_int64(min(values), max(values))
        return Kind("ndarray", "float64" if float in types else "int64", () if values else None)
    if types != {list}:
        return None
    inner = {_kind_of_list(value) for value in values}
    lengths, shapes = set(map(len, values)), {kind.shape if kind else None for kind in inner}
    if len(lengths) > 1 or len(shapes) > 1 or None in shapes:
        return None
    dtypes = {kind.dtype for kind in inner if kind}
    return Kind("ndarray", "float64" if "float64" in dtypes else "int64", (*lengths, *(shapes.pop() or ())))


def fit(field: Field, value: Any) -> Any:
    """Turn a value as JSON has them into what the field's codec takes; None stays None.

    Raises:
        DataError: it does not fit: another type, trailing shape, or out of range.
    """
    if value is None or field.codec == "json":
        return value
    kind = kind_of(value)
    wanted = "str" if field.codec == "text" else field.dtype
    if kind.dtype == wanted and kind.codec == "scalar" and field.codec != "ndarray":
        return value
    numeric = wanted.startswith(("int", "uint", "float"))
    same = kind.dtype == wanted or (numeric and kind.dtype == "int64") or (wanted.startswith("float") and kind.dtype == "float64")
    if field.codec == "ndarray" and kind.codec == "ndarray" and same and kind.shape in (None, field.shape):
        try:
            return np.array(value, field.dtype).reshape(-1, *field.shape)
        except OverflowError as error:
            raise DataError(f"expected numbers that {field.dtype} can hold, got {short(value)}, at field {field.name!r}") from error
    if field.codec != "ndarray" and kind.codec == "scalar" and same:
        if wanted.startswith(("int", "uint")) and not np.iinfo(wanted).min <= value <= np.iinfo(wanted).max:
            raise DataError(f"expected {wanted}, got {value}, at field {field.name!r}")
        return float(value) if wanted.startswith("float") else value
    expected = f"an array [n{''.join(f', {length}' for length in field.shape)}] of {wanted}" if field.codec == "ndarray" else wanted
    raise DataError(f"expected {expected}, got {short(value)}, at field {field.name!r}")


class Column:
    """What the values of one column have in common; seen one by one, they make a `Field`.

    Attributes:
        distinct: the values, where somebody put a set here and the column can be one of labels; else None.
    """

    def __init__(self) -> None:
        self.kinds: set[Kind] = set()
        self.long = False
        self.pictures = True
        self.exact = True
        self.distinct: set[str] | None = None

    def add(self, value: Any, kind: Kind) -> None:
        """Take one more value, not None, into account; of a string that stands for a number, `kind` is the number's."""
        if kind not in self.kinds:
            self.kinds.add(kind)
        if isinstance(value, str):
            if len(value) > LONG:
                self.long = True
            if self.pictures:
                self.pictures = is_picture(value) and "://" not in value and "\0" not in value
            if self.distinct is not None:
                self.distinct.add(value)
                if self.long or len(self.distinct) > MAX_CLASSES:
                    self.distinct = None
        else:
            self.pictures = False
        if kind is INTEGER and self.exact:
            number = int(value)
            self.exact = -(2**53) <= number <= 2**53 or int(float(number)) == number

    def field(self, name: str, mixed: Literal["str", "json"]) -> Field:
        """Say what the column is; `mixed` is what holds values of several kinds."""
        codecs, dtypes = {kind.codec for kind in self.kinds}, {kind.dtype for kind in self.kinds}
        shapes = {kind.shape for kind in self.kinds} - {None}
        if mixed == "str" and ("str" in dtypes or (not self.exact and len(dtypes) > 1)):
            dtypes = {"str"}
        if not dtypes:
            return Field(name, "scalar", "str")
        if dtypes == {"str"} and codecs == {"scalar"}:
            if self.pictures:
                return picture_field(name)
            return Field(name, "text") if self.long or name in TEXTS else Field(name, "scalar", "str")
        dtype = (
            dtypes.pop() if len(dtypes) == 1 else str(np.result_type(*dtypes)) if dtypes.isdisjoint({"bool", "str"}) and self.exact else ""
        )
        if codecs == {"scalar"} and dtype:
            return Field(name, "scalar", dtype) if name not in TEXTS or mixed == "json" else Field(name, "text")
        if codecs == {"ndarray"} and dtype and len(shapes) == 1:
            return Field(name, "ndarray", dtype, shapes.pop() or ())
        return Field(name, "json")


def picture_field(name: str) -> Field:
    """Make the field of a column of picture files; `mask` and `..._mask` are masks: nearest neighbour, no averaging."""
    return Field(name, "image", options={"mask": True} if name == "mask" or name.endswith("_mask") else {})


class Table:
    """Rows with named columns: what csv and jsonl have in common.

    Show it every row with `add`, then `settle` its fields; from then on it is fixed, and `draw` makes samples. Columns become fields by
    these rules:

    - strings that all are paths with a picture's extension: pictures. A single such column named path, file, filename, file_name or
      filepath becomes `image`. Paths count from the file's folder; where there is no such file, backslashes are taken for slashes;
    - other strings: text when the name is text, prompt or completion or one has more than 200 characters; else short strings;
    - `class` means `label`; a label of strings is the index among its distinct values, sorted by their bytes, or in a table of classes that
      is given. Of more than a million distinct values it stays a string;
    - `key` is the sample's key and no field; else the first picture's path as written; else the running number.

    Attributes:
        fields: set by `settle`, in the order of the columns, `label` last.
        classes: set by `settle`: distinct labels, or None.
        trouble: set by `settle`: a sentence about picture files that are not there.
        weighed: bytes of the files that rows named since it was last set to 0, by columns that have been paths of pictures so far.
        mixed: what becomes of columns that mix kinds.
        kind: tells the kind of a value.
        fit: makes a value into what the codec of a field takes; values are not None.
    """

    mixed: ClassVar[Literal["str", "json"]] = "json"
    kind = staticmethod(kind_of)
    fit = staticmethod(fit)

    def __init__(self, path: str) -> None:
        self.path = path
        self.fields: tuple[Field, ...] = ()
        self.classes: tuple[str, ...] | None = None
        self.trouble: str | None = None
        self.weighed: dict[str, int] = {}
        self._columns: dict[str, Column] = {}
        self._missing: dict[str, list[str]] = {}
        self._lost: Counter[str] = Counter()
        self._raw: dict[str, str] = {}
        self._labels: dict[str, int] = {}
        self._keyed = False

    def add(self, row: Mapping[str, Any], line: int) -> None:
        """Take one more row into account; None is a missing value.

        Raises:
            DataError: a value that no field can hold; the row tells nothing about the fields.
        """
        try:
            kinds = [None if value is None else self.kind(value) for value in row.values()]
            for name, kind in zip(row, kinds, strict=True):
                column = self._columns.get(name) or self._start(name)
                if kind is not None:
                    column.add(row[name], kind)
        finally:
            for name in [*self.weighed] if self.weighed else ():
                if not self._columns[name].pictures:
                    del self.weighed[name]
                elif isinstance(path := row.get(name), str):
                    self.weighed[name] += self._weigh(name, path, line)

    def _start(self, name: str) -> Column:
        column = self._columns[name] = Column()
        if name in {"label", "class"}:
            column.distinct = set()
        if name != "key":
            self.weighed[name] = 0
        return column

    def _weigh(self, name: str, path: str, line: int) -> int:
        """Tell the size of the file that a path means; one that is not there weighs nothing and is remembered."""
        try:
            status = os.stat(self._find(path))
            if stat.S_ISREG(status.st_mode):
                return status.st_size
        except (OSError, ValueError):
            pass
        self._lost[name] += 1
        if self._lost[name] <= 10:
            self._missing.setdefault(name, []).append(f"{path} (line {line})")
        return 0

    def settle(self) -> list[str]:
        """Fix the fields; name the columns, as the file does, that are of pictures.

        Raises:
            ArgumentError: names that cannot be fields.
        """
        names = [name for name in self._columns if name != "key"]
        require(
            len({"label", "class"} & set(names)) < 2,
            f"expected one of 'label' and 'class', got both in {names}, at {self.path}; rename one",
        )
        fields = {name: self._columns[name].field(clean, self.mixed) for name, clean in field_names(names, self.path).items()}
        pictures = [name for name, field in fields.items() if field.codec == "image"]
        paths = [name for name in pictures if name in {"path", "file", "filename", "file_name", "filepath"}]
        self._raw = {field.name: name for name, field in fields.items()}
        if len(paths) == 1 and "image" not in self._raw:
            self._rename(fields, paths[0], "image")
        if "class" in names:
            self._rename(fields, "class", "label")
        for name, field in fields.items():
            labels = self._columns[name].distinct
            if field.name == "label" and field.dtype == "str" and labels is not None:
                fields[name] = Field("label", "scalar", "int64", options={"classes": True})
                self.number(sorted(labels, key=lambda label: label.encode("utf-8", "surrogatepass")))
        require(bool(fields), f"expected columns with values, got {list(self._columns)}, at {self.path}")
        lost = sum(self._lost[name] for name in pictures)
        missing = [path for name in pictures for path in self._missing.get(name, ())]
        if lost:
            cure = f"; paths count from {os.path.dirname(self.path) or '.'}"
            self.trouble = f"expected picture files, got no file at {lost} paths: {few(missing, lost)}, at {self.path}{cure}"
        self.fields = tuple(sorted(fields.values(), key=lambda field: field.name == "label"))
        self._keyed = "key" in self._columns
        self._columns, self._missing, self.weighed = {}, {}, {}
        return pictures

    def _rename(self, fields: dict[str, Field], name: str, new: str) -> None:
        old = fields[name]
        del self._raw[old.name]
        self._raw[new] = name
        fields[name] = replace(old, name=new)

    def number(self, classes: Iterable[str]) -> None:
        """Number labels by the place of their class."""
        self.classes = tuple(classes)
        self._labels = {name: label for label, name in enumerate(self.classes)}

    def draw(self, row: Mapping[str, Any], number: int, line: int, nbytes: int) -> Drawn:
        """Make a sample of a row, `nbytes` long in the file, pictures not counted."""
        sample: Sample = {}
        key = row.get("key") if self._keyed else None
        error: DataError | None = None
        notes: tuple[str, ...] = ()
        for field in self.fields:
            value = row.get(self._raw[field.name])
            if key is None and field.codec == "image":
                key = value
            try:
                sample[field.name] = None if value is None else self._value(field, value)
            except DataError as caught:
                error = error or caught
            else:
                if field.codec == "image" and value is not None:
                    nbytes += len(sample[field.name])
                    notes += misnamed(value, sample[field.name])
        return Drawn(str(number if key is None else key), f"{self.path}:{line}", nbytes, error or sample, notes)

    def _value(self, field: Field, value: Any) -> Any:
        if field.options.get("classes"):
            if not isinstance(value, str) or value not in self._labels:
                raise DataError(f"expected one of {len(self._labels)} classes, got {short(value)}, at field {field.name!r}")
            return self._labels[value]
        if field.codec != "image":
            return self.fit(field, value)
        try:
            return read_file(self._find(fit(Field(field.name, "text"), value)))
        except DataError as error:
            raise DataError(f"{error}, at field {field.name!r} ({value})") from error

    def _find(self, path: str) -> str:
        """Find the file that a path means; as it is written when there is none."""
        written = os.path.join(os.path.dirname(self.path), path)
        if "\\" in path and not os.path.lexists(written):
            return os.path.join(os.path.dirname(self.path), path.replace("\\", "/"))
        return written


class Lines:
    """Lines of a file from a place on, counted and summed up as they are taken; a byte order mark at the start of the file is dropped.

    Attributes:
        position: behind the last line taken, in bytes.
        number: of the last line taken, from 1.
        crc: crc32 of the bytes taken since it was last set to 0.
    """

    def __init__(self, file: BinaryIO, position: int = 0, number: int = 0) -> None:
        self.position, self.number, self.crc = position, number, 0
        self._file = file

    def __iter__(self) -> Iterator[bytes]:
        for data in self._file:
            self.crc = zlib.crc32(data, self.crc)
            first, self.position = not self.position, self.position + len(data)
            self.number += 1
            yield data.removeprefix(BOM) if first else data


class RowSource(Source):
    """A file of rows, columns by the rules of `Table`: what csv and jsonl have in common. A part is a range of rows.

    Opening reads the file once, which tells the fields and cuts the parts; five numbers of each are remembered. A file that has changed
    since is refused.
    """

    def __init__(self, path: Path, table: Table) -> None:
        super().__init__(path)
        require(path.is_file(), f"expected a file of rows, got a folder, at {path}")
        self._path, self._table = os.fspath(path), table
        self._first_error: tuple[int, str] | None = None
        try:
            self._stamp = stamp(self._path)
            with open(path, "rb") as file:
                self._look(file)
                file.seek(0)
                self._ranges = self._survey(Lines(file))
        except OSError as error:
            raise ArgumentError(f"expected a file that can be read, got {error.strerror}, at {path}") from error
        self.fields, self.classes, self.trouble = table.fields, table.classes, table.trouble

    @abstractmethod
    def _look(self, file: BinaryIO) -> None:
        """Look at the start of the file, before any row."""

    @abstractmethod
    def _rows(self, lines: Lines) -> Iterator[tuple[int, int, Mapping[str, Any] | DataError]]:
        """Yield of each row the line where it starts, its bytes, and its values by column or what is wrong with it."""

    @abstractmethod
    def _wanted(self) -> str:
        """Name the rows that are missing where there is no good one."""

    def _survey(self, lines: Lines) -> Int64Array:
        """Show all rows to the table; of each part, [n, 5]: stop in bytes, its last line, samples up to there, size, crc32."""
        rows, ranges = self._rows(lines), array("q")
        sizes: dict[str, array[int]] = {}
        good = number = 0
        more = True
        while more:
            nbytes, more = 0, False
            for line, size, row in rows:
                number, nbytes = number + 1, nbytes + size
                try:
                    if isinstance(row, DataError):
                        raise row
                    self._table.add(row, line)
                    good += 1
                except DataError as error:
                    self._first_error = self._first_error or (line, str(error))
                if nbytes + sum(self._table.weighed.values()) >= PART_NBYTES:
                    more = True
                    break
            if nbytes:
                # Which columns are of pictures shows at the end: until then, sizes are kept apart.
                for name, size in self._table.weighed.items():
                    sizes.setdefault(name, array("q", bytes(len(ranges) // 5 * 8))).append(size)
                    self._table.weighed[name] = 0
                ranges.extend((lines.position, lines.number, number, nbytes, lines.crc))
                lines.crc = 0
        why = f" ({self._first_error[1]}, line {self._first_error[0]})" if self._first_error else ""
        require(good > 0, f"expected {self._wanted()}, got none{why}, at {self._path}")
        found = np.array(ranges, np.int64).reshape(-1, 5)
        for name in self._table.settle():
            found[:, 3] += np.array(sizes[name], np.int64)
        return found

    def name_classes(self, classes: Sequence[str]) -> None:
        super().name_classes(classes)
        self._table.number(classes)

    def parts(self) -> Iterator[Part]:
        """List the ranges; `detail` is start and stop in bytes and the number of the line before."""
        start = line = number = 0
        for found in self._ranges:
            stop, last, next_number, nbytes, crc = found.tolist()
            yield Part(f"{start}-{stop} {crc:08x}", nbytes, number, (start, stop, line), next_number - number)
            start, line, number = stop, last, next_number

    def read(self, part: Part) -> Iterator[Drawn]:
        """Read one range of rows.

        Raises:
            DataError: the file has changed since it was opened.
        """
        start, stop, line = part.detail
        check_stamp(self._path, self._stamp)
        with open(self._path, "rb") as file:
            file.seek(start)
            lines = Lines(io.BytesIO(file.read(stop - start)), start, line)
        for number, (line, nbytes, row) in enumerate(self._rows(lines), part.number):
            if isinstance(row, DataError):
                yield Drawn(str(number), f"{self._path}:{line}", nbytes, row)
            else:
                yield self._table.draw(row, number, line, nbytes)

"""A dataset's folder without its payloads: manifest, shard table, columns, fingerprint.

    out/manifest.json                 a copy of the newest manifests/<generation>.json
    out/columns/<generation>/*.npy    one row per sample and column, and the table of shards
    out/shards/...                    what `stores/` reads

A folder without a manifest is no dataset: it is written last, by rename.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import Any

import numpy as np

from fastdata import registry
from fastdata.errors import DatasetError, FastdataError, ShardError
from fastdata.stores.base import map_npy
from fastdata.types import Array, Buffer, Field, Int64Array, lazy, nbytes

VERSION = 1
DIGEST_NBYTES = 16
_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_RESERVED = ("index", "key")
_TABLE = ("shard", "first", "num_samples", "name", "nbytes", "crc32")


@dataclass(frozen=True, slots=True)
class Segment:
    """The columns that one generation added: rows [first, first + num_samples) of the dataset.

    Attributes:
        crc32: file name in the generation's folder of columns -> checksum.
    """

    generation: int
    first: int
    num_samples: int
    crc32: Mapping[str, int] = field(default_factory=dict)


@dataclass(frozen=True)
class Manifest:
    """What manifest.json says.

    Attributes:
        generation: number of this state of the dataset; older ones stay readable beside it.
        num_samples: of all segments.
        store: name of the store that all shards are of.
        fields: in the order that digests take them.
        columns: name -> {"dtype", "shape"} of one row; strings have dtype "str", and "values" where the column holds codes of few values.
        classes: names of label 0, 1, ...; None where labels have no names.
        options: how it was packed, "source" being a hash of what it was packed from.
        fingerprint: "sha256:..." over fields, classes and every sample's digest, whatever the store and the shards.
        segments: ascending.
        unknown: keys of newer minor additions, carried along.
    """

    num_samples: int
    store: str
    fields: tuple[Field, ...]
    columns: Mapping[str, Mapping[str, Any]]
    classes: tuple[str, ...] | None
    options: Mapping[str, Any]
    fingerprint: str
    segments: tuple[Segment, ...]
    generation: int = 0
    unknown: Mapping[str, Any] = field(default_factory=dict)

    def to_json(self) -> dict[str, Any]:
        """The JSON document, fields and columns in order."""
        return {
            "fastdata": VERSION,
            "generation": self.generation,
            "num_samples": self.num_samples,
            "store": self.store,
            "fields": {f.name: field_to_json(f) for f in self.fields},
            "columns": {name: dict(spec) for name, spec in self.columns.items()},
            "classes": None if self.classes is None else list(self.classes),
            "segments": [{"generation": s.generation, "num_samples": s.num_samples, "crc32": dict(s.crc32)} for s in self.segments],
            "options": dict(self.options),
            "fingerprint": self.fingerprint,
            **self.unknown,
        }


def field_to_json(f: Field) -> dict[str, Any]:
    """A field as the manifest has it; its name is the key."""
    return {"codec": f.codec, "dtype": f.dtype, "shape": list(f.shape), "dense": f.dense, "options": dict(f.options)}


def fields_from_json(document: Mapping[str, Any]) -> tuple[Field, ...]:
    """Build fields from what `field_to_json` gave for each name; errors of any kind mean that it is damaged."""
    parsed = tuple(
        Field(name, f["codec"], f["dtype"], tuple(map(int, f["shape"])), bool(f["dense"]), dict(f["options"]))
        for name, f in document.items()
    )
    check_fields(parsed)
    for f in parsed:
        if f.codec not in registry.names("fastdata.codecs"):
            raise ValueError(f"unknown codec {f.codec!r}")
        if f.dtype != "str" and np.dtype(f.dtype).hasobject:
            raise ValueError(f"dtype {f.dtype!r} of field {f.name!r}")
    return parsed


def check_fields(fields: Sequence[Field]) -> None:
    """Refuse names that cannot be kept apart from derived columns, or twice the same.

    Raises:
        ValueError: naming the field.
    """
    for f in fields:
        if not _NAME.fullmatch(f.name) or f.name in _RESERVED:
            raise ValueError(f"expected a field name of letters, digits and _, and none of {list(_RESERVED)}, got {f.name!r}")
    if len({f.name for f in fields}) != len(fields):
        raise ValueError(f"expected fields of different names, got {[f.name for f in fields]}")


def load(root: Path, generation: int | None = None, *, partial: bool = False) -> Manifest:
    """Read and check a manifest: the newest, or that of a generation; `partial` allows a folder that has not got its name yet.

    Raises:
        DatasetError: no dataset, an unfinished one, a version that this package does not know, or a manifest that does not hold together.
    """
    path = root / "manifest.json" if generation is None else root / "manifests" / f"{generation}.json"
    if root.name.endswith(".partial") and not partial:
        raise DatasetError(f"expected a finished dataset, got one that is incomplete, at {root}: pack it again")
    try:
        document = json.loads(path.read_bytes())
    except FileNotFoundError as error:
        if root.with_name(root.name + ".partial").is_dir():
            raise DatasetError(f"expected a finished dataset, got an incomplete one, at {root}.partial: pack it again") from error
        what = "a folder without one" if root.is_dir() else "a file" if root.exists() else "nothing"
        raise DatasetError(f"expected a dataset (a folder with {path.relative_to(root)}), got {what}, at {root}") from error
    except (OSError, ValueError, RecursionError) as error:
        raise DatasetError(f"expected a manifest, got {error}, at {path}") from error
    version = document.get("fastdata") if isinstance(document, dict) else None
    if version != VERSION:
        cure = ": update fastdata to read it" if isinstance(version, int) and version > VERSION else ""
        raise DatasetError(f"expected a manifest of version {VERSION}, got {version!r}, at {path}{cure}")
    try:
        return _parse(document)
    except (KeyError, TypeError, ValueError, AttributeError, FastdataError) as error:
        raise DatasetError(f"expected a manifest that holds together, got {type(error).__name__}: {error}, at {path}") from error


def _parse(document: dict[str, Any]) -> Manifest:
    """Build a manifest from JSON; errors of any kind mean that it is damaged."""
    parsed = fields_from_json(document["fields"])
    if document["store"] not in registry.names("fastdata.stores"):
        raise ValueError(f"unknown store {document['store']!r}")
    segments, first = [], 0
    for s in document["segments"]:
        checksums = {checked_name(name): int(value) for name, value in s.get("crc32", {}).items()}
        segments.append(Segment(int(s["generation"]), first, int(s["num_samples"]), checksums))
        if segments[-1].num_samples < 0 or segments[-1].generation < 0:
            raise ValueError(f"segment {s}")
        first += segments[-1].num_samples
    if first != document["num_samples"]:
        raise ValueError(f"{document['num_samples']} samples, but {first} in segments")
    columns = document["columns"]
    for name, spec in columns.items():
        if not all(_NAME.fullmatch(part) for part in name.split(".")):
            raise ValueError(f"column name {name!r}")
        if spec["dtype"] != "str" and np.dtype(spec["dtype"]).hasobject:
            raise ValueError(f"dtype {spec['dtype']!r} of column {name!r}")
    for required in ("key", "digest", *(f.name for f in parsed), *(f"{f.name}.raw_nbytes" for f in parsed if f.options.get("compress"))):
        if required not in columns and f"{required}.nbytes" not in columns:
            raise ValueError(f"no column of {required!r}")
    known = {f.name for f in fields(Manifest)} | {"fastdata"}
    return Manifest(
        num_samples=first,
        store=document["store"],
        fields=parsed,
        columns=columns,
        classes=None if document["classes"] is None else tuple(map(str, document["classes"])),
        options=document["options"],
        fingerprint=str(document["fingerprint"]),
        segments=tuple(segments),
        generation=int(document["generation"]),
        unknown={key: value for key, value in document.items() if key not in known},
    )


def save(root: Path, manifest: Manifest) -> None:
    """Write the manifest of its generation, then put a copy in the place of manifest.json by rename; all flushed to the disk."""
    # Names of classes may hold bytes that are no UTF-8, as lone surrogates: Python's escapes of these are JSON's.
    data = json.dumps(manifest.to_json(), ensure_ascii=False, indent=1).encode("utf-8", "backslashreplace") + b"\n"
    (root / "manifests").mkdir(exist_ok=True)
    for target in (root / "manifests" / f"{manifest.generation}.json", root / "manifest.json"):
        temporary = target.with_name(target.name + ".tmp")
        with open(temporary, "wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        os.rename(temporary, target)


def open_folder(root: Path, generation: int | None = None) -> tuple[Manifest, Columns]:
    """Read a manifest and get its columns ready, both of one dataset, also while it is being replaced.

    Raises:
        DatasetError: as `load`.
    """
    path = root / ("manifest.json" if generation is None else f"manifests/{generation}.json")
    while True:
        before = _identity(path)
        manifest = load(root, generation)
        columns = Columns(root, manifest)
        if before == _identity(path):
            return manifest, columns


def _identity(path: Path) -> tuple[int, int, int] | None:
    """Tell a file from any that takes its place; None where there is none."""
    try:
        status = os.stat(path)
    except OSError:
        return None
    return status.st_dev, status.st_ino, status.st_mtime_ns


class Columns(Mapping[str, Array]):
    """The columns of a dataset by name: memory-mapped, opened on first use, never pickled.

    `columns[name]` is an array [num_samples, ...]: mapped while there is one segment, a copy when there are several; strings are an object array
    of `str`.
    """

    def __init__(self, root: Path, manifest: Manifest) -> None:
        self._root, self._manifest = root, manifest
        self._arrays: dict[str, Array] = {}
        self._files: dict[tuple[str, int], Array] = {}
        self._identity = self._identify()

    def _identify(self) -> tuple[int, int, int] | None:
        """Tell the manifest's file from any that takes its place."""
        return _identity(self._root / "manifests" / f"{self._manifest.generation}.json")

    def check_unchanged(self) -> None:
        """Refuse to open one more file of a dataset that was replaced meanwhile: old columns and new payloads do not go together.

        Raises:
            DatasetError: it was replaced or removed.
        """
        found = self._identify()
        if found is None or found != self._identity:
            got = "nothing" if found is None else "another in its place"
            raise DatasetError(f"expected the dataset that was opened, got {got}, at {self._root}: open it again")

    def __iter__(self) -> Iterator[str]:
        return iter(self._manifest.columns)

    def __len__(self) -> int:
        return len(self._manifest.columns)

    def __contains__(self, name: object) -> bool:
        return name in self._manifest.columns

    def __getitem__(self, name: str) -> Array:
        spec = self._spec(name)
        if spec["dtype"] != "str":
            return self._array(name)
        return np.array(self.strings(name), dtype=object)

    def take(self, name: str, rows: Int64Array) -> Array | list[str]:
        """Rows of a column: an array [k, ...], or a list of `str`."""
        return self.strings(name, rows) if self._spec(name)["dtype"] == "str" else self._array(name)[rows]

    def slice(self, name: str, start: int, stop: int) -> Array:
        """Rows [start, stop) of a column of numbers, not copied where they lie in one segment."""
        return self._array(name)[start:stop]

    def strings(self, name: str, rows: Int64Array | None = None) -> list[str]:
        """Rows of a column of strings; None: all of them."""
        spec = self._spec(name)
        if "values" in spec:
            codes = self._array(name)
            try:
                return [spec["values"][code] for code in (codes if rows is None else codes[rows]).tolist()]
            except IndexError as error:
                raise DatasetError(f"expected codes under {len(spec['values'])}, got others, at column {name!r} of {self._root}") from error
        whole = rows is None
        if rows is None:
            rows = np.arange(self._manifest.num_samples)
        # Offsets count from each segment's own start, so the segment of a row tells where its bytes are.
        out: list[str] = [""] * len(rows)
        for segment in self._manifest.segments:
            places = np.flatnonzero((rows >= segment.first) & (rows < segment.first + segment.num_samples))
            if not len(places):
                continue
            data, offsets = self._open(name, segment), self._open(f"{name}.offsets", segment)
            fits = data.dtype == np.uint8 and offsets.dtype == np.int64 and len(offsets) == segment.num_samples + 1
            if not fits or offsets[-1] != len(data) or (whole and (offsets[0] or (offsets[1:] < offsets[:-1]).any())):
                where = f"{self._root}/columns/{segment.generation}/{name}.offsets.npy"
                raise DatasetError(f"expected ascending offsets of {segment.num_samples} strings, got others, at {where}")
            local = rows[places] - segment.first
            for place, start, stop in zip(places.tolist(), offsets[local].tolist(), offsets[local + 1].tolist(), strict=True):
                out[place] = data[start:stop].tobytes().decode("utf-8", "surrogateescape")
        return out

    def _spec(self, name: str) -> Mapping[str, Any]:
        try:
            return self._manifest.columns[name]
        except KeyError:
            raise KeyError(f"expected one of the columns {list(self)}, got {name!r}, at {self._root}") from None

    def _array(self, name: str) -> Array:
        """All segments of a column of numbers or codes."""
        array = self._arrays.get(name)
        if array is None:
            spec = self._spec(name)
            parts = [self._open(name, segment) for segment in self._manifest.segments]
            for part, segment in zip(parts, self._manifest.segments, strict=True):
                codes = "values" in spec
                shape = (segment.num_samples, *(() if codes else spec.get("shape", ())))
                if part.shape != shape or (part.dtype.kind != "u" if codes else part.dtype != np.dtype(spec["dtype"])):
                    expected = f"{'codes' if codes else spec['dtype']} {list(shape)}"
                    where = f"{self._root}/columns/{segment.generation}/{name}.npy"
                    raise DatasetError(f"expected a column of {expected}, got {part.dtype} {list(part.shape)}, at {where}")
            array = self._arrays[name] = parts[0] if len(parts) == 1 else np.concatenate(parts)
        return array

    def _open(self, name: str, segment: Segment) -> Array:
        """One file of a column, opened once."""
        file = self._files.get((name, segment.generation))
        if file is None:
            try:
                file = open_array(self._root / "columns" / str(segment.generation) / f"{name}.npy")
            finally:
                self.check_unchanged()  # behind the opening: what was opened before a change is the old dataset's
            self._files[name, segment.generation] = file
        return file


def open_array(path: Path) -> Array:
    """Map a .npy file.

    Raises:
        DatasetError: it is missing, cut short or no array.
    """
    try:
        return map_npy(path)
    except Exception as error:  # a damaged header may raise anything that Python's parser does
        raise DatasetError(f"expected a .npy file, got {error}, at {path}") from error


class ShardTable:
    """The files of all shards, from `columns/<generation>/shards.npy`.

    A structured array with one row per file: `shard` its number, `first` the index of its first sample in the dataset, `num_samples`, `name`
    relative to the dataset, `nbytes`, `crc32`. Of every picture field there are `<field>.pixels`, and uint64 [3] `<field>.sum` and `<field>.squares`
    over the channels of so many of its pixels, in the row of a shard's first file.
    """

    def __init__(self, root: Path, manifest: Manifest) -> None:
        self._root, self._manifest = root, manifest

    @lazy
    def rows(self) -> Array:
        """All rows of all segments."""
        parts = [open_array(self._root / "columns" / str(s.generation) / "shards.npy") for s in self._manifest.segments]
        for part, segment in zip(parts, self._manifest.segments, strict=True):
            if missing := [name for name in _TABLE if name not in (part.dtype.names or ())]:
                where = f"{self._root}/columns/{segment.generation}/shards.npy"
                raise DatasetError(f"expected a table of shards, got one without {missing}, at {where}")
        if len(parts) == 1:
            return parts[0]
        names = [n for n in parts[0].dtype.names or () if all(n in (p.dtype.names or ()) for p in parts)]
        return np.concatenate([p[names] for p in parts])

    @lazy
    def _starts(self) -> Int64Array:
        """Row of each shard's first file."""
        firsts = self.rows["first"]
        starts = np.flatnonzero(np.concatenate([[True], firsts[1:] != firsts[:-1]])[: len(firsts)])
        counts = self.rows["num_samples"][starts]
        if (np.cumsum(counts) - counts != firsts[starts]).any() or counts.sum() != self._manifest.num_samples:
            raise DatasetError(f"expected shards that cover {self._manifest.num_samples} samples in a row, got others, at {self._root}")
        return starts.astype(np.int64)

    @lazy
    def first(self) -> Int64Array:
        """Index of each shard's first sample, int64 [num_shards]."""
        return self.rows["first"][self._starts].astype(np.int64)

    @lazy
    def num_samples(self) -> Int64Array:
        """Samples of each shard, int64 [num_shards]."""
        return self.rows["num_samples"][self._starts].astype(np.int64)

    @property
    def nbytes(self) -> int:
        """Bytes of all shards."""
        return int(self.rows["nbytes"].sum())

    def files(self, shard: int) -> list[tuple[str, int]]:
        """The files of a shard by its place in the table: (path relative to the dataset, bytes).

        Raises:
            ShardError: a path that leads out of the dataset.
        """
        stop = int(self._starts[shard + 1]) if shard + 1 < len(self._starts) else len(self.rows)
        return [
            (checked_name(row["name"].decode(errors="replace")), int(row["nbytes"])) for row in self.rows[int(self._starts[shard]) : stop]
        ]


def checked_name(name: str) -> str:
    """Give back a path that stays inside of the dataset.

    Raises:
        ShardError: it is absolute or climbs.
    """
    if not name or name.startswith("/") or "\\" in name or "\0" in name or ".." in name.split("/"):
        raise ShardError(f"expected a path inside of the dataset, got {name!r}, at the table of shards")
    return name


def digest(values: Iterable[tuple[str, str, tuple[int, ...], Buffer | None]]) -> bytes:
    """Digest one sample: sha256, cut to 16 bytes.

    Args:
        values: for each field in the manifest's order: name, encoding, shape, and bytes as the codec gives them (arrays and scalars little-endian,
            without any header; labels as class index); None where the sample has no value.
    """
    state = hashlib.sha256()
    for name, encoding, shape, data in values:
        size = -1 if data is None else nbytes(data)
        state.update(f"{name}\0{encoding}\0{','.join(map(str, shape))}\0{size}\0".encode())
        if data is not None and size:
            state.update(data.reshape(-1).data if isinstance(data, np.ndarray) else data)
    return state.digest()[:DIGEST_NBYTES]


def fingerprint(fields: Sequence[Field], classes: Sequence[str] | None, digests: Iterable[bytes | Array]) -> str:
    """Fingerprint a dataset: sha256 of canonical JSON of fields, but for their compression, and classes, then of the digests in order."""
    plain = [replace(f, options={name: value for name, value in f.options.items() if name != "compress"}) for f in fields]
    head = {"fields": [[f.name, field_to_json(f)] for f in plain], "classes": None if classes is None else list(classes)}
    state = hashlib.sha256(json.dumps(head, sort_keys=True, separators=(",", ":")).encode())
    for part in digests:
        state.update(part.reshape(-1).data if isinstance(part, np.ndarray) else part)
    return f"sha256:{state.hexdigest()}"

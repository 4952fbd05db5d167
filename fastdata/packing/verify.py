"""Check a dataset: sizes, counts, checksums, every payload decoded, every digest, and the fingerprint over them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from fastdata import manifest as manifests
from fastdata import registry
from fastdata.codecs import open_codec
from fastdata.codecs.base import Codec
from fastdata.errors import DataError, FastdataError
from fastdata.manifest import Columns, Manifest, ShardTable
from fastdata.packing.base import Progress, Status
from fastdata.packing.engine import run
from fastdata.stores.base import Shards, check_size, crc32
from fastdata.types import Array, Buffer, Int64Array, lazy, nbytes

_ROWS = 64  # samples that are read at once


@dataclass
class Verified:
    """What `verify` found.

    Attributes:
        problems: one sentence each, naming shard, sample, field and offset where they are known; empty when all is well.
    """

    path: str
    num_samples: int
    num_shards: int
    problems: list[str] = field(default_factory=list)


def verify(path: str | Path, *, quick: bool = False, workers: int = 1, progress: Callable[[Progress], None] | None = None) -> Verified:
    """Read everything and hold it against manifest, columns and checksums.

    Args:
        path: of the dataset.
        quick: look at sizes and counts alone; no payload is read.
        workers: processes.
        progress: called some times a second.

    Raises:
        DatasetError: the folder does not open at all.
    """
    root = Path(path)
    manifest = manifests.load(root)
    table = ShardTable(root, manifest)
    result = Verified(str(root), manifest.num_samples, len(table.first))
    result.problems = _check_manifests(root, manifest) + ([] if quick else _check_checksums(root, manifest))
    unreadable = _check_columns(root, manifest, quick)
    result.problems += unreadable
    if unreadable:
        return result

    def tick(num_samples: int, size: int) -> None:
        if progress:
            progress(Progress(num_samples, size, table.nbytes))

    found: dict[int, list[str]] = {}
    for shard, problems in run(_Checker(root, manifest, quick), range(len(table.first)), workers, tick):
        found[shard] = problems
    result.problems += [problem for _, problems in sorted(found.items()) for problem in problems]
    known = {name for shard in range(len(table.first)) for name, _ in table.files(shard)}
    result.problems += [
        f"expected no other file, got {p}"
        for p in sorted((root / "shards").rglob("*"))
        if p.is_file() and str(p.relative_to(root)) not in known
    ]
    return result


def _check_manifests(root: Path, manifest: Manifest) -> list[str]:
    """The manifest of the generation, which workers and unpickled datasets read, is the one that was opened."""
    path = root / "manifests" / f"{manifest.generation}.json"
    if not path.is_file():
        return [f"expected a manifest, got nothing, at {path}"]
    same = path.read_bytes() == (root / "manifest.json").read_bytes()
    return [] if same else [f"expected the same bytes as {root / 'manifest.json'}, got others, at {path}"]


def _check_checksums(root: Path, manifest: Manifest) -> list[str]:
    """The files of columns are those that were written."""
    problems = []
    for segment in manifest.segments:
        for name, checksum in segment.crc32.items():
            path = root / "columns" / str(segment.generation) / name
            if not path.is_file():
                problems.append(f"expected a column, got nothing, at {path}")
            elif problem := _check_checksum(path, checksum):
                problems.append(problem)
    if rejects := manifest.unknown.get("rejects"):
        path = root / "rejects.jsonl"
        missing = None if path.is_file() else f"expected the list of samples that were skipped, got nothing, at {path}"
        if problem := missing or _check_checksum(path, rejects["crc32"]):
            problems.append(problem)
    return problems


def _check_checksum(path: Path, checksum: int) -> str | None:
    """A file has the bytes that were written, and gives them."""
    try:
        same = crc32(path) == checksum
    except OSError as error:
        return f"expected a file that can be read, got {error.strerror}, at {path}"
    return None if same else f"expected the checksum {checksum:08x}, got another, at {path}: bytes have changed"


def _check_columns(root: Path, manifest: Manifest, quick: bool) -> list[str]:
    """Every column opens and has its rows; labels are classes; the fingerprint is that of the digests."""
    columns = Columns(root, manifest)
    problems = []
    for name in columns:
        try:
            if manifest.columns[name]["dtype"] != "str":
                column: Any = columns[name]
            elif quick:
                columns.strings(name, np.array([0, manifest.num_samples - 1]))
                continue
            else:
                column = columns.strings(name)
            if len(column) != manifest.num_samples:
                problems.append(f"expected {manifest.num_samples} rows, got {len(column)}, at column {name!r} of {root}")
        except (FastdataError, IndexError, UnicodeError) as error:
            problems.append(f"{error}, at column {name!r} of {root}")
    if problems or quick:
        return problems
    for f in manifest.fields:
        if f.options.get("classes") and manifest.classes is not None:
            labels = columns[f.name]
            outside = np.flatnonzero((labels < 0) | (labels >= len(manifest.classes)))
            problems += [
                f"expected a label under {len(manifest.classes)}, got {labels[i]}, at sample {i} of {root}" for i in outside.tolist()
            ]
    if manifests.fingerprint(manifest.fields, manifest.classes, [columns["digest"].tobytes()]) != manifest.fingerprint:
        problems.append(f"expected the fingerprint {manifest.fingerprint}, got another from fields, classes and digests, at {root}")
    return problems


class _Checker:
    """Checks shards of one dataset, which each worker opens for itself."""

    def __init__(self, root: Path, manifest: Manifest, quick: bool) -> None:
        self._root, self._manifest, self._quick = root, manifest, quick

    @lazy
    def _opened(self) -> tuple[ShardTable, Columns, list[Codec], Shards]:
        table, columns = ShardTable(self._root, self._manifest), Columns(self._root, self._manifest)
        codecs = [open_codec(f) for f in self._manifest.fields]
        payloads = [codec.stored for codec in codecs if codec.payload]
        files, check = table.files, columns.check_unchanged
        shards = Shards(self._manifest.store, self._root, payloads, table.first, table.num_samples, files, columns.slice, check)
        return table, columns, codecs, shards

    def __call__(self, shard: int, status: Status) -> tuple[int, list[str]]:
        """Check one shard; give its number and what is wrong with it."""
        table, columns, codecs, shards = self._opened
        status.at(f"shard {shard} of {self._root}")
        problems: list[str] = []
        for row, (name, size) in zip(table.rows[table.rows["first"] == table.first[shard]], table.files(shard), strict=True):
            try:
                check_size(self._root / name, size)
            except DataError as error:
                return shard, [str(error).removesuffix("; see fastdata verify")]
            if not self._quick and (problem := _check_checksum(self._root / name, int(row["crc32"]))):
                problems.append(problem)
        trusting = getattr(registry.load("fastdata.stores", self._manifest.store, "store"), "TRUSTING", False)
        if self._quick and not trusting:
            try:
                shards.reader(shard)
            except DataError as error:
                problems.append(str(error))
        if self._quick or (problems and trusting):
            return shard, problems
        first, num_samples = int(table.first[shard]), int(table.num_samples[shard])
        for start in range(first, first + num_samples, _ROWS):
            indices = np.arange(start, min(start + _ROWS, first + num_samples))
            try:
                values = {codec.field.name: shards.read(codec.stored, indices) for codec in codecs if codec.payload}
            except (DataError, OSError) as error:
                problems.append(f"{error}, at shard {shards.path(shard)}" if isinstance(error, OSError) else str(error))
                continue
            for i, index in enumerate(indices.tolist()):
                status.at(shards.locate(index))
                one = {name: value[i] for name, value in values.items()}
                status.done(_check_sample(self._manifest, columns, codecs, one, index, shards, problems))
        return shard, problems


def _check_sample(
    manifest: Manifest, columns: Columns, codecs: list[Codec], values: dict[str, Array], index: int, shards: Shards, problems: list[str]
) -> int:
    """Decode one sample and compare its digest; give its bytes."""
    at: Int64Array = np.array([index])

    def where() -> str:
        return f"{shards.locate(index)}{shards.place(index)}"

    parts: list[tuple[str, str, tuple[int, ...], Buffer | None]] = []
    total = 0
    for codec in codecs:
        name = codec.field.name
        if codec.payload:
            size = int(columns[f"{name}.nbytes"][index])
            data: Array | None = values[name] if size >= 0 else None
            if data is not None and nbytes(data) != size:
                problems.append(f"expected {size} bytes, got {nbytes(data)}, at field {name!r} of {where()}")
        else:
            valid = f"{name}.valid" not in columns or bool(columns[f"{name}.valid"][index])
            value = columns.take(name, at)[0]
            data = np.frombuffer(codec.encode(value).data, dtype=np.uint8) if valid else None
        if data is None:
            parts.append((name, "", (), None))
            continue
        total += nbytes(data)
        info = {c: columns.take(f"{name}.{c}", at)[0] for c in codec.columns}
        try:
            if codec.payload:
                data = codec.from_store(data, info)
                codec.decode(data, info)
        except DataError as error:
            problems.append(f"{error}, at field {name!r} of {where()}")
        # Stores give little-endian bytes; the digest takes the same.
        parts.append(
            (name, str(info.get("encoding", codec.field.codec)), tuple(map(int, codec.shape(data, info))), np.ascontiguousarray(data))
        )
    if manifests.digest(parts) != columns["digest"][index].tobytes():
        problems.append(f"expected the digest of what was packed, got another, at {where()}")
    return total

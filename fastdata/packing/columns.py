"""Make a dataset of finished shards: columns out of their journal, then the manifest."""

from __future__ import annotations

import itertools
import json
import os
import shutil
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from fastdata import manifest as manifests
from fastdata.errors import DataError
from fastdata.manifest import Manifest, Segment
from fastdata.packing.base import ShardSummary, Terms
from fastdata.packing.journal import Journal
from fastdata.stores.base import crc32, remove, sync
from fastdata.types import Array

_FEW = 65536  # distinct strings that a column keeps as codes and a table: what two bytes tell apart


def write(terms: Terms, journal: Journal, summaries: Sequence[ShardSummary]) -> Manifest:
    """Write columns, rejects and manifest beside finished shards, and remove what else a killed pack has left there.

    Args:
        summaries: of all shards in the order of their numbers, those without samples too.

    Raises:
        DataError: not one good sample.
    """
    folder = journal.folder
    kept = [summary for summary in summaries if summary.num_samples]
    if not kept:
        first = next((reject for summary in summaries for reject in journal.rejects(summary.number)), None)
        why = f": all {sum(s.num_rejected for s in summaries)} were rejected; the first: {first.reason}" if first else ""
        raise DataError(f"expected at least one good sample, got none{why}")
    _clean(folder, kept)
    columns = folder / "columns" / "0"
    columns.mkdir(parents=True)
    num_samples = sum(s.num_samples for s in kept)
    specs = _write_columns(kept, journal, columns, num_samples)
    _save(columns / "shards.npy", _shard_table(kept))
    rejects = folder / "rejects.jsonl"
    _write_rejects(rejects, summaries, journal)
    sync(columns)
    checksums = {path.name: crc32(path) for path in sorted(columns.iterdir())}
    digests = manifests.open_array(columns / "digest.npy")
    manifest = Manifest(
        num_samples=num_samples,
        store=terms.options["to"],
        fields=terms.fields,
        columns=specs,
        classes=terms.classes,
        options=terms.options,
        fingerprint=manifests.fingerprint(terms.fields, terms.classes, np.array_split(digests, 1 + len(digests) // 100_000)),
        segments=(Segment(0, 0, num_samples, checksums),),
        unknown={"rejects": {"crc32": crc32(rejects)}} if rejects.exists() else {},
    )
    for path in (folder / "shards", folder / "columns"):
        sync(path)
    manifests.save(folder, manifest)
    sync(folder / "manifests")
    return manifest


def _clean(folder: Path, kept: Sequence[ShardSummary]) -> None:
    """Remove columns of an earlier try, and from the shards what is none: shards that were being written when a pack was killed."""
    for name in ("columns", "manifests"):
        shutil.rmtree(folder / name, ignore_errors=True)
    (folder / "rejects.jsonl").unlink(missing_ok=True)
    shards = {Path(name).parts[1] for summary in kept for name, _, _ in summary.files}
    for path in (folder / "shards").iterdir():
        if path.name not in shards:
            remove(path)


def _write_columns(summaries: Sequence[ShardSummary], journal: Journal, folder: Path, num_samples: int) -> dict[str, dict[str, Any]]:
    """Join the shards' columns, one shard in memory at a time; give the manifest's description of them."""
    with journal.columns(summaries[0].number) as first:
        names = list(first)
    strings = [name.removesuffix(":bytes") for name in names if name.endswith(":bytes")]
    tables: dict[str, dict[str, int] | None] = {name: None if name == "key" else {} for name in strings}
    totals = dict.fromkeys(strings, 0)
    few = min(_FEW, max(16, num_samples // 16))
    missing = {name for s in summaries for name in s.missing}

    def pass_over(visit: Callable[[int, ShardSummary, Mapping[str, Array]], None]) -> None:
        start = 0
        for summary in summaries:
            with journal.columns(summary.number) as columns:
                visit(start, summary, columns)
            start += summary.num_samples

    def count(_: int, __: ShardSummary, columns: Mapping[str, Array]) -> None:
        for name in strings:
            totals[name] += len(columns[f"{name}:bytes"])
            table = tables[name]
            if table is not None:
                for value in dict.fromkeys(_strings(columns, name)):
                    table.setdefault(value, len(table))
                if len(table) > few:
                    tables[name] = None

    pass_over(count)
    specs: dict[str, dict[str, Any]] = {}
    arrays: dict[str, Array] = {}

    def create(name: str, dtype: Any, shape: tuple[int, ...]) -> None:
        path = folder / f"{name}.npy"
        if 0 in shape:
            np.save(path, np.empty(shape, dtype))
        else:
            arrays[name] = np.lib.format.open_memmap(path, mode="w+", dtype=np.dtype(dtype).newbyteorder("<"), shape=shape)
            _reserve(path)

    for name in strings:
        table = tables[name]
        if table is None:
            specs[name] = {"dtype": "str"}
            create(name, "u1", (totals[name],))
            create(f"{name}.offsets", "i8", (num_samples + 1,))
        else:
            specs[name] = {"dtype": "str", "values": list(table)}
            create(name, np.min_scalar_type(max(0, len(table) - 1)), (num_samples,))
    with journal.columns(summaries[0].number) as first:
        for name in names:
            if ":" not in name and (not name.endswith(".valid") or name.removesuffix(".valid") in missing):
                column = first[name]
                specs[name] = {"dtype": column.dtype.name, "shape": list(column.shape[1:])}
                if name.removesuffix(".nbytes") in missing:
                    specs[name]["missing"] = True
                create(name, column.dtype, (num_samples, *column.shape[1:]))
    ends = dict.fromkeys(strings, 0)

    def fill(start: int, summary: ShardSummary, columns: Mapping[str, Array]) -> None:
        stop = start + summary.num_samples
        for name in specs:
            table = tables.get(name)
            if name not in tables:
                arrays[name][start:stop] = columns[name]
            elif table is not None:
                arrays[name][start:stop] = [table[value] for value in _strings(columns, name)]
            else:
                data, offsets = columns[f"{name}:bytes"], columns[f"{name}:offsets"]
                if len(data):
                    arrays[name][ends[name] : ends[name] + len(data)] = data
                arrays[f"{name}.offsets"][start : stop + 1] = offsets + ends[name]
                ends[name] += len(data)

    pass_over(fill)
    for name, array in arrays.items():
        array.flush()  # type: ignore[attr-defined]
        sync(folder / f"{name}.npy")
    return specs


def _reserve(path: Path) -> None:
    """Take the space of a sparse file, since a full disk ends a process that writes through a mapping."""
    if hasattr(os, "posix_fallocate"):
        with open(path, "r+b") as file:
            os.posix_fallocate(file.fileno(), 0, path.stat().st_size)


def _strings(columns: Mapping[str, Array], name: str) -> list[str]:
    """A column of strings out of a summary."""
    data, offsets = columns[f"{name}:bytes"].tobytes(), columns[f"{name}:offsets"].tolist()
    return [data[a:b].decode("utf-8", "surrogateescape") for a, b in itertools.pairwise(offsets)]


def _shard_table(summaries: Sequence[ShardSummary]) -> Array:
    """One row per file; see `manifest.ShardTable`."""
    width = max(len(name) for s in summaries for name, _, _ in s.files)
    pictures = sorted({name for s in summaries for name in s.pixels})
    dtype: list[Any] = [
        ("shard", "<i8"),
        ("first", "<i8"),
        ("num_samples", "<i8"),
        ("name", f"S{width}"),
        ("nbytes", "<i8"),
        ("crc32", "<u4"),
    ]
    for name in pictures:
        dtype += [(f"{name}.pixels", "<u8"), (f"{name}.sum", "<u8", 3), (f"{name}.squares", "<u8", 3)]
    rows: list[Any] = []
    first = 0
    for s in summaries:
        for i, (name, size, checksum) in enumerate(s.files):
            pixels = [v for p in pictures for v in (s.pixels.get(p, (0, [0] * 3, [0] * 3)) if i == 0 else (0, [0] * 3, [0] * 3))]
            rows.append((s.number, first, s.num_samples, name.encode(), size, checksum, *pixels))
        first += s.num_samples
    return np.array(rows, dtype=dtype)


def _save(path: Path, array: Array) -> None:
    """Write an array, flushed to the disk."""
    np.save(path, array, allow_pickle=False)
    sync(path)


def _write_rejects(path: Path, summaries: Sequence[ShardSummary], journal: Journal) -> None:
    """One line for each sample that was skipped; no file where none was."""
    if not any(summary.num_rejected for summary in summaries):
        return
    with open(path, "w", encoding="utf-8", errors="backslashreplace") as file:
        for summary in summaries:
            for reject in journal.rejects(summary.number) if summary.num_rejected else ():
                line = {"source": reject.source, "key": reject.key, "reason": reject.reason, "bytes": reject.nbytes}
                file.write(json.dumps(line, ensure_ascii=False) + "\n")
        file.flush()
        os.fsync(file.fileno())

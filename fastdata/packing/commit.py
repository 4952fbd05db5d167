"""Make a dataset of finished shards: columns from their summaries, the manifest, the folder's final name."""

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
from fastdata.manifest import Manifest, Segment
from fastdata.packing.base import Job, Reject, ShardSummary
from fastdata.stores.base import crc32, sync
from fastdata.types import Array

_FEW = 65536  # distinct strings that a column keeps as codes and a table: what two bytes tell apart


def commit(job: Job, all_summaries: Sequence[ShardSummary], summaries: Sequence[ShardSummary], options: Mapping[str, Any]) -> Manifest:
    """Write columns and manifest into the partial folder, and drop its journal.

    Args:
        all_summaries: in the order of their numbers.
        summaries: those of shards that have samples.
    """
    folder = job.folder / "columns" / "0"
    folder.mkdir(parents=True)
    num_samples = sum(s.num_samples for s in summaries)
    specs = _write_columns(job, summaries, folder, num_samples)
    _save(folder / "shards.npy", _shard_table(summaries))
    if job.on_error == "skip":
        _write_rejects(job.folder / "rejects.jsonl", [reject for s in all_summaries for reject in s.rejects])
    sync(folder)
    checksums = {path.name: crc32(path) for path in sorted(folder.iterdir())}
    digests = manifests.open_array(folder / "digest.npy")
    manifest = Manifest(
        num_samples=num_samples,
        store=job.store,
        fields=job.fields,
        columns=specs,
        classes=job.source.classes,
        options=options,
        fingerprint=manifests.fingerprint(job.fields, job.source.classes, np.array_split(digests, 1 + len(digests) // 100_000)),
        segments=(Segment(0, 0, num_samples, checksums),),
    )
    manifests.save(job.folder, manifest)
    shutil.rmtree(job.folder / "journal")
    for path in (job.folder / "shards", job.folder / "columns", job.folder / "manifests", job.folder):
        sync(path)
    return manifest


def _write_columns(job: Job, summaries: Sequence[ShardSummary], folder: Path, num_samples: int) -> dict[str, dict[str, Any]]:
    """Join the shards' columns, one shard in memory at a time; give the manifest's description of them."""
    with np.load(job.summary_path(summaries[0].number), allow_pickle=False) as first:
        names = list(first.files)
    strings = [name.removesuffix(":bytes") for name in names if name.endswith(":bytes")]
    tables: dict[str, dict[str, int] | None] = {name: None if name == "key" else {} for name in strings}
    totals = dict.fromkeys(strings, 0)
    few = min(_FEW, max(16, num_samples // 16))
    missing = {name for s in summaries for name in s.missing}

    def pass_over(visit: Callable[[int, ShardSummary, Mapping[str, Array]], None]) -> None:
        start = 0
        for summary in summaries:
            with np.load(job.summary_path(summary.number), allow_pickle=False) as columns:
                visit(start, summary, columns)
            start += summary.num_samples

    def count(_: int, __: ShardSummary, columns: Mapping[str, Array]) -> None:
        for name in strings:
            totals[name] += len(columns[f"{name}:bytes"])
            table = tables[name]
            if table is not None:
                for value in _strings(columns, name):
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
    with np.load(job.summary_path(summaries[0].number), allow_pickle=False) as first:
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


def _write_rejects(path: Path, rejects: Sequence[Reject]) -> None:
    """One line for each sample that was skipped."""
    with open(path, "w", encoding="utf-8", errors="backslashreplace") as file:
        for reject in rejects:
            line = {"source": reject.source, "key": reject.key, "reason": reject.reason, "bytes": reject.nbytes}
            file.write(json.dumps(line, ensure_ascii=False) + "\n")
        file.flush()
        os.fsync(file.fileno())

"""What a dataset holds, from manifest and columns alone: no payload is read."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import numpy as np

from fastdata import manifest as manifests
from fastdata.errors import DatasetError
from fastdata.manifest import Columns, Manifest, ShardTable
from fastdata.types import Array, Field


def info(path: str | os.PathLike[str]) -> dict[str, Any]:
    """Describe a dataset in JSON values: counts, classes, shards, bytes, sizes of values, and of pictures mean and std.

    Sizes are in bytes, `raw_nbytes` those before compression, widths and heights in pixels, mean and std over the pixels of all pictures
    (of large ones over evenly spaced rows), in [0, 1] as `Normalize` takes them.

    Raises:
        DatasetError: no dataset is there, or one that this version cannot open.
    """
    root = Path(path)
    manifest = manifests.load(root)
    columns, table = Columns(root, manifest), ShardTable(root, manifest)
    described: dict[str, Any] = {
        "path": str(root),
        "version": manifests.VERSION,
        "generation": manifest.generation,
        "store": manifest.store,
        "num_samples": manifest.num_samples,
        "num_shards": len(table.first),
        "nbytes": table.nbytes,
        "fingerprint": manifest.fingerprint,
        "fields": {f.name: _describe_field(f, manifest, columns, table) for f in manifest.fields},
        "classes": None,
        "options": dict(manifest.options),
    }
    label = next((f.name for f in manifest.fields if f.options.get("classes")), None)
    if manifest.classes is not None and label is not None:
        labels = columns[label]
        if f"{label}.valid" in columns:
            labels = labels[columns[f"{label}.valid"]]
        if len(labels) and not 0 <= labels.min() <= labels.max() < len(manifest.classes):
            raise DatasetError(
                f"expected labels under {len(manifest.classes)}, got {labels.min()} to {labels.max()}, at column {label!r} of {root}"
            )
        counts = np.bincount(labels, minlength=len(manifest.classes))
        described["classes"] = dict(zip(manifest.classes, counts.tolist(), strict=True))
    return described


def _describe_field(f: Field, manifest: Manifest, columns: Columns, table: ShardTable) -> dict[str, Any]:
    """One field: its form, and the distribution of what there are columns about."""
    described: dict[str, Any] = {"codec": f.codec, "dtype": f.dtype, "shape": list(f.shape), "dense": f.dense}
    there: Any = slice(None)
    if f"{f.name}.nbytes" in columns:
        sizes = columns[f"{f.name}.nbytes"]
        described["missing"] = int((sizes < 0).sum())
        described["total_nbytes"] = int(sizes[sizes > 0].sum())
        there = np.flatnonzero(sizes >= 0) if described["missing"] else there
        described["nbytes"] = _distribution(sizes[there])
    if f.options.get("compress"):
        sizes = columns[f"{f.name}.raw_nbytes"][there]
        described |= {"compress": f.options["compress"], "total_raw_nbytes": int(sizes.sum()), "raw_nbytes": _distribution(sizes)}
    if f"{f.name}.valid" in columns:
        described["missing"] = int((~columns[f"{f.name}.valid"]).sum())
    for name in ("width", "height", "length"):
        if f"{f.name}.{name}" in columns:
            described[name] = _distribution(columns[f"{f.name}.{name}"][there])
    spec = manifest.columns.get(f"{f.name}.encoding", {})
    if "values" in spec:
        found, counts = np.unique(columns[f"{f.name}.encoding"][there].astype(str), return_counts=True)
        described["encodings"] = dict(zip(found.tolist(), counts.tolist(), strict=True))
    if f"{f.name}.pixels" in (table.rows.dtype.names or ()) and (num := int(table.rows[f"{f.name}.pixels"].sum())):
        mean = table.rows[f"{f.name}.sum"].sum(axis=0) / num / 255
        square = table.rows[f"{f.name}.squares"].sum(axis=0) / num / 255**2
        described["mean"] = mean.round(6).tolist()
        described["std"] = np.sqrt(np.maximum(0, square - mean**2)).round(6).tolist()
    return described


def _distribution(values: Array) -> dict[str, int]:
    """Least, quartiles, 95th percentile and greatest of some numbers."""
    if not len(values):
        return {}
    quantiles = np.quantile(values, [0, 0.25, 0.5, 0.75, 0.95, 1], method="nearest").tolist()
    return dict(zip(("min", "p25", "p50", "p75", "p95", "max"), map(int, quantiles), strict=True))

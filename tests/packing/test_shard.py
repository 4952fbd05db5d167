"""One shard: what `_Rows` makes of pictures while they pass."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from fastdata.manifest import ShardTable, load
from fastdata.packing import pack
from fastdata.types import Array


def table(root: Path) -> Array:
    return ShardTable(root, load(root)).rows


@pytest.mark.parametrize(("size", "every"), [((1, 1), 1), ((64, 128), 1), ((129, 126), 1), ((1, 65537), 8), ((700, 501), 42)])
def test_sums_are_exact_over_every_row_or_of_large_pictures_over_evenly_spaced_ones(
    size: tuple[int, int], every: int, tmp_path: Path
) -> None:
    generator = np.random.default_rng(0)
    pictures = [generator.integers(0, 256, (*size, 3), dtype=np.uint8), np.full((*size, 3), 255, np.uint8), np.zeros((*size, 3), np.uint8)]
    pack([{"image": picture} for picture in pictures], tmp_path / "out", to="mmap", workers=1)
    rows = table(tmp_path / "out")
    values = np.concatenate([picture[::every].reshape(-1, 3) for picture in pictures]).astype(np.int64)
    assert rows["image.pixels"].sum() == len(values)
    assert rows["image.sum"].sum(axis=0).tolist() == values.sum(axis=0).tolist()
    assert rows["image.squares"].sum(axis=0).tolist() == (values**2).sum(axis=0).tolist()


def test_without_validation_there_are_no_sums_and_everything_else_is_equal(photos: Path, tmp_path: Path) -> None:
    pictures = [{"key": path.name, "image": path.read_bytes()} for path in sorted(photos.rglob("*.jpg"))]
    for name, validate in (("full", True), ("quick", False)):
        pack(pictures, tmp_path / name, to="tar", workers=1, validate=validate)
    full, quick = tmp_path / "full", tmp_path / "quick"
    assert load(quick).fingerprint == load(full).fingerprint
    assert "image.sum" in (table(full).dtype.names or ())
    assert "image.sum" not in (table(quick).dtype.names or ())
    same = {path.name for path in (full / "columns/0").iterdir()} - {"shards.npy"}
    assert {path.name for path in (quick / "columns/0").iterdir()} - {"shards.npy"} == same
    for name in same:
        assert (quick / "columns/0" / name).read_bytes() == (full / "columns/0" / name).read_bytes()
    assert (quick / "shards/00000.tar").read_bytes() == (full / "shards/00000.tar").read_bytes()

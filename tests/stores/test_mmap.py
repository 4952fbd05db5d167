"""The mmap store, read by plain numpy."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fastdata import registry
from fastdata.dataset import Dataset
from fastdata.errors import ShardError
from fastdata.packing import pack
from fastdata.types import Field

mmap = registry.load("fastdata.stores", "mmap", "test")


def test_numpy_loads_raw_pixels_of_one_size(photos: Path, tmp_path: Path) -> None:
    pack(photos, tmp_path / "out", to="mmap", workers=2, shard_size=9000, image="raw", resize=(24, 32))
    loaded = np.concatenate([np.load(path / "image.npy") for path in sorted((tmp_path / "out/shards").iterdir())])
    dataset = Dataset(tmp_path / "out")
    assert loaded.shape == (24, 24, 32, 3)
    assert loaded.dtype == np.uint8
    assert all(np.array_equal(loaded[i], dataset[i]["image"]) for i in range(24))


@pytest.mark.parametrize("dtype", ["bool", "uint8", "int16", "float16", "float64"])
@pytest.mark.parametrize("shape", [(), (1,), (7,), (2, 3, 4)])
def test_numpy_loads_dense_arrays_of_any_form(dtype: str, shape: tuple[int, ...], tmp_path: Path, make_shards: Callable[..., Any]) -> None:
    field = Field("a", "ndarray", dtype, shape, dense=True)
    arrays = [np.asarray(np.arange(np.prod(shape, dtype=int)).reshape(shape) + i, dtype) for i in range(5)]
    path = make_shards("mmap", tmp_path / "out", (field,), [[{"a": array} for array in arrays]]).paths()[0]
    loaded = np.load(path, mmap_mode="r")
    assert loaded.dtype == np.dtype(dtype)
    assert np.array_equal(loaded, np.stack(arrays))
    assert path.stat().st_size == 128 + sum(array.nbytes for array in arrays)


def test_ragged_values_are_bare_elements_between_offsets_without_slack(tmp_path: Path, make_shards: Callable[..., Any]) -> None:
    field = Field("boxes", "ndarray", "float32", (4,))
    arrays = [np.arange(4 * n, dtype=np.float32).reshape(n, 4) for n in (2, 0, 3, 1)]
    made = make_shards("mmap", tmp_path / "out", (field,), [[*({"boxes": array} for array in arrays), {"boxes": None}]])
    folder = tmp_path / "out/shards/00000"
    assert [path.name for path in made.paths()] == ["boxes.bin", "boxes.offsets.npy"]
    elements, offsets = np.fromfile(folder / "boxes.bin", "<f4").reshape(-1, 4), np.load(folder / "boxes.offsets.npy")
    assert offsets.tolist() == [0, 2, 2, 5, 6, 6]
    assert offsets.dtype == np.int64
    assert np.array_equal(elements, np.concatenate(arrays))


def test_ragged_values_that_turn_out_equal_stay_ragged(tmp_path: Path) -> None:
    pack([{"tokens": np.arange(3)} for _ in range(4)], tmp_path / "out", to="mmap", workers=1)
    assert sorted(path.name for path in (tmp_path / "out/shards/00000").iterdir()) == ["tokens.bin", "tokens.offsets.npy"]


def test_offsets_beyond_32_bits_are_read(tmp_path: Path) -> None:
    """Case 40: a sparse file whose last value lies at 2^33 elements."""
    field = Field("tokens", "ndarray", "uint16")
    far = (1 << 32) + 5
    with open(tmp_path / "tokens.bin", "wb") as file:
        file.seek(2 * far)
        file.write(np.array([1, 2, 3], "<u2").tobytes())
    np.save(tmp_path / "tokens.offsets.npy", np.array([0, (1 << 31) - 1, 1 << 31, far, far + 3]))
    reader = mmap.Reader(tmp_path, (field,), 4, lambda name: np.empty(0))
    first, one, between, last = reader.read(field, np.array([0, 1, 2, 3]))
    assert last.tolist() == [1, 2, 3]
    assert (len(first), len(one), len(between)) == ((1 << 31) - 1, 1, far - (1 << 31))


def test_arrays_of_another_form_than_the_manifest_says_are_refused(tmp_path: Path, make_shards: Callable[..., Any]) -> None:
    field = Field("a", "ndarray", "int32", (2,), dense=True)
    made = make_shards("mmap", tmp_path / "out", (field,), [[{"a": np.zeros(2, np.int32)}] * 3])
    for other in (np.zeros((3, 2), np.int64), np.zeros((3, 3), np.int32), np.zeros((4, 2), np.int32)):
        np.save(made.paths()[0], other)
        made.names = [[(made.names[0][0][0], made.paths()[0].stat().st_size)]]
        with pytest.raises(ShardError, match=r"expected int32 \[3, 2\], got"):
            made.open().read(field, np.array([0]))

"""The HDF5 store, read by plain h5py."""

from __future__ import annotations

import fcntl
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest

from fastdata.dataset import Dataset
from fastdata.errors import ShardError
from fastdata.packing import pack
from fastdata.stores import hdf5
from fastdata.types import Field


def test_h5py_reads_dense_and_ragged_fields(tmp_path: Path, make_shards: Callable[..., Any]) -> None:
    dense, ragged = Field("dense", "ndarray", "float32", (2, 3), dense=True), Field("ragged", "ndarray", "int64", (2,))
    flags, empty = Field("flags", "ndarray", "bool", (3,), dense=True), Field("empty", "ndarray", "int16")
    samples = [
        {
            "dense": np.full((2, 3), i, np.float32),
            "ragged": np.full((i, 2), i),
            "flags": np.array([True, i % 2 == 0, False]),
            "empty": None,
        }
        for i in range(4)
    ]
    path = make_shards("hdf5", tmp_path / "out", (dense, ragged, flags, empty), [samples]).paths()[0]
    with h5py.File(path) as file:
        assert set(file) == {"dense", "ragged", "ragged.offsets", "flags", "empty", "empty.offsets"}
        assert file["dense"].dtype == np.float32
        assert file["flags"].dtype == np.bool_
        assert np.array_equal(file["dense"][:], np.stack([sample["dense"] for sample in samples]))
        assert np.array_equal(file["flags"][:], np.stack([sample["flags"] for sample in samples]))
        assert file["ragged.offsets"][:].tolist() == [0, 0, 1, 3, 6]
        assert np.array_equal(file["ragged"][:], np.concatenate([sample["ragged"] for sample in samples]))
        assert file["empty"].shape == (0,)
        assert file["empty.offsets"][:].tolist() == [0] * 5


def test_h5py_reads_the_files_of_pictures(photos: Path, tmp_path: Path) -> None:
    pack(photos, tmp_path / "out", to="hdf5", workers=2, shard_size=9000)
    found: list[bytes] = []
    for path in sorted((tmp_path / "out/shards").iterdir()):
        with h5py.File(path) as file:
            data, offsets = file["image"][:].tobytes(), file["image.offsets"][:].tolist()
            found += [data[a:b] for a, b in pairwise(offsets)]
    assert found == [path.read_bytes() for path in sorted(photos.glob("*/*"))]


def test_a_shard_is_little_larger_than_its_elements(tmp_path: Path, make_shards: Callable[..., Any]) -> None:
    samples = [{"blob": bytes(1000)} for _ in range(100)]
    path = make_shards("hdf5", tmp_path / "out", (Field("blob", "bytes"),), [samples]).paths()[0]
    assert 100_000 + 808 < path.stat().st_size < 100_000 + 808 + 4096
    assert path.stat().st_blocks * 512 >= 100_000


def test_nothing_but_the_shard_is_left_beside_it(tmp_path: Path, make_shards: Callable[..., Any]) -> None:
    make_shards("hdf5", tmp_path / "out", (Field("blob", "bytes"),), [[{"blob": b"x"}]])
    assert [path.name for path in (tmp_path / "out/shards").iterdir()] == ["00000.h5"]


def test_offsets_beyond_32_bits_are_read(tmp_path: Path) -> None:
    """Case 40: a sparse file whose last value, and the dataset behind it, lie beyond 2^32 bytes."""
    fields, far = (Field("a", "ndarray", "uint16"), Field("b", "ndarray", "uint8", (2,), dense=True)), (1 << 32) + 5
    ends = np.array([0, 1 << 31, far, far + 3])
    with h5py.File(tmp_path / "x.h5", "w", libver="latest") as file:
        for name, shape, dtype in (("a", (far + 3,), "<u2"), ("a.offsets", (4,), "<i8"), ("b", (3, 2), "u1")):
            dataset = hdf5._allocate(file, name, shape, np.dtype(dtype))
            assert dataset is not None
        file["a.offsets"][:], file["a"][far:], file["b"][:] = ends, [1, 2, 3], [[1, 2], [3, 4], [5, 6]]
    assert (tmp_path / "x.h5").stat().st_blocks * 512 < 1 << 20
    reader = hdf5.Reader(tmp_path / "x.h5", fields, 3, lambda name: np.empty(0))
    assert [len(value) for value in reader.read(fields[0], np.arange(3))] == [1 << 31, far - (1 << 31), 3]
    assert reader.read(fields[0], np.array([2]))[0].tolist() == [1, 2, 3]
    assert np.array(reader.read(fields[1], np.array([2, 0]))).tolist() == [[5, 6], [1, 2]]


def test_a_dataset_in_chunks_or_of_another_form_is_refused(tmp_path: Path, make_shards: Callable[..., Any]) -> None:
    field = Field("a", "ndarray", "int32", (2,), dense=True)
    made = make_shards("hdf5", tmp_path / "out", (field,), [[{"a": np.zeros(2, np.int32)}] * 3])
    path = made.paths()[0]
    for match, options in (
        ("got one in chunks", {"data": np.zeros((3, 2), np.int32), "chunks": (1, 2)}),
        (r"expected int32 \[3, 2\], got int64", {"data": np.zeros((3, 2), np.int64)}),
        (r"expected int32 \[3, 2\], got int32 \[2, 2\]", {"data": np.zeros((2, 2), np.int32)}),
    ):
        with h5py.File(path, "w") as file:
            file.create_dataset("a", **options)
        made.names = [[(made.names[0][0][0], path.stat().st_size)]]
        with pytest.raises(ShardError, match=match):
            made.open().read(field, np.array([0]))
    with h5py.File(path, "w") as file:
        file["b"] = 1
    made.names = [[(made.names[0][0][0], path.stat().st_size)]]
    with pytest.raises(ShardError, match="KeyError"):
        made.open().read(field, np.array([0]))


def test_a_shard_under_the_lock_of_another_is_read(photos: Path, tmp_path: Path) -> None:
    """Case 57: locks are neither asked for nor heeded."""
    pack(photos, tmp_path / "out", to="hdf5", workers=1)
    with open(tmp_path / "out/shards/00000.h5", "rb") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        assert Dataset(tmp_path / "out")[0]["image"].ndim == 3

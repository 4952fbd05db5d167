"""What every store owes, run over each file of `fastdata/stores`."""

from __future__ import annotations

import copy
import gc
import os
import pickle
import shutil
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fastdata import registry
from fastdata.errors import ShardError
from fastdata.stores import base
from fastdata.types import Array, Field

STORES = registry.names("fastdata.stores")
DENSE = Field("dense", "ndarray", "float32", (2, 3), dense=True)
FLAT = Field("flat", "ndarray", "int16", (), dense=True)
RAGGED = Field("ragged", "ndarray", "int64")
BOXES = Field("boxes", "ndarray", "float64", (2, 2))
BLOB = Field("blob", "bytes")
FIELDS = (DENSE, FLAT, RAGGED, BOXES, BLOB)
NUM_SAMPLES = 24
SHARDS = (range(7), range(7, 8), range(8, 24))


def value(field: Field, i: int) -> Array | bytes | None:
    """The value of sample i, from a formula; None where it is missing."""
    if not field.dense and i % 6 == 4:
        return None
    if field is DENSE:
        return (np.arange(6, dtype=np.float32) / 4 - i).reshape(2, 3)
    if field is FLAT:
        return np.array(i * 1000 - 7, dtype=np.int16)
    if field is RAGGED:
        return np.arange(i % 5, dtype=np.int64) * (1 << 40) - i
    if field is BOXES:
        return np.arange(4 * (i % 3), dtype=np.float64).reshape(-1, 2, 2) * i
    return bytes((i * j) % 251 for j in range((i % 4) * 700))


def expected(field: Field, i: int) -> Array:
    """What a reader must give for it."""
    found = value(field, i)
    if found is None:
        return np.empty((0, *field.shape), dtype=field.dtype)
    return np.frombuffer(found, dtype=np.uint8) if isinstance(found, bytes) else found


def samples(indices: range) -> list[dict[str, Any]]:
    return [{field.name: value(field, i) for field in FIELDS} for i in indices]


def check(shards: base.Shards, indices: list[int]) -> None:
    """Read every field at `indices` and hold it against the formula."""
    for field in FIELDS:
        values = shards.read(field, np.array(indices, dtype=np.int64))
        assert len(values) == len(indices)
        if field.dense:
            assert isinstance(values, np.ndarray)
            assert values.shape == (len(indices), *field.shape)
        for found, i in zip(values, indices, strict=True):
            wanted = expected(field, i)
            assert found.dtype == wanted.dtype
            assert found.shape == wanted.shape, (field.name, i)
            assert np.array_equal(found, wanted), (field.name, i)


@pytest.fixture(scope="module", params=STORES)
def written(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory, make_shards: Callable[..., Any]) -> Any:
    """Three shards of a store, read only."""
    return make_shards(request.param, tmp_path_factory.mktemp(request.param), FIELDS, [samples(shard) for shard in SHARDS])


@pytest.fixture
def own(written: Any, tmp_path: Path) -> Any:
    """The same, to damage."""
    shutil.copytree(written.root, tmp_path / "own")
    mine = copy.copy(written)
    mine.root = tmp_path / "own"
    return mine


def test_dense_ragged_bytes_missing_and_empty_values_come_back_in_order(written: Any) -> None:
    check(written.open(), list(range(NUM_SAMPLES)))


@given(indices=st.lists(st.integers(0, NUM_SAMPLES - 1), max_size=40))
@settings(max_examples=25, deadline=None)
@pytest.mark.parametrize("store", STORES)
def test_any_order_with_repeats_comes_back(store: str, indices: list[int], written_by_store: dict[str, base.Shards]) -> None:
    check(written_by_store[store], indices)


@pytest.fixture(scope="module")
def written_by_store(tmp_path_factory: pytest.TempPathFactory, make_shards: Callable[..., Any]) -> dict[str, base.Shards]:
    root = tmp_path_factory.mktemp("all")
    return {store: make_shards(store, root / store, FIELDS, [samples(shard) for shard in SHARDS]).open() for store in STORES}


@pytest.mark.parametrize("store", STORES)
def test_a_shard_whose_values_are_all_missing_or_of_size_zero_opens(store: str, tmp_path: Path, make_shards: Callable[..., Any]) -> None:
    empty = Field("empty", "ndarray", "int32", (0, 3), dense=True)
    fields = (RAGGED, BOXES, BLOB, empty)
    nothing = {"ragged": None, "boxes": None, "blob": None, "empty": np.empty((0, 3), np.int32)}
    hollow = {"ragged": np.empty(0, np.int64), "boxes": np.empty((0, 2, 2)), "blob": b"", "empty": np.empty((0, 3), np.int32)}
    shards = make_shards(store, tmp_path / "out", fields, [[nothing] * 3, [hollow] * 3]).open()
    for field in (RAGGED, BOXES, BLOB):
        for found in shards.read(field, np.arange(6)):
            assert found.shape == (0, *field.shape)
            assert found.dtype == field.dtype
    assert shards.read(empty, np.arange(6)).shape == (6, 0, 3)  # type: ignore[union-attr]


@pytest.mark.parametrize("dtype", ["bool", "int8", "uint16", "uint64", "float16", "float32", "float64"])
@pytest.mark.parametrize("store", STORES)
def test_every_dtype_comes_back_as_it_is(store: str, dtype: str, tmp_path: Path, make_shards: Callable[..., Any]) -> None:
    dense, ragged = Field("dense", "ndarray", dtype, (3,), dense=True), Field("ragged", "ndarray", dtype)
    sample = {"dense": np.array([0, 1, 1]).astype(dtype), "ragged": np.array([1, 0, 1, 1]).astype(dtype)}
    shards = make_shards(store, tmp_path / "out", (dense, ragged), [[sample]]).open()
    for field in (dense, ragged):
        found = shards.read(field, np.array([0]))[0]
        assert found.dtype == np.dtype(dtype)
        assert np.array_equal(found, sample[field.name])


def test_values_stay_valid_after_reader_folder_and_store_are_gone(own: Any) -> None:
    """Case 81: no view dies with its transaction or shard."""
    shards = own.open()
    kept = {field.name: shards.read(field, np.arange(NUM_SAMPLES)) for field in FIELDS}
    one = {field.name: shards.read(field, np.array([3]))[0] for field in FIELDS}
    del shards
    gc.collect()
    shutil.rmtree(own.root)
    for field in FIELDS:
        assert np.array_equal(one[field.name], expected(field, 3))
        assert all(np.array_equal(kept[field.name][i], expected(field, i)) for i in range(NUM_SAMPLES))


def in_child(work: Callable[[], None]) -> int:
    """Run `work` in a forked child; 0 when it raised nothing."""
    pid = os.fork()
    if not pid:
        code = 1
        try:
            work()
            code = 0
        finally:
            os._exit(code)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


def test_a_fork_reads_for_itself_and_does_not_disturb_its_parent(written: Any) -> None:
    """Case 64: handles that were open before the fork are not used in the child, again and again."""
    shards = written.open()
    check(shards, [0, 7, 23])
    for _ in range(5):
        assert in_child(lambda: check(shards, list(range(NUM_SAMPLES)))) == 0
        check(shards, [23, 0, 7])
    assert in_child(lambda: os._exit(in_child(lambda: check(shards, [1, 2])))) == 0


def test_two_datasets_on_one_file_live_side_by_side_also_in_a_fork(written: Any) -> None:
    datasets = [written.open(), written.open()]

    def read_both() -> None:
        check(datasets[-1], [2, 8])
        check(datasets[0], [8, 2])

    read_both()
    assert in_child(read_both) == 0
    datasets.pop(0)
    gc.collect()
    check(datasets[0], list(range(NUM_SAMPLES)))


def test_threads_share_the_readers(written: Any) -> None:
    shards, failures = written.open(), []

    def work(seed: int) -> None:
        try:
            for _ in range(5):
                check(shards, np.random.default_rng(seed).permutation(NUM_SAMPLES).tolist())
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=work, args=(seed,)) for seed in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failures


def test_open_shards_refuse_to_be_pickled(written: Any) -> None:
    """Case 65: no handle travels; the dataset opens its shards again."""
    with pytest.raises(TypeError, match="not pickled"):
        pickle.dumps(written.open())


def read_all(made: Any) -> None:
    shards = made.open()
    for field in FIELDS:
        shards.read(field, np.arange(NUM_SAMPLES))


@pytest.mark.parametrize("border", [1, 512], ids=["byte", "block"])
def test_a_file_cut_short_is_named(own: Any, border: int) -> None:
    """Case 63: also when it ends at a block's border, where a tar still looks well."""
    for path in own.paths():
        data = path.read_bytes()
        path.write_bytes(data[: (len(data) - 1) // border * border])
        with pytest.raises(ShardError, match="cut short") as caught:
            read_all(own)
        assert str(path) in str(caught.value)
        path.write_bytes(data)
    read_all(own)


def test_a_file_that_has_grown_is_named(own: Any) -> None:
    path = own.paths()[-1]
    path.write_bytes(path.read_bytes() + b"\0")
    with pytest.raises(ShardError, match="replaced or written to") as caught:
        read_all(own)
    assert str(path) in str(caught.value)


def test_a_missing_file_is_named(own: Any) -> None:
    for path in own.paths():
        path.rename(path.with_name("away"))
        with pytest.raises(ShardError, match="No such file") as caught:
            read_all(own)
        assert str(path) in str(caught.value)
        path.with_name("away").rename(path)


@pytest.mark.parametrize("start", [b"", b"Z" * 600, b"PK\x03\x04", b"\x93NUMPY\x01\x00\xff\xff{'descr'"], ids=["zeros", "Z", "zip", "npy"])
def test_a_foreign_file_of_equal_size_is_refused_and_named(own: Any, start: bytes) -> None:
    """Case 63. Bare elements (.bin) have no form that could tell: these `verify` finds by their checksum."""
    for path in own.paths():
        if path.suffix == ".bin":
            continue
        data = path.read_bytes()
        path.write_bytes(start[: len(data)].ljust(len(data), b"\0"))
        with pytest.raises(ShardError) as caught:
            read_all(own)
        assert str(path) in str(caught.value) or str(path.parent) in str(caught.value)
        path.write_bytes(data)
    read_all(own)


def test_reading_leaves_nothing_beside_the_data(own: Any) -> None:
    """Cases 57, 125: no lock file, no right to write needed; modification times stay."""

    def state() -> list[tuple[str, int, int]]:
        return [(str(p), p.stat().st_size, p.stat().st_mtime_ns) for p in sorted(own.root.rglob("*"))]

    before = state()
    for path in sorted(own.root.rglob("*")):
        path.chmod(0o555 if path.is_dir() else 0o444)
    shards = own.open()
    check(shards, list(range(NUM_SAMPLES)))
    assert state() == before
    del shards
    gc.collect()
    assert state() == before
    for path in own.root.rglob("*"):
        path.chmod(0o755 if path.is_dir() else 0o644)


def held(root: Path) -> set[str]:
    """Shards of `root` that this process holds open or mapped."""
    links = [os.readlink(f"/proc/self/fd/{fd}") for fd in os.listdir("/proc/self/fd") if os.path.lexists(f"/proc/self/fd/{fd}")]
    maps = [line.split(maxsplit=5)[-1].strip() for line in Path("/proc/self/maps").read_text().splitlines()]
    return {Path(name).relative_to(root / "shards").parts[0] for name in links + maps if name.startswith(f"{root}/shards/")}


@pytest.mark.skipif(not Path("/proc/self/maps").exists(), reason="what a process holds open is read from /proc")
@pytest.mark.parametrize("store", STORES)
def test_the_number_of_open_shards_is_bounded(
    store: str, tmp_path: Path, make_shards: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    made = make_shards(store, tmp_path / "out", FIELDS, [samples(range(i, i + 1)) for i in range(NUM_SAMPLES)])
    monkeypatch.setattr(base, "MAX_OPEN", 3 * len(made.names[0]))
    shards = made.open()
    for i in range(0, NUM_SAMPLES, 2):
        check(shards, [i])
        gc.collect()
        assert 1 <= len(held(made.root)) <= 3
    check(shards, list(range(NUM_SAMPLES)))
    gc.collect()
    assert len(held(made.root)) <= 3
    shards.reader(21), shards.reader(22), shards.reader(21), shards.reader(5)
    gc.collect()
    assert {name[:5] for name in held(made.root)} == {"00005", "00021", "00022"}


@pytest.mark.parametrize("store", STORES)
def test_equal_records_give_equal_bytes(
    store: str, tmp_path: Path, make_shards: Callable[..., Any], contents: Callable[[Path], dict[str, bytes]]
) -> None:
    """Case 59: neither time nor place enters a shard."""
    for name in "ab":
        make_shards(store, tmp_path / name / "out", FIELDS, [samples(range(10))])
    assert contents(tmp_path / "a") == contents(tmp_path / "b")


@pytest.mark.parametrize("store", STORES)
def test_an_aborted_writer_leaves_no_handle(store: str, tmp_path: Path) -> None:
    """Case 55: what was begun and not closed is let go."""
    module = registry.load("fastdata.stores", store, "test")
    gc.collect()
    before = set(os.listdir("/proc/self/fd")) if Path("/proc/self/fd").exists() else set()
    (tmp_path / "shards").mkdir()
    writer = module.Writer(tmp_path / "shards" / "00000.tmp", "00000", FIELDS)
    writer.abort()
    del writer
    gc.collect()
    assert not before or set(os.listdir("/proc/self/fd")) == before

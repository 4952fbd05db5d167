"""The LMDB store, read by plain lmdb; how its map grows and shrinks again."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import lmdb as plain
import numpy as np
import pytest

from fastdata import registry
from fastdata.errors import DataError
from fastdata.packing import pack
from fastdata.types import Encoded, Field, Record

lmdb = registry.load("fastdata.stores", "lmdb", "test")
BLOB = Field("blob", "bytes")


def entries(path: Path, name: str) -> list[tuple[int, bytes]]:
    """A database of a shard, as plain lmdb sees it."""
    with plain.open(str(path), subdir=False, readonly=True, lock=False, max_dbs=8) as environment, environment.begin() as transaction:
        database = environment.open_db(name.encode(), transaction, create=False)
        return [(int.from_bytes(key, "big"), value) for key, value in transaction.cursor(database)]


def test_plain_lmdb_reads_the_fields_by_index(photos: Path, tmp_path: Path) -> None:
    pack(photos, tmp_path / "out", to="lmdb", workers=2, shard_size=9000)
    files = [path.read_bytes() for path in sorted(photos.glob("*/*"))]
    found: list[bytes] = []
    for path in sorted((tmp_path / "out/shards").iterdir()):
        pairs = entries(path, "image")
        assert [index for index, _ in pairs] == list(range(len(pairs)))
        found += [value for _, value in pairs]
    assert found == files


def test_a_missing_value_has_no_entry_and_an_empty_one_has(tmp_path: Path, make_shards: Callable[..., Any]) -> None:
    ragged = Field("ragged", "ndarray", "int32", (2,))
    samples = [{"blob": b"a", "ragged": None}, {"blob": None, "ragged": np.ones((1, 2), np.int32)}, {"blob": b"", "ragged": None}]
    path = make_shards("lmdb", tmp_path / "out", (BLOB, ragged), [samples]).paths()[0]
    assert entries(path, "blob") == [(0, b"a"), (2, b"")]
    assert entries(path, "ragged") == [(1, np.ones(2, "<i4").tobytes())]


@pytest.mark.parametrize(("first_map", "transaction"), [(1 << 16, 1 << 12), (1 << 16, 16 << 20), (1 << 20, 1 << 16)])
def test_the_map_grows_by_itself_and_every_value_is_there(
    first_map: int, transaction: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, make_shards: Callable[..., Any]
) -> None:
    """Case 51: from 64 KiB to megabytes, whatever fits into one transaction."""
    monkeypatch.setattr(lmdb, "_FIRST_MAP_NBYTES", first_map)
    monkeypatch.setattr(lmdb, "_COMMIT_NBYTES", transaction)
    samples = [{"blob": bytes([i]) * (i * 1000)} for i in range(80)]
    made = make_shards("lmdb", tmp_path / "out", (BLOB,), [samples])
    values = made.open().read(BLOB, np.arange(80))
    assert [bytes(value) for value in values] == [sample["blob"] for sample in samples]
    assert os.listdir(tmp_path / "out/shards") == ["00000.lmdb"]


def test_the_first_map_of_64_megabytes_is_outgrown(tmp_path: Path, make_shards: Callable[..., Any]) -> None:
    """Case 51, with the real numbers."""
    samples = [{"blob": bytes([i]) * (10 << 20)} for i in range(8)]
    made = make_shards("lmdb", tmp_path / "out", (BLOB,), [samples])
    assert made.paths()[0].stat().st_size > lmdb._FIRST_MAP_NBYTES
    values = made.open().read(BLOB, np.array([7, 0]))
    assert values[0].tobytes() == samples[7]["blob"]
    assert values[1].tobytes() == samples[0]["blob"]


def test_a_finished_shard_has_no_slack(tmp_path: Path, make_shards: Callable[..., Any]) -> None:
    """Case 52: its size is that of its values, rounded up to pages, and a few pages more; copying it does not blow up."""
    samples = [{"blob": bytes(10_000)} for _ in range(100)]
    path = make_shards("lmdb", tmp_path / "out", (BLOB,), [samples]).paths()[0]
    page = os.sysconf("SC_PAGESIZE")
    pages = 100 * -(-(10_000 + 16) // page)
    assert pages * page <= path.stat().st_size <= (pages + 12) * page
    assert path.stat().st_blocks * 512 >= pages * page


def test_a_value_beyond_the_limit_is_refused_and_the_next_record_may_follow(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lmdb, "_MAX_NBYTES", 1000)
    writer = lmdb.Writer(tmp_path / "00000.lmdb", "00000", (BLOB,))
    with pytest.raises(DataError, match="got 1001 bytes, at field 'blob'; use --to mmap"):
        writer.append(Record("0", {"blob": Encoded(b"x" * 1001, "bin")}, {}))
    writer.append(Record("1", {"blob": Encoded(b"x" * 1000, "bin")}, {}))
    writer.close()
    assert entries(tmp_path / "00000.lmdb", "blob") == [(0, b"x" * 1000)]


def test_a_shard_with_another_form_is_refused(tmp_path: Path, make_shards: Callable[..., Any]) -> None:
    dense = Field("blob", "ndarray", "uint16", (3,), dense=True)
    made = make_shards("lmdb", tmp_path / "out", (BLOB,), [[{"blob": b"12345"}, {"blob": None}]])
    made.fields = (dense,)
    shards = made.open()
    with pytest.raises(DataError, match="a multiple of 6 bytes, got 5"):
        shards.read(dense, np.array([0]))
    with pytest.raises(DataError, match="expected a value, got none, at sample 1"):
        shards.read(dense, np.array([1]))

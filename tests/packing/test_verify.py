"""`verify()` finds and names what has changed since the pack, and reading damaged shards gives errors, never a crash of the check."""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from fastdata import registry
from fastdata.errors import DataError, DatasetError
from fastdata.packing import pack
from fastdata.packing.verify import Verified, verify

STORES = registry.names("fastdata.stores")


@pytest.fixture(scope="module")
def packed(photos: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """The photos in every store, in several shards, read only."""
    root = tmp_path_factory.mktemp("verify")
    for store in STORES:
        pack(photos, root / store, to=store, workers=1, shard_size=9000)
    return {store: root / store for store in STORES}


@pytest.fixture(params=STORES)
def own(request: pytest.FixtureRequest, packed: dict[str, Path], tmp_path: Path) -> Path:
    """One of them, to damage."""
    shutil.copytree(packed[request.param], tmp_path / "out")
    return tmp_path / "out"


def files(root: Path, shard: int) -> list[Path]:
    """The files of a shard."""
    return sorted(p for p in (root / "shards").rglob("*") if p.is_file() and f"{shard:05d}" in str(p))


def flip(path: Path, at: int) -> None:
    data = bytearray(path.read_bytes())
    data[at] ^= 0x10
    path.write_bytes(data)


def test_nothing_is_wrong_after_a_pack_with_any_number_of_workers(own: Path) -> None:
    for workers in (1, 2):
        found = verify(own, workers=workers)
        assert found == Verified(str(own), 24, len(np.unique(np.load(own / "columns/0/shards.npy")["shard"])), [])


@pytest.mark.parametrize("workers", [1, 2])
def test_a_flipped_bit_of_a_payload_is_found_and_the_file_named(workers: int, own: Path) -> None:
    """Case 63."""
    jpeg = b"\xff\xd8\xff"
    for path in files(own, 1):
        data = path.read_bytes()
        if jpeg not in data:
            continue
        flip(path, data.index(jpeg) + 500)
        problems = verify(own, workers=workers).problems
        assert len(problems) >= 1
        assert any("checksum" in problem and str(path) in problem for problem in problems)
        assert all("00001" in problem for problem in problems)


def test_a_flipped_bit_anywhere_is_found(own: Path) -> None:
    """Case 63: headers, padding, offsets and trees too; the check itself comes to its end."""
    generator = np.random.default_rng(5)
    for path in [*files(own, 0), *files(own, 2)]:
        data = path.read_bytes()
        for at in generator.integers(0, len(data), 6).tolist():
            flip(path, at)
            problems = verify(own, workers=2).problems
            assert any(str(path) in problem for problem in problems), (path, at)
            path.write_bytes(data)
    assert verify(own).problems == []


def test_a_flipped_byte_is_told_by_shard_sample_and_place(packed: dict[str, Path], tmp_path: Path) -> None:
    """Case 63: where the store's library does not keep it to itself, the place in the file too."""
    places = {
        "tar": r"sample 1 of .*00001\.tar \(offset \d+ of blob\)",
        "mmap": r"sample 1 of .*00001 \(elements 100 to 200 of blob\)",
        "hdf5": r"sample 1 of .*00001\.h5 \(elements 100 to 200 of blob\)",
        "lmdb": r"checksum .*00001\.lmdb",
    }
    for store in STORES:
        out = tmp_path / store
        pack([{"blob": bytes([65 + i]) * 100} for i in range(8)], out, to=store, workers=1, shard_size=200)
        path = next(p for p in files(out, 1) if b"D" * 100 in p.read_bytes())
        at = path.read_bytes().index(b"D" * 100)
        flip(path, at + 50)
        problems = verify(out).problems
        assert any(re.search(places[store], problem) for problem in problems), problems
        if store == "tar":
            assert any(f"(offset {at} of blob)" in problem for problem in problems), problems


@pytest.mark.parametrize("cut", [1, 512, 1024, -512])
def test_a_quick_check_finds_what_sizes_and_counts_tell_and_reads_no_payload(cut: int, own: Path) -> None:
    """Case 63: a cut shard, also at the border of a block, a missing one, one too many; a flipped byte is left to the whole check."""
    flip(files(own, 3)[0], files(own, 3)[0].stat().st_size // 2)
    assert verify(own, quick=True).problems == []
    short, missing = (files(own, i)[0] for i in (0, 1))
    data = short.read_bytes()
    short.write_bytes(data[:-cut] if cut > 0 else data + bytes(-cut))
    missing.unlink()
    (own / "shards/00099.tar").write_bytes(b"left over")
    for quick in (True, False):
        problems = verify(own, quick=quick, workers=2).problems
        assert any(f"expected {len(data)} bytes, got {len(data) - cut}" in p and str(short) in p for p in problems)
        assert any("got none" in p and str(missing) in p for p in problems)
        assert any("expected no other file" in p and "00099" in p for p in problems)
        assert len(problems) == 3 + (not quick) * len([p for p in problems if "00003" in p])
    (own / "columns/0/label.npy").write_bytes((own / "columns/0/label.npy").read_bytes()[:-8])
    assert any("label" in problem for problem in verify(own, quick=True).problems)


def test_a_cut_a_missing_and_a_foreign_shard_are_found_and_named_together(own: Path) -> None:
    """Case 63: one wrong shard does not hide another."""
    cut, missing, foreign = (files(own, i)[0] for i in (0, 1, 2))
    cut.write_bytes(cut.read_bytes()[:-1])
    missing.unlink()
    foreign.write_bytes(b"Z" * foreign.stat().st_size)
    for workers in (1, 2):
        problems = verify(own, workers=workers).problems
        assert any("cut short" in p and str(cut) in p for p in problems)
        assert any("got none" in p and str(missing) in p for p in problems)
        assert any("checksum" in p and str(foreign) in p for p in problems)
        assert not any("00003" in p for p in problems)


def test_shards_that_changed_places_are_found(packed: dict[str, Path], tmp_path: Path) -> None:
    """Sizes, form and number of samples may be equal; the bytes are not."""
    samples = [{"blob": bytes([i]) * 100} for i in range(8)]
    for store in STORES:
        out = tmp_path / store
        pack(samples, out, to=store, workers=1, shard_size=200)
        first, second = (next(p for p in files(out, i) if b"\x03" * 50 in p.read_bytes() or i == 0) for i in (0, 1))
        first, second = files(out, 0)[0], files(out, 1)[0]
        one, two = first.read_bytes(), second.read_bytes()
        assert len(one) == len(two)
        first.write_bytes(two)
        second.write_bytes(one)
        problems = verify(out).problems
        assert any(str(first) in p for p in problems)
        assert any(str(second) in p for p in problems)


def test_a_file_that_does_not_belong_there_is_named(own: Path) -> None:
    (own / "shards/00099.tar").write_bytes(b"left over")
    assert verify(own).problems == [f"expected no other file, got {own / 'shards/00099.tar'}"]


def test_a_changed_label_is_found_and_the_sample_named(own: Path) -> None:
    path = own / "columns/0/label.npy"
    labels = np.load(path)
    labels[13] = (labels[13] + 1) % 3
    np.save(path, labels)
    first = np.load(own / "columns/0/shards.npy")
    row = first[(first["first"] <= 13) & (first["first"] + first["num_samples"] > 13)][0]
    problems = verify(own).problems
    assert len(problems) == 2
    assert "checksum" in problems[0]
    assert str(path) in problems[0]
    assert "digest" in problems[1]
    assert f"sample {13 - row['first']} of" in problems[1]
    assert f"{row['shard']:05d}" in problems[1]


def test_a_label_without_a_class_is_found_and_the_sample_named(own: Path) -> None:
    path = own / "columns/0/label.npy"
    labels = np.load(path)
    labels[[2, 7]] = 3, -1
    np.save(path, labels)
    problems = verify(own).problems
    assert [p for p in problems if "got 3" in p and "sample 2" in p]
    assert [p for p in problems if "got -1" in p and "sample 7" in p]


@pytest.mark.parametrize("name", ["key", "key.offsets", "label", "digest", "image.nbytes", "image.width", "image.encoding", "shards"])
@pytest.mark.parametrize("damage", ["missing", "cut", "foreign", "zip", "other", "short", "changed"])
def test_a_damaged_column_is_found(name: str, damage: str, packed: dict[str, Path], tmp_path: Path) -> None:
    own = tmp_path / "out"
    shutil.copytree(packed["mmap"], own)
    path = own / f"columns/0/{name}.npy"
    data, array = path.read_bytes(), np.load(path)
    if damage == "missing":
        path.unlink()
    elif damage == "other":
        np.save(path, np.linspace(0.5, 9, len(array)))
    elif damage == "short":
        np.save(path, array[:-1])
    elif damage == "changed":
        flip(path, len(data) - 1 - len(data[128:]) // 2)
    else:
        path.write_bytes({"cut": data[:-1], "foreign": b"Z" * len(data), "zip": b"PK\x03\x04".ljust(len(data), b"\0")}[damage])
    try:
        problems = verify(own).problems
    except (DatasetError, DataError) as error:
        problems = [str(error)]
    assert problems
    assert all(str(own) in problem for problem in problems)


@pytest.mark.parametrize("change", ["classes", "fingerprint", "fields", "order"])
def test_a_changed_manifest_is_found(change: str, own: Path) -> None:
    path = own / "manifest.json"
    document = json.loads(path.read_text())
    if change == "classes":
        document["classes"] = ["cat", "eel", "dog"]
    elif change == "fingerprint":
        document["fingerprint"] = "sha256:" + "0" * 64
    elif change == "fields":
        document["fields"]["image"]["options"]["background"] = [0, 0, 0]
    else:
        document["fields"] = dict(reversed(document["fields"].items()))
    path.write_text(json.dumps(document))
    problems = verify(own).problems
    assert any("fingerprint" in problem for problem in problems)


def test_a_folder_that_is_no_dataset_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(DatasetError, match="got nothing"):
        verify(tmp_path / "missing")


def test_a_list_of_skipped_samples_that_is_gone_or_changed_is_found(own_photos: Path, tmp_path: Path) -> None:
    next(own_photos.rglob("*.jpg")).write_bytes(b"")
    pack(own_photos, tmp_path / "out", to="tar", on_error="skip")
    rejects = tmp_path / "out/rejects.jsonl"
    assert verify(tmp_path / "out").problems == []
    flip(rejects, 5)
    assert any("checksum" in problem and str(rejects) in problem for problem in verify(tmp_path / "out").problems)
    rejects.unlink()
    assert verify(tmp_path / "out").problems == [f"expected the list of samples that were skipped, got nothing, at {rejects}"]


def test_a_damaged_orientation_is_a_problem_and_no_crash(own_photos: Path, tmp_path: Path) -> None:
    pack(own_photos, tmp_path / "out", to="mmap")
    path = tmp_path / "out/columns/0/image.orientation.npy"
    flip(path, path.stat().st_size - 1)
    problems = verify(tmp_path / "out").problems
    assert any("checksum" in problem and str(path) in problem for problem in problems)
    assert any("expected an orientation from 1 to 8, got " in problem for problem in problems)


def test_verify_writes_nothing(own: Path, contents: Callable[[Path], dict[str, bytes]]) -> None:
    before = contents(own)
    verify(own, workers=2)
    assert contents(own) == before


@pytest.mark.parametrize("damage", ["changed", "missing"])
def test_a_damaged_manifest_of_a_generation_is_found(damage: str, own: Path) -> None:
    """Workers that are spawned read it, and not manifest.json."""
    path = own / "manifests/0.json"
    if damage == "missing":
        path.unlink()
    else:
        path.write_bytes(path.read_bytes().replace(b'"generation": 0', b'"generation": 1', 1))
    assert any(str(path) in problem for problem in verify(own).problems)

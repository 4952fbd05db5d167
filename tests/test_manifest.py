"""Manifest, columns and table of shards: what is read, refused, carried along and joined."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fastdata import manifest as manifests
from fastdata.dataset import Dataset
from fastdata.errors import DatasetError, FastdataError, ShardError
from fastdata.manifest import Columns, ShardTable, checked_name
from fastdata.packing import pack
from fastdata.packing.verify import verify
from fastdata.summary import info


@pytest.fixture(scope="module")
def packed(photos: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The photos in tar shards, read only."""
    out = tmp_path_factory.mktemp("manifest") / "out"
    pack(photos, out, to="tar", workers=1, shard_size=9000)
    return out


@pytest.fixture
def own(packed: Path, tmp_path: Path) -> Path:
    """A copy, to change."""
    shutil.copytree(packed, tmp_path / "out")
    return tmp_path / "out"


def change(root: Path, edit: Callable[[dict[str, Any]], Any]) -> None:
    """Edit manifest.json, and the copy of its generation."""
    document = json.loads((root / "manifest.json").read_text())
    edit(document)
    for path in (root / "manifest.json", root / f"manifests/{document['generation']}.json"):
        path.write_text(json.dumps(document))


def test_the_manifest_is_a_copy_of_its_generation_and_names_no_time_host_or_path(packed: Path, photos: Path) -> None:
    text = (packed / "manifest.json").read_text()
    assert text == (packed / "manifests/0.json").read_text()
    document = json.loads(text)
    assert list(document)[:4] == ["fastdata", "generation", "num_samples", "store"]
    assert document["fastdata"] == 1
    assert str(photos) not in text
    assert str(packed) not in text
    assert document["options"].keys().isdisjoint({"workers", "on_error", "overwrite", "progress"})


def test_saving_what_was_loaded_gives_the_same_bytes(own: Path) -> None:
    before = (own / "manifest.json").read_bytes()
    manifests.save(own, manifests.load(own))
    assert (own / "manifest.json").read_bytes() == before


def test_a_newer_version_is_refused_with_the_cure(own: Path) -> None:
    change(own, lambda document: document.update(fastdata=2))
    with pytest.raises(DatasetError, match=r"expected a manifest of version 1, got 2, at .*manifest\.json: update fastdata"):
        Dataset(own)


@pytest.mark.parametrize("version", [0, -1, "1", 1.5, None, [1]])
def test_what_is_no_version_is_refused(version: Any, own: Path) -> None:
    change(own, lambda document: document.update(fastdata=version))
    with pytest.raises(DatasetError, match="version 1"):
        Dataset(own)


def test_unknown_keys_are_carried_along_and_unknown_columns_ignored(own: Path) -> None:
    change(own, lambda document: document.update(splits={"train": "splits/0/train.npy"}, future=[1, {"a": None}]))
    change(own, lambda document: document["columns"].update({"image.sharpness": {"dtype": "float32", "shape": [], "unit": "px"}}))
    np.save(own / "columns/0/image.sharpness.npy", np.arange(24, dtype=np.float32))
    np.save(own / "columns/0/nobody_knows.npy", np.arange(3))
    loaded = manifests.load(own)
    assert loaded.unknown == {"splits": {"train": "splits/0/train.npy"}, "future": [1, {"a": None}]}
    before = json.loads((own / "manifest.json").read_text())
    manifests.save(own, loaded)
    assert json.loads((own / "manifest.json").read_text()) == before
    dataset = Dataset(own)
    assert dataset[0].keys() == {"image", "label"}
    assert dataset.column("image.sharpness").tolist() == list(range(24))
    assert verify(own).problems == []


DAMAGES: dict[str, Callable[[dict[str, Any]], Any]] = {
    "a store that would be a module": lambda d: d.update(store="../../evil"),
    "an unknown codec": lambda d: d["fields"]["image"].update(codec="pickle"),
    "a reserved field name": lambda d: d["fields"].update(key=d["fields"]["image"]),
    "a field name that climbs": lambda d: d["fields"].update({"../image": d["fields"]["image"]}),
    "a field name with a dot": lambda d: d["fields"].update({"a.b": d["fields"]["image"]}),
    "a column name that climbs": lambda d: d["columns"].update({"../../secret": {"dtype": "int64", "shape": []}}),
    "a dtype of objects": lambda d: d["fields"]["image"].update(dtype="O"),
    "no dtype": lambda d: d["fields"]["image"].update(dtype="nonsense"),
    "a wrong count": lambda d: d.update(num_samples=25),
    "a count that is no number": lambda d: d.update(num_samples="many"),
    "a segment that climbs": lambda d: d["segments"][0].update(generation="../../.."),
    "no segments": lambda d: d.pop("segments"),
    "no fields": lambda d: d.pop("fields"),
    "fields that are a list": lambda d: d.update(fields=[1]),
    "columns that are a list": lambda d: d.update(columns=["label"]),
    "a column without dtype": lambda d: d["columns"].update(label={}),
    "a column that is no object": lambda d: d["columns"].update(label=5),
    "a field without its columns": lambda d: d["columns"].pop("image.nbytes"),
    "a label without its column": lambda d: d["columns"].pop("label"),
    "no digests": lambda d: d["columns"].pop("digest"),
    "no keys": lambda d: d["columns"].pop("key"),
    "classes that are a number": lambda d: d.update(classes=3),
    "a negative segment": lambda d: d.update(segments=[{"generation": 0, "num_samples": 25}, {"generation": 1, "num_samples": -1}]),
}


@pytest.mark.parametrize("damage", DAMAGES)
def test_a_manifest_that_does_not_hold_together_is_refused(damage: str, own: Path) -> None:
    change(own, DAMAGES[damage])
    with pytest.raises(DatasetError, match=r"manifest\.json"):
        Dataset(own)


@pytest.mark.parametrize("text", [b"", b"{", b"[]", b"null", b"\xff\xfe", b"1", b'{"fastdata": 1}', b"[" * 200_000, b'{"fastdata": 1, "a"'])
def test_damaged_json_is_one_sentence(text: bytes, own: Path) -> None:
    (own / "manifest.json").write_bytes(text)
    with pytest.raises(DatasetError, match="expected a manifest") as caught:
        Dataset(own)
    assert str(own / "manifest.json") in str(caught.value)
    assert len(str(caught.value)) < 500


def test_what_is_no_dataset_is_told_apart(own: Path, tmp_path: Path) -> None:
    """Case 54: an unfinished pack is called incomplete, under its own name and under its target's."""
    with pytest.raises(DatasetError, match="got nothing"):
        Dataset(tmp_path / "missing")
    (tmp_path / "file").write_text("")
    with pytest.raises(DatasetError, match=r"got a file|Not a directory"):
        Dataset(tmp_path / "file")
    (tmp_path / "folder").mkdir()
    with pytest.raises(DatasetError, match="a folder without one"):
        Dataset(tmp_path / "folder")
    own.rename(tmp_path / "late.partial")
    for name in ("late", "late.partial"):
        with pytest.raises(DatasetError, match=r"incomplete.*pack it again"):
            Dataset(tmp_path / name)


@pytest.mark.parametrize("name", ["../outside.tar", "/etc/passwd", "shards/../../x", "", "a\\b", ".."])
def test_the_path_of_a_shard_cannot_leave_the_dataset(name: str, own: Path) -> None:
    with pytest.raises(ShardError, match="inside of the dataset"):
        checked_name(name)
    table = np.load(own / "columns/0/shards.npy")
    wide = table.astype([(n, "S40" if n == "name" else table.dtype[n]) for n in table.dtype.names])
    wide["name"][1] = name.encode()
    np.save(own / "columns/0/shards.npy", wide)
    dataset = Dataset(own)
    assert dataset[0]
    with pytest.raises(ShardError if name else FastdataError, match="inside of the dataset"):
        dataset[int(table["first"][1])]


@pytest.mark.parametrize("damage", ["fields", "gap", "bytes", "empty"])
def test_a_damaged_table_of_shards_is_one_sentence(damage: str, own: Path) -> None:
    path = own / "columns/0/shards.npy"
    table = np.load(path)
    if damage == "fields":
        table = table[["shard", "first", "num_samples"]]
    elif damage == "gap":
        table["first"][1] += 1
    elif damage == "bytes":
        table["name"][0] = b"\xff\xfe"
    else:
        table = table[:0]
    np.save(path, table)
    for work in (lambda: Dataset(own)[0], lambda: info(own), lambda: verify(own)):
        if damage == "bytes" and work is not None:
            continue
        with pytest.raises(FastdataError):
            work()
    if damage == "bytes":
        with pytest.raises(FastdataError):
            Dataset(own)[0]


def append(root: Path, other: Path) -> None:
    """Add the samples of a dataset as a second segment and generation, by hand."""
    first, second = manifests.load(root), manifests.load(other)
    table = np.load(other / "columns/0/shards.npy")
    number = 1 + int(np.load(root / "columns/0/shards.npy")["shard"].max())
    shutil.copytree(other / "columns/0", root / "columns/1")
    names = []
    for row in table:
        name = f"shards/{int(row['shard']) + number:05d}.tar"
        shutil.copy(other / row["name"].decode(), root / name)
        names.append(name.encode())
    table["shard"] += number
    table["first"] += first.num_samples
    table["name"] = names
    np.save(root / "columns/1/shards.npy", table)
    digests = [np.load(path / "columns/0/digest.npy").tobytes() for path in (root, other)]
    total = first.num_samples + second.num_samples
    document = first.to_json()
    document |= {
        "generation": 1,
        "num_samples": total,
        "segments": [{"generation": 0, "num_samples": first.num_samples}, {"generation": 1, "num_samples": second.num_samples}],
        "fingerprint": manifests.fingerprint(first.fields, first.classes, digests),
    }
    for path in (root / "manifest.json", root / "manifests/1.json"):
        path.write_text(json.dumps(document))


@pytest.fixture
def grown(own: Path, make_photos: Callable[..., Path], tmp_path: Path) -> tuple[Path, Path]:
    """A dataset of two segments, and the second one alone."""
    photos = make_photos(tmp_path / "more", num=10, seed=9)
    pack(photos, tmp_path / "second", to="tar", workers=1, shard_size=9000)
    append(own, tmp_path / "second")
    return own, tmp_path / "second"


def test_two_segments_read_as_one_dataset(grown: tuple[Path, Path], packed: Path) -> None:
    dataset, parts = Dataset(grown[0], fields=("image", "label", "key")), [Dataset(packed), Dataset(grown[1])]
    assert len(dataset) == 34
    samples = [part[i] for part in parts for i in range(len(part))]
    keys = [key for part in parts for key in part.column("key")]
    for i in (0, 23, 24, 33, 5, 30):
        sample = dataset[i]
        assert np.array_equal(sample["image"], samples[i]["image"])
        assert (sample["label"], sample["key"]) == (samples[i]["label"], keys[i])
    assert list(dataset.column("key")) == keys
    assert dataset.column("label").tolist() == [sample["label"] for sample in samples]
    mixed = dataset.__getitems__([30, 2, 24, 23])
    assert [sample["key"] for sample in mixed] == [keys[i] for i in (30, 2, 24, 23)]
    described = info(grown[0])
    assert described["num_samples"] == 34
    assert described["fields"]["image"]["total_nbytes"] == sum(info(p)["fields"]["image"]["total_nbytes"] for p in (packed, grown[1]))
    assert verify(grown[0]).problems == []


def test_an_older_generation_stays_readable(grown: tuple[Path, Path], packed: Path) -> None:
    manifest = manifests.load(grown[0], 0)
    assert manifest.num_samples == 24
    assert manifest.fingerprint == manifests.load(packed).fingerprint
    columns, table = Columns(grown[0], manifest), ShardTable(grown[0], manifest)
    assert len(columns["label"]) == 24
    assert table.num_samples.sum() == 24
    with pytest.raises(DatasetError, match=r"manifests/7\.json"):
        manifests.load(grown[0], 7)


def test_columns_of_one_segment_are_mapped_and_read_only(packed: Path) -> None:
    columns = Columns(packed, manifests.load(packed))
    labels = columns["label"]
    assert isinstance(labels, np.memmap)
    with pytest.raises(ValueError, match="read-only"):
        labels[0] = 1
    with pytest.raises(KeyError, match="expected one of the columns"):
        columns["nothing"]


def test_info_of_a_damaged_label_column_is_one_sentence(own: Path) -> None:
    labels = np.load(own / "columns/0/label.npy")
    for wrong in (-1, 3, 10**6):
        labels[4] = wrong
        np.save(own / "columns/0/label.npy", labels)
        with pytest.raises(FastdataError, match="label"):
            info(own)


def test_info_leaves_missing_values_out_of_the_distributions(tmp_path: Path, photos: Path) -> None:
    picture = next(photos.glob("*/*")).read_bytes()
    pack([{"image": picture, "a": [1, 2, 3]}, {"image": None, "a": None}], tmp_path / "out", to="tar", workers=1)
    fields = info(tmp_path / "out")["fields"]
    assert fields["image"]["missing"] == fields["a"]["missing"] == 1
    assert fields["image"]["width"]["min"] == fields["image"]["width"]["max"] > 0
    assert fields["a"]["length"]["min"] == 3
    assert fields["image"]["encodings"] == {"jpeg": 1}


def test_digests_tell_names_shapes_encodings_and_missing_values_apart() -> None:
    def digest(*values: Any) -> bytes:
        return manifests.digest(values)

    different = [
        digest(("a", "bytes", (), b"12")),
        digest(("b", "bytes", (), b"12")),
        digest(("a", "text", (), b"12")),
        digest(("a", "bytes", (2,), b"12")),
        digest(("a", "bytes", (), b"")),
        digest(("a", "bytes", (), None)),
        digest(("a", "bytes", (), b"1"), ("b", "bytes", (), b"2")),
        digest(("b", "bytes", (), b"2"), ("a", "bytes", (), b"1")),
        digest(),
    ]
    assert len(set(different)) == len(different)
    assert all(len(value) == 16 for value in different)
    assert digest(("a", "x", (2,), np.array([1, 2], "<i4"))) == digest(("a", "x", (2,), np.array([1, 2], "<i4").tobytes()))

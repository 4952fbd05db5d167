"""`pack()`, end to end: what comes out, what is refused, and what is left behind when it does not come to its end."""

from __future__ import annotations

import io
import json
import os
import shutil
import signal
import subprocess
import sys
import textwrap
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from fastdata import registry
from fastdata.dataset import Dataset
from fastdata.errors import ArgumentError, DataError, DatasetError, FastdataError, ShardError
from fastdata.packing import pack
from fastdata.packing.options import parse_nbytes
from fastdata.packing.verify import verify
from fastdata.stores.base import Shards
from fastdata.types import Field

STORES = registry.names("fastdata.stores")
Contents = Callable[[Path], dict[str, bytes]]


def listed(photos: Path) -> list[Path]:
    """The order of a folder of class folders: by the bytes of the class, then of the path."""
    return sorted(photos.glob("*/*"), key=lambda path: os.fsencode(str(path)))


def pixels(path: Path) -> Any:
    return np.asarray(Image.open(path).convert("RGB"))


def payloads(dataset: Dataset, name: str) -> list[bytes]:
    """The bytes of a field as the store has them."""
    manifest = dataset.manifest
    fields = tuple(f for f in manifest.fields if f.codec != "scalar")
    shards: Shards = dataset._shards
    field: Field = next(f for f in fields if f.name == name)
    return [np.asarray(value).tobytes() for value in shards.read(field, np.arange(len(dataset)))]


def gone(target: Path) -> None:
    """A pack that did not end has left nothing that opens, and nothing that lies about."""
    with pytest.raises(DatasetError):
        Dataset(target)
    assert [p.name for p in target.parent.iterdir() if target.name in p.name] == []


# --- what comes out ---


@pytest.mark.parametrize("store", STORES)
def test_every_store_gives_the_pixels_and_labels_that_pillow_decodes(store: str, photos: Path, tmp_path: Path) -> None:
    packed = pack(photos, tmp_path / "out", to=store, shard_size=10_000, workers=1)
    dataset, files = Dataset(tmp_path / "out"), listed(photos)
    assert packed.num_samples == len(dataset) == len(files)
    assert packed.num_shards > 2
    assert dataset.classes == ("cat", "dog", "eel")
    for i, path in enumerate(files):
        sample = dataset[i]
        assert np.array_equal(sample["image"], pixels(path))
        assert dataset.classes[sample["label"]] == path.parent.name
    assert list(dataset.column("key")) == [str(path.relative_to(photos)) for path in files]


@pytest.mark.parametrize("store", STORES)
def test_a_picture_that_needs_no_resize_is_the_file_byte_for_byte(store: str, photos: Path, tmp_path: Path) -> None:
    """Case 17. `--quality` and a limit that no picture exceeds change nothing."""
    pack(photos, tmp_path / "plain", to=store, workers=1)
    pack(photos, tmp_path / "loose", to=store, workers=1, resize_long=200, quality=30)
    files = [path.read_bytes() for path in listed(photos)]
    assert payloads(Dataset(tmp_path / "plain"), "image") == files
    assert payloads(Dataset(tmp_path / "loose"), "image") == files


@pytest.mark.parametrize("store", STORES)
def test_resized_pictures_have_the_size_that_was_asked(store: str, photos: Path, tmp_path: Path) -> None:
    options: dict[str, Any] = {"to": store, "workers": 1}
    pack(photos, tmp_path / "short", resize_short=40, **options)
    pack(photos, tmp_path / "long", resize_long=40, **options)
    pack(photos, tmp_path / "exact", resize="32x48", image="raw", **options)
    short, long, exact = (Dataset(tmp_path / name) for name in ("short", "long", "exact"))
    for i, path in enumerate(listed(photos)):
        height, width = pixels(path).shape[:2]
        scale = min(height, width) / 40
        assert short[i]["image"].shape[:2] == pytest.approx((height / scale, width / scale), abs=0.51)
        scale = max(height, width) / 40
        assert long[i]["image"].shape[:2] == pytest.approx((height / scale, width / scale), abs=0.51)
        assert exact[i]["image"].shape == (32, 48, 3)
        reference = np.asarray(Image.open(path).convert("RGB").resize((48, 32), Image.Resampling.BILINEAR))
        assert np.abs(exact[i]["image"].astype(int) - reference).mean() < 4
    assert exact.manifest.fields[0].dense
    assert short.column("image.height").tolist() == [short[i]["image"].shape[0] for i in range(len(short))]


def test_the_fingerprint_tells_content_and_order_and_nothing_else(own_photos: Path, tmp_path: Path) -> None:
    first = {store: pack(own_photos, tmp_path / store, to=store, workers=1).fingerprint for store in STORES}
    assert len(set(first.values())) == 1
    fingerprint = first["tar"]
    assert pack(own_photos, tmp_path / "small", to="tar", workers=2, shard_size=5000).fingerprint == fingerprint
    assert pack(own_photos, tmp_path / "shuffled", to="tar", workers=1, shuffle=1).fingerprint != fingerprint
    assert pack(own_photos, tmp_path / "resized", to="tar", workers=1, resize_long=30).fingerprint != fingerprint
    moved = next((own_photos / "cat").iterdir())
    moved.rename(own_photos / "dog" / moved.name)
    assert pack(own_photos, tmp_path / "relabelled", to="tar", workers=1).fingerprint != fingerprint
    (own_photos / "dog" / moved.name).rename(moved)
    (own_photos / "cat").rename(own_photos / "zebra")
    assert pack(own_photos, tmp_path / "renamed", to="tar", workers=1).fingerprint != fingerprint


@pytest.mark.parametrize("store", STORES)
@pytest.mark.parametrize("shuffle", [None, 7])
def test_one_two_and_three_workers_write_the_same_bytes(
    store: str, shuffle: int | None, photos: Path, tmp_path: Path, contents: Contents
) -> None:
    """Case 59: every file of the folder, manifest and columns included."""
    found = []
    for workers in (1, 2, 3):
        pack(photos, tmp_path / str(workers) / "out", to=store, workers=workers, shard_size=9000, shuffle=shuffle, on_error="skip")
        found.append(contents(tmp_path / str(workers)))
    assert found[0] == found[1] == found[2]
    assert len([name for name in found[0] if name.startswith("out/shards/")]) > 3


@pytest.mark.parametrize("store", STORES)
def test_text_comes_back_as_it_was(store: str, texts: Path, tmp_path: Path) -> None:
    pack(texts, tmp_path / "out", to=store, workers=2, shard_size=2000)
    dataset = Dataset(tmp_path / "out")
    files = sorted(texts.rglob("*.txt"), key=lambda path: os.fsencode(str(path.relative_to(texts))))
    assert [dataset[i]["text"] for i in range(len(dataset))] == [path.read_text(encoding="utf-8") for path in files]


def test_shuffling_is_a_seeded_permutation(photos: Path, tmp_path: Path) -> None:
    def keys(name: str, seed: int | None) -> list[str]:
        pack(photos, tmp_path / name, to="mmap", workers=1, shuffle=seed)
        return list(Dataset(tmp_path / name).column("key"))

    plain, one, again, other = keys("a", None), keys("b", 1), keys("c", 1), keys("d", 2)
    assert one == again
    assert plain != one != other != plain
    assert sorted(one) == sorted(other) == sorted(plain)


def test_shuffled_samples_keep_their_labels(photos: Path, tmp_path: Path) -> None:
    pack(photos, tmp_path / "out", to="tar", workers=1, shuffle=3)
    dataset = Dataset(tmp_path / "out", fields=("label", "key"))
    assert dataset.classes
    for i in range(len(dataset)):
        assert dataset[i]["key"].startswith(dataset.classes[dataset[i]["label"]])


def test_fewer_samples_than_workers_is_no_trouble(make_photos: Callable[..., Path], tmp_path: Path) -> None:
    """Case 36: at least one shard, none of them empty."""
    photos = make_photos(tmp_path / "photos", num=2)
    packed = pack(photos, tmp_path / "out", to="tar", workers=8, shard_size=1)
    assert (packed.num_samples, packed.num_shards) == (2, 2)
    assert verify(tmp_path / "out").problems == []


def test_a_picture_of_another_format_than_its_name_is_packed_by_its_content(own_photos: Path, tmp_path: Path) -> None:
    """Case 11: the name in the tar follows the bytes."""
    liar = listed(own_photos)[0]
    shown = pixels(liar)
    Image.fromarray(shown).save(liar, format="PNG")
    pack(own_photos, tmp_path / "out", to="tar", workers=1)
    dataset = Dataset(tmp_path / "out", fields=("image", "key"))
    assert np.array_equal(dataset[0]["image"], shown)
    assert dataset[0]["key"] == str(liar.relative_to(own_photos))
    assert dataset.column("image.encoding")[0] == "png"
    listing = subprocess.run(["tar", "tf", tmp_path / "out/shards/00000.tar"], capture_output=True, text=True, check=True).stdout.split()
    assert listing[0] == "00000-000000.png"
    assert listing[2] == "00000-000001.jpg"


def test_names_with_odd_characters_come_back_as_keys(own_photos: Path, tmp_path: Path) -> None:
    """Cases 19, 20, 29: dots, spaces, newlines, other alphabets, bytes that are no UTF-8, also in the name of a class."""
    data = listed(own_photos)[0].read_bytes()
    names = [b"v1.0/a.b.jpg", b"v1.0/a.c.jpg", "東京/ü ß\n.jpg".encode(), b"\xff\xfe/\xe9.jpg"]
    for name in names:
        path = os.path.join(os.fsencode(own_photos), name)
        os.makedirs(os.path.dirname(path), exist_ok=True)
        with open(path, "wb") as file:
            file.write(data)
    for store in ("tar", "lmdb"):
        pack(own_photos, tmp_path / store, to=store, workers=2)
        dataset = Dataset(tmp_path / store, fields=("key", "label"))
        keys = [os.fsencode(key) for key in dataset.column("key")]
        assert set(names) <= set(keys)
        assert len(keys) == 28
        assert dataset.classes is not None
        assert all(os.fsencode(dataset.classes[dataset[i]["label"]]) == keys[i].split(b"/")[0] for i in range(28))
        assert verify(tmp_path / store).problems == []


# --- bad samples ---


def spoil(photos: Path) -> tuple[Path, Path]:
    """Cut one photo in the middle of its pixels and empty another."""
    cut, empty = listed(photos)[5], listed(photos)[11]
    cut.write_bytes(cut.read_bytes()[:-300])
    empty.write_bytes(b"")
    return cut, empty


@pytest.mark.parametrize("workers", [1, 2])
@pytest.mark.parametrize("store", STORES)
def test_a_truncated_jpeg_stops_the_pack_and_is_named(store: str, workers: int, own_photos: Path, tmp_path: Path) -> None:
    """Cases 1, 2: found by decoding its pixels, since its header is whole."""
    cut = spoil(own_photos)[0]
    with Image.open(cut) as image:
        assert min(image.size) >= 50
    with pytest.raises(DataError, match="JPEG") as caught:
        pack(own_photos, tmp_path / "out", to=store, workers=workers)
    assert str(cut) in str(caught.value)
    assert "'image'" in str(caught.value)
    gone(tmp_path / "out")


def test_an_empty_file_stops_the_pack_and_is_named(own_photos: Path, tmp_path: Path) -> None:
    """Case 15."""
    cut, empty = spoil(own_photos)
    cut.unlink()
    with pytest.raises(DataError, match="empty file") as caught:
        pack(own_photos, tmp_path / "out", to="tar")
    assert str(empty) in str(caught.value)
    gone(tmp_path / "out")


@pytest.mark.parametrize("store", STORES)
def test_bad_samples_are_skipped_when_asked_and_then_listed(store: str, own_photos: Path, tmp_path: Path, contents: Contents) -> None:
    """Cases 1, 15: path, size and reason; the others stay in their shards, whatever the number of workers."""
    cut, empty = spoil(own_photos)
    good = [path for path in listed(own_photos) if path not in (cut, empty)]
    packed = pack(own_photos, tmp_path / "out", to=store, on_error="skip", workers=2, shard_size=9000)
    assert (packed.num_samples, packed.rejected) == (22, 2)
    first, second = map(json.loads, (tmp_path / "out/rejects.jsonl").read_text().splitlines())
    assert first["source"] == str(cut)
    assert first["key"] == str(cut.relative_to(own_photos))
    assert first["bytes"] == cut.stat().st_size
    assert "JPEG" in first["reason"]
    assert (second["source"], second["bytes"]) == (str(empty), 0)
    assert "empty file" in second["reason"]
    dataset = Dataset(tmp_path / "out")
    assert len(dataset) == 22
    assert all(np.array_equal(dataset[i]["image"], pixels(path)) for i, path in enumerate(good))
    assert verify(tmp_path / "out").problems == []
    pack(own_photos, tmp_path / "alone/out", to=store, on_error="skip", workers=1, shard_size=9000)
    assert contents(tmp_path / "alone/out") == contents(tmp_path / "out")


def test_a_shard_that_lost_all_its_samples_is_not_left_empty(own_photos: Path, tmp_path: Path) -> None:
    """Case 36, with rejects: shard 5 held the bad photo alone."""
    spoil(own_photos)
    packed = pack(own_photos, tmp_path / "out", to="mmap", on_error="skip", workers=2, shard_size=1)
    assert (packed.num_samples, packed.num_shards, packed.rejected) == (22, 22, 2)
    assert not (tmp_path / "out/shards/00005").exists()
    assert (tmp_path / "out/shards/00006").is_dir()
    assert Dataset(tmp_path / "out", fields=("key",))[5]["key"] == str(listed(own_photos)[6].relative_to(own_photos))


@pytest.mark.parametrize("workers", [1, 2])
def test_a_source_without_one_good_sample_is_a_failure(workers: int, own_photos: Path, tmp_path: Path) -> None:
    """Case 18: never success with zero samples."""
    for path in listed(own_photos):
        path.write_bytes(b"\xff\xd8\xff nothing")
    with pytest.raises(DataError, match=r"at least one good sample, got none.*all 24 were rejected"):
        pack(own_photos, tmp_path / "out", to="lmdb", on_error="skip", workers=workers)
    gone(tmp_path / "out")


# --- what is there already ---


def test_the_same_arguments_again_do_nothing(photos: Path, tmp_path: Path, contents: Contents) -> None:
    first = pack(photos, tmp_path / "out", to="tar", workers=1, resize_long=64)
    before = {path: path.stat().st_mtime_ns for path in (tmp_path / "out").rglob("*")}
    again = pack(photos, tmp_path / "out", to="tar", workers=3, resize_long=64, on_error="skip", overwrite=False)
    assert again.already
    assert not first.already
    assert (again.num_samples, again.num_shards, again.nbytes) == (first.num_samples, first.num_shards, first.nbytes)
    assert (again.fingerprint, again.classes) == (first.fingerprint, first.classes)
    assert before == {path: path.stat().st_mtime_ns for path in (tmp_path / "out").rglob("*")}


@pytest.mark.parametrize(
    ("option", "there", "asked"),
    [
        ("to", "'tar'", "lmdb"),
        ("shuffle", "None", 3),
        ("quality", "None", 80),
        ("shard_size", "1000000", 12345),
        ("image", "'keep'", "png"),
        ("resize_short", "None", 32),
        ("background", "[255, 255, 255]", "#000000"),
    ],
)
def test_other_arguments_are_refused_and_say_what_differs(
    option: str, there: str, asked: Any, photos: Path, tmp_path: Path, contents: Contents
) -> None:
    """Case 61."""
    arguments: dict[str, Any] = {"to": "tar", "workers": 1}
    pack(photos, tmp_path / "out", **arguments)
    before = contents(tmp_path)
    with pytest.raises(DatasetError, match="--overwrite replaces it") as caught:
        pack(photos, tmp_path / "out", **{**arguments, option: asked})
    name = option.removesuffix("_short")
    assert f"{name} (there {there}, asked" in str(caught.value)
    assert contents(tmp_path) == before


def test_another_source_is_refused(own_photos: Path, tmp_path: Path) -> None:
    pack(own_photos, tmp_path / "out", to="tar", workers=1)
    path = listed(own_photos)[0]
    path.write_bytes(path.read_bytes() + b"\0")
    with pytest.raises(DatasetError, match="source"):
        pack(own_photos, tmp_path / "out", to="tar", workers=1)


def test_overwriting_leaves_nothing_of_the_old_dataset(photos: Path, tmp_path: Path, contents: Contents) -> None:
    """Case 61: old shards are gone."""
    pack(photos, tmp_path / "fresh/out", to="mmap", workers=1)
    pack(photos, tmp_path / "used/out", to="tar", workers=1, shard_size=5000)
    assert not pack(photos, tmp_path / "used/out", to="mmap", workers=1, overwrite=True).already
    assert contents(tmp_path / "fresh") == contents(tmp_path / "used")


def test_overwriting_that_fails_leaves_the_old_dataset(own_photos: Path, tmp_path: Path, contents: Contents) -> None:
    pack(own_photos, tmp_path / "data/out", to="tar", workers=1)
    before = contents(tmp_path / "data")
    spoil(own_photos)
    with pytest.raises(DataError):
        pack(own_photos, tmp_path / "data/out", to="lmdb", workers=2, overwrite=True)
    assert contents(tmp_path / "data") == before
    assert len(Dataset(tmp_path / "data/out")) == 24


@pytest.mark.parametrize("overwrite", [False, True])
def test_a_target_that_is_no_dataset_is_not_touched(overwrite: bool, photos: Path, tmp_path: Path, contents: Contents) -> None:
    (tmp_path / "folder").mkdir()
    (tmp_path / "folder/thesis.txt").write_text("years of work")
    (tmp_path / "file").write_text("more work")
    before = contents(tmp_path)
    for name in ("folder", "file"):
        with pytest.raises(DatasetError, match="not touched") as caught:
            pack(photos, tmp_path / name, to="tar", overwrite=overwrite)
        assert str(tmp_path / name) in str(caught.value)
    assert contents(tmp_path) == before


def test_an_empty_folder_may_be_the_target(photos: Path, tmp_path: Path) -> None:
    (tmp_path / "out").mkdir()
    assert pack(photos, tmp_path / "out", to="tar", workers=1).num_samples == 24
    assert len(Dataset(tmp_path / "out")) == 24


# --- what cannot be meant ---


def test_mistakes_are_told_before_any_work(photos: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    (tmp_path / "empty").mkdir()

    def refused(match: str, source: Any = photos, target: Path = out, error: type[Exception] = ArgumentError, **options: Any) -> None:
        with pytest.raises(error, match=match):
            pack(source, target, **{"to": "tar", **options})

    refused("got nothing, at .*/missing", tmp_path / "missing")
    refused("nothing that I know, at .*/empty", tmp_path / "empty")
    refused(r"expected one of \['hdf5', 'lmdb', 'mmap', 'tar'\], got 'lmbd', at --to", to="lmbd")
    refused("at --image", image="gif")
    refused("at --on-error", on_error="ignore")
    refused("at least 1, got 0, at --workers", workers=0)
    refused("at --workers", workers=-2)
    refused("1 to 100, got 101, at --quality", quality=101)
    refused("at --quality", quality=0)
    refused("one way to resize, got --resize-short and --resize", resize_short=3, resize="4x4")
    refused("HEIGHTxWIDTH such as 256x256, got '256', at --resize", resize="256")
    refused("1 to 65535 pixels", resize="0x5")
    refused("1 to 65535 pixels", resize_short=0)
    refused("a size such as 256MB", shard_size="lots")
    refused("a size such as 256MB", shard_size=0)
    refused("a colour such as #ffffff", background="white")
    refused("at --source", source_kind="photos")
    refused("name without .partial", target=tmp_path / "out.partial")
    assert sorted(p.name for p in tmp_path.iterdir()) == ["empty"]


def test_a_target_inside_the_source_is_refused(own_photos: Path, tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to(own_photos)
    for target in (own_photos / "out", own_photos / "cat/out", own_photos, tmp_path / "link/out"):
        with pytest.raises(ArgumentError, match="outside of the source"):
            pack(own_photos, target, to="tar")
    assert len(listed(own_photos)) == 24
    assert sorted(p.name for p in own_photos.iterdir()) == ["cat", "dog", "eel"]


def test_a_target_below_a_file_is_refused(photos: Path, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(FastdataError, match="file"):
        pack(photos, tmp_path / "file/out", to="tar")


@pytest.mark.parametrize(
    ("text", "nbytes"), [(1000, 1000), ("1000", 1000), ("256MB", 256_000_000), ("1.5kb", 1500), ("1 GiB", 1 << 30), ("2TB", 2 * 10**12)]
)
def test_sizes_are_read_as_people_write_them(text: int | str, nbytes: int) -> None:
    assert parse_nbytes(text, "here") == nbytes


@pytest.mark.parametrize("text", ["", "MB", "-1", "0", "1e3", "1XB", "1 2", "0.1B"])
def test_what_is_no_size_is_refused(text: str) -> None:
    with pytest.raises(ArgumentError, match="at here"):
        parse_nbytes(text, "here")


def test_shards_are_cut_from_the_sources_own_sizes(photos: Path, tmp_path: Path) -> None:
    """Greedily, in order; the default makes one shard of what is under a megabyte."""
    pack(photos, tmp_path / "out", to="tar", workers=2, shard_size=8000)
    expected, total = [0], 0
    for path in listed(photos):
        size = path.stat().st_size
        if expected[-1] and total + size > 8000:
            expected.append(0)
            total = 0
        expected[-1] += 1
        total += size
    table = np.load(tmp_path / "out/columns/0/shards.npy")
    assert table["num_samples"].tolist() == expected
    assert pack(photos, tmp_path / "one", to="tar", workers=1).num_shards == 1


# --- other sources ---


class Numbers:
    """A map-style dataset of small arrays."""

    def __init__(self, num: int) -> None:
        self.num = num

    def __len__(self) -> int:
        return self.num

    def __getitem__(self, i: int) -> dict[str, Any]:
        if not 0 <= i < self.num:
            raise IndexError(i)
        return {"array": np.arange(i % 4, dtype=np.int32), "value": i / 4, "label": i % 3}


@pytest.mark.parametrize("store", STORES)
def test_iterables_and_map_style_datasets_pack_alike(store: str, tmp_path: Path) -> None:
    source = Numbers(50)
    mapped = pack(source, tmp_path / "mapped", to=store, workers=2)
    streamed = pack((source[i] for i in range(50)), tmp_path / "streamed", to=store, workers=2)
    assert mapped.fingerprint == streamed.fingerprint
    for name in ("mapped", "streamed"):
        dataset = Dataset(tmp_path / name)
        for i in range(50):
            assert np.array_equal(dataset[i]["array"], np.arange(i % 4, dtype=np.int32))
            assert dataset[i]["array"].dtype == np.int32
            assert (dataset[i]["value"], dataset[i]["label"]) == (i / 4, i % 3)


def test_an_iterable_is_cut_into_shards_as_it_comes(tmp_path: Path) -> None:
    packed = pack(iter([{"blob": bytes([i]) * 1000} for i in range(10)]), tmp_path / "out", to="tar", shard_size=2500)
    assert np.load(tmp_path / "out/columns/0/shards.npy")["num_samples"].tolist() == [3, 3, 3, 1]
    assert packed.num_samples == 10
    exact = pack(iter([{"blob": bytes([i]) * 1000} for i in range(10)]), tmp_path / "exact", to="tar", shard_size=5000)
    assert exact.num_shards == 2
    assert verify(tmp_path / "exact").problems == []


def test_an_iterable_cannot_be_shuffled_or_called_already_packed(tmp_path: Path) -> None:
    with pytest.raises(ArgumentError, match="--shuffle"):
        pack(iter([{"a": 1}]), tmp_path / "out", to="tar", shuffle=1)
    gone(tmp_path / "out")
    pack(iter([{"a": 1}]), tmp_path / "out", to="tar")
    with pytest.raises(DatasetError, match="--overwrite"):
        pack(iter([{"a": 1}]), tmp_path / "out", to="tar")


def test_an_iterable_that_breaks_off_leaves_nothing(tmp_path: Path) -> None:
    def broken() -> Iterator[dict[str, int]]:
        yield from ({"a": i} for i in range(2000))
        raise RuntimeError("the network is down")

    with pytest.raises(FastdataError, match=r"sample 2000, got RuntimeError: the network is down"):
        pack(broken(), tmp_path / "out", to="mmap", shard_size=100)
    gone(tmp_path / "out")


@pytest.mark.parametrize("store", STORES)
def test_pictures_of_every_python_kind_mix_in_one_field(store: str, photos: Path, tmp_path: Path) -> None:
    path = listed(photos)[0]
    shown = pixels(path)
    png = io.BytesIO()
    Image.fromarray(shown).save(png, "PNG")
    samples = [{"image": path.read_bytes()}, {"image": shown}, {"image": Image.fromarray(shown)}, {"image": png.getvalue()}]
    pack(samples, tmp_path / "out", to=store, workers=1)
    dataset = Dataset(tmp_path / "out")
    assert all(np.array_equal(dataset[i]["image"], shown) for i in range(4))
    assert list(dataset.column("image.encoding")) == ["jpeg", "raw", "png", "png"]


@pytest.mark.parametrize("store", STORES)
def test_missing_values_of_csv_and_jsonl_stay_missing(store: str, photos: Path, tmp_path: Path) -> None:
    for name in ("a.jpg", "b.jpg"):
        shutil.copy(listed(photos)[0], tmp_path / name)
    (tmp_path / "t.csv").write_text("path,width,note,label\na.jpg,3,x,cat\n,,,dog\nb.jpg,5,,\n")
    pack(tmp_path / "t.csv", tmp_path / "csv", to=store, workers=2)
    dataset = Dataset(tmp_path / "csv")
    assert dataset.column("image.nbytes").tolist()[1] == -1
    assert dataset.column("width.valid").tolist() == [True, False, True]
    assert dataset.column("note.valid").tolist() == [True, False, False]
    assert dataset.column("label.valid").tolist() == [True, True, False]
    assert dataset[1]["image"] is None
    assert not dataset[1]["image.valid"]
    assert np.array_equal(dataset[2]["image"], pixels(tmp_path / "b.jpg"))
    assert verify(tmp_path / "csv").problems == []

    rows = [{"tokens": [1, 2, 3], "text": "long"}, {"tokens": None}, {"text": ""}, {"tokens": [], "text": None}]
    (tmp_path / "t.jsonl").write_text("\n".join(map(json.dumps, rows)))
    pack(tmp_path / "t.jsonl", tmp_path / "jsonl", to=store, workers=2)
    dataset = Dataset(tmp_path / "jsonl")
    assert dataset.column("tokens.nbytes").tolist() == [24, -1, -1, 0]
    assert dataset.column("text.nbytes").tolist() == [4, -1, 0, -1]
    assert dataset[0]["tokens"].tolist() == [1, 2, 3]
    assert dataset[3]["tokens"].tolist() == []
    assert dataset[2]["text"] == ""
    assert verify(tmp_path / "jsonl").problems == []


@pytest.mark.parametrize("row", ['{"name": "\\ud800"}', '{"key": "\\ud800", "name": "x"}', '{"text": "\\ud800"}'])
def test_strings_that_no_encoding_holds_are_bad_samples(row: str, tmp_path: Path) -> None:
    """Half of a surrogate pair, which JSON can spell and UTF-8 cannot."""
    good = row.replace("\\ud800", "good")
    (tmp_path / "t.jsonl").write_text(f"{good}\n{row}\n")
    with pytest.raises(DataError, match=r"t\.jsonl:2"):
        pack(tmp_path / "t.jsonl", tmp_path / "out", to="tar", workers=1)
    gone(tmp_path / "out")
    packed = pack(tmp_path / "t.jsonl", tmp_path / "out", to="tar", workers=2, on_error="skip")
    assert (packed.num_samples, packed.rejected) == (1, 1)


def test_a_missing_value_in_a_dense_field_is_refused(tmp_path: Path) -> None:
    np.savez(tmp_path / "t.npz", x=np.zeros((3, 2)))
    pack(tmp_path / "t.npz", tmp_path / "out", to="mmap", workers=1)
    assert Dataset(tmp_path / "out").manifest.fields[0].dense
    samples: list[Any] = [{"image": np.zeros((4, 4, 3), np.uint8)}, {"image": None}]
    with pytest.raises(DataError, match="all have one shape, got none, at field 'image' of sample 1"):
        pack(samples, tmp_path / "raw", to="mmap", image="raw", resize=(4, 4), workers=1)


@pytest.mark.parametrize("store", STORES)
def test_arrays_of_no_rows_keep_their_shape(store: str, tmp_path: Path) -> None:
    samples = [{"boxes": np.full((i % 3, 4), i, np.float32), "one": np.full((i % 2, 1, 2), i, np.int16)} for i in range(6)]
    pack(samples, tmp_path / "out", to=store, workers=1)
    dataset = Dataset(tmp_path / "out")
    for i, sample in enumerate(samples):
        for name, array in sample.items():
            assert dataset[i][name].shape == array.shape
            assert np.array_equal(dataset[i][name], array)
    assert verify(tmp_path / "out").problems == []


@pytest.mark.parametrize("store", STORES)
def test_arrays_with_an_empty_trailing_dimension_come_back_or_are_refused(store: str, tmp_path: Path) -> None:
    try:
        pack([{"a": np.empty((n, 0), np.int32)} for n in (3, 1)], tmp_path / "out", to=store, workers=1)
    except FastdataError:
        return
    dataset = Dataset(tmp_path / "out")
    assert [dataset[i]["a"].shape for i in range(2)] == [(3, 0), (1, 0)]
    assert verify(tmp_path / "out").problems == []


# --- ends that are no good ends ---

SLOW = """
    import os, sys
    from fastdata.packing import pack

    class Slow:
        main = os.getpid()
        def __len__(self):
            return 40
        def __getitem__(self, i):
            if not 0 <= i < 40:
                raise IndexError(i)
            if i == 25 and ready and (os.getpid() != self.main or sys.argv[3] == "1"):
                os.write(ready.pop(), b"x")
                os.read(held, 1)
            return {"blob": bytes([i]) * 5000, "label": i % 3}

    ready, held = [], -1
    source = Slow()
    if len(sys.argv) > 4:
        from fastdata.sources import python
        original = python.Source._probe
        def probe(self):
            original(self)
            ready.append(int(sys.argv[4]))
        python.Source._probe = probe
        held = int(sys.argv[5])
    pack(source, sys.argv[1], to=sys.argv[2], workers=int(sys.argv[3]), shard_size=30000)
"""


@pytest.mark.parametrize("workers", [1, 2])
@pytest.mark.parametrize("store", STORES)
def test_a_kill_in_the_middle_leaves_nothing_that_opens_and_the_next_run_is_as_if_nothing_had_been(
    store: str, workers: int, tmp_path: Path, contents: Contents
) -> None:
    """Case 54: SIGKILL while shard 4 is being written, and straight on with the next run."""
    script = tmp_path / "slow.py"
    script.write_text(textwrap.dedent(SLOW))
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).resolve().parents[2])}
    told, tell = os.pipe()
    held, hold = os.pipe()
    command = [sys.executable, script, tmp_path / "data/out", store, str(workers)]
    killed = subprocess.Popen([*command, str(tell), str(held)], env=environment, pass_fds=(tell, held))
    os.close(tell)
    assert os.read(told, 1) == b"x"
    killed.kill()
    killed.wait()
    with pytest.raises(DatasetError, match="incomplete"):
        Dataset(tmp_path / "data/out")
    with pytest.raises(DatasetError, match="incomplete"):
        Dataset(tmp_path / "data/out.partial")
    subprocess.run(command, env=environment, check=True, timeout=60)
    for descriptor in (told, held, hold):
        os.close(descriptor)
    command[2] = tmp_path / "undisturbed/out"
    subprocess.run(command, env=environment, check=True, timeout=60)
    assert contents(tmp_path / "data") == contents(tmp_path / "undisturbed")
    assert verify(tmp_path / "data/out").problems == []


class Deadly(Numbers):
    """Kills the worker that asks for sample 30."""

    def __init__(self, num: int) -> None:
        super().__init__(num)
        self.main = os.getpid()

    def __getitem__(self, i: int) -> dict[str, Any]:
        if i == 30 and os.getpid() != self.main:
            os.kill(os.getpid(), signal.SIGKILL)
        return super().__getitem__(i)


def test_a_worker_that_is_killed_is_told_of_with_the_sample_before_its_end(tmp_path: Path) -> None:
    with pytest.raises(FastdataError, match=r"death by SIGKILL, at sample 30\b.*fewer --workers"):
        pack(Deadly(60), tmp_path / "out", to="tar", workers=2, shard_size=200)
    with pytest.raises(DatasetError, match="incomplete"):
        Dataset(tmp_path / "out")


def test_two_packs_into_one_folder_do_not_mix(tmp_path: Path) -> None:
    entered, leave = threading.Event(), threading.Event()

    def slow() -> Iterator[dict[str, int]]:
        yield from ({"a": i} for i in range(1500))
        entered.set()
        leave.wait(60)
        yield {"a": 1500}

    script = "import sys; from fastdata.packing import pack; pack(iter([{'a': 1}]), sys.argv[1], to='tar')"
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).resolve().parents[2])}
    results: list[Any] = []
    thread = threading.Thread(target=lambda: results.append(pack(slow(), tmp_path / "out", to="tar")))
    thread.start()
    assert entered.wait(60)
    other = subprocess.run([sys.executable, "-c", script, tmp_path / "out"], env=environment, capture_output=True, text=True, check=False)
    leave.set()
    thread.join()
    assert "DatasetError: expected to be alone, got another pack" in other.stderr
    assert results[0].num_samples == 1501
    assert len(Dataset(tmp_path / "out")) == 1501
    assert sorted(p.name for p in tmp_path.iterdir()) == ["out"]


@pytest.fixture(params=[60, 200], ids=lambda size: f"{size}K")
def full_disk(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Path]:
    """A disk that is too small for the photos, by more or by less."""
    place = tmp_path / "disk"
    place.mkdir()
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", f"size={request.param}k", "tmpfs", place], capture_output=True, text=True, check=False
    )
    if mounted.returncode:
        pytest.skip(f"a small disk needs the right to mount one: {mounted.stderr.strip()}")
    yield place
    subprocess.run(["umount", "-l", place], check=True)


@pytest.fixture(scope="module")
def many_photos(make_photos: Callable[..., Path], tmp_path_factory: pytest.TempPathFactory) -> Path:
    photos = make_photos(tmp_path_factory.mktemp("many"), num=150)
    assert sum(path.stat().st_size for path in listed(photos)) > 220_000
    return photos


@pytest.mark.skipif(sys.platform != "linux", reason="mounts a tmpfs")
@pytest.mark.parametrize("store", STORES)
@pytest.mark.parametrize("workers", [1, 2])
def test_a_full_disk_is_one_sentence(store: str, workers: int, full_disk: Path, many_photos: Path, fastdata: Callable[..., Any]) -> None:
    ran = fastdata("pack", many_photos, full_disk / "out", "--to", store, "--workers", str(workers), "--shard-size", "30KB")
    assert ran.code == 1, ran
    *left, error = ran.err.splitlines()
    assert error.startswith("error: expected"), ran
    assert "No space left on device" in error or "the disk may be full" in error, ran
    assert ran.out == ""
    assert len(left) <= 1, ran
    assert all(line.startswith("unfinished: ") for line in left), ran
    assert [path.name for path in full_disk.iterdir()] == ["out.partial"] * len(left)


@pytest.mark.parametrize("store", ["mmap", "tar"])
def test_the_errors_of_a_pack_are_of_the_kinds_that_callers_catch(store: str, own_photos: Path, tmp_path: Path) -> None:
    assert issubclass(ArgumentError, ValueError)
    assert issubclass(DataError, ValueError)
    assert issubclass(ShardError, DataError)
    assert issubclass(DatasetError, OSError)
    spoil(own_photos)
    with pytest.raises(ValueError, match="photos"):
        pack(own_photos, tmp_path / "out", to=store, workers=2)


@pytest.mark.parametrize("store", STORES)
def test_samples_of_scalars_alone_pack_into_every_store(store: str, tmp_path: Path) -> None:
    pack([{"label": i % 3, "weight": i / 4} for i in range(10)], tmp_path / "out", to=store, workers=1)
    batch = Dataset(tmp_path / "out").__getitems__(range(10)).batch
    assert batch["label"].tolist() == [i % 3 for i in range(10)]
    assert batch["weight"].tolist() == [i / 4 for i in range(10)]
    assert verify(tmp_path / "out").problems == []


@pytest.mark.parametrize("workers", [1, 2])
def test_rows_without_a_picture_or_with_too_many_cells_stop_a_pack_before_it_starts_or_are_skipped(
    workers: int, own_photos: Path, tmp_path: Path
) -> None:
    """Case 33: missing files are listed before any work, and skipped only where that was asked."""
    paths = [str(path) for path in listed(own_photos)[:3]]
    table = tmp_path / "train.csv"
    table.write_text(
        "image,score\n" + "".join(f"{path},{i}\n" for i, path in enumerate([paths[0], "gone.jpg", paths[1]])) + f"{paths[2]},1,2\n"
    )
    with pytest.raises(ArgumentError, match="expected 2 cells"):
        pack(table, tmp_path / "out", to="mmap", workers=workers)
    assert not (tmp_path / "out").exists()
    packed = pack(table, tmp_path / "out", to="mmap", workers=workers, on_error="skip")
    assert (packed.num_samples, packed.rejected) == (2, 2)
    rejects = [json.loads(line) for line in (tmp_path / "out/rejects.jsonl").read_text().splitlines()]
    assert [reject["source"].rpartition(":")[2] for reject in rejects] == ["3", "5"]


def test_pictures_named_as_another_format_are_counted(own_photos: Path, tmp_path: Path) -> None:
    """Case 11."""
    first, second = listed(own_photos)[:2]
    Image.open(first).save(first.with_suffix(".tmp"), "PNG")
    first.with_suffix(".tmp").rename(first)
    second.rename(second.with_suffix(".JPEG"))
    assert pack(own_photos, tmp_path / "out", to="tar", workers=1).notes == {"a picture named as another format": 1}


def test_folders_named_as_splits_are_warned_of(make_photos: Callable[..., Path], own_photos: Path, tmp_path: Path) -> None:
    for old, new in zip(sorted(own_photos.iterdir()), ("train", "val", "test"), strict=False):
        old.rename(own_photos / new)
    assert any("named as splits" in warning for warning in pack(own_photos, tmp_path / "out", to="tar", workers=1).warnings)


@pytest.mark.parametrize("store", STORES)
def test_masks_keep_their_codes_through_pack_and_load(store: str, tmp_path: Path) -> None:
    codes = np.random.default_rng(0).integers(0, 256, (20, 30), dtype=np.uint8)
    palette = Image.fromarray(codes, "L").convert("P")
    palette.putpalette(list(range(255, -1, -1)) * 3)
    Image.fromarray(np.dstack([codes] * 3)).save(tmp_path / "image.png")
    for name, mask in (
        ("p", palette),
        ("la", Image.merge("LA", (Image.fromarray(codes), Image.new("L", (30, 20), 0)))),
        ("l", Image.fromarray(codes)),
    ):
        mask.save(tmp_path / f"{name}.png")
    (tmp_path / "all.csv").write_text("image,mask\nimage.png,p.png\nimage.png,la.png\nimage.png,l.png\n")
    pack(tmp_path / "all.csv", tmp_path / "out", to=store, workers=1)
    for sample in Dataset(tmp_path / "out"):
        assert np.array_equal(sample["mask"], np.dstack([codes] * 3))


def test_a_mask_of_codes_beyond_a_byte_is_refused(tmp_path: Path) -> None:
    Image.fromarray(np.full((4, 4), 300, dtype=np.uint16)).save(tmp_path / "m.png")
    (tmp_path / "all.csv").write_text("mask,label\nm.png,1\n")
    with pytest.raises(DataError, match="expected a mask of codes from 0 to 255, got 300 to 300"):
        pack(tmp_path / "all.csv", tmp_path / "out", to="mmap", workers=1)


@pytest.mark.parametrize("name", ["out.partial", "out.old", ".out.old"])
@pytest.mark.parametrize("overwrite", [False, True])
def test_folders_of_the_user_beside_the_target_are_not_touched(name: str, overwrite: bool, photos: Path, tmp_path: Path) -> None:
    if overwrite:
        pack(photos, tmp_path / "out", to="tar", workers=1, shuffle=1)
    (tmp_path / name).mkdir()
    (tmp_path / name / "thesis.txt").write_text("years of work")
    if name == "out.partial":
        with pytest.raises(
            DatasetError,
            match=r"expected an unfinished dataset or nothing, got something else, at .*out\.partial/thesis\.txt: move it away",
        ):
            pack(photos, tmp_path / "out", to="tar", workers=1, overwrite=overwrite)
    else:
        pack(photos, tmp_path / "out", to="tar", workers=1, overwrite=overwrite)
    assert (tmp_path / name / "thesis.txt").read_text() == "years of work"
    assert sorted(path.name for path in tmp_path.iterdir()) == sorted({name, "out"} if name != "out.partial" or overwrite else {name})


def test_other_values_of_equal_size_are_never_called_already_packed(tmp_path: Path) -> None:
    pack([{"x": 1, "t": "aa"}, {"x": 2, "t": "bb"}], tmp_path / "a", to="tar", workers=1)
    with pytest.raises(DatasetError, match="other source"):
        pack([{"x": 5, "t": "cc"}, {"x": 6, "t": "dd"}], tmp_path / "a", to="tar", workers=1)
    np.save(tmp_path / "t.npy", np.arange(6).reshape(3, 2))
    pack(tmp_path / "t.npy", tmp_path / "b", to="mmap", workers=1)
    assert pack(tmp_path / "t.npy", tmp_path / "b", to="mmap", workers=1).already
    np.save(tmp_path / "t.npy", 2 * np.arange(6).reshape(3, 2))
    with pytest.raises(DatasetError, match="other source"):
        pack(tmp_path / "t.npy", tmp_path / "b", to="mmap", workers=1)


@pytest.mark.parametrize("change", ["vanishes", "appears"])
@pytest.mark.parametrize("on_error", ["raise", "skip"])
def test_a_source_that_changes_while_it_is_packed_is_no_dataset(change: str, on_error: str, own_photos: Path, tmp_path: Path) -> None:
    """What was listed first is what the dataset says that it holds."""
    last = listed(own_photos)[-1]

    def change_once(_: Any) -> None:
        if change == "vanishes":
            last.unlink(missing_ok=True)
        else:
            shutil.copy(last, last.with_name("zzz.jpg"))

    with pytest.raises(DatasetError, match="the source changed while it was packed"):
        pack(own_photos, tmp_path / "out", to="mmap", workers=1, on_error=on_error, shard_size=1, progress=change_once)
    with pytest.raises(DatasetError, match="incomplete"):
        Dataset(tmp_path / "out")
    with pytest.raises(DatasetError, match=r"other source \(its files have changed"):
        pack(own_photos, tmp_path / "out", to="mmap", workers=1, on_error=on_error, shard_size=1)


@pytest.mark.parametrize("store", STORES)
def test_a_target_whose_name_is_no_text_is_as_good(store: str, photos: Path, tmp_path: Path) -> None:
    """Case 29."""
    target = Path(os.fsdecode(os.fsencode(tmp_path) + b"/out\xff\xfe"))
    pack(photos, target, to=store)
    assert len(Dataset(target).__getitems__(range(24))) == 24
    assert verify(target).problems == []


def test_a_link_as_the_target_is_followed(photos: Path, tmp_path: Path) -> None:
    (tmp_path / "disk/data").mkdir(parents=True)
    (tmp_path / "out").symlink_to(tmp_path / "disk/data")
    pack(photos, tmp_path / "out", to="tar", workers=1)
    assert (tmp_path / "out").is_symlink()
    assert (tmp_path / "disk/data/manifest.json").is_file()
    pack(photos, tmp_path / "out", to="lmdb", workers=1, overwrite=True)
    assert (tmp_path / "out").is_symlink()
    assert sorted(path.name for path in (tmp_path / "disk").iterdir()) == ["data"]
    assert Dataset(tmp_path / "out").manifest.store == "lmdb"


def test_pictures_too_large_to_read_are_not_packed(photos: Path, tmp_path: Path) -> None:
    with pytest.raises(ArgumentError, match="expected a picture of at most 178956970 pixels"):
        pack(photos, tmp_path / "out", to="tar", workers=1, resize=(14000, 14000))


@pytest.mark.parametrize(
    ("value", "message"), [(10**5000, "one of 16610 bits"), ("nested", "nested hundreds of times")], ids=["digits", "nested"]
)
def test_values_without_end_are_refused_in_a_sentence(value: Any, message: str, tmp_path: Path) -> None:
    if value == "nested":
        value = [1]
        for _ in range(3000):
            value = [value]
    with pytest.raises(FastdataError, match=message):
        pack([{"v": value}], tmp_path / "out", to="tar", workers=1)


def test_sizes_of_hundreds_of_digits_are_no_sizes() -> None:
    with pytest.raises(ArgumentError, match="expected a size such as"):
        parse_nbytes("9" * 400, "--shard-size")


def test_workers_may_use_torch_after_the_parent_used_its_threads(tmp_path: Path) -> None:
    """Case 71: a fork leaves the threads of a pool behind."""
    script = textwrap.dedent("""
        import sys, torch, fastdata
        torch.set_num_threads(2)
        torch.relu(torch.randn(4_000_000)).sum()

        class Numbers:
            def __len__(self):
                return 8

            def __getitem__(self, i):
                return {"x": torch.relu(torch.randn(2_000_000) + i)[:10], "label": i}

        print(fastdata.pack(Numbers(), sys.argv[1], to="mmap", workers=2).num_samples)
    """)
    done = subprocess.run([sys.executable, "-c", script, str(tmp_path / "out")], capture_output=True, text=True, timeout=60)
    assert done.stdout.strip() == "8", done.stderr


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_ends_a_pack_in_a_sentence_and_the_same_command_finishes_it(
    number: signal.Signals, many_photos: Path, tmp_path: Path, contents: Contents
) -> None:
    command = [sys.executable, "-m", "fastdata.cli", "pack", str(many_photos), str(tmp_path / "out"), "--to", "lmdb", "--workers", "2"]
    process = subprocess.Popen([*command, "--image", "png"], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    while not (tmp_path / "out.partial/shards").is_dir():
        assert process.poll() is None
    process.send_signal(number)
    _, errors = process.communicate(timeout=30)
    assert process.returncode == 128 + number
    assert errors.splitlines()[-1] == "interrupted"
    with pytest.raises(DatasetError):
        Dataset(tmp_path / "out")
    subprocess.run([*command, "--image", "png"], stdout=subprocess.DEVNULL, check=True)
    pack(many_photos, tmp_path / "undisturbed", to="lmdb", image="png")
    assert contents(tmp_path / "out") == contents(tmp_path / "undisturbed")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["out", "undisturbed"]


def test_a_pack_under_nohup_outlives_its_terminal(many_photos: Path, tmp_path: Path) -> None:
    command = [
        "nohup",
        sys.executable,
        "-m",
        "fastdata.cli",
        "pack",
        str(many_photos),
        str(tmp_path / "out"),
        "--to",
        "mmap",
        "--image",
        "png",
    ]
    process = subprocess.Popen([*command, "--workers", "2"], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, start_new_session=True)
    while not (tmp_path / "out.partial/shards").is_dir():
        assert process.poll() is None
    os.killpg(process.pid, signal.SIGHUP)
    assert process.wait(60) == 0
    assert len(Dataset(tmp_path / "out")) == len(list(many_photos.glob("*/*")))


@pytest.mark.parametrize("place", ["out", "out.partial"])
def test_a_folder_with_a_manifest_of_another_program_is_not_touched(place: str, photos: Path, tmp_path: Path) -> None:
    (tmp_path / place).mkdir()
    for name in ("manifest.json", "index.html"):
        (tmp_path / place / name).write_text("{}")
    with pytest.raises(DatasetError, match="got something else"):
        pack(photos, tmp_path / "out", to="tar", workers=1, overwrite=True)
    assert sorted(path.name for path in (tmp_path / place).iterdir()) == ["index.html", "manifest.json"]


def test_a_folder_that_appears_while_packing_is_not_replaced(photos: Path, tmp_path: Path) -> None:
    def appear(_: Any) -> None:
        (tmp_path / "out").mkdir(exist_ok=True)
        (tmp_path / "out/thesis.txt").write_text("precious")

    with pytest.raises(DatasetError, match="got something else"):
        pack(photos, tmp_path / "out", to="tar", workers=1, progress=appear)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["out", "out.partial"]
    assert (tmp_path / "out/thesis.txt").read_text() == "precious"


def test_a_pack_that_waited_for_another_one_compares_its_arguments_again(photos: Path, tmp_path: Path) -> None:
    results: list[Any] = []

    def second() -> None:
        try:
            results.append(pack(photos, tmp_path / "out", to="lmdb", workers=1))
        except FastdataError as error:
            results.append(error)

    threads: list[threading.Thread] = []

    def start(_: Any) -> None:
        if not threads:
            threads.append(threading.Thread(target=second))
            threads[0].start()

    first = pack(photos, tmp_path / "out", to="tar", workers=1, progress=start)
    threads[0].join()
    assert isinstance(results[0], DatasetError)
    assert Dataset(tmp_path / "out").manifest.store == first.store == "tar"


def test_a_daemon_process_packs_by_itself(photos: Path, tmp_path: Path) -> None:
    import multiprocessing

    process = multiprocessing.get_context("fork").Process(target=pack, args=(photos, tmp_path / "out"), kwargs={"to": "mmap"}, daemon=True)
    process.start()
    process.join(60)
    assert process.exitcode == 0
    assert verify(tmp_path / "out").problems == []

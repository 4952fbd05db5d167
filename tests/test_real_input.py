"""Real photos, odd files and text, end to end: what is packed is what plain libraries read from the sources."""

from __future__ import annotations

import gc
import itertools
import json
import os
import subprocess
import warnings
from pathlib import Path

import numpy as np
import pytest
from PIL import Image, ImageOps

import fastdata
from fastdata import registry
from fastdata.types import Array

STORES = registry.names("fastdata.stores")


@pytest.fixture(scope="module")
def tiles(testdata: Path) -> list[Path]:
    return sorted((testdata / "tiles").glob("*/*.jpg"), key=lambda path: os.fsencode(path.relative_to(testdata)))


@pytest.fixture(scope="module", params=STORES)
def packed(request: pytest.FixtureRequest, testdata: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("tiles") / request.param
    assert fastdata.pack(testdata / "tiles", out, to=request.param, workers=2).num_samples == 2000
    return out


def test_tiles_load_with_the_pixels_and_labels_that_pillow_reads(packed: Path, tiles: list[Path]) -> None:
    dataset = fastdata.Dataset(packed)
    classes = sorted({path.parent.name for path in tiles})
    assert dataset.classes == tuple(classes)
    for start in range(0, len(tiles), 250):
        batch = dataset.__getitems__(range(start, start + 250))
        for sample, path in zip(batch, tiles[start : start + 250], strict=True):
            with Image.open(path) as image:
                np.testing.assert_array_equal(sample["image"], np.asarray(image.convert("RGB")), err_msg=str(path))
            assert classes[sample["label"]] == path.parent.name
    assert dataset.column("key").tolist() == [f"{path.parent.name}/{path.name}" for path in tiles]


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")  # webdataset leaves its shards to the garbage collector
def test_tiles_are_stored_byte_for_byte_where_plain_libraries_find_them(packed: Path, tiles: list[Path]) -> None:
    """Case 17: what needs no resize is the file's own bytes."""
    expected = [path.read_bytes() for path in tiles]
    store = packed.name
    found: list[bytes] = []
    if store == "tar":
        import webdataset

        shards = [str(path) for path in sorted((packed / "shards").iterdir())]
        samples = list(webdataset.WebDataset(shards, shardshuffle=False, empty_check=False))
        found = [sample["jpg"] for sample in samples]
        classes = sorted({path.parent.name for path in tiles})
        assert [classes[int(sample["cls"])] for sample in samples] == [path.parent.name for path in tiles]
        assert len({sample["__key__"] for sample in samples}) == 2000
        listed = [subprocess.check_output(["tar", "tf", shard], text=True).split() for shard in shards]
        assert sum(map(len, listed)) == 4000
        gc.collect()
    for shard in sorted((packed / "shards").iterdir()):
        if store == "lmdb":
            import lmdb

            environment = lmdb.open(str(shard), subdir=False, readonly=True, lock=False, max_dbs=1)
            with environment, environment.begin(db=environment.open_db(b"image", create=False)) as transaction:
                found += [value for _, value in transaction.cursor()]
        elif store == "mmap":
            data, offsets = (shard / "image.bin").read_bytes(), np.load(shard / "image.offsets.npy")
            found += [data[a:b] for a, b in itertools.pairwise(offsets)]
        elif store == "hdf5":
            import h5py

            with h5py.File(shard) as file:
                data, offsets = file["image"][:].tobytes(), file["image.offsets"][:]
            found += [data[a:b] for a, b in itertools.pairwise(offsets)]
    assert found == expected


def test_tiles_verify(packed: Path) -> None:
    assert fastdata.verify(packed, workers=2).problems == []


def test_odd_files_are_packed_as_pillow_sees_them_or_listed(testdata: Path, tmp_path: Path) -> None:
    """Cases 1 to 4, 6, 8, 9, 11, 12: every file of Pillow's and libjxl's test pictures is a sample or a reject, and none a crash."""
    out = tmp_path / "out"
    packed = fastdata.pack(testdata / "weird", out, to="tar", source_kind="images", on_error="skip", workers=2)
    dataset = fastdata.Dataset(out, fields=("image", "key"))
    files = {
        str(p.relative_to(testdata / "weird")) for p in (testdata / "weird").rglob("*") if p.suffix[1:].lower() in PICTURES and p.is_file()
    }
    keys = dataset.column("key").tolist()
    assert len(keys) + packed.rejected == len(files)
    assert set(keys) <= files
    assert packed.rejected > 0
    assert fastdata.verify(out, workers=2).problems == []
    widths, heights = dataset.column("image.width"), dataset.column("image.height")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # Pillow has something to say about most of them
        for i in range(len(dataset)):
            pixels = dataset[i]["image"]
            assert pixels.shape == (heights[i], widths[i], 3), keys[i]
            difference = np.abs(pixels - by_pillow(testdata / "weird" / keys[i]))
            assert difference.mean() < 1, keys[i]
            assert difference.max() <= 8, keys[i]
    rejects = [json.loads(line) for line in (out / "rejects.jsonl").read_text(encoding="utf-8").splitlines()]
    assert {reject["key"] for reject in rejects} == files - set(keys)
    assert all(reject["reason"].startswith("expected ") and reject["key"] in reject["reason"] for reject in rejects)
    assert sum(packed.reasons.values()) == len(rejects) == packed.rejected
    assert len(packed.reasons) < len(rejects)


def by_pillow(path: Path) -> Array:
    """The first frame as Pillow shows it: upright, over white, 16 bit divided by 257; floats [H, W, 3]."""
    with Image.open(path) as file:
        orientation = file.getexif().get(0x0112)
        file.load()
        image = ImageOps.exif_transpose(file) if file.format != "TIFF" and orientation in range(2, 9) else file.copy()
        image.info = file.info
    if image.mode.startswith("I"):
        grey, hidden = np.asarray(image).astype(float), image.info.get("transparency")
        grey = np.where(grey == hidden, 65535, grey).clip(0, 65535) / 257
        return np.repeat(grey[:, :, None], 3, axis=2)
    if image.has_transparency_data or "transparency" in image.info:
        colours = np.asarray(image.convert("LA").convert("RGBA") if image.mode == "La" else image.convert("RGBA")).astype(float)
        alpha = colours[:, :, 3:] / 255
        return colours[:, :, :3] * alpha + 255 * (1 - alpha)
    return np.asarray(image.convert("RGB")).astype(float)


PICTURES = {"jpg", "jpeg", "jpe", "jfif", "png", "gif", "bmp", "webp", "tif", "tiff", "ppm", "pgm", "pbm", "jp2", "avif"}


def test_raw_pictures_of_one_size_are_one_array_that_numpy_maps(testdata: Path, tiles: list[Path], tmp_path: Path) -> None:
    out = tmp_path / "out"
    fastdata.pack(testdata / "tiles" / "class_9", out, to="mmap", source_kind="images", image="raw", resize="48x64", workers=1)
    arrays = [np.load(path / "image.npy", mmap_mode="r") for path in sorted((out / "shards").iterdir())]
    assert all(array.shape[1:] == (48, 64, 3) and array.dtype == np.uint8 for array in arrays)
    dataset = fastdata.Dataset(out)
    np.testing.assert_array_equal(np.concatenate(arrays), dataset.__getitems__(range(len(dataset))).batch["image"])
    assert dataset.is_gather


def test_a_resized_jpeg_is_near_pillows_resize(testdata: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    folder = testdata / "tiles" / "class_9"
    fastdata.pack(folder, out, to="lmdb", source_kind="images", resize_short=128, quality=95, workers=1)
    for sample in fastdata.Dataset(out, fields=("image", "key")):
        with Image.open(folder / sample["key"]) as image:
            height, width = sample["image"].shape[:2]
            assert min(height, width) == 128
            reference = np.asarray(image.convert("RGB").resize((width, height), Image.Resampling.BOX), dtype=float)
        error = np.mean((sample["image"] - reference) ** 2)
        assert 10 * np.log10(255**2 / error) > 25, sample["key"]


@pytest.mark.parametrize("store", ["mmap", "tar"])
def test_chinese_and_english_text_comes_back(testdata: Path, store: str, tmp_path: Path) -> None:
    out = tmp_path / "out"
    fastdata.pack(testdata / "text", out, to=store, workers=1)
    for sample in fastdata.Dataset(out, fields=("text", "key")):
        assert sample["text"] == (testdata / "text" / sample["key"]).read_bytes().decode().removeprefix("\ufeff")

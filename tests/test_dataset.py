from __future__ import annotations

import gc
import io
import json
import multiprocessing
import os
import pickle
import random
import re
import shutil
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image

import fastdata
from fastdata.dataset import Base
from fastdata.samplers import Batches, Sequential
from fastdata.seeding import make_tickets
from fastdata.types import Samples

STORES = ("tar", "lmdb", "mmap", "hdf5")
NUM = 24
COLOURS = ("red", "green", "blue")
CROP = fastdata.RandomResizedCrop((20, 28), flip=True)


def draw_picture(number: int, size: tuple[int, int] = (80, 60)) -> Image.Image:
    rng = np.random.default_rng(number)
    return Image.fromarray(rng.integers(0, 256, (5, 7, 3), dtype=np.uint8)).resize(size, Image.Resampling.BICUBIC)


def as_png(number: int, size: tuple[int, int] = (80, 60)) -> bytes:
    file = io.BytesIO()
    draw_picture(number, size).save(file, "png")
    return file.getvalue()


def boxes_of(number: int) -> np.ndarray[Any, Any]:
    return np.arange(4 * (number % 4), dtype=np.float32).reshape(-1, 4) + number


def make_samples() -> list[dict[str, Any]]:
    return [
        {
            "key": f"s/{i:02d}.png",
            "image": as_png(i),
            "boxes": boxes_of(i),
            "meta": {"number": i, "tags": ["a"] * (i % 3)},
            "colour": COLOURS[i % 3],
            "weight": i / 4,
            "label": i % 5,
        }
        for i in range(NUM)
    ]


@pytest.fixture(scope="module")
def packed(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    root = tmp_path_factory.mktemp("packed")
    for store in STORES:
        fastdata.pack(make_samples(), root / store, to=store, shard_size="60KB", workers=1)
    return {store: root / store for store in STORES}


@pytest.fixture(scope="module")
def pixels() -> list[np.ndarray[Any, Any]]:
    return [np.asarray(draw_picture(i)) for i in range(NUM)]


@pytest.fixture
def dataset(packed: dict[str, Path]) -> fastdata.Dataset:
    return fastdata.Dataset(packed["mmap"])


def damage(folder: Path, *indices: int) -> None:
    """Flip every bit of some pictures inside of a tar dataset of one shard; the shard keeps its size."""
    dataset = fastdata.Dataset(folder)
    (shard,) = (folder / "shards").iterdir()
    data = bytearray(shard.read_bytes())
    for index in indices:
        start, nbytes = int(dataset.column("image.offset")[index]), int(dataset.column("image.nbytes")[index])
        data[start : start + nbytes] = bytes(value ^ 0xFF for value in data[start : start + nbytes])
    shard.write_bytes(data)


@pytest.fixture(scope="module")
def damaged(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Sample 3 and 4 are no pictures any more."""
    target = tmp_path_factory.mktemp("damaged") / "tar"
    fastdata.pack(make_samples(), target, to="tar", workers=1)
    damage(target, 3, 4)
    return target


def collated(dataset: Base, tickets: Any) -> dict[str, Any]:
    batch: dict[str, Any] = fastdata.Collate()(dataset.__getitems__(tickets))
    return batch


def tickets_for(indices: Any, seed: int = 0, epoch: int = 0) -> np.ndarray[Any, Any]:
    indices = np.asarray(indices, dtype=np.int64)
    return make_tickets(indices, seed, epoch, np.arange(len(indices), dtype=np.int64))


# One sample -------------------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("store", STORES)
def test_a_sample_is_what_was_packed(packed: dict[str, Path], pixels: list[Any], store: str) -> None:
    dataset = fastdata.Dataset(packed[store])
    assert len(dataset) == NUM
    for i in (0, 1, 7, NUM - 1):
        sample = dataset[i]
        assert list(sample) == ["image", "boxes", "meta", "colour", "weight", "label"]
        assert np.array_equal(sample["image"], pixels[i])
        assert sample["image"].dtype == np.uint8
        assert sample["boxes"].dtype == np.float32
        assert np.array_equal(sample["boxes"], boxes_of(i))
        assert sample["meta"] == {"number": i, "tags": ["a"] * (i % 3)}
        assert (sample["colour"], sample["weight"], sample["label"]) == (COLOURS[i % 3], i / 4, i % 5)


def test_indices_count_from_the_end_too_and_numpy_integers_will_do(dataset: fastdata.Dataset) -> None:
    assert dataset[-1]["meta"] == dataset[NUM - 1]["meta"] == {"number": NUM - 1, "tags": ["a"] * ((NUM - 1) % 3)}
    assert dataset[-NUM]["meta"]["number"] == 0
    assert dataset[np.int32(5)]["meta"]["number"] == 5


@pytest.mark.parametrize("index", [NUM, -NUM - 1, 1 << 40])
def test_an_index_outside_is_an_index_error(dataset: fastdata.Dataset, index: int) -> None:
    with pytest.raises(IndexError, match=rf"expected an index in \[-{NUM}, {NUM}\), got {index}"):
        dataset[index]
    view = dataset.select([1, 2])
    with pytest.raises(IndexError):
        view[2]
    with pytest.raises(IndexError):
        dataset.__getitems__([0, NUM])


@pytest.mark.parametrize("index", ["a", 1.0, slice(2), None])
def test_an_index_of_another_type_is_a_type_error(dataset: fastdata.Dataset, index: Any) -> None:
    with pytest.raises(TypeError, match=r"select\(\) takes many"):
        dataset[index]


def test_iteration_gives_every_sample_and_ends(dataset: fastdata.Dataset) -> None:
    assert [sample["meta"]["number"] for sample in dataset] == list(range(NUM))
    assert [sample["meta"]["number"] for sample in dataset.select([4, 2])] == [4, 2]


def test_a_sample_that_is_kept_stays_right(packed: dict[str, Path], pixels: list[Any]) -> None:
    """Case 81."""
    for store in STORES:
        dataset = fastdata.Dataset(packed[store])
        kept = [dataset[i] for i in range(NUM)]
        del dataset
        assert all(np.array_equal(sample["image"], pixels[i]) for i, sample in enumerate(kept))
        assert all(np.array_equal(sample["boxes"], boxes_of(i)) for i, sample in enumerate(kept))


def test_a_sample_may_be_written_to_and_the_dataset_stays_as_it_is(packed: dict[str, Path]) -> None:
    for store in STORES:
        dataset = fastdata.Dataset(packed[store])
        for name in ("image", "boxes"):
            dataset[3][name][...] = 0
            assert dataset[3][name].any()


# Fields -----------------------------------------------------------------------------------------------------------------------------


def test_fields_are_given_in_the_order_that_was_asked_with_index_and_key(packed: dict[str, Path]) -> None:
    dataset = fastdata.Dataset(packed["lmdb"], fields=("key", "label", "index"))
    assert dataset.outputs == ("key", "label", "index")
    assert dataset[7] == {"key": "s/07.png", "label": 2, "index": 7}
    batch = dataset.select([9, 4]).__getitems__([0, 1, -1]).batch
    assert batch["key"] == ["s/09.png", "s/04.png", "s/04.png"]
    assert batch["index"].tolist() == [0, 1, 1]
    assert batch["label"].tolist() == [4, 4, 4]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"fields": ("image", "lable")}, "got 'lable', at fields"),
        ({"fields": "image"}, "expected a sequence of names, got the string 'image'"),
        ({"on_error": "ignore"}, r"expected one of \['raise', 'shorten', 'substitute'\], got 'ignore'"),
        ({"decode": {"picture": CROP}}, "got 'picture', at decode"),
        ({"decode": {"boxes": CROP}}, "expected a field of pictures, got 'boxes' of codec 'ndarray'"),
        ({"decode": {"image": 224}}, r"got int, at decode\['image'\]"),
        ({"decode": {"image": fastdata.like("image")}}, "has a crop, got 'image'"),
        ({"decode": {"a": ("image", CROP), "b": ("image", fastdata.like("c"))}}, "has a crop, got 'c'"),
        ({"fields": ("label",), "decode": {"image": CROP}}, "at decode"),
    ],
)
def test_fields_and_crops_that_do_not_fit_are_refused(packed: dict[str, Path], options: dict[str, Any], message: str) -> None:
    with pytest.raises(fastdata.ArgumentError, match=message):
        fastdata.Dataset(packed["mmap"], **options)


# Columns ----------------------------------------------------------------------------------------------------------------------------


def test_a_column_is_mapped_and_read_only(dataset: fastdata.Dataset) -> None:
    column = dataset.column("label")
    assert isinstance(column, np.memmap)
    assert column.tolist() == [i % 5 for i in range(NUM)]
    with pytest.raises(ValueError, match="read-only"):
        column[0] = 1


def test_columns_of_strings_are_str(dataset: fastdata.Dataset) -> None:
    assert dataset.column("colour").tolist() == [COLOURS[i % 3] for i in range(NUM)]
    assert dataset.column("key").tolist() == [f"s/{i:02d}.png" for i in range(NUM)]
    assert all(type(value) is str for name in ("colour", "key") for value in dataset.column(name))


def test_derived_columns_tell_of_the_payloads(dataset: fastdata.Dataset) -> None:
    assert dataset.column("image.width").tolist() == [80] * NUM
    assert dataset.column("image.height").tolist() == [60] * NUM
    assert dataset.column("image.nbytes").tolist() == [len(as_png(i)) for i in range(NUM)]
    assert dataset.column("boxes.length").tolist() == [i % 4 for i in range(NUM)]


def test_a_column_that_is_not_there_names_those_that_are(dataset: fastdata.Dataset) -> None:
    for owner in (dataset, dataset.select([0]), fastdata.concat([dataset, dataset])):
        with pytest.raises(KeyError, match=r"'label'.*got 'lable'"):
            owner.column("lable")


def test_columns_of_views_and_concatenations_are_their_rows(dataset: fastdata.Dataset) -> None:
    view = dataset.select([5, 3, 3])
    assert view.column("label").tolist() == [0, 3, 3]
    assert view.column("key").tolist() == ["s/05.png", "s/03.png", "s/03.png"]
    both = fastdata.concat([view, dataset])
    assert both.column("label").tolist() == [0, 3, 3] + [i % 5 for i in range(NUM)]
    assert both.column("colour").tolist() == ["blue", "red", "red"] + [COLOURS[i % 3] for i in range(NUM)]
    assert set(both.columns) == set(dataset.columns) == set(view.columns)


# Views ------------------------------------------------------------------------------------------------------------------------------


def rows(owner: Base) -> list[int]:
    """The samples of an owner, as numbers in the whole dataset."""
    return [meta["number"] for meta in owner.__getitems__(list(range(len(owner)))).batch["meta"]] if len(owner) else []


@given(data=st.data())
@settings(deadline=None, max_examples=60)
def test_views_behave_as_lists_do(packed: dict[str, Path], data: st.DataObject) -> None:
    owner: Base = fastdata.Dataset(packed["mmap"], fields=("meta", "label"))
    model = list(range(NUM))
    for _ in range(data.draw(st.integers(1, 4))):
        step = data.draw(st.sampled_from(["select", "mask", "function", "concat"]))
        if step == "select":
            chosen = data.draw(st.lists(st.integers(-len(model), len(model) - 1), max_size=20)) if model else []
            owner, model = owner.select(chosen), [model[i] for i in chosen]
        elif step == "mask":
            mask = data.draw(st.lists(st.booleans(), min_size=len(model), max_size=len(model)))
            owner, model = owner.filter(np.array(mask, dtype=bool)), [m for m, kept in zip(model, mask, strict=True) if kept]
        elif step == "function":
            limit = data.draw(st.integers(0, 5))
            owner, model = owner.filter(lambda c, limit=limit: c["label"] < limit), [m for m in model if m % 5 < limit]
        else:
            owner, model = fastdata.concat([owner, owner.select(range(len(model) // 2))]), model + model[: len(model) // 2]
    assert len(owner) == len(model)
    assert rows(owner) == model
    assert owner.column("label").tolist() == [m % 5 for m in model]
    assert [owner[i]["meta"]["number"] for i in range(-len(model), len(model), 7)] == [model[i] for i in range(-len(model), len(model), 7)]


def test_an_empty_view_has_no_samples_and_gives_an_empty_batch(dataset: fastdata.Dataset) -> None:
    view = dataset.select([])
    assert len(view) == 0
    assert list(view) == []
    assert view.column("label").tolist() == []
    assert len(fastdata.concat([view, view])) == 0
    assert rows(fastdata.concat([view, dataset.select([3]), view])) == [3]
    for owner in (view, dataset, fastdata.concat([view, dataset])):
        assert len(owner.__getitems__([])) == 0


@pytest.mark.parametrize("indices", [[0.5], [[1, 2]], [True, False], ["a"], [NUM], [-NUM - 1], 3])
def test_select_refuses_what_are_no_indices(dataset: fastdata.Dataset, indices: Any) -> None:
    with pytest.raises(fastdata.ArgumentError):
        dataset.select(indices)


@pytest.mark.parametrize("mask", [[True], np.ones(NUM), np.ones((NUM, 1), bool), lambda c: c["label"], list(range(NUM))])
def test_filter_refuses_what_is_no_mask(dataset: fastdata.Dataset, mask: Any) -> None:
    with pytest.raises(fastdata.ArgumentError, match=rf"expected a mask bool \[{NUM}\]"):
        dataset.filter(mask)


def test_a_view_does_not_change_with_the_array_it_was_made_of(dataset: fastdata.Dataset) -> None:
    indices = np.array([1, 2, 3])
    view = dataset.select(indices)
    indices[:] = 0
    assert rows(view) == [1, 2, 3]


def test_concat_refuses_none_and_datasets_that_differ(packed: dict[str, Path]) -> None:
    first = fastdata.Dataset(packed["mmap"], fields=("label", "image"))
    with pytest.raises(fastdata.ArgumentError, match="at least one"):
        fastdata.concat([])
    for other, named in (
        (fastdata.Dataset(packed["mmap"], fields=("label",)), "outputs"),
        (fastdata.Dataset(packed["mmap"], fields=("label", "image"), on_error="shorten"), "on_error"),
        (
            fastdata.Dataset(packed["mmap"], fields=("label", "image"), batch_transforms=[fastdata.Normalize((0,) * 3, (1,) * 3)]),
            "batch_transforms",
        ),
    ):
        with pytest.raises(fastdata.ArgumentError, match=f"equal {named}"):
            fastdata.concat([first, other])


def test_fingerprints_are_equal_over_stores_and_tell_views_apart(packed: dict[str, Path]) -> None:
    first, second = fastdata.Dataset(packed["mmap"]), fastdata.Dataset(packed["lmdb"])
    assert first.fingerprint == second.fingerprint
    assert first.select([1, 2]).fingerprint == second.select([1, 2]).fingerprint
    found = [first, first.select([1, 2]), first.select([2, 1]), first.select([]), fastdata.concat([first, first])]
    assert len({owner.fingerprint for owner in found}) == 5


# Crops ------------------------------------------------------------------------------------------------------------------------------


def test_a_crop_is_the_same_for_the_same_ticket_and_another_for_another(packed: dict[str, Path]) -> None:
    dataset = fastdata.Dataset(packed["mmap"], fields=("image",), decode={"image": CROP})
    tickets = tickets_for([3, 3, 5])
    first, second = dataset.__getitems__(tickets).batch["image"], dataset.__getitems__(tickets[::-1]).batch["image"]
    assert first.shape == (3, 20, 28, 3)
    assert np.array_equal(first, second[::-1])
    assert not np.array_equal(first[0], first[1])
    for i in range(3):
        assert np.array_equal(dataset.__getitems__(tickets[i : i + 1]).batch["image"][0], first[i])


def test_plain_indices_take_their_crops_from_torchs_generator(packed: dict[str, Path]) -> None:
    dataset = fastdata.Dataset(packed["mmap"], fields=("image",), decode={"image": CROP})
    found = []
    for seed in (1, 1, 2):
        torch.manual_seed(seed)
        found.append([dataset[3]["image"], dataset[3]["image"], *dataset.__getitems__([3, 3]).batch["image"]])
    assert all(np.array_equal(a, b) for a, b in zip(found[0], found[1], strict=True))
    every = found[0] + found[2]
    assert not any(np.array_equal(every[i], every[j]) for i in range(8) for j in range(i))


@pytest.fixture(scope="module")
def pairs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A table of pictures and masks: a mask's code is the picture's red channel, halved by 16 levels, without any smoothing."""
    folder = tmp_path_factory.mktemp("pairs")
    lines = ["image,mask,label"]
    for i in range(10):
        values = np.arange(60 * 80).reshape(60, 80)
        blocks = (values // 80 // 12 * 5 + values % 80 // 16 + i).astype(np.uint8)
        Image.fromarray(np.stack([blocks * 8] * 3, axis=2)).save(folder / f"{i}.png")
        Image.fromarray(blocks).save(folder / f"{i}-mask.png")
        lines.append(f"{i}.png,{i}-mask.png,{i}")
    (folder / "pairs.csv").write_text("\n".join(lines) + "\n")
    fastdata.pack(folder / "pairs.csv", folder / "out", to="lmdb", workers=1)
    return folder / "out"


@pytest.mark.parametrize("seed", range(3))
def test_picture_and_mask_share_one_crop_and_the_mask_is_never_smoothed(pairs: Path, seed: int) -> None:
    crop = fastdata.RandomResizedCrop(40, scale=(0.1, 0.5), flip=True)
    dataset = fastdata.Dataset(pairs, fields=("mask", "image", "index"), decode={"image": crop, "mask": fastdata.like("image")})
    assert set(dataset.outputs) == {"image", "mask", "index"}
    batch = dataset.__getitems__(tickets_for(range(10), seed=seed)).batch
    assert batch["image"].shape[:3] == batch["mask"].shape[:3] == (10, 40, 40)
    for i in range(10):
        mask, image = batch["mask"][i, :, :, 0].astype(int), batch["image"][i, :, :, 0].astype(int)
        assert set(np.unique(mask)) <= set(range(i, i + 25))
        # Away from the borders of blocks, where the picture is smoothed, each pixel is eight times its code.
        assert (np.abs(image - 8 * mask) <= 1).mean() > 0.7
        assert len(np.unique(mask)) > 1


def test_like_of_a_picture_of_another_size_names_both(tmp_path: Path) -> None:
    samples = [{"image": as_png(0), "mask": as_png(1, (80, 60) if i else (40, 30)), "label": i} for i in range(2)]
    fastdata.pack(samples, tmp_path / "out", to="lmdb", workers=1)
    dataset = fastdata.Dataset(tmp_path / "out", decode={"image": CROP, "mask": fastdata.like("image")})
    with pytest.raises(fastdata.DataError, match=r"expected .*80 x 60.*, got 40 x 30.*'mask' of sample 0 of"):
        dataset[0]
    assert dataset[1]["mask"].shape == (20, 28, 3)


def test_one_field_gives_two_independent_views(packed: dict[str, Path]) -> None:
    dataset = fastdata.Dataset(packed["mmap"], fields=("image", "label"), decode={"view1": ("image", CROP), "view2": ("image", CROP)})
    assert set(dataset.outputs) == {"view1", "view2", "label"}
    batch = dataset.__getitems__(tickets_for(range(6))).batch
    assert batch["view1"].shape == batch["view2"].shape == (6, 20, 28, 3)
    assert not any(np.array_equal(batch["view1"][i], batch["view2"][i]) for i in range(6))
    again = fastdata.Dataset(packed["mmap"], fields=("image",), decode={"view2": ("image", CROP)})
    assert np.array_equal(again.__getitems__(tickets_for(range(6))).batch["view2"], batch["view2"])


# Transforms -------------------------------------------------------------------------------------------------------------------------


def drawing(sample: dict[str, Any]) -> dict[str, Any]:
    return {
        **sample,
        "random": random.getrandbits(62),
        "numpy": int(np.random.randint(1 << 62)),
        "torch": int(torch.randint(1 << 62, ())),
    }


NAMES = ("random", "numpy", "torch")


def test_a_transform_draws_the_same_for_the_same_ticket_in_any_company(packed: dict[str, Path]) -> None:
    """Case 82."""
    dataset = fastdata.Dataset(packed["mmap"], fields=("label",), transform=drawing)
    tickets = tickets_for([4, 9, 4, 11])
    batch = dataset.__getitems__(tickets).batch
    for name in NAMES:
        assert len(set(batch[name].tolist())) == 4
        assert [int(dataset.__getitems__(tickets[i : i + 1]).batch[name][0]) for i in (3, 1, 0, 2)] == [
            int(batch[name][i]) for i in (3, 1, 0, 2)
        ]


def test_the_global_generators_are_put_back_after_a_transform_and_after_its_failure(packed: dict[str, Path]) -> None:
    def failing(sample: dict[str, Any]) -> dict[str, Any]:
        drawing(sample)
        raise ValueError("no")

    def states() -> list[Any]:
        return [random.getstate(), np.random.get_state()[1].tolist(), torch.default_generator.get_state().tolist()]  # type: ignore[index, union-attr]

    before = states()
    fastdata.Dataset(packed["mmap"], fields=("label",), transform=drawing).__getitems__(tickets_for([1, 2]))
    assert states() == before
    with pytest.raises(fastdata.FastdataError, match=r"ValueError: no, at sample 1 of .*key 's/01.png'"):
        fastdata.Dataset(packed["mmap"], fields=("label",), transform=failing).__getitems__(tickets_for([1, 2]))
    assert states() == before


def test_plain_indices_draw_other_numbers_each_time_in_a_transform(packed: dict[str, Path]) -> None:
    dataset = fastdata.Dataset(packed["mmap"], fields=("label",), transform=drawing)
    assert len({dataset[3]["random"] for _ in range(20)}) == 20


def test_a_transform_may_make_other_fields_and_tensors(packed: dict[str, Path], pixels: list[Any]) -> None:
    def transform(sample: dict[str, Any]) -> dict[str, Any]:
        image = torch.from_numpy(sample["image"]).permute(2, 0, 1).float()
        return {"tensor": image, "flag": sample["label"] > 2, "half": 0.5, "name": "x", "nothing": None, "boxes": sample["boxes"]}

    batch = collated(fastdata.Dataset(packed["mmap"], transform=transform), [1, 3])
    assert batch["tensor"].dtype == torch.float32
    assert np.array_equal(batch["tensor"].numpy(), np.stack([pixels[1], pixels[3]]).transpose(0, 3, 1, 2))
    assert (batch["flag"].dtype, batch["flag"].tolist()) == (torch.bool, [False, True])
    assert (batch["half"].dtype, batch["half"].tolist()) == (torch.float32, [0.5, 0.5])
    assert (batch["name"], batch["nothing"]) == (["x", "x"], [None, None])
    assert batch["boxes.length"].tolist() == [1, 3]


def test_a_transform_of_a_picture_keeps_it_a_picture(packed: dict[str, Path], pixels: list[Any]) -> None:
    dataset = fastdata.Dataset(packed["mmap"], fields=("image",), transform=lambda s: {"image": s["image"][::-1].astype(np.float32)})
    batch = collated(dataset, [2, 5])
    assert batch["image"].shape == (2, 3, 60, 80)
    assert np.array_equal(batch["image"][1].permute(1, 2, 0).numpy(), pixels[5][::-1])


@pytest.mark.parametrize(
    ("transform", "message"),
    [
        (lambda sample: None, "expected transform to give .*, got NoneType, at sample 0"),
        (lambda sample: {"a": 1} if sample["label"] == 0 else {"b": 1}, r"expected transform to give \['a'\], got \['b'\], at sample 1"),
    ],
)
def test_a_transform_that_gives_no_dict_or_other_fields_is_refused(
    packed: dict[str, Path], transform: Callable[[Any], Any], message: str
) -> None:
    with pytest.raises(fastdata.FastdataError, match=message):
        fastdata.Dataset(packed["mmap"], fields=("label",), transform=transform).__getitems__([0, 1])


def test_batch_transforms_run_in_turn_with_a_generator_keyed_by_the_tickets(packed: dict[str, Path]) -> None:
    def first(batch: dict[str, Any], rng: np.random.Generator) -> dict[str, Any]:
        assert isinstance(rng, np.random.Generator)
        assert batch["image"].shape == (len(batch["label"]), 60, 80, 3)
        return {**batch, "noise": rng.random(len(batch["label"]))}

    def second(batch: dict[str, Any], rng: np.random.Generator) -> dict[str, Any]:
        return {**batch, "more": batch["noise"] + rng.random(len(batch["label"]))}

    dataset = fastdata.Dataset(packed["mmap"], fields=("image", "label"), batch_transforms=(first, second))
    tickets = tickets_for([1, 2, 3])
    batches = [dataset.__getitems__(t).batch for t in (tickets, tickets, tickets_for([1, 2, 3], epoch=1), tickets[::-1])]
    assert list(batches[0]) == ["image", "label", "noise", "more"]
    assert np.array_equal(batches[0]["noise"], batches[1]["noise"])
    assert np.array_equal(batches[0]["more"], batches[1]["more"])
    assert len({batch["noise"][0] for batch in batches}) == 3
    assert not np.intersect1d(batches[0]["more"] - batches[0]["noise"], batches[0]["noise"]).size


def test_normalize_gives_torchvisions_formula(packed: dict[str, Path], pixels: list[Any]) -> None:
    mean, std = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)
    dataset = fastdata.Dataset(packed["mmap"], fields=("image",), batch_transforms=(fastdata.Normalize(mean, std),))
    batch = collated(dataset, [0, 4])
    wanted = (np.stack([pixels[0], pixels[4]]) / 255 - mean) / std
    assert batch["image"].dtype == torch.float32
    np.testing.assert_allclose(batch["image"].permute(0, 2, 3, 1).numpy(), wanted, atol=2e-6)


# Samples that cannot be loaded ------------------------------------------------------------------------------------------------------


def open_damaged(path: Path, on_error: str, **options: Any) -> fastdata.Dataset:
    return fastdata.Dataset(path, fields=("image", "label", "index", "key"), on_error=on_error, **options)


DECODES = [{"image": CROP}, {}]


@pytest.mark.parametrize("decode", DECODES)
def test_raise_names_shard_sample_key_and_field(damaged: Path, decode: dict[str, Any]) -> None:
    dataset = open_damaged(damaged, "raise", decode=decode)
    for load in (
        lambda: dataset[3],
        lambda: dataset.__getitems__([1, 3]),
        lambda: dataset.select([3])[0],
        lambda: fastdata.concat([dataset, dataset])[NUM + 3],
    ):
        with pytest.raises(fastdata.DataError, match=r"field 'image' of sample 3 of .*00000\.tar \(key 's/03.png'\)"):
            load()
    assert dataset[5]["label"] == 0


@pytest.mark.parametrize("decode", DECODES)
def test_substitute_keeps_the_batch_size_and_draws_the_same_sample_for_the_same_ticket(damaged: Path, decode: dict[str, Any]) -> None:
    """Case 107."""
    dataset = open_damaged(damaged, "substitute", decode=decode)
    tickets = tickets_for([2, 3, 4, 3, 5])
    found = dataset.__getitems__(tickets)
    assert len(found) == 5
    indices = found.batch["index"].tolist()
    assert (indices[0], indices[4]) == (2, 5)
    assert not {3, 4} & set(indices)
    assert found.batch["label"].tolist() == [i % 5 for i in indices]
    assert found.batch["key"] == [f"s/{i:02d}.png" for i in indices]
    assert [re.search(r"sample (\d+) of", error)[1] for error in found.errors] == ["3", "4", "3"]  # type: ignore[index]
    again = dataset.__getitems__(tickets)
    assert again.batch["index"].tolist() == indices
    assert np.array_equal(again.batch["image"], found.batch["image"])
    others = {tuple(dataset.__getitems__(tickets_for([3] * 8, seed=seed)).batch["index"].tolist()) for seed in range(4)}
    assert len(others) == 4
    batch = fastdata.Collate()(found)
    assert batch["image"].shape[:2] == (5, 3)


@pytest.mark.parametrize("decode", DECODES)
def test_substitutes_are_whole_samples_of_their_own(damaged: Path, pixels: list[Any], decode: dict[str, Any]) -> None:
    dataset = open_damaged(damaged, "substitute", decode=decode)
    found = dataset.__getitems__(tickets_for([3, 4]))
    for sample in found:
        if not decode:
            assert np.array_equal(sample["image"], pixels[sample["index"]])
        assert sample["image"].any()


@pytest.mark.parametrize("decode", DECODES)
def test_shorten_leaves_bad_samples_out(damaged: Path, decode: dict[str, Any]) -> None:
    """Case 107."""
    dataset = open_damaged(damaged, "shorten", decode=decode)
    found = dataset.__getitems__(tickets_for([2, 3, 4, 5]))
    assert len(found) == 2
    assert found.batch["index"].tolist() == [2, 5]
    assert found.batch["key"] == ["s/02.png", "s/05.png"]
    assert len(found.errors) == 2
    batch = fastdata.Collate()(found)
    assert batch["image"].shape[:2] == (2, 3)
    assert batch["label"].tolist() == [2, 0]


@pytest.mark.parametrize("decode", DECODES)
@pytest.mark.parametrize("wrap", ["dataset", "view", "concat"])
def test_a_batch_is_never_empty(damaged: Path, decode: dict[str, Any], wrap: str) -> None:
    """Case 107: where all would be left out, one substitute takes their place."""
    dataset: Base = open_damaged(damaged, "shorten", decode=decode)
    tickets = [3, 4, 3]
    if wrap == "view":
        dataset, tickets = dataset.select([3, 4, 10, 11]), [0, 1]
    elif wrap == "concat":
        dataset, tickets = fastdata.concat([dataset, dataset.select([4, 3])]), [3, NUM, NUM + 1]
    found = dataset.__getitems__(tickets_for(tickets))
    assert len(found) == 1
    assert len(found.errors) == len(tickets)
    assert found.batch["key"][0] not in ("s/03.png", "s/04.png")
    if wrap == "view":
        assert found.batch["key"][0] in ("s/10.png", "s/11.png")
        assert found.batch["index"][0] in (2, 3)
    batch = fastdata.Collate()(found)
    assert batch["image"].shape[:2] == (1, 3)


@pytest.mark.parametrize("on_error", ["substitute", "shorten"])
def test_views_and_concatenations_mend_too(damaged: Path, on_error: str) -> None:
    dataset = open_damaged(damaged, on_error, decode={"image": CROP})
    both = fastdata.concat([dataset.select([1, 3]), dataset.select([4, 7])])
    found = both.__getitems__(tickets_for([3, 2, 1, 0]))
    keys = found.batch["key"]
    assert len(keys) == (4 if on_error == "substitute" else 2)
    assert (keys[0], keys[-1]) == ("s/07.png", "s/01.png")
    assert set(keys) == {"s/01.png", "s/07.png"}
    assert len(found.errors) == 2


def test_nothing_to_substitute_with_is_an_error_and_no_endless_loop(damaged: Path) -> None:
    for on_error in ("substitute", "shorten"):
        view = open_damaged(damaged, on_error).select([3, 4])
        with pytest.raises(fastdata.DataError, match=r"expected a substitute that loads.*sample [34] of"):
            view.__getitems__(tickets_for([0]))


def test_padding_of_an_exact_evaluation_goes_with_its_samples(damaged: Path) -> None:
    """Case 93."""
    dataset = open_damaged(damaged, "shorten", decode={"image": CROP})
    batch: list[int] = list(Batches(Sequential(NUM), 7, tail="exact", dataset=dataset))[-1]
    assert collated(dataset, batch)["valid"].tolist() == [True] * 3 + [False] * 3  # 21 22 23, and 0 1 2 (3) to fill up
    assert collated(dataset, batch)["index"].tolist() == [21, 22, 23, 0, 1, 2]


def test_a_shard_that_is_cut_short_is_named(packed: dict[str, Path], tmp_path: Path) -> None:
    """Cases 79, 63: the size is held against the table of shards when a shard is opened."""
    target = tmp_path / "out"
    fastdata.pack(make_samples(), target, to="lmdb", workers=1)
    (shard,) = (target / "shards").iterdir()
    size = shard.stat().st_size
    os.truncate(shard, size - 4096)
    dataset = fastdata.Dataset(target, fields=("image",))
    with pytest.raises(fastdata.DataError, match=rf"expected {size} bytes, got {size - 4096}.*00000\.lmdb.*cut short"):
        dataset[0]
    assert fastdata.Dataset(target, fields=("label",))[7]["label"] == 2


# Missing values ---------------------------------------------------------------------------------------------------------------------


def test_missing_values_are_marked(tmp_path: Path) -> None:
    samples: list[dict[str, Any]] = [
        {"image": as_png(0), "boxes": boxes_of(1), "size": 4, "name": "a"},
        {"image": None, "boxes": None, "size": None, "name": None},
        {"image": as_png(2), "boxes": boxes_of(3), "size": 6, "name": "c"},
    ]
    fastdata.pack(samples, tmp_path / "out", to="mmap", workers=1)
    dataset = fastdata.Dataset(tmp_path / "out", decode={"image": CROP})
    batch = collated(dataset, [0, 1, 2])
    for name in ("image", "boxes", "size", "name"):
        assert batch[f"{name}.valid"].tolist() == [True, False, True]
    assert not batch["image"][1].any()
    assert batch["boxes"].shape == (3, 3, 4)
    assert batch["boxes.length"].tolist() == [1, 0, 3]
    assert batch["boxes.mask"].tolist() == [[True, False, False], [False] * 3, [True] * 3]
    assert batch["size"].tolist() == [4, 0, 6]
    whole = collated(fastdata.Dataset(tmp_path / "out"), [0, 2])
    assert whole["image"].shape == (2, 3, 60, 80)


def test_marks_of_missing_values_survive_a_concatenation_with_a_dataset_that_misses_none(tmp_path: Path) -> None:
    for name, values in (("some", [1, None]), ("all", [3, 4])):
        fastdata.pack([{"x": 1.5, "size": value} for value in values], tmp_path / name, to="hdf5", workers=1)
    both = fastdata.concat([fastdata.Dataset(tmp_path / "some"), fastdata.Dataset(tmp_path / "all")])
    batch = collated(both, [0, 1, 2, 3])
    assert batch["size"].tolist() == [1, 0, 3, 4]
    assert batch["size.valid"].tolist() == [True, False, True, True]


# Processes, threads, memory ---------------------------------------------------------------------------------------------------------


def test_a_dataset_pickles_under_a_kilobyte_and_gives_the_same_samples(packed: dict[str, Path]) -> None:
    """Cases 65, 77."""
    for store in STORES:
        dataset = fastdata.Dataset(
            packed[store],
            fields=("image", "label", "key"),
            decode={"image": CROP},
            batch_transforms=(fastdata.Normalize((0,) * 3, (1,) * 3),),
        )
        tickets = tickets_for([1, 20])
        before = dataset.__getitems__(tickets).batch
        data = pickle.dumps(dataset)
        assert len(data) < 1024
        after = pickle.loads(data).__getitems__(tickets).batch
        assert np.array_equal(before["image"], after["image"])
        assert before["key"] == after["key"]


def test_views_and_concatenations_pickle(packed: dict[str, Path]) -> None:
    dataset = fastdata.Dataset(packed["lmdb"], fields=("meta", "label"))
    both = fastdata.concat([dataset.select([5, 2]), dataset])
    again = pickle.loads(pickle.dumps(both))
    assert rows(again) == [5, 2, *range(NUM)]
    assert again.fingerprint == both.fingerprint


def test_a_dataset_names_its_generation_wherever_it_goes(packed: dict[str, Path], tmp_path: Path) -> None:
    root = tmp_path / "out"
    fastdata.pack([{"x": i} for i in range(3)], root, to="hdf5", workers=1)
    data = pickle.dumps(fastdata.Dataset(root))
    newer = json.loads((root / "manifest.json").read_text())
    newer["generation"] = 1
    newer["fingerprint"] = "sha256:other"
    for path in (root / "manifests" / "1.json", root / "manifest.json"):
        path.write_text(json.dumps(newer))
    assert pickle.loads(data).manifest.generation == 0
    assert fastdata.Dataset(root).manifest.generation == 1


def _labels_of(view: Base, connection: Any) -> None:
    connection.send((len(view), view.__getitems__([0, 1, 499_999, 999_999]).batch["label"].tolist(), int(view.column("label").sum())))


def test_a_view_of_a_million_indices_pickles_small_and_works_in_a_spawned_process(packed: dict[str, Path]) -> None:
    """Case 76: the indices travel by a mapped file."""
    indices = np.random.default_rng(0).integers(0, NUM, 1_000_000)
    view = fastdata.Dataset(packed["lmdb"], fields=("label",)).select(indices)
    nested = view.select(np.arange(1_000_000)[::-1])
    for owner, wanted in ((view, indices), (nested, indices[::-1])):
        data = pickle.dumps(owner)
        assert len(data) < 2000
        again = pickle.loads(data)
        assert again.column("label").tolist() == (wanted % 5).tolist()
        assert len(pickle.dumps(again)) < 2000
    code = (
        "import pickle, sys\n"
        "view = pickle.load(sys.stdin.buffer)\n"
        "print(len(view), view.__getitems__([0, 1, 499_999, 999_999]).batch['label'].tolist(), int(view.column('label').sum()))"
    )
    other = subprocess.run([sys.executable, "-c", code], input=pickle.dumps(view), capture_output=True, check=True, env=_environment())
    labels = (indices % 5).tolist()
    assert other.stdout.decode().split(maxsplit=1) == [
        "1000000",
        f"{[labels[i] for i in (0, 1, 499_999, 999_999)]} {sum(labels)}\n",
    ]


def test_a_view_that_outlives_the_process_that_made_it_says_so(packed: dict[str, Path]) -> None:
    code = (
        "import pickle, sys, numpy as np, fastdata\n"
        "view = fastdata.Dataset(sys.argv[1]).select(np.zeros(1_000_000, np.int64))\n"
        "sys.stdout.buffer.write(pickle.dumps(view))"
    )
    other = subprocess.run([sys.executable, "-c", code, packed["mmap"]], capture_output=True, check=True, env=_environment())
    with pytest.raises(fastdata.DatasetError, match="the process that made the view has ended; save the indices"):
        pickle.loads(other.stdout)


def _environment() -> dict[str, str]:
    return {**os.environ, "PYTHONPATH": str(Path(fastdata.__file__).parents[1])}


@pytest.mark.parametrize("store", STORES)
def test_several_threads_read_at_once(packed: dict[str, Path], pixels: list[Any], store: str) -> None:
    dataset = fastdata.Dataset(packed[store], fields=("image", "boxes", "colour"))
    wrong: list[Any] = []

    def read(seed: int) -> None:
        try:
            for indices in np.random.default_rng(seed).integers(0, NUM, (12, 5)):
                batch = dataset.__getitems__(indices.tolist()).batch
                for place, i in enumerate(indices.tolist()):
                    same = np.array_equal(batch["image"][place], pixels[i]) and np.array_equal(batch["boxes"][place], boxes_of(i))
                    if not same or batch["colour"][place] != COLOURS[i % 3]:
                        wrong.append(i)
        except Exception as error:
            wrong.append(error)

    threads = [threading.Thread(target=read, args=(seed,)) for seed in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == []


@pytest.mark.parametrize("store", STORES)
def test_forked_processes_read_beside_their_parent_again_and_again(packed: dict[str, Path], pixels: list[Any], store: str) -> None:
    """Case 64: handles that the parent holds open are there at each fork."""
    dataset = fastdata.Dataset(packed[store], fields=("image", "label"))
    context = multiprocessing.get_context("fork")

    def read() -> None:
        for i in (3, 0, NUM - 1):
            assert np.array_equal(dataset.__getitems__([i]).batch["image"][0], pixels[i])

    read()
    for _ in range(5):
        children = [context.Process(target=read) for _ in range(2)]
        for child in children:
            child.start()
        read()
        for child in children:
            child.join()
        assert [child.exitcode for child in children] == [0, 0]
    read()


@pytest.mark.parametrize("store", STORES)
def test_a_fork_while_other_threads_read_leaves_the_child_able_to_read(packed: dict[str, Path], pixels: list[Any], store: str) -> None:
    """Cases 64, 71: a lock may be held, and a transaction be under way, at the moment of the fork."""
    # What is imported on first use is there: Python itself cannot fork while another thread imports.
    assert fastdata.Dataset(packed[store], fields=("image",))[0]
    dataset = fastdata.Dataset(packed[store], fields=("image",))
    ended = threading.Event()

    def reading() -> None:
        while not ended.is_set():
            dataset.__getitems__(list(range(NUM)))

    def check() -> None:
        torch.set_num_threads(1)
        assert np.array_equal(dataset.__getitems__([7]).batch["image"][0], pixels[7])

    threads = [threading.Thread(target=reading) for _ in range(2)]
    for thread in threads:
        thread.start()
    try:
        context = multiprocessing.get_context("fork")
        for _ in range(8):
            child = context.Process(target=check)
            child.start()
            child.join(60)
            code = child.exitcode
            child.kill()
            assert code == 0
    finally:
        ended.set()
        for thread in threads:
            thread.join()


def write_by_hand(root: Path, segments: list[tuple[Any, list[str]]]) -> None:
    """Write a dataset from the documented format: labels, keys and digests alone, one segment of columns for each generation."""
    first = 0
    for generation, (labels, keys) in enumerate(segments):
        folder = root / "columns" / str(generation)
        folder.mkdir(parents=True)
        np.save(folder / "label.npy", labels)
        np.save(folder / "digest.npy", np.zeros((len(labels), 16), dtype=np.uint8))
        encoded = [key.encode() for key in keys]
        np.save(folder / "key.npy", np.frombuffer(b"".join(encoded), dtype=np.uint8))
        np.save(folder / "key.offsets.npy", np.cumsum([0, *map(len, encoded)]).astype(np.int64))
        row = (generation, first, len(labels), f"shards/{generation:05d}.h5".encode(), 0, 0)
        names = [("shard", "<i8"), ("first", "<i8"), ("num_samples", "<i8"), ("name", "S32"), ("nbytes", "<i8"), ("crc32", "<u4")]
        np.save(folder / "shards.npy", np.array([row], dtype=names))
        first += len(labels)
    document = {
        "fastdata": 1,
        "generation": len(segments) - 1,
        "num_samples": first,
        "store": "hdf5",
        "fields": {"label": {"codec": "scalar", "dtype": "int64", "shape": [], "dense": False, "options": {}}},
        "columns": {"label": {"dtype": "int64", "shape": []}, "digest": {"dtype": "uint8", "shape": [16]}, "key": {"dtype": "str"}},
        "classes": None,
        "segments": [{"generation": g, "num_samples": len(labels)} for g, (labels, _) in enumerate(segments)],
        "options": {},
        "fingerprint": "sha256:by hand",
        "a key of a newer version": True,
    }
    (root / "manifests").mkdir()
    for path in (root / "manifests" / f"{len(segments) - 1}.json", root / "manifest.json"):
        path.write_text(json.dumps(document))


def test_several_segments_of_columns_are_one_column(tmp_path: Path) -> None:
    write_by_hand(tmp_path / "out", [(np.array([4, 5]), ["a", "bé"]), (np.array([6]), [""]), (np.array([7, 8]), ["dd", "e"])])
    dataset = fastdata.Dataset(tmp_path / "out", fields=("label", "key", "index"))
    assert dataset.column("label").tolist() == [4, 5, 6, 7, 8]
    assert not isinstance(dataset.column("label"), np.memmap)
    assert dataset.column("key").tolist() == ["a", "bé", "", "dd", "e"]
    assert dataset[3] == {"label": 7, "key": "dd", "index": 3}
    batch = dataset.__getitems__([4, 2, 1, 1]).batch
    assert batch["label"].tolist() == [8, 6, 5, 5]
    assert batch["key"] == ["e", "", "bé", "bé"]
    assert dataset.describe(3) == f"sample 0 of {tmp_path / 'out/shards/00002.h5'} (key 'dd')"


@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="resident memory is read from /proc")
def test_opening_ten_million_samples_takes_little_memory(tmp_path: Path) -> None:
    root = tmp_path / "out"
    write_by_hand(root, [(np.zeros(1, np.int64), ["x"])])
    num = 10_000_000
    document = json.loads((root / "manifest.json").read_text())
    document["num_samples"] = document["segments"][0]["num_samples"] = num
    (root / "manifest.json").write_text(json.dumps(document))
    labels = np.lib.format.open_memmap(root / "columns/0/label.npy", mode="w+", dtype=np.int64, shape=(num,))
    labels[1::2] = 1
    # Zeros are holes in the files: keys of no bytes.
    offsets = np.lib.format.open_memmap(root / "columns/0/key.offsets.npy", mode="w+", dtype=np.int64, shape=(num + 1,))
    digests = np.lib.format.open_memmap(root / "columns/0/digest.npy", mode="w+", dtype=np.uint8, shape=(num, 16))
    del labels, offsets, digests
    code = """
import sys, torch, numpy
import fastdata, fastdata.dataset, fastdata.samplers, fastdata.collate
def resident():
    lines = open("/proc/self/status").read().splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith("VmHWM:"))
before = resident()
dataset = fastdata.Dataset(sys.argv[1])
batches = fastdata.samplers.Batches(fastdata.samplers.Shuffle(len(dataset)), 64, dataset=dataset)
labels = fastdata.Collate()(dataset.__getitems__(next(iter(batches))))["label"]
assert len(dataset) == 10_000_000 and dataset[9_999_999]["label"] == 1 and set(labels.tolist()) == {0, 1}
assert len(dataset.column("label")) == 10_000_000
print(resident() - before)
"""
    found = subprocess.run([sys.executable, "-c", code, root], capture_output=True, text=True, env=_environment())
    assert found.returncode == 0, found.stderr
    assert int(found.stdout) < 50_000_000


# The batch as a sequence ------------------------------------------------------------------------------------------------------------


def test_a_batch_is_also_a_sequence_of_samples(dataset: fastdata.Dataset, pixels: list[Any]) -> None:
    found = dataset.__getitems__([2, 5, 9])
    assert isinstance(found, Samples)
    assert len(found) == 3
    assert [sample["meta"]["number"] for sample in found] == [2, 5, 9]
    assert found[-1]["meta"]["number"] == 9
    assert [sample["label"] for sample in found[1:]] == [0, 4]
    assert np.array_equal(found[1]["image"], pixels[5])
    for index in (3, -4):
        with pytest.raises(IndexError):
            found[index]


def test_opening_what_is_no_dataset_says_what_is_there(tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    (tmp_path / "x.partial").mkdir()
    for name, message in (
        ("nothing", "got nothing"),
        ("empty", "got a folder without one"),
        ("x", "incomplete"),
        ("x.partial", "incomplete"),
    ):
        with pytest.raises(fastdata.DatasetError, match=message):
            fastdata.Dataset(tmp_path / name)


def test_a_pickled_view_whose_maker_is_gone_is_refused_and_never_another_ones(packed: dict[str, Path]) -> None:
    dataset = fastdata.Dataset(packed["tar"], fields=("label",))
    state = pickle.dumps(dataset.select(np.zeros(200_000, dtype=np.int64)))
    gc.collect()
    other = dataset.select(np.ones(200_000, dtype=np.int64))
    pickle.dumps(other)
    with pytest.raises(fastdata.DatasetError, match="save the indices"):
        pickle.loads(state)


@pytest.mark.parametrize("store", ["hdf5", "lmdb"])
def test_a_shard_that_the_caller_has_open_is_read_or_told_of(store: str, packed: dict[str, Path]) -> None:
    shard = sorted((packed[store] / "shards").iterdir())[0]
    dataset = fastdata.Dataset(packed[store], fields=("image",), on_error="substitute")
    if store == "hdf5":
        import h5py

        with h5py.File(shard):
            assert dataset[0]["image"].ndim == 3
    else:
        import lmdb

        with lmdb.open(str(shard), subdir=False, readonly=True, lock=False), pytest.raises(fastdata.DatasetError, match="close that first"):
            dataset[0]


def test_a_dataset_that_was_moved_away_says_so(packed: dict[str, Path], tmp_path: Path) -> None:
    shutil.copytree(packed["mmap"], tmp_path / "a")
    dataset = fastdata.Dataset(tmp_path / "a")
    (tmp_path / "a").rename(tmp_path / "b")
    with pytest.raises(fastdata.DatasetError, match="got nothing, at"):
        dataset[0]

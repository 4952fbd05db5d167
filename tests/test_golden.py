"""Datasets of older versions stay readable: every value of every golden dataset against the formulas it was made from."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest

from fastdata import manifest as manifests
from fastdata import registry
from fastdata.dataset import Dataset
from fastdata.packing.verify import verify

FOLDER = Path(__file__).parent / "golden"
STORES = registry.names("fastdata.stores")


def load_formulas() -> ModuleType:
    spec = importlib.util.spec_from_file_location("golden_make", FOLDER / "make.py")
    assert spec
    assert spec.loader
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


FORMULAS: Any = load_formulas()
NUM_SAMPLES: int = FORMULAS.NUM_SAMPLES


@pytest.mark.parametrize("store", STORES)
def test_every_value_of_version_1_is_that_of_the_formula(store: str) -> None:
    dataset = Dataset(FOLDER / f"v1-{store}")
    assert dataset.manifest.store == store
    assert len(dataset) == NUM_SAMPLES == 12
    assert dataset.classes == FORMULAS.CLASSES
    assert dataset.outputs == ("image", "boxes", "text", "note", "city", "weight", "label")
    for i in range(NUM_SAMPLES):
        sample = dataset[i]
        picture = FORMULAS.picture(i)
        assert sample["image.valid"] == (picture is not None)
        assert sample["image"] is None if picture is None else np.array_equal(sample["image"], picture)
        boxes = FORMULAS.boxes(i)
        assert sample["boxes.valid"] == (boxes is not None)
        if boxes is not None:
            assert sample["boxes"].dtype == np.float64
            assert np.array_equal(sample["boxes"], boxes)
        assert sample["text.valid"] == (FORMULAS.text(i) is not None)
        assert sample["text"] == FORMULAS.text(i)
        assert sample["note.valid"] == (FORMULAS.note(i) is not None)
        assert sample["note"] == FORMULAS.note(i)
        assert sample["city.valid"] == (FORMULAS.city(i) is not None)
        assert sample["city"] == (FORMULAS.city(i) or "")
        assert sample["weight.valid"] == (FORMULAS.weight(i) is not None)
        assert sample["weight"] == (FORMULAS.weight(i) or 0)
        assert sample["label.valid"] == (FORMULAS.label(i) is not None)
        assert sample["label"] == (FORMULAS.CLASSES.index(FORMULAS.label(i)) if FORMULAS.label(i) else 0)


@pytest.mark.parametrize("store", STORES)
def test_the_columns_of_version_1_are_those_of_the_formula(store: str) -> None:
    dataset = Dataset(FOLDER / f"v1-{store}")
    samples = range(NUM_SAMPLES)
    assert list(dataset.column("key")) == [FORMULAS.key(i) for i in samples]
    pictures, texts = [FORMULAS.picture(i) for i in samples], [FORMULAS.text(i) for i in samples]
    assert dataset.column("image.height").tolist() == [0 if p is None else p.shape[0] for p in pictures]
    assert dataset.column("image.width").tolist() == [0 if p is None else p.shape[1] for p in pictures]
    assert list(dataset.column("image.encoding")) == ["" if p is None else "png" for p in pictures]
    assert dataset.column("text.nbytes").tolist() == [-1 if t is None else len(t.encode()) for t in texts]
    boxes = [FORMULAS.boxes(i) for i in samples]
    assert dataset.column("boxes.nbytes").tolist() == [-1 if b is None else b.nbytes for b in boxes]
    assert dataset.column("boxes.length").tolist() == [0 if b is None else len(b) for b in boxes]


@pytest.mark.parametrize("store", ["hdf5", "mmap"])
def test_dense_arrays_of_version_1_are_those_of_the_formula(store: str) -> None:
    dataset = Dataset(FOLDER / f"v1-{store}-dense")
    assert all(field.dense for field in dataset.manifest.fields if field.codec != "scalar")
    for i in range(NUM_SAMPLES):
        sample, expected = dataset[i], FORMULAS.dense(i)
        assert sample.keys() == expected.keys()
        assert all(np.array_equal(sample[name], expected[name]) for name in expected)
        assert sample["matrix"].dtype == np.int16


def test_the_fingerprint_of_version_1_is_one_over_all_stores_and_follows_from_the_digests() -> None:
    found = {Dataset(FOLDER / f"v1-{store}").fingerprint for store in STORES}
    assert len(found) == 1
    assert Dataset(FOLDER / "v1-hdf5-dense").fingerprint == Dataset(FOLDER / "v1-mmap-dense").fingerprint
    for path in FOLDER.glob("v1-*"):
        dataset = Dataset(path)
        again = manifests.fingerprint(dataset.manifest.fields, dataset.classes, [dataset.column("digest").tobytes()])
        assert again == dataset.fingerprint


@pytest.mark.parametrize("path", sorted(FOLDER.glob("v1-*")), ids=lambda path: path.name)
def test_verify_finds_nothing_wrong_with_version_1(path: Path) -> None:
    verified = verify(path)
    assert verified.problems == []
    assert verified.num_samples == NUM_SAMPLES
    assert verified.num_shards == (1 if path.name.endswith("dense") else 2)


def test_golden_datasets_of_every_store_are_there_and_small() -> None:
    assert {path.name for path in FOLDER.glob("v1-*")} == {*(f"v1-{store}" for store in STORES), "v1-hdf5-dense", "v1-mmap-dense"}
    assert sum(path.stat().st_size for path in FOLDER.rglob("*") if path.is_file() and path.suffix != ".pyc") < 250_000

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import fastdata


@pytest.fixture(scope="module")
def pictures(tmp_path_factory: pytest.TempPathFactory) -> Path:
    target = tmp_path_factory.mktemp("measure") / "pictures"
    rng = np.random.default_rng(0)
    rows = [{"image": rng.integers(0, 256, (20 + i % 3, 30, 3), dtype=np.uint8), "label": i} for i in range(24)]
    fastdata.pack(rows, target, to="mmap", workers=1)
    return target


@pytest.fixture(scope="module")
def texts(tmp_path_factory: pytest.TempPathFactory) -> Path:
    target = tmp_path_factory.mktemp("measure") / "texts"
    fastdata.pack([{"text": "word " * (50 + i)} for i in range(10)], target, to="lmdb", workers=1)
    return target


@pytest.mark.parametrize("workers", [0, 1])
def test_a_bench_gives_positive_numbers_that_agree_with_each_other(pictures: Path, workers: int) -> None:
    found = fastdata.bench(pictures, batch_size=8, workers=workers, epochs=3)
    assert (found["path"], found["store"], found["num_samples"], found["batch_size"]) == (str(pictures), "mmap", 24, 8)
    assert (found["workers"], found["epochs"], found["crop"]) == (workers, 3, 224)
    for name in ("samples_per_s", "mb_per_s", "first_batch_s", "peak_memory_mb"):
        assert math.isfinite(found[name])
        assert found[name] > 0
    assert len(found["samples_per_s_of_epochs"]) == 3
    assert found["samples_per_s"] == sorted(found["samples_per_s_of_epochs"])[1]
    nbytes = sum((20 + i % 3) * 30 * 3 for i in range(24)) / 24
    assert found["mb_per_s"] == pytest.approx(found["samples_per_s"] * nbytes / 1e6)
    assert found["peak_memory_mb"] > 10  # a process with torch in it


def test_what_is_no_picture_is_loaded_whole_and_one_batch_is_enough(texts: Path) -> None:
    found = fastdata.bench(str(texts), batch_size=64, workers=0, epochs=1)
    assert found["crop"] is None
    assert found["samples_per_s"] > 0
    assert found["samples_per_s_of_epochs"] == [found["samples_per_s"]]


def test_a_bench_takes_the_workers_that_the_loader_takes_by_itself(tmp_path: Path) -> None:
    fastdata.pack([{"x": i} for i in range(10)], tmp_path / "out", to="hdf5", workers=1)
    found = fastdata.bench(tmp_path / "out", batch_size=2)
    assert (found["workers"], found["epochs"]) == (0, 3)
    assert found["mb_per_s"] == 0  # columns alone: nothing is read from the shards


@pytest.mark.parametrize(
    ("options", "named"),
    [
        ({"epochs": 0}, "epochs"),
        ({"epochs": -1}, "epochs"),
        ({"batch_size": 0}, "batch.size"),
        ({"batch_size": -3}, "batch.size"),
        ({"workers": -1}, "workers"),
    ],
)
def test_arguments_that_cannot_be_meant_are_refused_by_name(texts: Path, options: dict[str, Any], named: str) -> None:
    with pytest.raises(fastdata.ArgumentError, match=named):
        fastdata.bench(texts, **options)


def test_a_folder_that_is_no_dataset_is_refused(tmp_path: Path) -> None:
    with pytest.raises(fastdata.DatasetError, match="expected a dataset"):
        fastdata.bench(tmp_path)

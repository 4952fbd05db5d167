from __future__ import annotations

import gc
import json
import multiprocessing
import os
import pickle
import random
import signal
import subprocess
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.utils.data
from PIL import Image

import fastdata
from fastdata.loader.tuning import auto_workers
from fastdata.samplers import Batches, Sequential, Shuffle

NUM = 36
CROP = fastdata.RandomResizedCrop(24, flip=True)
ROOT = Path(fastdata.__file__).parents[1]


def flat(lists: Iterable[list[Any]]) -> list[Any]:
    return [value for one in lists for value in one]


def open_photos(path: Path, **options: Any) -> fastdata.Dataset:
    return fastdata.Dataset(path, fields=("image", "label", "index", "key"), decode={"image": CROP}, **options)


def two_epochs(loader: Any) -> list[list[Any]]:
    return [list(loader) for _ in range(2)]


def assert_batches_equal(found: list[Any], expected: list[Any]) -> None:
    assert len(found) == len(expected)
    for one, other in zip(found, expected, strict=True):
        assert list(one) == list(other)
        for name, value in one.items():
            if isinstance(value, torch.Tensor):
                assert value.dtype == other[name].dtype
                assert torch.equal(value, other[name])
            else:
                assert value == other[name]


def as_ranks(monkeypatch: pytest.MonkeyPatch, rank: int, world_size: int) -> None:
    monkeypatch.setenv("RANK", str(rank))
    monkeypatch.setenv("WORLD_SIZE", str(world_size))


@pytest.fixture(scope="module")
def expected(packed: dict[str, Path]) -> list[list[Any]]:
    """Every batch of two epochs, loaded without workers."""
    return two_epochs(fastdata.DataLoader(open_photos(packed["tar"]), 8, shuffle=True, seed=3, num_workers=0))


@pytest.fixture(scope="module")
def damaged(photos: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tar dataset in which sample 5 is no picture any more."""
    target = tmp_path_factory.mktemp("damaged") / "tar"
    fastdata.pack(photos, target, to="tar", workers=1)
    dataset = fastdata.Dataset(target)
    shard = target / "shards" / "00000.tar"
    data = bytearray(shard.read_bytes())
    start, nbytes = int(dataset.column("image.offset")[5]), int(dataset.column("image.nbytes")[5])
    data[start : start + nbytes] = bytes(value ^ 0xFF for value in data[start : start + nbytes])
    shard.write_bytes(data)
    return target


# Equal batches ----------------------------------------------------------------------------------------------------------------------


def test_an_epoch_without_workers_is_the_samplers_order_with_the_labels_and_keys_of_the_folder(
    expected: list[list[Any]], photos: Path
) -> None:
    files = sorted((p for p in photos.rglob("*.*")), key=lambda p: p.relative_to(photos).as_posix().encode())
    keys = [p.relative_to(photos).as_posix() for p in files]
    classes = ["ant", "bee", "cow"]
    for epoch, batches in enumerate(expected):
        order = Shuffle(NUM, seed=3).take(epoch, 0, NUM).tolist()
        assert [batch["image"].shape[0] for batch in batches] == [8, 8, 8, 8, 4]
        assert torch.cat([batch["index"] for batch in batches]).tolist() == order
        assert flat(batch["key"] for batch in batches) == [keys[i] for i in order]
        assert torch.cat([batch["label"] for batch in batches]).tolist() == [classes.index(keys[i].split("/")[0]) for i in order]


def test_the_second_epoch_has_another_order_and_other_crops(expected: list[list[Any]]) -> None:
    """Case 85."""
    first, second = ({int(i): image for b in epoch for i, image in zip(b["index"], b["image"], strict=True)} for epoch in expected)
    assert list(first) != list(second)
    assert first.keys() == second.keys()
    assert sum(torch.equal(first[i], second[i]) for i in first) == 0


def test_images_are_uint8_channels_last_and_labels_int64(expected: list[list[Any]]) -> None:
    batch = expected[0][0]
    assert batch["image"].shape == (8, 3, 24, 24)
    assert batch["image"].dtype == torch.uint8
    assert batch["image"].is_contiguous(memory_format=torch.channels_last)
    assert batch["label"].dtype == batch["index"].dtype == torch.int64
    assert list(batch) == ["image", "label", "index", "key"]
    assert type(batch) is dict


def test_whole_pictures_are_pillows_pixels(packed: dict[str, Path], photos: Path) -> None:
    dataset = fastdata.Dataset(packed["lmdb"], fields=("image", "key"))
    chosen = [i for i, key in enumerate(dataset.column("key").tolist()) if key.endswith(".png")]
    loader = fastdata.DataLoader(dataset.select(chosen), 1, num_workers=0)
    for batch in loader:
        pixels = np.asarray(Image.open(photos / batch["key"][0]).convert("RGB"))
        assert np.array_equal(batch["image"][0].permute(1, 2, 0).numpy(), pixels)


@pytest.mark.parametrize("store", ["lmdb", "mmap", "hdf5"])
def test_every_store_gives_the_same_pixels_without_workers(packed: dict[str, Path], expected: list[list[Any]], store: str) -> None:
    loader = fastdata.DataLoader(open_photos(packed[store]), 8, shuffle=True, seed=3, num_workers=0)
    for found, wanted in zip(two_epochs(loader), expected, strict=True):
        assert_batches_equal(found, wanted)


@pytest.mark.parametrize(
    ("store", "method", "workers", "persistent"),
    [
        ("tar", "fork", 2, True),
        ("lmdb", "fork", 2, False),
        ("mmap", "fork", 1, True),
        ("hdf5", "fork", 2, True),
        ("lmdb", "fork", 2, True),
        ("lmdb", "spawn", 2, True),
        ("hdf5", "spawn", 1, False),
        ("tar", "forkserver", 2, True),
    ],
)
def test_workers_and_start_methods_change_no_pixel_of_two_epochs(
    packed: dict[str, Path], expected: list[list[Any]], store: str, method: str, workers: int, persistent: bool
) -> None:
    """Cases 64, 65, 73, 85. Handles that the parent has open are there when the workers start."""
    dataset = open_photos(packed[store])
    assert dataset[0]["image"].shape == (24, 24, 3)
    loader = fastdata.DataLoader(
        dataset, 8, shuffle=True, seed=3, num_workers=workers, persistent_workers=persistent, multiprocessing_context=method
    )
    for found, wanted in zip(two_epochs(loader), expected, strict=True):
        assert_batches_equal(found, wanted)
    assert dataset[0]["label"] == 0


@pytest.mark.parametrize("workers", [0, 2])
def test_two_ranks_put_together_are_one(
    packed: dict[str, Path], expected: list[list[Any]], monkeypatch: pytest.MonkeyPatch, workers: int
) -> None:
    """Case 84: the permutation is shared, and augmentation goes with the sample."""
    shares = []
    for rank in range(2):
        as_ranks(monkeypatch, rank, 2)
        loader = fastdata.DataLoader(open_photos(packed["mmap"]), 4, shuffle=True, seed=3, num_workers=workers)
        assert len(loader) == 4
        shares.append(two_epochs(loader))
    for epoch in range(2):
        assert len(shares[0][epoch]) == len(shares[1][epoch]) == 4
        together = [
            {name: torch.cat([a[name], b[name]]) if isinstance(a[name], torch.Tensor) else a[name] + b[name] for name in a}
            for a, b in zip(shares[0][epoch], shares[1][epoch], strict=True)
        ]
        assert_batches_equal(together, expected[epoch][:4])


def test_views_and_concatenations_load_alike_with_and_without_workers(packed: dict[str, Path]) -> None:
    first, second = open_photos(packed["tar"]), open_photos(packed["lmdb"])
    both = fastdata.concat([first.filter(lambda c: c["label"] == 1), second.select([30, 2, 2, 17, -1])])
    runs = [two_epochs(fastdata.DataLoader(both, 5, shuffle=True, seed=8, num_workers=workers)) for workers in (0, 2)]
    for epoch in range(2):
        assert_batches_equal(runs[0][epoch], runs[1][epoch])
        indices = torch.cat([batch["index"] for batch in runs[0][epoch]]).tolist()
        assert indices == Shuffle(17, seed=8).take(epoch, 0, 17).tolist()
        labels = torch.cat([batch["label"] for batch in runs[0][epoch]]).tolist()
        assert labels == [([1] * 12 + [2, 0, 0, 1, 2])[i] for i in indices]


def test_batches_that_are_kept_stay_right(packed: dict[str, Path], expected: list[list[Any]]) -> None:
    """Case 81: a list of all batches is as good as a copy of each one as it came."""
    loader = fastdata.DataLoader(open_photos(packed["mmap"]), 8, shuffle=True, seed=3, num_workers=2)
    kept, copies = [], []
    for batch in loader:
        kept.append(batch)
        copies.append({name: value.clone() if isinstance(value, torch.Tensor) else list(value) for name, value in batch.items()})
    list(loader)
    del loader
    gc.collect()
    assert_batches_equal(kept, copies)
    assert_batches_equal(kept, expected[0])


@pytest.mark.parametrize("workers", [0, 2])
def test_a_pass_that_is_broken_off_is_followed_by_the_next_epoch_in_full(
    packed: dict[str, Path], expected: list[list[Any]], workers: int
) -> None:
    loader = fastdata.DataLoader(open_photos(packed["tar"]), 8, shuffle=True, seed=3, num_workers=workers)
    for batch in loader:
        assert_batches_equal([batch], expected[0][:1])
        break
    assert_batches_equal(list(loader), expected[1])


def test_set_epoch_of_the_loader_brings_an_epoch_back(packed: dict[str, Path], expected: list[list[Any]]) -> None:
    """Cases 85, 86: passes count by themselves until someone says which it is, and count on from there."""
    loader = fastdata.DataLoader(open_photos(packed["tar"]), 8, shuffle=True, seed=3, num_workers=2)
    loader.set_epoch(1)
    assert_batches_equal(list(loader), expected[1])
    loader.set_epoch(0)
    assert_batches_equal(list(loader), expected[0])
    assert_batches_equal(list(loader), expected[1])


def test_set_epoch_reaches_a_sampler_inside_of_torchs_batch_sampler(packed: dict[str, Path]) -> None:
    sampler = Shuffle(NUM, seed=1)
    stock = torch.utils.data.BatchSampler(sampler, 6, drop_last=False)
    loader = fastdata.DataLoader(open_photos(packed["tar"]), batch_sampler=stock, num_workers=0)
    loader.batch_sampler.sampler.set_epoch(4)
    assert torch.cat([batch["index"] for batch in loader]).tolist() == sampler.take(4, 0, NUM).tolist()


# Random numbers ---------------------------------------------------------------------------------------------------------------------


def draw_everywhere(sample: dict[str, Any]) -> dict[str, Any]:
    return {
        "index": sample["index"],
        "random": random.getrandbits(62),
        "numpy": int(np.random.randint(1 << 62)),
        "torch": int(torch.randint(1 << 62, ())),
    }


def test_numbers_drawn_in_a_transform_differ_by_sample_and_epoch_and_not_by_workers(packed: dict[str, Path]) -> None:
    """Cases 82, 85."""
    dataset = fastdata.Dataset(packed["mmap"], fields=("label", "index"), transform=draw_everywhere)
    runs = [
        two_epochs(
            fastdata.DataLoader(dataset, 5, shuffle=True, seed=0, num_workers=workers, multiprocessing_context="fork" if workers else None)
        )
        for workers in (0, 1, 2)
    ]
    for run in runs[1:]:
        for epoch in range(2):
            assert_batches_equal(run[epoch], runs[0][epoch])
    for name in ("random", "numpy", "torch"):
        drawn = [int(value) for epoch in runs[0] for batch in epoch for value in batch[name]]
        assert len(set(drawn)) == 2 * NUM


def test_another_seed_draws_other_numbers(packed: dict[str, Path]) -> None:
    dataset = fastdata.Dataset(packed["mmap"], fields=("label", "index"), transform=draw_everywhere)
    runs = [torch.cat([b["torch"] for b in fastdata.DataLoader(dataset, 6, seed=seed, num_workers=0)]).tolist() for seed in (0, 1, 0)]
    assert runs[0] == runs[2]
    assert not set(runs[0]) & set(runs[1])


def test_a_pass_without_workers_leaves_the_global_generators_alone(packed: dict[str, Path]) -> None:
    dataset = fastdata.Dataset(packed["mmap"], fields=("label", "index"), transform=draw_everywhere)
    states = random.getstate(), np.random.get_state()[1].tolist(), torch.default_generator.get_state()  # type: ignore[index, union-attr]
    list(fastdata.DataLoader(dataset, 6, shuffle=True, seed=0, num_workers=0))
    assert random.getstate() == states[0]
    assert np.random.get_state()[1].tolist() == states[1]  # type: ignore[index, union-attr]
    assert torch.equal(torch.default_generator.get_state(), states[2])


class GlobalDraws(torch.utils.data.Dataset[dict[str, Any]]):
    """Somebody's own dataset: draws from the global generators in __getitem__, and seeds nothing."""

    def __len__(self) -> int:
        return 12

    def __getitem__(self, index: int) -> dict[str, Any]:
        info = torch.utils.data.get_worker_info()
        return {
            "worker": -1 if info is None else info.id,
            "random": random.getrandbits(62),
            "numpy": int(np.random.randint(1 << 62)),
            "torch": int(torch.randint(1 << 62, ())),
        }


@pytest.mark.parametrize("persistent", [True, False])
def test_global_generators_of_workers_differ_by_worker_epoch_and_rank_and_come_again_with_the_seed(
    monkeypatch: pytest.MonkeyPatch, persistent: bool
) -> None:
    """Cases 82, 84."""
    runs = []
    for rank in (0, 1, 0):
        as_ranks(monkeypatch, rank, 2)
        loader = fastdata.DataLoader(
            GlobalDraws(), 1, shuffle=False, seed=7, num_workers=2, persistent_workers=persistent, multiprocessing_context="fork"
        )
        batches = [batch for epoch in two_epochs(loader) for batch in epoch]
        assert {int(batch["worker"]) for batch in batches} == {0, 1}
        runs.append({name: [int(batch[name]) for batch in batches] for name in ("random", "numpy", "torch")})
    assert runs[0] == runs[2]
    for name in ("random", "numpy", "torch"):
        drawn = runs[0][name] + runs[1][name]
        assert len(drawn) == 2 * 2 * 6
        assert len(set(drawn)) == len(drawn)


def test_the_callers_worker_init_fn_runs_in_every_worker_after_the_packages(packed: dict[str, Path]) -> None:
    def init(worker_id: int) -> None:
        assert torch.get_num_threads() == 1
        torch.utils.data.get_worker_info().dataset.mark = 100 + worker_id  # type: ignore[union-attr]

    class Marked(torch.utils.data.Dataset[int]):
        mark = -1

        def __len__(self) -> int:
            return 4

        def __getitem__(self, index: int) -> int:
            return self.mark

    loader = fastdata.DataLoader(Marked(), 1, num_workers=2, worker_init_fn=init, multiprocessing_context="fork")
    assert [int(batch) for batch in loader] == [100, 101, 100, 101]


# Defaults and refusals --------------------------------------------------------------------------------------------------------------


def test_options_for_workers_are_dropped_without_workers(packed: dict[str, Path], expected: list[list[Any]]) -> None:
    """Case 73."""
    loader = fastdata.DataLoader(
        open_photos(packed["tar"]),
        8,
        shuffle=True,
        seed=3,
        num_workers=0,
        prefetch_factor=2,
        persistent_workers=True,
        timeout=60,
        multiprocessing_context="fork",
    )
    assert (loader.prefetch_factor, loader.persistent_workers) == (None, False)
    assert_batches_equal(list(loader), expected[0])


def test_workers_are_persistent_and_prefetch_four_batches_unless_told_otherwise(packed: dict[str, Path]) -> None:
    dataset = open_photos(packed["tar"])
    loader = fastdata.DataLoader(dataset, 8, num_workers=1)
    assert (loader.prefetch_factor, loader.persistent_workers) == (4, True)
    loader = fastdata.DataLoader(dataset, 8, num_workers=1, prefetch_factor=2, persistent_workers=False)
    assert (loader.prefetch_factor, loader.persistent_workers) == (2, False)


def test_memory_is_pinned_where_there_is_cuda_unless_told_otherwise(packed: dict[str, Path]) -> None:
    dataset = open_photos(packed["tar"])
    assert fastdata.DataLoader(dataset, 8, num_workers=0).pin_memory == torch.cuda.is_available()
    assert fastdata.DataLoader(dataset, 8, num_workers=0, pin_memory=False).pin_memory is False


def test_workers_are_none_for_a_gather_and_one_to_eight_else(packed: dict[str, Path], numbers: Path) -> None:
    assert fastdata.DataLoader(fastdata.Dataset(numbers), 8).num_workers == 0
    assert fastdata.DataLoader(fastdata.Dataset(numbers, transform=dict), 8).num_workers >= 1
    assert fastdata.DataLoader(fastdata.Dataset(packed["mmap"], fields=("label",)), 8).num_workers == 0
    assert 1 <= fastdata.DataLoader(open_photos(packed["mmap"]), 8).num_workers <= 8
    assert 1 <= fastdata.DataLoader(open_photos(packed["mmap"]).select([1, 2]), 8).num_workers <= 8


def test_workers_are_shared_by_the_ranks_of_a_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("WORLD_SIZE", raising=False)
    counts = []
    for ranks in ("1", "2", "4", "1000"):
        monkeypatch.setenv("LOCAL_WORLD_SIZE", ranks)
        counts.append(auto_workers())
    assert counts == sorted(counts, reverse=True)
    assert counts[0] <= 8
    assert counts[-1] == 1
    monkeypatch.delenv("LOCAL_WORLD_SIZE")
    monkeypatch.setenv("WORLD_SIZE", "1000")
    assert auto_workers() == 1


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        ({"sampler": [0, 1], "shuffle": True}, ["sampler", "shuffle"]),
        ({"sampler": Shuffle(NUM), "shuffle": True}, ["sampler", "shuffle"]),
        ({"sampler": Shuffle(NUM, seed=1), "seed": 2}, ["sampler", "seed=2"]),
        ({"batch_sampler": [[0]], "batch_size": 4}, ["batch_sampler", "batch_size"]),
        ({"batch_sampler": [[0]], "shuffle": True}, ["batch_sampler", "shuffle"]),
        ({"batch_sampler": [[0]], "sampler": [0]}, ["batch_sampler", "sampler"]),
        ({"batch_sampler": [[0]], "drop_last": True}, ["batch_sampler", "drop_last"]),
        ({"batch_sampler": [[0]], "tail": "pad"}, ["batch_sampler", "tail"]),
        ({"batch_sampler": [[0]], "shuffle": True, "drop_last": True}, ["shuffle, drop_last"]),
        ({"batch_sampler": Batches(Shuffle(NUM, seed=1), 4), "seed": 2}, ["batch_sampler", "seed=2"]),
        ({"batch_size": 4, "drop_last": True, "tail": "pad"}, ["drop_last", "tail"]),
        ({"batch_size": 4, "tail": "cut"}, ["'cut'", "tail", "exact"]),
        ({"batch_size": 4, "sampler": [1, 2], "tail": "pad"}, ["sampler", "tail", "drop_last"]),
        ({"batch_size": None, "drop_last": True}, ["batch_size=None", "drop_last"]),
        ({"batch_size": None, "tail": "pad"}, ["batch_size=None", "tail"]),
        ({"batch_size": 0}, ["batch_size"]),
        ({"num_workers": -1}, ["num_workers"]),
        ({"num_workers": "all"}, ["num_workers", "'auto'"]),
        ({"num_workers": True}, ["num_workers"]),
    ],
)
def test_arguments_that_contradict_one_another_are_refused_by_name(
    packed: dict[str, Path], arguments: dict[str, Any], named: list[str]
) -> None:
    """Case 90."""
    with pytest.raises(fastdata.ArgumentError) as caught:
        fastdata.DataLoader(open_photos(packed["tar"]), **arguments)
    for word in named:
        assert word in str(caught.value)


@pytest.mark.parametrize(
    "arguments",
    [
        {},
        {"shuffle": False, "sampler": [0, 1]},
        {"shuffle": False, "sampler": Sequential(NUM)},
        {"batch_sampler": [[0, 1]], "shuffle": False, "drop_last": False},
        {"batch_sampler": [[0, 1]], "batch_size": 1},
        {"sampler": Shuffle(NUM, seed=2), "seed": 2},
        {"batch_size": 4, "drop_last": True, "tail": "drop"},
        {"batch_size": 4, "drop_last": False, "tail": "pad"},
        {"batch_size": 4, "drop_last": False, "tail": "drop"},  # the former is what torch's attribute says, and frameworks pass on
    ],
)
def test_defaults_and_arguments_that_agree_do_not_clash(packed: dict[str, Path], arguments: dict[str, Any]) -> None:
    """Case 90."""
    loader = fastdata.DataLoader(open_photos(packed["tar"]), num_workers=0, **arguments)
    assert len(next(iter(loader))["label"]) >= 1


def test_without_batches_shuffle_still_shuffles(packed: dict[str, Path]) -> None:
    loader = fastdata.DataLoader(open_photos(packed["tar"]), None, shuffle=True, seed=5, num_workers=0)
    for epoch in range(2):
        assert [int(sample["index"]) for sample in loader] == Shuffle(NUM, seed=5).take(epoch, 0, NUM).tolist()


class Stream(torch.utils.data.IterableDataset[int]):
    def __iter__(self) -> Iterator[int]:
        yield from range(6)


@pytest.mark.parametrize("arguments", [{"shuffle": True}, {"tail": "pad"}, {"sampler": [0]}])
def test_an_iterable_dataset_refuses_an_order_and_a_tail(arguments: dict[str, Any]) -> None:
    with pytest.raises((fastdata.ArgumentError, ValueError), match=next(iter(arguments))):
        fastdata.DataLoader(Stream(), 2, num_workers=0, **arguments)


def test_an_iterable_dataset_is_batched() -> None:
    assert [batch.tolist() for batch in fastdata.DataLoader(Stream(), 4, num_workers=0)] == [[0, 1, 2, 3], [4, 5]]


def test_a_lambda_that_spawned_workers_cannot_get_is_refused_with_the_cure(packed: dict[str, Path]) -> None:
    """Case 67."""
    dataset = open_photos(packed["tar"], transform=lambda sample: sample)
    loader = fastdata.DataLoader(dataset, 8, num_workers=1, multiprocessing_context="spawn")
    with pytest.raises(fastdata.ArgumentError, match=r"lambda.*top level of a module.*multiprocessing_context='fork'"):
        iter(loader)
    loader = fastdata.DataLoader(
        open_photos(packed["tar"]), 8, collate_fn=lambda samples: samples, num_workers=1, multiprocessing_context="spawn"
    )
    with pytest.raises(fastdata.ArgumentError, match="collate_fn"):
        iter(loader)


# With torch's own parts -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("workers", [0, 2])
def test_torchs_loader_gives_images_height_width_channel_and_other_crops_each_epoch(packed: dict[str, Path], workers: int) -> None:
    """Case 85, without the package's loader and with persistent workers."""
    loader = torch.utils.data.DataLoader(
        open_photos(packed["lmdb"]),
        batch_size=8,
        shuffle=True,
        num_workers=workers,
        persistent_workers=workers > 0,
        multiprocessing_context="fork" if workers else None,
    )
    epochs = two_epochs(loader)
    crops: list[dict[int, torch.Tensor]] = []
    for batches in epochs:
        assert [tuple(batch["image"].shape) for batch in batches] == [(8, 24, 24, 3)] * 4 + [(4, 24, 24, 3)]
        assert batches[0]["image"].dtype == torch.uint8
        crops.append({int(i): image for b in batches for i, image in zip(b["index"], b["image"], strict=True)})
        assert sorted(crops[-1]) == list(range(NUM))
    assert not any(torch.equal(crops[0][i], crops[1][i]) for i in range(NUM))


def test_torchs_loader_takes_our_sampler(packed: dict[str, Path]) -> None:
    sampler = Shuffle(NUM, seed=4)
    loader = torch.utils.data.DataLoader(open_photos(packed["tar"]), batch_size=6, sampler=sampler)
    for epoch in range(2):
        assert torch.cat([batch["index"] for batch in loader]).tolist() == sampler.take(epoch, 0, NUM).tolist()
    assert len(loader) == 6


def test_torchs_loader_takes_our_batches_and_collate_and_gives_what_our_loader_gives(
    packed: dict[str, Path], expected: list[list[Any]]
) -> None:
    dataset = open_photos(packed["tar"])
    batches = Batches(Shuffle(NUM, seed=3), 8, dataset=dataset)
    loader = torch.utils.data.DataLoader(dataset, batch_sampler=batches, collate_fn=fastdata.Collate())
    for found, wanted in zip(two_epochs(loader), expected, strict=True):
        assert_batches_equal(found, wanted)


def test_our_loader_takes_a_sampler_of_torch_and_any_dataset(packed: dict[str, Path]) -> None:
    generator = torch.Generator().manual_seed(0)
    loader = fastdata.DataLoader(
        open_photos(packed["tar"]),
        6,
        sampler=torch.utils.data.RandomSampler(range(NUM), generator=generator),
        num_workers=0,
    )
    wanted = list(torch.utils.data.RandomSampler(range(NUM), generator=torch.Generator().manual_seed(0)))
    assert torch.cat([batch["index"] for batch in loader]).tolist() == wanted
    tensors = torch.utils.data.TensorDataset(torch.arange(10), torch.arange(10) * 2)
    ours = fastdata.DataLoader(tensors, 4, shuffle=True, seed=2, num_workers=0)
    values = [(a.tolist(), b.tolist()) for a, b in ours]
    order = Shuffle(10, seed=2).take(0, 0, 10).tolist()
    assert flat(a for a, _ in values) == order
    assert flat(b for _, b in values) == [2 * i for i in order]


def test_a_loader_can_be_made_anew_from_its_attributes(packed: dict[str, Path], expected: list[list[Any]]) -> None:
    """As frameworks do: every argument of torch's is there under its name, and a second init changes nothing."""
    loader = fastdata.DataLoader(open_photos(packed["tar"]), 8, shuffle=True, seed=3, num_workers=2)
    names = ("dataset", "batch_sampler", "num_workers", "collate_fn", "pin_memory", "worker_init_fn", "generator", "prefetch_factor")
    again = fastdata.DataLoader(**{name: getattr(loader, name) for name in names})
    assert_batches_equal(list(again), expected[0])


# Errors -----------------------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("workers", [0, 2])
def test_an_error_names_shard_sample_key_and_field(damaged: Path, workers: int) -> None:
    loader = fastdata.DataLoader(open_photos(damaged), 4, num_workers=workers)
    message = ""
    try:
        list(loader)
    except fastdata.DataError as error:
        message = str(error)
    key = fastdata.Dataset(damaged).column("key")[5]
    for word in ("sample 5", "00000.tar", repr(key), "field 'image'"):
        assert word in message
    assert "Traceback" not in message
    assert "\n" not in message


def test_what_is_no_dataset_seed_or_epoch_is_refused(packed: dict[str, Path]) -> None:
    dataset = open_photos(packed["tar"])
    with pytest.raises(fastdata.ArgumentError, match=r"got the str 'out/'; open it with fastdata.Dataset"):
        fastdata.DataLoader("out/")
    with pytest.raises(fastdata.ArgumentError, match="expected a whole number, got 'a', at seed"):
        fastdata.DataLoader(dataset, seed="a")  # type: ignore[arg-type]
    with pytest.raises(fastdata.ArgumentError, match="sampler of at most 36 samples"):
        fastdata.DataLoader(dataset, sampler=fastdata.samplers.Shuffle(37))
    with pytest.raises(fastdata.ArgumentError, match="expected an epoch of at least 0, got -1"):
        fastdata.DataLoader(dataset, shuffle=True).set_epoch(-1)
    with pytest.raises(fastdata.ArgumentError, match=r"expected at least 1, got 2\.5, at batch_size"):
        fastdata.DataLoader(dataset, 2.5)  # type: ignore[arg-type]
    crop = fastdata.RandomResizedCrop(8)
    with pytest.raises(fastdata.ArgumentError, match="expected a dict such as"):
        fastdata.Dataset(packed["tar"], decode=crop)  # type: ignore[arg-type]
    with pytest.raises(fastdata.ArgumentError, match="put it into a list"):
        fastdata.Dataset(packed["tar"], batch_transforms=fastdata.Normalize((0, 0, 0), (1, 1, 1)))  # type: ignore[arg-type]


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("on_error", ["substitute", "shorten"])
def test_the_loader_counts_samples_that_were_replaced_or_left_out(damaged: Path, workers: int, on_error: str) -> None:
    """Case 107."""
    loader = fastdata.DataLoader(open_photos(damaged, on_error=on_error), 4, seed=1, num_workers=workers)
    with pytest.warns(UserWarning, match="sample 5"):
        batches = list(loader)
    assert [len(batch["label"]) for batch in batches] == [4, 4 if on_error == "substitute" else 3, *[4] * 7]
    assert [batch["image"].shape[0] for batch in batches] == [len(batch["label"]) for batch in batches]
    assert loader.num_errors == 1
    assert "sample 5" in loader.errors[0]
    list(loader)
    assert loader.num_errors == 2
    assert all(set(batch) == {"image", "label", "index", "key"} for batch in batches)


def test_a_transform_that_fails_in_a_worker_names_the_sample_and_itself(packed: dict[str, Path]) -> None:
    def fail(sample: dict[str, Any]) -> dict[str, Any]:
        raise ZeroDivisionError("by nought")

    dataset = fastdata.Dataset(packed["tar"], fields=("label", "key"), transform=fail)
    loader = fastdata.DataLoader(dataset, 4, num_workers=1, multiprocessing_context="fork")
    with pytest.raises(fastdata.FastdataError, match=r"transform(.|\n)*ZeroDivisionError: by nought(.|\n)*sample 0 of"):
        list(loader)


# Processes and memory ---------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("persistent", [True, False])
def test_no_worker_survives_its_loader(packed: dict[str, Path], persistent: bool) -> None:
    """Case 72."""
    before = set(multiprocessing.active_children())
    loader = fastdata.DataLoader(open_photos(packed["lmdb"]), 4, num_workers=2, persistent_workers=persistent)
    passing = iter(loader)
    next(passing)
    workers = set(multiprocessing.active_children()) - before
    assert len(workers) == 2
    del passing, loader
    gc.collect()
    for worker in workers:
        worker.join(10)
    assert not any(worker.is_alive() for worker in workers)
    assert set(multiprocessing.active_children()) <= before


def test_no_worker_survives_an_error_whether_or_not_garbage_is_collected(damaged: Path) -> None:
    before = set(multiprocessing.active_children())
    gc.disable()
    try:
        loader = fastdata.DataLoader(open_photos(damaged), 4, num_workers=2)
        failed = False
        try:
            list(loader)
        except fastdata.DataError:
            failed = True
        assert failed
        del loader
        assert set(multiprocessing.active_children()) <= before
    finally:
        gc.enable()


def test_what_workers_are_sent_is_small_whatever_the_number_of_samples(packed: dict[str, Path]) -> None:
    """Cases 76, 77."""
    view = open_photos(packed["mmap"]).select(np.arange(1_000_000) % NUM)
    loader = fastdata.DataLoader(view, 8, shuffle=True, seed=0, num_workers=2)
    sent = (loader.dataset, loader.collate_fn, loader.worker_init_fn)
    assert len(pickle.dumps(sent)) < 3000
    assert len(pickle.dumps(loader.batch_sampler)) < 3000
    first = next(iter(loader))
    assert first["index"].tolist() == Shuffle(1_000_000, seed=0).take(0, 0, 8).tolist()


# Ranks ------------------------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("workers", [0, 1, 2])
def test_an_epoch_has_its_number_of_batches_whatever_the_workers(numbers: Path, workers: int) -> None:
    """Case 98."""
    loader = fastdata.DataLoader(fastdata.Dataset(numbers), 8, num_workers=workers)
    for _ in range(2):
        values = [batch["value"].tolist() for batch in loader]
        assert len(values) == len(loader) == 100
        assert flat(values) == [3 * i for i in range(800)]


RANK = """
import json, sys
import torch
import torch.distributed as dist
import fastdata
import fastdata.distributed

rank, store, photos, numbers, target = int(sys.argv[1]), *sys.argv[2:]
dist.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=2)

def run(path, fields, workers, **options):
    dataset = fastdata.Dataset(path, fields=fields)
    loader = fastdata.DataLoader(dataset, num_workers=workers, **options)
    epochs = []
    for _ in range(2):
        batches = []
        for batch in loader:
            dist.all_reduce(torch.zeros(1))  # as in training: a rank with fewer batches would leave the other waiting
            valid = batch["valid"].tolist() if "valid" in batch else None
            batches.append([batch["index"].tolist(), valid])
        epochs.append(batches)
    return {"len": len(loader), "epochs": epochs}

out = {
    "rank": fastdata.distributed.rank(),
    "world_size": fastdata.distributed.world_size(),
    "exact": run(photos, ("label", "index"), 0, batch_size=5),
    "drop": run(photos, ("label", "index"), 1, batch_size=5, shuffle=True, seed=9),
    "hundred": {workers: run(numbers, ("value", "index"), workers, batch_size=4, shuffle=True, seed=9) for workers in (0, 1, 2)},
}
with open(target, "w") as file:
    json.dump(out, file)
dist.destroy_process_group()
"""


def test_two_processes_share_an_epoch_and_count_each_sample_of_an_evaluation_once(
    packed: dict[str, Path], numbers: Path, tmp_path: Path
) -> None:
    """Cases 93, 94, 98, in real processes under gloo."""
    script = tmp_path / "rank.py"
    script.write_text(RANK)
    processes = [
        subprocess.Popen(
            [sys.executable, script, str(rank), tmp_path / "store", packed["mmap"], numbers, tmp_path / f"{rank}.json"],
            stderr=subprocess.PIPE,
            text=True,
            cwd=ROOT,
            env={**os.environ, "PYTHONPATH": str(ROOT)},
        )
        for rank in range(2)
    ]
    messages = [process.communicate(timeout=120)[1] for process in processes]
    assert [process.returncode for process in processes] == [0, 0], messages
    ranks = [json.loads((tmp_path / f"{rank}.json").read_text()) for rank in range(2)]
    assert [(one["rank"], one["world_size"]) for one in ranks] == [(0, 2), (1, 2)]

    # 36 samples in global batches of 10: four, the last with four that only fill up.
    for epoch in range(2):
        shares = [one["exact"]["epochs"][epoch] for one in ranks]
        assert [len(share) for share in shares] == [4, 4] == [one["exact"]["len"] for one in ranks]
        assert all(len(indices) == len(valid) == 5 for share in shares for indices, valid in share)
        counted = [i for share in shares for indices, valid in share for i, v in zip(indices, valid, strict=True) if v]
        assert sorted(counted) == list(range(NUM))

        shares = [one["drop"]["epochs"][epoch] for one in ranks]
        assert [len(share) for share in shares] == [3, 3] == [one["drop"]["len"] for one in ranks]
        order = Shuffle(NUM, seed=9).take(epoch, 0, 30).tolist()
        assert [a + b for (a, _), (b, _) in zip(*shares, strict=True)] == [order[i : i + 10] for i in range(0, 30, 10)]

        order = Shuffle(800, seed=9).take(epoch, 0, 800).tolist()
        for workers in ("0", "1", "2"):
            shares = [one["hundred"][workers]["epochs"][epoch] for one in ranks]
            assert [len(share) for share in shares] == [100, 100]
            assert flat(a + b for (a, _), (b, _) in zip(*shares, strict=True)) == order


# Several passes at once, and datasets that are replaced ----------------------------------------------------------------------------


@pytest.mark.parametrize("workers", [0, 1])
def test_two_passes_at_once_do_not_share_workers(numbers: Path, workers: int) -> None:
    loader = fastdata.DataLoader(fastdata.Dataset(numbers), 100, shuffle=True, seed=0, num_workers=workers)
    first, second = iter(loader), iter(loader)
    pairs = list(zip(first, second, strict=True))
    assert len(pairs) == 8
    for part in zip(*pairs, strict=True):
        assert sorted(torch.cat([batch["value"] for batch in part]).tolist()) == [3 * i for i in range(800)]
    assert sum(1 for _ in loader for _ in fastdata.DataLoader(fastdata.Dataset(numbers), 400, num_workers=0)) == 16


@pytest.fixture
def quiet_children() -> Iterator[None]:
    """Without torch's handler, which raises wherever the main thread happens to be when a worker dies; the loader notices by itself."""
    list(torch.utils.data.DataLoader(range(2), num_workers=1))  # type: ignore[arg-type]  # torch sets its handler once
    handler = signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    yield
    gc.collect()
    signal.signal(signal.SIGCHLD, handler)


# Killed while it hands over a descriptor, a worker leaves the standard library's half of the connection to the garbage collector.
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
@pytest.mark.usefixtures("quiet_children")
def test_a_loader_whose_worker_was_killed_serves_the_next_pass(numbers: Path) -> None:
    def kill(sample: dict[str, Any]) -> dict[str, Any]:
        if sample["value"] == 3 * 777 and not marker.exists():
            marker.touch()
            os.kill(os.getpid(), signal.SIGKILL)
        return sample

    marker = numbers.parent / "killed"
    dataset = fastdata.Dataset(numbers, transform=kill)
    loader = fastdata.DataLoader(dataset, 100, num_workers=1, multiprocessing_context="fork")
    with pytest.raises(fastdata.WorkerError, match=r"death of process [0-9]+ by SIGKILL; the system may have run out of memory"):
        list(loader)
    assert sum(len(batch["value"]) for batch in loader) == 800
    gc.collect()


@pytest.mark.parametrize("store", ["hdf5", "lmdb", "mmap", "tar"])
@pytest.mark.parametrize("workers", [0, 1])
def test_a_dataset_that_was_replaced_is_not_mixed_with_the_new_one(store: str, workers: int, tmp_path: Path) -> None:
    """Case 61: labels were opened from the old dataset, payloads would come from the new one."""
    images = np.repeat(np.arange(60, dtype=np.uint8), 12).reshape(60, 2, 2, 3)
    np.savez(tmp_path / "all.npz", image=images, label=np.arange(60))
    fastdata.pack(tmp_path / "all.npz", tmp_path / "out", to=store, shard_size=100, workers=1)
    dataset = fastdata.Dataset(tmp_path / "out")
    assert dataset.column("label")[3] == 3
    fastdata.pack(tmp_path / "all.npz", tmp_path / "out", to=store, shard_size=100, workers=1, shuffle=7, overwrite=True)
    message = ""
    try:
        list(fastdata.DataLoader(dataset, 16, num_workers=workers))
    except fastdata.DatasetError as error:
        message = str(error)
    assert "got another in its place" in message
    with pytest.raises(fastdata.DatasetError, match="got another in its place"):
        pickle.loads(pickle.dumps(dataset))
    for batch in fastdata.DataLoader(fastdata.Dataset(tmp_path / "out"), 16, num_workers=0):
        assert batch["image"][:, 0, 0, 0].tolist() == batch["label"].tolist()


@pytest.mark.usefixtures("quiet_children")
def test_a_loader_whose_worker_died_between_two_passes_serves_the_next_one(numbers: Path) -> None:
    before = set(multiprocessing.active_children())
    loader = fastdata.DataLoader(fastdata.Dataset(numbers), 100, num_workers=1)
    assert len(list(loader)) == 8
    (worker,) = set(multiprocessing.active_children()) - before
    os.kill(worker.pid, signal.SIGKILL)
    worker.join()
    assert len(list(loader)) == 8


def test_a_loader_pickles_after_it_was_used(numbers: Path) -> None:
    loader = fastdata.DataLoader(fastdata.Dataset(numbers), 100, num_workers=0)
    passing = iter(loader)
    next(passing)
    assert len(list(pickle.loads(pickle.dumps(loader)))) == 8


def test_batches_made_without_a_dataset_get_the_loaders(packed: dict[str, Path]) -> None:
    dataset = open_photos(packed["tar"])
    expected = list(fastdata.DataLoader(dataset, 4, shuffle=True, seed=3, num_workers=0))
    batches = Batches(Shuffle(len(dataset), seed=3), 4)
    assert_batches_equal(list(fastdata.DataLoader(dataset, batch_sampler=batches, num_workers=0)), expected)

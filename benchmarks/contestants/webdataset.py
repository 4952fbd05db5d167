"""WebDataset: a `ShardWriter` in each process, over a share of the files; its documentation leaves parallel writing to the user."""

from __future__ import annotations

import os
from collections.abc import Iterator
from multiprocessing import Pool
from pathlib import Path
from typing import Any

import webdataset

from benchmarks.contestants.base import SHARD_NBYTES, Photo, Task, Work, digest, list_photos, run, split


def store(task: Task) -> None:
    os.mkdir(task.out)
    shares = split(list_photos(task.photos), task.workers)
    with Pool(task.workers) as pool:
        pool.starmap(write, [(os.path.join(task.out, f"{i}-%06d.tar"), share) for i, share in enumerate(shares)])


def write(pattern: str, photos: list[Photo]) -> None:
    with webdataset.ShardWriter(pattern, maxsize=SHARD_NBYTES, verbose=0) as writer:
        for path, key, label in photos:
            writer.write({"__key__": key, "jpg": Path(path).read_bytes(), "cls": label})


def check(task: Task) -> dict[str, Any]:
    def stored() -> Iterator[tuple[str, int, bytes]]:
        shards = sorted(str(path) for path in Path(task.out).iterdir())
        for sample in webdataset.WebDataset(shards, shardshuffle=False):
            yield sample["__key__"], int(sample["cls"]), sample["jpg"]

    return digest(stored())


if __name__ == "__main__":
    run({"store": Work(store, check)}, "webdataset", "numpy")

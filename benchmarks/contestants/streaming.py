"""MosaicML Streaming: an `MDSWriter` in each process, over a share of the files, then `merge_index`, as its documentation has it.

The picture is a column of bytes: of one of type "jpeg" every file is opened twice, once by Pillow.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from multiprocessing import Pool
from pathlib import Path
from typing import Any

from streaming import MDSWriter, StreamingDataset
from streaming.base.util import merge_index

from benchmarks.contestants.base import SHARD_NBYTES, Photo, Task, Work, digest, list_photos, run, split


def store(task: Task) -> None:
    shares = split(list_photos(task.photos), task.workers)
    with Pool(task.workers) as pool:
        pool.starmap(write, [(os.path.join(task.out, str(i)), share) for i, share in enumerate(shares)])
    merge_index(task.out, keep_local=True)


def write(out: str, photos: list[Photo]) -> None:
    columns = {"image": "bytes", "key": "str", "label": "int"}
    with MDSWriter(out=out, columns=columns, size_limit=SHARD_NBYTES) as writer:
        for path, key, label in photos:
            writer.write({"image": Path(path).read_bytes(), "key": key, "label": label})


def check(task: Task) -> dict[str, Any]:
    def stored() -> Iterator[tuple[str, int, bytes]]:
        dataset = StreamingDataset(local=task.out, shuffle=False, batch_size=1)
        for i in range(dataset.num_samples):
            sample = dataset[i]
            yield sample["key"], int(sample["label"]), sample["image"]

    return digest(stored())


if __name__ == "__main__":
    run({"store": Work(store, check)}, "mosaicml-streaming", "torch", "torchvision", "numpy")

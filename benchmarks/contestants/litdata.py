"""LitData: `optimize` over the files. The picture is bytes: of its `Jpeg` the reader gives only pixels."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import litdata

from benchmarks.contestants.base import SHARD_NBYTES, Photo, Task, Work, digest, list_photos, run


def store(task: Task) -> None:
    litdata.optimize(
        fn=sample,
        inputs=list_photos(task.photos),
        output_dir=task.out,
        num_workers=task.workers,
        chunk_bytes=SHARD_NBYTES,
        **task.options,
    )


def sample(photo: Photo) -> dict[str, Any]:
    path, key, label = photo
    return {"image": Path(path).read_bytes(), "key": key, "label": label}


def check(task: Task) -> dict[str, Any]:
    def stored() -> Iterator[tuple[str, int, bytes]]:
        dataset = litdata.StreamingDataset(task.out)
        for i in range(len(dataset)):
            stored = dataset[i]
            yield stored["key"], int(stored["label"]), bytes(stored["image"])

    return digest(stored())


if __name__ == "__main__":
    run({"store": Work(store, check)}, "litdata", "torch", "numpy")

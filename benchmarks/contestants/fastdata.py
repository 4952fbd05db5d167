"""This package: `fastdata pack`, by its function of that name."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import cv2
import numpy as np

import fastdata
from benchmarks.contestants.base import Task, Work, digest, measures, run
from fastdata import manifest as manifests
from fastdata.stores.base import Shards


def pack(task: Task) -> None:
    fastdata.pack(task.photos, task.out, workers=task.workers, **task.options)


def check_bytes(task: Task) -> dict[str, Any]:
    def stored() -> Iterator[tuple[str, int, bytes]]:
        root = Path(task.out)
        manifest, columns = manifests.open_folder(root)
        table = manifests.ShardTable(root, manifest)
        image = next(field for field in manifest.fields if field.name == "image")
        shards = Shards(manifest.store, root, [image], table.first, table.num_samples, table.files, columns.slice, columns.check_unchanged)
        for i, (key, label) in enumerate(zip(columns.strings("key"), columns["label"].tolist(), strict=True)):
            yield _stem(key), label, bytes(shards.read(image, np.array([i]))[0])

    return digest(stored())


def check_pictures(task: Task) -> dict[str, Any]:
    def pictures() -> Iterator[tuple[str, int, int, int, Any]]:
        for sample in fastdata.Dataset(task.out, fields=("image", "label", "key")):
            height, width = sample["image"].shape[:2]
            yield _stem(sample["key"]), int(sample["label"]), width, height, cv2.mean(sample["image"])[:3]

    return measures(pictures())


def check_sizes(task: Task) -> dict[str, Any]:
    """Of what was decoded only to be sure of it, the columns tell."""
    _, columns = manifests.open_folder(Path(task.out))
    numbers = (columns[name].tolist() for name in ("label", "image.width", "image.height"))
    return measures((_stem(key), *rest, ()) for key, *rest in zip(columns.strings("key"), *numbers, strict=True))


def _stem(key: str) -> str:
    return key.rpartition(".")[0]


if __name__ == "__main__":
    run(
        {"store": Work(pack, check_bytes), "validate": Work(pack, check_sizes), "resize": Work(pack, check_pictures)},
        *("fastdata-torch", "numpy", "opencv-python-headless", "PyTurboJPEG", "simplejpeg", "lmdb"),
    )

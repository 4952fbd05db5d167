"""FFCV: a `DatasetWriter` over an indexable dataset of Pillow pictures, as its documentation has it, which limits the longer side.

Its loader decodes only into arrays of one shape, so the check reads where the pictures lie by its `Reader`, and decodes them by OpenCV.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import cv2
import numpy as np
from ffcv.fields import IntField, RGBImageField
from ffcv.reader import Reader
from ffcv.writer import DatasetWriter
from PIL import Image

from benchmarks.contestants.base import Task, Work, list_photos, measures, run


class Photos:
    def __init__(self, folder: str) -> None:
        self.photos = list_photos(folder)

    def __len__(self) -> int:
        return len(self.photos)

    def __getitem__(self, index: int) -> tuple[Image.Image, int]:
        photo = self.photos[index]
        return Image.open(photo.path).convert("RGB"), photo.label


def resize(task: Task) -> None:
    cv2.setNumThreads(1)  # its processes are its parallelism, as everybody's
    image = RGBImageField(write_mode="jpg", max_resolution=task.options["long_side"], jpeg_quality=task.options["quality"])
    writer = DatasetWriter(task.out, {"image": image, "label": IntField()}, num_workers=task.workers)
    writer.from_indexed_dataset(Photos(task.photos))


def check(task: Task) -> dict[str, Any]:
    def pictures() -> Iterator[tuple[str, int, int, int, Any]]:
        reader = Reader(task.out)
        data = np.memmap(task.out, np.uint8, "r")
        nbytes = dict(zip(reader.alloc_table["ptr"].tolist(), reader.alloc_table["size"].tolist(), strict=True))
        # Samples come in the order of the list; the file knows no keys.
        for photo, ((_, width, height, start), label) in zip(list_photos(task.photos), reader.metadata.tolist(), strict=True):
            image: Any = cv2.imdecode(data[start : start + nbytes[start]], cv2.IMREAD_COLOR)
            assert image.shape == (height, width, 3)
            yield photo.key, label, width, height, cv2.mean(image)[2::-1]

    return measures(pictures())


if __name__ == "__main__":
    run({"resize": Work(resize, check)}, "ffcv", "torch", "numpy", "opencv-python", "pillow", "numba")

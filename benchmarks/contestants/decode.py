"""The decoder alone, simplejpeg as in this package: every file is read and decoded, and nothing is kept but its size."""

from __future__ import annotations

import itertools
import json
from multiprocessing import Pool
from pathlib import Path
from typing import Any

import simplejpeg

from benchmarks.contestants.base import Photo, Task, Work, list_photos, measures, run, split


def decode(task: Task) -> None:
    with Pool(task.workers) as pool:
        found = pool.map(sizes, split(list_photos(task.photos), task.workers))
    Path(task.out).write_text(json.dumps(list(itertools.chain(*found))))


def sizes(photos: list[Photo]) -> list[tuple[str, int, int, int]]:
    found = []
    for path, key, label in photos:
        height, width, _ = simplejpeg.decode_jpeg(Path(path).read_bytes()).shape
        found.append((key, label, width, height))
    return found


def check(task: Task) -> dict[str, Any]:
    return measures((key, label, width, height, ()) for key, label, width, height in json.loads(Path(task.out).read_text()))


if __name__ == "__main__":
    run({"validate": Work(decode, check)}, "simplejpeg", "numpy")

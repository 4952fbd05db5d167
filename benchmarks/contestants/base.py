"""What a contestant is: a module that does a work on a clock, and in another process reads back what it wrote.

    python -m benchmarks.contestants.NAME '{"step": "do", "work": "store", "photos": ..., "out": ..., "workers": 2, "options": {}}'

    do      the work alone is timed: the package is imported, what it wrote is flushed to the disk afterwards     -> `Done`
    check   the package's own reader, without a clock                                                             -> `digest` or `measures`

The answer is one JSON object, the last line of stdout. What packages print goes to stderr. Every peer's environment runs this file, so it
imports nothing but the standard library, and no contestant imports another one.
"""

from __future__ import annotations

import hashlib
import importlib.metadata
import itertools
import json
import os
import platform
import sys
import time
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

SHARD_NBYTES = 64 << 20
"""Of each file that is written: the default of Streaming and LitData, and of ours for a source of this size."""


class Photo(NamedTuple):
    """A picture of the corpus; the key is its path without the extension, the label the place of its class among the sorted names."""

    path: str
    key: str
    label: int


class Task(NamedTuple):
    """What is to be done.

    Attributes:
        out: a path where nothing is.
        options: the contestant's own, such as its store.
    """

    photos: str
    out: str
    workers: int
    options: Mapping[str, Any]


class Work(NamedTuple):
    """How a contestant does a work, and how it tells afterwards what was done."""

    do: Callable[[Task], object]
    check: Callable[[Task], dict[str, Any]]


def list_photos(folder: str) -> list[Photo]:
    """List class folders of pictures in a fixed order."""
    found = []
    for label, name in enumerate(sorted(os.listdir(folder))):
        for file in sorted(os.listdir(os.path.join(folder, name))):
            found.append(Photo(os.path.join(folder, name, file), f"{name}/{os.path.splitext(file)[0]}", label))
    return found


def split(photos: list[Photo], num: int) -> list[list[Photo]]:
    """Cut a list into as many runs of almost equal length."""
    borders = [len(photos) * i // num for i in range(num + 1)]
    return [photos[start:stop] for start, stop in itertools.pairwise(borders)]


def digest(samples: Iterable[tuple[str, int, bytes]]) -> dict[str, Any]:
    """Tell what a dataset holds of bytes: a sha256 over the sorted (key, label, sha256 of the payload)."""
    lines = sorted(f"{key}\t{label}\t{hashlib.sha256(data).hexdigest()}\n" for key, label, data in samples)
    return {"num_samples": len(lines), "sha256": hashlib.sha256("".join(lines).encode()).hexdigest()}


def measures(samples: Iterable[tuple[str, int, int, int, Iterable[float]]]) -> dict[str, Any]:
    """Tell what a dataset holds of pictures: by their keys, label, width, height and mean red, green and blue."""
    pictures = [(key, [label, width, height, *(round(float(mean), 2) for mean in means)]) for key, label, width, height, means in samples]
    return {"num_samples": len(pictures), "pictures": dict(pictures)}


def run(works: Mapping[str, Work], *packages: str) -> None:
    """Do what the command line asks for."""
    answer = os.dup(1)
    os.dup2(2, 1)
    asked = json.loads(sys.argv[1])
    step, work = asked.pop("step"), works[asked.pop("work")]
    task = Task(**asked)
    done = work.check(task) if step == "check" else _do(work, task, packages)
    with open(answer, "w") as file:
        file.write(f"{json.dumps(done)}\n")


def _do(work: Work, task: Task, packages: Iterable[str]) -> dict[str, Any]:
    start = time.perf_counter()
    work.do(task)
    stop = time.perf_counter()
    os.sync()
    synced = time.perf_counter()
    files = [path for path in (Path(task.out), *Path(task.out).rglob("*")) if path.is_file()]
    return {
        "seconds": stop - start,
        "sync_s": synced - stop,
        "nbytes": sum(path.stat().st_size for path in files),
        "versions": {"python": platform.python_version(), **{name: importlib.metadata.version(name) for name in packages}},
    }

"""Make the golden datasets: one for each store, of format version 1.

    python tests/golden/make.py FOLDER

They are committed and stay for good: a later version of the package must read what this one wrote. Run it again only to add a dataset, never
to replace one. `tests/test_golden.py` holds them against the formulas here.
"""

from __future__ import annotations

import json
import sys
import tempfile
from pathlib import Path
from typing import Any

import numpy as np

NUM_SAMPLES = 12
CLASSES = ("ant", "bee", "Żuk 虫")


def pixels(i: int) -> Any:
    """The picture of sample i, uint8 [H, W, 3]."""
    y, x, c = np.ogrid[: 3 + i % 4, : 5 + i % 3, :3]
    return ((17 * i + 31 * y + 7 * x + 80 * c) % 256).astype(np.uint8)


def boxes(i: int) -> Any:
    """Ragged in the first dimension, float64 [n, 4], with n = 0 among them; None where it is missing."""
    return None if i == 7 else (np.arange(4 * (i % 4)) / 8 - i).reshape(-1, 4)


def text(i: int) -> str | None:
    """A document; sample 4 has an empty one, samples 1 and 8 have none."""
    if i in (1, 4, 8):
        return "" if i == 4 else None
    return f"Sample {i}: Zürich 東京 \0\n" * (1 + i % 3)


def note(i: int) -> Any:
    """JSON, nested; None where it is missing."""
    return None if i in (2, 11) else {"number": i, "list": [None, True, i / 4, "ß"], "deep": {"er": {}}}


def city(i: int) -> str | None:
    """A short string; None where it is missing."""
    return None if i == 5 else ("Köln", "Łódź", "")[i % 3]


def weight(i: int) -> float | None:
    """A number; None where it is missing."""
    return None if i in (5, 9) else i / 8 - 1


def key(i: int) -> str:
    """The sample's own key."""
    return f"sample/{i:02d} ü"


def label(i: int) -> str | None:
    """The name of a class; None where it is missing."""
    return None if i == 10 else CLASSES[i % 3]


def picture(i: int) -> Any:
    """The picture that is packed; None where it is missing."""
    return None if i == 6 else pixels(i)


def dense(i: int) -> dict[str, Any]:
    """Sample i of the dense dataset, the same formula in one shape."""
    return {
        "image": np.resize(pixels(i), (4, 6, 3)),
        "matrix": np.arange(6, dtype=np.int16).reshape(2, 3) - i,
        "flag": i % 2 == 0,
    }


def main(folder: Path) -> None:
    """Pack the samples into every store, in two shards, and a dense dataset into the stores that have another form for it."""
    from PIL import Image

    from fastdata import registry
    from fastdata.packing import pack
    from fastdata.sources import base

    base.PART_NBYTES = 600  # bytes: more parts than the real size would make of so little
    with tempfile.TemporaryDirectory() as name:
        source = Path(name)
        with open(source / "samples.jsonl", "w", encoding="utf-8") as file:
            for i in range(NUM_SAMPLES):
                array, shown = boxes(i), picture(i)
                if shown is not None:
                    Image.fromarray(shown).save(source / f"{i:02d}.png")
                row = {
                    "key": key(i),
                    "image": None if shown is None else f"{i:02d}.png",
                    "boxes": None if array is None else array.tolist(),
                    "text": text(i),
                    "note": note(i),
                    "city": city(i),
                    "weight": weight(i),
                    "label": label(i),
                }
                file.write(json.dumps(row) + "\n")
        arrays = {name: np.stack([dense(i)[name] for i in range(NUM_SAMPLES)]) for name in dense(0)}
        np.savez(source / "dense.npz", **arrays)
        for store in registry.names("fastdata.stores"):
            pack(source / "samples.jsonl", folder / f"v1-{store}", to=store, workers=1, shard_size=3000)
        for store in ("hdf5", "mmap"):
            pack(source / "dense.npz", folder / f"v1-{store}-dense", to=store, workers=1)


if __name__ == "__main__":
    main(Path(sys.argv[1]))

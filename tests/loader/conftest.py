from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from PIL import Image

import fastdata

STORES = ("tar", "lmdb", "mmap", "hdf5")
CLASSES = ("ant", "bee", "cow")
NUM = 36


def draw_picture(number: int) -> Image.Image:
    """A picture with soft shapes, another for each number, of about 80 x 60."""
    rng = np.random.default_rng(number)
    coarse = Image.fromarray(rng.integers(0, 256, (5, 7, 3), dtype=np.uint8))
    return coarse.resize((70 + int(rng.integers(24)), 52 + int(rng.integers(20))), Image.Resampling.BICUBIC)


@pytest.fixture(scope="session")
def photos(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder of three class folders with twelve pictures each, every third one a PNG."""
    folder = tmp_path_factory.mktemp("photos")
    for number in range(NUM):
        target = folder / CLASSES[number // 12]
        target.mkdir(exist_ok=True)
        if number % 3:
            draw_picture(number).save(target / f"{number:02d}.jpg", quality=90)
        else:
            draw_picture(number).save(target / f"{number:02d}.png")
    return folder


@pytest.fixture(scope="session")
def packed(photos: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """The photos in every store, each in several shards: store -> folder. Nobody writes to them."""
    root = tmp_path_factory.mktemp("packed")
    for store in STORES:
        fastdata.pack(photos, root / store, to=store, shard_size="40KB", workers=1)
    return {store: root / store for store in STORES}


@pytest.fixture(scope="session")
def numbers(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """800 samples of one number each, number i being 3 * i, without any payload to decode."""
    target = tmp_path_factory.mktemp("numbers") / "hdf5"
    fastdata.pack([{"value": 3 * i} for i in range(800)], target, to="hdf5", workers=1)
    return target

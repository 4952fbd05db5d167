"""What tests of several folders need: small corpora made on the spot, shards written without packing, the command line."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from fastdata import registry
from fastdata.stores.base import Shards
from fastdata.types import Array, Encoded, Field, Record, nbytes

ROOT = Path(__file__).resolve().parents[1]


def smooth(generator: np.random.Generator, height: int, width: int) -> Array:
    """A random picture without hard edges, uint8 [height, width, 3]: what JPEG is made for."""
    small = Image.fromarray(generator.integers(0, 256, (4, 5, 3), dtype=np.uint8))
    return np.asarray(small.resize((width, height), Image.Resampling.BICUBIC))


def write_photos(folder: Path, num: int = 24, classes: Sequence[str] = ("cat", "dog", "eel"), seed: int = 0) -> Path:
    """Class folders of `num` JPEGs of about 80 x 60, unevenly over the classes."""
    generator = np.random.default_rng(seed)
    for i in range(num):
        name = classes[min(i * i * len(classes) // (num * num), len(classes) - 1)]
        target = folder / name / f"{i:03d}.jpg"
        target.parent.mkdir(parents=True, exist_ok=True)
        height, width = (int(v) for v in generator.integers(50, 90, 2))
        Image.fromarray(smooth(generator, height, width)).save(target, quality=92)
    return folder


@pytest.fixture(scope="session")
def photos(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """24 photos in three classes; read only, so that tests may share it."""
    return write_photos(tmp_path_factory.mktemp("corpus") / "photos")


@pytest.fixture
def own_photos(tmp_path: Path) -> Path:
    """The same photos, to change at will."""
    return write_photos(tmp_path / "photos")


@pytest.fixture(scope="session")
def make_photos() -> Callable[..., Path]:
    """`write_photos`."""
    return write_photos


@pytest.fixture(scope="session")
def texts(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Twelve documents of uneven length, in three alphabets, at two depths."""
    folder = tmp_path_factory.mktemp("corpus") / "texts"
    for i in range(12):
        target = folder / ("deep" if i % 3 else "") / f"{i:02d}.txt"
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_text(f"Document {i}: Zürich, 東京, москва.\n" * (1 + i * i), encoding="utf-8")
    return folder


@pytest.fixture(scope="session")
def testdata() -> Path:
    """Real photos and texts, where the environment has them."""
    place = os.environ.get("FASTDATA_TESTDATA")
    if not place:
        pytest.skip("FASTDATA_TESTDATA does not name a folder of real photos and texts")
    return Path(place)


@dataclass
class Made:
    """Shards that a store's writer made, and what it takes to read them."""

    store: str
    root: Path
    fields: tuple[Field, ...]
    counts: list[int] = field(default_factory=list)
    names: list[list[tuple[str, int]]] = field(default_factory=list)
    columns: dict[str, list[int]] = field(default_factory=dict)

    def open(self) -> Shards:
        """Readers over all shards, as a dataset has them."""
        columns = {name: np.array(column, dtype=np.int64) for name, column in self.columns.items()}
        counts = np.array(self.counts, dtype=np.int64)
        return Shards(
            self.store,
            self.root,
            self.fields,
            np.cumsum(counts) - counts,
            counts,
            lambda shard: self.names[shard],
            lambda name, start, stop: columns[name][start:stop],
            lambda: None,
        )

    def paths(self) -> list[Path]:
        """All files."""
        return [self.root / name for files in self.names for name, _ in files]


def write_shards(
    store: str, root: Path, fields: Sequence[Field], shards: Sequence[Sequence[Mapping[str, Any]]], scalars: Mapping[str, Any] | None = None
) -> Made:
    """Write samples (arrays, bytes or None) with the writer of a store, no codec or packer involved."""
    module = registry.load("fastdata.stores", store, "test")
    made = Made(store, root, tuple(fields))
    (root / "shards").mkdir(parents=True)
    for number, samples in enumerate(shards):
        stem = f"{number:05d}"
        path = root / "shards" / f"{stem}{module.SUFFIX}"
        writer = module.Writer(path, stem, fields)
        for i, sample in enumerate(samples):
            values: dict[str, Encoded | None] = {}
            for f in fields:
                value = sample[f.name]
                if isinstance(value, np.ndarray):
                    value = np.ascontiguousarray(value, dtype=np.dtype(f.dtype).newbyteorder("<")).reshape(value.shape)
                values[f.name] = None if value is None else Encoded(value, "npy" if isinstance(value, np.ndarray) else "bin")
                made.columns.setdefault(f"{f.name}.nbytes", []).append(-1 if value is None else nbytes(value))
            writer.append(Record(str(i), values, scalars or {}))
        for name, column in writer.close().items():
            made.columns.setdefault(name, []).extend(column)
        files = sorted(path.iterdir()) if path.is_dir() else [path]
        made.counts.append(len(samples))
        made.names.append([(str(file.relative_to(root)), file.stat().st_size) for file in files])
    return made


@pytest.fixture(scope="session")
def make_shards() -> Callable[..., Made]:
    """`write_shards`."""
    return write_shards


@dataclass(frozen=True)
class Ran:
    """How a command went."""

    code: int
    out: str
    err: str


def run_command(*arguments: str | Path, **environment: str) -> Ran:
    """`fastdata ...` in a process of its own, where any warning is an error."""
    command = [sys.executable, "-W", "error", "-m", "fastdata.cli", *map(str, arguments)]
    settings = {**os.environ, "PYTHONPATH": str(ROOT), "COLUMNS": "200", **environment}
    done = subprocess.run(command, capture_output=True, text=True, env=settings, timeout=120, check=False)
    return Ran(done.returncode, done.stdout, done.stderr)


@pytest.fixture(scope="session")
def fastdata() -> Callable[..., Ran]:
    """`run_command`."""
    return run_command


def read_files(folder: Path) -> dict[str, bytes]:
    """Every file of a folder by its path: what "equal byte for byte" is about."""
    return {str(path.relative_to(folder)): path.read_bytes() for path in sorted(folder.rglob("*")) if path.is_file()}


@pytest.fixture(scope="session")
def contents() -> Callable[[Path], dict[str, bytes]]:
    """`read_files`."""
    return read_files

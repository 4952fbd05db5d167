"""The fastest and most dependable way from a corpus of images or text to batches in a PyTorch training loop.

Public names load on first use, so that `import fastdata` costs milliseconds and no torch.
"""

from __future__ import annotations

import importlib
import sys
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from fastdata import samplers
    from fastdata.collate import Collate
    from fastdata.dataset import Dataset, concat
    from fastdata.errors import ArgumentError, DataError, DatasetError, FastdataError, ShardError, WorkerError
    from fastdata.images import CenterCrop, Normalize, RandomResizedCrop, Resize, like
    from fastdata.loader import DataLoader
    from fastdata.measure import bench
    from fastdata.packing import commit, pack
    from fastdata.packing.verify import verify
    from fastdata.seeding import seed_everything
    from fastdata.summary import info

__version__ = "0.1.0"

_LAZY = {
    "ArgumentError": "fastdata.errors",
    "CenterCrop": "fastdata.images",
    "Collate": "fastdata.collate",
    "DataError": "fastdata.errors",
    "DataLoader": "fastdata.loader",
    "Dataset": "fastdata.dataset",
    "DatasetError": "fastdata.errors",
    "FastdataError": "fastdata.errors",
    "Normalize": "fastdata.images",
    "RandomResizedCrop": "fastdata.images",
    "Resize": "fastdata.images",
    "ShardError": "fastdata.errors",
    "WorkerError": "fastdata.errors",
    "bench": "fastdata.measure",
    "commit": "fastdata.packing",
    "concat": "fastdata.dataset",
    "info": "fastdata.summary",
    "like": "fastdata.images",
    "pack": "fastdata.packing",
    "samplers": "fastdata",
    "seed_everything": "fastdata.seeding",
    "verify": "fastdata.packing.verify",
}
__all__ = [
    "ArgumentError",
    "CenterCrop",
    "Collate",
    "DataError",
    "DataLoader",
    "Dataset",
    "DatasetError",
    "FastdataError",
    "Normalize",
    "RandomResizedCrop",
    "Resize",
    "ShardError",
    "WorkerError",
    "bench",
    "commit",
    "concat",
    "info",
    "like",
    "pack",
    "samplers",
    "seed_everything",
    "verify",
]

if sys.platform == "win32":
    raise ImportError("fastdata runs on Linux and macOS; Windows is not supported: use WSL 2, which is Linux")


def __getattr__(name: str) -> Any:
    module = _LAZY.get(name)
    if module is None:
        raise AttributeError(f"module 'fastdata' has no attribute {name!r}")
    value = importlib.import_module(f"fastdata.{name}") if module == "fastdata" else getattr(importlib.import_module(module), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({"__version__", *_LAZY})

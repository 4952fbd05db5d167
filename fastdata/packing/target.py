"""The folder of a dataset: what is there already, and how a finished one gets its name."""

from __future__ import annotations

import ctypes
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from fastdata import manifest as manifests
from fastdata.errors import ArgumentError, DatasetError
from fastdata.packing.base import Packed, Terms
from fastdata.stores.base import sync

_AT_FDCWD, _RENAME_EXCHANGE = -100, 2  # of linux/fcntl.h and linux/fs.h
_WRITTEN = {"columns", "journal", "manifest.json", "manifest.json.tmp", "manifests", "rejects.jsonl", "shards", "splits"}


def check_places(source: Any, target: Path) -> None:
    """Refuse a target inside of its source, one that is a whole file system, or where no folder can be made."""
    if isinstance(source, (str, Path)):
        inside = Path(os.path.realpath(source))
        if inside.is_dir() and (target == inside or inside in target.parents):
            raise ArgumentError(f"expected a target outside of the source, got {target} inside of {source}, at OUT")
    if os.path.ismount(target):
        raise ArgumentError(f"expected a folder that can be renamed, got the mount point {target}, at OUT; name a folder inside of it")
    parent = next(p for p in target.parents if p.exists())
    if not parent.is_dir() or not os.access(parent, os.W_OK):
        raise ArgumentError(f"expected a folder that can be written to, got {parent}, at OUT")
    if target.name.endswith(".partial"):
        raise ArgumentError(f"expected a name without .partial, which marks unfinished datasets, got {target.name!r}, at OUT")


def foreign(folder: Path) -> str | None:
    """Name something in a folder that this package does not write, or the folder where it is none; None where all is ours."""
    if folder.is_symlink() or not folder.is_dir():
        return str(folder)
    return next((str(path) for path in sorted(folder.iterdir()) if path.name not in _WRITTEN), None)


def differences(there: Mapping[str, Any], asked: Mapping[str, Any]) -> list[str]:
    """Say which options differ, and how; one that is absent is None."""
    names = [name for name in dict.fromkeys((*asked, *there)) if name != "source"]
    differing = [f"{name} (there {there.get(name)!r}, asked {asked.get(name)!r})" for name in names if there.get(name) != asked.get(name)]
    if there.get("source") != asked.get("source"):
        differing.append("source (its files have changed, or it is another one)")
    return differing


def compare(target: Path, terms: Terms, overwrite: bool) -> Packed | None:
    """Look at what is there already: the same dataset, or something that must not be touched.

    Returns:
        The summary of the same dataset; None when the place is free, or its dataset may be replaced.

    Raises:
        DatasetError: another dataset, or something else.
    """
    if not os.path.lexists(target) or (target.is_dir() and not any(target.iterdir())):
        return None
    stranger = foreign(target)
    if stranger is not None or not all((target / name).exists() for name in ("columns", "manifest.json", "shards")):
        what = f"something else, at {stranger or target}"
        raise DatasetError(f"expected a dataset or nothing, got {what}: it is not touched, not even with --overwrite")
    if overwrite:
        return None
    there = manifests.load(target)
    differing = ["classes"] if there.classes != terms.classes else []
    differing += differences(there.options, terms.options)
    if terms.options["source"] is None:
        differing.append("source (objects of Python cannot be compared)")
    if differing:
        raise DatasetError(
            f"expected the arguments of the dataset that is there, got other {', '.join(differing)}, at {target}; --overwrite replaces it"
        )
    return describe(target)


def describe(target: Path) -> Packed:
    """Sum up a dataset that is there."""
    there = manifests.load(target)
    table = manifests.ShardTable(target, there)
    rejects = target / "rejects.jsonl"
    return Packed(
        path=str(target),
        store=there.store,
        num_samples=there.num_samples,
        num_shards=len(table.first),
        nbytes=table.nbytes,
        seconds=0.0,
        fingerprint=there.fingerprint,
        classes=there.classes,
        rejected=sum(1 for _ in open(rejects, "rb")) if rejects.exists() else 0,
        already=True,
    )


def place(folder: Path, target: Path) -> None:
    """Give a finished dataset its name; one that is there gets the partial folder's, in one step where the system can."""
    if not target.exists():
        os.rename(folder, target)
    elif not _exchange(folder, target):
        old = target.with_name(f".{target.name}.{os.getpid()}.old")
        os.rename(target, old)
        try:
            os.rename(folder, target)
        except BaseException:
            os.rename(old, target)
            raise
        os.rename(old, folder)
    sync(target.parent)


def _exchange(one: Path, other: Path) -> bool:
    """Exchange the names of two folders, so that no moment is without either; False where system or file system cannot."""
    renameat2 = getattr(ctypes.CDLL(None), "renameat2", None)
    return renameat2 is not None and renameat2(_AT_FDCWD, os.fsencode(one), _AT_FDCWD, os.fsencode(other), _RENAME_EXCHANGE) == 0

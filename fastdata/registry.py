"""Parts found by file name: `stores/tar.py` is the store "tar".

Only names that are listed in the folder load, so data can never name a module to import.
"""

from __future__ import annotations

import importlib
import pkgutil
from functools import cache
from types import ModuleType

from fastdata.errors import ArgumentError


@cache
def names(package: str) -> tuple[str, ...]:
    """Name the parts in a folder such as "fastdata.stores", sorted."""
    path = importlib.import_module(package).__path__
    return tuple(sorted(m.name for m in pkgutil.iter_modules(path) if m.name != "base" and not m.name.startswith("_")))


def load(package: str, name: str, where: str) -> ModuleType:
    """Import one part; `where` says in the error who asked for it.

    Raises:
        ArgumentError: there is no such part.
    """
    if name not in names(package):
        raise ArgumentError(f"expected one of {list(names(package))}, got {name!r}, at {where}")
    return importlib.import_module(f"{package}.{name}")

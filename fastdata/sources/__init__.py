"""Sources: where samples come from. Adding one is adding a file; `base.py` is the specification."""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from fastdata import registry
from fastdata.errors import ArgumentError
from fastdata.sources.base import Source


def open_source(source: str | os.PathLike[str] | Iterable[Any] | Any, kind: str | None = None) -> Source:
    """Open a path of a recognised kind, or of the `kind` named; anything that is not a path is a Python source.

    Raises:
        ArgumentError: nothing is there, no kind or several kinds recognise it, or the kind refuses it.
    """
    if not isinstance(source, (str, os.PathLike)):
        if kind not in (None, "python"):
            raise ArgumentError(f"expected a path for a source of kind {kind!r}, got {type(source).__name__}")
        opened: Source = registry.load(__name__, "python", "source").Source(source)
        return opened
    path = Path(source)
    if not path.exists():
        raise ArgumentError(f"expected a folder or file of samples, got nothing, at {path}")
    if kind is None:
        kinds = [name for name in registry.names(__name__) if registry.load(__name__, name, "").Source.recognises(path)]
        if not kinds:
            known = ", ".join(registry.names(__name__))
            raise ArgumentError(f"expected pictures, text or a manifest, got nothing that I know, at {path} (kinds: {known})")
        if len(kinds) > 1:
            raise ArgumentError(f"expected one kind of source, got what may be any of {kinds}, at {path}; say which with --source")
        kind = kinds[0]
    opened = registry.load(__name__, kind, "--source").Source(path)
    return opened

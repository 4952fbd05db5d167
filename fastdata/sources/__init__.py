"""Sources: where samples come from. Adding one is adding a file; `base.py` is the specification."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from fastdata import registry
from fastdata.errors import ArgumentError
from fastdata.sources.base import Source


def open_source(
    source: str | os.PathLike[str] | Iterable[Any] | Any, kind: str | None = None, options: Mapping[str, Any] | None = None
) -> Source:
    """Open a path of a recognised kind, or of the `kind` named; anything that is not a path is a Python source.

    Args:
        source: a path, or an object.
        kind: name of a file of this folder.
        options: what the user asked for, by the names in `Source.options`.

    Raises:
        ArgumentError: nothing is there, no kind or several kinds recognise it, or the kind refuses it or an option.
    """
    if not isinstance(source, (str, os.PathLike)):
        if kind not in (None, "python"):
            raise ArgumentError(f"expected a path for a source of kind {kind!r}, got {type(source).__name__}")
        return _open("python", source, options or {})
    path = Path(source)
    if not path.exists():
        raise ArgumentError(f"expected a folder or file of samples, got nothing, at {path}")
    if kind is None:
        kinds = [name for name in registry.names(__name__) if registry.load(__name__, name, "").Source.recognises(path)]
        if not kinds:
            known = ", ".join(registry.names(__name__))
            packed = (
                "; it is packed already: from Python, fastdata.Dataset may be packed again" if (path / "manifest.json").exists() else ""
            )
            raise ArgumentError(f"expected pictures, text or a manifest, got nothing that I know, at {path} (kinds: {known}){packed}")
        if len(kinds) > 1:
            raise ArgumentError(f"expected one kind of source, got what may be any of {kinds}, at {path}; say which with --source")
        kind = kinds[0]
    return _open(kind, path, options or {})


def _open(kind: str, source: Any, options: Mapping[str, Any]) -> Source:
    cls = registry.load(__name__, kind, "--source").Source
    for name in options:
        if name not in cls.options:
            takers = [n for n in registry.names(__name__) if name in registry.load(__name__, n, "").Source.options]
            raise ArgumentError(f"expected --{name} with a source of {' or '.join(takers)}, got one of {kind}, at {source}")
    opened: Source = cls(source, **options)
    return opened

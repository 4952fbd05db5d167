"""Codecs: value <-> bytes. Adding one is adding a file; `base.py` is the specification."""

from __future__ import annotations

from fastdata import registry
from fastdata.codecs.base import Codec
from fastdata.types import Field


def open_codec(field: Field) -> Codec:
    """Make the codec of a field.

    Raises:
        ArgumentError: no file of this folder has the name.
    """
    codec: Codec = registry.load(__name__, field.codec, f"field {field.name!r}").Codec(field)
    return codec

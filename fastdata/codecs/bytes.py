"""Bytes, as they are."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from fastdata.codecs.base import Codec as Base
from fastdata.errors import DataError
from fastdata.types import Array, Encoded


class Codec(Base):
    """Bytes of any length."""

    compressible = True

    def encode(self, value: Any, *, validate: bool = True) -> Encoded:
        """Take anything that is bytes."""
        if not isinstance(value, (bytes, bytearray, memoryview)):
            raise DataError(f"expected bytes, got {type(value).__name__}")
        return Encoded(bytes(value), "bin")

    def decode(self, data: Array, info: Mapping[str, Any]) -> bytes:
        """Copy them out."""
        return data.tobytes()

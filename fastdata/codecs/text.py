"""Text: a string as UTF-8."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from fastdata.codecs.base import Codec as Base
from fastdata.errors import DataError
from fastdata.types import Array, Encoded


class Codec(Base):
    """A string of any length, as UTF-8."""

    compressible = True

    def encode(self, value: Any, *, validate: bool = True) -> Encoded:
        """Encode a `str`; one with lone surrogates, which UTF-8 cannot hold, is refused."""
        if not isinstance(value, str):
            raise DataError(f"expected a string, got {type(value).__name__}")
        try:
            return Encoded(value.encode(), "txt")
        except UnicodeEncodeError as error:
            raise DataError(f"expected text that UTF-8 can hold, got {value[error.start]!r} at character {error.start}") from error

    def decode(self, data: Array, info: Mapping[str, Any]) -> str:
        """Decode into a `str`."""
        try:
            return data.tobytes().decode()
        except UnicodeDecodeError as error:
            raise DataError(f"expected UTF-8, got the byte {data[error.start]:#04x} at offset {error.start}") from error

"""Scalars: numbers, booleans and short strings, which live in columns; tar files carry a copy."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np

from fastdata.codecs.base import Codec as Base
from fastdata.errors import DataError
from fastdata.types import Array, Encoded


class Codec(Base):
    """A number, boolean or string of the field's dtype."""

    payload = False

    def encode(self, value: Any, *, validate: bool = True) -> Encoded:
        """Check the value against the dtype; the bytes are those that the digest covers: little-endian, or UTF-8."""
        dtype = self.field.dtype
        if dtype == "str":
            if not isinstance(value, str):
                raise DataError(f"expected a string, got {value!r} ({type(value).__name__})")
            try:
                return Encoded(value.encode("utf-8", "surrogateescape"), "txt")
            except UnicodeEncodeError as error:
                raise DataError(f"expected a string that UTF-8 can hold, got {value[error.start]!r} at character {error.start}") from error
        if not isinstance(value, (int, float, np.bool_, np.integer, np.floating)):
            raise DataError(f"expected {dtype}, got {value!r} ({type(value).__name__})")
        kind = np.dtype(dtype).kind
        number: Any = value
        if kind in "iu":
            whole = not isinstance(number, float) or (math.isfinite(number) and number == int(number))
            limits = np.iinfo(dtype)
            if not whole or not limits.min <= number <= limits.max:
                raise DataError(f"expected {dtype} ({limits.min} to {limits.max}), got {value!r}")
        elif kind == "b" and number not in (0, 1):
            raise DataError(f"expected bool, got {value!r}")
        with np.errstate(over="ignore"):
            stored = np.array(number, dtype=np.dtype(dtype).newbyteorder("<"))
        if kind == "f" and np.isinf(stored) and not np.isinf(number):
            raise DataError(f"expected {dtype}, got {value!r}, which it cannot hold")
        return Encoded(stored.tobytes(), "txt")

    def decode(self, data: Array, info: Mapping[str, Any]) -> Any:
        """Decode what `encode` gave; columns hold scalars as they are, so only checks of a dataset come here."""
        if self.field.dtype == "str":
            return data.tobytes().decode("utf-8", "surrogateescape")
        return data.view(np.dtype(self.field.dtype).newbyteorder("<"))[0]

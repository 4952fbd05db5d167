"""JSON: what has no fixed shape, such as nested annotations."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from fastdata.codecs.base import Codec as Base
from fastdata.errors import DataError
from fastdata.types import Array, Encoded


class Codec(Base):
    """Any value that JSON can hold."""

    compressible = True

    def encode(self, value: Any, *, validate: bool = True) -> Encoded:
        """Encode without spaces, keys in their order, NaN refused since JSON has none."""
        try:
            return Encoded(json.dumps(value, ensure_ascii=False, separators=(",", ":"), allow_nan=False).encode(), "json")
        except (TypeError, ValueError, RecursionError) as error:
            raise DataError(f"expected a value that JSON can hold, got {type(value).__name__}: {error}") from error

    def decode(self, data: Array, info: Mapping[str, Any]) -> Any:
        """Decode into dicts, lists, strings and numbers."""
        try:
            return json.loads(data.tobytes())
        except (ValueError, RecursionError) as error:
            raise DataError(f"expected JSON, got {data[:20].tobytes()!r}: {error}") from error

"""The contract of a codec: value <-> bytes.

A file of this folder defines a class `Codec` derived from the one here, and nothing else that others use. A codec is made from its
`Field`, holds no handles, pickles, and may be used by several threads at once. It imports no torch.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import Any, ClassVar

from fastdata.types import Array, Encoded, Field


class Codec(ABC):
    """Turn values of one field into bytes and back.

    Attributes:
        payload: the bytes go to the store; False: the value is a scalar and lives in a column alone.
        columns: derived columns and their dtypes ("str" for short strings); on disk `<field>.<name>`.
    """

    payload: ClassVar[bool] = True
    columns: Mapping[str, str] = {}

    def __init__(self, field: Field) -> None:
        self.field = field

    def load_libraries(self) -> None:  # noqa: B027
        """Import what encoding needs: once, before workers are forked, and not in each of them, where an import lock may be held for ever."""

    @abstractmethod
    def encode(self, value: Any) -> Encoded:
        """Encode and validate one value, while packing.

        The bytes depend on the value and the field's options alone, not on the machine.

        Raises:
            DataError: the value does not fit: *expected X, got Y*; the caller adds where.
        """

    @abstractmethod
    def decode(self, data: Array, info: Mapping[str, Any]) -> Any:
        """Decode one value.

        Args:
            data: what the store gave: [n, *shape] of the field's dtype, perhaps read-only.
            info: this sample's derived columns, by the names in `columns`.

        Returns:
            A value that stays valid for ever: either a copy, or an array that keeps its memory alive.

        Raises:
            DataError: damaged bytes; the caller adds shard, sample, key and field.
        """

    def shape(self, data: Array, info: Mapping[str, Any]) -> tuple[int, ...]:
        """Shape of the value, for its digest: () unless the bytes alone do not tell it."""
        return ()

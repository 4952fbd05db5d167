"""The contract of a codec: value <-> bytes.

A file of this folder defines a class `Codec` derived from the one here, and nothing else that others use. A codec is made from its
`Field`, holds no handles, pickles, and may be used by several threads at once. It imports no torch.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import replace
from typing import Any, ClassVar

import numpy as np

from fastdata import compression
from fastdata.errors import ArgumentError, DataError
from fastdata.types import Array, Encoded, Field, nbytes


class Codec(ABC):
    """Turn values of one field into bytes and back.

        value -> encode -> to_store -> the store -> from_store -> decode -> value

    The steps in the middle change nothing unless the field's option `compress` is "zstd". Then a store holds each value as the zstd frame of
    the file that it would be (a text, a .npy with its header), and digests are still over what `encode` gives and `decode` takes.

    Attributes:
        payload: the bytes go to the store; False: the value is a scalar and lives in a column alone.
        compressible: the option `compress` may be set.
        stored: the field as the store holds it: bytes where values are compressed, else `field`.
        columns: derived columns and their dtypes ("str" for short strings); on disk `<field>.<name>`. Of compressed values `raw_nbytes` is one
            of them, which `to_store` adds: the size of what `encode` gave.
    """

    payload: ClassVar[bool] = True
    compressible: ClassVar[bool] = False
    columns: Mapping[str, str] = {}

    def __init__(self, field: Field) -> None:
        self.field = self.stored = field
        method = field.options.get("compress")
        if method is not None:
            known = compression.METHODS if self.compressible else ()
            if method not in known:
                where = f"option compress of field {field.name!r}"
                raise ArgumentError(f"expected one of {[*known, None]}, got {method!r}, at {where}")
            self.stored = replace(field, dtype="uint8", shape=(), dense=False)
            self.columns = {**self.columns, "raw_nbytes": "int64"}

    def load_libraries(self, validate: bool) -> None:
        """Import what encoding needs: once, before workers are forked, and not in each of them, where an import lock may be held for ever.

        Args:
            validate: as `encode` will have it.

        Raises:
            ArgumentError: a library that the field's options ask for is missing.
        """
        if self.stored is not self.field:
            compression.load_library()

    @abstractmethod
    def encode(self, value: Any, *, validate: bool = True) -> Encoded:
        """Encode one value, while packing.

        The bytes and columns depend on the value and the field's options alone, not on the machine.

        Args:
            validate: make sure that what is stored decodes. False: decode nothing for the sake of it: bytes that are stored as they came are
                looked at no further than their columns need, and `pixels` is None. A value whose encoding is its check is checked alike.

        Raises:
            DataError: the value does not fit: *expected X, got Y*; the caller adds where.
        """

    def to_store(self, encoded: Encoded) -> Encoded:
        """Make of what `encode` gave what the store takes, with `raw_nbytes` where it is compressed."""
        if self.stored is self.field:
            return encoded
        data = encoded.data.tobytes() if isinstance(encoded.data, np.ndarray) else encoded.data
        columns = {**encoded.columns, "raw_nbytes": nbytes(data)}
        compressed = compression.compress(self.file_head(encoded.columns) + data)
        return replace(encoded, data=compressed, extension=f"{encoded.extension}.zst", columns=columns)

    def from_store(self, data: Array, info: Mapping[str, Any]) -> Array:
        """Make of what the store gave what `decode` takes.

        Args:
            data: of `stored`: bytes as uint8 [n].
            info: this sample's derived columns, by the names in `columns`.

        Raises:
            DataError: damaged; the caller adds shard, sample, key and field.
            DatasetError: the library that decompresses is missing.
        """
        if self.stored is self.field:
            return data
        head = self.file_head(info)
        raw = compression.decompress(data, len(head) + int(info["raw_nbytes"]))
        if not raw.startswith(head):
            raise DataError(f"expected a file that begins with {head!r}, got {raw[: len(head)]!r}")
        return np.frombuffer(raw, dtype=np.uint8)[len(head) :]

    def file_head(self, info: Mapping[str, Any]) -> bytes:
        """What a file of the value has before the bytes that `encode` gives."""
        return b""

    @abstractmethod
    def decode(self, data: Array, info: Mapping[str, Any]) -> Any:
        """Decode one value.

        Args:
            data: what `from_store` gave: [n, *shape] of the field's dtype, of a dense field [*shape]; perhaps read-only.
            info: this sample's derived columns, by the names in `columns`.

        Returns:
            A value that stays valid for ever: either a copy, or an array that keeps its memory alive.

        Raises:
            DataError: damaged bytes; the caller adds shard, sample, key and field.
        """

    def shape(self, data: Array, info: Mapping[str, Any]) -> tuple[int, ...]:
        """Shape of the value, for its digest: () unless the bytes alone do not tell it."""
        return ()

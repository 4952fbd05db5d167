"""Arrays: of one shape for all samples (dense), or ragged in the first dimension."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from fastdata.codecs.base import Codec as Base
from fastdata.errors import ArgumentError, DataError
from fastdata.types import Array, Encoded, Field

_NPY_NBYTES = 10  # magic, version and length of the text in a .npy file of version 1.0


class Codec(Base):
    """An array of the field's dtype: [*shape] when dense, [n, *shape] when ragged, with n in the column `length`."""

    compressible = True

    def __init__(self, field: Field) -> None:
        super().__init__(field)
        if not field.dense and 0 in field.shape:
            raise ArgumentError(
                f"expected a trailing shape without 0, got {list(field.shape)}, at field {field.name!r}: it has no elements"
            )
        if not field.dense:
            self.columns = {"length": "int64", **self.columns}

    def encode(self, value: Any, *, validate: bool = True) -> Encoded:
        """Check dtype and shape; numbers are cast only where no value changes its kind or overflows."""
        dtype = np.dtype(self.field.dtype)
        try:
            array = np.asarray(value)
        except ValueError as error:
            raise DataError(f"expected an array of {dtype}, got {type(value).__name__} of uneven lengths") from error
        if array.size == 0 and array.dtype != dtype:
            array = array.astype(dtype)
        if array.dtype.newbyteorder("=") != dtype and not np.can_cast(array.dtype, dtype, "safe"):
            raise DataError(f"expected an array of {dtype}, got {array.dtype}")
        trailing = array.shape if self.field.dense else array.shape[1:]
        if trailing != self.field.shape or (array.ndim == 0 and not self.field.dense):
            leading = () if self.field.dense else ("n",)
            expected = ", ".join(map(str, (*leading, *self.field.shape)))
            raise DataError(f"expected an array of shape [{expected}], got {list(array.shape)}")
        columns = {} if self.field.dense else {"length": len(array)}
        return Encoded(np.ascontiguousarray(array, dtype=dtype.newbyteorder("<")).reshape(array.shape), "npy", columns)

    def from_store(self, data: Array, info: Mapping[str, Any]) -> Array:
        """View bytes that were decompressed as the array."""
        data = super().from_store(data, info)
        if self.stored is self.field:
            return data
        dtype, shape = self._form(info)
        try:
            return data.view(dtype).reshape(shape)
        except ValueError as error:
            raise DataError(f"expected {dtype} {list(shape)}, got {data.size} bytes") from error

    def file_head(self, info: Mapping[str, Any]) -> bytes:
        """Describe the array as a .npy file of version 1.0 does; readers like its elements to start at a multiple of 64 bytes."""
        dtype, shape = self._form(info)
        text = f"{{'descr': {dtype.str!r}, 'fortran_order': False, 'shape': {shape!r}, }}".encode()
        size = (len(text) + 1 + _NPY_NBYTES + 63) // 64 * 64 - _NPY_NBYTES
        return b"\x93NUMPY\x01\0" + size.to_bytes(2, "little") + text.ljust(size - 1) + b"\n"

    def _form(self, info: Mapping[str, Any]) -> tuple[np.dtype[Any], tuple[int, ...]]:
        """Dtype and shape of a stored value."""
        shape = self.field.shape if self.field.dense else (int(info["length"]), *self.field.shape)
        return np.dtype(self.field.dtype).newbyteorder("<"), shape

    def decode(self, data: Array, info: Mapping[str, Any]) -> Array:
        """Copy it out in the machine's byte order, writable."""
        return np.array(data, dtype=self.field.dtype)

    def shape(self, data: Array, info: Mapping[str, Any]) -> tuple[int, ...]:
        """The array's own shape."""
        return data.shape

"""The words that all layers share: samples, fields, encoded values, batches."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Generic, TypeAlias, TypeVar, overload

import numpy as np
import numpy.typing as npt

_T = TypeVar("_T")

Array: TypeAlias = npt.NDArray[Any]
Int64Array: TypeAlias = npt.NDArray[np.int64]

Sample: TypeAlias = dict[str, Any]
"""One decoded example: field name -> value."""

Batch: TypeAlias = dict[str, Any]
"""Field name -> array [B, ...], or a list of B values where one array cannot hold them."""

Buffer: TypeAlias = bytes | bytearray | memoryview | Array

Values: TypeAlias = Array | Sequence[Array]
"""One field of B samples, encoded. A dense field: one array [B, *shape]. Any other: B arrays [n_i, *shape]; bytes are uint8 [n_i]."""


@dataclass(frozen=True, slots=True)
class Field:
    """A named part of a sample, as the manifest holds it.

    Attributes:
        name: `[A-Za-z_][A-Za-z0-9_]*`, not `index` or `key`.
        codec: name of the file in `codecs/` that turns values into bytes and back.
        dtype: numpy name of the elements: of arrays and scalars ("int64", "str"); "uint8" where values are bytes.
        shape: dense: the shape of every value. Ragged: the shape behind the first dimension.
        dense: every value has the same `shape`, known before packing.
        options: what the codec was told (picture size, quality, background ...), JSON values only.
    """

    name: str
    codec: str
    dtype: str = "uint8"
    shape: tuple[int, ...] = ()
    dense: bool = False
    options: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Encoded:
    """One value as bytes, ready for a store.

    Attributes:
        data: the bytes; of a codec whose values are arrays, a C-contiguous little-endian array.
        extension: of a file with these bytes, without the dot: jpg, png, npy, txt, json, bin.
        columns: derived numbers and short strings, by the names in `Codec.columns`.
        notes: remarks that the summary of a pack counts, such as "16 bit scaled to 8".
        pixels: of a validated picture, uint8 [H, W, 3], so that nobody decodes it twice.
    """

    data: Buffer
    extension: str
    columns: Mapping[str, int | str] = field(default_factory=dict)
    notes: tuple[str, ...] = ()
    pixels: Array | None = None


@dataclass(frozen=True, slots=True)
class Record:
    """One encoded example: payloads for the store, scalars for the columns. None: the sample has no such value."""

    key: str
    values: Mapping[str, Encoded | None]
    scalars: Mapping[str, int | float | bool | str | None]


def nbytes(data: Buffer) -> int:
    """Size of `data` in bytes."""
    return data.nbytes if isinstance(data, (np.ndarray, memoryview)) else len(data)


class Samples(Sequence[Sample]):
    """B samples that are a batch already: `collate` takes `batch`, everything else sees a sequence of dicts.

    Attributes:
        batch: field name -> array [B, ...] or list of B values.
        images: names of fields that are pictures [B, H, W, 3], or lists of pictures [H, W, 3].
        padding: bool [B], samples that only fill up an exact evaluation; None where the tickets have no such mark.
        errors: a sentence for each sample that could not be loaded and was replaced or left out.
    """

    def __init__(self, batch: Batch, num: int, images: frozenset[str], padding: Array | None = None, errors: Sequence[str] = ()) -> None:
        self.batch, self.images, self.padding, self.errors = batch, images, padding, tuple(errors)
        self._num = num

    def __len__(self) -> int:
        return self._num

    @overload
    def __getitem__(self, index: int) -> Sample: ...
    @overload
    def __getitem__(self, index: slice) -> list[Sample]: ...
    def __getitem__(self, index: int | slice) -> Sample | list[Sample]:
        if isinstance(index, slice):
            return [self[i] for i in range(*index.indices(self._num))]
        if not -self._num <= index < self._num:
            raise IndexError(f"expected an index under {self._num}, got {index}")
        return {name: value[index] for name, value in self.batch.items()}


class lazy(Generic[_T]):
    """A property computed once, on first use: `functools.cached_property` without its lock.

    Up to Python 3.11 that lock is one for all instances: held by another thread at a fork, it stops the child for ever. Without it two threads
    may compute the value at the same time, and both get the first.
    """

    def __init__(self, compute: Callable[[Any], _T]) -> None:
        self._compute, self.__doc__ = compute, compute.__doc__

    def __set_name__(self, owner: type, name: str) -> None:
        self._name = name

    def __get__(self, instance: Any, owner: type | None = None) -> _T:
        value: _T = instance.__dict__.setdefault(self._name, self._compute(instance))
        return value

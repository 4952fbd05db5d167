"""From B values to a batch: stack what has one shape, pad what is ragged, and say which sample does not fit."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from fastdata.errors import DataError
from fastdata.types import Array, Int64Array


def join(name: str, values: Sequence[Any], where: Callable[[int], str]) -> Array | list[Any]:
    """Make one array [B, ...] of B values where that is possible, else give them back as a list.

    Numpy arrays and scalars, and tensors on the CPU, keep their dtype; Python's bool becomes bool, int int64, float float32 (torch's default).
    Strings, None and anything else stay a list, and so do arrays of different shapes.

    Args:
        name: of the field, for errors.
        where: names sample i, for errors.

    Raises:
        DataError: arrays of different dtypes.
    """
    arrays = [as_array(value) for value in values]
    if not arrays or any(array is None for array in arrays):
        return list(values)
    found: list[Array] = [array for array in arrays if array is not None]
    first = found[0]
    for i, array in enumerate(found):
        if array.dtype != first.dtype:
            raise DataError(f"expected {first.dtype} as in {where(0)}, got {array.dtype}, at field {name!r} of {where(i)}")
    if any(array.shape != first.shape for array in found):
        return found
    return np.stack(found)


def as_array(value: Any) -> Array | None:
    """A number, array or tensor as an array; None for anything else."""
    if isinstance(value, (np.ndarray, np.generic)):
        array = np.asarray(value)
        return array if array.dtype.kind in "biufc" else None
    if isinstance(value, bool):
        return np.array(value)
    if isinstance(value, int):
        return np.array(value, dtype=np.int64)
    if isinstance(value, float):
        return np.array(value, dtype=np.float32)
    if hasattr(value, "detach") and hasattr(value, "numpy"):
        array = value.detach().numpy()
        return np.asarray(array)
    return None


def pad(name: str, values: Sequence[Array], where: Callable[[int], str]) -> tuple[Array, Int64Array, npt.NDArray[np.bool_]]:
    """Pad arrays that are ragged in the first dimension to the longest of them, with zeros, in one vectorised copy.

    Returns:
        [B, L, *shape], their lengths int64 [B], and the mask bool [B, L] of what is no padding.

    Raises:
        DataError: they differ in dtype or in another dimension than the first; names field, shapes and samples.
    """
    first = values[0]
    for i, value in enumerate(values):
        if value.ndim == 0 or value.shape[1:] != first.shape[1:] or value.dtype != first.dtype:
            raise DataError(
                f"expected arrays that differ in the first dimension only, got {first.dtype} {list(first.shape)} at {where(0)} and "
                f"{value.dtype} {list(value.shape)} at {where(i)}, at field {name!r}"
            )
    lengths = np.fromiter(map(len, values), dtype=np.int64, count=len(values))
    longest = int(lengths.max())
    mask = np.arange(longest) < lengths[:, None]
    padded = np.zeros((len(values), longest, *first.shape[1:]), dtype=first.dtype)
    padded[mask] = np.concatenate(values)
    return padded, lengths, mask

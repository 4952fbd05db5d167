"""From a batch of numpy arrays to tensors, in the worker."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch

from fastdata.arrays import join, pad
from fastdata.errors import DataError
from fastdata.types import Array, Batch, Samples

ERRORS = "fastdata.errors"
"""Key under which a batch tells of samples that were replaced or left out; the package's loader takes it out and counts."""


class Collate:
    """Make tensors of a batch of samples.

    Dense fields are one tensor [B, ...]. Pictures are uint8 [B, 3, H, W] in channels_last strides. Ragged arrays are padded with zeros to the
    longest of the batch, with `<field>.length` int64 [B] and `<field>.mask` bool [B, L], true where there is data. Strings, bytes, JSON values and
    whatever else are lists of B.

    Args:
        valid: add `valid`, bool [B], to every batch: false where a sample only fills up an exact evaluation. Without it, only batches that
            have such samples tell of them.
    """

    def __init__(self, valid: bool = False) -> None:
        self.valid = valid

    def __call__(self, samples: Sequence[Any]) -> Any:
        """Collate what a dataset gave for a batch; samples of other datasets that are no dicts go to torch's `default_collate`.

        Raises:
            DataError: values that do not go together; names field, shapes and samples.
        """
        if not isinstance(samples, Samples):
            if not samples or not isinstance(samples[0], Mapping):
                return torch.utils.data.default_collate(list(samples))
            columns = {name: [sample[name] for sample in samples] for name in samples[0]}
            joined = {name: join(name, values, "sample {}".format) for name, values in columns.items()}
            samples = Samples(joined, len(samples), frozenset())
        where = _namer(samples)
        batch: Batch = {}
        for name, value in samples.batch.items():
            if isinstance(value, np.ndarray) and value.dtype != object:
                tensor = _tensor(value)
                batch[name] = tensor.permute(0, 3, 1, 2) if name in samples.images and value.ndim == 4 else tensor
            elif isinstance(value, list) and value and all(isinstance(one, np.ndarray) for one in value):
                if name in samples.images:
                    raise DataError(_sizes_differ(name, value, where))
                padded, lengths, mask = pad(name, value, where)
                batch[name] = _tensor(padded)
                batch[f"{name}.length"] = torch.from_numpy(lengths)
                batch[f"{name}.mask"] = torch.from_numpy(mask)
            else:
                batch[name] = list(value) if isinstance(value, np.ndarray) else value
        if self.valid or samples.padding is not None:
            padding = np.zeros(len(samples), dtype=bool) if samples.padding is None else samples.padding
            batch["valid"] = torch.from_numpy(~padding)
        if samples.errors:
            batch[ERRORS] = list(samples.errors)
        return batch


def _tensor(array: Array) -> torch.Tensor:
    """A tensor over the array's memory, or over a copy where it is read-only or of a foreign byte order."""
    return torch.from_numpy(np.require(array, dtype=array.dtype.newbyteorder("="), requirements=["W"]))


def _namer(samples: Samples) -> Any:
    """A function that names sample i by its key where the batch has keys, else by its place."""
    keys = samples.batch.get("key")
    return lambda i: f"sample {i} of the batch" if keys is None else f"sample {i} of the batch (key {keys[i]!r})"


def _sizes_differ(name: str, pictures: Sequence[Array], where: Any) -> str:
    """The error about pictures that make no batch."""
    sizes = [picture.shape for picture in pictures]
    other = next(i for i, size in enumerate(sizes) if size != sizes[0])
    return (
        f"expected pictures of one size, got {list(sizes[0])} at {where(0)} and {list(sizes[other])} at {where(other)}, at field {name!r}; "
        f"give the dataset decode={{{name!r}: fastdata.RandomResizedCrop(224)}} or fastdata.Resize(224)"
    )

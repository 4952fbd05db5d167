"""The contract of a sampler: the order of an epoch as a pure function.

A file of this folder defines one class derived from `Sampler` here (`batches.py`: batch samplers), which the folder's `__init__` names.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterator
from typing import ClassVar

import numpy as np
from torch.utils.data import Sampler as TorchSampler

from fastdata.distributed import rank, world_size
from fastdata.errors import ArgumentError
from fastdata.seeding import MAX_SAMPLES
from fastdata.types import Int64Array

BLOCK = 4096
"""Positions that are mapped in one call: large beside the cost of a call (a quarter of a millisecond), small beside memory."""


class Sampler(TorchSampler[int]):
    """Map the positions of an epoch to indices; seeded, the same for any number of workers and ranks, with no list of all samples.

    Iterated alone, in place of a sampler of torch, it gives this rank's share: global batches of one sample for each rank, the last,
    incomplete one left out. Each new pass is the next epoch, from 0 on, unless `set_epoch` says which.

    Attributes:
        num_samples: length of an epoch over all ranks.
        seed: of the order and of the samples' augmentation.
        shuffled: the order is random, so that leaving some samples out of an epoch does no harm.
    """

    shuffled: ClassVar[bool]

    def __init__(self, num_samples: int, *, seed: int = 0) -> None:
        if not 0 <= num_samples <= MAX_SAMPLES:
            raise ArgumentError(f"expected 0 to {MAX_SAMPLES} samples, got {num_samples}, at {type(self).__name__}")
        self.num_samples, self.seed = num_samples, seed
        self._next = 0
        self.requested: int | None = None

    @abstractmethod
    def take(self, epoch: int, start: int, stop: int) -> Int64Array:
        """Map positions [start, stop) of an epoch, 0 <= start <= stop <= num_samples, to indices int64 [stop - start]."""

    def set_epoch(self, epoch: int) -> None:
        """Say which epoch the next pass is, from 0; later ones count on from there."""
        self.requested = check_epoch(epoch)

    def take_request(self) -> int | None:
        """The epoch that `set_epoch` asked for, once."""
        epoch, self.requested = self.requested, None
        return epoch

    def __len__(self) -> int:
        return self.num_samples // world_size()

    def __iter__(self) -> Iterator[int]:
        requested = self.take_request()
        epoch = self._next if requested is None else requested
        self._next = epoch + 1
        mine, ranks = rank(), world_size()
        for start in range(0, len(self) * ranks, BLOCK * ranks):
            stop = min(start + BLOCK * ranks, len(self) * ranks)
            yield from self.take(epoch, start, stop)[mine::ranks].tolist()

    def __eq__(self, other: object) -> bool:
        return type(other) is type(self) and self.describe() == other.describe()

    def __hash__(self) -> int:
        return hash(repr(self))

    def describe(self) -> dict[str, int | str]:
        """What makes the order, in JSON values: equal for samplers that give equal orders."""
        return {"sampler": type(self).__name__, "num_samples": self.num_samples, "seed": self.seed}

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.num_samples}, seed={self.seed})"


def check_epoch(epoch: int) -> int:
    """Refuse what is no epoch."""
    if not isinstance(epoch, (int, np.integer)) or isinstance(epoch, bool) or epoch < 0:
        raise ArgumentError(f"expected an epoch of at least 0, got {epoch!r}, at set_epoch")
    return int(epoch)


def arange(start: int, stop: int) -> Int64Array:
    """Positions [start, stop), int64."""
    return np.arange(start, stop, dtype=np.int64)

"""Batches of one size: the global batch first, then each rank's share of it."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from typing import Any

import numpy as np
from torch.utils.data import BatchSampler

from fastdata.distributed import rank, world_size
from fastdata.errors import ArgumentError
from fastdata.samplers.base import BLOCK, Sampler, arange, check_epoch
from fastdata.seeding import make_tickets

TAILS = ("drop", "exact", "keep", "pad")


class Batches(BatchSampler):
    """Cut an epoch into global batches and give this rank's share of each.

    Global batch g is positions [g * B * W, (g + 1) * B * W) for batch size B and W ranks; rank r has the r-th B of them. So any number of ranks
    with the same B * W trains on the same samples in the same steps. Each new pass is the next epoch, from 0 on, unless `set_epoch` of
    this object or of its sampler says which.

    Tails, for 10 samples, B = 2, W = 2, in order:
        drop    rank 0: [0 1] [4 5]            rank 1: [2 3] [6 7]
        pad     rank 0: [0 1] [4 5] [8 9]      rank 1: [2 3] [6 7] [0 1]
        exact   the same, and the last batch of rank 1 is marked as padding: `valid` is false there
        keep    one rank only, the last batch as short as it comes

    Args:
        sampler: the order.
        batch_size: samples of a batch on one rank, B.
        drop_last: what torch calls tail="drop"; beside `tail` it must agree.
        tail: None: "drop" for shuffled order on several ranks, "exact" for sequential order there, "keep" on one rank.
        dataset: what is loaded; when it says `takes_tickets`, batches are of tickets and not of indices.
    """

    def __init__(
        self, sampler: Sampler, batch_size: int, drop_last: bool | None = None, *, tail: str | None = None, dataset: Any = None
    ) -> None:
        if not isinstance(batch_size, int) or isinstance(batch_size, bool) or batch_size < 1:
            raise ArgumentError(f"expected at least 1, got {batch_size!r}, at batch_size")
        if tail is not None and tail not in TAILS:
            raise ArgumentError(f"expected one of {list(TAILS)}, got {tail!r}, at tail")
        if drop_last is not None and tail is not None and drop_last != (tail == "drop"):
            raise ArgumentError(f"expected drop_last and tail to agree, got drop_last={drop_last} and tail={tail!r}; leave one out")
        self.sampler: Sampler = sampler
        self.batch_size = batch_size
        self.bind(dataset)
        self._tail = "drop" if drop_last else tail
        self._next = 0
        self._requested: int | None = None
        if self._tail == "exact" and not self.tickets:
            raise ArgumentError("expected a dataset that can mark padding with tail='exact', got none that takes tickets; use tail='pad'")

    def bind(self, dataset: Any) -> None:
        """Say what is loaded, which decides between tickets and indices; a loader says it of batches that it was given."""
        self.dataset, self.tickets = dataset, bool(getattr(dataset, "takes_tickets", False))

    @property
    def tail(self) -> str:
        """What happens to the last, incomplete global batch.

        Raises:
            ArgumentError: "keep" on several ranks.
        """
        several = world_size() > 1
        if self._tail is None:
            return ("drop" if self.sampler.shuffled or not self.tickets else "exact") if several else "keep"
        if self._tail == "keep" and several:
            raise ArgumentError(f"expected tail='exact' on {world_size()} ranks, got 'keep', which gives them unequal batches")
        return self._tail

    @property
    def drop_last(self) -> bool:
        """Whether the last, incomplete batch is left out."""
        return self.tail == "drop"

    @drop_last.setter
    def drop_last(self, value: bool) -> None:
        raise AttributeError("expected tail= to be given when the batches are made")

    def set_epoch(self, epoch: int) -> None:
        """Say which epoch the next pass is, from 0; later ones count on from there."""
        self._requested = check_epoch(epoch)

    def __len__(self) -> int:
        tail = self.tail
        whole, rest = divmod(self.sampler.num_samples, self.batch_size * world_size())
        return whole + (rest > 0 and tail != "drop")

    def __iter__(self) -> Iterator[list[int]]:
        asked = self.sampler.take_request()
        requested, self._requested = self._requested, None
        epoch = next(number for number in (requested, asked, self._next) if number is not None)
        self._next = epoch + 1
        tail, mine, num_samples = self.tail, rank(), self.sampler.num_samples
        whole = self.batch_size * world_size()
        if num_samples and not len(self):
            warnings.warn(
                f"expected at least one global batch of {whole}, got {num_samples} samples and tail='drop': the epoch is empty",
                stacklevel=2,
            )
        batches = max(1, BLOCK // whole)
        for first in range(0, len(self), batches):
            start, stop = first * whole, min(first + batches, len(self)) * whole
            positions = arange(start, min(stop, num_samples) if tail == "keep" else stop)
            indices = self.sampler.take(epoch, start, min(stop, num_samples))
            if len(indices) < len(positions):
                # Filled up from the start of the epoch, round and round where the epoch is shorter than the batch.
                fill = positions[len(indices) :] % num_samples
                again = self.sampler.take(epoch, 0, min(num_samples, int(fill.max()) + 1))
                indices = np.concatenate([indices, again[fill]])
            if self.tickets:
                padding = positions >= num_samples if tail == "exact" else None
                indices = make_tickets(indices, self.sampler.seed, epoch, positions, padding)
            for begin in range(mine * self.batch_size, len(indices), whole):
                yield indices[begin : begin + self.batch_size].tolist()

"""The uniform shuffle."""

from __future__ import annotations

from fastdata.samplers.base import Sampler, arange
from fastdata.seeding import permute
from fastdata.types import Int64Array


class Shuffle(Sampler):
    """Every sample once, in an order that is another permutation for each epoch, keyed by the seed."""

    shuffled = True

    def take(self, epoch: int, start: int, stop: int) -> Int64Array:
        return permute(arange(start, stop), self.num_samples, self.seed, epoch)

"""The dataset's own order."""

from __future__ import annotations

from fastdata.samplers.base import Sampler, arange
from fastdata.types import Int64Array


class Sequential(Sampler):
    """Every sample once, in order; the seed is that of augmentation."""

    shuffled = False

    def take(self, epoch: int, start: int, stop: int) -> Int64Array:
        return arange(start, stop)

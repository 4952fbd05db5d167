"""Samplers: the order of an epoch, and batches of it. Adding one is adding a file; `base.py` is the specification."""

from __future__ import annotations

from fastdata.samplers.base import Sampler
from fastdata.samplers.batches import Batches
from fastdata.samplers.sequential import Sequential
from fastdata.samplers.shuffle import Shuffle

__all__ = ["Batches", "Sampler", "Sequential", "Shuffle"]

"""Rank and world size, from torch.distributed when a process group is up, else from the launcher's environment, else 0 of 1."""

from __future__ import annotations

import os
import sys
from typing import Any

from fastdata.errors import ArgumentError


def _process_group() -> Any | None:
    """torch.distributed, when torch is loaded and a process group is up."""
    torch: Any = sys.modules.get("torch")
    if torch is None:
        return None
    group = torch.distributed
    return group if group.is_available() and group.is_initialized() else None


def _from_environment(name: str, default: int) -> int:
    """A whole number that torchrun and its like put into the environment."""
    value = os.environ.get(name, "")
    if not value:
        return default
    if not value.isdecimal():
        raise ArgumentError(f"expected a whole number, got {value!r}, at the environment variable {name}")
    return int(value)


def rank() -> int:
    """This process's number, from 0.

    Raises:
        ArgumentError: the environment has a rank outside of its world, or a world and no rank.
    """
    group = _process_group()
    if group:
        return int(group.get_rank())
    ranks = world_size()
    if ranks > 1 and not os.environ.get("RANK"):
        raise ArgumentError(f"expected a rank beside WORLD_SIZE={ranks}, got none, at the environment variable RANK")
    number = _from_environment("RANK", 0)
    if number >= ranks:
        raise ArgumentError(
            f"expected a rank under {ranks}, got {number}, at the environment variable RANK; WORLD_SIZE says how many there are"
        )
    return number


def world_size() -> int:
    """How many processes train together, at least 1."""
    group = _process_group()
    return int(group.get_world_size()) if group else max(1, _from_environment("WORLD_SIZE", 1))


def local_world_size() -> int:
    """How many of them run on this machine, as the launcher says; without a word from it, all of them."""
    return max(1, _from_environment("LOCAL_WORLD_SIZE", world_size()))

"""Randomness as pure functions: hashes, uniform numbers, permutations and tickets, all of whole arrays.

Nothing here keeps a state: the same words give the same numbers in every process, on every machine, in every version of the package.
"""

from __future__ import annotations

import os
import random
import sys
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import numpy.typing as npt

from fastdata.types import Array, Int64Array

UInt64Array = npt.NDArray[np.uint64]

INDEX_BITS = 40
NONCE_BITS = 22
PADDING_BIT = 62
MAX_SAMPLES = 1 << INDEX_BITS

_GOLDEN = np.uint64(0x9E3779B97F4A7C15)
_ROUNDS = 6
_SORT_BELOW = 4096  # positions; up to here sorting hashes is faster than walking cycles, and as random as the hash is
_MASK = (1 << 64) - 1


def _word(value: int | Array) -> UInt64Array:
    """A word of a hash as uint64 of at least one dimension: numpy wraps arrays silently, and warns of scalars."""
    if isinstance(value, (int, np.integer)):
        return np.array([int(value) & _MASK], dtype=np.uint64)
    return np.atleast_1d(value).astype(np.uint64, copy=False)


def hash64(*words: int | Array) -> UInt64Array:
    """Hash words into 64 bits, elementwise with broadcasting.

    Each word is xored in, followed by the finaliser of SplitMix64 (Steele, Lea, Flood: Fast splittable pseudorandom number generators,
    OOPSLA 2014), which is a bijection: other words in one place never collide while the words before are equal.

    Returns:
        uint64, the broadcast shape of the words, at least [1].
    """
    state: UInt64Array = np.array([0x243F6A8885A308D3], dtype=np.uint64)  # pi, a number with nothing up its sleeve
    for word in words:
        state = (state ^ _word(word)) + _GOLDEN
        state = (state ^ (state >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        state = (state ^ (state >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
        state = state ^ (state >> np.uint64(31))
    return state


def hash_text(text: str) -> int:
    """Hash a short string into 64 bits: the stream number of a field's name."""
    words = np.frombuffer(text.encode().ljust(-(-len(text.encode()) // 8) * 8, b"\0"), dtype="<u8")
    state = len(text.encode())
    for word in words:
        state = int(hash64(state, int(word))[0])
    return state


def uniform(keys: UInt64Array, stream: int, num: int) -> npt.NDArray[np.float64]:
    """Draw `num` uniform numbers in [0, 1) for each key [B]; float64 [B, num], with 53 random bits each."""
    bits = hash64(keys[:, None], stream, np.arange(num, dtype=np.uint64)[None, :])
    return (bits >> np.uint64(11)).astype(np.float64) * 2.0**-53


def permute(positions: Int64Array, num: int, *key: int) -> Int64Array:
    """Map positions through a keyed permutation of range(num), without building it.

    Up to 4,096 elements hashes are sorted. Beyond, a Feistel network over pairs (left, right) in a by b, a * b just above `num`, adds a hash
    of one half to the other, modulo its range, in six rounds; what falls outside of range(num) walks on (cycle walking: Black and Rogaway,
    Ciphers with arbitrary finite domains, CT-RSA 2002).

    Args:
        positions: int64 [n], each in [0, num).
        num: size of the permutation, at most 2^40.
        key: words such as seed and epoch; other words, another permutation.

    Returns:
        int64 [n]: the images, each in [0, num).
    """
    if num <= _SORT_BELOW:
        order = np.argsort(hash64(*key, np.arange(num, dtype=np.uint64)), kind="stable").astype(np.int64)
        return order[positions]
    left_size = int(np.ceil(np.sqrt(num)))
    right_size = -(-num // left_size)
    a, b = np.uint64(left_size), np.uint64(right_size)
    round_keys = [int(hash64(*key, num, i)[0]) for i in range(_ROUNDS)]

    def walk(values: UInt64Array) -> UInt64Array:
        left, right = values // b, values % b
        for i, round_key in enumerate(round_keys):
            if i % 2:
                right = (right + hash64(round_key, left) % b) % b
            else:
                left = (left + hash64(round_key, right) % a) % a
        return left * b + right

    images = walk(np.asarray(positions).astype(np.uint64))
    outside = np.flatnonzero(images >= np.uint64(num))
    while len(outside):
        images[outside] = walk(images[outside])
        outside = outside[images[outside] >= np.uint64(num)]
    return images.astype(np.int64)


def make_tickets(indices: Int64Array, seed: int, epoch: int, positions: Int64Array, padding: Array | None = None) -> Int64Array:
    """Join indices with the nonces of their positions in the epoch.

    A ticket is a non-negative int64: bits 0-39 the index, bits 40-61 the nonce, never 0, bit 62 set where `padding` [n] is true.
    """
    nonces = hash64(seed, epoch, positions) % np.uint64((1 << NONCE_BITS) - 1) + np.uint64(1)
    tickets = indices | (nonces.astype(np.int64) << INDEX_BITS)
    if padding is not None:
        tickets = tickets | (padding.astype(np.int64) << PADDING_BIT)
    return tickets


def split_tickets(tickets: Int64Array) -> tuple[Int64Array, Int64Array, npt.NDArray[np.bool_]]:
    """Take tickets apart into indices, nonces (0: a plain index) and padding marks; negative numbers are plain indices."""
    plain = tickets < 0
    indices = np.where(plain, tickets, tickets & (MAX_SAMPLES - 1))
    nonces = np.where(plain, 0, (tickets >> INDEX_BITS) & ((1 << NONCE_BITS) - 1))
    padding = ~plain & ((tickets >> PADDING_BIT) & 1).astype(bool)
    return indices, nonces, padding


def seed_everything(seed: int) -> None:
    """Seed the global generators of random, numpy and torch.

    Python's own hashing of strings is settled when the process starts: a warning says so when PYTHONHASHSEED was not set.

    Args:
        seed: any integer; numpy takes its lower 32 bits.
    """
    import torch

    random.seed(seed)
    np.random.seed(seed & 0xFFFFFFFF)
    torch.manual_seed(seed)
    if not os.environ.get("PYTHONHASHSEED"):
        warnings.warn(
            "PYTHONHASHSEED was not set before this process started: the order of sets of strings differs from run to run; "
            "start with PYTHONHASHSEED=0 to settle it",
            stacklevel=2,
        )


def seed_globals(word: int) -> None:
    """Seed random, numpy and, where it is loaded, torch's CPU generator from one 64-bit word, fast enough for every sample."""
    random.seed(word)
    np.random.seed(word & 0xFFFFFFFF)
    if "torch" in sys.modules:
        # torch.manual_seed also visits every accelerator: 189 us instead of 1.6.
        sys.modules["torch"].default_generator.manual_seed(word & (_MASK >> 1))


@contextmanager
def globals_restored() -> Iterator[None]:
    """Put the global generators of random, numpy and torch back as they were."""
    torch: Any = sys.modules.get("torch")
    states = random.getstate(), np.random.get_state(), torch.default_generator.get_state() if torch else None
    try:
        yield
    finally:
        random.setstate(states[0])
        np.random.set_state(states[1])
        if torch:
            torch.default_generator.set_state(states[2])

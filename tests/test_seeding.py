from __future__ import annotations

import os
import random
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import fastdata
from fastdata import seeding

MASK = (1 << 64) - 1


# The same in plain Python integers, from the documentation --------------------------------------------------------------------------


def plain_hash(*words: int) -> int:
    state = 0x243F6A8885A308D3
    for word in words:
        state = ((state ^ (word & MASK)) + 0x9E3779B97F4A7C15) & MASK
        state = ((state ^ (state >> 30)) * 0xBF58476D1CE4E5B9) & MASK
        state = ((state ^ (state >> 27)) * 0x94D049BB133111EB) & MASK
        state ^= state >> 31
    return state


def plain_permute(position: int, num: int, *key: int) -> int:
    if num <= 4096:
        return sorted(range(num), key=lambda i: plain_hash(*key, i))[position]
    a = next(a for a in range(int(num**0.5) - 1, num) if a >= 1 and a * a >= num)
    b = -(-num // a)
    while True:
        left, right = divmod(position, b)
        for i in range(6):
            round_key = plain_hash(*key, num, i)
            if i % 2:
                right = (right + plain_hash(round_key, left)) % b
            else:
                left = (left + plain_hash(round_key, right)) % a
        position = left * b + right
        if position < num:
            return position


def plain_ticket(index: int, seed: int, epoch: int, position: int, padding: bool = False) -> int:
    nonce = plain_hash(seed, epoch, position) % (2**22 - 1) + 1
    return index | nonce << 40 | padding << 62


word = st.integers(-(2**63), 2**64 - 1)


@given(st.lists(word, max_size=5))
@settings(deadline=None)
def test_hash64_is_the_plain_hash(words: list[int]) -> None:
    assert seeding.hash64(*words).tolist() == [plain_hash(*words)]


@given(st.lists(st.integers(0, 2**64 - 1), min_size=1, max_size=20), word)
@settings(deadline=None)
def test_hash64_takes_arrays_and_broadcasts(values: list[int], other: int) -> None:
    array = np.array(values, dtype=np.uint64)
    assert seeding.hash64(array, other).tolist() == [plain_hash(value, other) for value in values]
    assert seeding.hash64(other, array[:, None], array[None, :2]).tolist() == [
        [plain_hash(other, a, b) for b in values[:2]] for a in values
    ]
    signed = array.astype(np.int64)
    assert np.array_equal(seeding.hash64(signed), seeding.hash64(array))
    assert array.tolist() == values


def test_hash64_is_splitmix64() -> None:
    """The first outputs of SplitMix64 from seed 1234567, as published with its reference implementation."""
    published = [6457827717110365317, 3203168211198807973, 9817491932198370423, 4593380528125082431, 16408922859458223821]
    gamma, first = 0x9E3779B97F4A7C15, 0x243F6A8885A308D3
    states = [(1234567 + i * gamma) & MASK for i in range(5)]
    assert [int(seeding.hash64(state ^ first)[0]) for state in states] == published


FROZEN = {
    "hash64(0, 1, 2)": 2725194173331529263,
    "hash_text('image')": 7560969881519661531,
    "permute(0..9, 10, 0, 0)": [1, 5, 8, 2, 6, 4, 7, 0, 3, 9],
    "permute(0..7, 1000003, 7, 1)": [922296, 820780, 989076, 732913, 562699, 714591, 170673, 634339],
    "ticket(5, 1, 2, 3)": 2273683393612873733,
    "uniform(hash64(1), 2, 2)": [361447778833760.0, 8146979430978151.0],
}


def test_the_numbers_of_version_1_are_frozen() -> None:
    """A resumed run must meet the order and the augmentation that an older release began with."""
    assert plain_hash() == 0x243F6A8885A308D3
    assert seeding.hash64(0, 1, 2).tolist() == [plain_hash(0, 1, 2)]
    assert seeding.permute(np.arange(10), 10, 0, 0).tolist() == [plain_permute(i, 10, 0, 0) for i in range(10)]
    assert seeding.permute(np.arange(8), 1_000_003, 7, 1).tolist() == [plain_permute(i, 1_000_003, 7, 1) for i in range(8)]
    assert {
        "hash64(0, 1, 2)": int(seeding.hash64(0, 1, 2)[0]),
        "hash_text('image')": seeding.hash_text("image"),
        "permute(0..9, 10, 0, 0)": seeding.permute(np.arange(10), 10, 0, 0).tolist(),
        "permute(0..7, 1000003, 7, 1)": seeding.permute(np.arange(8), 1_000_003, 7, 1).tolist(),
        "ticket(5, 1, 2, 3)": int(seeding.make_tickets(np.array([5]), 1, 2, np.array([3]))[0]),
        "uniform(hash64(1), 2, 2)": (seeding.uniform(seeding.hash64(1), 2, 2)[0] * 2.0**53).tolist(),
    } == FROZEN


@pytest.mark.parametrize("text", ["", "image", "12345678", "123456789", "mäsk", "a" * 100])
def test_hash_text_hashes_the_length_and_then_words_of_eight_bytes(text: str) -> None:
    data = text.encode()
    state = len(data)
    for i in range(0, len(data), 8):
        state = plain_hash(state, int.from_bytes(data[i : i + 8].ljust(8, b"\0"), "little"))
    assert seeding.hash_text(text) == state


def test_hash_text_tells_names_apart() -> None:
    names = [f"{stem}{i}" for stem in ("", "view", "view\0", "a long name of a field ") for i in range(500)]
    assert len({seeding.hash_text(name) for name in names}) == len(names)


# Permutations -----------------------------------------------------------------------------------------------------------------------

SIZES = [1, 2, 3, 5, 17, 255, 256, 257, 4095, 4096, 4097, 4098, 4225, 4226, 8191, 8192, 8193, 65535, 65536, 65537, 99_999, 100_000, 100_001]


@pytest.mark.parametrize("num", SIZES)
def test_permute_is_a_bijection(num: int) -> None:
    for key in ((), (0, 0), (3, 1), (-1, 2**70)):
        images = seeding.permute(np.arange(num), num, *key)
        assert images.dtype == np.int64
        assert np.array_equal(np.sort(images), np.arange(num))


@given(num=st.one_of(st.integers(1, 300), st.integers(4097, 2**40)), data=st.data(), key=st.lists(word, min_size=1, max_size=3))
@settings(deadline=None, max_examples=60)
def test_permute_is_the_plain_permutation_for_any_positions(num: int, data: st.DataObject, key: list[int]) -> None:
    positions = data.draw(st.lists(st.integers(0, num - 1), max_size=4))
    images = seeding.permute(np.array(positions, dtype=np.int64), num, *key)
    assert images.tolist() == [plain_permute(position, num, *key) for position in positions]


def test_permute_of_nothing_is_nothing() -> None:
    for num in (0, 5, 5000):
        assert seeding.permute(np.zeros(0, dtype=np.int64), num, 1).shape == (0,)


@pytest.mark.parametrize("num", [2**40, 2**40 - 1, 2**32 + 1])
def test_permute_reaches_the_largest_datasets(num: int) -> None:
    """Case 41."""
    positions = np.concatenate([np.arange(1000), num - 1 - np.arange(1000)])
    images = seeding.permute(positions, num, 0, 0)
    assert len(np.unique(images)) == 2000
    assert 0 <= images.min() < num // 4 < 3 * num // 4 < images.max() < num


def test_other_keys_give_other_permutations() -> None:
    for num in (50, 5000):
        orders = {tuple(seeding.permute(np.arange(num), num, *key).tolist()) for key in ((0, 0), (0, 1), (1, 0), (1, 1))}
        assert len(orders) == 4


@pytest.mark.parametrize("num", [4096, 10_000])
def test_permutations_show_no_correlation_with_positions_neighbours_or_other_epochs(num: int) -> None:
    """Case 91. Of n independent pairs the correlation has a standard deviation of 1 / sqrt(n); five of them are allowed."""
    orders = [seeding.permute(np.arange(num), num, 11, epoch) for epoch in range(4)]
    limit = 5 / np.sqrt(num)
    for order in orders:
        assert abs(np.corrcoef(order, np.arange(num))[0, 1]) < limit
        for lag in (1, 2, 3, 7, 64, 100):
            assert abs(np.corrcoef(order[:-lag], order[lag:])[0, 1]) < limit
        # Fixed points of a random permutation: Poisson with mean 1. Neighbours that stay neighbours: mean 1 as well.
        assert (order == np.arange(num)).sum() <= 8
        assert (np.diff(order) == 1).sum() <= 8
    for i in range(4):
        for j in range(i):
            assert abs(np.corrcoef(orders[i], orders[j])[0, 1]) < limit


@pytest.mark.parametrize("num", [6, 5000])
def test_an_image_is_every_element_equally_often_over_epochs(num: int) -> None:
    """Chi-square over 16 cells (6 where there are six elements), five standard deviations above its mean allowed."""
    for position in (0, num - 1):
        images = [int(seeding.permute(np.array([position]), num, 1, epoch)[0]) for epoch in range(1200)]
        cells = min(num, 16)
        counts = np.bincount(np.array(images) * cells // num, minlength=cells)
        expected = np.array([sum(1 for i in range(num) if i * cells // num == cell) for cell in range(cells)]) * (1200 / num)
        chi_square = ((counts - expected) ** 2 / expected).sum()
        assert chi_square < cells - 1 + 5 * np.sqrt(2 * (cells - 1))


def test_all_orders_of_four_come_equally_often() -> None:
    orders = [tuple(seeding.permute(np.arange(4), 4, 9, epoch).tolist()) for epoch in range(4800)]
    counts = np.array([orders.count(order) for order in set(orders)])
    assert len(counts) == 24
    assert ((counts - 200) ** 2 / 200).sum() < 23 + 5 * np.sqrt(46)


# Uniform numbers --------------------------------------------------------------------------------------------------------------------


def test_uniform_is_the_upper_53_bits_of_a_hash() -> None:
    keys = np.array([0, 5, 2**64 - 1], dtype=np.uint64)
    expected = [[(plain_hash(key, 77, i) >> 11) / 2**53 for i in range(4)] for key in keys.tolist()]
    assert seeding.uniform(keys, 77, 4).tolist() == expected


def test_uniform_numbers_are_uniform_and_independent_of_neighbours_streams_and_places() -> None:
    keys = seeding.hash64(np.arange(20_000, dtype=np.uint64))
    numbers = seeding.uniform(keys, 1, 3)
    assert numbers.shape == (20_000, 3)
    assert numbers.dtype == np.float64
    assert numbers.min() >= 0
    assert numbers.max() < 1
    for column in (*numbers.T, seeding.uniform(keys, 2, 1)[:, 0]):
        counts = np.histogram(column, bins=50, range=(0, 1))[0]
        assert ((counts - 400) ** 2 / 400).sum() < 49 + 5 * np.sqrt(98)
    limit = 5 / np.sqrt(20_000)
    others = [*numbers.T, seeding.uniform(keys, 2, 1)[:, 0], numbers[:, 0][np.r_[1:20_000, 0]]]
    for i in range(5):
        for j in range(i):
            assert abs(np.corrcoef(others[i], others[j])[0, 1]) < limit


def test_each_bit_of_a_hash_flips_half_of_the_time_when_one_bit_of_a_word_does() -> None:
    words = np.arange(2000, dtype=np.uint64)
    for bit in (0, 1, 31, 40, 63):
        changed = seeding.hash64(words, 5) ^ seeding.hash64(words ^ np.uint64(1 << bit), 5)
        share = np.unpackbits(changed.view(np.uint8).reshape(-1, 8), axis=1).mean(axis=0)
        assert np.abs(share - 0.5).max() < 5 * 0.5 / np.sqrt(2000)


# Tickets ----------------------------------------------------------------------------------------------------------------------------

rows = st.lists(st.tuples(st.integers(0, 2**40 - 1), st.integers(0, 2**62), st.booleans()), max_size=20)


@given(rows=rows, seed=word, epoch=st.integers(0, 2**31))
@settings(deadline=None)
def test_tickets_are_indices_nonces_and_padding_and_come_apart_again(rows: list[tuple[int, int, bool]], seed: int, epoch: int) -> None:
    indices, positions, padding = (np.array([row[i] for row in rows], dtype=dtype) for i, dtype in enumerate((np.int64, np.int64, bool)))
    tickets = seeding.make_tickets(indices, seed, epoch, positions, padding)
    assert tickets.dtype == np.int64
    assert tickets.tolist() == [plain_ticket(index, seed, epoch, position, pad) for index, position, pad in rows]
    assert (tickets >= 0).all()
    found = seeding.split_tickets(tickets)
    assert np.array_equal(found[0], indices)
    assert found[1].tolist() == [plain_hash(seed, epoch, position) % (2**22 - 1) + 1 for position in positions.tolist()]
    assert np.array_equal(found[2], padding)
    unmarked = seeding.make_tickets(indices, seed, epoch, positions)
    assert np.array_equal(unmarked, tickets & ~np.int64(1 << 62))


@given(st.lists(st.integers(-(2**40), 2**40 - 1), max_size=20))
@settings(deadline=None)
def test_plain_indices_are_no_tickets(indices: list[int]) -> None:
    found = seeding.split_tickets(np.array(indices, dtype=np.int64))
    assert found[0].tolist() == indices
    assert not found[1].any()
    assert not found[2].any()


def test_nonces_are_never_nought_and_spread_over_22_bits() -> None:
    positions = np.arange(1_000_000)
    nonces = seeding.split_tickets(seeding.make_tickets(positions, 0, 0, positions))[1]
    assert nonces.min() > 0
    assert nonces.max() < 1 << 22
    counts = np.bincount(nonces >> 12, minlength=1024)
    assert ((counts - 1e6 / 1024) ** 2 / (1e6 / 1024)).sum() < 1023 + 5 * np.sqrt(2046)


# Global generators ------------------------------------------------------------------------------------------------------------------


def draw_all() -> list[float]:
    return [random.random(), float(np.random.random()), float(torch.rand(()))]


@pytest.mark.parametrize("seed", [0, 7, -3, 2**40 + 5])
def test_seed_everything_seeds_all_three(monkeypatch: pytest.MonkeyPatch, seed: int) -> None:
    monkeypatch.setenv("PYTHONHASHSEED", "0")
    with seeding.globals_restored():
        fastdata.seed_everything(seed)
        first = draw_all()
        draw_all()
        fastdata.seed_everything(seed)
        assert draw_all() == first
        fastdata.seed_everything(seed + 1)
        assert all(a != b for a, b in zip(draw_all(), first, strict=True))
        random.seed(seed)
        np.random.seed(seed % 2**32)
        torch.manual_seed(seed)
        assert draw_all() == first


def test_seed_everything_says_so_when_the_hash_seed_was_not_set_before_the_start() -> None:
    code = """
import warnings, fastdata
with warnings.catch_warnings(record=True) as found:
    warnings.simplefilter("always")
    fastdata.seed_everything(0)
print([(str(w.message), w.filename) for w in found])
"""
    clean = {name: value for name, value in os.environ.items() if name != "PYTHONHASHSEED"}
    clean["PYTHONPATH"] = str(Path(fastdata.__file__).parents[1])
    said = [
        subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, env={**clean, **extra}).stdout
        for extra in ({}, {"PYTHONHASHSEED": "0"})
    ]
    assert "PYTHONHASHSEED=0" in said[0]
    assert "<string>" in said[0]
    assert said[1].strip() == "[]"


def test_seed_globals_seeds_all_three_from_one_word() -> None:
    with seeding.globals_restored():
        drawn = []
        for value in (0, 1, 2**64 - 1, 0):
            seeding.seed_globals(value)
            drawn.append(draw_all())
        assert drawn[0] == drawn[3]
        assert len({number for numbers in drawn for number in numbers}) == 9


def test_global_generators_are_restored_also_after_an_error() -> None:
    expected = None
    for failing in (False, True):
        with seeding.globals_restored():
            expected = draw_all()
        with pytest.raises(KeyError) if failing else seeding.globals_restored(), seeding.globals_restored():
            seeding.seed_globals(5)
            draw_all()
            if failing:
                raise KeyError
        with seeding.globals_restored():
            assert draw_all() == expected

from __future__ import annotations

import pickle
from typing import Any

import numpy as np
import pytest
import torch.utils.data
from hypothesis import given, settings
from hypothesis import strategies as st

from fastdata import samplers
from fastdata.errors import ArgumentError
from fastdata.samplers import Sampler
from fastdata.seeding import MAX_SAMPLES

SAMPLERS = [
    value
    for name in samplers.__all__
    if isinstance(value := getattr(samplers, name), type) and issubclass(value, Sampler) and value is not Sampler
]
of_every_sampler = pytest.mark.parametrize("kind", SAMPLERS, ids=lambda kind: kind.__name__)


def test_there_are_samplers() -> None:
    assert {kind.__name__ for kind in SAMPLERS} >= {"Sequential", "Shuffle"}


@of_every_sampler
@given(data=st.data(), num_samples=st.sampled_from([0, 1, 2, 3, 50, 4096, 4097, 10_000]), epoch=st.integers(0, 2**40))
@settings(deadline=None, max_examples=40)
def test_any_slices_concatenate_to_the_whole(kind: type[Sampler], data: st.DataObject, num_samples: int, epoch: int) -> None:
    sampler = kind(num_samples, seed=data.draw(st.integers(-(2**63), 2**64)))
    whole = sampler.take(epoch, 0, num_samples)
    assert whole.dtype == np.int64
    assert whole.shape == (num_samples,)
    cuts = sorted(data.draw(st.lists(st.integers(0, num_samples), max_size=5)))
    pieces = [sampler.take(epoch, start, stop) for start, stop in zip([0, *cuts], [*cuts, num_samples], strict=True)]
    assert np.array_equal(np.concatenate(pieces), whole)


@of_every_sampler
@pytest.mark.parametrize("num_samples", [1, 2, 7, 4095, 4096, 4097, 20_000])
def test_an_epoch_is_a_permutation(kind: type[Sampler], num_samples: int) -> None:
    assert sorted(kind(num_samples, seed=2).take(3, 0, num_samples).tolist()) == list(range(num_samples))


@of_every_sampler
def test_an_order_is_the_same_each_time_and_shuffled_orders_differ_by_epoch_and_seed(kind: type[Sampler]) -> None:
    orders = [kind(5000, seed=seed).take(epoch, 0, 5000).tolist() for seed, epoch in ((0, 0), (0, 1), (1, 0), (0, 0))]
    assert orders[0] == orders[3]
    if kind.shuffled:
        assert orders[0] != orders[1]
        assert orders[0] != orders[2]
        assert orders[1] != orders[2]
    else:
        assert orders == [list(range(5000))] * 4


@of_every_sampler
def test_samplers_that_give_equal_orders_are_equal(kind: type[Sampler]) -> None:
    assert kind(9, seed=1) == kind(9, seed=1)
    assert hash(kind(9, seed=1)) == hash(kind(9, seed=1))
    assert kind(9, seed=1) != kind(9, seed=2)
    assert kind(9, seed=1) != kind(8, seed=1)
    assert all(kind(9) != other(9) for other in SAMPLERS if other is not kind)
    assert kind(9) != "something else"
    assert repr(kind(9, seed=1)) == f"{kind.__name__}(9, seed=1)"


@of_every_sampler
def test_a_sampler_pickles_small_with_the_epoch_that_is_next(kind: type[Sampler]) -> None:
    sampler = kind(1 << 40, seed=5)
    sampler.set_epoch(3)
    data = pickle.dumps(sampler)
    assert len(data) < 500
    again = pickle.loads(data)
    assert again == sampler
    assert again.requested == 3
    assert np.array_equal(again.take(1, 2**39, 2**39 + 4), sampler.take(1, 2**39, 2**39 + 4))


@of_every_sampler
def test_passes_are_the_next_epochs_until_set_epoch_says_which(kind: type[Sampler]) -> None:
    """Case 86."""
    sampler = kind(10, seed=5)
    epochs = [sampler.take(epoch, 0, 10).tolist() for epoch in range(9)]
    assert list(sampler) == epochs[0]
    assert list(sampler) == epochs[1]
    sampler.set_epoch(7)
    assert list(sampler) == epochs[7]
    assert list(sampler) == epochs[8]
    sampler.set_epoch(0)
    assert list(sampler) == epochs[0]


@of_every_sampler
@given(num_samples=st.integers(0, 9000), world_size=st.integers(1, 5))
@settings(deadline=None, max_examples=40)
def test_iterated_alone_ranks_share_an_epoch_in_turn(kind: type[Sampler], num_samples: int, world_size: int) -> None:
    """Case 94: equal numbers, the last incomplete round left out."""
    whole = kind(num_samples, seed=1).take(0, 0, num_samples).tolist()
    rounds = num_samples // world_size
    for rank in range(world_size):
        with pytest.MonkeyPatch.context() as patch:
            patch.setenv("RANK", str(rank))
            patch.setenv("WORLD_SIZE", str(world_size))
            sampler = kind(num_samples, seed=1)
            assert len(sampler) == rounds
            assert list(sampler) == [whole[i * world_size + rank] for i in range(rounds)]


@of_every_sampler
def test_indices_are_python_integers_that_torch_takes(kind: type[Sampler]) -> None:
    sampler: Any = kind(5)
    assert isinstance(sampler, torch.utils.data.Sampler)
    assert all(type(index) is int for index in sampler)


@of_every_sampler
@pytest.mark.parametrize("num_samples", [-1, MAX_SAMPLES + 1])
def test_more_samples_than_a_ticket_can_name_are_refused(kind: type[Sampler], num_samples: int) -> None:
    with pytest.raises(ArgumentError, match=rf"expected 0 to {MAX_SAMPLES} samples, got {num_samples}, at {kind.__name__}"):
        kind(num_samples)
    assert len(kind(MAX_SAMPLES)) == MAX_SAMPLES

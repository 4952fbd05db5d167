from __future__ import annotations

import pickle
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import torch.utils.data
from hypothesis import given, settings
from hypothesis import strategies as st

from fastdata.errors import ArgumentError
from fastdata.samplers import Batches, Sampler, Sequential, Shuffle

MASK40 = (1 << 40) - 1


class TakesTickets:
    takes_tickets = True


def flat(lists: Iterable[list[Any]]) -> list[Any]:
    return [value for one in lists for value in one]


@contextmanager
def rank_of(rank: int, world_size: int) -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("RANK", str(rank))
        patch.setenv("WORLD_SIZE", str(world_size))
        yield


def shares(make: Any, world_size: int) -> list[list[list[int]]]:
    """The batches of one pass of every rank; their number is what len() said."""
    found = []
    for rank in range(world_size):
        with rank_of(rank, world_size):
            batches = make()
            said = len(batches)
            found.append(list(batches))
            assert len(found[-1]) == said
    return found


def cut(order: list[int], batch_size: int, world_size: int, tail: str) -> list[list[list[int]]]:
    """The batches of every rank, by the law of each tail, from the whole order."""
    whole = batch_size * world_size
    if tail == "drop":
        order = order[: len(order) // whole * whole]
    elif tail in ("pad", "exact") and order:
        order = [order[i % len(order)] for i in range(-(-len(order) // whole) * whole)]
    starts = range(0, len(order), whole)
    return [[order[s + rank * batch_size : s + (rank + 1) * batch_size] for s in starts] for rank in range(world_size)]


geometry = st.tuples(st.integers(1, 400), st.integers(1, 60), st.integers(1, 5))


@given(
    geometry=st.one_of(geometry, st.tuples(st.integers(4000, 9000), st.integers(1, 700), st.integers(1, 4))),
    tail=st.sampled_from(["drop", "pad", "exact"]),
    kind=st.sampled_from([Shuffle, Sequential]),
    epoch=st.integers(0, 5),
)
@settings(deadline=None, max_examples=120)
@pytest.mark.filterwarnings("ignore:expected at least one global batch")
def test_ranks_share_each_global_batch_and_every_tail_keeps_its_law(
    geometry: tuple[int, int, int], tail: str, kind: type[Sampler], epoch: int
) -> None:
    """Cases 93, 94."""
    num_samples, batch_size, world_size = geometry

    def make() -> Batches:
        batches = Batches(kind(num_samples, seed=6), batch_size, tail=tail, dataset=TakesTickets())
        batches.set_epoch(epoch)
        return batches

    found = shares(make, world_size)
    order = kind(num_samples, seed=6).take(epoch, 0, num_samples).tolist()
    indices = [[[ticket & MASK40 for ticket in batch] for batch in share] for share in found]
    assert indices == cut(order, batch_size, world_size, tail)
    assert len({len(share) for share in found}) == 1
    counted = [t & MASK40 for share in found for batch in share for t in batch if not t >> 62]
    if tail == "exact":
        assert sorted(counted) == list(range(num_samples))
    elif tail == "pad":
        assert set(counted) == set(range(num_samples))
    else:
        assert len(counted) == len(set(counted)) == num_samples // (batch_size * world_size) * batch_size * world_size


@given(num_samples=st.one_of(st.integers(0, 300), st.integers(4000, 9000)), batch_size=st.integers(1, 5000))
@settings(deadline=None, max_examples=60)
def test_keep_cuts_the_order_into_batches_with_a_short_last_one(num_samples: int, batch_size: int) -> None:
    batches = Batches(Shuffle(num_samples, seed=1), batch_size, tail="keep")
    order = Shuffle(num_samples, seed=1).take(0, 0, num_samples).tolist()
    assert len(batches) == -(-num_samples // batch_size)
    assert list(batches) == [order[i : i + batch_size] for i in range(0, num_samples, batch_size)]


def test_the_tails_of_the_docstring() -> None:
    expected = {
        "drop": [[[0, 1], [4, 5]], [[2, 3], [6, 7]]],
        "pad": [[[0, 1], [4, 5], [8, 9]], [[2, 3], [6, 7], [0, 1]]],
        "exact": [[[0, 1], [4, 5], [8, 9]], [[2, 3], [6, 7], [0, 1]]],
    }
    for tail, wanted in expected.items():
        found = shares(lambda tail=tail: Batches(Sequential(10), 2, tail=tail, dataset=TakesTickets()), 2)
        assert [[[t & MASK40 for t in batch] for batch in share] for share in found] == wanted
        padding = [[[bool(t >> 62) for t in batch] for batch in share] for share in found]
        assert padding[0] == [[False, False]] * len(wanted[0])
        assert padding[1][-1] == [tail == "exact"] * 2


@given(num_samples=st.integers(1, 700), batch_size=st.sampled_from([1, 2, 3, 5, 8]), data=st.data())
@settings(deadline=None, max_examples=60)
@pytest.mark.filterwarnings("ignore:expected at least one global batch")
def test_any_ranks_with_the_same_global_batch_train_on_the_same_samples_in_the_same_steps(
    num_samples: int, batch_size: int, data: st.DataObject
) -> None:
    """Case 84; tickets, and so the augmentation, are the same too."""
    world_size = data.draw(st.sampled_from([2, 3, 4]))
    tail = data.draw(st.sampled_from(["drop", "pad", "exact"]))

    def steps(size: int, ranks: int) -> list[list[int]]:
        found = shares(lambda: Batches(Shuffle(num_samples, seed=2), size, tail=tail, dataset=TakesTickets()), ranks)
        return [flat(step) for step in zip(*found, strict=True)]

    assert steps(batch_size, world_size) == steps(batch_size * world_size, 1)


@pytest.mark.parametrize(
    ("kind", "dataset", "world_size", "expected"),
    [
        (Shuffle, TakesTickets(), 1, "keep"),
        (Sequential, TakesTickets(), 1, "keep"),
        (Shuffle, TakesTickets(), 2, "drop"),
        (Sequential, TakesTickets(), 2, "exact"),
        (Shuffle, None, 2, "drop"),
        (Sequential, None, 2, "drop"),  # nobody could mark padding
    ],
)
def test_the_default_tail_goes_by_order_and_ranks(kind: type[Sampler], dataset: Any, world_size: int, expected: str) -> None:
    with rank_of(0, world_size):
        batches = Batches(kind(10), 3, dataset=dataset)
        assert batches.tail == expected
        assert batches.drop_last == (expected == "drop")


def test_drop_last_is_tail_drop() -> None:
    batches = Batches(Sequential(10), 4, True)
    assert batches.tail == "drop"
    assert list(batches) == [[0, 1, 2, 3], [4, 5, 6, 7]]
    assert list(Batches(Sequential(10), 4, False)) == [[0, 1, 2, 3], [4, 5, 6, 7], [8, 9]]


def test_without_a_dataset_that_takes_tickets_batches_are_of_indices() -> None:
    assert list(Batches(Sequential(5), 2, dataset=[1, 2, 3])) == [[0, 1], [2, 3], [4]]
    assert all(type(i) is int for batch in Batches(Sequential(5), 2) for i in batch)


def test_tickets_have_other_nonces_each_epoch_and_place_and_are_positive_64_bit_integers() -> None:
    """Case 85: a sample that comes twice, as padding does, is augmented twice."""
    batches = Batches(Sequential(3), 8, tail="pad", dataset=TakesTickets())
    tickets = [ticket for _ in range(3) for batch in batches for ticket in batch]
    nonces = [ticket >> 40 for ticket in tickets]
    assert [ticket & MASK40 for ticket in tickets] == [0, 1, 2, 0, 1, 2, 0, 1] * 3
    assert len(set(nonces)) == 24
    assert all(0 < nonce < 1 << 22 for nonce in nonces)
    assert all(type(ticket) is int and 0 <= ticket < 1 << 63 for ticket in tickets)


def test_passes_are_the_next_epochs_until_set_epoch_of_batches_or_sampler_says_which() -> None:
    """Cases 85, 86."""
    orders = [Shuffle(12, seed=1).take(epoch, 0, 12).tolist() for epoch in range(10)]
    batches = Batches(Shuffle(12, seed=1), 4)

    def one_pass() -> list[int]:
        return flat(batches)

    assert [one_pass(), one_pass()] == orders[:2]
    batches.set_epoch(5)
    assert [one_pass(), one_pass()] == orders[5:7]
    batches.sampler.set_epoch(2)
    assert [one_pass(), one_pass()] == orders[2:4]
    batches.sampler.set_epoch(8)
    batches.set_epoch(1)
    assert [one_pass(), one_pass()] == orders[1:3]


def test_a_pass_that_is_broken_off_counts() -> None:
    batches = Batches(Shuffle(12, seed=1), 4)
    next(iter(batches))
    assert flat(batches) == Shuffle(12, seed=1).take(1, 0, 12).tolist()


def test_more_ranks_than_samples_pad_and_drop_alike_on_all_of_them() -> None:
    """Case 94."""
    found = shares(lambda: Batches(Sequential(2), 1, tail="exact", dataset=TakesTickets()), 5)
    assert [[ticket & MASK40 for ticket in share[0]] for share in found] == [[0], [1], [0], [1], [0]]
    assert [share[0][0] >> 62 for share in found] == [0, 0, 1, 1, 1]
    for rank in range(3):
        with rank_of(rank, 3), pytest.warns(UserWarning, match="global batch of 3, got 2 samples and tail='drop': the epoch is empty"):
            assert list(Batches(Shuffle(2), 1)) == []


@pytest.mark.parametrize("tail", ["drop", "pad", "exact", "keep", None])
def test_no_samples_are_no_batches(tail: str | None) -> None:
    batches = Batches(Sequential(0), 4, tail=tail, dataset=TakesTickets())
    assert (len(batches), list(batches)) == (0, [])


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"batch_size": 0}, "expected at least 1, got 0, at batch_size"),
        ({"batch_size": True}, "expected at least 1, got True, at batch_size"),
        ({"batch_size": 2, "tail": "cut"}, r"expected one of \['drop', 'exact', 'keep', 'pad'\], got 'cut', at tail"),
        ({"batch_size": 2, "drop_last": True, "tail": "pad"}, "drop_last=True and tail='pad'; leave one out"),
        ({"batch_size": 2, "drop_last": False, "tail": "drop"}, "drop_last=False and tail='drop'; leave one out"),
        ({"batch_size": 2, "tail": "exact", "dataset": [1]}, "tail='exact', got none that takes tickets; use tail='pad'"),
    ],
)
def test_arguments_that_cannot_be_meant_are_refused(arguments: dict[str, Any], message: str) -> None:
    """Case 90."""
    with pytest.raises(ArgumentError, match=message):
        Batches(Sequential(4), **arguments)


def test_keep_is_refused_on_several_ranks_and_names_exact() -> None:
    with rank_of(0, 2):
        batches = Batches(Sequential(5), 2, tail="keep", dataset=TakesTickets())
        for use in (len, list):
            with pytest.raises(ArgumentError, match="expected tail='exact' on 2 ranks, got 'keep'"):
                use(batches)


def test_batches_pickle_and_are_torchs_to_frameworks() -> None:
    batches = Batches(Shuffle(100, seed=3), 8, tail="pad")
    batches.set_epoch(2)
    again = pickle.loads(pickle.dumps(batches))
    assert isinstance(again, torch.utils.data.BatchSampler)
    assert (again.batch_size, again.drop_last, again.sampler) == (8, False, Shuffle(100, seed=3))
    assert list(again) == list(batches)
    with pytest.raises(AttributeError, match="tail="):
        again.drop_last = True

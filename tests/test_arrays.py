from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as npst

from fastdata.arrays import as_array, join, pad
from fastdata.errors import DataError


def where(i: int) -> str:
    return f"sample {i}"


@pytest.mark.parametrize(
    ("values", "dtype"),
    [
        ([True, False], "bool"),
        ([1, -2], "int64"),
        ([1.5, 2.5], "float32"),
        ([np.float64(1), np.float64(2)], "float64"),
        ([np.uint8(1), np.uint8(2)], "uint8"),
        ([np.array(3, np.int16)] * 2, "int16"),
        ([torch.tensor(1.0), torch.tensor(2.0)], "float32"),
        ([torch.tensor(1), torch.tensor(2)], "int64"),
        ([np.bool_(True)], "bool"),
        ([1j * np.complex64(1)], "complex64"),
    ],
)
def test_numbers_become_one_array_of_a_documented_dtype(values: list[Any], dtype: str) -> None:
    """Case 113."""
    array = join("x", values, where)
    assert isinstance(array, np.ndarray)
    assert array.dtype == dtype
    assert array.tolist() == [complex(v).real if dtype != "complex64" else complex(v) for v in values]


@pytest.mark.parametrize(
    "values", [["a", "b"], [None, None], [1, None], [{"a": 1}], [[1, 2], [3, 4]], [b"x"], [np.str_("a")], [np.array(["a"])], []]
)
def test_what_is_no_number_stays_a_list(values: list[Any]) -> None:
    assert join("x", values, where) == values
    assert isinstance(join("x", values, where), list)


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ([1, 2.0], "expected int64 as in sample 0, got float32, at field 'x' of sample 1"),
        ([1, 2, True], "expected int64 as in sample 0, got bool, at field 'x' of sample 2"),
        ([np.zeros(2), np.zeros(2, "f4")], "expected float64 as in sample 0, got float32, at field 'x' of sample 1"),
        ([np.float64(1), 1.0], "expected float64 as in sample 0, got float32, at field 'x' of sample 1"),
    ],
)
def test_other_dtypes_in_one_field_are_refused_by_field_and_sample(values: list[Any], message: str) -> None:
    """Case 113."""
    with pytest.raises(DataError, match=message):
        join("x", values, where)


@given(npst.arrays(np.int32, st.tuples(st.integers(1, 5), st.integers(0, 3), st.integers(0, 3))))
@settings(deadline=None)
def test_arrays_of_one_shape_are_stacked(array: np.ndarray[Any, Any]) -> None:
    found = join("x", list(array), where)
    assert isinstance(found, np.ndarray)
    assert np.array_equal(found, array)
    assert found.dtype == array.dtype


def test_arrays_of_other_shapes_stay_a_list() -> None:
    values = [np.zeros(2), np.zeros(3)]
    found = join("x", values, where)
    assert isinstance(found, list)
    assert all(a is b for a, b in zip(found, values, strict=True))


def test_joined_values_are_a_copy() -> None:
    values = [np.zeros(2), np.zeros(2)]
    found = join("x", values, where)
    assert isinstance(found, np.ndarray)
    found[:] = 1
    assert not values[0].any()


def test_tensors_that_want_gradients_are_taken_without() -> None:
    array = as_array(torch.ones(3, requires_grad=True))
    assert array is not None
    assert array.tolist() == [1, 1, 1]


lists = st.lists(st.integers(0, 6), min_size=1, max_size=6)


@given(
    lengths=lists,
    trailing=st.sampled_from([(), (2,), (2, 3), (0,)]),
    dtype=st.sampled_from(["f4", "i8", "u1", "?"]),
    seed=st.integers(0, 99),
)
@settings(deadline=None)
def test_padding_is_zeros_behind_each_array(lengths: list[int], trailing: tuple[int, ...], dtype: str, seed: int) -> None:
    """Case 109: the mask comes from the lengths, whatever the values are."""
    rng = np.random.default_rng(seed)
    values = [rng.integers(0, 3, (length, *trailing)).astype(dtype) for length in lengths]
    padded, found, mask = pad("x", values, where)
    longest = max(lengths)
    assert padded.shape == (len(values), longest, *trailing)
    assert padded.dtype == dtype
    assert found.dtype == np.int64
    assert found.tolist() == lengths
    assert mask.dtype == bool
    assert mask.tolist() == [[j < length for j in range(longest)] for length in lengths]
    for row, value in zip(padded, values, strict=True):
        assert np.array_equal(row[: len(value)], value)
        assert not row[len(value) :].any()


@pytest.mark.parametrize(
    "values",
    [
        [np.zeros((2, 4)), np.zeros((2, 5))],
        [np.zeros((2, 4)), np.zeros((2, 4), "f4")],
        [np.zeros((2, 4)), np.zeros(2)],
        [np.zeros(2), np.zeros(())],
        [np.zeros(()), np.zeros(())],
    ],
)
def test_arrays_that_differ_in_more_than_their_length_are_refused_by_field_shapes_and_samples(values: list[Any]) -> None:
    """Case 108."""
    with pytest.raises(DataError) as caught:
        pad("boxes", values, where)
    bad = 0 if values[0].ndim == 0 else 1
    for word in ("'boxes'", str(list(values[0].shape)), str(list(values[bad].shape)), f"sample {bad}", str(values[bad].dtype)):
        assert word in str(caught.value)

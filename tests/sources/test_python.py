from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from itertools import islice
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from fastdata.errors import ArgumentError, DataError
from fastdata.sources import base, open_source
from fastdata.sources.python import HEAD, Source
from fastdata.types import Field

JPEG = b"\xff\xd8\xff\xe0 not decoded here"


def draw(source: base.Source) -> list[base.Drawn]:
    return [drawn for part in source.parts() for drawn in source.read(part)]


def field(*values: Any) -> Field:
    (found,) = Source([{"x": value} for value in values]).fields
    return found


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        ([Image.new("RGB", (3, 2))], Field("x", "image")),
        ([np.zeros((2, 3, 3), "u1"), np.zeros((4, 1, 3), "u1")], Field("x", "image")),
        ([JPEG, b"\x89PNG\r\n\x1a\n", b"RIFF\0\0\0\0WEBPVP8 "], Field("x", "image")),
        ([JPEG, np.zeros((2, 3, 3), "u1")], Field("x", "image")),
        ([b"abc", bytearray(b"def"), memoryview(b"")], Field("x", "bytes")),
        (["a", np.str_("b")], Field("x", "scalar", "str")),
        (["a.jpg"], Field("x", "scalar", "str")),
        (["a", "b" * 201], Field("x", "text")),
        ([True, False], Field("x", "scalar", "bool")),
        ([np.bool_(True)], Field("x", "scalar", "bool")),
        ([1, None, 2], Field("x", "scalar", "int64")),
        ([1, 2.5], Field("x", "scalar", "float64")),
        ([np.float32(1), np.float32(2)], Field("x", "scalar", "float32")),
        ([np.uint8(1), np.array(2, "u1")], Field("x", "scalar", "uint8")),
        ([np.uint64(2**64 - 1)], Field("x", "scalar", "uint64")),
        ([torch.tensor(3)], Field("x", "scalar", "int64")),
        ([torch.zeros(2, 3), torch.zeros(5, 3)], Field("x", "ndarray", "float32", (3,))),
        ([np.zeros((2, 3), ">f8"), np.zeros((0, 3))], Field("x", "ndarray", "float64", (3,))),
        ([[1, 2], []], Field("x", "ndarray", "int64")),
        ([(1, 2), (0.5,)], Field("x", "ndarray", "float64")),
        ([[[1, 2]], [[3, 4], [5, 6]]], Field("x", "ndarray", "int64", (2,))),
        ([{"a": 1}], Field("x", "json")),
        ([["a"], [1]], Field("x", "json")),
        ([None], Field("x", "scalar", "str")),
    ],
)
def test_fields_are_told_from_values(values: list[Any], expected: Field) -> None:
    assert field(*values) == expected
    drawn = draw(Source([{"x": value} for value in values]))
    assert not [d.sample for d in drawn if isinstance(d.sample, DataError)]


def test_values_come_as_codecs_take_them() -> None:
    picture = Image.new("L", (3, 2))
    sample = {"n": np.float32(0.5), "t": torch.arange(6).reshape(2, 3).T, "l": [1, 2], "big": np.ones(2, ">i2"), "p": picture, "text": "x"}
    (drawn,) = draw(Source([sample]))
    assert isinstance(drawn.sample, dict)
    assert drawn.sample["n"] == 0.5
    assert type(drawn.sample["n"]) is float
    np.testing.assert_array_equal(drawn.sample["t"], np.array([[0, 3], [1, 4], [2, 5]]), strict=True)
    assert drawn.sample["t"].flags.c_contiguous
    np.testing.assert_array_equal(drawn.sample["l"], np.array([1, 2]), strict=True)
    assert drawn.sample["big"].dtype == np.dtype("<i2")
    assert drawn.sample["p"] is picture
    assert drawn.nbytes == 4 + 48 + len("[1, 2]") + 4 + 6 + 1


def test_the_label_comes_last_and_the_key_is_no_field() -> None:
    source = Source([{"label": 1, "key": "a", "x": 2}, {"x": 3}])
    assert [field.name for field in source.fields] == ["x", "label"]
    assert [(d.key, d.sample) for d in draw(source)] == [("a", {"x": 2, "label": 1}), ("1", {"x": 3, "label": None})]


@pytest.mark.parametrize(
    ("source", "message"),
    [
        ({"x": 1}, "expected an iterable of dicts or a map-style dataset, got dict"),
        (b"abc", "got bytes"),
        (5, "got int"),
        ([], "expected samples, got none, from list"),
        (iter(()), "expected samples, got none"),
        ([(1, 2)], r"expected samples that are dicts, got \(1, 2\) \(tuple\), from list; make it a dict"),
        (iter(["x"]), r"expected samples that are dicts, got 'x' \(str\)"),
        ([{}], "expected samples with fields"),
        ([{"index": 1}], "which is reserved"),
        ([{1: 2}], r"expected fields named by strings, got \[1\]"),
        ([{"x": np.zeros(2, "c8")}], "expected numbers, got an array of complex64, at field 'x'"),
        ([{"x": 2**63}], "expected an integer of 64 bits, got 9223372036854775808, at field 'x'"),
        ([{"x": np.zeros((1, 2))}, {"x": np.zeros((1, 3))}], r"one shape.*got ndarray float64 \['n', 2\] and ndarray float64 \['n', 3\]"),
        ([{"x": np.zeros(2, "f4")}, {"x": np.zeros(2, "f8")}], "got ndarray float32 .* and ndarray float64"),
        ([{"x": torch.zeros(2, dtype=torch.bfloat16)}], "expected a tensor that numpy can hold"),
    ],
)
def test_what_cannot_be_samples_is_refused_before_work(source: Any, message: str) -> None:
    with pytest.raises(ArgumentError, match=message):
        open_source(source)


@pytest.mark.parametrize(
    ("first", "later", "message"),
    [
        (1, "x", "expected int64, got 'x' (str), at field 'x'"),
        (1, 0.5, "expected int64, got 0.5 (float), at field 'x'"),
        (1, True, "expected int64, got True (bool), at field 'x'"),
        (np.int8(1), 200, "expected int8, got 200, at field 'x'"),
        ("a", 1, "expected str, got 1 (int), at field 'x'"),
        (JPEG, "a", "expected a picture, got 'a' (str), at field 'x'"),
        (b"a", "a", "expected bytes, got 'a' (str), at field 'x'"),
        (np.zeros((2, 3)), np.zeros((2, 4)), "expected an array ['n', 3] of float64, got an array [2, 4] of float64, at field 'x'"),
        ([1], [0.5], "expected an array [n] of int64, got [0.5] (list), at field 'x'"),
        ([[1, 2]], [1], "expected an array [n, 2] of int64, got [1] (list), at field 'x'"),
    ],
)
def test_what_does_not_fit_later_is_an_error_and_the_next_ones_follow(first: Any, later: Any, message: str) -> None:
    samples = [{"x": first}] * HEAD + [{"x": later}, {"x": first}]
    drawn = draw(Source(iter(samples)))
    assert len(drawn) == HEAD + 2
    assert [str(d.sample) for d in drawn if isinstance(d.sample, DataError)] == [message]
    assert drawn[HEAD].origin == f"sample {HEAD}"


def test_an_iterable_has_one_part_and_is_held_no_further_than_its_head() -> None:
    taken = 0

    def generate() -> Iterator[dict[str, int]]:
        nonlocal taken
        for taken in range(1, 3001):
            yield {"x": taken}

    source = Source(generate())
    assert taken == HEAD
    assert not source.splits
    (part,) = source.parts()
    assert (part.number, part.nbytes, part.num_samples) == (0, 0, None)
    for number, drawn in enumerate(source.read(part), 1):
        assert taken == max(number, HEAD)
        assert (drawn.sample, drawn.nbytes) == ({"x": number}, 8)
    assert taken == 3000
    with pytest.raises(ArgumentError, match="expected an iterable that can be read again, got generator"):
        list(source.read(part))


def test_an_iterable_that_starts_anew_is_read_again() -> None:
    class Stream:
        def __iter__(self) -> Iterator[dict[str, int]]:
            yield from ({"x": i} for i in range(5))

    source = Source(Stream())
    assert [d.sample for d in draw(source)] == [d.sample for d in draw(source)] == [{"x": i} for i in range(5)]


class MapStyle(torch.utils.data.Dataset[Any]):
    def __init__(self, num_samples: int, broken: tuple[int, ...] = ()) -> None:
        self.num_samples, self.broken, self.asked = num_samples, broken, list[int]()

    def __len__(self) -> int:
        return self.num_samples

    def __getitem__(self, index: int) -> Any:
        self.asked.append(index)
        if index in self.broken:
            raise KeyError("no such thing")
        return {"x": index, "array": np.zeros(10, "f4")}


def test_a_map_style_dataset_is_probed_evenly_and_split_by_index() -> None:
    dataset = MapStyle(1000)
    source = Source(dataset)
    assert source.splits
    assert (len(dataset.asked), dataset.asked[0], dataset.asked[-1]) == (64, 0, 999)
    parts = list(source.parts())
    assert [part.number for part in parts] == list(range(1000))
    assert {part.nbytes for part in parts} == {48}
    (drawn,) = source.read(parts[500])
    assert isinstance(drawn.sample, dict)
    assert (drawn.key, drawn.sample["x"], drawn.nbytes) == ("500", 500, 48)


def test_case_41_numbers_of_samples_go_beyond_32_bits() -> None:
    source = Source(MapStyle(2**40))
    assert [part.number for part in islice(source.parts(), 3)] == [0, 1, 2]
    (drawn,) = source.read(base.Part("", 48, 2**40 - 1, 2**40 - 1))
    assert isinstance(drawn.sample, dict)
    assert (drawn.key, drawn.sample["x"]) == (str(2**40 - 1), 2**40 - 1)


def test_what_a_dataset_raises_is_an_error_that_names_the_index() -> None:
    drawn = draw(Source(MapStyle(5, broken=(0, 3))))
    errors = [d for d in drawn if isinstance(d.sample, DataError)]
    assert [str(d.sample) for d in errors] == [f"expected sample {i}, got KeyError: 'no such thing'" for i in (0, 3)]
    assert all(isinstance(d.sample, DataError) and isinstance(d.sample.__cause__, KeyError) for d in errors)
    with pytest.raises(ArgumentError, match="expected sample 0, got KeyError"):
        Source(MapStyle(2, broken=(0, 1)))


def test_what_an_iterator_raises_ends_it_loudly_since_the_rest_is_lost() -> None:
    def generate() -> Iterator[dict[str, int]]:
        yield from ({"x": i} for i in range(HEAD + 5))
        raise RuntimeError("connection lost")

    source = Source(generate())
    with pytest.raises(DataError, match=f"expected sample {HEAD + 5}, got RuntimeError: connection lost"):
        draw(source)


def test_an_iterable_dataset_of_torch_is_no_map_style_one() -> None:
    class Stream(torch.utils.data.IterableDataset[Any]):
        def __iter__(self) -> Iterator[Any]:
            yield from ({"x": i} for i in range(3))

        def __len__(self) -> int:
            return 3

    source = Source(Stream())
    assert not source.splits
    assert [d.sample for d in draw(source)] == [{"x": 0}, {"x": 1}, {"x": 2}]


def test_a_sample_of_another_type_or_with_more_fields_is_an_error() -> None:
    samples: list[Any] = [{"x": 1}] * HEAD
    drawn = draw(Source(iter([*samples, (1,), {"x": 1, "y": 2}, {"x": 1, "key": 3}])))
    assert [str(d.sample) for d in drawn[HEAD:]] == [
        "expected a dict, got (1,) (tuple)",
        "expected fields ['x'], got also ['y']",
        "expected a str as key, got 3 (int)",
    ]


def test_sources_import_no_torch() -> None:
    script = "import sys; from fastdata.sources import open_source; open_source([{'x': 1}]); sys.exit('torch' in sys.modules)"
    subprocess.run([sys.executable, "-c", script], check=True)

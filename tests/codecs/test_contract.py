"""What every codec owes, run over each file of `fastdata/codecs`."""

from __future__ import annotations

import contextlib
import io
import json
import math
import pickle
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hn

from fastdata import registry
from fastdata.codecs import open_codec
from fastdata.codecs.base import Codec
from fastdata.errors import ArgumentError, DataError
from fastdata.types import Array, Encoded, Field, nbytes

CODECS = registry.names("fastdata.codecs")
DTYPES = ["bool", "int8", "uint8", "int16", "uint16", "int32", "uint32", "int64", "uint64", "float16", "float32", "float64"]


def same(a: Any, b: Any) -> bool:
    """Equal in value and type, NaN equal to itself."""
    if isinstance(a, np.ndarray):
        return isinstance(b, np.ndarray) and a.dtype == b.dtype and a.shape == b.shape and a.tobytes() == b.tobytes()
    if isinstance(a, float) and math.isnan(a):
        return isinstance(b, (float, np.floating)) and math.isnan(b)
    return bool(a == b)


@dataclass
class Case:
    """A field, values that it takes, and values that it must refuse."""

    field: Field
    good: st.SearchStrategy[Any]
    bad: list[Any]


JSON_VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(st.characters(codec="utf-8")),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(st.characters(codec="utf-8")), inner, max_size=4),
    max_leaves=12,
)


def little(dtype: str) -> np.dtype[Any]:
    return np.dtype(dtype).newbyteorder("<")


CASES: dict[str, Case] = {
    "bytes": Case(Field("f", "bytes"), st.binary(max_size=300), ["text", 1, None, [1], np.zeros(3, np.uint8), {}]),
    "text": Case(Field("f", "text"), st.text(st.characters(codec="utf-8")), [b"bytes", 1, None, ["a"], "\ud800", "a\udcff"]),
    "json": Case(Field("f", "json"), JSON_VALUES, [math.nan, math.inf, {1, 2}, b"x", object(), [np.int64(1)], "\ud800"]),
    "image": Case(
        Field("f", "image"),
        hn.arrays(np.uint8, st.tuples(st.integers(1, 9), st.integers(1, 9), st.just(3))),
        [b"", b"no picture", "path.jpg", 5, np.zeros((2, 2, 3), np.float32), np.zeros((0, 2, 3), np.uint8), np.zeros((2, 2, 5), np.uint8)],
    ),
    "scalar int64": Case(
        Field("f", "scalar", "int64"),
        st.integers(-(2**63), 2**63 - 1),
        [2**63, -(2**63) - 1, 1.5, math.nan, math.inf, "1", [1], np.zeros(1)],
    ),
    "scalar uint8": Case(Field("f", "scalar", "uint8"), st.integers(0, 255), [256, -1, "a", 0.5, b"1"]),
    "scalar bool": Case(Field("f", "scalar", "bool"), st.booleans(), [2, "true", 0.5, [True]]),
    "scalar float64": Case(Field("f", "scalar", "float64"), st.floats(), ["1.0", [1.0], None, {}, 1j]),
    "scalar str": Case(Field("f", "scalar", "str"), st.text(st.characters(codec="utf-8")), [b"bytes", 1, ["a"], "\ud800"]),
    "ndarray dense": Case(
        Field("f", "ndarray", "float32", (2, 3), dense=True),
        hn.arrays(little("float32"), (2, 3)),
        [np.zeros((3, 2), np.float32), np.zeros((2, 3), np.float64), np.zeros((1, 2, 3), np.float32), "x", [[1], [1, 2]], None],
    ),
    "ndarray flat": Case(
        Field("f", "ndarray", "int16", (), dense=True), hn.arrays(little("int16"), ()), [np.zeros(1, np.int16), 2**20, 1.5]
    ),
    "ndarray ragged": Case(
        Field("f", "ndarray", "int32"),
        hn.arrays(little("int32"), st.integers(0, 20)),
        [np.zeros((2, 2), np.int32), np.zeros(3, np.int64), np.array(5, np.int32), ["a"], [1.5], np.zeros(2, np.uint32)],
    ),
    "ndarray boxes": Case(
        Field("f", "ndarray", "float64", (4,)),
        hn.arrays(little("float64"), st.tuples(st.integers(0, 6), st.just(4))),
        [np.zeros((2, 3)), np.zeros(4), np.zeros((2, 4, 1)), np.zeros((1, 4), np.complex128), [[1, 2, 3, 4], [1]]],
    ),
}


def decoded(codec: Codec, encoded: Encoded) -> Any:
    """What comes back from a store: bytes as uint8 [n], read-only; arrays of the field's form."""
    data: Array
    if isinstance(encoded.data, np.ndarray):
        data = encoded.data.reshape(-1) if not codec.field.shape and codec.field.codec == "image" else encoded.data
    else:
        data = np.frombuffer(encoded.data, dtype=np.uint8)
    data.flags.writeable = False
    return codec.decode(data, encoded.columns)


def test_every_codec_has_a_case() -> None:
    assert {name.split()[0] for name in CASES} == set(CODECS)


@pytest.mark.parametrize("name", CASES)
def test_what_is_encoded_decodes_to_itself(name: str) -> None:
    case = CASES[name]
    codec = open_codec(case.field)

    @given(case.good)
    @settings(max_examples=60, deadline=None, database=None)
    def check(value: Any) -> None:
        encoded = codec.encode(value)
        assert same(value, decoded(codec, encoded))
        again = open_codec(case.field).encode(value)
        assert bytes(memoryview(again.data).cast("B") if np.size(again.data) else b"") == bytes(
            memoryview(encoded.data).cast("B") if np.size(encoded.data) else b""
        )

    check()


@pytest.mark.parametrize(
    ("name", "value"), [(name, value) for name, case in CASES.items() for value in case.bad], ids=lambda v: repr(v)[:30]
)
def test_a_value_that_does_not_fit_is_a_data_error(name: str, value: Any) -> None:
    with pytest.raises(DataError, match=r"^expected .* got |^expected .*, got"):
        open_codec(CASES[name].field).encode(value)


@pytest.mark.parametrize("name", CASES)
def test_derived_columns_are_those_that_are_declared(name: str) -> None:
    case = CASES[name]
    codec = open_codec(case.field)

    @given(case.good)
    @settings(max_examples=10, deadline=None, database=None)
    def check(value: Any) -> None:
        encoded = codec.encode(value)
        assert encoded.columns.keys() == codec.columns.keys()
        for column, dtype in codec.columns.items():
            found = encoded.columns[column]
            assert isinstance(found, str) if dtype == "str" else np.dtype(dtype).type(found) == found
        assert encoded.extension.isalnum()

    check()


COMPRESSIBLE = [name for name, case in CASES.items() if open_codec(case.field).compressible]


def compressing(name: str) -> Codec:
    pytest.importorskip("zstandard")
    return open_codec(replace(CASES[name].field, options={"compress": "zstd"}))


def test_texts_json_bytes_and_arrays_can_be_compressed_and_nothing_else() -> None:
    assert {name.split()[0] for name in COMPRESSIBLE} == {"text", "json", "bytes", "ndarray"}
    for name in CASES:
        for method in ("lz4",) if name in COMPRESSIBLE else ("lz4", "zstd"):
            with pytest.raises(ArgumentError, match=rf"expected one of .*None\], got '{method}', at option compress of field 'f'"):
                open_codec(replace(CASES[name].field, options={"compress": method}))


@pytest.mark.parametrize("name", CASES)
def test_what_is_not_compressed_goes_to_the_store_as_it_is(name: str) -> None:
    codec = open_codec(CASES[name].field)
    encoded = codec.encode(first_good(name))
    assert codec.stored is codec.field
    assert codec.to_store(encoded) is encoded
    data = np.zeros(3, np.uint8)
    assert codec.from_store(data, encoded.columns) is data


@pytest.mark.parametrize("name", COMPRESSIBLE)
def test_what_is_compressed_comes_back_as_it_was_encoded(name: str) -> None:
    plain, codec = open_codec(CASES[name].field), compressing(name)

    @given(CASES[name].good)
    @settings(max_examples=60, deadline=None, database=None)
    def check(value: Any) -> None:
        encoded = codec.encode(value)
        assert same(np.asarray(encoded.data), np.asarray(plain.encode(value).data))
        stored = codec.to_store(encoded)
        assert isinstance(stored.data, bytes)
        assert stored.extension == f"{encoded.extension}.zst"
        assert stored.columns == {**encoded.columns, "raw_nbytes": nbytes(encoded.data)}
        assert stored.columns.keys() == codec.columns.keys()
        data = codec.from_store(np.frombuffer(stored.data, np.uint8), stored.columns)
        raw = encoded.data if isinstance(encoded.data, np.ndarray) else np.frombuffer(encoded.data, np.uint8)
        assert same(data, raw)
        assert codec.shape(data, stored.columns) == plain.shape(raw, encoded.columns)
        assert same(codec.decode(data, stored.columns), value)

    check()
    assert (codec.stored.dtype, codec.stored.shape, codec.stored.dense) == ("uint8", (), False)
    assert (codec.stored.name, codec.stored.codec) == ("f", plain.field.codec)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("shape", "dense"), [((), True), ((0,), True), ((3, 2), True), ((), False), ((2, 1), False), ((1,) * 24, False)])
def test_a_compressed_array_is_a_npy_file(dtype: str, shape: tuple[int, ...], dense: bool) -> None:
    zstandard = pytest.importorskip("zstandard")
    codec = open_codec(Field("f", "ndarray", dtype, shape, dense, {"compress": "zstd"}))
    array = np.random.default_rng(0).integers(0, 2, shape if dense else (5, *shape)).astype(dtype)
    stored = codec.to_store(codec.encode(array))
    file = zstandard.ZstdDecompressor().decompress(stored.data)
    assert same(np.load(io.BytesIO(file), allow_pickle=False), array)
    assert (len(file) - array.nbytes) % 64 == 0


@pytest.mark.parametrize("name", COMPRESSIBLE)
def test_a_flipped_bit_of_a_compressed_value_is_a_data_error_or_another_value(name: str) -> None:
    """Case 63: never a crash, and never more bytes than the column tells of."""
    codec = compressing(name)
    stored = codec.to_store(codec.encode(first_good(name)))
    for at in range(8 * len(bytes(stored.data))):
        damaged = np.frombuffer(bytes(stored.data), np.uint8).copy()
        damaged[at // 8] ^= 1 << at % 8
        with contextlib.suppress(DataError):
            assert codec.from_store(damaged, stored.columns).nbytes == stored.columns["raw_nbytes"]


@pytest.mark.parametrize("name", COMPRESSIBLE)
@pytest.mark.parametrize("raw_nbytes", [-1, 0, 2, 2**60])
def test_columns_that_tell_of_another_size_are_a_data_error(name: str, raw_nbytes: int) -> None:
    codec = compressing(name)
    stored = codec.to_store(codec.encode(first_good(name)))
    if raw_nbytes == stored.columns["raw_nbytes"]:
        raw_nbytes += 1
    with pytest.raises(DataError, match=r"expected a zstd frame of -?\d+ bytes, got \d+ bytes"):
        codec.from_store(np.frombuffer(stored.data, np.uint8), {**stored.columns, "raw_nbytes": raw_nbytes})


def test_a_compressed_array_of_another_length_than_its_column_is_a_data_error() -> None:
    codec = compressing("ndarray boxes")
    stored = codec.to_store(codec.encode(np.ones((2, 4))))
    for length in (-1, 0, 1, 3, 2**62):
        with pytest.raises(DataError, match="expected"):
            codec.from_store(np.frombuffer(stored.data, np.uint8), {**stored.columns, "length": length})


@pytest.mark.parametrize("name", CASES)
def test_without_validation_the_same_is_stored_and_the_same_refused(name: str) -> None:
    codec = open_codec(CASES[name].field)
    full, quick = codec.encode(first_good(name)), codec.encode(first_good(name), validate=False)
    assert same(np.asarray(full.data), np.asarray(quick.data))
    assert (full.columns, full.extension) == (quick.columns, quick.extension)
    assert quick.pixels is None
    for value in CASES[name].bad:
        with pytest.raises(DataError):
            codec.encode(value, validate=False)


@pytest.mark.parametrize("name", CASES)
def test_codecs_pickle(name: str) -> None:
    codec = open_codec(CASES[name].field)
    again = pickle.loads(pickle.dumps(codec))
    assert type(again) is type(codec)
    assert again.field == codec.field
    assert again.columns == codec.columns


@pytest.mark.parametrize("name", CASES)
def test_decoded_values_do_not_hang_on_a_buffer_that_changes(name: str) -> None:
    """Case 81: copied, or a view that keeps its memory alive; raw pixels may be such a view."""
    codec = open_codec(CASES[name].field)
    encoded = codec.encode(first_good(name))
    value = decoded(codec, encoded)
    if isinstance(value, np.ndarray) and codec.field.codec != "image":
        assert value.flags.writeable
        assert not np.shares_memory(value, np.asarray(encoded.data))


def first_good(name: str) -> Any:
    values: dict[str, Callable[[], Any]] = {
        "bytes": lambda: b"abc",
        "text": lambda: "abc",
        "json": lambda: {"a": [1]},
        "image": lambda: np.ones((2, 2, 3), np.uint8),
        "scalar str": lambda: "abc",
        "scalar bool": lambda: True,
        "scalar float64": lambda: 1.5,
        "ndarray dense": lambda: np.ones((2, 3), np.float32),
        "ndarray flat": lambda: np.array(3, np.int16),
        "ndarray ragged": lambda: np.ones(3, np.int32),
        "ndarray boxes": lambda: np.ones((2, 4)),
    }
    return values.get(name, lambda: 7)()


@pytest.mark.parametrize("dtype", DTYPES)
def test_arrays_of_every_dtype_and_byte_order_are_stored_little_endian(dtype: str) -> None:
    array = np.array([0, 1, 1, 0]).astype(np.dtype(dtype).newbyteorder(">"))
    codec = open_codec(Field("f", "ndarray", dtype))
    data = codec.encode(array).data
    assert isinstance(data, np.ndarray)
    assert data.tobytes() == array.astype(np.dtype(dtype).newbyteorder("<")).tobytes()
    assert decoded(codec, codec.encode(array)).dtype == np.dtype(dtype)


@pytest.mark.parametrize("dtype", DTYPES)
def test_scalars_of_every_dtype_have_its_little_endian_bytes(dtype: str) -> None:
    codec = open_codec(Field("f", "scalar", dtype))
    data = codec.encode(1).data
    assert bytes(data) == np.array(1, np.dtype(dtype).newbyteorder("<")).tobytes()
    assert not codec.payload


def test_numbers_are_cast_only_where_nothing_is_lost() -> None:
    codec = open_codec(Field("f", "ndarray", "int64"))
    assert codec.encode(np.array([1, 2], np.int16)).data.tolist() == [1, 2]  # type: ignore[union-attr]
    assert codec.encode([1, 2]).data.dtype == np.dtype("<i8")  # type: ignore[union-attr]
    for lossy in (np.array([1.0]), np.array([1], np.uint64)):
        with pytest.raises(DataError):
            codec.encode(lossy)


def test_a_value_too_large_for_its_float_is_not_made_infinite() -> None:
    codec = open_codec(Field("f", "scalar", "float32"))
    with pytest.raises(DataError):
        codec.encode(1e300)


def test_a_shape_that_leaves_no_elements_to_count_is_refused() -> None:
    with pytest.raises(ArgumentError, match="without 0"):
        open_codec(Field("f", "ndarray", "int32", (0,)))


def test_an_unknown_codec_is_refused_by_name() -> None:
    with pytest.raises(ArgumentError, match="got 'pickle', at field 'f'"):
        open_codec(Field("f", "pickle"))


@pytest.mark.parametrize("data", [b"", b"{", b"\xff", b"[1,", b"[" * 100_000])
def test_damaged_json_is_a_data_error(data: bytes) -> None:
    with pytest.raises(DataError, match="expected JSON"):
        open_codec(Field("f", "json")).decode(np.frombuffer(data, np.uint8), {})


def test_damaged_text_is_a_data_error_with_its_place() -> None:
    with pytest.raises(DataError, match="0xff at offset 3"):
        open_codec(Field("f", "text")).decode(np.frombuffer(b"abc\xff", np.uint8), {})


def test_json_keeps_the_order_of_keys_and_has_no_spaces() -> None:
    value = {"b": 1, "a": [1, {"ü": None}]}
    data = open_codec(Field("f", "json")).encode(value).data
    assert bytes(data) == '{"b":1,"a":[1,{"ü":null}]}'.encode()  # type: ignore[arg-type]
    assert list(json.loads(bytes(data))) == ["b", "a"]  # type: ignore[arg-type]

from __future__ import annotations

import io
import re
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fastdata.errors import ArgumentError, DataError
from fastdata.sources import base
from fastdata.sources.npy import PART_NBYTES
from fastdata.sources.npy import Source as Npy
from fastdata.types import Field


def save(folder: Path, array: Any) -> Path:
    np.save(folder / "a.npy", array)
    return folder / "a.npy"


def draw(source: base.Source) -> list[base.Drawn]:
    return [drawn for part in source.parts() for drawn in source.read(part)]


@pytest.mark.parametrize(
    ("array", "field"),
    [
        (np.zeros((5, 8, 6, 3), "u1"), Field("image", "image", "uint8", (8, 6, 3), True, {"image": "raw"})),
        (np.arange(5, dtype="f4"), Field("value", "scalar", "float32")),
        (np.arange(5) > 2, Field("value", "scalar", "bool")),
        (np.arange(10, dtype=">i4").reshape(5, 2), Field("array", "ndarray", "int32", (2,), True)),
        (np.arange(40, dtype="f2").reshape(5, 2, 4).copy("F"), Field("array", "ndarray", "float16", (2, 4), True)),
        (np.array(["a", "bcd", "é"]), Field("value", "scalar", "str")),
    ],
)
def test_rows_of_one_array_are_samples(tmp_path: Path, array: Any, field: Field) -> None:
    source = Npy(save(tmp_path, array))
    assert source.fields == (field,)
    drawn = draw(source)
    assert [d.key for d in drawn] == [str(row) for row in range(len(array))]
    for d, row in zip(drawn, array, strict=True):
        assert isinstance(d.sample, dict)
        value = d.sample[field.name]
        np.testing.assert_array_equal(value, row)
        if array.ndim == 1:
            assert type(value) in {int, float, bool, str}
        else:
            assert value.flags.c_contiguous
            assert value.flags.owndata
            assert value.dtype == np.dtype(field.dtype).newbyteorder("<")


@pytest.mark.parametrize("saver", [np.savez, np.savez_compressed])
def test_members_of_an_npz_are_fields_by_their_names(tmp_path: Path, saver: Callable[..., None]) -> None:
    arrays: dict[str, Any] = {
        "label": np.arange(4, dtype="u1"),
        "x_train": np.arange(8.0).reshape(4, 2),
        "two words": np.array(list("abcd")),
        "photo": np.full((4, 2, 2, 3), 7, "u1"),
    }
    saver(tmp_path / "set.npz", **arrays)
    source = Npy(tmp_path / "set.npz")
    assert source.fields == (
        Field("x_train", "ndarray", "float64", (2,), True),
        Field("two_words", "scalar", "str"),
        Field("photo", "image", "uint8", (2, 2, 3), True, {"image": "raw"}),
        Field("label", "scalar", "uint8"),
    )
    for row, drawn in enumerate(draw(source)):
        assert isinstance(drawn.sample, dict)
        assert drawn.sample["two_words"] == "abcd"[row]
        assert drawn.sample["label"] == row
        np.testing.assert_array_equal(drawn.sample["x_train"], arrays["x_train"][row])
        np.testing.assert_array_equal(drawn.sample["photo"], arrays["photo"][row])


def test_parts_are_ranges_of_about_a_mebibyte(tmp_path: Path) -> None:
    source = Npy(save(tmp_path, np.zeros((10, 100_000), "f4")))
    parts = list(source.parts())
    assert [part.detail for part in parts] == [(0, 2), (2, 4), (4, 6), (6, 8), (8, 10)]
    assert all(part.nbytes == 800_000 <= PART_NBYTES for part in parts)
    assert [len(list(source.read(part))) for part in parts] == [part.num_samples for part in parts] == [2] * 5


def test_a_row_larger_than_a_part_is_a_part(tmp_path: Path) -> None:
    assert len(list(Npy(save(tmp_path, np.zeros((3, PART_NBYTES + 1), "u1"))).parts())) == 3


@pytest.mark.parametrize(
    ("arrays", "message"),
    [
        ({"a": np.zeros(3), "b": np.zeros((4, 2))}, r"expected arrays of equally many rows, got a \[3\], b \[4, 2\]"),
        ({"a": np.zeros(3), "size": np.array(224)}, r"equally many rows, got a \[3\], size \[\]"),
        ({"a": np.zeros((0, 3))}, "expected rows, got none"),
        ({"a": np.zeros(3, "c8")}, "expected arrays of numbers, got complex64 in a"),
        ({"a": np.array(["x", None])}, "got an array of objects, which only pickle could load"),
        ({"a": np.array([b"x"])}, "expected arrays of numbers, got |S1 in a"),
        ({"a": np.array([["x"]])}, "expected arrays of numbers, got <U1 in a"),
        ({"a": np.zeros(2, "M8[s]")}, "got datetime64"),
        ({"a": np.zeros(2, "i4,f4")}, "expected arrays of numbers"),
        ({"index": np.zeros(2)}, "which is reserved"),
        ({"key": np.zeros(2)}, "which is reserved"),
    ],
)
@pytest.mark.parametrize("saver", [np.savez, np.savez_compressed])
def test_other_arrays_are_refused_by_name(tmp_path: Path, arrays: dict[str, Any], message: str, saver: Callable[..., None]) -> None:
    saver(tmp_path / "set.npz", **arrays)
    with pytest.raises(ArgumentError, match=message):
        Npy(tmp_path / "set.npz")


@pytest.mark.parametrize("name", ["a.npy", "a.npz"])
@pytest.mark.parametrize("data", [b"", b"not numpy", b"PK\x03\x04 cut", b"\x93NUMPY\x01\x00v\x00{'descr': '<f4'"])
def test_damaged_files_are_refused(tmp_path: Path, name: str, data: bytes) -> None:
    (tmp_path / name).write_bytes(data)
    with pytest.raises(ArgumentError, match=r"expected arrays of numbers, got .*, at "):
        Npy(tmp_path / name)


def test_object_arrays_are_not_unpickled(tmp_path: Path) -> None:
    np.save(tmp_path / "a.npy", np.array([1, "x"], object), allow_pickle=True)
    with pytest.raises(ArgumentError, match="expected arrays of numbers"):
        Npy(tmp_path / "a.npy")


@pytest.mark.parametrize("shape", [(2**60,), (2**31, 2**31), (10**30,), (-5,), (26, 1)])
@pytest.mark.parametrize("form", ["npy", "stored", "deflated"])
def test_a_header_that_claims_more_than_there_is_takes_no_memory(tmp_path: Path, shape: tuple[int, ...], form: str) -> None:
    file = io.BytesIO()
    np.lib.format.write_array_header_1_0(file, {"descr": "<f4", "fortran_order": False, "shape": shape})
    data, path = file.getvalue() + bytes(100), tmp_path / ("a.npy" if form == "npy" else "a.npz")
    if form == "npy":
        path.write_bytes(data)
    else:
        with zipfile.ZipFile(path, "w", zipfile.ZIP_STORED if form == "stored" else zipfile.ZIP_DEFLATED) as archive:
            archive.writestr("a.npy", data)
    with pytest.raises(
        ArgumentError, match=re.escape(f"expected arrays of numbers, got an array {list(shape)} of float32 in 100 bytes, at ")
    ):
        Npy(path)


def test_a_member_that_claims_more_than_deflate_can_hold_is_refused(tmp_path: Path) -> None:
    np.savez_compressed(tmp_path / "a.npz", a=np.zeros(1000))
    data = (tmp_path / "a.npz").read_bytes()
    directory = data.rindex(b"PK\x01\x02")
    (tmp_path / "a.npz").write_bytes(data[: directory + 24] + (2**31).to_bytes(4, "little") + data[directory + 28 :])
    with pytest.raises(ArgumentError, match=f"expected arrays of numbers, got {2**31} bytes packed as "):
        Npy(tmp_path / "a.npz")


def test_rows_without_numbers_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ArgumentError, match=r"expected rows with numbers, got empty ones: array \[3, 0\], at "):
        Npy(save(tmp_path, np.zeros((3, 0))))


def test_a_file_that_changes_after_it_was_opened_is_refused(tmp_path: Path) -> None:
    source = Npy(save(tmp_path, np.zeros(3)))
    (part,) = source.parts()
    save(tmp_path, np.zeros(2))
    with pytest.raises(DataError, match="expected the file that was opened, got one that has changed while it was packed, at "):
        next(source.read(part))

from __future__ import annotations

import fcntl
from collections.abc import Callable
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest

import fastdata
from fastdata.errors import ArgumentError, DataError
from fastdata.sources import base, open_source
from fastdata.sources.hdf5 import PART_NBYTES
from fastdata.sources.hdf5 import Source as Hdf5
from fastdata.types import Field

JPEG, PNG = b"\xff\xd8\xff jpeg", b"\x89PNG\r\n\x1a\n png"
STRING = h5py.string_dtype()


def write(path: Path, datasets: dict[str, Any]) -> Path:
    with h5py.File(path, "w") as file:
        for name, data in datasets.items():
            if isinstance(data, list):
                rows = file.create_dataset(name, (len(data),), h5py.vlen_dtype(data[0].dtype))
                for i, row in enumerate(data):
                    rows[i] = row
            else:
                file[name] = data
    return path


def ragged(*rows: bytes) -> list[Any]:
    return [np.frombuffer(row, "u1") for row in rows]


def draw(path: Path) -> list[base.Drawn]:
    source = Hdf5(path)
    return [drawn for part in source.parts() for drawn in source.read(part)]


def check(path: Path, field: Field, expected: list[Any]) -> None:
    """Compare the values of one field, arrays with their dtype."""
    assert field in Hdf5(path).fields
    for drawn, value in zip(draw(path), expected, strict=True):
        assert isinstance(drawn.sample, dict)
        found = drawn.sample[field.name]
        if isinstance(value, np.ndarray):
            np.testing.assert_array_equal(found, value)
            assert found.dtype == np.dtype(field.dtype).newbyteorder("<")
            assert found.flags.owndata
        else:
            assert found == value
            assert type(found) is type(value)


FLOATS = np.arange(12, dtype=">f4").reshape(3, 4)
LITTLE = FLOATS.astype("<f4")
PIXELS = np.arange(3 * 2 * 2 * 3, dtype="u1").reshape(3, 2, 2, 3)


@pytest.mark.parametrize(
    ("data", "field", "expected"),
    [
        (PIXELS, Field("x", "image", "uint8", (2, 2, 3), True, {"image": "raw"}), list(PIXELS)),
        (FLOATS, Field("x", "ndarray", "float32", (4,), True), list(FLOATS)),
        (np.arange(3, dtype="i2"), Field("x", "scalar", "int16"), [0, 1, 2]),
        (np.array([True, False, True]), Field("x", "scalar", "bool"), [True, False, True]),
        (np.array([0.5, 1, 2], "f2"), Field("x", "scalar", "float16"), [0.5, 1.0, 2.0]),
        (np.array(["a", "é", ""], STRING), Field("x", "scalar", "str"), ["a", "é", ""]),
        (np.array([b"a", b"bc", b"d"]), Field("x", "scalar", "str"), ["a", "bc", "d"]),
        (np.array(["a", "b" * 201, "1.jpg"], STRING), Field("x", "text"), ["a", "b" * 201, "1.jpg"]),
        (ragged(JPEG, PNG, b"?"), Field("x", "image"), [JPEG, PNG, b"?"]),
        (ragged(b"a", b"", b"bc"), Field("x", "ndarray", "uint8"), ragged(b"a", b"", b"bc")),
        ([LITTLE[0], LITTLE[1, :0], LITTLE[2, :2]], Field("x", "ndarray", "float32"), [LITTLE[0], LITTLE[1, :0], LITTLE[2, :2]]),
    ],
)
def test_rows_of_a_dataset_are_samples(tmp_path: Path, data: Any, field: Field, expected: list[Any]) -> None:
    path = write(tmp_path / "a.h5", {"x": data})
    check(path, field, expected)
    assert [drawn.key for drawn in draw(path)] == ["0", "1", "2"]
    assert draw(path)[1].origin == f"{path}[1]"


def test_groups_give_their_names_to_fields_and_the_label_is_last(tmp_path: Path) -> None:
    datasets = {"label": np.arange(2), "train/deep/x": np.zeros(2), "train/y-z": np.ones(2), "a": np.zeros((2, 5)), "mean": 0.5}
    source = Hdf5(write(tmp_path / "a.h5", datasets))
    assert [field.name for field in source.fields] == ["a", "train_y_z", "train_deep_x", "label"]
    assert source.ignored == {"datasets without rows": 1}


@pytest.mark.parametrize("name", ["a.h5", "a.HDF5", "a.hdf"])
def test_files_are_recognised_by_their_names(tmp_path: Path, name: str) -> None:
    assert isinstance(open_source(write(tmp_path / name, {"x": np.zeros(2)})), Hdf5)


def test_offsets_beside_a_dataset_make_its_values_ragged(tmp_path: Path) -> None:
    boxes = np.arange(20.0).reshape(5, 4)
    pictures = np.frombuffer(JPEG + PNG + JPEG, "u1")
    ends = np.cumsum([0, len(JPEG), len(PNG), len(JPEG)])
    datasets = {"boxes": boxes, "boxes.offsets": np.array([0, 2, 2, 5]), "image": pictures, "image.offsets": ends}
    path = write(tmp_path / "a.h5", datasets)
    check(path, Field("boxes", "ndarray", "float64", (4,)), [boxes[:2], boxes[:0], boxes[2:]])
    check(path, Field("image", "image"), [JPEG, PNG, JPEG])
    assert [drawn.nbytes for drawn in draw(path)] == [2 * 32 + len(JPEG), len(PNG), 3 * 32 + len(JPEG)]


@pytest.mark.parametrize("offsets", [[0, 2, 9, 5, 5], [0, 2, 1, 5, 5], [0, 2, -1, 5, 5], [0, 2, 2**62, 5, 5]])
def test_offsets_that_lead_nowhere_are_errors_of_their_rows(tmp_path: Path, offsets: list[int]) -> None:
    path = write(tmp_path / "a.h5", {"x": np.arange(5.0), "x.offsets": np.array(offsets)})
    drawn = draw(path)
    bad = [i for i in range(4) if not 0 <= offsets[i] <= offsets[i + 1] <= 5]
    assert [i for i, d in enumerate(drawn) if isinstance(d.sample, DataError)] == bad
    assert f"expected offsets that grow up to 5, got [{offsets[bad[0]]}," in str(drawn[bad[0]].sample)


def test_the_files_of_our_own_store_come_back(tmp_path: Path, photos: Path) -> None:
    samples = [
        {"image": file.read_bytes(), "boxes": np.arange(4.0 * i).reshape(i, 4)} for i, file in enumerate(sorted(photos.rglob("*.jpg")))
    ]
    fastdata.pack(samples, tmp_path / "out", to="hdf5", workers=1)
    source = open_source(tmp_path / "out" / "shards" / "00000.h5")
    drawn = [d for part in source.parts() for d in source.read(part)]
    assert len(drawn) == len(samples)
    for d, sample in zip(drawn, samples, strict=True):
        assert isinstance(d.sample, dict)
        assert d.sample["image"] == sample["image"]
        np.testing.assert_array_equal(d.sample["boxes"], sample["boxes"], strict=True)


def test_groups_of_one_dataset_for_each_sample_are_fields_by_the_numbers_of_their_names(tmp_path: Path) -> None:
    datasets: dict[str, Any] = {}
    for i in (10, 9, 100, 1):
        datasets[f"images/{i}"] = np.full((i, 5, 3), i, "u1")
        datasets[f"boxes/{i}"] = np.full((i % 4, 4), i, "f4")
        datasets[f"files/{i}"] = np.frombuffer(JPEG + b"%d" % i, "u1")
        datasets[f"label/{i}"] = i
        datasets[f"name/{i}"] = f"é{i}"
    path = write(tmp_path / "a.h5", datasets)
    order = [1, 9, 10, 100]
    assert [drawn.key for drawn in draw(path)] == list(map(str, order))
    assert [field.name for field in Hdf5(path).fields] == ["boxes", "files", "images", "name", "label"]
    check(path, Field("images", "image"), [np.full((i, 5, 3), i, "u1") for i in order])
    check(path, Field("boxes", "ndarray", "float32", (4,)), [np.full((i % 4, 4), i, "f4") for i in order])
    check(path, Field("files", "image"), [JPEG + b"%d" % i for i in order])
    check(path, Field("label", "scalar", "int64"), order)
    check(path, Field("name", "scalar", "str"), [f"é{i}" for i in order])
    assert draw(path)[1].origin == f"{path}['9']"


def test_datasets_of_one_size_are_samples_when_numbers_name_them(tmp_path: Path) -> None:
    path = write(tmp_path / "a.h5", {f"images/{i:04d}": np.full((4, 5, 3), i, "u1") for i in range(3)})
    assert [drawn.key for drawn in draw(path)] == ["0000", "0001", "0002"]


def test_many_arrays_of_varying_length_right_in_the_file_are_samples_by_their_names(tmp_path: Path) -> None:
    path = write(tmp_path / "a.h5", {f"video_{i}": np.full((i, 2), i, "f4") for i in range(120)})
    names = sorted(f"video_{i}" for i in range(120))
    assert [drawn.key for drawn in draw(path)] == names
    check(path, Field("array", "ndarray", "float32", (2,)), [np.full((int(name[6:]), 2), int(name[6:]), "f4") for name in names])


def test_groups_of_samples_must_have_the_same_names(tmp_path: Path) -> None:
    with pytest.raises(ArgumentError, match=r"expected datasets of the same names as in 'a/', got others, at group 'b/' of .*a.h5"):
        Hdf5(write(tmp_path / "a.h5", {"a/1": np.zeros(1), "a/2": np.zeros(2), "b/1": np.zeros(1), "b/3": np.zeros(2)}))
    with pytest.raises(ArgumentError, match=r"expected datasets of one dtype and one shape .*, got others, at group 'b/'"):
        Hdf5(write(tmp_path / "b.h5", {"a/1": np.zeros(1), "a/2": np.zeros(2), "b/1": np.zeros(1), "b/2": np.zeros(2, "i4")}))


def make_link(file: h5py.File, folder: Path) -> None:
    write(folder / "other.h5", {"x": np.arange(3.0)})
    file["e"] = h5py.ExternalLink(folder / "other.h5", "/x")


def make_external(file: h5py.File, folder: Path) -> None:
    (folder / "raw").write_bytes(bytes(24))
    file.create_dataset("e", (3,), "f8", external=[(folder / "raw", 0, 24)])


def make_virtual(file: h5py.File, folder: Path) -> None:
    write(folder / "other.h5", {"x": np.arange(3.0)})
    layout = h5py.VirtualLayout((3,), "f8")
    layout[:] = h5py.VirtualSource(folder / "other.h5", "x", (3,))
    file.create_virtual_dataset("e", layout)


@pytest.mark.parametrize("make", [make_link, make_external, make_virtual])
def test_data_outside_of_the_file_are_not_followed(tmp_path: Path, make: Callable[[h5py.File, Path], None]) -> None:
    with h5py.File(write(tmp_path / "a.h5", {"x": np.zeros(3)}), "a") as file:
        make(file, tmp_path)
    with pytest.raises(ArgumentError, match=r"expected data in the file, got .* at (dataset )?'e' of .*a.h5"):
        Hdf5(tmp_path / "a.h5")


def test_soft_links_and_groups_in_themselves_are_listed_once(tmp_path: Path) -> None:
    with h5py.File(write(tmp_path / "a.h5", {"g/x": np.zeros(3)}), "a") as file:
        file["soft"] = h5py.SoftLink("/g/x")
        file["g/loop"] = file["/"]
        file["again"] = file["g"]
    source = Hdf5(tmp_path / "a.h5")
    assert len(source.fields) == 1
    assert source.ignored == {"soft links and named types": 1}


@pytest.mark.parametrize(
    ("datasets", "message"),
    [
        ({"x": np.zeros(3), "y": np.zeros((4, 2))}, r"expected datasets of equally many rows, got 'x 3', 'y 4', at"),
        ({"data/a": np.zeros(3), "data/b": np.zeros((4, 2))}, "expected datasets of equally many rows"),
        ({"x": np.zeros((0, 3))}, "expected rows, got none"),
        ({"x": np.zeros((2, 0))}, "expected rows of numbers, got float64"),
        ({"x": 1.0}, "expected datasets with rows, got none"),
        ({}, "expected datasets with rows, got none"),
        ({"x": np.zeros(2, "c8")}, "got complex64, at dataset 'x' of"),
        ({"x": np.zeros(2, "i4,f4")}, r"got \[\('f0', '<i4'\), \('f1', '<f4'\)\], at dataset 'x' of"),
        ({"x": np.zeros(2, "V8")}, r"got \|V8, at dataset 'x' of"),
        ({"x": np.array([["a"]], STRING)}, "expected rows of numbers, got object"),
        ({"x": [np.zeros(2, ">f4")]}, r"got rows of dtype\('>f4'\), at dataset 'x'"),
        ({"index": np.zeros(2)}, "which is reserved"),
        (
            {f"{i}/{name}": np.zeros(3) for i in range(3) for name in ("x", "y")},
            "expected groups of fields, got one for each sample, '0', '1', '2'",
        ),
        ({f"x{i}": np.zeros(3) for i in range(101)}, "expected at most 100 datasets, got 101"),
    ],
)
def test_other_datasets_are_refused_by_name(tmp_path: Path, datasets: dict[str, Any], message: str) -> None:
    with pytest.raises(ArgumentError, match=message):
        Hdf5(write(tmp_path / "a.h5", datasets))


def test_references_are_refused(tmp_path: Path) -> None:
    with h5py.File(tmp_path / "a.h5", "w") as file:
        file.create_dataset("r", (2,), h5py.ref_dtype)
    with pytest.raises(ArgumentError, match="got references, at dataset 'r' of"):
        Hdf5(tmp_path / "a.h5")


@pytest.mark.parametrize("shape", [(2, 2**57), (2**57, 2)])
def test_a_claim_beyond_what_the_file_can_hold_takes_no_memory(tmp_path: Path, shape: tuple[int, int]) -> None:
    with h5py.File(tmp_path / "a.h5", "w") as file:
        file.create_dataset("x", shape, "f4", chunks=(1, 2))
    with pytest.raises(ArgumentError, match=rf"expected at most \d+ bytes in a file of this size, got {2**60}, at dataset 'x'"):
        Hdf5(tmp_path / "a.h5")


@pytest.mark.parametrize("data", [b"", b"not HDF5", b"\x89HDF\r\n\x1a\n cut"])
def test_damaged_files_are_refused(tmp_path: Path, data: bytes) -> None:
    (tmp_path / "a.h5").write_bytes(data)
    with pytest.raises(ArgumentError, match=r"expected a file of HDF5, got .*, at .*a.h5"):
        open_source(tmp_path / "a.h5")


def test_a_damaged_chunk_loses_its_rows_and_no_others(tmp_path: Path) -> None:
    with h5py.File(tmp_path / "a.h5", "w") as file:
        noise = np.random.default_rng(0).integers(0, 256, (30, 50, 40), "u1")
        data = file.create_dataset("x", data=noise, chunks=(10, 50, 40), compression="gzip", fletcher32=True)
        at = data.id.get_chunk_info(1).byte_offset
    with open(tmp_path / "a.h5", "r+b") as raw:
        raw.seek(at + 1000)
        raw.write(b"damage")
    drawn = draw(tmp_path / "a.h5")
    assert [isinstance(d.sample, DataError) for d in drawn] == [10 <= row < 20 for row in range(30)]
    assert str(drawn[15].sample).startswith("expected data that can be read, got ")


def test_a_string_that_is_no_utf8_is_an_error_of_its_row(tmp_path: Path) -> None:
    first, bad, last = draw(write(tmp_path / "a.h5", {"x": np.array([b"a", b"\xff", b"c"], STRING)}))
    assert (first.sample, last.sample) == ({"x": "a"}, {"x": "c"})
    assert str(bad.sample) == "expected UTF-8, got the byte 0xff at position 0 of the string"


def test_parts_are_of_about_a_mebibyte_and_of_whole_chunks(tmp_path: Path) -> None:
    with h5py.File(tmp_path / "a.h5", "w") as file:
        file.create_dataset("x", data=np.zeros((100, 100, 1000), "u1"), chunks=(7, 100, 1000), compression="gzip")
        file.create_dataset("y", data=np.zeros(100), chunks=(90,), compression="gzip")
    details = [part.detail for part in Hdf5(tmp_path / "a.h5").parts()]
    assert [start for start, _ in details] == [0, *(stop for _, stop in details[:-1])]
    assert details[-1][1] == 100
    assert all(stop % 7 == 0 for _, stop in details[:-1])
    assert all(0 < (stop - start) * 100_008 < PART_NBYTES + 7 * 100_008 for start, stop in details)


def test_ragged_rows_count_with_their_own_size(tmp_path: Path) -> None:
    offsets = np.cumsum([0, *(PART_NBYTES if i == 5 else 1000 for i in range(10))])
    parts = list(Hdf5(write(tmp_path / "a.h5", {"x": np.zeros(offsets[-1], "u1"), "x.offsets": offsets})).parts())
    assert [part.detail for part in parts] == [(0, 6), (6, 10)]
    assert [part.nbytes for part in parts] == [PART_NBYTES + 5000, 4000]


@pytest.mark.parametrize("options", [{}, {"chunks": (4, 8), "compression": "gzip"}])
def test_names_of_parts_tell_of_other_rows_of_the_same_size(tmp_path: Path, options: dict[str, Any]) -> None:
    def names(seed: int) -> list[str]:
        generator = np.random.default_rng(seed)
        with h5py.File(tmp_path / f"{seed}.h5", "w") as file:
            file.create_dataset("x", data=np.sort(generator.integers(0, 4 ** (seed + 1), (8, 8)), axis=1), **options)
        return [part.name for part in Hdf5(tmp_path / f"{seed}.h5").parts()]

    assert names(1) == names(1) != names(2)


def test_a_file_that_has_changed_is_not_read(tmp_path: Path) -> None:
    source = Hdf5(write(tmp_path / "a.h5", {"x": np.zeros(3)}))
    (part,) = source.parts()
    write(tmp_path / "a.h5", {"x": np.zeros(4)})
    with pytest.raises(DataError, match=r"expected the file that was opened, got one that has changed while it was packed, at .*a.h5"):
        list(source.read(part))


def test_case_57_a_file_that_may_not_be_written_to_is_read_and_so_is_one_that_is_open(tmp_path: Path) -> None:
    path = write(tmp_path / "a.h5", {"x": np.arange(3)})
    path.chmod(0o400)
    with open(path, "rb") as file:
        fcntl.flock(file, fcntl.LOCK_EX)  # what a lock of the library would wait for
        assert [d.sample for d in draw(path)] == [{"x": 0}, {"x": 1}, {"x": 2}]


def test_it_packs_as_it_reads(tmp_path: Path) -> None:
    generator = np.random.default_rng(0)
    pixels, label = generator.integers(0, 256, (600, 16, 16, 3), "u1"), generator.integers(0, 9, 600)
    names = np.array([f"é{i}" for i in range(600)], STRING)
    write(tmp_path / "a.h5", {"photo": pixels, "label": label, "name": names})
    for workers in (1, 2):
        fastdata.pack(tmp_path / "a.h5", tmp_path / f"out{workers}", to="mmap", workers=workers, shard_size="100KB")
    dataset = fastdata.Dataset(tmp_path / "out2")
    assert dataset.fingerprint == fastdata.Dataset(tmp_path / "out1").fingerprint
    for i in (0, 77, 599):
        np.testing.assert_array_equal(dataset[i]["photo"], pixels[i])
        assert (dataset[i]["label"], dataset[i]["name"]) == (label[i], f"é{i}")

from __future__ import annotations

import datetime
import decimal
import json
import os
import sys
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
import pytest

import fastdata
from fastdata.errors import ArgumentError, DataError
from fastdata.sources import base, open_source
from fastdata.sources.parquet import HEAD, MAX_PARTS, PART_NBYTES
from fastdata.sources.parquet import Source as Parquet
from fastdata.types import Field

pa = pytest.importorskip("pyarrow")
pq = pytest.importorskip("pyarrow.parquet")

JPEG, PNG = b"\xff\xd8\xff jpeg", b"\x89PNG\r\n\x1a\n png"
FILE = pa.struct([("bytes", pa.binary()), ("path", pa.string())])


def write(path: Path, columns: dict[str, Any], rows: int = 1000, **options: Any) -> Path:
    pq.write_table(pa.table(columns), path, row_group_size=rows, **options)
    return path


def draw(path: Path) -> list[base.Drawn]:
    source = Parquet(path)
    return [drawn for part in source.parts() for drawn in source.read(part)]


def values(path: Path, name: str) -> list[Any]:
    return [str(drawn.sample) if isinstance(drawn.sample, DataError) else drawn.sample[name] for drawn in draw(path)]


def described(names: tuple[str, ...]) -> dict[str, str]:
    """What Hugging Face adds to a schema."""
    features = {"label": {"names": list(names), "_type": "ClassLabel"}, "image": {"_type": "Image"}}
    return {"huggingface": json.dumps({"info": {"features": features}})}


def save_to_disk(folder: Path, *tables: Any, **state: Any) -> Path:
    """Write what `save_to_disk` writes."""
    folder.mkdir()
    names = [f"data-{i:05d}-of-{len(tables):05d}.arrow" for i in range(len(tables))]
    for name, table in zip(names, tables, strict=True):
        with pa.OSFile(str(folder / name), "wb") as sink, pa.ipc.new_stream(sink, table.schema) as writer:
            writer.write_table(table, max_chunksize=10)
    files = {"_data_files": [{"filename": name} for name in names], "_fingerprint": "f66de5803e34aa3c"}
    (folder / "state.json").write_text(json.dumps(files | state))
    (folder / "dataset_info.json").write_text(json.dumps({"features": {"y": {"names": ["no", "yes"], "_type": "ClassLabel"}}}))
    return folder


NOON = datetime.datetime(2020, 2, 3, 12)


@pytest.mark.parametrize(
    ("column", "field", "expected"),
    [
        (pa.array([1, None, -3], pa.int8()), Field("x", "scalar", "int8"), [1, None, -3]),
        (pa.array([2**64 - 1], pa.uint64()), Field("x", "scalar", "uint64"), [2**64 - 1]),
        (pa.array([0.5, None], pa.float32()), Field("x", "scalar", "float32"), [0.5, None]),
        (pa.array([True, False]), Field("x", "scalar", "bool"), [True, False]),
        (pa.array(["a", None, ""]), Field("x", "scalar", "str"), ["a", None, ""]),
        (pa.array(["1.jpg", "2.jpg"]), Field("x", "scalar", "str"), ["1.jpg", "2.jpg"]),
        (pa.array(["a", "b" * 201], pa.large_string()), Field("x", "text"), ["a", "b" * 201]),
        (pa.array(["a", "b", "a"]).dictionary_encode(), Field("x", "scalar", "str"), ["a", "b", "a"]),
        (pa.array([JPEG, PNG, b"?"]), Field("x", "image"), [JPEG, PNG, b"?"]),
        (pa.array([JPEG, b"?", None], pa.large_binary()), Field("x", "bytes"), [JPEG, b"?", None]),
        (pa.array([b"abc"], pa.binary(3)), Field("x", "bytes"), [b"abc"]),
        (pa.array([None, None]), Field("x", "scalar", "str"), [None, None]),
        (pa.array([NOON], pa.timestamp("us")), Field("x", "scalar", "str"), ["2020-02-03 12:00:00.000000"]),
        (pa.array([NOON], pa.timestamp("ms", "Asia/Tokyo")), Field("x", "scalar", "str"), ["2020-02-03 12:00:00.000"]),
        (pa.array([NOON.date()]), Field("x", "scalar", "str"), ["2020-02-03"]),
        (pa.array([decimal.Decimal("1.20")]), Field("x", "scalar", "str"), ["1.20"]),
        (pa.array([{"a": 1, "b": ["x", None]}, None]), Field("x", "json"), [{"a": 1, "b": ["x", None]}, None]),
        (pa.array([[("a", 1)]], pa.map_(pa.string(), pa.int64())), Field("x", "json"), [[("a", 1)]]),
        (pa.array([["a"], []]), Field("x", "json"), [["a"], []]),
        (pa.array([[[1], [2, 3]]]), Field("x", "json"), [[[1], [2, 3]]]),
    ],
)
def test_columns_are_fields_by_their_types(tmp_path: Path, column: Any, field: Field, expected: list[Any]) -> None:
    path = write(tmp_path / "a.parquet", {"x": column})
    assert Parquet(path).fields == (field,)
    found = values(path, "x")
    assert found == expected
    assert list(map(type, found)) == list(map(type, expected))


@pytest.mark.parametrize(
    ("column", "field", "expected"),
    [
        (pa.array([[1, 2], [], [3]], pa.list_(pa.int16())), Field("x", "ndarray", "int16"), [[1, 2], [], [3]]),
        (pa.array([np.array([0.5], "f2")], pa.large_list(pa.float16())), Field("x", "ndarray", "float16"), [[0.5]]),
        (pa.array([[True, False]]), Field("x", "ndarray", "bool"), [[True, False]]),
        (
            pa.array([[[1, 2, 3, 4]], []], pa.list_(pa.list_(pa.float32(), 4))),
            Field("x", "ndarray", "float32", (4,)),
            [[[1, 2, 3, 4]], np.zeros((0, 4))],
        ),
        (
            pa.array([[], [[1, 2], [3, 4]], [[5, 6]]], pa.list_(pa.list_(pa.int64()))),
            Field("x", "ndarray", "int64", (2,)),
            [np.zeros((0, 2)), [[1, 2], [3, 4]], [[5, 6]]],
        ),
        (pa.array([[1, 2]], pa.list_(pa.int64(), 2)), Field("x", "ndarray", "int64", (2,), dense=True), [[1, 2]]),
        (
            pa.array([[[1, 2], [3, 4], [5, 6]]], pa.list_(pa.list_(pa.uint8(), 2), 3)),
            Field("x", "ndarray", "uint8", (3, 2), dense=True),
            [[[1, 2], [3, 4], [5, 6]]],
        ),
        (pa.array([[[[1, 2, 3]] * 2] * 4], pa.list_(pa.list_(pa.list_(pa.uint8())))), Field("x", "image"), [[[[1, 2, 3]] * 2] * 4]),
    ],
)
def test_lists_of_numbers_are_arrays(tmp_path: Path, column: Any, field: Field, expected: list[Any]) -> None:
    path = write(tmp_path / "a.parquet", {"x": column})
    assert Parquet(path).fields == (field,)
    dtype = "uint8" if field.codec == "image" else field.dtype
    for found, array in zip(values(path, "x"), expected, strict=True):
        np.testing.assert_array_equal(found, np.array(array, dtype), strict=True)
        assert found.flags.writeable


def test_lists_of_a_fixed_length_of_which_some_are_missing_are_ragged(tmp_path: Path) -> None:
    path = save_to_disk(tmp_path / "set", pa.table({"x": pa.array([[1, 2], None], pa.list_(pa.int64(), 2))}))
    assert Parquet(path).fields == (Field("x", "ndarray", "int64"),)
    array, missing = values(path, "x")
    np.testing.assert_array_equal(array, np.array([1, 2]), strict=True)
    assert missing is None


def test_fields_keep_the_order_of_columns_with_the_label_last(tmp_path: Path) -> None:
    columns = {"label": [1], "image": [JPEG], "tokens": [[1]], "key": ["k"], "a b": [1], "mask": [PNG], "__index_level_0__": [0]}
    source = Parquet(write(tmp_path / "a.parquet", columns))
    assert [field.name for field in source.fields] == ["image", "tokens", "a_b", "mask", "label"]
    assert source.fields[3].options == {"mask": True}


def test_pictures_beside_their_paths_are_taken_as_hugging_face_has_them(tmp_path: Path) -> None:
    pictures = [{"bytes": JPEG, "path": "a/1.jpg"}, {"bytes": JPEG, "path": None}, {"bytes": None, "path": "gone.jpg"}]
    pictures += [None, {"bytes": None, "path": None}, {"bytes": JPEG, "path": "b.png"}]  # type: ignore[list-item]
    path = write(tmp_path / "a.parquet", {"image": pa.array(pictures, FILE)})
    drawn = draw(path)
    assert [d.key for d in drawn] == ["a/1.jpg", "1", "gone.jpg", "3", "4", "b.png"]
    error = "expected the bytes of a file, got its path alone, 'gone.jpg', at field 'image'"
    assert values(path, "image") == [JPEG, JPEG, error, None, None, JPEG]
    assert [d.notes for d in drawn if d.notes] == [("a picture named as another format",)]
    assert drawn[2].origin == f"{path}[2]"


def test_sounds_in_the_same_form_are_bytes(tmp_path: Path) -> None:
    path = write(tmp_path / "a.parquet", {"audio": pa.array([{"bytes": b"RIFF", "path": "a.wav"}], FILE)})
    assert Parquet(path).fields == (Field("audio", "bytes"),)
    assert values(path, "audio") == [b"RIFF"]


def test_labels_with_names_are_classes(tmp_path: Path) -> None:
    table = pa.table({"label": [1, 0, -1, None, 7], "x": range(5)}).replace_schema_metadata(described(("dog", "cat")))
    pq.write_table(table, tmp_path / "a.parquet")
    source = Parquet(tmp_path / "a.parquet")
    assert source.classes == ("dog", "cat")
    assert source.fields[-1] == Field("label", "scalar", "int64", options={"classes": True})
    error = "expected one of 2 classes, got 7 (int), at field 'label'"
    assert values(tmp_path / "a.parquet", "label") == [1, 0, None, None, error]
    source.name_classes(["bird", "cat", "dog"])
    (part,) = source.parts()
    assert [d.sample["label"] for d in source.read(part) if isinstance(d.sample, dict)] == [1, 2, None, None]
    with pytest.raises(ArgumentError, match=r"got also 'cat', at --classes"):
        Parquet(tmp_path / "a.parquet").name_classes(["dog"])


def test_labels_that_are_strings_are_numbered_over_all_files(tmp_path: Path) -> None:
    write(tmp_path / "0.parquet", {"class": ["dog", None, "eel"]})
    write(tmp_path / "1.parquet", {"class": ["éel", "ant", "dog"]})
    source = Parquet(tmp_path)
    assert source.classes == ("ant", "dog", "eel", "éel")
    assert values(tmp_path, "label") == [1, None, 2, 3, 0, 1]
    source.name_classes(("éel", "eel", "dog", "cat", "ant"))
    assert [d.sample for part in source.parts() for d in source.read(part)] == [{"label": i} for i in (2, None, 1, 0, 4, 2)]


def test_labels_that_are_long_stay_strings_and_that_is_said(tmp_path: Path) -> None:
    source = Parquet(write(tmp_path / "a.parquet", {"label": ["a", "b" * 300]}))
    assert source.classes is None
    assert source.fields == (Field("label", "text"),)
    assert source.warnings == ["labels are long or of more than 1000000 kinds: they are strings, not classes"]


def test_several_columns_of_class_labels_are_numbers_and_that_is_said(tmp_path: Path) -> None:
    features = {name: {"names": ["a", "b"], "_type": "ClassLabel"} for name in ("fine", "coarse")}
    table = pa.table({"fine": [1], "coarse": [0]}).replace_schema_metadata({"huggingface": json.dumps({"info": {"features": features}})})
    pq.write_table(table, tmp_path / "a.parquet")
    source = Parquet(tmp_path / "a.parquet")
    assert source.classes is None
    assert source.fields == (Field("fine", "scalar", "int64"), Field("coarse", "scalar", "int64"))
    assert "'fine', 'coarse'" in source.warnings[0]


def test_the_key_is_a_column_or_a_number_that_runs_over_files(tmp_path: Path) -> None:
    for name in ("0", "1"):
        write(tmp_path / f"{name}.parquet", {"x": [1, 2, 3]}, rows=2)
    assert [d.key for d in draw(tmp_path)] == ["0", "1", "2", "3", "4", "5"]
    assert [d.key for d in draw(write(tmp_path / "k.parquet", {"key": ["a", None, "c"], "x": [1, 2, 3]}))] == ["a", "1", "c"]


def test_case_49_parts_are_rows_of_one_row_group_and_of_about_a_mebibyte(tmp_path: Path) -> None:
    noise = Random(0)
    path = write(tmp_path / "a.parquet", {"x": [noise.randbytes(10_000) for _ in range(1000)]}, rows=400)
    source = Parquet(path)
    parts = list(source.parts())
    starts, stops = zip(*(map(int, part.name.split(" ")[1].split("-")) for part in parts), strict=True)
    assert starts == (0, *stops[:-1])
    assert {400, 800, 1000} <= set(stops)
    assert all(part.nbytes < 1.1 * PART_NBYTES for part in parts)
    assert [part.number for part in parts] == list(starts)


def test_case_49_large_row_groups_have_few_parts_and_come_in_any_order(tmp_path: Path) -> None:
    noise = Random(0)
    data = [noise.randbytes(40_000) for _ in range(1000)]
    source = Parquet(write(tmp_path / "a.parquet", {"x": data}))
    parts = list(source.parts())
    assert len(parts) == MAX_PARTS
    noise.shuffle(parts)
    found = {d.key: d.sample for part in parts for d in source.read(part)}
    assert [found[str(i)] for i in range(1000)] == [{"x": value} for value in data]


def test_columns_of_files_must_agree(tmp_path: Path) -> None:
    write(tmp_path / "0.parquet", {"x": [1], "y": ["a"]})
    write(tmp_path / "1.parquet", {"x": [1.5], "y": ["a"]})
    with pytest.raises(ArgumentError, match=r"expected int64 as in .*0.parquet, got double, at column 'x' of .*1.parquet"):
        Parquet(tmp_path)
    write(tmp_path / "1.parquet", {"x": [1]})
    with pytest.raises(ArgumentError, match=r"expected string as in .*, got None, at column 'y' of .*1.parquet"):
        Parquet(tmp_path)
    for name, classes in (("0", ("a", "b")), ("1", ("b", "a"))):
        pq.write_table(pa.table({"label": [0]}).replace_schema_metadata(described(classes)), tmp_path / f"{name}.parquet")
    with pytest.raises(ArgumentError, match=r"got labels of other names, at column 'label' of .*1.parquet"):
        Parquet(tmp_path)


@pytest.mark.parametrize(
    ("columns", "message"),
    [
        ({"x": pa.array([[JPEG]])}, r"got list<.*binary>, at column 'x' of .*a.parquet"),
        ({"x": pa.array([{"t": NOON}])}, r"expected a column of numbers, .* got struct<t: timestamp"),
        ({"index": [1]}, "expected other names than 'index'"),
        ({"label": [1], "class": [1]}, "expected one of 'label' and 'class', got both"),
        ({"key": ["a"]}, "expected columns, got"),
        ({"x": pa.array([], pa.int64())}, "expected rows, got none, at"),
        ({"a b": [1], "a_b": [1]}, "expected names that differ"),
    ],
)
def test_other_columns_are_refused_by_name(tmp_path: Path, columns: dict[str, Any], message: str) -> None:
    with pytest.raises(ArgumentError, match=message):
        Parquet(write(tmp_path / "a.parquet", columns))


def test_without_pyarrow_the_cure_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = write(tmp_path / "a.parquet", {"x": [1]})
    monkeypatch.setitem(sys.modules, "pyarrow.parquet", None)
    with pytest.raises(ArgumentError, match=r"expected the package pyarrow .*, got none; pip install 'fastdata-torch\[parquet\]'"):
        open_source(path)


@pytest.mark.parametrize("data", [b"", b"PAR1", b"PAR1 nothing of the kind PAR1", bytes(1000)])
def test_files_that_are_no_parquet_are_refused(tmp_path: Path, data: bytes) -> None:
    (tmp_path / "a.parquet").write_bytes(data)
    with pytest.raises(ArgumentError, match=r"expected a file of Parquet or Arrow, got .*, at .*a.parquet"):
        open_source(tmp_path / "a.parquet")


def test_damage_in_a_row_group_loses_its_rows_and_no_others(tmp_path: Path) -> None:
    noise = Random(0)
    path = write(
        tmp_path / "a.parquet", {"x": [noise.randbytes(1000) for _ in range(300)]}, rows=100, use_dictionary=False, write_page_checksum=True
    )
    column = pq.ParquetFile(path).metadata.row_group(1).column(0)
    data = bytearray(path.read_bytes())
    data[column.data_page_offset + column.total_compressed_size // 2] ^= 1
    path.write_bytes(data)
    drawn = draw(path)
    assert len(drawn) == 300
    assert [isinstance(d.sample, DataError) for d in drawn] == [100 <= row < 200 for row in range(300)]
    assert str(drawn[150].sample).startswith("expected rows that can be read, got ")


def test_a_string_that_is_no_utf8_is_an_error_of_its_row(tmp_path: Path) -> None:
    strings = pa.array([b"a", b"\xff", b"c"]).view(pa.string())
    path = write(tmp_path / "a.parquet", {"x": strings, "label": ["p", "q", "p"]})
    first, bad, last = draw(path)
    assert (first.sample, last.sample) == ({"x": "a", "label": 0}, {"x": "c", "label": 0})
    assert "Invalid UTF8" in str(bad.sample)


def test_values_that_do_not_fit_are_errors_of_their_rows(tmp_path: Path) -> None:
    rows: list[Any] = [[[1, 2]]] * (2 * HEAD) + [[[1], [2, 3]], [[1, None]], None, [[1, 2], [3, 4]]]
    drawn = draw(write(tmp_path / "a.parquet", {"x": pa.array(rows, pa.list_(pa.list_(pa.int64())))}))
    assert [isinstance(d.sample, DataError) for d in drawn[2 * HEAD :]] == [True, True, False, False]
    assert str(drawn[2 * HEAD].sample) == "expected lists of equal lengths, got some of 1 and some of 2, at field 'x'"
    assert str(drawn[2 * HEAD + 1].sample) == "expected numbers, got null in a list, at field 'x'"


def test_a_file_that_has_changed_is_not_read(tmp_path: Path) -> None:
    source = Parquet(write(tmp_path / "a.parquet", {"x": [1, 2]}))
    (part,) = source.parts()
    write(tmp_path / "a.parquet", {"x": [1, 2, 3]})
    with pytest.raises(DataError, match=r"expected the file that was opened, got one that has changed while it was packed, at .*a.parquet"):
        list(source.read(part))


def test_names_of_parts_tell_of_other_values_of_the_same_size(tmp_path: Path) -> None:
    def names(numbers: list[int]) -> list[str]:
        return [part.name for part in Parquet(write(tmp_path / "a.parquet", {"x": numbers})).parts()]

    assert names([1, 2]) == names([1, 2]) != names([1, 3])


def test_a_dataset_that_hugging_face_saved_is_read_from_its_arrow_files(tmp_path: Path) -> None:
    tables = [pa.table({"x": range(i, i + 25), "y": [1, 0, -1, 1, 1] * 5, "s": [f"é{i}"] * 25}) for i in (0, 25)]
    source = open_source(save_to_disk(tmp_path / "set", *tables))
    assert isinstance(source, Parquet)
    assert source.classes == ("no", "yes")
    parts = list(source.parts())
    assert [part.num_samples for part in parts] == [10, 10, 5] * 2
    drawn = [d for part in reversed(parts) for d in source.read(part)]
    drawn.sort(key=lambda d: int(d.key))
    expected = [{"x": i, "s": f"é{i // 25 * 25}", "label": [1, 0, None, 1, 1][i % 5]} for i in range(50)]
    assert [d.sample for d in drawn] == expected
    assert drawn[30].origin == f"{tmp_path}/set/data-00001-of-00002.arrow[5]"


@pytest.mark.parametrize(
    ("state", "message"),
    [
        ({"_indices_files": [{"filename": "indices.arrow"}]}, r"got a selection, at .*; save it after flatten_indices\(\)"),
        ({"_data_files": [{"filename": "../secret.arrow"}]}, r"expected a file of the folder, got '../secret.arrow'"),
        ({"_data_files": [{"filename": "/etc/passwd"}]}, "expected a file of the folder, got '/etc/passwd'"),
        ({"_data_files": [{"filename": "gone.arrow"}]}, "expected a file of the folder, got 'gone.arrow'"),
        ({"_data_files": [3]}, "expected a file of the folder, got None"),
        ({"_data_files": []}, "expected data files, got none"),
    ],
)
def test_saved_datasets_of_which_files_are_missing_or_elsewhere_are_refused(tmp_path: Path, state: dict[str, Any], message: str) -> None:
    (tmp_path / "secret.arrow").write_bytes(b"")
    with pytest.raises(ArgumentError, match=message):
        open_source(save_to_disk(tmp_path / "set", pa.table({"x": [1]}), **state))


def test_a_folder_of_several_saved_datasets_is_refused_by_their_names(tmp_path: Path) -> None:
    save_to_disk(tmp_path / "train", pa.table({"x": [1]}))
    (tmp_path / "dataset_dict.json").write_text('{"splits": ["train", "test"]}')
    with pytest.raises(ArgumentError, match=r"got a folder of several, \['train', 'test'\], at .*; pack each on its own"):
        open_source(tmp_path)


def test_an_arrow_file_that_is_cut_short_is_refused_wherever_it_ends(tmp_path: Path) -> None:
    folder = save_to_disk(tmp_path / "set", pa.table({"x": range(25)}))
    (path,) = folder.glob("*.arrow")
    whole = path.stat().st_size
    assert len(draw(folder)) == 25
    for size in range(whole - 8, 0, -40):
        os.truncate(path, size)
        with pytest.raises(ArgumentError, match=r"expected (a file of Parquet or Arrow|rows), got .*, at "):
            Parquet(folder)


def test_it_packs_as_it_reads(tmp_path: Path, photos: Path) -> None:
    files = sorted(photos.rglob("*.jpg"))
    columns = {
        "image": [{"bytes": file.read_bytes(), "path": file.name} for file in files],
        "label": [file.parent.name for file in files],
        "boxes": pa.array([[[i, i, i, i]] * i for i in range(len(files))], pa.list_(pa.list_(pa.int32(), 4))),
    }
    write(tmp_path / "a.parquet", columns, rows=5)
    fastdata.pack(tmp_path / "a.parquet", tmp_path / "out", to="lmdb", workers=2)
    fastdata.pack(photos, tmp_path / "plain", to="lmdb")
    dataset, plain = fastdata.Dataset(tmp_path / "out"), fastdata.Dataset(tmp_path / "plain")
    assert dataset.classes == plain.classes == ("cat", "dog", "eel")
    for i in range(len(files)):
        sample, expected = dataset[i], plain[i]
        np.testing.assert_array_equal(sample["image"], expected["image"])
        assert sample["label"] == expected["label"]
        np.testing.assert_array_equal(sample["boxes"], np.full((i, 4), i, "i4"), strict=True)

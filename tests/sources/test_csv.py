from __future__ import annotations

import csv
import io
import os
import pickle
import re
import tempfile
import tracemalloc
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fastdata.errors import ArgumentError, DataError
from fastdata.sources import base
from fastdata.sources.base import PART_NBYTES
from fastdata.sources.csv import Source as Csv
from fastdata.types import Field


def write(folder: Path, text: str | bytes, name: str = "train.csv", pictures: tuple[str, ...] = ()) -> Path:
    for picture in pictures:
        (folder / picture).parent.mkdir(parents=True, exist_ok=True)
        (folder / picture).write_bytes(b"\xff\xd8\xff" + picture.encode())
    (folder / name).write_bytes(text if isinstance(text, bytes) else text.encode())
    return folder / name


def draw(source: base.Source) -> list[base.Drawn]:
    return [drawn for part in source.parts() for drawn in source.read(part)]


def samples(path: Path) -> list[Any]:
    return [drawn.sample for drawn in draw(Csv(path))]


def fields(path: Path) -> dict[str, tuple[str, str]]:
    return {field.name: (field.codec, field.dtype) for field in Csv(path).fields}


def test_columns_become_fields_by_their_values(tmp_path: Path) -> None:
    path = write(
        tmp_path,
        "path,mask,width,score,zip,big,huge,text,note,empty,mixed\n"
        f"1.jpg,m/1.png,3,0.5,007,9223372036854775807,9223372036854775808,5,{'x' * 201},,1\n"
        "2.jpg,,-4,1,123,-9223372036854775808,1,hi,,,a\n",
        pictures=("1.jpg", "2.jpg", "m/1.png"),
    )
    assert fields(path) == {
        "image": ("image", "uint8"),
        "mask": ("image", "uint8"),
        "width": ("scalar", "int64"),
        "score": ("scalar", "float64"),
        "zip": ("scalar", "str"),
        "big": ("scalar", "int64"),
        "huge": ("scalar", "str"),
        "text": ("text", "uint8"),
        "note": ("text", "uint8"),
        "empty": ("scalar", "str"),
        "mixed": ("scalar", "str"),
    }
    assert [field.options for field in Csv(path).fields[:2]] == [{}, {"mask": True}]
    first, second = samples(path)
    assert first["image"] == b"\xff\xd8\xff1.jpg"
    assert (first["width"], first["score"], first["zip"], first["big"], first["text"]) == (3, 0.5, "007", 2**63 - 1, "5")
    assert (second["mask"], second["note"], second["score"], second["mixed"]) == (None, None, 1.0, "a")
    assert isinstance(second["score"], float)


def test_whole_numbers_that_float64_would_change_stay_strings(tmp_path: Path) -> None:
    assert samples(write(tmp_path, "x\n9007199254740993\n0.5\n")) == [{"x": "9007199254740993"}, {"x": "0.5"}]


def test_labels_of_strings_are_indices_of_classes_by_their_bytes(tmp_path: Path) -> None:
    source = Csv(write(tmp_path, "class,x\ncat,1\nZebra,2\nélan,3\n,4\ncat,5\n7,6\n"))
    assert source.classes == ("7", "Zebra", "cat", "élan")
    assert source.fields == (Field("x", "scalar", "int64"), Field("label", "scalar", "int64", options={"classes": True}))
    assert [drawn.sample["label"] for drawn in draw(source) if isinstance(drawn.sample, dict)] == [2, 1, 3, None, 2, 0]


def test_labels_of_numbers_stay_numbers(tmp_path: Path) -> None:
    source = Csv(write(tmp_path, "label\n3\n7\n"))
    assert (source.classes, source.fields) == (None, (Field("label", "scalar", "int64"),))


@pytest.mark.parametrize(
    ("header", "rows", "keys"),
    [("key,path", "k1,1.jpg k2,2.jpg", "k1 k2"), ("path,x", "1.jpg,5 2.jpg,6", "1.jpg 2.jpg"), ("x,y", "5,1 6,1", "0 1")],
)
def test_the_key_is_the_column_or_the_picture_or_the_number(tmp_path: Path, header: str, rows: str, keys: str) -> None:
    source = Csv(write(tmp_path, "\n".join([header, *rows.split()]), pictures=("1.jpg", "2.jpg")))
    assert [drawn.key for drawn in draw(source)] == keys.split()
    assert "key" not in {field.name for field in source.fields}


@pytest.mark.parametrize("ends", ["\n", "\r\n"])
@pytest.mark.parametrize("mark", ["", "\ufeff"])
@pytest.mark.parametrize(("delimiter", "name"), [(",", "a.csv"), (";", "a.csv"), ("\t", "a.csv"), ("\t", "a.tsv"), ("\t", "a.TSV")])
def test_case_33_separators_line_ends_and_marks_read_right(tmp_path: Path, ends: str, mark: str, delimiter: str, name: str) -> None:
    rows = [("x", "note"), ("1", '"a, b; c\td"'), ("2", f'"two{ends}lines ""quoted"""'), ("", "plain")]
    path = write(tmp_path, mark + ends.join(delimiter.join(row) for row in rows) + ends, name)
    assert samples(path) == [{"x": 1, "note": "a, b; c\td"}, {"x": 2, "note": f'two{ends}lines "quoted"'}, {"x": None, "note": "plain"}]
    assert [drawn.origin for drawn in draw(Csv(path))] == [f"{path}:{line}" for line in (2, 3, 5)]


@pytest.mark.parametrize(("row", "got"), [("1", 1), ("1,2,3", 3)])
def test_case_33_missing_and_extra_cells_are_refused_with_line_and_columns(tmp_path: Path, row: str, got: int) -> None:
    path = write(tmp_path, f'x,y\n"1\n",2\n{row}\n')
    source = Csv(path)
    assert source.trouble is not None
    assert re.fullmatch(rf"expected 2 cells for \['x', 'y'\], got {got}: .*, at .*train.csv:4", source.trouble)
    good, bad = draw(source)
    assert isinstance(good.sample, dict)
    assert str(bad.sample).startswith(f"expected 2 cells for ['x', 'y'], got {got}: ")
    assert bad.origin.endswith("train.csv:4")


def test_case_33_paths_count_from_the_table_and_may_be_absolute_or_have_backslashes(tmp_path: Path) -> None:
    (tmp_path / "elsewhere").mkdir()
    absolute = tmp_path / "elsewhere/3.jpg"
    absolute.write_bytes(b"\xff\xd8\xff")
    path = write(tmp_path, f"image\na/1.jpg\na\\2.jpg\n{absolute}\n", pictures=("a/1.jpg", "a/2.jpg"))
    assert [drawn.key for drawn in draw(Csv(path))] == ["a/1.jpg", "a\\2.jpg", str(absolute)]
    assert [sample["image"][3:] for sample in samples(path)] == [b"a/1.jpg", b"a/2.jpg", b""]


def test_case_33_missing_files_are_listed_before_work_starts(tmp_path: Path) -> None:
    path = write(tmp_path, "image,x\n1.jpg,0\n" + "".join(f"gone{i}.jpg,{i}\n" for i in range(12)), pictures=("1.jpg",))
    source = Csv(path)
    assert source.trouble is not None
    assert re.search(r"got no file at 12 paths: 'gone0.jpg \(line 3\)', .*'gone9.jpg \(line 12\)' and 2 more, at ", source.trouble)
    assert source.trouble.endswith(f"; paths count from {tmp_path}")
    assert [isinstance(drawn.sample, dict) for drawn in draw(source)] == [True] + [False] * 12


def test_a_file_that_vanishes_later_is_an_error_of_its_sample(tmp_path: Path) -> None:
    source = Csv(write(tmp_path, "image,x\n1.jpg,1\n2.jpg,2\n", pictures=("1.jpg", "2.jpg")))
    (tmp_path / "1.jpg").unlink()
    first, second = draw(source)
    assert str(first.sample) == "expected a file, got No such file or directory, at field 'image' (1.jpg)"
    assert first.key == "1.jpg"
    assert isinstance(second.sample, dict)


def test_addresses_are_strings_and_no_pictures(tmp_path: Path) -> None:
    assert fields(write(tmp_path, "url\nhttps://example.org/1.jpg\n")) == {"url": ("scalar", "str")}


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "expected a header line, got an empty file"),
        ("\n\n", "expected a header line, got an empty file"),
        ("a,b\n", r"expected rows below the header \['a', 'b'\], got none"),
        ("a,a\n1,2\n", r"expected columns of different names, got \['a', 'a'\], at .*:1"),
        ("a b,a_b\n1,2\n", r"expected names that differ in letters, digits and _, got \['a b', 'a_b'\]"),
        ("index,x\n1,2\n", "'index', which is reserved, .*rename it"),
        ("label,class\n1,2\n", r"expected one of 'label' and 'class', got both in \['label', 'class'\]"),
        ("key\nx\n", "expected columns with values"),
        ('a,b\n1,2\n"x,3\n4,5\n', r"row that cannot be read \(unexpected end of data\), at .*:3$"),
        ('a,b\n"x"y,3\n', "row that cannot be read .*:2$"),
        (b"a,b\n1,na\xefve\n", "expected UTF-8, got the byte 0xef at position 4 of the line, at .*:2$"),
    ],
)
def test_what_cannot_be_meant_is_refused_with_its_place(tmp_path: Path, text: str | bytes, message: str) -> None:
    path = write(tmp_path, text)
    with pytest.raises(ArgumentError, match=message):
        Csv(path)


def test_names_are_cleaned(tmp_path: Path) -> None:
    assert list(fields(write(tmp_path, "a b,2nd,größe,\n1,2,3,4\n"))) == ["a_b", "_2nd", "gr__e", "_"]


def test_parts_hold_about_64_kib_and_name_their_bytes(tmp_path: Path) -> None:
    text = "a,b\n" + "".join(f"{i},{'x' * 1000}\n" for i in range(200))
    parts = list(Csv(write(tmp_path, text)).parts())
    assert sum(part.nbytes for part in parts) == len(text) - len("a,b\n")
    assert all(PART_NBYTES <= part.nbytes < PART_NBYTES + 1100 for part in parts[:-1])
    changed = list(Csv(write(tmp_path, text.replace("\n150,x", "\n150,y"))).parts())
    assert [a.name == b.name for a, b in zip(parts, changed, strict=True)] == [True, True, False, True]


def test_another_header_changes_the_first_part(tmp_path: Path) -> None:
    (first,), (second,) = (Csv(write(tmp_path, f"{name}\n1\n")).parts() for name in "ab")
    assert first.name != second.name


def test_pictures_count_towards_the_size_of_a_part(tmp_path: Path) -> None:
    path = write(tmp_path, "image,x\n" + "1.jpg,5\n" * 5)
    (tmp_path / "1.jpg").write_bytes(bytes(PART_NBYTES))
    assert [(part.nbytes, part.num_samples) for part in Csv(path).parts()] == [(PART_NBYTES + 8, 1)] * 5


def test_files_count_only_in_columns_that_are_of_pictures_to_the_end(tmp_path: Path) -> None:
    """The sizes of parts that were cut before a column showed what it is are right as well."""
    path = write(tmp_path, "image,other\n" + "1.jpg,2.jpg\n" * 7 + "1.jpg,none\n", pictures=("1.jpg", "2.jpg"))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(base, "PART_NBYTES", 60)
        source = Csv(path)
    assert fields(path) == {"image": ("image", "uint8"), "other": ("scalar", "str")}
    assert [part.nbytes for part in source.parts()] == [sum(d.nbytes for d in source.read(part)) for part in source.parts()]
    assert (
        sum(part.nbytes for part in source.parts()) == path.stat().st_size - len("image,other\n") + 8 * (tmp_path / "1.jpg").stat().st_size
    )


def test_listing_the_parts_does_not_read_the_file_again(tmp_path: Path) -> None:
    path = write(tmp_path, "x\n" + "1\n" * 50_000)
    source = Csv(path)
    path.unlink()
    assert [part.num_samples for part in source.parts()] == [32768, 50_000 - 32768]


def test_cells_longer_than_the_csv_module_takes_by_default_are_read(tmp_path: Path) -> None:
    assert samples(write(tmp_path, f"text\n{'x' * 300_000}\n")) == [{"text": "x" * 300_000}]


def test_case_35_rows_are_not_held_in_memory(tmp_path: Path) -> None:
    path = write(tmp_path, "x,note\n" + "".join(f"{i},{'n' * 150}\n" for i in range(20_000)))
    tracemalloc.start()
    source = Csv(path)
    for part in source.parts():
        assert part.number >= 0
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 500_000
    assert len(pickle.dumps(source)) < 5_000, "a part costs a few numbers"


@pytest.mark.parametrize("change", ["size", "time", "gone"])
def test_a_table_that_changes_after_it_was_opened_is_refused(tmp_path: Path, change: str) -> None:
    path = write(tmp_path, "x\n1\n")
    source = Csv(path)
    (part,) = source.parts()
    if change == "gone":
        path.unlink()
    elif change == "size":
        write(tmp_path, "x\n1\n2\n")
    else:
        os.utime(path, ns=(0, path.stat().st_mtime_ns + 1))
    with pytest.raises(DataError, match=f"expected the file that was opened, got .*, at {path}"):
        next(source.read(part))


def test_a_table_of_classes_that_is_given_numbers_the_labels(tmp_path: Path) -> None:
    path = write(tmp_path, "label,x\ncat,1\ndog,2\n,3\n7.0,4\n")
    source = Csv(path)
    assert source.classes == tuple(sorted(["7.0", "cat", "dog"]))
    table = ("dog", "eel", "cat", "7.0")
    source.name_classes(table)
    assert source.classes == table
    assert [drawn.sample["label"] for drawn in draw(source) if isinstance(drawn.sample, dict)] == [2, 0, None, 3]
    with pytest.raises(ArgumentError, match=r"expected classes of the table that was given, got also '7.0', 'dog', at --classes"):
        Csv(path).name_classes(["cat"])
    with pytest.raises(ArgumentError, match="expected labels with names, got a source without, at --classes"):
        Csv(write(tmp_path, "label\n3\n")).name_classes(["cat"])


@pytest.mark.parametrize(("most", "dtype", "classes"), [(3, "int64", ("a", "b", "c")), (2, "str", None)])
def test_of_too_many_distinct_strings_a_label_is_no_class(tmp_path: Path, most: int, dtype: str, classes: tuple[str, ...] | None) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(base, "MAX_CLASSES", most)
        source = Csv(write(tmp_path, "label\na\nb\na\nc\n"))
    assert (source.fields[0].dtype, source.classes) == (dtype, classes)


def test_a_pipe_that_a_row_names_is_an_error_and_not_waited_for(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "1.jpg")
    source = Csv(write(tmp_path, "image\n1.jpg\n"))
    assert source.trouble is not None
    (drawn,) = draw(source)
    assert str(drawn.sample) == "expected a file, got a folder, pipe, socket or device, at field 'image' (1.jpg)"


cells = st.text(st.characters(codec="utf-8", exclude_characters="\0\r"), max_size=12) | st.sampled_from(
    ["1", "0.5", "007", 'a"b', "x\ny", ",;\t"]
)


@settings(deadline=None)
@given(
    st.lists(st.tuples(cells, cells), min_size=1, max_size=8),
    st.sampled_from([",", ";", "\t"]),
    st.sampled_from(["\n", "\r\n"]),
    st.integers(1, 60),
)
def test_what_the_csv_module_writes_comes_back_from_parts_of_any_size(
    rows: list[tuple[str, str]], delimiter: str, ends: str, part_nbytes: int
) -> None:
    text = io.StringIO()
    writer = csv.writer(text, delimiter=delimiter, lineterminator=ends)
    writer.writerows([("first", "second"), ("!", "!"), *rows])  # the first row makes both columns strings
    with tempfile.TemporaryDirectory() as folder, pytest.MonkeyPatch.context() as patch:
        patch.setattr(base, "PART_NBYTES", part_nbytes)
        path = write(Path(folder), text.getvalue())
        source = Csv(path)
        parts = list(source.parts())
        drawn = [list(source.read(part)) for part in reversed(parts)][::-1]
        nbytes = path.stat().st_size
    found = [d.sample for part in drawn for d in part if isinstance(d.sample, dict)]
    assert found[1:] == [dict(zip(("first", "second"), (cell or None for cell in row), strict=True)) for row in rows]
    assert [part.num_samples for part in parts] == list(map(len, drawn))
    assert [part.nbytes for part in parts] == [sum(d.nbytes for d in part) for part in drawn]
    assert sum(part.nbytes for part in parts) == nbytes - len(f"first,second{ends}")
    ranges = [part.detail[:2] for part in parts]
    assert [start for start, _ in ranges] == [0, *(stop for _, stop in ranges[:-1])], "ranges follow one another"
    assert ranges[-1][1] == nbytes

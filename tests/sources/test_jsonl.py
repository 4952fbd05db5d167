from __future__ import annotations

import json
import os
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fastdata.errors import ArgumentError, DataError
from fastdata.sources import base
from fastdata.sources.base import PART_NBYTES
from fastdata.sources.jsonl import Source as Jsonl
from fastdata.types import Field


def write(folder: Path, *lines: Any, name: str = "train.jsonl") -> Path:
    data = b"".join((line if isinstance(line, bytes) else json.dumps(line).encode()) + b"\n" for line in lines)
    (folder / name).write_bytes(data)
    return folder / name


def draw(path: Path) -> list[base.Drawn]:
    source = Jsonl(path)
    return [drawn for part in source.parts() for drawn in source.read(part)]


def fields(path: Path) -> dict[str, Field]:
    return {field.name: field for field in Jsonl(path).fields}


def test_values_become_fields_by_their_kind(tmp_path: Path) -> None:
    path = write(
        tmp_path,
        {"i": 1, "f": 1, "b": True, "s": "x", "text": "y", "long": "z", "none": None, "ids": [1, 2], "xs": [], "boxes": [[1, 2, 3, 4]]},
        {"i": -(2**63), "f": 0.5, "b": False, "ids": [], "xs": [0.5, 2], "boxes": [], "long": "z" * 201, "o": {"a": [None]}, "mix": 1},
        {"mix": "a", "flags": [True], "uneven": [[1], [2, 3]], "boolint": 1},
        {"boolint": True, "names": ["a"]},
    )
    assert fields(path) == {
        "i": Field("i", "scalar", "int64"),
        "f": Field("f", "scalar", "float64"),
        "b": Field("b", "scalar", "bool"),
        "s": Field("s", "scalar", "str"),
        "text": Field("text", "text"),
        "long": Field("long", "text"),
        "none": Field("none", "scalar", "str"),
        "ids": Field("ids", "ndarray", "int64"),
        "xs": Field("xs", "ndarray", "float64"),
        "boxes": Field("boxes", "ndarray", "int64", (4,)),
        **{name: Field(name, "json") for name in ("o", "mix", "flags", "uneven", "boolint", "names")},
    }
    first, second, third, _ = (drawn.sample for drawn in draw(path))
    assert isinstance(first, dict)
    assert isinstance(second, dict)
    assert isinstance(third, dict)
    assert (first["i"], first["f"], first["b"], first["none"], first["o"]) == (1, 1.0, True, None, None)
    np.testing.assert_array_equal(first["boxes"], np.array([[1, 2, 3, 4]]), strict=True)
    np.testing.assert_array_equal(second["boxes"], np.zeros((0, 4), "int64"), strict=True)
    np.testing.assert_array_equal(second["xs"], np.array([0.5, 2.0]), strict=True)
    np.testing.assert_array_equal(first["xs"], np.zeros(0), strict=True)
    assert (third["mix"], third["flags"], third["uneven"], third["s"]) == ("a", [True], [[1], [2, 3]], None)


def test_labels_and_pictures_follow_the_rules_of_tables(tmp_path: Path) -> None:
    (tmp_path / "1.jpg").write_bytes(b"\xff\xd8\xff")
    path = write(tmp_path, {"label": "dog", "file_name": "1.jpg"}, {"label": "cat", "file_name": "1.jpg"}, {"label": None})
    assert [field.name for field in Jsonl(path).fields] == ["image", "label"]
    assert Jsonl(path).classes == ("cat", "dog")
    assert [(drawn.key, drawn.sample) for drawn in draw(path)] == [
        ("1.jpg", {"image": b"\xff\xd8\xff", "label": 1}),
        ("1.jpg", {"image": b"\xff\xd8\xff", "label": 0}),
        ("2", {"image": None, "label": None}),
    ]


def test_case_33_missing_files_are_listed_before_work_starts(tmp_path: Path) -> None:
    trouble = Jsonl(write(tmp_path, {"image": "gone.jpg"})).trouble
    assert trouble is not None
    assert "got no file at 1 paths: 'gone.jpg (line 1)'" in trouble


def test_a_number_that_no_float_can_hold_is_an_error_of_its_line(tmp_path: Path) -> None:
    good, bad = draw(write(tmp_path, {"x": [0.5]}, {"x": [10**400, 0.5]}))
    assert isinstance(good.sample, dict)
    assert str(bad.sample).startswith("expected numbers that float64 can hold, got [1000")


def test_the_key_may_be_a_column(tmp_path: Path) -> None:
    assert [drawn.key for drawn in draw(write(tmp_path, {"key": "a", "x": 1}, {"key": 7, "x": 1}, {"x": 1}))] == ["a", "7", "2"]


def test_case_43_a_byte_order_mark_loses_nothing(tmp_path: Path) -> None:
    lines = [{"x": i} for i in range(5)]
    plain, marked = write(tmp_path, *lines), write(tmp_path, b"\xef\xbb\xbf" + json.dumps(lines[0]).encode(), *lines[1:], name="bom.jsonl")
    assert [drawn.sample for drawn in draw(marked)] == [drawn.sample for drawn in draw(plain)] == lines
    assert [part.nbytes for part in Jsonl(marked).parts()] == [part.nbytes for part in Jsonl(plain).parts()]


def test_case_44_bad_lines_are_errors_at_their_place_and_blank_ones_nothing(tmp_path: Path) -> None:
    path = write(tmp_path, {"x": 1}, b"", b"  \r", b'{"x": 2} trailing', b"[1]", b"5", {"x": 2**63}, b"[" * 100_000, {"x": 3}, b'{"x": ')
    drawn = draw(path)
    assert [d.origin.rpartition(":")[2] for d in drawn] == ["1", "4", "5", "6", "7", "8", "9", "10"]
    assert [d.sample for d in drawn if not isinstance(d.sample, DataError)] == [{"x": 1}, {"x": 3}]
    assert [d.key for d in drawn] == [str(number) for number in range(8)]
    messages = [str(d.sample) for d in drawn if isinstance(d.sample, DataError)]
    assert messages[0].startswith("""expected a JSON object, got '{"x": 2} trailing' (str): Extra data""")
    assert messages[1] == "expected a JSON object, got '[1]' (str)"
    assert messages[3] == f"expected an integer of 64 bits, got {2**63}"
    assert all(len(message) < 200 for message in messages)


def test_the_last_line_needs_no_line_end(tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_text('{"x": 1}\n{"x": 2}')
    assert [drawn.sample for drawn in draw(tmp_path / "a.jsonl")] == [{"x": 1}, {"x": 2}]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ('[{"x": 1},\n {"x": 2}]', r"got a JSON array, at .*jq -c '\.\[\]'"),
        ('[{"x": 1}]', "got a JSON array"),
        ('\ufeff{\n  "x": 1\n}\n{\n  "x": 2\n}\n', "got an object over several lines, .*jq -c"),
        ('{"x": 1,\n "y": 2}\n', "got an object over several lines"),
        ("", "got none, at"),
        ("\ufeff\n\n", "got none, at"),
        ("one\ntwo\n", r"got none \(expected a JSON object, got 'one' .*, line 1\)"),
        ("{}\n", "expected columns with values"),
    ],
)
def test_case_44_other_files_are_explained(tmp_path: Path, text: str, message: str) -> None:
    (tmp_path / "a.jsonl").write_text(text)
    with pytest.raises(ArgumentError, match=message):
        Jsonl(tmp_path / "a.jsonl")


def test_case_45_bytes_that_are_no_utf8_are_named_with_their_place(tmp_path: Path) -> None:
    good, bad = draw(write(tmp_path, {"text": "a\0b"}, '{"text": "naïve"}'.encode("latin-1")))
    assert good.sample == {"text": "a\0b"}
    assert str(bad.sample) == "expected UTF-8, got the byte 0xef at position 12 of the line"
    assert bad.origin.endswith("train.jsonl:2")


def test_parts_hold_about_64_kib_and_name_their_bytes(tmp_path: Path) -> None:
    path = write(tmp_path, *({"text": "x" * 1000, "i": i} for i in range(200)))
    parts = list(Jsonl(path).parts())
    assert sum(part.nbytes for part in parts) == path.stat().st_size
    assert all(PART_NBYTES <= part.nbytes < PART_NBYTES + 1100 for part in parts[:-1])
    path.write_bytes(path.read_bytes().replace(b'"i": 150}', b'"i": 151}'))
    assert [a.name == b.name for a, b in zip(parts, Jsonl(path).parts(), strict=True)] == [True, True, False, True]


def test_pictures_of_a_column_that_appears_late_count_in_their_parts(tmp_path: Path) -> None:
    (tmp_path / "1.jpg").write_bytes(bytes(PART_NBYTES))
    path = write(tmp_path, *[{"text": "x" * PART_NBYTES}] * 3, {"image": "1.jpg"}, {"text": "y"})
    source = Jsonl(path)
    parts = list(source.parts())
    assert [part.nbytes // PART_NBYTES for part in parts] == [1, 1, 1, 1, 0]
    assert [part.nbytes for part in parts] == [sum(d.nbytes for d in source.read(part)) for part in parts]


def test_pictures_count_towards_the_size_of_a_part(tmp_path: Path) -> None:
    (tmp_path / "1.jpg").write_bytes(b"\xff\xd8\xff" + bytes(PART_NBYTES))
    assert len(list(Jsonl(write(tmp_path, *[{"image": "1.jpg", "x": i} for i in range(5)])).parts())) == 5


@pytest.mark.parametrize("change", ["size", "time"])
def test_a_file_that_changes_after_it_was_opened_is_refused(tmp_path: Path, change: str) -> None:
    path = write(tmp_path, {"x": 1})
    source = Jsonl(path)
    (part,) = source.parts()
    if change == "size":
        write(tmp_path, {"x": 1}, {"x": 2})
    else:
        os.utime(path, ns=(0, path.stat().st_mtime_ns + 1))
    with pytest.raises(DataError, match=f"expected the file that was opened, got one that has changed while it was packed, at {path}"):
        next(source.read(part))


def test_a_table_of_classes_that_is_given_numbers_the_labels(tmp_path: Path) -> None:
    source = Jsonl(write(tmp_path, {"class": "cat"}, {"class": None}, {"class": "dog"}))
    source.name_classes(["dog", "eel", "cat"])
    assert source.classes == ("dog", "eel", "cat")
    assert [d.sample for part in source.parts() for d in source.read(part)] == [{"label": 2}, {"label": None}, {"label": 0}]


def test_names_that_no_file_can_have_are_files_that_are_missing(tmp_path: Path) -> None:
    (tmp_path / "1.jpg").write_bytes(b"\xff\xd8\xff")
    path = write(tmp_path, {"image": "1.jpg", "x": 1}, {"image": "\ud800.jpg", "x": 1}, {"image": "a\0.jpg", "x": 2**63})
    trouble = Jsonl(path).trouble
    assert trouble is not None
    assert "got no file at 2 paths" in trouble
    good, half, nul = draw(path)
    assert isinstance(good.sample, dict)
    assert str(half.sample).startswith("expected a file, got a name that none can have: ")
    assert str(nul.sample).startswith("expected a file, got a name that none can have: ")


def test_pictures_of_a_bad_line_count_as_well(tmp_path: Path) -> None:
    (tmp_path / "1.jpg").write_bytes(b"\xff\xd8\xff")
    source = Jsonl(write(tmp_path, {"image": "1.jpg", "x": 1}, {"image": "1.jpg", "x": 2**63}))
    (part,) = source.parts()
    first, second = source.read(part)
    assert isinstance(second.sample, DataError)
    assert part.nbytes == first.nbytes + second.nbytes


lines = st.one_of(
    st.fixed_dictionaries({"x": st.integers(-5, 5), "pad": st.integers(0, 30_000).map(lambda n: "p" * n)}).map(
        lambda row: json.dumps(row).encode()
    ),
    st.sampled_from([b"", b"   ", b"{broken", b"\xff", '{"x": "\u2028"}'.encode(), b"7\r"]),
)


@settings(deadline=None)
@given(st.lists(lines, max_size=30), st.booleans(), st.booleans(), st.sampled_from([1, 50, PART_NBYTES]))
def test_ranges_cover_every_line_that_is_not_blank_once(found: list[bytes], mark: bool, end: bool, part_nbytes: int) -> None:
    found = [b'{"x": 1, "pad": ""}', *found]
    with tempfile.TemporaryDirectory() as folder, pytest.MonkeyPatch.context() as patch:
        patch.setattr(base, "PART_NBYTES", part_nbytes)
        path = Path(folder, "a.jsonl")
        data = b"\xef\xbb\xbf" * mark + b"\n".join(found) + b"\n" * end
        path.write_bytes(data)
        source = Jsonl(path)
        parts = list(source.parts())
        by_part = [list(source.read(part)) for part in reversed(parts)][::-1]
    assert [part.num_samples for part in parts] == list(map(len, by_part))
    assert [part.nbytes for part in parts] == [sum(d.nbytes for d in drawn) for drawn in by_part]
    ranges = [part.detail[:2] for part in parts]
    assert [start for start, _ in ranges] == [0, *(stop for _, stop in ranges[:-1])], "ranges follow one another"
    assert not data[ranges[-1][1] :].strip()
    drawn = [d for part in by_part for d in part]
    assert [d.key for d in drawn] == [str(number) for number in range(len(drawn))]
    assert [int(d.origin.rpartition(":")[2]) for d in drawn] == [line for line, data in enumerate(found, 1) if data.strip()]
    for d in drawn:
        data = found[int(d.origin.rpartition(":")[2]) - 1]
        assert isinstance(d.sample, DataError) == (b"pad" not in data and b"2028" not in data.replace("\u2028".encode(), b"2028"))

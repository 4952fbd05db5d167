from __future__ import annotations

from pathlib import Path

import pytest

from fastdata.errors import DataError
from fastdata.sources import open_source
from fastdata.sources.textfiles import Source as TextFiles


def texts(path: Path) -> list[str | DataError]:
    source = TextFiles(path)
    drawn = [drawn for part in source.parts() for drawn in source.read(part)]
    return [d.sample if isinstance(d.sample, DataError) else d.sample["text"] for d in drawn]


def test_a_document_is_a_file_and_its_key_the_path(tmp_path: Path) -> None:
    (tmp_path / "b").mkdir()
    for name in ("z.txt", "b/a.TXT", "b.txt", "notes.md"):
        (tmp_path / name).write_text(name)
    source = open_source(tmp_path)
    drawn = [drawn for part in source.parts() for drawn in source.read(part)]
    assert [d.key for d in drawn] == ["b.txt", "b/a.TXT", "z.txt"]
    assert [d.sample for d in drawn] == [{"text": d.key} for d in drawn]
    assert drawn[1].origin == str(tmp_path / "b/a.TXT")
    assert source.ignored == {"files that are not .txt": 1}


def test_one_txt_is_one_document(tmp_path: Path) -> None:
    (tmp_path / "book.txt").write_text("Once.\n")
    source = open_source(tmp_path / "book.txt")
    assert [(d.key, d.sample) for part in source.parts() for d in source.read(part)] == [("book.txt", {"text": "Once.\n"})]


def test_case_43_a_byte_order_mark_changes_nothing(tmp_path: Path) -> None:
    (tmp_path / "1.txt").write_bytes("naïve".encode("utf-8-sig"))
    (tmp_path / "2.txt").write_bytes("naïve".encode())
    assert texts(tmp_path) == ["naïve", "naïve"]


def test_case_45_nul_survives_and_other_encodings_are_named_with_their_place(tmp_path: Path) -> None:
    (tmp_path / "1.txt").write_bytes(b"a\0b\r\n")
    (tmp_path / "2.txt").write_bytes("naïve".encode("latin-1"))
    (tmp_path / "3.txt").write_bytes("你好，世界".encode("gbk"))
    first, latin, gbk = texts(tmp_path)
    assert first == "a\0b\r\n"
    assert str(latin) == "expected UTF-8, got the byte 0xef at position 2 of the file"
    assert isinstance(gbk, DataError)


def test_case_47_white_space_is_kept_and_nothing_at_all_is_an_error(tmp_path: Path) -> None:
    for name, data in {"1": b"", "2": b" \n", "3": b"\xef\xbb\xbf", "4": b"x"}.items():
        (tmp_path / f"{name}.txt").write_bytes(data)
    empty, blank, mark, last = texts(tmp_path)
    assert (blank, last) == (" \n", "x")
    assert "empty file" in str(empty)
    assert "empty file" in str(mark)


@pytest.mark.parametrize("picture", ["a.jpg", "z/z.png"])
def test_a_folder_with_a_picture_is_no_folder_of_text(tmp_path: Path, picture: str) -> None:
    (tmp_path / picture).parent.mkdir(exist_ok=True)
    (tmp_path / picture).write_bytes(b"x")
    (tmp_path / "caption.txt").write_text("x")
    assert not TextFiles.recognises(tmp_path)

from __future__ import annotations

from pathlib import Path

import pytest

from fastdata.errors import ArgumentError
from fastdata.sources import open_source
from fastdata.sources.images import Source as Images
from fastdata.types import Field


def test_pictures_come_by_the_bytes_of_their_paths_without_labels(tmp_path: Path) -> None:
    (tmp_path / "b").mkdir()
    for name in ("b.jpg", "a.PNG", "b/1.jpg", "B.gif", "notes.txt", ".hidden.jpg"):
        (tmp_path / name).write_bytes(b"x")
    source = open_source(tmp_path, "images")
    assert source.fields == (Field("image", "image"),)
    assert source.classes is None
    assert [part.name for part in source.parts()] == ["B.gif", "a.PNG", "b.jpg", "b/1.jpg"]
    assert source.ignored == {"files that are not pictures": 1, "hidden or system files and folders": 1}


def test_case_24_hidden_and_system_files_are_taken_when_asked_for(tmp_path: Path) -> None:
    (tmp_path / ".more").mkdir()
    for name in (".1.jpg", "2.jpg", ".more/3.jpg", ".DS_Store"):
        (tmp_path / name).write_bytes(b"x")
    source = open_source(tmp_path, "images", {"hidden": True})
    assert [part.name for part in source.parts()] == [".1.jpg", ".more/3.jpg", "2.jpg"]
    assert source.ignored == {"files that are not pictures": 1}


def test_hidden_pictures_make_no_source_unless_asked_for(tmp_path: Path) -> None:
    (tmp_path / ".1.jpg").write_bytes(b"x")
    assert not Images.recognises(tmp_path)
    with pytest.raises(ArgumentError, match="expected pictures, got none"):
        Images(tmp_path)
    assert [part.name for part in Images(tmp_path, hidden=True).parts()] == [".1.jpg"]


def test_a_file_is_no_folder_of_pictures(tmp_path: Path) -> None:
    (tmp_path / "1.jpg").write_bytes(b"x")
    with pytest.raises(ArgumentError, match="expected a folder of pictures, got a file"):
        Images(tmp_path / "1.jpg")

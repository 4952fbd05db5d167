from __future__ import annotations

import os
import sys
import unicodedata
from pathlib import Path

import pytest

from fastdata.errors import ArgumentError, DataError
from fastdata.sources import open_source
from fastdata.sources.base import Source
from fastdata.sources.imagefolder import Source as ImageFolder


def put(folder: Path, *names: str | bytes) -> Path:
    for name in names:
        path = os.path.join(os.fsencode(folder), os.fsencode(name))
        os.makedirs(os.path.dirname(path), exist_ok=True)
        with open(path, "wb") as file:
            file.write(b"\xff\xd8\xff" + os.fsencode(name))
    return folder


def keys(source: Source) -> list[str]:
    return [drawn.key for part in source.parts() for drawn in source.read(part)]


def labels(source: Source) -> list[int]:
    return [drawn.sample["label"] for part in source.parts() for drawn in source.read(part) if not isinstance(drawn.sample, DataError)]


def test_the_label_is_the_place_of_the_class_folder_in_byte_order(tmp_path: Path) -> None:
    source = ImageFolder(put(tmp_path, "cat/1.jpg", "cat-a/1.jpg", "cat/deep/er/0.PNG", "Zebra/1.jpeg", "é/1.jpg"))
    assert source.classes == ("Zebra", "cat", "cat-a", "é")
    assert keys(source) == ["Zebra/1.jpeg", "cat/1.jpg", "cat/deep/er/0.PNG", "cat-a/1.jpg", "é/1.jpg"]
    assert labels(source) == [0, 1, 1, 2, 3]


def test_a_sample_is_the_bytes_of_its_file_and_says_where_it_is(tmp_path: Path) -> None:
    source = ImageFolder(put(tmp_path, "a/1.jpg"))
    (drawn,) = source.read(next(source.parts()))
    assert drawn.sample == {"image": b"\xff\xd8\xffa/1.jpg", "label": 0}
    assert (drawn.origin, drawn.nbytes) == (str(tmp_path / "a/1.jpg"), 10)


def test_case_24_hidden_and_system_files_are_ignored_and_counted(tmp_path: Path) -> None:
    hidden = ("a/.DS_Store", "a/Thumbs.db", "a/desktop.ini", "a/._1.jpg", "__MACOSX/a/._1.jpg")
    source = ImageFolder(put(tmp_path, "a/1.jpg", "a/notes.md", "top.jpg", "README", *hidden))
    assert keys(source) == ["a/1.jpg"]
    assert source.classes == ("a",)
    assert source.ignored == {
        "hidden or system files and folders": 5,
        "files that are not pictures": 2,
        "pictures outside class folders": 1,
    }
    assert sum(1 for _ in source.parts()) == 1
    assert source.ignored["pictures outside class folders"] == 1, "listing again does not count again"


def test_case_25_hidden_and_empty_folders_are_no_classes(tmp_path: Path) -> None:
    source = ImageFolder(put(tmp_path, ".ipynb_checkpoints/1.jpg", "a/1.jpg", "b/notes.txt", "c/1.jpg"))
    assert source.classes == ("a", "c")
    assert source.warnings == ["1 folders without pictures are not classes: 'b'"]


@pytest.mark.parametrize(("names", "warned"), [("0 1 2", False), ("1 2", True), ("0 1 10 2", True), ("00 01 02", False), ("0 one", False)])
def test_case_26_numbers_as_names_warn_where_they_are_not_the_labels(tmp_path: Path, names: str, warned: bool) -> None:
    source = ImageFolder(put(tmp_path, *(f"{name}/1.jpg" for name in names.split())))
    assert any("has label" in warning for warning in source.warnings) == warned


def test_case_28_order_does_not_follow_the_file_system(tmp_path: Path) -> None:
    names = [f"c{i % 3}/{i}.jpg" for i in range(50)]
    first, second = put(tmp_path / "x", *names), put(tmp_path / "y", *names[::-1])
    assert keys(ImageFolder(first)) == keys(ImageFolder(second)) == sorted(names)


def test_case_29_odd_names_keep_their_bytes(tmp_path: Path) -> None:
    twins = [unicodedata.normalize(form, "a/é.jpg") for form in ("NFC", "NFD")]
    odd = ["a/two words.jpg", "a/new\nline.jpg", "a/a.b.c.jpg", "a/" + "x" * 251 + ".jpg", "猫/猫.jpg", *twins]
    source = ImageFolder(put(tmp_path, *odd, b"a/\xff\xfe.jpg"))
    found = keys(source)
    assert sorted(map(os.fsencode, found)) == sorted([*map(os.fsencode, odd), b"a/\xff\xfe.jpg"])
    assert len(labels(source)) == len(odd) + 1


def test_case_30_links_end_and_broken_ones_are_errors_of_their_samples(tmp_path: Path) -> None:
    outside = put(tmp_path / "outside", "o/1.jpg")
    root = put(tmp_path / "root", "a/1.jpg", "b/1.jpg")
    (outside / "o/back").symlink_to(root)
    (outside / "o/loop").symlink_to(outside)
    (root / "a/up").symlink_to(root)
    (root / "a/other").symlink_to(root / "b")
    (root / "a/self.jpg").symlink_to("self.jpg")
    (root / "a/gone.jpg").symlink_to("nowhere.jpg")
    (root / "a/twin.jpg").symlink_to("1.jpg")
    (root / "c").symlink_to(outside / "o")
    source = ImageFolder(root)
    drawn = [drawn for part in source.parts() for drawn in source.read(part)]
    assert [d.key for d in drawn] == ["a/1.jpg", "a/gone.jpg", "a/self.jpg", "a/twin.jpg", "b/1.jpg", "c/1.jpg", "c/loop/o/1.jpg"]
    errors = {d.key: str(d.sample) for d in drawn if isinstance(d.sample, DataError)}
    assert list(errors) == ["a/gone.jpg", "a/self.jpg"]
    assert all(message == "expected a file, got a link to nothing" for message in errors.values())
    assert source.ignored["links to folders that are listed anyway"] >= 4


def test_case_15_an_empty_file_is_an_error_of_its_sample(tmp_path: Path) -> None:
    put(tmp_path, "a/1.jpg", "a/3.jpg")
    (tmp_path / "a/2.jpg").touch()
    source = ImageFolder(tmp_path)
    drawn = [drawn for part in source.parts() for drawn in source.read(part)]
    assert [isinstance(d.sample, DataError) for d in drawn] == [False, True, False]
    assert "empty file" in str(drawn[1].sample)


def test_a_pipe_is_passed_over(tmp_path: Path) -> None:
    put(tmp_path, "a/1.jpg")
    os.mkfifo(tmp_path / "a/2.jpg")
    source = ImageFolder(tmp_path)
    assert keys(source) == ["a/1.jpg"]
    assert source.ignored == {"pipes, sockets and devices": 1}


def test_a_folder_with_pictures_beside_class_folders_may_be_either(tmp_path: Path) -> None:
    put(tmp_path, "1.jpg", "a/2.jpg")
    with pytest.raises(ArgumentError, match=r"any of \['imagefolder', 'images'\].*--source"):
        open_source(tmp_path)
    assert keys(open_source(tmp_path, "images")) == ["1.jpg", "a/2.jpg"]
    assert keys(open_source(tmp_path, "imagefolder")) == ["a/2.jpg"]


def test_a_flat_folder_has_no_classes_and_is_refused(tmp_path: Path) -> None:
    put(tmp_path, "1.jpg")
    assert not ImageFolder.recognises(tmp_path)
    with pytest.raises(ArgumentError, match="expected pictures in class folders, got none in 0 folders"):
        ImageFolder(tmp_path)


def test_a_deep_tree_lists_without_recursion(tmp_path: Path) -> None:
    deep = put(tmp_path, "/".join(["d"] * 300 + ["1.jpg"]))
    source, limit = ImageFolder(deep), sys.getrecursionlimit()
    sys.setrecursionlimit(250)
    try:
        listed = [part.name for part in source.parts()]
    finally:
        sys.setrecursionlimit(limit)
    assert listed == ["d/" * 300 + "1.jpg"]

from __future__ import annotations

import os
import sys
import tracemalloc
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


def test_case_24_hidden_and_system_files_are_taken_when_asked_for(tmp_path: Path) -> None:
    source = ImageFolder(put(tmp_path, "a/1.jpg", "a/.2.jpg", "a/Thumbs.db", ".b/1.jpg", "c/.deep/1.jpg"), hidden=True)
    assert source.classes == (".b", "a", "c")
    assert keys(source) == [".b/1.jpg", "a/.2.jpg", "a/1.jpg", "c/.deep/1.jpg"]
    assert source.ignored == {"files that are not pictures": 1}


def test_case_11_a_picture_named_as_another_format_is_taken_and_noted(tmp_path: Path) -> None:
    source = ImageFolder(put(tmp_path, "a/1.png", "a/2.JFIF"))
    notes = [drawn.notes for part in source.parts() for drawn in source.read(part)]
    assert notes == [("a picture named as another format",), ()]


def test_cases_19_and_20_dots_in_names_of_folders_and_files_merge_nothing(tmp_path: Path) -> None:
    names = ["a.b/1.x.jpg", "a.b/1.y.jpg", "a.b/c.d/1.jpg", "a/b.1.jpg"]
    assert keys(ImageFolder(put(tmp_path, *names))) == ["a/b.1.jpg", *names[:3]]


def test_extensions_of_pictures_count_in_any_case(tmp_path: Path) -> None:
    for extension in ("jpg", "jpeg", "jpe", "jfif", "png", "gif", "bmp", "webp", "tif", "tiff", "ppm", "pgm", "pbm", "jp2", "avif"):
        names = [f"{extension}/1.{extension}", f"{extension}/2.{extension.upper()}"]
        put(tmp_path, *names, f"{extension}/3.{extension}x", f"{extension}/{extension}")
        assert [key for key in keys(ImageFolder(tmp_path)) if key.startswith(f"{extension}/")] == names


def test_case_25_hidden_and_empty_folders_are_no_classes(tmp_path: Path) -> None:
    source = ImageFolder(put(tmp_path, ".ipynb_checkpoints/1.jpg", "a/1.jpg", "b/notes.txt", "c/1.jpg"))
    assert source.classes == ("a", "c")
    assert source.warnings == ["1 folders without pictures are not classes: 'b'"]


@pytest.mark.parametrize(("names", "warned"), [("0 1 2", False), ("1 2", True), ("0 1 10 2", True), ("00 01 02", False), ("0 one", False)])
def test_case_26_numbers_as_names_warn_where_they_are_not_the_labels(tmp_path: Path, names: str, warned: bool) -> None:
    source = ImageFolder(put(tmp_path, *(f"{name}/1.jpg" for name in names.split())))
    assert any("has label" in warning for warning in source.warnings) == warned


def test_case_26_a_table_of_classes_orders_samples_and_ends_the_warning(tmp_path: Path) -> None:
    source = ImageFolder(put(tmp_path, "2/1.jpg", "10/1.jpg", "1/1.jpg", "0/notes.txt"))
    assert any("folder '1' has label 0" in warning for warning in source.warnings)
    source.name_classes([str(label) for label in range(11)])
    assert keys(source) == ["1/1.jpg", "2/1.jpg", "10/1.jpg"]
    assert labels(source) == [1, 2, 10]
    assert source.warnings == [], "folder 0 is a class now"


def test_a_table_of_classes_must_name_every_class_folder_and_may_name_more(tmp_path: Path) -> None:
    put(tmp_path, "a/1.jpg", "b/1.jpg", "empty/notes.txt")
    source = ImageFolder(tmp_path)
    source.name_classes(["b", "../a", "gone", "a"])
    assert keys(source) == ["b/1.jpg", "a/1.jpg"]
    assert labels(source) == [0, 3]
    assert source.warnings == ["1 folders without pictures are not classes: 'empty'"]
    with pytest.raises(ArgumentError, match="expected classes of the table that was given, got also 'b', at --classes"):
        ImageFolder(tmp_path).name_classes(["a", "c"])


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


def test_case_30_a_folder_is_a_class_where_listing_it_finds_a_picture(tmp_path: Path) -> None:
    outside = put(tmp_path / "outside", "o/notes.txt")
    root = put(tmp_path / "root", "a/1.jpg", "only-link/notes.txt", "only-pipe/notes.txt", "broken/notes.txt", "named.jpg/notes.txt")
    (root / "only-link/a").symlink_to(root / "a")
    os.mkfifo(root / "only-pipe/1.jpg")
    (root / "broken/1.jpg").symlink_to("nowhere")
    for name in ("o/back", "o/again"):  # followed each time, these are 2^40 paths
        (outside / name).symlink_to(outside)
    (root / "loop").symlink_to(outside)
    source = ImageFolder(root)
    assert source.classes == ("a", "broken")
    assert {part.name.partition("/")[0] for part in source.parts()} == {"a", "broken"}


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


def test_case_35_a_huge_flat_folder_costs_about_100_bytes_a_name(tmp_path: Path) -> None:
    num = 20_000
    put(tmp_path, "a/pictures/000000.jpg")
    first = tmp_path / "a/pictures/000000.jpg"
    for i in range(1, num):
        os.link(first, tmp_path / f"a/pictures/{i:06d}.jpg")
    ImageFolder(tmp_path)  # what is imported and compiled on the way
    tracemalloc.start()
    assert ImageFolder.recognises(tmp_path)
    source = ImageFolder(tmp_path)
    opening = tracemalloc.get_traced_memory()[1]
    count = sum(1 for _ in source.parts())
    listing = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert count == num
    assert opening < 100_000, "a class is known by its first picture"
    assert listing < 100 * num

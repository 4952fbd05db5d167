from __future__ import annotations

import io
import json
import shutil
import subprocess
import tarfile
import tempfile
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import fastdata
from fastdata.errors import ArgumentError, DataError
from fastdata.sources import base, open_source
from fastdata.sources.webdataset import PART_NBYTES
from fastdata.sources.webdataset import Source as WebDataset
from fastdata.types import Field

JPEG, PNG = b"\xff\xd8\xff jpeg", b"\x89PNG\r\n\x1a\n png"
BLOCK = 512


def npy(array: Any, pickled: bool = False) -> bytes:
    file = io.BytesIO()
    np.save(file, array, allow_pickle=pickled)
    return file.getvalue()


def npz(**arrays: Any) -> bytes:
    file = io.BytesIO()
    np.savez(file, **arrays)
    return file.getvalue()


def write(path: Path, *files: tuple[str, bytes], format: int = tarfile.PAX_FORMAT) -> Path:
    with tarfile.open(path, "w", format=format) as tar:
        for name, data in files:
            member = tarfile.TarInfo(name)
            member.size = len(data)
            tar.addfile(member, io.BytesIO(data))
    return path


def draw(path: Path) -> list[base.Drawn]:
    source = WebDataset(path)
    return [drawn for part in source.parts() for drawn in source.read(part)]


def good(path: Path) -> dict[str, Any]:
    """Samples by their keys, bad ones left out."""
    return {drawn.key: drawn.sample for drawn in draw(path) if not isinstance(drawn.sample, DataError)}


def bad(path: Path) -> list[tuple[str, str]]:
    """Keys and errors of bad samples."""
    return [(drawn.key, str(drawn.sample)) for drawn in draw(path) if isinstance(drawn.sample, DataError)]


def test_files_are_fields_by_their_extensions(tmp_path: Path) -> None:
    boxes, pixels = np.arange(8.0).reshape(2, 4), np.full((2, 3, 3), 7, "u1")
    path = write(
        tmp_path / "a.tar",
        ("0.cls", b"3\n"),
        ("0.JPG", JPEG),
        ("0.mask.png", PNG),
        ("0.txt", "é\n".encode()),
        ("0.json", b'{"a": [1]}'),
        ("0.npy", npy(np.arange(3, dtype=">i2"))),
        ("0.boxes.npy", npy(np.asfortranarray(boxes))),
        ("0.raw.npy", npy(pixels)),
        ("0.score.npy", npy(np.float32(0.5))),
        ("0.caption.txt", b""),
        ("0.Left.Eye.webp", PNG),
        ("0.flac", b"sound"),
        ("0.tar.gz", b"more"),
        ("1.png", PNG),
        ("1.cls", b"-1"),
    )
    assert WebDataset(path).fields == (
        Field("image", "image"),
        Field("mask", "image", options={"mask": True}),
        Field("text", "text"),
        Field("json", "json"),
        Field("array", "ndarray", "int16"),
        Field("boxes", "ndarray", "float64", (4,)),
        Field("raw", "image"),
        Field("score", "scalar", "float32"),
        Field("caption", "text"),
        Field("left_eye", "image"),
        Field("flac", "bytes"),
        Field("tar_gz", "bytes"),
        Field("label", "scalar", "int64"),
    )
    first, second = draw(path)
    assert isinstance(first.sample, dict)
    arrays = {name: first.sample.pop(name) for name in ("array", "boxes", "raw")}
    assert first.sample == {
        "image": JPEG,
        "mask": PNG,
        "text": "é\n",
        "json": {"a": [1]},
        "score": 0.5,
        "caption": "",
        "left_eye": PNG,
        "flac": b"sound",
        "tar_gz": b"more",
        "label": 3,
    }
    np.testing.assert_array_equal(arrays["array"], np.arange(3))
    np.testing.assert_array_equal(arrays["boxes"], boxes)
    np.testing.assert_array_equal(arrays["raw"], pixels)
    assert isinstance(second.sample, dict)
    assert {name: value for name, value in second.sample.items() if value is not None} == {"image": PNG, "label": -1}
    assert first.notes == ("a picture named as another format",)  # the .webp, which is a PNG
    assert (first.key, first.origin) == ("0", f"{path}:0")


def test_an_unnamed_array_of_pixels_is_the_picture(tmp_path: Path) -> None:
    path = write(tmp_path / "a.tar", ("0.npy", npy(np.zeros((2, 3, 3), "u1"))), ("1.jpg", JPEG))
    assert WebDataset(path).fields == (Field("image", "image"),)
    assert len(good(path)) == 2


def test_cases_19_and_20_dots_in_folders_part_nothing_and_the_first_one_in_a_name_does(tmp_path: Path) -> None:
    names = ("v1.0/a.jpg", "v1.0/b.jpg", "v1.0/c.jpg", "v1.0/c.d.jpg", "./x.y/a.jpg", "/etc/a.jpg", "../a.jpg")
    path = write(tmp_path / "a.tar", *((name, JPEG) for name in names))
    assert list(good(path)) == ["v1.0/a", "v1.0/b", "v1.0/c", "./x.y/a", "/etc/a", "../a"]
    assert [field.name for field in WebDataset(path).fields] == ["image", "d"]
    assert not (tmp_path.parent / "a.jpg").exists()


@pytest.mark.parametrize(
    ("files", "key"),
    [
        (["a.jpg", "a.cls", "b.jpg", "b.cls", "a.jpg", "a.cls", "c.jpg"], "a"),
        (["a.jpg", "b.jpg", "b.jpg", "c.jpg"], "b"),
        (["a.jpg", "b.jpg", "b.PNG", "c.jpg"], "b"),
        (["a.jpg", "b.cls", "c.jpg", "b.cls"], "b"),
    ],
)
def test_case_21_a_field_that_a_key_has_twice_is_an_error_that_names_tar_and_key(tmp_path: Path, files: list[str], key: str) -> None:
    path = write(tmp_path / "a.tar", *((name, b"1") for name in files))
    (drawn,) = [drawn for drawn in draw(path) if isinstance(drawn.sample, DataError)]
    assert (drawn.key, drawn.origin) == (key, f"{path}:{key}")
    assert str(drawn.sample).startswith("expected one file for field '")
    assert set(good(path)) == {name.partition(".")[0] for name in files} - {key}
    trouble = WebDataset(path).trouble
    assert trouble is not None
    assert f"'{key}." in trouble
    assert str(path) in trouble


def test_case_21_the_same_key_in_two_tars_are_two_samples(tmp_path: Path) -> None:
    for name in ("0.tar", "1.tar"):
        write(tmp_path / name, ("a.txt", name.encode()))
    assert [drawn.sample for drawn in draw(tmp_path)] == [{"text": "0.tar"}, {"text": "1.tar"}]
    assert WebDataset(tmp_path).trouble is None


def test_files_of_a_sample_that_lie_apart_are_found_and_said(tmp_path: Path) -> None:
    numbers = range(40)
    path = write(
        tmp_path / "a.tar",
        *((f"{i}.jpg", JPEG + bytes(100_000)) for i in numbers),
        *((f"{i}.cls", b"%d" % i) for i in reversed(numbers)),
    )
    source = WebDataset(path)
    assert source.warnings == ["the files of 39 samples do not follow one another in their tar: reading jumps"]
    assert len(list(source.parts())) > 1
    assert [(drawn.key, drawn.sample["label"]) for drawn in draw(path) if isinstance(drawn.sample, dict)] == [(str(i), i) for i in numbers]


def test_hidden_files_folders_links_and_devices_are_counted(tmp_path: Path) -> None:
    with tarfile.open(tmp_path / "a.tar", "w") as tar:
        for name, kind in [("d", tarfile.DIRTYPE), ("s.jpg", tarfile.SYMTYPE), ("h.jpg", tarfile.LNKTYPE), ("c.jpg", tarfile.CHRTYPE)]:
            member = tarfile.TarInfo(name)
            member.type, member.linkname = kind, "/etc/passwd"
            tar.addfile(member)
        for name in ("._a.jpg", "d/.DS_Store", "__MACOSX/a.jpg", "README", "a.jpg"):
            member = tarfile.TarInfo(name)
            member.size = len(JPEG)
            tar.addfile(member, io.BytesIO(JPEG))
    assert good(tmp_path / "a.tar") == {"a": {"image": JPEG}}
    assert WebDataset(tmp_path / "a.tar").ignored == {
        "folders, links and devices": 4,
        "hidden or system files and folders": 3,
        "files without an extension": 1,
    }


@pytest.mark.parametrize("format", [tarfile.USTAR_FORMAT, tarfile.GNU_FORMAT, tarfile.PAX_FORMAT])
def test_long_names_and_other_alphabets_come_back_from_every_format(tmp_path: Path, format: int) -> None:
    long = "folder/" * 20 + "x" * 90 if format == tarfile.USTAR_FORMAT else "y" * 300 + "/" + "Zürich 東京\nmoscow" * 20
    path = write(tmp_path / "a.tar", (f"{long}.jpg", JPEG), (f"{long}.txt", b"1"), ("short.txt", b"2"), format=format)
    assert good(path) == {long: {"image": JPEG, "text": "1"}, "short": {"image": None, "text": "2"}}


def test_names_that_are_no_utf8_lose_nothing(tmp_path: Path) -> None:
    name = b"\xff\xe9".decode("utf-8", "surrogateescape")
    assert list(good(write(tmp_path / "a.tar", (f"{name}.jpg", JPEG), format=tarfile.GNU_FORMAT))) == [name]


@pytest.mark.skipif(shutil.which("tar") is None, reason="there is no tar")
def test_what_gnu_tar_writes_is_read_but_for_sparse_files(tmp_path: Path) -> None:
    (tmp_path / "in").mkdir()
    for i in range(3):
        (tmp_path / "in" / f"{'n' * 150}{i}.txt").write_text(str(i))
    for format in ("v7", "ustar", "gnu", "pax") if False else ("gnu", "pax"):
        subprocess.run(["tar", "--format", format, "-cf", tmp_path / f"{format}.tar", "-C", tmp_path / "in", "."], check=True)
        assert sorted(sample["text"] for sample in good(tmp_path / f"{format}.tar").values()) == ["0", "1", "2"]
    with open(tmp_path / "in" / "hole.bin", "wb") as file:
        file.seek(1 << 20)
        file.write(b"x")
    for format in ("gnu", "pax"):
        subprocess.run(["tar", "--sparse", "--format", format, "-cf", tmp_path / "s.tar", "-C", tmp_path / "in", "hole.bin"], check=True)
        with pytest.raises(ArgumentError, match="expected whole files, got a sparse one, .*hole.bin"):
            WebDataset(tmp_path / "s.tar")


def test_sizes_beyond_8_gib_are_understood_and_nothing_is_read_for_them(tmp_path: Path) -> None:
    member = tarfile.TarInfo("a.bin")
    member.size = 9 << 30
    with open(tmp_path / "a.tar", "wb") as file:
        file.write(member.tobuf(tarfile.GNU_FORMAT))
        file.seek(member.size, io.SEEK_CUR)  # a hole
        last = tarfile.TarInfo("b.bin")
        file.write(last.tobuf(tarfile.GNU_FORMAT) + bytes(2 * BLOCK))
    assert [(part.nbytes, part.num_samples) for part in WebDataset(tmp_path / "a.tar").parts()] == [(9 << 30, 1), (0, 1)]


def test_a_size_that_the_file_does_not_have_takes_no_memory(tmp_path: Path) -> None:
    member = tarfile.TarInfo("a.bin")
    member.size = 1 << 60
    write(tmp_path / "a.tar", ("0.bin", b"x"))
    data = (tmp_path / "a.tar").read_bytes()[: 2 * BLOCK]
    (tmp_path / "a.tar").write_bytes(data + member.tobuf(tarfile.GNU_FORMAT) + bytes(2 * BLOCK))
    assert bad(tmp_path / "a.tar") == [("0", f"expected {1 << 60} bytes of a member, got 1024, at offset 1536: the tar is cut short")]


def tar_of(num: int) -> bytes:
    with tempfile.TemporaryDirectory() as folder:
        files = [(f"{i}.{extension}", b"%d" % i) for i in range(num) for extension in ("txt", "cls")]
        return write(Path(folder, "a.tar"), *files, format=tarfile.USTAR_FORMAT).read_bytes()


@pytest.mark.parametrize("size", [*range(0, 10 * 2 * BLOCK + 1, BLOCK), 1, 700, 1030, 9000])
def test_case_63_a_tar_that_is_cut_short_gives_what_was_whole_before(tmp_path: Path, size: int) -> None:
    path = tmp_path / "a.tar"
    path.write_bytes(tar_of(5)[:size])
    # A sample takes four blocks. The one that the tar ends in, or right behind, may lack files: it is not taken for whole.
    whole = max(0, (size - 1) // (4 * BLOCK)) if size % BLOCK == 0 else size // (4 * BLOCK)
    whole = min(whole, max(0, -(-size // (4 * BLOCK)) - 1))
    if whole == 0 and size < 2 * BLOCK:
        with pytest.raises(ArgumentError, match=r"expected samples in tars, got none \(.*offset \d+"):
            WebDataset(path)
        return
    assert list(good(path)) == [str(i) for i in range(whole)]
    ((key, message),) = bad(path)
    assert "at offset" in message
    assert key in {str(whole), str(whole - 1)}
    trouble = WebDataset(path).trouble
    assert trouble is not None
    assert str(path) in trouble

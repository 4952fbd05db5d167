from __future__ import annotations

import io
import os
import shutil
import subprocess
import tarfile
import tempfile
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
    for format in ("gnu", "pax"):
        subprocess.run(["tar", "--format", format, "-cf", tmp_path / f"{format}.tar", "-C", tmp_path / "in", "."], check=True)
        assert sorted(sample["text"] for sample in good(tmp_path / f"{format}.tar").values()) == ["0", "1", "2"]
    with open(tmp_path / "in" / "hole.bin", "wb") as file:
        file.seek(1 << 20)
        file.write(b"x")
    for format in ("gnu", "pax"):
        subprocess.run(["tar", "--sparse", "--format", format, "-cf", tmp_path / "s.tar", "-C", tmp_path / "in", "hole.bin"], check=True)
        with pytest.raises(ArgumentError, match=r"expected whole files, got a sparse one, .*hole.bin"):
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


FIVE = [(f"{i}.{extension}", b"%d" % i) for i in range(5) for extension in ("txt", "cls")]
"""Five samples of two files, each file two blocks: a header and one byte."""


@pytest.mark.parametrize("size", [*range(0, 20 * BLOCK + 1, BLOCK), 1, 513, 700, 2049, 9000])
def test_case_63_a_tar_that_is_cut_short_gives_what_was_whole_before(tmp_path: Path, size: int) -> None:
    path = write(tmp_path / "a.tar", *FIVE, format=tarfile.USTAR_FORMAT)
    path.write_bytes(path.read_bytes()[:size])
    num_files = (size - BLOCK - 1) // (2 * BLOCK) + 1
    if num_files == 0:
        with pytest.raises(ArgumentError, match=r"expected samples in tars, got none \(.*at offset \d+"):
            WebDataset(path)
        return
    # Whether the sample of the last file is whole cannot be told, so it is the one that is lost.
    last = (num_files - 1) // 2
    assert good(path) == {str(i): {"text": str(i), "label": i} for i in range(last)}
    ((key, message),) = bad(path)
    assert key == str(last)
    assert "at offset" in message
    trouble = WebDataset(path).trouble
    assert trouble is not None
    assert str(path) in trouble


def test_a_tar_with_a_damaged_header_gives_what_was_whole_before(tmp_path: Path) -> None:
    path = write(tmp_path / "a.tar", *FIVE, format=tarfile.USTAR_FORMAT)
    data = bytearray(path.read_bytes())
    data[12 * BLOCK] ^= 1  # in the name of 3.txt
    path.write_bytes(data)
    assert list(good(path)) == ["0", "1"]
    assert bad(path) == [("2", f"expected a header of a tar with its checksum, got {data[12 * BLOCK :][:8].hex(' ')} ..., at offset 6144")]


def test_files_that_are_no_tar_are_refused_and_beside_others_an_error(tmp_path: Path) -> None:
    (tmp_path / "0.tar").write_bytes(b"nothing of the kind" * 100)
    with pytest.raises(ArgumentError, match=r"expected samples in tars, got none \(expected a header of a tar"):
        WebDataset(tmp_path / "0.tar")
    write(tmp_path / "1.tar", *FIVE)
    assert len(good(tmp_path)) == 5
    assert len(bad(tmp_path)) == 1


def test_a_second_tar_behind_the_end_of_the_first_is_said(tmp_path: Path) -> None:
    path = write(tmp_path / "a.tar", *FIVE)
    assert WebDataset(path).trouble is None
    nbytes = path.stat().st_size
    path.write_bytes(path.read_bytes() * 2)
    trouble = WebDataset(path).trouble
    assert trouble is not None
    assert f"got more, at offset {nbytes} of {path}" in trouble
    assert len(good(path)) == 5


@pytest.mark.parametrize(("magic", "tool"), [(b"\x1f\x8b", "gunzip"), (b"\x28\xb5\x2f\xfd", "unzstd")])
@pytest.mark.parametrize("name", ["a.tar", "a.tar.gz", "a.TGZ"])
def test_compressed_tars_are_refused_with_the_cure(tmp_path: Path, name: str, magic: bytes, tool: str) -> None:
    (tmp_path / name).write_bytes(magic + bytes(1000))
    for path in (tmp_path, tmp_path / name):
        with pytest.raises(ArgumentError, match=f"got a compressed one, at .*{name}; unpack it with {tool}"):
            open_source(path)


@pytest.mark.parametrize(
    ("name", "data"),
    [
        *((f"a.{extension}", b"\x80\x04N.") for extension in ("pyd", "pickle", "pkl", "pt", "pth", "ten", "x.PKL")),
        ("a.npy", npy(np.array([None]), pickled=True)),
        ("a.npz", npz(x=np.array([None]))),
    ],
)
def test_pickles_are_refused_before_work_starts(tmp_path: Path, name: str, data: bytes) -> None:
    with pytest.raises(ArgumentError, match=r"expected files that are read without unpickling, got .*, at a\..* of .*\.tar; convert them"):
        WebDataset(write(tmp_path / "0.tar", ("0.jpg", JPEG), (name, data)))


def test_archives_of_numbers_are_bytes(tmp_path: Path) -> None:
    data = npz(x=np.arange(3))
    assert good(write(tmp_path / "a.tar", ("a.npz", data), ("b.npz", b"PK\x03\x04 cut"))) == {
        "a": {"npz": data},
        "b": {"npz": b"PK\x03\x04 cut"},
    }


HUGE = npy(np.zeros(3)).replace(b"(3,), }" + b" " * 17, b"(%d,), }" % (1 << 57))


@pytest.mark.parametrize(
    ("name", "data", "message"),
    [
        ("1.cls", b"cat", "expected the number of a class, got b'cat' (bytes), at '1.cls'"),
        ("1.cls", b"9" * 30, "expected the number of a class, got"),
        ("1.txt", b"a\xff", "expected UTF-8, got the byte 0xff at position 1 of the file, at '1.txt'"),
        ("1.json", b"{", "expected JSON, got b'{' (bytes): Expecting"),
        ("1.json", b"[" * 100_000, "expected JSON, got"),
        ("1.npy", b"", "expected a .npy, got an empty file"),
        ("1.npy", npy(np.zeros(3))[:-1], "expected an array [3] of float64 in a .npy, got 23 bytes, at '1.npy'"),
        ("1.npy", HUGE, f"expected an array [{1 << 57}] of float64 in a .npy, got 24 bytes"),
        ("1.npy", npy(np.zeros(3)).replace(b"(3,)", b"(-3)"), "expected a .npy, got 93 4e 55 4d"),
        ("1.npy", npy(np.array(["x"])), "expected numbers in a .npy, got <U1"),
        ("1.npy", npy(np.array([None]), pickled=True), "expected numbers in a .npy, got object"),
        ("1.n.npy", npy(np.zeros(3)), "expected one number in a .npy, got an array [3]"),
    ],
)
def test_a_file_that_is_not_what_its_extension_says_is_an_error_of_its_sample(tmp_path: Path, name: str, data: bytes, message: str) -> None:
    fine = {"cls": b"1", "txt": b"x", "json": b"1", "npy": npy(np.zeros(2)), "n.npy": npy(np.float64(1))}
    around = [(f"{i}.{name.partition('.')[2]}", fine[name.partition(".")[2]]) for i in (0, 2)]
    path = write(tmp_path / "a.tar", around[0], (name, data), around[1])
    assert list(good(path)) == ["0", "2"]
    ((key, found),) = bad(path)
    assert key == "1"
    assert found.startswith(message)


def test_what_an_array_is_the_first_good_one_tells(tmp_path: Path) -> None:
    path = write(tmp_path / "a.tar", ("0.npy", b"broken"), ("1.npy", npy(np.zeros(3, "f4"))))
    assert WebDataset(path).fields == (Field("array", "ndarray", "float32"),)
    with pytest.raises(ArgumentError, match=r"expected a .npy, got 62 72 .*, at 0.npy of "):
        WebDataset(write(tmp_path / "b.tar", ("0.npy", b"broken")))


@pytest.mark.parametrize(
    ("names", "message"),
    [
        (["a.index"], "expected other names than 'index'"),
        (["a.x.txt", "a.x.json"], "expected files of one kind for field 'x', got .x.txt beside json"),
        (["a.b-c.bin", "a.b_c.bin"], "expected names that differ"),
        ([f"a.{i}.jpg" for i in range(200)], "expected at most 100 extensions, got also .100.image, at a.100.jpg of .*rename"),
        (["README"], "expected samples in tars, got none, at"),
        ([], "expected samples in tars, got none, at"),
    ],
)
def test_tars_without_fields_that_can_be_named_are_refused(tmp_path: Path, names: list[str], message: str) -> None:
    with pytest.raises(ArgumentError, match=message):
        WebDataset(write(tmp_path / "a.tar", *((name, b"1") for name in names)))


def test_tars_of_a_folder_come_by_the_bytes_of_their_names(tmp_path: Path) -> None:
    for name in ("é.tar", "b.tar", "a.TAR", "B.tar", "._b.tar"):
        write(tmp_path / name, (f"{name}.txt", b"1"))
    (tmp_path / "sizes.json").write_text("{}")
    source = open_source(tmp_path)
    assert [part.name.partition(" ")[0] for part in source.parts()] == ["B.tar", "a.TAR", "b.tar", "é.tar"]
    assert source.ignored == {"hidden or system files and folders": 1, "files and folders of other kinds": 1}


def test_a_tar_beside_folders_of_pictures_or_among_texts_changes_nothing(tmp_path: Path) -> None:
    write(tmp_path / "photos.tar", ("a.jpg", JPEG))
    (tmp_path / "cat").mkdir()
    (tmp_path / "cat" / "a.jpg").write_bytes(JPEG)
    assert open_source(tmp_path).classes == ("cat",)
    write(tmp_path / "cat" / "backup.tar", ("a.jpg", JPEG))
    assert type(open_source(tmp_path / "cat")).__module__ == "fastdata.sources.images"


def test_names_of_parts_tell_of_other_headers(tmp_path: Path) -> None:
    def names(*files: tuple[str, bytes]) -> list[str]:
        return [part.name for part in WebDataset(write(tmp_path / "a.tar", *files)).parts()]

    assert names(("a.txt", b"1")) == names(("a.txt", b"1")) != names(("b.txt", b"1"))


def test_a_tar_that_has_changed_is_not_read(tmp_path: Path) -> None:
    source = WebDataset(write(tmp_path / "a.tar", *FIVE))
    (part,) = source.parts()
    write(tmp_path / "a.tar", *FIVE, *FIVE)
    with pytest.raises(DataError, match=r"expected the file that was opened, got one that has changed while it was packed, at .*a.tar"):
        list(source.read(part))


def test_parts_are_of_about_a_mebibyte(tmp_path: Path) -> None:
    path = write(tmp_path / "a.tar", *((f"{i}.bin", bytes(100_000)) for i in range(50)), ("big.bin", bytes(3 * PART_NBYTES)))
    parts = list(WebDataset(path).parts())
    assert sum(part.nbytes for part in parts) == 50 * 100_000 + 3 * PART_NBYTES
    assert all(part.nbytes < PART_NBYTES + 100_000 for part in parts[:-1])
    assert len(parts) in (5, 6)


def test_the_tars_of_our_own_store_come_back(tmp_path: Path, photos: Path) -> None:
    pictures = sorted(photos.rglob("*.jpg"))
    samples = [
        {
            "image": picture.read_bytes(),
            "boxes": np.arange(4.0 * i).reshape(i, 4),
            "text": f"é {i}",
            "notes": {"i": [i]},
            "score": i / 2,
            "label": i,
        }
        for i, picture in enumerate(pictures)
    ]
    fastdata.pack(samples, tmp_path / "out", to="tar")
    source = open_source(tmp_path / "out" / "shards")
    assert {field.name: (field.codec, field.dtype, field.shape) for field in source.fields} == {
        "image": ("image", "uint8", ()),
        "boxes": ("ndarray", "float64", (4,)),
        "text": ("text", "uint8", ()),
        "json": ("json", "uint8", ()),  # the name of an only field of a kind is not in a tar
        "scalars": ("json", "uint8", ()),
        "label": ("scalar", "int64", ()),
    }
    found = list(good(tmp_path / "out" / "shards").values())
    assert len(found) == len(samples) == 24
    for sample, expected in zip(found, samples, strict=True):
        np.testing.assert_array_equal(sample.pop("boxes"), expected.pop("boxes"), strict=True)
        expected["json"], expected["scalars"] = expected.pop("notes"), {"score": expected.pop("score")}
        assert sample == expected


def test_it_packs_as_it_reads(tmp_path: Path, photos: Path) -> None:
    files = [
        (f"{i}.{end}", data)
        for i, p in enumerate(sorted(photos.rglob("*.jpg")))
        for end, data in (("jpg", p.read_bytes()), ("cls", b"%d" % i))
    ]
    write(tmp_path / "a.tar", *files)
    with tarfile.open(tmp_path / "a.tar") as tar:
        end = tar.getmembers()[-1].offset
    os.truncate(tmp_path / "a.tar", end)
    with pytest.raises(ArgumentError, match="the tar is cut short"):
        fastdata.pack(tmp_path / "a.tar", tmp_path / "out", to="mmap")
    packed = fastdata.pack(tmp_path / "a.tar", tmp_path / "out", to="mmap", on_error="skip", workers=2)
    assert (packed.num_samples, packed.rejected) == (23, 1)
    dataset = fastdata.Dataset(tmp_path / "out")
    assert [sample["label"] for sample in (dataset[i] for i in range(23))] == list(range(23))


@settings(deadline=None, max_examples=50)
@given(
    st.lists(
        st.tuples(st.sampled_from("abcde"), st.sampled_from(["bin", "txt", "cls"]), st.integers(0, 3 * BLOCK)),
        max_size=40,
        unique_by=lambda f: f[:2],
    )
)
def test_samples_hold_each_file_once_however_files_lie(found: list[tuple[str, str, int]]) -> None:
    found = [("first", "bin", 1), *found]
    with tempfile.TemporaryDirectory() as folder:
        files = [(f"{key}.{end}", b"1" * max(1, size) if end != "cls" else b"1") for key, end, size in found]
        path = write(Path(folder, "a.tar"), *files)
        samples = good(path)
    assert list(samples) == list(dict.fromkeys(key for key, _, _ in found))
    names = {"bin": "bin", "txt": "text", "cls": "label"}
    held = {(key, name) for key, sample in samples.items() for name, value in sample.items() if value is not None}
    assert held == {(key, names[end]) for key, end, _ in found}

from __future__ import annotations

import mmap
import multiprocessing
import os
import pickle
import tempfile
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path
from random import Random
from typing import Any

import lmdb
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import fastdata
from fastdata.errors import ArgumentError, DataError
from fastdata.sources import base, open_source
from fastdata.sources.lmdb import PART_NBYTES, PART_SAMPLES
from fastdata.sources.lmdb import Source as Lmdb
from fastdata.types import Field

PAGE = mmap.PAGESIZE  # what LMDB takes
JPEG, PNG = b"\xff\xd8\xff jpeg", b"\x89PNG\r\n\x1a\n png"


def write(path: Path, items: Iterable[tuple[bytes, bytes]]) -> Path:
    path.unlink(missing_ok=True)
    with lmdb.open(str(path), subdir=False, lock=False, map_size=256 << 20) as environment, environment.begin(write=True) as transaction:
        for key, value in items:
            transaction.put(key, value)
    return path


def draw(path: Path) -> list[base.Drawn]:
    source = Lmdb(path)
    return [drawn for part in source.parts() for drawn in source.read(part)]


def samples(path: Path) -> dict[str, Any]:
    return {drawn.key: drawn.sample for drawn in draw(path)}


def test_values_are_pictures_where_most_of_the_first_are(tmp_path: Path) -> None:
    path = write(tmp_path / "a.lmdb", [(b"a/1.png", PNG), (b"a/2.png", JPEG), (b"b.jpg", b"?")])
    assert Lmdb(path).fields == (Field("image", "image"),)
    drawn = draw(path)
    assert [(d.key, d.sample, d.nbytes) for d in drawn] == [
        ("a/1.png", {"image": PNG}, len(PNG)),
        ("a/2.png", {"image": JPEG}, len(JPEG)),
        ("b.jpg", {"image": b"?"}, 1),
    ]
    assert [d.notes for d in drawn] == [(), ("a picture named as another format",), ()]
    assert drawn[0].origin == f"{path}['a/1.png']"


def test_other_values_are_bytes_and_keys_any_bytes(tmp_path: Path) -> None:
    items = [(b"\xff\x00", b""), (b"\x00\x00\x00\x01", "text é".encode()), (b"n" * 511, bytes(9000))]
    path = write(tmp_path / "a.mdb", items)
    assert Lmdb(path).fields == (Field("value", "bytes"),)
    assert samples(path) == {key.decode("utf-8", "surrogateescape"): {"value": value} for key, value in sorted(items)}


def test_meta_keys_are_counted_and_never_read(tmp_path: Path) -> None:
    meta = [b"__len__", b"__keys__", b"length", b"num-samples", b"num_samples"]
    path = write(tmp_path / "a.lmdb", [*((key, pickle.dumps([1])) for key in meta), (b"0", JPEG), (b"1", JPEG)])
    assert list(samples(path)) == ["0", "1"]
    assert Lmdb(path).ignored == {"meta keys": 5}


def test_numbers_come_in_their_order_and_other_keys_by_their_bytes(tmp_path: Path) -> None:
    numbers = [b"%d" % i for i in (0, 1, 2, 9, 10, 11, 100, 10**17)]
    assert list(samples(write(tmp_path / "a.lmdb", ((key, JPEG) for key in numbers)))) == [key.decode() for key in numbers]
    for keys in ([*numbers, b"x"], [*numbers, b"007"], [b"%09d" % i for i in range(200)], [*numbers, b"9" * 30]):
        path = write(tmp_path / "a.lmdb", ((key, JPEG) for key in keys))
        assert list(samples(path)) == [key.decode() for key in sorted(keys)]


def test_pictures_and_labels_of_text_recognition_are_pairs(tmp_path: Path) -> None:
    items = [(b"image-%09d" % i, JPEG + b"%d" % i) for i in (1, 2, 3, 5, 7)]
    items += [(b"label-%09d" % i, f"wörd {i}".encode()) for i in (1, 3, 4, 5, 8)]
    path = write(tmp_path / "a.lmdb", [*items, (b"num-samples", b"5"), (b"lexicon", b"a,b"), (b"zoo", b"")])
    source = Lmdb(path)
    assert source.fields == (Field("image", "image"), Field("label", "scalar", "str"))
    labels = {1: "wörd 1", 2: None, 3: "wörd 3", 5: "wörd 5", 7: None}
    assert samples(path) == {f"image-{i:09d}": {"image": JPEG + b"%d" % i, "label": label} for i, label in labels.items()}
    assert source.ignored == {"meta keys": 1, "labels without a picture": 2, "keys of neither picture nor label": 2}
    assert source.warnings == []
    write(path, [*items, (b"num-samples", b"9")])
    assert Lmdb(path).warnings == ["num-samples is b'9' (bytes), but there are 5 pictures; all of them are taken"]


def test_a_label_that_is_no_utf8_is_an_error_of_its_sample(tmp_path: Path) -> None:
    items = [(b"image-1", JPEG), (b"image-2", JPEG), (b"label-1", b"\xff"), (b"label-2", b"b"), (b"num-samples", b"2")]
    bad, good = draw(write(tmp_path / "a.lmdb", items))
    assert str(bad.sample) == "expected UTF-8, got the byte 0xff at position 0 of the label"
    assert good.sample == {"image": JPEG, "label": "b"}


def varint(number: int) -> bytes:
    return bytes([number]) if number < 128 else bytes([number & 127 | 128]) + varint(number >> 7)


def datum(data: bytes, **fields: int) -> bytes:
    """A message of Caffe: a tag and a number for each field, data behind their length."""
    tags = {"channels": 1, "height": 2, "width": 3}
    head = b"".join(bytes([tags[name] << 3]) + varint(number) for name, number in fields.items())
    return head + b"\x22" + varint(len(data)) + data + b"\x28\x05"


@pytest.mark.parametrize(
    ("value", "message"),
    [
        *((pickle.dumps({"image": 1}, protocol), "got pickles, which are never unpickled") for protocol in (2, 3, 4, 5)),
        (datum(bytes(3 * 32 * 400), channels=3, height=32, width=400), r"got messages of Caffe \(Datum\)"),
        (datum(JPEG * 50), r"got messages of Caffe \(Datum\)"),
    ],
)
def test_values_that_only_others_can_read_are_refused_with_the_cure(tmp_path: Path, value: bytes, message: str) -> None:
    with pytest.raises(ArgumentError, match=rf"{message}, at key '1'; make them files of pictures, or pack from Python .*, at .*a.lmdb"):
        Lmdb(write(tmp_path / "a.lmdb", [(b"0", b"fine"), (b"1", value)]))


def test_named_databases_and_several_values_of_a_key_are_refused(tmp_path: Path) -> None:
    with lmdb.open(str(tmp_path / "a.lmdb"), subdir=False, lock=False, max_dbs=1) as environment:
        environment.open_db(b"image")
    with pytest.raises(ArgumentError, match=r"got a named database, 'image'; copy it into a file of its own, without a name, at .*a.lmdb"):
        Lmdb(tmp_path / "a.lmdb")
    # The Python library makes no unnamed database with several values of a key, so the node is marked by hand: the first of the only leaf.
    data = bytearray(write(tmp_path / "b.lmdb", [(b"0", b"1")]).read_bytes())
    leaf = next(at for at in range(2 * PAGE, len(data), PAGE) if data[at + 10] & 2)
    data[leaf + int.from_bytes(data[leaf + 16 : leaf + 18], "little") + 4] |= 4
    (tmp_path / "b.lmdb").write_bytes(data)
    with pytest.raises(ArgumentError, match="expected one value for each key, got several of '0'"):
        Lmdb(tmp_path / "b.lmdb")


def test_our_own_store_is_refused_by_the_names_of_its_databases(tmp_path: Path, photos: Path) -> None:
    fastdata.pack(photos, tmp_path / "out", to="lmdb")
    with pytest.raises(ArgumentError, match="got a named database, 'image'"):
        open_source(tmp_path / "out" / "shards" / "00000.lmdb")


@pytest.mark.parametrize("data", [b"", b"no LMDB", bytes(10_000), b"\0" * 16 + b"\xde\xc0\xef\xbe\x01\0\0\0" + bytes(10_000)])
def test_files_that_are_no_lmdb_are_refused(tmp_path: Path, data: bytes) -> None:
    (tmp_path / "a.lmdb").write_bytes(data)
    with pytest.raises(ArgumentError, match=r"expected .*, got .*, at .*a.lmdb"):
        open_source(tmp_path / "a.lmdb")


def test_an_lmdb_without_samples_is_refused(tmp_path: Path) -> None:
    for items in ([], [(b"__len__", b"0")]):
        with pytest.raises(ArgumentError, match="expected keys with values, got none, at"):
            Lmdb(write(tmp_path / "a.lmdb", items))


def test_values_that_are_cut_off_are_errors_of_their_samples(tmp_path: Path) -> None:
    path = write(tmp_path / "a.lmdb", [(b"%d" % i, JPEG + bytes(10_000)) for i in range(10)])
    os.truncate(path, path.stat().st_size - PAGE)  # of the last value: the page of keys was taken first
    trouble = Lmdb(path).trouble
    assert trouble is not None
    assert "got 1 that are cut off" in trouble
    assert [isinstance(d.sample, DataError) for d in draw(path)] == [False] * 9 + [True]
    assert "it is cut short" in str(draw(path)[9].sample)


def test_a_page_of_keys_that_leads_into_itself_ends(tmp_path: Path) -> None:
    path = write(tmp_path / "a.lmdb", [(b"%d" % i, JPEG + bytes(500)) for i in range(100)])
    data = bytearray(path.read_bytes())
    for at in range(2 * PAGE, len(data), PAGE):
        if data[at + 10] & 1:  # a branch: its first child becomes itself
            node = at + int.from_bytes(data[at + 16 : at + 18], "little")
            data[node : node + 4] = (at // PAGE).to_bytes(4, "little")
    path.write_bytes(data)
    with pytest.raises(ArgumentError, match="expected a page of keys, got one of kind 1"):
        Lmdb(path)


def test_damaged_files_are_refused_or_read_but_never_end_the_process(tmp_path: Path) -> None:
    noise = Random(0)
    path = write(tmp_path / "a.lmdb", [(b"%d" % i, JPEG + bytes(noise.choice([0, 10, 3000, 9000]))) for i in range(60)])
    whole = path.read_bytes()
    for _ in range(300):
        data = bytearray(whole)
        for _ in range(noise.randrange(1, 10)):
            data[noise.randrange(0, len(data) // PAGE) * PAGE + noise.randrange(100)] = noise.randrange(256)
        path.write_bytes(data)
        with suppress(ArgumentError, DataError):
            draw(path)


def test_a_folder_that_may_not_be_written_to_is_read_without_a_lock(tmp_path: Path) -> None:
    folder = tmp_path / "set"
    with lmdb.open(str(folder), lock=False) as environment, environment.begin(write=True) as transaction:
        transaction.put(b"0", JPEG)
    before = {path.name: path.stat().st_mtime_ns for path in folder.iterdir()}
    folder.chmod(0o500)
    try:
        source = open_source(folder)
        assert [d.sample for part in source.parts() for d in source.read(part)] == [{"image": JPEG}]
    finally:
        folder.chmod(0o700)
    assert {path.name: path.stat().st_mtime_ns for path in folder.iterdir()} == before == {"data.mdb": before["data.mdb"]}


def check_first(source: base.Source, part: base.Part) -> None:
    assert [d.sample for d in source.read(part)] == [{"image": JPEG}]


def test_case_64_a_file_that_is_open_in_this_process_and_in_a_forked_one_is_read(tmp_path: Path) -> None:
    path = write(tmp_path / "a.lmdb", [(b"0", JPEG)])
    with lmdb.open(str(path), subdir=False, readonly=True, lock=False) as environment, environment.begin() as transaction:
        source = Lmdb(path)
        part = next(source.parts())
        child = multiprocessing.get_context("fork").Process(target=check_first, args=(source, part))
        child.start()
        check_first(source, part)
        child.join()
        assert child.exitcode == 0
        assert transaction.get(b"0") == JPEG


def test_a_file_that_has_changed_is_not_read(tmp_path: Path) -> None:
    source = Lmdb(write(tmp_path / "a.lmdb", [(b"0", JPEG)]))
    (part,) = source.parts()
    write(tmp_path / "a.lmdb", [(b"0", JPEG), (b"1", JPEG + bytes(9000))])
    with pytest.raises(DataError, match=r"expected the file that was opened, got one that has changed while it was packed, at .*a.lmdb"):
        list(source.read(part))


def test_names_of_parts_tell_of_other_keys_sizes_and_transactions(tmp_path: Path) -> None:
    def names(*items: tuple[bytes, bytes]) -> list[str]:
        return [part.name for part in Lmdb(write(tmp_path / "a.lmdb", items)).parts()]

    one = names((b"0", JPEG))
    assert one == names((b"0", JPEG))
    assert one != names((b"1", JPEG))
    assert one != names((b"0", JPEG + b"x"))
    write(tmp_path / "a.lmdb", [(b"0", JPEG)])
    with lmdb.open(str(tmp_path / "a.lmdb"), subdir=False, lock=False) as environment, environment.begin(write=True) as transaction:
        transaction.put(b"0", JPEG[:-1] + b"!")
    assert one != [part.name for part in Lmdb(tmp_path / "a.lmdb").parts()]


def test_parts_are_of_about_a_mebibyte_or_some_hundred_samples(tmp_path: Path) -> None:
    small = [(b"a%05d" % i, b"x") for i in range(3 * PART_SAMPLES)]
    large = [(b"b%05d" % i, bytes(300_000)) for i in range(10)]
    parts = list(Lmdb(write(tmp_path / "a.lmdb", small + large)).parts())
    assert [part.num_samples for part in parts] == [PART_SAMPLES] * 3 + [4, 4, 2]
    assert all(part.nbytes < PART_NBYTES + 300_000 for part in parts)
    assert [part.number for part in parts] == [0, 500, 1000, 1500, 1504, 1508]


def test_it_packs_as_it_reads(tmp_path: Path, photos: Path) -> None:
    files = sorted(photos.rglob("*.jpg"))
    path = write(tmp_path / "a.lmdb", ((b"%d" % i, file.read_bytes()) for i, file in enumerate(files)))
    fastdata.pack(path, tmp_path / "out", to="tar", workers=2)
    fastdata.pack(photos, tmp_path / "plain", to="tar")
    dataset, plain = fastdata.Dataset(tmp_path / "out"), fastdata.Dataset(tmp_path / "plain")
    assert len(dataset) == len(files)
    for i in range(len(files)):
        np.testing.assert_array_equal(dataset[i]["image"], plain[i]["image"])


keys = st.binary(min_size=1, max_size=60).map(lambda key: bytes([key[0] | 128]) + key[1:])  # none that means something
sizes = st.sampled_from([0, 1, 10, 1000, 2000, 3000, 20_000])


@settings(deadline=None, max_examples=50)
@given(st.dictionaries(keys, sizes, min_size=1, max_size=300), st.sets(st.integers(0, 300)), st.integers(0, 2**32))
def test_the_tree_is_walked_as_the_library_walks_it(sizes: dict[bytes, int], deleted: set[int], seed: int) -> None:
    noise = Random(seed)
    with tempfile.TemporaryDirectory() as folder:
        path = write(Path(folder, "a.lmdb"), ((key, b"?" + noise.randbytes(size)) for key, size in sizes.items()))
        with lmdb.open(str(path), subdir=False, lock=False, map_size=256 << 20) as environment:
            for position, key in enumerate(sizes):
                if position in deleted and position:
                    with environment.begin(write=True) as transaction:
                        transaction.delete(key)
            with environment.begin() as transaction:
                expected = list(transaction.cursor())
        found = [(d.key.encode("utf-8", "surrogateescape"), d.sample) for d in draw(path)]
    assert sorted(found) == [(key, {"value": value}) for key, value in expected]

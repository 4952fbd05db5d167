"""What every source owes, run over each file of `fastdata/sources`."""

from __future__ import annotations

import io
import json
import pickle
import tarfile
from collections.abc import Callable
from pathlib import Path
from random import Random
from typing import Any

import h5py
import lmdb
import numpy as np
import pytest

from fastdata import registry
from fastdata.errors import ArgumentError, DataError
from fastdata.sources import base, open_source

JPEG = b"\xff\xd8\xff\xe0 not decoded here"
KINDS = registry.names("fastdata.sources")


def make_imagefolder(folder: Path) -> Path:
    for name in ("a/2.jpg", "a/deep/1.png", "b/1.jpg"):
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(JPEG + name.encode())
    return folder


def make_images(folder: Path) -> Path:
    for name in ("3.jpg", "1.jpg", "2.webp"):
        (folder / name).write_bytes(JPEG + name.encode())
    return folder


def make_textfiles(folder: Path) -> Path:
    (folder / "deep").mkdir()
    for name in ("b.txt", "a.txt", "deep/c.txt"):
        (folder / name).write_text(f"Document {name}.\n")
    return folder


def make_csv(folder: Path) -> Path:
    make_images(folder)
    (folder / "train.csv").write_text("path,width,label\n1.jpg,3,cat\n2.webp,4,dog\n3.jpg,,cat\n")
    return folder / "train.csv"


def make_jsonl(folder: Path) -> Path:
    lines = [json.dumps({"prompt": f"{i} " * 3000, "score": i / 2, "tokens": [i] * i}) for i in range(50)]
    (folder / "train.jsonl").write_text("\n".join([*lines[:20], "", "{broken", *lines[20:]]) + "\n")
    return folder / "train.jsonl"


def make_npy(folder: Path) -> Path:
    np.savez(folder / "set.npz", x_train=np.arange(600_000, dtype="f4").reshape(100, -1), y_train=np.arange(100))
    return folder / "set.npz"


def make_webdataset(folder: Path) -> Path:
    for shard in range(2):
        with tarfile.open(folder / f"{shard}.tar", "w") as tar:
            for i in range(30):
                files = {"jpg": JPEG + bytes(50_000), "cls": b"%d" % i, "json": b'{"i": 1}' if i != 7 else b"{broken"}
                for extension, data in files.items():
                    member = tarfile.TarInfo(f"{shard}.dir/{i:03d}.{extension}")
                    member.size = len(data)
                    tar.addfile(member, io.BytesIO(data))
    return folder


def make_parquet(folder: Path) -> Path:
    pyarrow, parquet = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
    noise = Random(0)
    for file in range(2):
        pictures = [{"bytes": JPEG + noise.randbytes(10_000) if i else None, "path": f"{file}/{i}.jpg"} for i in range(300)]
        columns = {"label": ["cat", "dog", None] * 100, "image": pictures, "tokens": [list(range(i)) for i in range(300)]}
        parquet.write_table(pyarrow.table(columns), folder / f"{file}.parquet", row_group_size=250)
    return folder


def make_hdf5(folder: Path) -> Path:
    with h5py.File(folder / "set.h5", "w") as file:
        file.create_dataset("label", data=np.arange(100), chunks=(64,), compression="gzip")
        file.create_dataset("photo", data=np.arange(100 * 3000, dtype="u4").astype("u1").reshape(100, 20, 50, 3), chunks=(7, 20, 50, 3))
        file["group/names"] = np.array([f"é{i}".encode() if i != 50 else b"\xff" for i in range(100)], h5py.string_dtype())
        file["boxes"] = np.arange(400_000.0).reshape(100_000, 4)
        file["boxes.offsets"] = np.arange(0, 100_001, 1000)
    return folder / "set.h5"


def make_lmdb(folder: Path) -> Path:
    with lmdb.open(str(folder), map_size=64 << 20) as environment, environment.begin(write=True) as transaction:
        for i in range(700):
            transaction.put(str(i).encode(), JPEG + bytes(i * 10))
        transaction.put(b"__len__", b"not read")
    return folder


def make_python(folder: Path) -> Any:
    return [{"value": i, "array": np.full(i, 0.5)} for i in range(20)]


MAKERS: dict[str, Callable[[Path], Any]] = {
    "csv": make_csv,
    "hdf5": make_hdf5,
    "imagefolder": make_imagefolder,
    "images": make_images,
    "jsonl": make_jsonl,
    "lmdb": make_lmdb,
    "npy": make_npy,
    "parquet": make_parquet,
    "python": make_python,
    "textfiles": make_textfiles,
    "webdataset": make_webdataset,
}


def freeze(value: Any) -> Any:
    """Turn what a source gives into what `==` can compare."""
    if isinstance(value, np.ndarray):
        return (value.dtype.str, value.shape, value.tobytes())
    if isinstance(value, DataError):
        return str(value)
    return {name: freeze(item) for name, item in value.items()} if isinstance(value, dict) else value


def samples(source: base.Source, part: base.Part) -> list[Any]:
    return [(drawn.key, drawn.origin, drawn.nbytes, freeze(drawn.sample)) for drawn in source.read(part)]


def test_every_source_has_an_example_here() -> None:
    assert set(MAKERS) == set(KINDS)


@pytest.fixture(params=KINDS)
def kind(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def example(kind: str, tmp_path: Path) -> Any:
    return MAKERS[kind](tmp_path)


def test_an_example_is_recognised_by_its_own_kind_alone(kind: str, example: Any) -> None:
    assert type(open_source(example)).__module__ == f"fastdata.sources.{kind}"
    assert pickle.loads(pickle.dumps(open_source(example))).fields == open_source(example).fields


def test_naming_the_kind_opens_the_same_source(kind: str, example: Any) -> None:
    assert open_source(example, kind).fields == open_source(example).fields


def test_parts_are_the_same_each_time_and_for_another_object(example: Any) -> None:
    source = open_source(example)
    assert list(source.parts()) == list(source.parts()) == list(open_source(example).parts())
    assert pickle.loads(pickle.dumps(list(source.parts()))) == list(source.parts())


def test_numbers_run_without_gaps(example: Any) -> None:
    source, number = open_source(example), 0
    for part in source.parts():
        assert part.number == number
        number += len(samples(source, part))
    assert number > 0


def test_parts_read_in_any_order_by_another_process_give_the_same(example: Any) -> None:
    source = open_source(example)
    parts = list(source.parts())
    forward = [samples(source, part) for part in parts]
    copy = pickle.loads(pickle.dumps(source))
    assert [samples(copy, part) for part in reversed(parts)] == forward[::-1]


def test_keys_are_unique_and_samples_hold_the_fields(example: Any) -> None:
    source = open_source(example)
    drawn = [drawn for part in source.parts() for drawn in source.read(part)]
    assert len({d.key for d in drawn}) == len(drawn)
    for d in drawn:
        assert isinstance(d.sample, DataError) or list(d.sample) == [field.name for field in source.fields]


def test_sizes_of_parts_are_the_sizes_of_their_samples(kind: str, example: Any) -> None:
    source = open_source(example)
    sizes = [(part.nbytes, sum(drawn.nbytes for drawn in source.read(part))) for part in source.parts()]
    if kind == "python":  # estimated: the mean of the probes
        assert abs(sum(told for told, _ in sizes) - sum(read for _, read in sizes)) <= len(sizes)
    else:
        assert all(told == read for told, read in sizes)


def test_parts_tell_how_many_samples_they_have_or_that_nobody_knows(example: Any) -> None:
    source = open_source(example)
    for part in source.parts():
        assert part.num_samples in (None, len(samples(source, part)))


def test_parts_that_are_read_again_give_the_same(example: Any) -> None:
    source = open_source(example)
    for part in source.parts():
        assert samples(source, part) == samples(source, part)


@pytest.mark.parametrize("kind", [name for name in KINDS if name != "python"])
def test_an_empty_folder_is_no_source_of_any_kind(kind: str, tmp_path: Path) -> None:
    with pytest.raises(ArgumentError, match=r"expected .*, got .*, at "):
        open_source(tmp_path, kind)


def test_a_path_that_is_not_there_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ArgumentError, match="got nothing, at"):
        open_source(tmp_path / "photos")


def test_an_empty_folder_is_not_recognised(tmp_path: Path) -> None:
    with pytest.raises(ArgumentError, match="got nothing that I know"):
        open_source(tmp_path)


def test_an_unknown_kind_is_refused_by_the_list_of_kinds(tmp_path: Path) -> None:
    with pytest.raises(ArgumentError, match=r"expected one of \['csv', .*\], got 'imgfolder', at --source"):
        open_source(tmp_path, "imgfolder")


def test_a_python_object_is_of_no_other_kind() -> None:
    with pytest.raises(ArgumentError, match="expected a path"):
        open_source([{"x": 1}], "csv")

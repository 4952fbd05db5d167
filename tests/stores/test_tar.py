"""The tar store, read by what others read tars with: the webdataset package and GNU tar."""

from __future__ import annotations

import io
import json
import shutil
import subprocess
import tarfile
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from fastdata.dataset import Dataset
from fastdata.errors import DataError, ShardError
from fastdata.packing import pack
from fastdata.stores import tar
from fastdata.types import Encoded, Field, Record


@pytest.fixture(scope="module")
def packed(photos: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The photos in several shards, read only."""
    out = tmp_path_factory.mktemp("tar") / "out"
    pack(photos, out, to="tar", workers=1, shard_size=9000)
    return out


def shards(out: Path) -> list[Path]:
    return sorted((out / "shards").iterdir())


def web(out: Path) -> list[dict[str, Any]]:
    """All samples as the webdataset package reads them."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the package's own
        import webdataset

        samples: list[dict[str, Any]] = list(webdataset.WebDataset([str(path) for path in shards(out)], shardshuffle=False))
    return samples


def test_the_webdataset_package_reads_count_keys_bytes_and_labels(photos: Path, packed: Path) -> None:
    """Case 19."""
    files = sorted(photos.glob("*/*"))
    samples = web(packed)
    assert len(samples) == len(files) == 24
    assert len({sample["__key__"] for sample in samples}) == 24
    classes = ["cat", "dog", "eel"]
    for sample, path in zip(samples, files, strict=True):
        assert {name for name in sample if not name.startswith("__")} == {"jpg", "cls"}
        assert sample["jpg"] == path.read_bytes()
        assert int(sample["cls"]) == classes.index(path.parent.name)
    number = 0
    for path in shards(packed):
        inside = [sample for sample in samples if sample["__url__"] == str(path)]
        assert [sample["__key__"] for sample in inside] == [f"{path.stem}-{i:06d}" for i in range(len(inside))]
        number += len(inside)
    assert number == 24


def test_the_webdataset_package_decodes_every_kind_of_field(tmp_path: Path) -> None:
    shown = np.arange(4 * 5 * 3, dtype=np.uint8).reshape(4, 5, 3)
    png = io.BytesIO()
    Image.fromarray(shown).save(png, "PNG")
    samples = [
        {
            "image": png.getvalue(),
            "pixels": shown,
            "boxes": np.full((i, 4), i, np.float32),
            "text": f"ü {i}",
            "blob": bytes([i] * i),
            "note": {"deep": [i]},
            "weight": i / 4,
            "name": f"n{i}",
            "label": i,
        }
        for i in range(4)
    ]
    pack(samples, tmp_path / "out", to="tar", workers=1)
    found = web(tmp_path / "out")
    assert len(found) == 4
    for i, sample in enumerate(found):
        assert sample["png"] == png.getvalue()
        assert np.array_equal(np.load(io.BytesIO(sample["pixels.npy"])), shown)
        assert np.array_equal(np.load(io.BytesIO(sample["boxes.npy"])), samples[i]["boxes"])
        assert sample["txt"] == f"ü {i}".encode()
        assert sample["bin"] == bytes([i] * i)
        assert json.loads(sample["json"]) == {"deep": [i]}
        assert json.loads(sample["scalars.json"]) == {"weight": i / 4, "name": f"n{i}"}
        assert sample["cls"] == str(i).encode()


def test_no_two_members_of_a_shard_have_one_name(tmp_path: Path) -> None:
    """Case 21: also where fields are called what members are."""
    note: dict[str, Any] = {"a": 1}
    samples = [{"note": note, "scalars": note, "json": note, "cls": note, "x": 1, "label": i} for i in range(3)]
    pack(samples, tmp_path / "out", to="tar", workers=1)
    with tarfile.open(tmp_path / "out/shards/00000.tar") as file:
        names = file.getnames()
    assert len(names) == len(set(names)) == 3 * 6
    assert len(web(tmp_path / "out")) == 3
    dataset = Dataset(tmp_path / "out")
    assert all(dataset[i]["scalars"] == note for i in range(3))


def test_a_long_field_name_is_kept_or_refused_by_name(tmp_path: Path) -> None:
    long = "a" * 120
    samples = [{"text": "x", long: "y" * 300} for _ in range(2)]
    try:
        pack(samples, tmp_path / "out", to="tar", workers=1)
    except DataError as error:
        assert long[:50] in str(error)  # noqa: PT017
        return
    dataset = Dataset(tmp_path / "out")
    assert dataset[1][long] == "y" * 300


def test_a_boolean_label_is_a_number_in_cls(tmp_path: Path) -> None:
    pack([{"text": "x", "label": i % 2 == 0} for i in range(4)], tmp_path / "out", to="tar", workers=1)
    assert [sample["cls"] for sample in web(tmp_path / "out")] == [b"1", b"0", b"1", b"0"]


@pytest.mark.skipif(shutil.which("tar") is None, reason="there is no tar command here")
def test_the_tar_command_lists_and_extracts_the_files(photos: Path, packed: Path, tmp_path: Path) -> None:
    files = sorted(photos.glob("*/*"))
    extracted: list[bytes] = []
    for path in shards(packed):
        target = tmp_path / path.stem
        target.mkdir()
        listed = subprocess.run(["tar", "tf", path], capture_output=True, text=True, check=True)
        done = subprocess.run(["tar", "xf", path, "-C", target], capture_output=True, text=True, check=True)
        assert listed.stderr == done.stderr == ""
        assert sorted(listed.stdout.split()) == sorted(p.name for p in target.iterdir())
        extracted += [p.read_bytes() for p in sorted(target.glob("*.jpg"))]
    assert extracted == [path.read_bytes() for path in files]


def test_a_shard_has_two_closing_blocks_and_no_slack(packed: Path) -> None:
    for path in shards(packed):
        with tarfile.open(path) as file:
            members = file.getmembers()
        assert all((m.mtime, m.uid, m.gid, m.uname, m.gname, m.mode) == (0, 0, 0, "", "", 0o644) for m in members)
        assert path.stat().st_size == sum(512 + -(-m.size // 512) * 512 for m in members) + 1024


def test_offsets_and_sizes_cover_the_data_of_the_members(packed: Path) -> None:
    dataset = Dataset(packed)
    table = np.load(packed / "columns/0/shards.npy")
    offsets, sizes = dataset.column("image.offset"), dataset.column("image.nbytes")
    for row in table:
        with tarfile.open(packed / row["name"].decode()) as file:
            members = [m for m in file.getmembers() if m.name.endswith(".jpg")]
        rows = slice(int(row["first"]), int(row["first"] + row["num_samples"]))
        assert offsets[rows].tolist() == [m.offset_data for m in members]
        assert sizes[rows].tolist() == [m.size for m in members]


def test_offsets_and_sizes_of_arrays_cover_their_elements(tmp_path: Path) -> None:
    arrays = [np.arange(3 * i, dtype=np.float32).reshape(i, 3) for i in range(5)]
    pack([{"boxes": array, "x": i} for i, array in enumerate(arrays)], tmp_path / "out", to="tar", workers=1)
    dataset = Dataset(tmp_path / "out")
    data = shards(tmp_path / "out")[0].read_bytes()
    for array, offset, size in zip(arrays, dataset.column("boxes.offset"), dataset.column("boxes.nbytes"), strict=True):
        assert data[offset : offset + size] == array.tobytes()


@pytest.mark.parametrize(("column", "value"), [("offset", 7), ("offset", -600), ("offset", 1 << 50), ("nbytes", 1 << 50), ("nbytes", -7)])
def test_a_damaged_column_of_places_is_an_error_of_the_shard(column: str, value: int, packed: Path, tmp_path: Path) -> None:
    shutil.copytree(packed, tmp_path / "out")
    path = tmp_path / f"out/columns/0/image.{column}.npy"
    places = np.load(path)
    places[1] = value
    np.save(path, places)
    with pytest.raises(DataError, match="sample 1 of"):
        Dataset(tmp_path / "out", fields=("image",))[1]


def test_something_else_where_a_member_should_be_is_named_with_its_offset(packed: Path, tmp_path: Path) -> None:
    """Case 63: sizes are equal, but another tar lies there."""
    shutil.copytree(packed, tmp_path / "out")
    path = shards(tmp_path / "out")[0]
    data = bytearray(path.read_bytes())
    offset = int(Dataset(packed).column("image.offset")[1])
    data[offset - 512 : offset - 512 + 100] = data[:100]
    data[offset - 512 + 124 : offset - 512 + 135] = b"%011o" % 7
    path.write_bytes(data)
    with pytest.raises(DataError, match=f"got 7, at offset {offset} of {path}"):
        Dataset(tmp_path / "out")[1]
    data[offset - 512 + 124] = 0x85
    path.write_bytes(data)
    with pytest.raises(DataError, match=f"got 85 30 .*, at offset {offset} of {path}"):
        Dataset(tmp_path / "out")[1]


def test_a_value_beyond_the_limit_of_a_header_is_refused_and_the_next_record_may_follow(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tar, "_MAX_NBYTES", 1000)
    field = Field("blob", "bytes")
    writer = tar.Writer(tmp_path / "00000.tar", "00000", (field,))
    with pytest.raises(DataError, match="got 1000 bytes, at field 'blob'; use --to mmap"):
        writer.append(Record("0", {"blob": Encoded(b"x" * 1000, "bin")}, {}))
    writer.append(Record("1", {"blob": Encoded(b"x" * 999, "bin")}, {}))
    assert {name: list(offsets) for name, offsets in writer.close().items()} == {"blob.offset": [512]}
    with tarfile.open(tmp_path / "00000.tar") as file:
        assert [(m.name, m.size) for m in file.getmembers()] == [("00000-000000.bin", 999)]


def test_offsets_beyond_32_bits_are_read(tmp_path: Path) -> None:
    """Case 40: a sparse file with a member at 5 GiB."""
    field = Field("blob", "bytes")
    at = 5 << 30
    header = tarfile.TarInfo("00000-000000.bin")
    header.size = 3
    with open(tmp_path / "00000.tar", "wb") as file:
        file.seek(at)
        file.write(header.tobuf(tarfile.USTAR_FORMAT) + b"abc".ljust(512, b"\0") + bytes(1024))
    columns = {"blob.offset": np.array([at + 512]), "blob.nbytes": np.array([3])}
    reader = tar.Reader(tmp_path / "00000.tar", (field,), 1, lambda name: columns[name])
    assert bytes(reader.read(field, np.array([0]))[0]) == b"abc"


def test_a_member_that_ends_early_is_named(tmp_path: Path, make_shards: Callable[..., Any]) -> None:
    field = Field("blob", "bytes")
    made = make_shards("tar", tmp_path / "out", (field,), [[{"blob": b"x" * 2000}]])
    path = made.paths()[0]
    path.write_bytes(path.read_bytes()[:1000])
    made.names = [[(made.names[0][0][0], 1000)]]
    with pytest.raises(ShardError, match=f"expected 2000 bytes, got 488, at offset 512 of {path}: the shard ends early"):
        made.open().read(field, np.array([0]))

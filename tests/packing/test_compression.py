"""`compress="zstd"`: other bytes in the store, and nothing else that anybody could tell."""

from __future__ import annotations

import io
import json
import os
import shutil
import subprocess
import sys
import tarfile
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from fastdata import DataLoader, Dataset, concat, info, registry, verify
from fastdata.dataset import Base
from fastdata.errors import ArgumentError, DataError, DatasetError
from fastdata.packing import pack

zstandard = pytest.importorskip("zstandard")

STORES = registry.names("fastdata.stores")
NUM = 24
COMPRESSED = ("text", "note", "boxes", "matrix", "blob")
DENSE = ("matrix", "row", "nothing")


def make_samples() -> list[dict[str, Any]]:
    """Every codec; sample 2 misses all that may be missing, and sample 5 has what is empty."""
    generator = np.random.default_rng(0)
    samples: list[dict[str, Any]] = [
        {
            "key": f"s/{i:02d}",
            "image": generator.integers(0, 256, (4, 5, 3), dtype=np.uint8),
            "text": f"Sample {i}: Zürich, 東京 \0\n" * (1 + 5 * i),
            "note": {"number": i, "list": [None, True, i / 4, "ß" * i]},
            "boxes": np.arange(4.0 * (i % 4)).reshape(-1, 4) - i,
            "matrix": (np.arange(600, dtype=np.int16) // 7 - i).reshape(20, 30),
            "blob": bytes([i]) * (20 * i),
            "weight": i / 8,
            "label": "abc"[i % 3],
        }
        for i in range(NUM)
    ]
    for name in ("image", "text", "note", "boxes", "blob"):
        samples[2][name] = None
    samples[5] |= {"text": "", "note": [], "boxes": np.zeros((0, 4)), "blob": b""}
    return samples


def make_arrays() -> dict[str, Any]:
    """Rows of one shape, among them one without elements."""
    return {
        "matrix": (np.arange(NUM * 600, dtype=np.int16) // 7).reshape(NUM, 20, 30),
        "row": np.arange(NUM * 3.0).reshape(NUM, 3),
        "nothing": np.zeros((NUM, 2, 0), dtype=np.uint8),
        "label": np.arange(NUM) % 3,
    }


Pairs = dict[str, tuple[Path, Path]]


@pytest.fixture(scope="module")
def packed(tmp_path_factory: pytest.TempPathFactory) -> Pairs:
    """The samples in every store, plain and compressed, in several shards; read only."""
    root = tmp_path_factory.mktemp("packed")
    for store in STORES:
        pack(make_samples(), root / store, to=store, shard_size=20_000, workers=1)
        pack(make_samples(), root / f"{store}-zstd", to=store, shard_size=20_000, workers=1, compress="zstd")
    return {store: (root / store, root / f"{store}-zstd") for store in STORES}


@pytest.fixture(scope="module")
def dense(tmp_path_factory: pytest.TempPathFactory) -> Pairs:
    """The arrays in every store, likewise."""
    root = tmp_path_factory.mktemp("dense")
    np.savez(root / "arrays.npz", **make_arrays())
    for store in STORES:
        pack(root / "arrays.npz", root / store, to=store, source_kind="npy", workers=1)
        pack(root / "arrays.npz", root / f"{store}-zstd", to=store, source_kind="npy", workers=1, compress="zstd")
    return {store: (root / store, root / f"{store}-zstd") for store in STORES}


@pytest.fixture(params=STORES)
def store(request: pytest.FixtureRequest) -> str:
    """The name of a store."""
    return str(request.param)


@pytest.fixture(params=["ragged", "dense"])
def pair(request: pytest.FixtureRequest, store: str, packed: Pairs, dense: Pairs) -> tuple[Path, Path]:
    """One store's dataset and its compressed twin."""
    return (packed if request.param == "ragged" else dense)[store]


def assert_same(a: Any, b: Any) -> None:
    """Equal in type, dtype, shape and value, through dicts and lists."""
    assert type(a) is type(b)
    if isinstance(a, dict):
        assert a.keys() == b.keys()
        for name in a:
            assert_same(a[name], b[name])
    elif isinstance(a, list):
        assert len(a) == len(b)
        for one, other in zip(a, b, strict=True):
            assert_same(one, other)
    elif isinstance(a, np.ndarray):
        assert (a.dtype, a.shape) == (b.dtype, b.shape)
        assert a.tolist() == b.tolist() if a.dtype == object else a.tobytes() == b.tobytes()
    elif hasattr(a, "numpy"):
        assert_same(a.numpy(), b.numpy())
    else:
        assert a == b


def batch_of(dataset: Base, indices: list[int]) -> Any:
    return dataset.__getitems__(indices).batch


# --- what is read is what was packed ---


def test_samples_and_batches_are_those_of_the_plain_dataset(pair: tuple[Path, Path]) -> None:
    plain, compressed = map(Dataset, pair)
    for i in range(NUM):
        assert_same(compressed[i], plain[i])
    for indices in ([], [3], [2], [7, 0, 2, 5, 7, 23], list(range(NUM))):
        assert_same(batch_of(compressed, indices), batch_of(plain, indices))


def test_batches_hold_what_was_packed(store: str, packed: Pairs, dense: Pairs) -> None:
    samples, arrays, chosen = make_samples(), make_arrays(), [7, 0, 5, 23, 7]
    batch = batch_of(Dataset(packed[store][1]), chosen)
    for name in COMPRESSED:
        assert_same(batch[name], [samples[i][name] for i in chosen])
    batch = batch_of(Dataset(dense[store][1]), chosen)
    for name in DENSE:
        assert_same(batch[name], arrays[name][chosen])


def test_views_concatenations_and_fields_are_those_of_the_plain_dataset(pair: tuple[Path, Path]) -> None:
    plain, compressed = map(Dataset, pair)
    for change in (
        lambda d: d.select([5, 5, -1, 2]),
        lambda d: d.filter(lambda c: c["label"] == 1),
        lambda d: concat([d, d.select([2, 3])]),
    ):
        assert_same(list(change(compressed)), list(change(plain)))
    mixed = concat([plain, compressed])
    assert_same(batch_of(mixed, [1, NUM + 1, 5, NUM + 5]), batch_of(plain, [1, 1, 5, 5]))
    for fields in (["matrix"], ["label"], ["index", plain.outputs[2], "key"], plain.outputs[::-1]):
        assert_same(list(Dataset(pair[1], fields)), list(Dataset(pair[0], fields)))


@pytest.mark.parametrize("start", ["fork", "spawn"])
def test_loaders_give_the_batches_of_the_plain_dataset(start: str, pair: tuple[Path, Path]) -> None:
    """Cases 64 and 65: also where this process has read before its workers do."""
    plain, compressed = (Dataset(path) for path in pair)
    batch_of(compressed, [0, 1])
    expected = list(DataLoader(plain, batch_size=5, shuffle=True, seed=3, num_workers=0))
    assert len(expected) == 5
    assert_same(list(DataLoader(compressed, batch_size=5, shuffle=True, seed=3, num_workers=0)), expected)
    loader = DataLoader(compressed, batch_size=5, shuffle=True, seed=3, num_workers=2, multiprocessing_context=start)
    assert_same(list(loader), expected)


def test_a_batch_of_compressed_arrays_is_no_mere_gather(store: str, dense: Pairs) -> None:
    plain, compressed = map(Dataset, dense[store])
    assert plain.is_gather
    assert not compressed.is_gather


TEXTS = st.text(st.characters(codec="utf-8"))
JSON_VALUES = st.recursive(
    st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | TEXTS,
    lambda inner: st.lists(st.none() | inner, max_size=3) | st.dictionaries(TEXTS, inner, max_size=3),
    max_leaves=8,
)


@settings(max_examples=6, deadline=None, database=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_whatever_is_packed_comes_back_and_keeps_its_fingerprint(store: str, tmp_path: Path, data: st.DataObject) -> None:
    dtype = data.draw(st.sampled_from(["bool", "int8", "uint16", "int64", "float16", "float64"]))
    trailing = tuple(data.draw(st.lists(st.integers(1, 3), max_size=2)))
    generator = np.random.default_rng(data.draw(st.integers(0, 99)))

    def array() -> Any:
        return generator.integers(0, 2, (data.draw(st.integers(0, 4)), *trailing)).astype(dtype)

    row = st.fixed_dictionaries({"text": st.none() | TEXTS, "note": st.none() | JSON_VALUES})
    samples = [{**one, "note": {"is": one["note"]}, "array": array()} for one in data.draw(st.lists(row, min_size=1, max_size=4))]
    samples[0] |= {"text": "text " * 50}
    for name in ("plain", "zstd"):
        pack(samples, tmp_path / name, to=store, workers=1, overwrite=True, compress=None if name == "plain" else name)
    plain, compressed = Dataset(tmp_path / "plain"), Dataset(tmp_path / "zstd")
    for i, sample in enumerate(samples):
        assert compressed[i]["text"] == sample["text"]
        assert compressed[i]["note"] == sample["note"]
        assert_same(compressed[i]["array"], sample["array"])
        assert_same(compressed[i], plain[i])
    assert compressed.fingerprint == plain.fingerprint
    assert np.array_equal(compressed.column("digest"), plain.column("digest"))


# --- what lies on disk ---


def test_fingerprint_digests_and_all_columns_but_those_of_the_store_are_equal(pair: tuple[Path, Path]) -> None:
    plain, compressed = map(Dataset, pair)
    assert compressed.fingerprint == plain.fingerprint
    names = COMPRESSED if "text" in plain.outputs else DENSE
    assert set(compressed.columns) == {*plain.columns, *(f"{name}.raw_nbytes" for name in names)}
    sizes = {f"{name}.nbytes" for name in names}
    for name in set(plain.columns) - sizes:
        if not name.endswith(".offset"):
            assert_same(compressed.column(name), plain.column(name))
    for name in names:
        before = plain.column(f"{name}.nbytes")
        assert np.array_equal(compressed.column(f"{name}.raw_nbytes"), before.clip(0))
        assert np.array_equal(compressed.column(f"{name}.nbytes") < 0, before < 0)


def test_pictures_and_scalars_are_not_compressed(pair: tuple[Path, Path]) -> None:
    """Case 17."""
    plain, compressed = (Dataset(path).manifest.fields for path in pair)
    names = {f.name for f in compressed if f.options.get("compress") == "zstd"}
    assert names == {f.name for f in plain if f.codec not in ("image", "scalar")}
    assert [f for f in compressed if f.name not in names] == [f for f in plain if f.name not in names]


def test_the_bytes_do_not_depend_on_workers(store: str, packed: Pairs, tmp_path: Path, contents: Callable[[Path], Any]) -> None:
    """Case 59."""
    pack(make_samples(), tmp_path / "out", to=store, shard_size=20_000, workers=2, compress="zstd")
    assert contents(tmp_path / "out") == contents(packed[store][1])


def test_a_tar_holds_files_that_any_tool_unpacks(packed: Pairs) -> None:
    samples = make_samples()
    unpack = zstandard.ZstdDecompressor().decompress
    seen = 0
    for path in sorted((packed["tar"][1] / "shards").iterdir()):
        with tarfile.open(path) as tar:
            for member in tar:
                name, _, extension = member.name.partition(".")
                sample = samples[seen + int(name.split("-")[1])]
                file = tar.extractfile(member)
                assert file
                data = file.read()
                if extension == "txt.zst":
                    assert unpack(data).decode() == sample["text"]
                elif extension == "json.zst":
                    assert json.loads(unpack(data)) == sample["note"]
                elif extension == "bin.zst":
                    assert unpack(data) == sample["blob"]
                elif extension.endswith(".npy.zst"):
                    assert_same(np.load(io.BytesIO(unpack(data))), sample[extension.removesuffix(".npy.zst")])
                else:
                    assert extension in ("npy", "cls", "scalars.json")
            seen += 1 + int(name.split("-")[1])
    assert seen == NUM


def test_webdataset_opens_the_tar(packed: Pairs) -> None:
    """Case 19."""
    shards = [str(path) for path in sorted((packed["tar"][1] / "shards").iterdir())]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the package's own
        import webdataset

        found = list(webdataset.WebDataset(shards, shardshuffle=False))
    assert len(found) == NUM
    for sample, expected in zip(found, make_samples(), strict=True):
        assert ("txt.zst" in sample) == (expected["text"] is not None)
        if expected["text"] is not None:
            assert zstandard.decompress(sample["txt.zst"]).decode() == expected["text"]
        assert_same(np.load(io.BytesIO(zstandard.decompress(sample["matrix.npy.zst"]))), expected["matrix"])


def test_info_tells_both_sizes(store: str, packed: Pairs) -> None:
    plain, compressed = (info(path)["fields"] for path in packed[store])
    for name in COMPRESSED:
        assert compressed[name]["compress"] == "zstd"
        assert compressed[name]["total_raw_nbytes"] == plain[name]["total_nbytes"]
        assert compressed[name]["raw_nbytes"] == plain[name]["nbytes"]
        assert "compress" not in plain[name]
    assert compressed["text"]["total_nbytes"] < plain["text"]["total_nbytes"] / 5
    assert "compress" not in compressed["image"]


# --- damage ---


def test_nothing_is_wrong_after_a_pack(pair: tuple[Path, Path]) -> None:
    for workers in (1, 2):
        assert verify(pair[1], workers=workers).problems == []


def test_a_flipped_byte_of_any_compressed_value_is_found_and_named(packed: Pairs, tmp_path: Path) -> None:
    """Case 63."""
    root = tmp_path / "out"
    shutil.copytree(packed["tar"][1], root)
    dataset = Dataset(root)
    shards = np.load(root / "columns/0/shards.npy")
    generator = np.random.default_rng(1)
    for name in COMPRESSED:
        index = 9
        row = shards[np.searchsorted(shards["first"], index, side="right") - 1]
        path = root / row["name"].decode()
        before = path.read_bytes()
        start, size = (int(dataset.column(f"{name}.{what}")[index]) for what in ("offset", "nbytes"))
        for at in {0, size - 1, *generator.integers(0, size, 6).tolist()}:
            damaged = bytearray(before)
            damaged[start + at] ^= 0x10
            path.write_bytes(damaged)
            problems = verify(root).problems
            assert any("checksum" in problem and str(path) in problem for problem in problems)
            decoded = [problem for problem in problems if f"field '{name}' of sample {index - int(row['first'])} of {path}" in problem]
            digests = [problem for problem in problems if "expected the digest" in problem]
            assert decoded or digests or dataset_is_unharmed(root, index)
        path.write_bytes(before)


def dataset_is_unharmed(root: Path, index: int) -> bool:
    """A frame has bits that mean nothing, and then the value is what it was."""
    sample = make_samples()[index]
    found = Dataset(root)[index]
    return all(np.array_equal(found[name], sample[name]) for name in COMPRESSED)


@pytest.mark.parametrize("form", ["ragged", "dense"])
def test_a_value_that_does_not_decompress_is_told_of_replaced_or_left_out(form: str, packed: Pairs, dense: Pairs, tmp_path: Path) -> None:
    """Cases 1 and 107: by shard, key and field."""
    root = tmp_path / "damaged"
    shutil.copytree((packed if form == "ragged" else dense)["tar"][1], root)
    dataset = Dataset(root)
    path = min((root / "shards").iterdir())
    data = bytearray(path.read_bytes())
    for index in (3, 4):
        start, size = (int(dataset.column(f"matrix.{what}")[index]) for what in ("offset", "nbytes"))
        data[start : start + size] = bytes(size)
    path.write_bytes(data)

    where = rf"at field 'matrix' of sample 3 of {path} \(key '.*3'\)"
    with pytest.raises(DataError, match=rf"expected a zstd frame of 1328 bytes, got .* {where}"):
        batch_of(Dataset(root), [2, 3, 4])
    matrices = [sample["matrix"] for sample in make_samples()] if form == "ragged" else make_arrays()["matrix"]
    shortened = Dataset(root, on_error="shorten").__getitems__([2, 3, 9])
    assert np.array_equal(np.stack(shortened.batch["matrix"]), np.stack([matrices[i] for i in (2, 9)]))
    assert len(shortened.errors) == 1
    replaced = Dataset(root, ["index", "matrix"], on_error="substitute").__getitems__([2, 3, 9])
    assert not {3, 4} & set(replaced.batch["index"].tolist())
    assert np.array_equal(np.stack(replaced.batch["matrix"]), np.stack([matrices[i] for i in replaced.batch["index"]]))


def test_columns_that_promise_too_much_are_a_data_error(store: str, packed: Pairs, tmp_path: Path) -> None:
    root = tmp_path / "out"
    shutil.copytree(packed[store][1], root)
    for size in (0, 2**60, -5):
        sizes = np.load(root / "columns/0/text.raw_nbytes.npy")
        sizes[9] = size
        np.save(root / "columns/0/text.raw_nbytes.npy", sizes)
        with pytest.raises(DataError, match=rf"expected a zstd frame of {size} bytes, got .* at field 'text'"):
            Dataset(root)[9]


def test_a_manifest_that_compresses_what_it_cannot_is_refused(packed: Pairs, tmp_path: Path) -> None:
    def change(edit: Callable[[dict[str, Any]], Any]) -> Path:
        root = tmp_path / "out"
        shutil.rmtree(root, ignore_errors=True)
        shutil.copytree(packed["mmap"][1], root)
        document = json.loads((root / "manifest.json").read_text())
        edit(document)
        (root / "manifest.json").write_text(json.dumps(document))
        return root

    with pytest.raises(ArgumentError, match=r"expected one of \['zstd', None\], got 'lz4', at option compress of field 'text'"):
        Dataset(change(lambda d: d["fields"]["text"]["options"].update(compress="lz4")))
    with pytest.raises(DatasetError, match=r"no column of 'text.raw_nbytes'"):
        Dataset(change(lambda d: d["columns"].pop("text.raw_nbytes")))
    with pytest.raises(DatasetError, match="a manifest that holds together"):
        Dataset(change(lambda d: d["fields"]["text"].update(options=None)))


# --- without the library ---


def without_the_library(code: str) -> list[str]:
    """Run code where importing zstandard fails."""
    head = "import sys; sys.modules['zstandard'] = None\nimport fastdata\n"
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])}
    ran = subprocess.run([sys.executable, "-c", head + code], capture_output=True, text=True, check=True, env=environment)
    return ran.stdout.splitlines()


def test_without_the_library_plain_datasets_work_and_compressed_ones_name_the_cure(packed: Pairs, tmp_path: Path) -> None:
    plain, compressed = packed["tar"]
    found = without_the_library(
        f"""
print(fastdata.Dataset({str(plain)!r})[7]["blob"] == bytes([7]) * 140)
print(fastdata.Dataset({str(compressed)!r}, ["image", "weight"])[7]["weight"])
for call in (
    lambda: fastdata.Dataset({str(compressed)!r}, ["text"])[7],
    lambda: fastdata.pack([{{"text": "a"}}], {str(tmp_path / "new")!r}, to="tar", compress="zstd", workers=1),
):
    try:
        call()
    except Exception as error:
        print(type(error).__name__, error)
"""
    )
    assert found[:2] == ["True", "0.875"]
    assert found[2].startswith(
        "DatasetError expected the package zstandard to decompress, got none; pip install 'fastdata-torch[compress]'"
    )
    assert found[3].startswith("ArgumentError expected the package zstandard to compress, got none; pip install 'fastdata-torch[compress]'")
    assert list(tmp_path.iterdir()) == []

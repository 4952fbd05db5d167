"""Single values as Zstandard frames: what goes in comes out, and damage is told of before memory is taken."""

from __future__ import annotations

import multiprocessing
import os
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fastdata.compression import compress, decompress
from fastdata.errors import DataError
from fastdata.types import Array

zstandard = pytest.importorskip("zstandard")

MAGIC = b"\x28\xb5\x2f\xfd"


def view(data: bytes) -> Array:
    return np.frombuffer(data, np.uint8)


def raw_frame(told: int, *pieces: bytes) -> bytes:
    """A frame that tells of `told` bytes and holds the pieces as they are, by the format's description (RFC 8878)."""
    blocks = [(len(piece) << 3 | (i == len(pieces) - 1)).to_bytes(3, "little") + piece for i, piece in enumerate(pieces)]
    return MAGIC + b"\xe0" + told.to_bytes(8, "little") + b"".join(blocks)


@given(st.binary(max_size=2000) | st.binary(max_size=20).map(lambda data: data * 5000))
@settings(max_examples=100, deadline=None, database=None)
def test_what_was_compressed_comes_back(data: bytes) -> None:
    frame = compress(data)
    assert decompress(view(frame), len(data)) == data
    assert compress(data) == frame


def test_a_frame_tells_its_size_and_has_neither_checksum_nor_dictionary() -> None:
    for data in (b"", b"a", b"ab" * 5000, bytes(200_000)):
        told = zstandard.get_frame_parameters(compress(data))
        assert (told.content_size, told.has_checksum, told.dict_id) == (len(data), False, 0)


def test_any_tool_unpacks_it() -> None:
    assert zstandard.decompress(compress(b"abc" * 100)) == b"abc" * 100


def test_frames_of_other_writers_with_the_right_size_are_read() -> None:
    for level in (1, 19):
        for checksum in (False, True):
            frame = zstandard.ZstdCompressor(level=level, write_checksum=checksum).compress(b"abc" * 1000)
            assert decompress(view(frame), 3000) == b"abc" * 1000
    assert decompress(view(raw_frame(6, b"abc", b"def")), 6) == b"abcdef"


@pytest.mark.parametrize(
    "frame",
    {
        "nothing": b"",
        "no frame": b"hello, I am text",
        "a header cut short": MAGIC + b"\xe0\0\0",
        "more than it tells": raw_frame(5, b"abcdef"),
        "less than it tells": raw_frame(5, b"abcd"),
        "something behind it": raw_frame(5, b"abcde") + b"x",
        "a second one behind it": raw_frame(5, b"abcde") * 2,
        "another size": raw_frame(6, b"abcdef"),
        "no end": raw_frame(5, b"abcde")[:-1],
        "no size": zstandard.ZstdCompressor(write_content_size=False).compress(b"abcde"),
    }.items(),
    ids=lambda item: item[0],
)
def test_a_frame_that_does_not_hold_what_was_packed_is_a_data_error(frame: tuple[str, bytes]) -> None:
    """Case 63."""
    with pytest.raises(DataError, match=r"^expected a zstd frame of 5 bytes, got \d+ bytes"):
        decompress(view(frame[1]), 5)


@pytest.mark.parametrize("frame", [raw_frame(0, b"abc"), compress(b"")[:-1], compress(b"")[:6], compress(b"") + b"x", compress(b"") * 2])
def test_an_empty_value_is_looked_at_too(frame: bytes) -> None:
    """Case 63: the library itself stops at a header that tells of nothing."""
    with pytest.raises(DataError, match=r"^expected a zstd frame of 0 bytes, got \d+ bytes"):
        decompress(view(frame), 0)


@pytest.mark.parametrize("size", [10**6, 2**40, 2**60])
def test_a_size_beyond_what_the_bytes_can_hold_takes_no_memory(size: int) -> None:
    """Frame and column may lie alike."""
    with pytest.raises(DataError, match=f"got 19 bytes that tell of {size}"):
        decompress(view(raw_frame(size, b"abc")), size)


def test_the_highest_ratio_that_zstd_reaches_is_read() -> None:
    data = bytes(10_000_000)
    assert decompress(view(compress(data)), len(data)) == data


def test_threads_compress_and_decompress_at_once() -> None:
    data = [np.random.default_rng(i).integers(0, 4, 50_000, dtype=np.uint8).tobytes() for i in range(8)]
    frames = [compress(one) for one in data]
    start = threading.Barrier(8)

    def work(i: int) -> bool:
        start.wait()
        return all(compress(data[i]) == frames[i] and decompress(view(frames[i]), len(data[i])) == data[i] for _ in range(20))

    with ThreadPoolExecutor(8) as pool:
        assert all(pool.map(work, range(8)))


def unpack(frame: bytes) -> bytes:
    return decompress(view(frame), 3000)


@pytest.mark.parametrize("method", ["fork", "spawn"])
def test_processes_work_on_after_this_one_has_compressed(method: str) -> None:
    frame = compress(b"abc" * 1000)
    assert unpack(frame) == b"abc" * 1000
    with multiprocessing.get_context(method).Pool(2) as pool:
        assert pool.map(compress, [b"abc" * 1000] * 4) == [frame] * 4
        assert pool.map(unpack, [frame] * 4) == [b"abc" * 1000] * 4


def test_without_the_library_both_ways_name_the_cure() -> None:
    code = """if True:
        import sys
        import numpy as np
        sys.modules["zstandard"] = None  # an import of it fails
        from fastdata import compression
        for call in (compression.load_library, lambda: compression.compress(b"a"), lambda: compression.decompress(np.zeros(9, np.uint8), 1)):
            try:
                call()
            except Exception as error:
                print(f"{type(error).__name__}: {error}")
    """
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[1])}
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, env=environment)
    cure = "got none; pip install 'fastdata-torch[compress]'"
    assert ran.stdout.splitlines() == [
        f"ArgumentError: expected the package zstandard to compress, {cure}",
        f"ArgumentError: expected the package zstandard to compress, {cure}",
        f"DatasetError: expected the package zstandard to decompress, {cure}",
    ]

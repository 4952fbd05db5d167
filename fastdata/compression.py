"""Compression of single values: each becomes one Zstandard frame, what the command `zstd` makes of a file.

The bytes depend on the data, the level and the version of the zstd library.
"""

from __future__ import annotations

import threading
from typing import Any

from fastdata.errors import ArgumentError, DataError, DatasetError, FastdataError
from fastdata.types import Array

METHODS = ("zstd",)
"""What the option `compress` of a field may say."""

_LEVEL = 3  # zstd's own default
_MAX_RATIO = 1 << 15  # of any frame: the smallest block has 4 bytes and holds at most 128 KiB


class _Tools(threading.local):
    """A compressor and a decompressor, made when first needed: threads may not share them.

    Of these a fork keeps those of the thread that forked, which was not using them then.
    """

    compressor: Any = None
    decompressor: Any = None


_tools = _Tools()


def load_library() -> None:
    """Import what compressing takes.

    Raises:
        ArgumentError: it is not there.
    """
    _library("compress", ArgumentError)


def _library(purpose: str, error: type[FastdataError]) -> Any:
    try:
        import zstandard
    except ImportError as missing:
        raise error(f"expected the package zstandard to {purpose}, got none; pip install 'fastdata-torch[compress]'") from missing
    return zstandard


def compress(data: bytes) -> bytes:
    """Compress into a frame that tells the size and has no checksum, since files and samples have theirs.

    Raises:
        ArgumentError: the library is missing.
    """
    if _tools.compressor is None:
        zstandard = _library("compress", ArgumentError)
        _tools.compressor = zstandard.ZstdCompressor(_LEVEL, write_content_size=True, write_checksum=False, write_dict_id=False)
    compressed: bytes = _tools.compressor.compress(data)
    return compressed


def decompress(data: Array, size: int) -> bytes:
    """Decompress one frame.

    Args:
        data: uint8 [n].
        size: in bytes, of what must come out; held against what the frame says and may hold before memory is taken.

    Raises:
        DataError: damaged, cut short, of another size, or with something behind it.
        DatasetError: the library is missing.
    """
    zstandard = _library("decompress", DatasetError)
    if _tools.decompressor is None:
        _tools.decompressor = zstandard.ZstdDecompressor()
    expected = f"expected a zstd frame of {size} bytes"
    try:
        told = zstandard.frame_content_size(data)
        if told != size or size > data.size * _MAX_RATIO:
            raise DataError(f"{expected}, got {data.size} bytes that tell of {told}")
        if size:
            raw: bytes = _tools.decompressor.decompress(data, allow_extra_data=False)
        else:
            # `decompress` looks no further than the header of a frame that says it is empty.
            frame = _tools.decompressor.decompressobj()
            raw = frame.decompress(data)
            if raw or frame.unused_data or not frame.eof:
                raise DataError(f"{expected}, got {data.size} bytes that hold more, or less than a frame")
    except zstandard.ZstdError as error:
        raise DataError(f"{expected}, got {data.size} bytes: {error}") from error
    return raw

"""Keys and values of an LMDB file: pictures, or bytes.

The library reads every value that a cursor passes, opens no file twice in a process, and trusts what it finds. So the tree of pages is walked
here, as LMDB 0.9 lays it out (mdb.c; 64 bit, little-endian), and a value is read from its place in the file.
"""

from __future__ import annotations

import os
import re
import struct
import zlib
from array import array
from collections import Counter
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import BinaryIO, NamedTuple

import numpy as np

from fastdata.errors import ArgumentError, DataError
from fastdata.pictures import HEAD_NBYTES, picture_format
from fastdata.sources import base
from fastdata.types import Field, Int64Array, Sample

PART_NBYTES = 1 << 20
"""Bytes of values that make a part: small beside a shard, large beside the cost of a part."""

PART_SAMPLES = 500
"""Samples of a part at most, since it carries their keys and places: some 30 KB."""

_PROBES = 8  # values that tell what all are
_MAX_DEPTH = 64  # of the tree: far above any, since each page leads to dozens
_HEADER = 16  # bytes of a page before its content
_NO_PAGE = 2**64 - 1
_MAX_PAGES = 2**47  # so that offsets fit int64
_META = re.compile(rb"__.*__|length|len|num-samples|num_samples|keys|meta|metadata", re.DOTALL)
_NUMBER = re.compile(rb"0|[1-9][0-9]{0,17}")
_IMAGE, _LABEL, _COUNT = b"image-", b"label-", b"num-samples"
_PICKLE = re.compile(rb"\x80[\x02-\x05].*\.", re.DOTALL)
# Caffe's message: channels, height, width and what it holds; or an encoded picture, behind its length.
_VARINT = rb"[\x80-\xff]{0,4}[\x00-\x7f]"
_DATUM = re.compile(rb"\x08%b\x10%b\x18%b[\x22\x28\x32\x35\x38]" % ((_VARINT,) * 3))
_ENCODED_DATUM = re.compile(rb"\x22%b" % _VARINT)


class _Entry(NamedTuple):
    """A key, and where its value is in the file."""

    key: bytes
    offset: int
    nbytes: int


class _Tree:
    """The unnamed database of a file, as its last transaction left it.

    Raises:
        DataError: it is no LMDB file, or cut short.
    """

    def __init__(self, file: BinaryIO) -> None:
        self._file, self.nbytes = file, os.fstat(file.fileno()).st_size
        first = self._meta(0)
        self._page_nbytes = first[0]
        if self._page_nbytes not in {1 << bits for bits in range(9, 17)}:
            raise DataError(f"expected pages of 512 to 65536 bytes, got {self._page_nbytes}")
        _, self._root, self.transaction = max(first, self._meta(self._page_nbytes), key=lambda meta: meta[2])

    def _meta(self, offset: int) -> tuple[int, int, int]:
        """Read one of the two pages that describe the file: size of its pages, root, number of the transaction."""
        data = self.read(offset + _HEADER, 136)
        if data[:8] != struct.pack("<II", 0xBEEFC0DE, 1):
            raise DataError(f"expected an LMDB file of version 1, got {data[:8].hex(' ')} at offset {offset + _HEADER}")
        (page_nbytes,), (root, _, transaction) = struct.unpack_from("<I", data, 24), struct.unpack_from("<QQQ", data, 112)
        return page_nbytes, root, transaction

    def read(self, offset: int, nbytes: int) -> bytes:
        """Read from a place.

        Raises:
            DataError: the file ends before.
        """
        if offset + nbytes <= self.nbytes:
            self._file.seek(offset)
            data = self._file.read(nbytes)
            if len(data) == nbytes:
                return data
        raise DataError(f"expected {nbytes} bytes at offset {offset}, got a file of {self.nbytes}: it is cut short")

    def entries(self) -> Iterator[_Entry]:
        """Walk over all keys in their order; values that have pages of their own are not read.

        Raises:
            DataError: a damaged page.
            ArgumentError: a named database, or several values of one key.
        """
        stack = [iter(() if self._root == _NO_PAGE else (self._root,))]
        left = self.nbytes // self._page_nbytes
        while stack:
            page = next(stack[-1], None)
            if page is None:
                stack.pop()
                continue
            offset, left = page * self._page_nbytes, left - 1
            data = self.read(offset, self._page_nbytes)
            kind, lower = struct.unpack_from("<HH", data, 10)
            if kind & 0x23 not in {1, 2} or left < 0 or len(stack) > _MAX_DEPTH:
                raise DataError(f"expected a page of keys, got one of kind {kind}, at offset {offset}")
            try:
                nodes = struct.unpack_from(f"<{(lower - _HEADER) // 2}H", data, _HEADER)
                if kind & 1:
                    stack.append(iter([low | high << 32 for low, high in (struct.unpack_from("<IH", data, at) for at in nodes)]))
                else:
                    yield from [self._entry(data, offset, at) for at in nodes]
            except struct.error as error:
                raise DataError(f"expected a page of keys, got {error}, at offset {offset}") from error

    def _entry(self, data: bytes, offset: int, at: int) -> _Entry:
        """Read one node of a leaf: sizes of value and key, flags, key, then the value or the number of its first page."""
        nbytes, flags, key_nbytes = struct.unpack_from("<IHH", data, at)
        start = at + 8 + key_nbytes
        key = data[at + 8 : start]
        if flags & 2:
            raise ArgumentError(
                f"expected keys and values, got a named database, {_text(key)!r}; copy it into a file of its own, without a name"
            )
        if flags & 4:
            raise ArgumentError(f"expected one value for each key, got several of {_text(key)!r}")
        if flags & 1:
            (page,) = struct.unpack_from("<Q", data, start)
            if page >= _MAX_PAGES:
                raise DataError(f"expected a value inside of the file, got page {page}, at offset {offset + start}")
            return _Entry(key, page * self._page_nbytes + _HEADER, nbytes)
        return _Entry(key, offset + start, nbytes)


def _text(key: bytes) -> str:
    """Make a key a string that loses nothing."""
    return key.decode("utf-8", "surrogateescape")


class Source(base.Source):
    """Values of an LMDB file, or of the data.mdb in a folder, by their keys. A part is some of them.

    Values are pictures where most of the first are, else bytes. The keys `image-...` and `label-...` beside `num-samples`, as corpora of text
    recognition have them, are pictures and their strings. Keys that all are numbers without leading zeros come in the order of the numbers,
    for which 24 bytes of each are remembered, others by their bytes. Meta keys such as `__len__` and `length` are ignored and counted. Only
    a file's unnamed database is read, and nothing is written or locked: nobody else should write meanwhile.
    """

    @classmethod
    def recognises(cls, path: Path) -> bool:
        """Say whether it is a file named .lmdb or .mdb, or a folder with a data.mdb."""
        return (path / "data.mdb").is_file() if path.is_dir() else path.suffix.lower() in {".lmdb", ".mdb"}

    def __init__(self, path: Path) -> None:
        super().__init__(path)
        self._path = os.fspath(path / "data.mdb" if path.is_dir() else path)
        base.require(os.path.isfile(self._path), f"expected a folder with a data.mdb, got none, at {path}")
        self._stamp = base.stamp(self._path)
        self._numbered: Int64Array | None = None
        self._paired = False
        try:
            with open(self._path, "rb") as file:
                tree = _Tree(file)
                self._look_through(tree)
                self.fields = self._told_fields(tree)
        except (ArgumentError, DataError) as error:
            raise ArgumentError(f"{error}, at {self._path}") from error
        except OSError as error:
            raise ArgumentError(f"expected a file that can be read, got {error.strerror}, at {self._path}") from error

    def _look_through(self, tree: _Tree) -> None:
        """Walk over all keys: how they are ordered, what is ignored, which values are cut off."""
        numbers: array[int] | None = array("q")
        counted: _Entry | None = None
        has_images, cut_off = False, 0
        for entry in tree.entries():
            key, offset, nbytes = entry
            cut_off += offset + nbytes > tree.nbytes
            if _META.fullmatch(key):
                counted = entry if key == _COUNT else counted
                self.ignored["meta keys"] += 1
                continue
            has_images |= key.startswith(_IMAGE)
            if numbers is not None and _NUMBER.fullmatch(key):
                numbers.extend((int(key), offset, nbytes))
            else:
                numbers = None
        if cut_off:
            self.trouble = f"expected values inside of the file, got {cut_off} that are cut off, at {self._path}"
        if numbers:
            found = np.frombuffer(numbers, np.int64).reshape(-1, 3)
            self._numbered = found[np.argsort(found[:, 0])]
        if counted is not None and has_images:
            self._paired = True
            num, told = sum(1 for _ in self._samples(tree, self.ignored)), tree.read(counted.offset, counted.nbytes)
            if told.strip() != b"%d" % num:
                self.warnings.append(f"{_text(_COUNT)} is {base.short(told)}, but there are {num} pictures; all of them are taken")

    def _samples(self, tree: _Tree, ignored: Counter[str]) -> Iterator[tuple[_Entry, _Entry | None]]:
        """List values, of pairs with the label."""
        if self._numbered is not None:
            for number, offset, nbytes in map(np.ndarray.tolist, self._numbered):
                yield _Entry(b"%d" % number, offset, nbytes), None
        elif not self._paired:
            for entry in tree.entries():
                if not _META.fullmatch(entry.key):
                    yield entry, None
        else:
            # Both are in the order of what follows their prefix, so two walks go side by side.
            labels = (entry for entry in tree.entries() if entry.key.startswith(_LABEL))
            label, unused = next(labels, None), 0
            for entry in tree.entries():
                if entry.key.startswith(_IMAGE):
                    wanted = _LABEL + entry.key.removeprefix(_IMAGE)
                    while label is not None and label.key < wanted:
                        label = next(labels, None)
                    found = label if label is not None and label.key == wanted else None
                    unused -= found is not None
                    yield entry, found
                elif entry.key.startswith(_LABEL):
                    unused += 1
                elif not _META.fullmatch(entry.key):
                    ignored["keys of neither picture nor label"] += 1
            if unused:
                ignored["labels without a picture"] += unused

    def _told_fields(self, tree: _Tree) -> tuple[Field, ...]:
        """Tell from the first values what all are.

        Raises:
            ArgumentError: none, or in a form that is not read.
        """
        pictures, values = 0, 0
        for entry, _ in islice(self._samples(tree, Counter()), _PROBES):
            try:
                value = tree.read(entry.offset, entry.nbytes)
            except DataError:  # cut off: an error of its sample
                continue
            where = f"at key {_text(entry.key)!r}"
            cure = "make them files of pictures, or pack from Python what reads them"
            base.require(
                not _PICKLE.fullmatch(value), f"expected pictures or bytes, got pickles, which are never unpickled, {where}; {cure}"
            )
            encoded = _ENCODED_DATUM.match(value)
            is_datum = _DATUM.match(value) or (encoded and picture_format(value[encoded.end() : encoded.end() + HEAD_NBYTES]))
            base.require(not is_datum, f"expected pictures or bytes, got messages of Caffe (Datum), {where}; {cure}")
            pictures, values = pictures + (picture_format(value) is not None), values + 1
        base.require(values > 0, "expected keys with values, got none")
        field = base.picture_field("image") if 2 * pictures > values else Field("value", "bytes")
        return (field, Field("label", "scalar", "str")) if self._paired else (field,)

    def parts(self) -> Iterator[base.Part]:
        """List groups of samples; `detail` is where they are, with their keys."""
        group: list[tuple[_Entry, _Entry | None]] = []
        number = nbytes = crc = 0
        with open(self._path, "rb") as file:
            tree = _Tree(file)
            for entry, label in self._samples(tree, Counter()):
                group.append((entry, label))
                nbytes += entry.nbytes + (label.nbytes if label else 0)
                crc = zlib.crc32(b"%d %d %b" % (entry.nbytes, label.nbytes if label else -1, entry.key), crc)
                if nbytes >= PART_NBYTES or len(group) == PART_SAMPLES:
                    yield self._part(tree, number, nbytes, crc, group)
                    number, nbytes, crc, group = number + len(group), 0, 0, []
            if group:
                yield self._part(tree, number, nbytes, crc, group)

    @staticmethod
    def _part(tree: _Tree, number: int, nbytes: int, crc: int, group: list[tuple[_Entry, _Entry | None]]) -> base.Part:
        # Values that change keep their size often, but not the number of the file's last transaction.
        return base.Part(f"{number} {crc:08x} {tree.transaction}", nbytes, number, tuple(group), len(group))

    def read(self, part: base.Part) -> Iterator[base.Drawn]:
        """Read values from their places.

        Raises:
            DataError: the file has changed since it was opened.
        """
        base.check_stamp(self._path, self._stamp)
        with open(self._path, "rb") as file:
            tree = _Tree(file)
            for entry, label in part.detail:
                key, notes = _text(entry.key), tuple[str, ...]()
                sample: Sample | DataError
                try:
                    value = tree.read(entry.offset, entry.nbytes)
                    text = None if label is None else base.decode_text(tree.read(label.offset, label.nbytes), "label")
                    sample = {field.name: text if field.name == "label" else value for field in self.fields}
                    if self.fields[0].codec == "image" and base.is_picture(key):
                        notes = base.misnamed(key, value)
                except DataError as error:
                    sample = error
                nbytes = entry.nbytes + (label.nbytes if label else 0)
                yield base.Drawn(key, f"{self._path}[{key!r}]", nbytes, sample, notes)

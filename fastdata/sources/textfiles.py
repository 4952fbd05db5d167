"""A folder of .txt files at any depth, or one .txt: a document per file, per line or per block of lines."""

from __future__ import annotations

import io
import os
from collections import Counter
from collections.abc import Iterator
from itertools import chain
from pathlib import Path
from typing import BinaryIO

from fastdata.errors import DataError
from fastdata.sources import base
from fastdata.types import Field, Sample

PART_NBYTES = 1 << 20
"""Bytes of a file whose lines or blocks make a part: small beside a shard, large beside the search for a place to cut."""

PIECE_NBYTES = 1 << 16
"""Bytes that a search for a place to cut reads at a time, since a line may be as long as the file."""

DOCUMENTS = ("block", "file", "line")


def _is_text(name: str) -> bool:
    return name.lower().endswith(".txt")


class Source(base.Source):
    """Documents in strict UTF-8, in the order of their paths' bytes. A byte order mark at the start of a file is dropped, NUL bytes stay.

    Hidden and system files and folders are ignored unless `hidden`. `documents` says what a document is:

    - "file": a file, which is a part. White space is kept as it is, also where a document is nothing else; a file without any text is an
      error of its sample.
    - "line": a line without its end, LF or CRLF. A part is a range of about a mebibyte, cut at line ends.
    - "block": lines up to a blank one, without the last line's end. A part is a range, cut at blank lines.

    Of lines and blocks, the key is the path and where in the file the document starts, in bytes from 0: `a/b.txt:4096`. There, lines of
    nothing but ASCII white space are blank: they separate, and are in no document.
    """

    options = frozenset({"documents", "hidden"})
    fields = (Field("text", "text"),)

    @classmethod
    def recognises(cls, path: Path) -> bool:
        """Say whether it is a .txt, or a folder with one and no picture."""
        if not path.is_dir():
            return _is_text(path.name)
        return not base.holds(os.fspath(path), base.is_picture) and base.holds(os.fspath(path), _is_text)

    def __init__(self, path: Path, documents: str = "file", hidden: bool = False) -> None:
        super().__init__(path)
        base.require(documents in DOCUMENTS, f"expected one of {list(DOCUMENTS)}, got {documents!r}, at --documents")
        self._root = os.fspath(path if path.is_dir() else path.parent)
        self._file = None if path.is_dir() else path.name
        self._documents, self._hidden = documents, hidden
        found = base.holds(self._root, _is_text, hidden=hidden) if self._file is None else _is_text(self._file)
        base.require(found, f"expected .txt files, got none, at {path}")

    def parts(self) -> Iterator[base.Part]:
        """List the files, or ranges of them; of these, `detail` is the file, its size, start and stop in bytes."""
        number, ignored = 0, Counter[str]()
        if self._file is None:
            files = base.walk(self._root, ignored, hidden=self._hidden)
        else:
            files = iter([(self._file, os.stat(os.path.join(self._root, self._file)).st_size)])
        for name, nbytes in files:
            if not _is_text(name):
                ignored["files that are not .txt"] += 1
            elif self._documents == "file":
                yield base.Part(name, nbytes, number)
                number += 1
            else:
                for start, stop in self._ranges(name, nbytes):
                    title = f"{name}:{start}-{stop} by {self._documents}"
                    yield base.Part(title, stop - start, number, (name, nbytes, start, stop), None)
                    number += 1
        self.ignored = ignored

    def _ranges(self, name: str, nbytes: int) -> Iterator[tuple[int, int]]:
        """Cut a file where documents start; at least one range, which tells what is wrong with a file that cannot be read."""
        start = 0
        if nbytes > PART_NBYTES:
            try:
                with open(os.path.join(self._root, name), "rb") as file:
                    while nbytes - start > PART_NBYTES:
                        stop = self._next_start(file, start + PART_NBYTES)
                        yield start, stop
                        start = stop
            except OSError:
                pass
        if start < nbytes or not nbytes:
            yield start, nbytes

    def _next_start(self, file: BinaryIO, position: int) -> int:
        """Find the first place from `position` on that follows a line end, or a blank line behind one; else the end."""
        file.seek(position - 1)
        whole, blank = False, True
        while piece := file.readline(PIECE_NBYTES):
            blank = blank and piece.isspace()
            if piece.endswith(b"\n"):
                if self._documents == "line" or (whole and blank):
                    break
                whole, blank = True, True
        return file.tell()

    def read(self, part: base.Part) -> Iterator[base.Drawn]:
        """Read one file, or the documents in one range.

        Raises:
            DataError: a file has another size than when it was listed.
        """
        if self._documents == "file":
            yield base.draw_file(self._root, part, self._sample)
            return
        name, nbytes, start, stop = part.detail
        path = os.path.join(self._root, name)
        try:
            with open(path, "rb") as file:
                size = os.fstat(file.fileno()).st_size
                file.seek(start)
                data = file.read(stop - start)
        except OSError as error:
            yield base.Drawn(f"{name}:{start}", path, part.nbytes, base.unreadable(path, error))
            return
        if size != nbytes:
            raise DataError(f"expected the file that was listed, {nbytes} bytes, got one of {size}, at {path}")
        for position, document in self._split(data, start):
            key, origin = f"{name}:{position}", f"{path}, byte {position}"
            try:
                text = base.decode_text(document.removesuffix(b"\r\n" if document.endswith(b"\r\n") else b"\n"), "document")
            except DataError as error:
                yield base.Drawn(key, origin, len(document), error)
            else:
                yield base.Drawn(key, origin, len(document), {"text": text})

    @staticmethod
    def _sample(data: bytes) -> Sample:
        text = base.decode_text(data, "file").removeprefix("\ufeff")
        if not text:
            raise DataError("expected a text, got an empty file (a byte order mark alone)")
        return {"text": text}

    def _split(self, data: bytes, position: int) -> Iterator[tuple[int, bytes]]:
        """Yield place in the file and bytes, with the last line's end, of the documents in a range that starts at `position`."""
        if not position and data.startswith(base.BOM):
            data, position = data.removeprefix(base.BOM), len(base.BOM)
        lines: list[bytes] = []
        for line in chain(io.BytesIO(data), [b""]):  # the end separates, too
            blank = not line.strip()
            if lines and (blank or self._documents == "line"):
                document = b"".join(lines)
                yield position - len(document), document
                lines = []
            if not blank:
                lines.append(line)
            position += len(line)

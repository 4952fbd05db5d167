"""A folder of .txt files at any depth, or one .txt: a document per file."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

from fastdata.errors import DataError
from fastdata.sources import base
from fastdata.types import Field, Sample


def _is_text(name: str) -> bool:
    return name.lower().endswith(".txt")


class Source(base.Source):
    """Documents in strict UTF-8, in the order of their paths' bytes. A part is a file.

    A byte order mark at the start is dropped. White space and NUL bytes are kept as they are, also where a document is nothing else; a file
    without any text is an error of its sample.
    """

    fields = (Field("text", "text"),)

    @classmethod
    def recognises(cls, path: Path) -> bool:
        """Say whether it is a .txt, or a folder with one and no picture."""
        if not path.is_dir():
            return _is_text(path.name)
        found = False
        for name, _ in base.walk(os.fspath(path), Counter()):
            if base.is_picture(name):
                return False
            found |= _is_text(name)
        return found

    def __init__(self, path: Path) -> None:
        super().__init__(path)
        self._root = os.fspath(path if path.is_dir() else path.parent)
        self._file = None if path.is_dir() else path.name
        base.require(any(_is_text(name) for name, _ in self._files(Counter())), f"expected .txt files, got none, at {path}")

    def _files(self, ignored: Counter[str]) -> Iterator[tuple[str, int]]:
        if self._file is None:
            return base.walk(self._root, ignored)
        return iter([(self._file, os.stat(os.path.join(self._root, self._file)).st_size)])

    def parts(self) -> Iterator[base.Part]:
        """List the files."""
        number, ignored = 0, Counter[str]()
        for name, nbytes in self._files(ignored):
            if _is_text(name):
                yield base.Part(name, nbytes, number)
                number += 1
            else:
                ignored["files that are not .txt"] += 1
        self.ignored = ignored

    def read(self, part: base.Part) -> Iterator[base.Drawn]:
        """Read one document."""
        yield base.draw_file(self._root, part, self._sample)

    @staticmethod
    def _sample(data: bytes) -> Sample:
        text = base.decode_text(data, "file").removeprefix("\ufeff")
        if not text:
            raise DataError("expected a text, got an empty file (a byte order mark alone)")
        return {"text": text}

"""A folder of pictures without labels, at any depth."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

from fastdata.sources import base
from fastdata.types import Field


class Source(base.Source):
    """Every picture below a folder, in the order of their paths' bytes. A part is a picture.

    Hidden and system files and folders are ignored unless `hidden`.
    """

    options = frozenset({"hidden"})
    fields = (Field("image", "image"),)

    @classmethod
    def recognises(cls, path: Path) -> bool:
        """Say whether there is a picture right in the folder."""
        return path.is_dir() and any(map(base.is_picture, base.entries(os.fspath(path), "", Counter())))

    def __init__(self, path: Path, hidden: bool = False) -> None:
        super().__init__(path)
        self._root, self._hidden = os.fspath(path), hidden
        base.require(path.is_dir(), f"expected a folder of pictures, got a file, at {path}")
        base.require(base.holds(self._root, base.is_picture, hidden=hidden), f"expected pictures, got none, at {path}")

    def parts(self) -> Iterator[base.Part]:
        """List the pictures."""
        number, ignored = 0, Counter[str]()
        for name, nbytes in base.walk(self._root, ignored, hidden=self._hidden):
            if base.is_picture(name):
                yield base.Part(name, nbytes, number)
                number += 1
            else:
                ignored["files that are not pictures"] += 1
        self.ignored = ignored

    def read(self, part: base.Part) -> Iterator[base.Drawn]:
        """Read one picture's bytes."""
        yield base.draw_file(self._root, part, lambda data: {"image": data})

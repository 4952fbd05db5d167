"""A folder of pictures without labels, at any depth."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

from fastdata.sources import base
from fastdata.types import Field


class Source(base.Source):
    """Every picture below a folder, in the order of their paths' bytes. A part is a picture."""

    fields = (Field("image", "image"),)

    @classmethod
    def recognises(cls, path: Path) -> bool:
        """Say whether there is a picture right in the folder."""
        return path.is_dir() and any(base.is_picture(name) and not base.is_hidden(name) for name in os.listdir(path))

    def __init__(self, path: Path) -> None:
        super().__init__(path)
        self._root = os.fspath(path)
        base.require(path.is_dir(), f"expected a folder of pictures, got a file, at {path}")
        base.require(any(base.is_picture(name) for name, _ in base.walk(self._root, Counter())), f"expected pictures, got none, at {path}")

    def parts(self) -> Iterator[base.Part]:
        """List the pictures."""
        number, ignored = 0, Counter[str]()
        for name, nbytes in base.walk(self._root, ignored):
            if base.is_picture(name):
                yield base.Part(name, nbytes, number)
                number += 1
            else:
                ignored["files that are not pictures"] += 1
        self.ignored = ignored

    def read(self, part: base.Part) -> Iterator[base.Drawn]:
        """Read one picture's bytes."""
        yield base.draw_file(self._root, part, lambda data: {"image": data})

"""A folder of class folders of pictures, as torchvision's ImageFolder reads it."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

from fastdata.sources import base
from fastdata.types import Field

_SPLITS = {"train", "training", "val", "valid", "validation", "test", "testing", "dev", "eval"}


def _has_picture(root: str, name: str) -> bool:
    return name.endswith("/") and any(base.is_picture(file) for file, _ in base.walk(root, Counter(), name))


class Source(base.Source):
    """Pictures with the class folder that they are in, at any depth below it. A part is a picture.

    Classes are the visible folders that hold a picture, sorted by the bytes of their names, and label i is `classes[i]`. Samples come
    class by class, then by the bytes of their paths. Pictures beside the class folders have no class: they are counted in `ignored`.
    """

    fields = (Field("image", "image"), Field("label", "scalar", "int64", options={"classes": True}))

    @classmethod
    def recognises(cls, path: Path) -> bool:
        """Say whether there is a picture in a sub-folder."""
        return path.is_dir() and any(_has_picture(os.fspath(path), name) for name in base.listing(os.fspath(path), "", Counter()))

    def __init__(self, path: Path) -> None:
        super().__init__(path)
        self._root = os.fspath(path)
        base.require(path.is_dir(), f"expected a folder of class folders, got a file, at {path}")
        folders = [name for name in base.listing(self._root, "", Counter()) if name.endswith("/")]
        filled = {name for name in folders if _has_picture(self._root, name)}
        base.require(bool(filled), f"expected pictures in class folders, got none in {len(folders)} folders, at {path}")
        self.classes = tuple(sorted((name[:-1] for name in filled), key=os.fsencode))
        empty = [name[:-1] for name in folders if name not in filled]
        if empty:
            self.warnings.append(f"{len(empty)} folders without pictures are not classes: {base.few(empty, len(empty))}")
        if {name.lower() for name in self.classes} <= _SPLITS:
            self.warnings.append(
                f"class folders are named as splits are: {base.few(self.classes, len(self.classes))}; pack each on its own"
            )
        if all(name.isascii() and name.isdigit() for name in self.classes) and [*map(int, self.classes)] != [*range(len(self.classes))]:
            label, name = next((label, name) for label, name in enumerate(self.classes) if label != int(name))
            self.warnings.append(
                f"class folders are numbers but labels are not: folder {name!r} has label {label}; labels follow the names as text"
            )

    def parts(self) -> Iterator[base.Part]:
        """List the pictures; `detail` is the label."""
        number, ignored = 0, Counter[str]()
        for name in base.listing(self._root, "", ignored):
            if not name.endswith("/"):
                ignored["pictures outside class folders" if base.is_picture(name) else "files that are not pictures"] += 1
        for label, name in enumerate(self.classes or ()):
            for file, nbytes in base.walk(self._root, ignored, f"{name}/"):
                if base.is_picture(file):
                    yield base.Part(file, nbytes, number, label)
                    number += 1
                else:
                    ignored["files that are not pictures"] += 1
        self.ignored = ignored

    def read(self, part: base.Part) -> Iterator[base.Drawn]:
        """Read one picture's bytes."""
        yield base.draw_file(self._root, part, lambda data: {"image": data, "label": part.detail})

"""A folder of class folders of pictures, as torchvision's ImageFolder reads it."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path

from fastdata.sources import base
from fastdata.types import Field

_SPLITS = {"train", "training", "val", "valid", "validation", "test", "testing", "dev", "eval"}


class Source(base.Source):
    """Pictures with the class folder that they are in, at any depth below it. A part is a picture.

    Classes are the folders that hold a picture, sorted by the bytes of their names, or as a table of classes has them, which may name
    more; label i is `classes[i]`. Samples come class by class, then by the bytes of their paths. Pictures beside the class folders have
    no class: they are counted in `ignored`. So are hidden and system files and folders, unless `hidden`.
    """

    options = frozenset({"hidden"})
    fields = (Field("image", "image"), Field("label", "scalar", "int64", options={"classes": True}))

    @classmethod
    def recognises(cls, path: Path) -> bool:
        """Say whether there is a picture in a sub-folder."""
        root = os.fspath(path)
        folders = (name for name in base.entries(root, "", Counter()) if name.endswith("/"))
        return path.is_dir() and any(base.holds(root, base.is_picture, folder) for folder in folders)

    def __init__(self, path: Path, hidden: bool = False) -> None:
        super().__init__(path)
        self._root, self._hidden = os.fspath(path), hidden
        base.require(path.is_dir(), f"expected a folder of class folders, got a file, at {path}")
        self._folders = [name[:-1] for name in base.listing(self._root, "", Counter(), hidden) if name.endswith("/")]
        filled = [name for name in self._folders if base.holds(self._root, base.is_picture, f"{name}/", hidden)]
        base.require(bool(filled), f"expected pictures in class folders, got none in {len(self._folders)} folders, at {path}")
        self.classes = tuple(sorted(filled, key=os.fsencode))  # not in the order of paths, where cat-a/ comes before cat/
        self._warn("labels follow the names as text")

    def name_classes(self, classes: Sequence[str]) -> None:
        super().name_classes(classes)
        self._warn("labels follow the table that was given")

    def _warn(self, order: str) -> None:
        """Say what of the classes may not be meant."""
        classes, self.warnings = self.classes or (), []
        named = set(classes)
        if empty := [name for name in self._folders if name not in named]:
            self.warnings.append(f"{len(empty)} folders without pictures are not classes: {base.few(empty, len(empty))}")
        if {name.lower() for name in classes} <= _SPLITS:
            self.warnings.append(f"class folders are named as splits are: {base.few(classes, len(classes))}; pack each on its own")
        others = [(name, label) for label, name in enumerate(classes) if (name.lstrip("0") or "0") != str(label)]
        if others and all(name.isascii() and name.isdigit() for name in classes):
            name, label = others[0]
            self.warnings.append(f"class folders are numbers but labels are not: folder {name!r} has label {label}; {order}")

    def parts(self) -> Iterator[base.Part]:
        """List the pictures; `detail` is the label."""
        number, ignored = 0, Counter[str]()
        for name in base.entries(self._root, "", ignored, self._hidden):
            if not name.endswith("/"):
                ignored["pictures outside class folders" if base.is_picture(name) else "files that are not pictures"] += 1
        folders = set(self._folders)
        for label, name in enumerate(self.classes or ()):
            for file, nbytes in base.walk(self._root, ignored, f"{name}/", self._hidden) if name in folders else ():
                if base.is_picture(file):
                    yield base.Part(file, nbytes, number, label)
                    number += 1
                else:
                    ignored["files that are not pictures"] += 1
        self.ignored = ignored

    def read(self, part: base.Part) -> Iterator[base.Drawn]:
        """Read one picture's bytes."""
        yield base.draw_file(self._root, part, lambda data: {"image": data, "label": part.detail})

"""What the keywords of `pack()` mean, checked before anything is read."""

from __future__ import annotations

import json
import math
import os
import re
from collections import Counter
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from fastdata import manifest as manifests
from fastdata import registry
from fastdata.codecs import open_codec
from fastdata.compression import METHODS
from fastdata.errors import ArgumentError
from fastdata.pictures import MAX_PIXELS
from fastdata.sources.base import short
from fastdata.types import Field

_IMAGE_FORMS = ("jpeg", "keep", "png", "raw")
_UNITS = {
    "": 1,
    "B": 1,
    "KB": 10**3,
    "MB": 10**6,
    "GB": 10**9,
    "TB": 10**12,
    "KIB": 1 << 10,
    "MIB": 1 << 20,
    "GIB": 1 << 30,
    "TIB": 1 << 40,
}
_MAX_CLASSES_NBYTES = 64 << 20  # of a file with names of classes: far above any, far below memory


def usable_cpus() -> int:
    """CPUs that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def check_choices(to: str, image: str, on_error: str, compress: str | None, workers: int | None, quality: int | None) -> int:
    """Refuse what no pack can mean; give the number of workers."""
    for value, known, where in (
        (to, registry.names("fastdata.stores"), "--to"),
        (image, _IMAGE_FORMS, "--image"),
        (on_error, ("raise", "skip"), "--on-error"),
        (compress, (None, *METHODS), "--compress"),
    ):
        if value not in known:
            raise ArgumentError(f"expected one of {[name for name in known if name]}, got {value!r}, at {where}")
    if workers is not None and workers < 1:
        raise ArgumentError(f"expected at least 1, got {workers}, at --workers")
    if quality is not None and not 1 <= quality <= 100:
        raise ArgumentError(f"expected 1 to 100, got {quality}, at --quality")
    return workers or usable_cpus()


def parse_nbytes(value: int | str, where: str) -> int:
    """Read a size such as 1000, "256MB" (10^6) or "1GiB" (2^30).

    Raises:
        ArgumentError: it is none, or not positive.
    """
    match = re.fullmatch(r"(\d+(?:\.\d+)?)\s*([A-Za-z]*)", str(value).strip())
    known = match is not None and match[2].upper() in _UNITS and len(match[1]) < 30
    size = int(float(match[1]) * _UNITS[match[2].upper()]) if match and known else 0
    if size < 1:
        raise ArgumentError(f"expected a size such as 256MB or 1GiB, got {value!r}, at {where}")
    return size


def parse_part(value: str | None) -> tuple[int, int] | None:
    """Read "3/16": the third of sixteen parts, counted from 1.

    Raises:
        ArgumentError: it is none.
    """
    if value is None:
        return None
    match = re.fullmatch(r"(\d{1,6})/(\d{1,6})", value)
    if not match or not 1 <= int(match[1]) <= int(match[2]):
        raise ArgumentError(f"expected a part such as 3/16, counted from 1, got {value!r}, at --part")
    return int(match[1]), int(match[2])


def parse_max_errors(value: int | str | None, on_error: str) -> tuple[int | None, float | None]:
    """Read a limit such as 100 or "0.5%": a number of bad samples, or a percentage; the other one is None.

    Raises:
        ArgumentError: it is none, or nothing is skipped anyway.
    """
    if value is None:
        return None, None
    if on_error != "skip":
        raise ArgumentError("expected --on-error skip beside --max-errors, got raise, which stops at the first bad sample")
    match = re.fullmatch(r"(\d{1,18})|(\d{1,3}(?:\.\d{1,9})?)%", str(value).strip())
    percent = float(match[2]) if match and match[2] else None
    if not match or (percent is not None and percent > 100):
        raise ArgumentError(f"expected a number of samples such as 100, or a share such as 0.5%, got {value!r}, at --max-errors")
    return (int(match[1]), None) if match[1] else (None, percent)


def max_rejects(limit: tuple[int | None, float | None], num_samples: int | None) -> int | None:
    """Say how many bad samples a source may have; None: any number, or not known before it was read."""
    number, percent = limit
    return number if percent is None else None if num_samples is None else math.floor(num_samples * percent / 100)


def picture_options(
    image: str, short: int | None, long: int | None, exact: tuple[int, int] | str | None, quality: int | None, background: str
) -> dict[str, Any]:
    """What the image codec is told, as the manifest keeps it."""
    given = {"--resize-short": short, "--resize-long": long, "--resize": exact}
    if len(named := [flag for flag, value in given.items() if value is not None]) > 1:
        raise ArgumentError(f"expected one way to resize, got {' and '.join(named)}")
    resized: dict[str, int] | None = None
    if exact is not None:
        match = re.fullmatch(r"(\d+)[xX](\d+)", exact if isinstance(exact, str) else "x".join(map(str, exact)))
        if not match:
            raise ArgumentError(f"expected HEIGHTxWIDTH such as 256x256, got {exact!r}, at --resize")
        resized = {"height": int(match[1]), "width": int(match[2])}
    elif short is not None:
        resized = {"short": short}
    elif long is not None:
        resized = {"long": long}
    if resized and not all(1 <= side <= 65535 for side in resized.values()):
        raise ArgumentError(f"expected 1 to 65535 pixels, got {resized}, at {named[0]}")
    if resized and resized.get("height", 1) * resized.get("width", 1) > MAX_PIXELS:
        raise ArgumentError(f"expected a picture of at most {MAX_PIXELS} pixels, got {resized}, at {named[0]}")
    match = re.fullmatch(r"#?([0-9a-fA-F]{6})", background)
    if not match:
        raise ArgumentError(f"expected a colour such as #ffffff, got {background!r}, at --background")
    return {"image": image, "resize": resized, "quality": quality, "subsampling": "4:2:0", "background": list(bytes.fromhex(match[1]))}


def packed_field(field: Field, pictures: Mapping[str, Any], compress: str | None) -> Field:
    """A field as it will be packed: what the caller asked, over what the source says of itself."""
    if field.codec != "image":
        compressed = compress is not None and open_codec(field).compressible
        return replace(field, options={**field.options, "compress": compress}) if compressed else field
    kept_raw = pictures["image"] == "keep" and field.options.get("image") == "raw"
    options = {**pictures, **({"image": "raw"} if kept_raw else {}), **({"mask": True} if field.options.get("mask") else {})}
    resized = pictures["resize"] or {}
    shape = field.shape if field.dense and not resized else (resized["height"], resized["width"], 3) if "height" in resized else ()
    dense = options["image"] == "raw" and bool(shape)
    return replace(field, dtype="uint8", shape=shape if dense else (), dense=dense, options=options)


def read_classes(place: str | os.PathLike[str]) -> tuple[str, ...]:
    """Read a class table: of a dataset, of a .json (a list of names, or a table of name and label), or of a text file, a name on each line.

    Raises:
        ArgumentError: it is none, or names repeat.
        DatasetError: a folder that is no dataset.
    """
    path, where = Path(place), f"--classes {place}"
    if path.is_dir():
        names = manifests.load(path).classes
        if names is None:
            raise ArgumentError(f"expected a dataset whose labels have names, got one without, at {where}")
        return names
    try:
        if not path.is_file() and path.exists():
            raise ArgumentError(f"expected a file of class names or a dataset, got a pipe, socket or device, at {where}")
        if path.stat().st_size > _MAX_CLASSES_NBYTES:
            raise ArgumentError(f"expected names of classes, got {path.stat().st_size} bytes, at {where}")
        text = path.read_text(encoding="utf-8-sig", errors="surrogateescape")  # line ends are \n by then, whatever they were
        found: Any = json.loads(text) if path.suffix.lower() == ".json" else [line for line in text.split("\n") if line]
    except (OSError, ValueError, RecursionError) as error:
        raise ArgumentError(f"expected a file of class names or a dataset, got {error}, at {where}") from error
    if isinstance(found, dict):
        if sorted(found.values(), key=str) != sorted(range(len(found)), key=str):
            raise ArgumentError(f"expected labels 0 to {len(found) - 1}, each once, got others, at {where}")
        found = sorted(found, key=found.__getitem__)
    if not isinstance(found, list) or not found or not all(isinstance(name, str) for name in found):
        raise ArgumentError(f"expected a list of class names, or a table of name and label, got {short(found)}, at {where}")
    if len(set(found)) != len(found):
        raise ArgumentError(f"expected every class once, got {Counter(found).most_common(1)[0][0]!r} again, at {where}")
    return tuple(found)

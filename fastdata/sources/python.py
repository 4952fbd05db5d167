"""Python objects: an iterable of dicts, or a map-style dataset of dicts."""

from __future__ import annotations

import json
import sys
from collections import Counter, deque
from collections.abc import Iterator, Mapping
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np

from fastdata.errors import ArgumentError, DataError
from fastdata.pictures import picture_format
from fastdata.sources import base
from fastdata.types import Field, Sample

HEAD = 1000
"""Samples of an iterable that fields are told from."""

MAX_HEAD_NBYTES = 256 << 20
"""Bytes after which the head ends sooner, since it is held in memory."""

PROBES = 64
"""Samples of a map-style dataset that fields and sizes are told from: each may cost a decode."""


def _is_pil(value: Any) -> bool:
    """Tell a picture of Pillow; where there is one, Pillow is imported."""
    pillow = sys.modules.get("PIL.Image")
    return pillow is not None and isinstance(value, pillow.Image)


def _plain(value: Any) -> Any:
    """Turn tensors, tuples, arrays of another byte order and odd strings and bytes into what the rest of this file knows."""
    if all(hasattr(value, name) for name in ("detach", "cpu", "numpy")):
        try:
            value = value.detach().cpu().numpy()
        except (TypeError, RuntimeError) as error:
            raise DataError(f"expected a tensor that numpy can hold, got {base.short(value)}: {error}") from error
    if isinstance(value, np.ndarray):
        value = value[()] if value.ndim == 0 else np.asarray(value, value.dtype.newbyteorder("<"), order="C")
    if isinstance(value, str):
        return str(value)
    if isinstance(value, (bytearray, memoryview)):
        return bytes(value)
    return list(value) if isinstance(value, tuple) else value


def _kind(value: Any) -> base.Kind:
    """Tell the kind of a plain value, not None."""
    if isinstance(value, (np.ndarray, np.generic)):
        if value.dtype.name not in base.DTYPES:
            raise DataError(f"expected numbers, got {'an array' if value.ndim else 'a scalar'} of {value.dtype}")
        shape: tuple[int, ...] = value.shape
        if not shape:
            return base.Kind("scalar", value.dtype.name)
        if value.dtype == np.uint8 and len(shape) == 3 and shape[2] == 3:
            return base.Kind("image")
        return base.Kind("ndarray", value.dtype.name, shape[1:])
    if isinstance(value, bytes):
        return base.Kind("image" if picture_format(value) else "bytes")
    return base.Kind("image") if _is_pil(value) else base.kind_of(value)


def _field(name: str, values: list[Any]) -> Field:
    """Say what a field is, from its plain values, None left out.

    Raises:
        DataError: a value that no field can hold, or arrays of several kinds.
    """
    column, kinds = base.Column(), Counter(map(_kind, values))
    for value in values:
        column.add(value, _kind(value))
    column.pictures = False  # strings stay strings: nobody said which folder paths would count from
    codecs = {kind.codec for kind in kinds}
    if codecs <= {"image", "bytes"} and codecs:
        images = sum(count for kind, count in kinds.items() if kind.codec == "image")
        return base.picture_field(name) if 2 * images > len(values) else Field(name, "bytes")
    if any(isinstance(value, np.ndarray) for value in values) and len(kinds) > 1:
        first, second = list(kinds)[:2]
        shown = [f"{kind.codec} {kind.dtype} {['n', *(kind.shape or ())]}" for kind in (first, second)]
        raise DataError(f"expected arrays of one dtype and one shape behind the first dimension, got {shown[0]} and {shown[1]}")
    return column.field(name, "json")


def _fit(field: Field, value: Any) -> Any:
    """Turn any value into what the field's codec takes.

    Raises:
        DataError: it does not fit.
    """
    value = _plain(value)
    if value is None:
        return None
    if field.codec in {"image", "bytes"}:
        if isinstance(value, bytes) or (field.codec == "image" and _kind(value).codec == "image"):
            return value
        raise DataError(f"expected {'a picture' if field.codec == 'image' else 'bytes'}, got {base.short(value)}, at field {field.name!r}")
    if isinstance(value, np.ndarray):
        if field.codec == "ndarray" and _kind(value) == base.Kind("ndarray", field.dtype, field.shape):
            return value
        expected = f"an array {['n', *field.shape]} of {field.dtype}" if field.codec == "ndarray" else field.codec
        raise DataError(f"expected {expected}, got an array {list(value.shape)} of {value.dtype}, at field {field.name!r}")
    if isinstance(value, np.generic):
        if value.dtype.name == field.dtype:
            return value.item()
        value = value.item()
    return base.fit(field, value)


def _nbytes(value: Any) -> int:
    """Estimate the size of a value as it would be stored uncompressed."""
    if _is_pil(value):
        return int(value.width * value.height * len(value.getbands()))
    if isinstance(value, (str, bytes)):
        return len(value.encode(errors="replace") if isinstance(value, str) else value)
    if isinstance(value, (np.ndarray, np.generic)):
        return int(value.nbytes)
    return 0 if value is None else 8 if isinstance(value, (bool, int, float)) else len(json.dumps(value, default=str))


class Source(base.Source):
    """Samples are dicts: field name -> value. None or an absent name is a missing value; an entry `key`, a str, is the sample's key.

    Pictures of Pillow, uint8 arrays [H, W, 3] and the bytes of picture files are pictures; strings are text when named text, prompt or
    completion or where one has more than 200 characters; numbers and arrays (also tensors) keep their dtype, arrays may be ragged in the
    first dimension; lists of numbers are arrays; what else JSON can hold is JSON. Fields are told from the first 1,000 samples of an
    iterable, which is then read once from there on, or from 64 evenly spaced ones of a map-style dataset, whose parts are its indices.
    What does not fit them later is an error.
    """

    @classmethod
    def recognises(cls, path: Path) -> bool:
        """Say no: a path is not a Python object."""
        return False

    def __init__(self, source: Any) -> None:
        """Look at a map-style dataset (`__len__` and `__getitem__`) or take the head of an iterable."""
        super().__init__(source)
        kind = type(source).__name__
        streams = any(
            parent.__name__ == "IterableDataset" for parent in type(source).__mro__
        )  # torch gives it a __getitem__ that only raises
        self.splits = hasattr(source, "__len__") and hasattr(source, "__getitem__") and not streams
        listed = not isinstance(source, (str, bytes, bytearray, Mapping)) and (self.splits or hasattr(source, "__iter__"))
        base.require(listed, f"expected an iterable of dicts or a map-style dataset, got {kind}")
        self.comparable = False  # an index tells nothing of what it stands for
        self._samples = source
        self._stream: Iterator[Any] = iter(())
        self._head: deque[Any] | None = deque()
        if self.splits:
            self._num_samples = len(source)
            self._probe()
        else:
            self._stream = self._iterate()
            nbytes = 0
            for sample in self._stream:
                self._head.append(sample)
                nbytes += self._size(sample)
                if len(self._head) >= HEAD or nbytes >= MAX_HEAD_NBYTES:
                    break
            self._infer(list(self._head))

    def _probe(self) -> None:
        probes: list[Any] = []
        first_error = None
        for index in sorted({i * (self._num_samples - 1) // (PROBES - 1) for i in range(PROBES)} if self._num_samples else ()):
            try:
                probes.append(self._get(index))
            except DataError as error:
                first_error = first_error or error
        if first_error and not probes:
            raise ArgumentError(f"{first_error}, and no other of {PROBES} samples could be had") from first_error
        self._infer(probes)
        self._mean_nbytes = sum(map(self._size, probes)) // len(probes)

    def _infer(self, samples: list[Any]) -> None:
        kind = type(self._samples).__name__
        base.require(bool(samples), f"expected samples, got none, from {kind}")
        dicts = [sample for sample in samples if isinstance(sample, Mapping)]
        cure = "; make it a dict, such as {'image': ..., 'label': ...}"
        base.require(isinstance(samples[0], Mapping), f"expected samples that are dicts, got {base.short(samples[0])}, from {kind}{cure}")
        names = list(dict.fromkeys(name for sample in dicts for name in sample if name != "key"))
        base.require(all(isinstance(name, str) for name in names), f"expected fields named by strings, got {names}, from {kind}")
        fields = []
        for name, clean in base.field_names(names, kind).items():
            try:
                values = [_plain(sample[name]) for sample in dicts if name in sample]
                fields.append(_field(clean, [value for value in values if value is not None]))
            except DataError as error:
                raise ArgumentError(f"{error}, at field {name!r}, from {kind}") from error
        base.require(bool(fields), f"expected samples with fields, got {base.short(samples[0])}, from {kind}")
        self._raw = {field.name: name for field, name in zip(fields, names, strict=True)}
        self.fields = tuple(sorted(fields, key=lambda field: field.name == "label"))

    @staticmethod
    def _size(sample: Any) -> int:
        if not isinstance(sample, Mapping):
            return 0
        total = 0
        for name, value in sample.items():
            try:
                total += _nbytes(_plain(value)) if name != "key" else 0
            except DataError:
                continue
        return total

    def _get(self, index: int) -> Any:
        try:
            return self._samples[index]
        except MemoryError:
            raise
        except Exception as error:
            raise DataError(f"expected sample {index}, got {type(error).__name__}: {error}") from error

    def _iterate(self) -> Iterator[Any]:
        iterator, index = iter(self._samples), 0
        while True:
            try:
                sample = next(iterator)
            except StopIteration:
                return
            except MemoryError:
                raise
            except Exception as error:
                raise DataError(f"expected sample {index}, got {type(error).__name__}: {error}") from error
            yield sample
            index += 1

    def parts(self) -> Iterator[base.Part]:
        """List the indices of a map-style dataset, each of the mean size; of an iterable, one part of unknown size."""
        if not self.splits:
            yield base.Part("samples", 0, 0, num_samples=None)
            return
        for index in range(self._num_samples):
            yield base.Part(f"sample {index}", self._mean_nbytes, index, index)

    def read(self, part: base.Part) -> Iterator[base.Drawn]:
        """Take one sample, or all of an iterable.

        Raises:
            DataError: the iterable raised, which ends it: what it would have given is lost, so this is no error of one sample.
            ArgumentError: an iterable that can be read once is read again.
        """
        if not self.splits:
            for number, sample in enumerate(self._all()):
                yield self._draw(number, sample)
            return
        try:
            sample = self._get(part.detail)
        except DataError as error:
            yield base.Drawn(str(part.number), f"sample {part.number}", part.nbytes, error)
        else:
            yield self._draw(part.number, sample)

    def _all(self) -> Iterator[Any]:
        """Go on from the head, letting it go as it is read; a second time, start anew."""
        if self._head is None:
            base.require(
                iter(self._samples) is not self._samples, f"expected an iterable that can be read again, got {type(self._samples).__name__}"
            )
            return self._iterate()
        head, self._head = self._head, None
        return chain((head.popleft() for _ in range(len(head))), self._stream)

    def _draw(self, number: int, sample: Any) -> base.Drawn:
        origin, nbytes = f"sample {number}", self._size(sample)
        if not isinstance(sample, Mapping):
            return base.Drawn(str(number), origin, nbytes, DataError(f"expected a dict, got {base.short(sample)}"))
        key, names = sample.get("key"), self._raw.values()
        values: Sample = {}
        try:
            unknown = [name for name in sample if name != "key" and name not in names]
            if unknown or not isinstance(key, (str, type(None))):
                raise DataError(
                    f"expected fields {list(names)}, got also {unknown}" if unknown else f"expected a str as key, got {base.short(key)}"
                )
            for field in self.fields:
                values[field.name] = _fit(field, sample.get(self._raw[field.name]))
        except DataError as error:
            return base.Drawn(key if isinstance(key, str) else str(number), origin, nbytes, error)
        return base.Drawn(str(number) if key is None else key, origin, nbytes, values)

"""One JSON object a line: .jsonl and .ndjson. Strings may name picture files."""

from __future__ import annotations

import json
import os
import zlib
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

from fastdata.errors import ArgumentError, DataError
from fastdata.sources import base

PART_NBYTES = 64 << 10
"""Bytes of lines and pictures that make a part: small beside a shard, large beside the cost of a part."""

PEEK_NBYTES = 1 << 20
"""Bytes in which a pretty-printed first object is looked for."""

BOM = b"\xef\xbb\xbf"


def _parse(data: bytes) -> dict[str, Any]:
    """Parse one line.

    Raises:
        DataError: it is no JSON object in UTF-8.
    """
    text = base.decode_text(data, "line").strip()
    try:
        row = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise DataError(f"expected a JSON object, got {base.short(text)}: {error}") from error
    if not isinstance(row, dict):
        raise DataError(f"expected a JSON object, got {base.short(text)}")
    return row


class Source(base.Source):
    """Objects of a file of JSON lines, columns by the rules of `base.Table`; null and absent are missing values.

    A part is a range of lines. Numbers are int64, or float64 where one has a point; true and false are bool; lists of numbers, or of
    equal lists of numbers, are arrays ragged in the first dimension; anything else, and columns that mix kinds, stay JSON. Blank lines
    are passed over, a byte order mark is dropped. A line that is no object in UTF-8, or has an integer beyond int64, is a sample with an
    error.
    """

    @classmethod
    def recognises(cls, path: Path) -> bool:
        """Say whether it is a file named .jsonl or .ndjson."""
        return path.is_file() and path.suffix.lower() in {".jsonl", ".ndjson"}

    def __init__(self, path: Path) -> None:
        super().__init__(path)
        base.require(path.is_file(), f"expected a file of JSON lines, got a folder, at {path}")
        self._path = os.fspath(path)
        self._table = base.Table(self._path, "json")
        self._refuse_other_json()
        good, first_error = 0, ""
        for line, _, data in self._lines(0, path.stat().st_size, 1):
            try:
                self._table.add(_parse(data), line)
                good += 1
            except DataError as error:
                first_error = first_error or f" ({error}, line {line})"
        base.require(good > 0, f"expected lines with a JSON object each, got none{first_error}, at {path}")
        self._table.settle()
        if self._table.label is not None:
            self._table.name_classes(row.get(self._table.label) for row in self._objects())
        self.fields, self.classes, self.trouble = self._table.fields, self._table.classes, self._table.trouble

    def _refuse_other_json(self) -> None:
        """Explain a JSON array and a pretty-printed object, which are JSON but not lines."""
        with open(self._path, "rb") as file:
            text = file.read(PEEK_NBYTES).removeprefix(BOM).decode(errors="replace").lstrip()
        cure = f"at {self._path}; make it with: jq -c"
        if text.startswith("["):
            raise ArgumentError(f"expected one JSON object a line, got a JSON array, {cure} '.[]'")
        first = text.partition("\n")[0]
        try:
            json.loads(first)
        except (ValueError, RecursionError):
            try:
                pretty = first.strip() == "{" or isinstance(json.JSONDecoder().raw_decode(text)[0], dict)
            except (ValueError, RecursionError):
                pretty = False
            base.require(not pretty, f"expected one JSON object a line, got an object over several lines, {cure} .")

    def _lines(self, start: int, stop: int, line: int) -> Iterator[tuple[int, int, bytes]]:
        """Yield (line, position behind it, bytes) of the lines in a range that are not blank."""
        with open(self._path, "rb") as file:
            file.seek(start)
            position = start
            while position < stop and (data := file.readline()):
                if position == 0:
                    data, position = data.removeprefix(BOM), len(BOM) * data.startswith(BOM)
                position += len(data)
                if data.strip():
                    yield line, position, data
                line += 1

    def _objects(self) -> Iterator[dict[str, Any]]:
        """Yield the good rows again: those that the fields were told from."""
        for _, _, data in self._lines(0, os.path.getsize(self._path), 1):
            try:
                row = _parse(data)
                for value in row.values():
                    base.kind_of(value)
            except DataError:
                continue
            yield row

    def parts(self) -> Iterator[base.Part]:
        """List ranges of lines; `detail` is start and stop in bytes and the first line's number."""
        number = start = stop = first = count = nbytes = crc = 0
        for line, stop, data in self._lines(0, os.path.getsize(self._path), 1):
            if not count:
                first, start = line, stop - len(data)
            count, nbytes, crc = count + 1, nbytes + len(data), zlib.crc32(data, crc)
            if self._table.has_pictures:
                with suppress(DataError):
                    nbytes += self._table.pictures_nbytes(_parse(data))
            if nbytes >= PART_NBYTES:
                yield base.Part(f"{start}-{stop} {crc:08x}", nbytes, number, (start, stop, first))
                number, count, nbytes, crc = number + count, 0, 0, 0
        if count:
            yield base.Part(f"{start}-{stop} {crc:08x}", nbytes, number, (start, stop, first))

    def read(self, part: base.Part) -> Iterator[base.Drawn]:
        """Read one range of lines."""
        for number, (line, _, data) in enumerate(self._lines(*part.detail), part.number):
            try:
                yield self._table.draw(_parse(data), number, line, len(data))
            except DataError as error:
                yield base.Drawn(str(number), f"{self._path}:{line}", len(data), error)

"""One JSON object a line: .jsonl and .ndjson. Strings may name picture files."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, BinaryIO

from fastdata.errors import ArgumentError, DataError
from fastdata.sources import base

PEEK_NBYTES = 1 << 20
"""Bytes in which a pretty-printed first object is looked for."""


def _parse(data: bytes) -> Mapping[str, Any] | DataError:
    """Parse one line, or say why it is no JSON object in UTF-8."""
    try:
        text = base.decode_text(data, "line").strip()
        row = json.loads(text)
    except DataError as error:
        return error
    except (ValueError, RecursionError) as error:
        return DataError(f"expected a JSON object, got {base.short(text)}: {error}")
    return row if isinstance(row, dict) else DataError(f"expected a JSON object, got {base.short(text)}")


class Source(base.RowSource):
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
        super().__init__(path, base.Table(os.fspath(path)))

    def _look(self, file: BinaryIO) -> None:
        """Explain a JSON array and a pretty-printed object, which are JSON but not lines."""
        text = file.read(PEEK_NBYTES).removeprefix(base.BOM).decode(errors="replace").lstrip()
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

    def _rows(self, lines: base.Lines) -> Iterator[tuple[int, int, Mapping[str, Any] | DataError]]:
        for data in lines:
            if data.strip():
                yield lines.number, len(data), _parse(data)

    def _wanted(self) -> str:
        return "lines with a JSON object each"

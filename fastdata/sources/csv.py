"""A table with a header line: .csv and .tsv. Picture columns name files."""

from __future__ import annotations

import csv
import os
import re
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, BinaryIO

from fastdata.errors import ArgumentError, DataError
from fastdata.sources import base
from fastdata.types import Field

INTEGER = re.compile(r"-?(0|[1-9][0-9]*)")
FLOAT = re.compile(r"[+-]?((0|[1-9][0-9]*)(\.[0-9]*)?|\.[0-9]+)([eE][+-]?[0-9]+)?|[+-]?(nan|inf)", re.IGNORECASE)


def _kind(value: str) -> base.Kind:
    """Tell what a cell looks like; a number that would be written otherwise (007, 10^30) is a string."""
    if value[0] not in "+-.0123456789nNiI":
        return base.STRING
    if INTEGER.fullmatch(value):
        return base.INTEGER if len(value) < 21 and -(2**63) <= int(value) < 2**63 else base.STRING
    return base.FLOAT if FLOAT.fullmatch(value) else base.STRING


def _fit(field: Field, value: str) -> Any:
    kind = base.STRING if field.codec == "text" or field.dtype == "str" else _kind(value)
    return base.fit(field, int(value) if kind is base.INTEGER else float(value) if kind is base.FLOAT else value)


class _Table(base.Table):
    """A table of strings, some of which stand for numbers."""

    mixed = "str"
    kind = staticmethod(_kind)
    fit = staticmethod(_fit)


class Source(base.RowSource):
    """Rows of a table, columns by the rules of `base.Table`; an empty cell is a missing value. A part is a range of rows.

    UTF-8 with or without byte order mark, quotes as in RFC 4180, LF or CRLF; separated by comma, semicolon or tab, whichever the
    header has most of. A column of integers is int64 where none has leading zeros and all fit, else of strings; numbers with a point or
    exponent are float64. A row with fewer or more cells than the header is a sample with an error, and the table's trouble.
    """

    @classmethod
    def recognises(cls, path: Path) -> bool:
        """Say whether it is a file named .csv or .tsv."""
        return path.is_file() and path.suffix.lower() in {".csv", ".tsv"}

    def __init__(self, path: Path) -> None:
        self._header: list[str] = []
        super().__init__(path, _Table(os.fspath(path)))
        if self._first_error:
            line, error = self._first_error
            self.trouble = f"{error}, at {path}:{line}"

    def _look(self, file: BinaryIO) -> None:
        """Tell the delimiter from the first line."""
        bare = re.sub('"[^"]*"', "", file.readline().decode(errors="replace"))
        self._delimiter = "\t" if self._path.lower().endswith(".tsv") else max(",;\t", key=bare.count)

    def _rows(self, lines: base.Lines) -> Iterator[tuple[int, int, Mapping[str, Any] | DataError]]:
        """Yield the rows; the first one from the start of the file is the header."""
        csv.field_size_limit(sys.maxsize)  # documents are longer than the default of 128 KiB
        reader = csv.reader(self._text(lines), delimiter=self._delimiter, strict=True)
        in_header = not lines.position
        while True:
            line, position = lines.number + 1, lines.position
            try:
                cells = next(reader)
            except StopIteration:
                break
            except csv.Error as error:
                found = f"got a row that cannot be read ({error})"
                raise ArgumentError(f"expected cells for {self._header or 'the header'}, {found}, at {self._path}:{line}") from error
            if not cells:
                continue
            if in_header:
                differ = len(set(cells)) == len(cells)
                base.require(differ, f"expected columns of different names, got {cells}, at {self._path}:{line}")
                self._header, in_header = cells, False
                continue
            yield line, lines.position - position, self._row(cells)
        base.require(not in_header, f"expected a header line, got an empty file, at {self._path}")

    def _text(self, lines: base.Lines) -> Iterator[str]:
        """Decode lines; bytes that are not UTF-8 are refused with their place."""
        for data in lines:
            try:
                text = base.decode_text(data, "line")
            except DataError as error:
                raise ArgumentError(f"{error}, at {self._path}:{lines.number}") from error
            yield text

    def _row(self, cells: list[str]) -> Mapping[str, Any] | DataError:
        num = len(self._header)
        if len(cells) != num:
            return DataError(f"expected {num} cells for {self._header}, got {len(cells)}: {base.short(cells)}")
        return {name: cell or None for name, cell in zip(self._header, cells, strict=True)}

    def _wanted(self) -> str:
        return f"rows below the header {self._header}"

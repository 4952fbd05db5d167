"""A table with a header line: .csv and .tsv. Picture columns name files."""

from __future__ import annotations

import csv
import json
import os
import re
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import BinaryIO

from fastdata.errors import ArgumentError, DataError
from fastdata.sources import base

INTEGER = re.compile(r"-?(0|[1-9][0-9]*)")
FLOAT = re.compile(r"[+-]?((0|[1-9][0-9]*)(\.[0-9]*)?|\.[0-9]+)([eE][+-]?[0-9]+)?|[+-]?(nan|inf)", re.IGNORECASE)


def _parse(cell: str) -> int | float | str | None:
    """Take a cell for what it looks like; a number that would be written otherwise (007, 10^30) stays a string."""
    if not cell:
        return None
    if INTEGER.fullmatch(cell):
        return int(cell) if len(cell) < 21 and -(2**63) <= int(cell) < 2**63 else cell
    return float(cell) if FLOAT.fullmatch(cell) else cell


class _Lines:
    """Lines of a file as text, counted; bytes that are not UTF-8 are refused with their place."""

    def __init__(self, path: str, file: BinaryIO) -> None:
        self.number = self.position = 0
        self._path, self._file = path, file

    def __iter__(self) -> _Lines:
        return self

    def __next__(self) -> str:
        data = next(self._file)
        self.number += 1
        self.position += len(data)
        try:
            text = base.decode_text(data, "line")
        except DataError as error:
            raise ArgumentError(f"{error}, at {self._path}:{self.number}") from error
        return text.removeprefix("\ufeff") if self.number == 1 else text


class Source(base.Source):
    """Rows of a table, columns by the rules of `base.Table`; an empty cell is a missing value. A part is a row.

    UTF-8 with or without byte order mark, quotes as in RFC 4180, LF or CRLF; separated by comma, semicolon or tab, whichever the
    header has most of. A column of integers is int64 where none has leading zeros and all fit, else of strings; numbers with a point or
    exponent are float64. Reads the file once for the types (twice where labels are strings), once for the parts, and holds one row.
    """

    @classmethod
    def recognises(cls, path: Path) -> bool:
        """Say whether it is a file named .csv or .tsv."""
        return path.is_file() and path.suffix.lower() in {".csv", ".tsv"}

    def __init__(self, path: Path) -> None:
        super().__init__(path)
        base.require(path.is_file(), f"expected a file with a table, got a folder, at {path}")
        self._path = os.fspath(path)
        self._header: list[str] = []
        self._table = base.Table(self._path, "str")
        line = 0
        uneven = ""
        for line, _, cells in self._rows():
            if wrong := self._wrong(cells):
                uneven = uneven or f"{wrong}, at {path}:{line}"
                continue
            self._table.add({name: _parse(cell) for name, cell in zip(self._header, cells, strict=True)}, line)
        base.require(bool(self._header), f"expected a header line, got an empty file, at {path}")
        base.require(line > 0, f"expected rows below the header {self._header}, got none, at {path}")
        self._table.settle()
        if self._table.label is not None:
            column = self._header.index(self._table.label)
            self._table.name_classes(cells[column] or None for _, _, cells in self._rows() if not self._wrong(cells))
        self.fields, self.classes, self.trouble = self._table.fields, self._table.classes, uneven or self._table.trouble

    def _rows(self) -> Iterator[tuple[int, int, list[str]]]:
        """Yield (line where it starts, bytes in the file, cells) of each row below the header."""
        csv.field_size_limit(sys.maxsize)  # documents are longer than the default of 128 KiB
        with open(self._path, "rb") as file:
            first = file.readline().decode(errors="replace")
            file.seek(0)
            lines = _Lines(self._path, file)
            reader = csv.reader(lines, delimiter=self._delimiter(first), strict=True)
            header: list[str] = []
            while True:
                line, position = lines.number + 1, lines.position
                try:
                    cells = next(reader)
                except StopIteration:
                    return
                except csv.Error as error:
                    found = f"got a row that cannot be read ({error})"
                    raise ArgumentError(f"expected cells for {header or 'the header'}, {found}, at {self._path}:{line}") from error
                if not cells:
                    continue
                if header:
                    yield line, lines.position - position, cells
                else:
                    header = self._header = cells
                    base.require(
                        len(set(header)) == len(header), f"expected columns of different names, got {header}, at {self._path}:{line}"
                    )

    def _wrong(self, cells: Sequence[str]) -> str:
        """Say what is wrong with the number of cells; nothing where it is right."""
        num = len(self._header)
        return "" if len(cells) == num else f"expected {num} cells for {self._header}, got {len(cells)}: {base.short(list(cells))}"

    def _delimiter(self, header: str) -> str:
        bare = re.sub('"[^"]*"', "", header)
        return "\t" if self._path.lower().endswith(".tsv") else max(",;\t", key=bare.count)

    def _row(self, cells: list[str]) -> dict[str, int | float | str | None]:
        return {
            name: (cell or None) if name in self._table.strings else _parse(cell) for name, cell in zip(self._header, cells, strict=True)
        }

    def parts(self) -> Iterator[base.Part]:
        """List the rows; `detail` is the line and the cells."""
        for number, (line, nbytes, cells) in enumerate(self._rows()):
            pictures = 0 if self._wrong(cells) else self._table.pictures_nbytes(self._row(cells))
            yield base.Part(json.dumps(cells), nbytes + pictures, number, (nbytes, line, tuple(cells)))

    def read(self, part: base.Part) -> Iterator[base.Drawn]:
        """Read the pictures that a row names."""
        nbytes, line, cells = part.detail
        if wrong := self._wrong(cells):
            yield base.Drawn(str(part.number), f"{self._path}:{line}", nbytes, DataError(wrong))
        else:
            yield self._table.draw(self._row(cells), part.number, line, nbytes)

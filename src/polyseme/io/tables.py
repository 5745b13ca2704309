"""Rows of CSV and TSV files, with an error for each bad row.

The standard library's `csv` either accepts malformed quotes silently or, with `strict`, stops at the first. Here one
bad quote costs one row.
"""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Iterable, Iterator

from polyseme.errors import DataError
from polyseme.io.lines import MAX_ROW_BYTES, bad_input

NumberedLine = tuple[int, str]
NumberedRow = tuple[int, list[str]]  # number of the row's first line, fields
_CLOSING_QUOTE = re.compile(r'[^"]*+(?:""[^"]*+)*+"')  # the rest of a quoted field, with its closing quote


def read_tsv_rows(lines: Iterable[NumberedLine | DataError]) -> Iterator[NumberedRow | DataError]:
    """Split numbered lines at tabs. Quotes have no special meaning. Errors are passed through."""
    for line in lines:
        yield line if isinstance(line, DataError) else (line[0], line[1].split("\t"))


def read_csv_rows(lines: Iterable[NumberedLine | DataError], name: str) -> Iterator[NumberedRow | DataError]:
    """Parse numbered lines as CSV (RFC 4180): quoted fields may contain commas, line breaks and doubled quotes.

    Yields an error for a row with invalid quotes, in which `name` is the file, and goes on with the next line. Errors
    among `lines` are passed through.
    """
    return iter(_CsvParser(iter(lines), name))


class _CsvParser:
    """Iterator over the rows of a CSV file, each with the number of its first line.

    After a row with invalid quotes, parsing restarts on the line after its first. `reread_budget` limits how many lines
    are parsed again, so that the time is linear for every file.
    """

    def __init__(self, lines: Iterator[NumberedLine | DataError], name: str):
        self.lines, self.name = lines, name
        self.pushed_back: deque[NumberedLine | DataError] = deque()
        self.continuation_lines: list[NumberedLine | DataError] = []  # lines of the current row after its first
        self.num_characters = self.reread_budget = 0

    def __iter__(self) -> Iterator[NumberedRow | DataError]:
        while (numbered_line := self._next()) is not None:
            if isinstance(numbered_line, DataError):
                yield numbered_line
                continue
            number, line = numbered_line
            if '"' not in line:
                yield number, line.split(",")
                continue
            self.continuation_lines, self.num_characters = [], len(line)
            fields = self._parse_fields(line)
            if isinstance(fields, list):
                yield number, fields
                continue
            num_skipped = 0
            if len(self.continuation_lines) > self.reread_budget:
                num_skipped = len(self.continuation_lines)
                self.continuation_lines = [line for line in self.continuation_lines if isinstance(line, DataError)]
            self.reread_budget -= len(self.continuation_lines)
            self.pushed_back.extendleft(reversed(self.continuation_lines))
            note = f"; skipped the {num_skipped} lines after it" if num_skipped else ""
            yield bad_input(f"{self.name} line {number}: {fields}{note}")

    def _next(self) -> NumberedLine | DataError | None:
        if self.pushed_back:
            return self.pushed_back.popleft()
        self.reread_budget += 4
        return next(self.lines, None)

    def _next_continuation(self) -> str | None:
        """Return the next line of a quoted field, or None if there is none."""
        numbered_line = self._next()
        if numbered_line is None:
            return None
        self.continuation_lines.append(numbered_line)
        if isinstance(numbered_line, DataError):
            return None
        self.num_characters += len(numbered_line[1]) + 1
        return numbered_line[1] if self.num_characters <= MAX_ROW_BYTES else None

    def _parse_fields(self, line: str) -> list[str] | str:
        """Return the fields of the row that begins with `line`, or a description of the error."""
        fields, position = list[str](), 0
        while True:
            if line.startswith('"', position):
                position += 1
                pieces = []
                while not (close := _CLOSING_QUOTE.match(line, position)):
                    pieces.append(line[position:])
                    next_line = self._next_continuation()
                    if next_line is None:
                        return "unclosed quote"
                    line, position = next_line, 0
                pieces.append(line[position : close.end() - 1])
                fields.append("\n".join(pieces).replace('""', '"'))
                position = close.end()
                if position < len(line) and line[position] != ",":
                    return f"unexpected {line[position : position + 20]!r} after a closing quote"
            else:
                end = line.find(",", position)
                fields.append(line[position : end if end >= 0 else len(line)])
                position = end if end >= 0 else len(line)
            if position == len(line):
                return fields
            position += 1

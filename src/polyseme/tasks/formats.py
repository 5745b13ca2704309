"""File formats of predictions, which are written a window of examples at a time."""

import json
import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from polyseme.io.table_output import TableOutput

Values = Sequence[Any]


@dataclass(frozen=True)
class PredictionFormat:
    """One file of predictions: a header, rows with a separator between them, and a footer.

    `format_rows` takes examples, their predictions, and the index of the first of them in the file. Adjacent examples
    with the same `group_key` are written together, so they are never in different windows.
    """

    format_rows: Callable[[Values, Values, int], Iterable[str]]
    header: str = ""
    separator: str = ""
    footer: str = ""
    group_key: Callable[[Any], Any] | None = None
    install: Callable[[Path, Path], object] = os.replace  # turns the part, to which all is written, into the file

    def format_window(self, examples: Values, predictions: Values, start: int = 0) -> str:
        """Format the examples of a window, the first of which is number `start` in the file, from 0."""
        return (self.separator if start else self.header) + self.separator.join(
            self.format_rows(examples, predictions, start)
        )

    def format_file(self, examples: Values, predictions: Values) -> str:
        """Format a whole file."""
        return self.format_window(examples, predictions) + self.footer


def row_format(format_row: Callable[[Any, Any], str], header: str = "", separator: str = "") -> PredictionFormat:
    """Return a format with one row for each example and its prediction."""

    def format_rows(examples: Values, predictions: Values, start: int) -> Iterator[str]:
        return (format_row(example, prediction) for example, prediction in zip(examples, predictions, strict=True))

    return PredictionFormat(format_rows, header, separator)


def table_format(
    path: Path,
    examples: Iterable[Any],
    example_columns: Callable[[Any], Mapping[str, Any]],
    prediction_columns: Callable[[Any, Any], Mapping[str, Any]],
) -> PredictionFormat:
    """Return the format of rows with the columns of an example, followed by those of its prediction."""
    output = TableOutput(path, (name for example in examples for name in example_columns(example)))

    def format_rows(examples: Values, predictions: Values, start: int) -> Iterator[str]:
        pairs = zip(examples, predictions, strict=True)
        yield output.encode([(example_columns(e), prediction_columns(e, p)) for e, p in pairs], start)

    return PredictionFormat(format_rows, install=lambda part, _: output.install(part))


def json_object_format(to_entry: Callable[[Any, Any], tuple[str, Any]]) -> PredictionFormat:
    """Return the format of one indented JSON object with a key and a value for each example."""

    def format_row(example: Any, prediction: Any) -> str:
        key, value = (json.dumps(part, ensure_ascii=False) for part in to_entry(example, prediction))
        return f"  {key}: {value}"

    return PredictionFormat(row_format(format_row).format_rows, "{\n", ",\n", "\n}\n")

"""File formats of predictions, which are written a window of examples at a time."""

import json
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

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


def json_lines_format(to_record: Callable[[Any, Any], Any]) -> PredictionFormat:
    """Return the format of JSON lines."""
    return row_format(lambda example, prediction: json.dumps(to_record(example, prediction), ensure_ascii=False) + "\n")


def json_object_format(to_entry: Callable[[Any, Any], tuple[str, Any]]) -> PredictionFormat:
    """Return the format of one indented JSON object with a key and a value for each example."""

    def format_row(example: Any, prediction: Any) -> str:
        key, value = (json.dumps(part, ensure_ascii=False) for part in to_entry(example, prediction))
        return f"  {key}: {value}"

    return PredictionFormat(row_format(format_row).format_rows, "{\n", ",\n", "\n}\n")

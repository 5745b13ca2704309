"""Output files with a row for each row of the input: its columns, then ours. The file name decides the format."""

import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import islice
from pathlib import Path
from typing import Any

from polyseme.errors import ConfigError, require_package
from polyseme.io.atomic import atomic_write
from polyseme.io.lines import replace_surrogates

TABLE_SUFFIXES = (".csv", ".tsv", ".jsonl", ".parquet", ".txt")
Row = tuple[Mapping[str, Any], Mapping[str, Any]]  # columns of the input, and ours
_PREFIX = "polyseme_"  # of a column of ours whose name the input has
_BATCH_ROWS = 4096  # of a Parquet file, converted at once


class TableOutput:
    """The format of a file of rows.

    Text files (`.txt`, or any other name) have the first of our columns alone. Parquet is written as JSON lines and
    converted at the end by `install`, so that a run can be resumed. `input_names` are the columns of the input.
    """

    def __init__(self, out: Path, input_names: Iterable[str] = ()):
        self.out, self.suffix, self.input_names = out, out.suffix.lower(), list(dict.fromkeys(input_names))
        if self.suffix == ".parquet":
            require_package("pyarrow", "writing Parquet files")

    @property
    def is_flat(self) -> bool:
        """Whether a cell is a text, so that our columns of several values become several columns."""
        return self.suffix in (".csv", ".tsv")

    def encode(self, rows: Sequence[Row], start: int = 0) -> str:
        """Return rows as text, the first of which is number `start`, from 0; a header precedes the first of all."""
        return replace_surrogates(self._encode(rows, start))

    def _encode(self, rows: Sequence[Row], start: int) -> str:
        if self.suffix not in TABLE_SUFFIXES[:-1]:
            return "".join(_to_line(next(iter(ours.values()))) for _, ours in rows)
        renamed = [(inputs, self._rename(ours)) for inputs, ours in rows]
        if not self.is_flat:
            return "".join(json.dumps({**a, **b}, ensure_ascii=False, default=_to_text) + "\n" for a, b in renamed)
        format_row = _format_csv if self.suffix == ".csv" else _format_tsv
        header = format_row([*self.input_names, *renamed[0][1]]) if rows and not start else ""
        cells = ([*(a.get(name) for name in self.input_names), *b.values()] for a, b in renamed)
        return header + "".join(map(format_row, cells))

    def install(self, part: Path) -> None:
        """Turn the part, to which all rows were written, into the output."""
        if not part.exists():  # the output was complete before
            return
        if self.suffix == ".parquet":
            atomic_write(self.out, lambda temporary: _write_parquet(part, temporary))
        else:
            part.replace(self.out)

    def _rename(self, ours: Mapping[str, Any]) -> dict[str, Any]:
        columns: dict[str, Any] = {}
        for name, value in ours.items():
            if self.is_flat and isinstance(value, Mapping):
                columns |= {f"p({key})": each for key, each in value.items()}
            else:
                columns[name] = value
        return {_PREFIX + name if name in self.input_names else name: value for name, value in columns.items()}


def check_output_suffix(out: Path, suffixes: Sequence[str], content: str) -> None:
    """Raise an error if the name of an output file shows none of its formats."""
    if out.suffix.lower() not in suffixes:
        raise ConfigError(f"{out}: {content} are written as {', '.join(suffixes)}, not {out.suffix!r}")


def flatten_cell(text: str) -> str:
    """Return a text as one cell of a table."""
    return re.sub(r"[\t\r\n]+", " ", text)


def _to_line(value: Any) -> str:
    is_words = isinstance(value, list | tuple) and all(isinstance(word, str) for word in value)
    return flatten_cell(" ".join(value) if is_words else _to_text(value)) + "\n"


def _to_text(value: Any) -> str:
    if isinstance(value, str):
        return value
    if value is None:
        return ""
    if isinstance(value, bool | list | tuple | dict):
        return json.dumps(value, ensure_ascii=False, default=_to_text)
    return value.decode("utf-8", "replace") if isinstance(value, bytes) else str(value)


def _format_tsv(cells: Iterable[Any]) -> str:
    return "\t".join(flatten_cell(_to_text(cell)) for cell in cells) + "\n"


def _format_csv(cells: Iterable[Any]) -> str:
    texts = map(_to_text, cells)
    quoted = ('"' + text.replace('"', '""') + '"' if re.search(r'[",\r\n\t]', text) else text for text in texts)
    return ",".join(quoted) + "\n"


def _write_parquet(part: Path, out: Path) -> None:
    """Convert JSON lines to Parquet in bounded memory: find the type of each column, then write batches of rows."""
    pa = require_package("pyarrow", "writing Parquet files")
    from pyarrow import parquet

    types: dict[str, Any] = {}
    for batch in _read_batches(part):
        for name in dict.fromkeys(name for row in batch for name in row):
            types[name] = _unify(pa, types.get(name), [row.get(name) for row in batch])
    schema = pa.schema([(name, pa.string() if pa.types.is_null(t) else t) for name, t in types.items()])
    with parquet.ParquetWriter(out, schema) as writer:
        for batch in _read_batches(part):
            arrays = [_to_array(pa, [row.get(field.name) for row in batch], field.type) for field in schema]
            writer.write_table(pa.Table.from_arrays(arrays, schema=schema))


def _read_batches(part: Path) -> Iterator[list[dict[str, Any]]]:
    with open(part, encoding="utf-8") as lines:
        while batch := [json.loads(line) for line in islice(lines, _BATCH_ROWS)]:
            yield batch


def _unify(pa: Any, known_type: Any, values: list[Any]) -> Any:
    """Return a type for these values and those of `known_type`; values of several kinds become texts."""
    try:
        new_type = pa.infer_type(values)
        schemas = [pa.schema([("x", each)]) for each in (known_type, new_type) if each is not None]
        return pa.unify_schemas(schemas, promote_options="permissive").field("x").type
    except pa.ArrowException:
        return pa.string()


def _to_array(pa: Any, values: list[Any], kind: Any) -> Any:
    if pa.types.is_string(kind):
        values = [None if value is None else _to_text(value) for value in values]
    return pa.array(values, kind)

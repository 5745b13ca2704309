"""HTML views of results for notebooks."""

import dataclasses
from typing import Any

from polyseme.report.html import html_table
from polyseme.report.style import scoped_table


class NotebookResult:
    """A base class of result dataclasses: notebooks show a table of their fields."""

    def _repr_html_(self) -> str:
        names = [field.name for field in dataclasses.fields(self) if field.repr]  # type: ignore[arg-type]
        rows = [(name, _format(getattr(self, name))) for name in names]
        return scoped_table(html_table([type(self).__name__, ""], rows))


def _format(value: Any) -> str:
    if isinstance(value, float):
        return f"{value:.6g}"
    if type(value) is int:
        return f"{value:,}"
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        value = {field.name: getattr(value, field.name) for field in dataclasses.fields(value) if field.repr}
    if isinstance(value, dict):
        return ", ".join(f"{key}: {_format(part)}" for key, part in value.items())
    if isinstance(value, tuple | list):
        return ", ".join(map(_format, value))
    return str(value)

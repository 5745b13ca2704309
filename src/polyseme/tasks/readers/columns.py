"""Which columns of a file are read, and how: chosen, as in fine-tuning, or by their usual names."""

import logging
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Self

from polyseme.errors import ConfigError, DataError, suggest
from polyseme.io.specs import check_conflicts, parse_bool, split_spec

logger = logging.getLogger(__name__)
ROLES = ("text", "pair", "label")
SPEC_OPTIONS = (*ROLES, "id", "format", "header", "encoding")


@dataclass(frozen=True)
class Columns:
    """The columns or keys of a file: names, or without a header numbers from 1; empty ones are not chosen.

    `format` is needed where the file name does not show it. `remembered` are the columns of fine-tuning, which are
    used where none is chosen and the file has them. With `keep_rows`, examples keep the whole row they were read from.
    """

    text: str = ""
    pair: str = ""
    label: str = ""
    has_header: bool = True
    encoding: str = ""
    id: str = ""
    format: str = ""
    remembered: "Columns | None" = None
    keep_rows: bool = False

    @classmethod
    def from_metadata(cls, metadata: Mapping[str, Any]) -> Self | None:
        """Return the columns that a model folder remembers; None if it has none."""
        names = metadata.get("columns")
        if not isinstance(names, Mapping):
            return None
        text, pair, label = (name if isinstance(name := names.get(role), str) else "" for role in ROLES)
        return cls(text, pair, label)

    def to_metadata(self) -> dict[str, str]:
        """Return the names of columns as a model folder remembers them."""
        return {role: name for role in ROLES if (name := getattr(self, role))}

    def with_spec(self, text: str) -> tuple[str, Self]:
        """Parse `PATH::name=value,…`; return the path, and the columns with its options."""
        path, settings = split_spec(text, SPEC_OPTIONS)
        header = "" if self.has_header else "false"
        check_conflicts(text, settings, {f"{role}_column": getattr(self, role) for role in ROLES} | {"header": header})
        changes: dict[str, Any] = dict(settings)
        if "header" in settings:
            changes["has_header"] = parse_bool(changes.pop("header"), text, "header")
        return path, replace(self, **changes)

    def resolve(self, path: Path, names: Sequence[str], is_table: bool) -> Self:
        """Return the columns to read of a file with these names: remembered ones, or the only one of a table."""
        changes: dict[str, Any] = {}
        for role in ROLES:
            name = getattr(self.remembered, role, "")
            if getattr(self, role) or not name:
                continue
            if name in names:
                changes[role] = name
            elif role in names:
                logger.warning(f"{path} has no column {name!r}, the {role} of fine-tuning: reading {role!r} instead")
        if not self.text and "text" not in changes and is_table and len(names) == 1:
            changes["text"] = names[0]
        return replace(self, remembered=None, **changes)

    def reject(self, path: Path, kind: str, *options: str) -> None:
        """Raise an error if one of the options is set, which has no effect on a file of this kind."""
        for name in options or SPEC_OPTIONS:
            field = "has_header" if name == "header" else name
            if getattr(self, field) != getattr(Columns, field):
                raise ConfigError(f"{path}: `{name}` has no effect on {kind}: leave it out")


def missing_role(location: str, role: str, name: str, names: Collection[str], noun: str = "column") -> DataError:
    """Return the error for a column that a file lacks, with those that it has and how to choose one."""
    path = location.rpartition(":")[0] or location
    return DataError(
        f"{location}: there is no {noun} {name!r}; {suggest(name, names)}"
        + (f" (choose with {path}::{role}={noun.upper()})" if names else "")
    )

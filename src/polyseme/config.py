"""A Spec says what one part is: a frozen dataclass that turns into JSON and back, and builds its module."""

from __future__ import annotations

import dataclasses
import functools
import math
import types
import typing
from dataclasses import dataclass
from typing import Any, Self

from polyseme.errors import UserError, nearest


@dataclass(frozen=True)
class Spec:
    """Base of everything that is data: parts, objectives, recipes.

    `to_json` writes plain values and nests specs; where a field may hold one of several specs, `kind` tells which.
    `from_json` is strict: an unknown key is an error that names the nearest valid one. The possible kinds are read
    off the field's annotation, so there is no registry and a file can never name code to run.
    """

    def to_json(self) -> dict[str, Any]:
        found: dict[str, Any] = {"kind": type(self).__name__}
        for name, hint in _hints(type(self)).items():
            value = _plain(getattr(self, name))
            if isinstance(value, dict) and "kind" in value and len(_specs_in(hint)) == 1:
                del value["kind"]
            found[name] = value
        return found

    @classmethod
    def from_json(cls, data: Any, where: str = "") -> Self:
        place = f" at {where}" if where else ""
        if not isinstance(data, dict):
            raise UserError(f"{cls.__name__}{place}: expected an object, got {data!r}")
        hints = _hints(cls)
        values: dict[str, Any] = {}
        for key, value in data.items():
            if key == "kind":
                if value != cls.__name__:
                    raise UserError(f"kind{place} is {value!r}, expected {cls.__name__!r}")
                continue
            if key not in hints:
                raise UserError(f"unknown key {key!r} in {cls.__name__}{place}; {nearest(key, hints)}")
            values[key] = read_value(hints[key], value, f"{where}.{key}" if where else key)
        required = {
            f.name
            for f in dataclasses.fields(cls)
            if f.default is dataclasses.MISSING and f.default_factory is dataclasses.MISSING
        }
        if missing := sorted(required - values.keys()):
            raise UserError(f"{cls.__name__}{place} lacks {', '.join(missing)}")
        return cls(**values)

    def replace(self, **changes: Any) -> Self:
        return dataclasses.replace(self, **changes)

    def within(self, low: float, high: float, *names: str) -> None:
        """A `UserError` unless low ≤ value < high for the fields of these names."""
        for name in names:
            in_range(name, getattr(self, name), low, high)

    def at(self, path: str, text: str) -> Self:
        """A copy with the value at a dotted path replaced by parsed text: `--set optim.rate=1e-4`."""
        name, _, rest = path.partition(".")
        hints = _hints(type(self))
        if name not in hints:
            raise UserError(f"unknown key {name!r} in {type(self).__name__}; {nearest(name, hints)}")
        if rest:
            inner = getattr(self, name)
            if isinstance(inner, dict):
                value = read_value(typing.get_args(hints[name])[1], _parse(text), path)
                return self.replace(**{name: {**inner, rest: value}})
            if not isinstance(inner, Spec):
                raise UserError(f"{name!r} in {type(self).__name__} has no parts, so {path!r} names nothing")
            try:
                return self.replace(**{name: inner.at(rest, text)})
            except UserError as error:
                raise UserError(f"{name}.{error}" if str(error).startswith(rest) else str(error)) from None
        return self.replace(**{name: read_value(hints[name], _parse(text), path)})


_resolved = functools.cache(typing.get_type_hints)  # it compiles every annotation anew


def _hints(cls: type) -> dict[str, Any]:
    hints = _resolved(cls)
    if "kind" in hints:
        raise TypeError(f"{cls.__name__}: a field cannot be called kind, which says which spec it is")
    return {f.name: hints[f.name] for f in dataclasses.fields(cls)}


def _members(hint: Any) -> tuple[Any, ...]:
    union = isinstance(hint, types.UnionType) or typing.get_origin(hint) is typing.Union
    return typing.get_args(hint) if union else (hint,)


def _specs_in(hint: Any) -> list[type[Spec]]:
    return [m for m in _members(hint) if isinstance(m, type) and issubclass(m, Spec)]


def in_range(name: str, value: float, low: float, high: float) -> None:
    """A `UserError` unless low ≤ value < high."""
    if isinstance(value, int | float) and not low <= value < high:  # another type is told with its place by from_json
        wanted = f"{low:g} or more" if high == math.inf else f"from {low:g} to below {high:g}"
        raise UserError(f"{name} is {value}, expected {wanted}")


def _plain(value: Any) -> Any:
    if isinstance(value, Spec):
        return value.to_json()
    if isinstance(value, tuple | list):
        return [_plain(v) for v in value]
    if isinstance(value, dict):
        return {k: _plain(v) for k, v in value.items()}
    return value


def read_value(hint: Any, value: Any, where: str) -> Any:
    """A value from JSON as its annotation has it, or a `UserError` that says where it stands."""
    if isinstance(value, Spec):
        return value
    for member in _members(hint):
        origin, args = typing.get_origin(member), typing.get_args(member)
        if member is Any or (member is type(None) and value is None):
            return value
        if origin is tuple and isinstance(value, list | tuple):
            inner = args[0] if args else Any
            return tuple(read_value(inner, v, f"{where}[{i}]") for i, v in enumerate(value))
        if origin is dict and isinstance(value, dict):
            return {k: read_value(args[1], v, f"{where}.{k}") for k, v in value.items()}
        if origin is typing.Literal and value in args:
            return value
        if member is float and isinstance(value, int | float) and not isinstance(value, bool):
            return float(value)
        if member in (int, str, bool) and type(value) is member:
            return value
    specs = _specs_in(hint)
    if specs and isinstance(value, dict):
        if len(specs) == 1:
            return specs[0].from_json(value, where)
        kinds = {s.__name__: s for s in specs}
        kind = value.get("kind", specs[0].__name__)  # a field that held one kind of spec did not say it
        if kind not in kinds:
            raise UserError(f"kind {kind!r} at {where}; {nearest(str(kind), kinds)}")
        return kinds[kind].from_json(value, where)
    raise UserError(f"{where} is {value!r}, expected {_name(hint)}")


def _name(hint: Any) -> str:
    if typing.get_origin(hint) is typing.Literal:
        return "one of " + ", ".join(map(repr, typing.get_args(hint)))
    return " or ".join(_name(m) if m is not hint else getattr(m, "__name__", str(m)) for m in _members(hint))


def _parse(text: str) -> Any:
    import json

    try:
        return json.loads(text)
    except json.JSONDecodeError:
        return text

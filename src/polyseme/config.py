"""Base class of configs: frozen dataclasses with strict conversion to and from JSON."""

from __future__ import annotations

import dataclasses
import functools
import math
import types
import typing
from dataclasses import dataclass
from typing import Any, Self

from polyseme.errors import ConfigError, suggest


@dataclass(frozen=True)
class Config:
    """Base class of the configs of parts, objectives and recipes.

    `to_json` nests configs; where a field may hold one of several config classes, the key `kind` tells which.
    `from_json` is strict: an unknown key is an error that names the closest valid one. The possible classes come from
    the annotation of the field, so there is no registry and a file can never name code to run.
    """

    def to_json(self) -> dict[str, Any]:
        """Convert to a JSON object."""
        values: dict[str, Any] = {"kind": type(self).__name__}
        for name, hint in _field_types(type(self)).items():
            value = _to_plain(getattr(self, name))
            if isinstance(value, dict) and "kind" in value and len(_config_types(hint)) == 1:
                del value["kind"]
            values[name] = value
        return values

    @classmethod
    def from_json(cls, obj: Any, location: str = "") -> Self:
        """Parse a JSON object; `location` is its path in error messages."""
        suffix = f" at {location}" if location else ""
        if not isinstance(obj, dict):
            raise ConfigError(f"{cls.__name__}{suffix}: expected an object, got {obj!r}")
        hints = _field_types(cls)
        values: dict[str, Any] = {}
        for key, value in obj.items():
            if key == "kind":
                if value != cls.__name__:
                    raise ConfigError(f"kind{suffix} is {value!r}, expected {cls.__name__!r}")
                continue
            if key not in hints:
                raise ConfigError(f"unknown key {key!r} in {cls.__name__}{suffix}; {suggest(key, hints)}")
            values[key] = parse_value(hints[key], value, f"{location}.{key}" if location else key)
        required = {
            f.name
            for f in dataclasses.fields(cls)
            if f.default is dataclasses.MISSING and f.default_factory is dataclasses.MISSING
        }
        if missing := sorted(required - values.keys()):
            raise ConfigError(f"{cls.__name__}{suffix}: missing {', '.join(missing)}")
        return cls(**values)

    def replace(self, **changes: Any) -> Self:
        """Return a copy with changed fields."""
        return dataclasses.replace(self, **changes)

    def check_range(self, low: float, high: float, *names: str) -> None:
        """Raise `ConfigError` unless low ≤ value < high for each of these fields."""
        for name in names:
            check_in_range(name, getattr(self, name), low, high)

    def with_override(self, path: str, text: str) -> Self:
        """Return a copy with the value at a dotted path (`optimizer.lr`) replaced by a parsed one (`1e-4`)."""
        name, _, rest = path.partition(".")
        hints = _field_types(type(self))
        if name not in hints:
            raise ConfigError(f"unknown key {name!r} in {type(self).__name__}; {suggest(name, hints)}")
        if rest:
            inner = getattr(self, name)
            if isinstance(inner, dict):
                value = parse_value(typing.get_args(hints[name])[1], _parse_text(text), path)
                return self.replace(**{name: {**inner, rest: value}})
            if not isinstance(inner, Config):
                raise ConfigError(f"{name!r} in {type(self).__name__} has no fields, so {path!r} does not exist")
            try:
                return self.replace(**{name: inner.with_override(rest, text)})
            except ConfigError as error:
                raise ConfigError(f"{name}.{error}" if str(error).startswith(rest) else str(error)) from None
        return self.replace(**{name: parse_value(hints[name], _parse_text(text), path)})


_type_hints = functools.cache(typing.get_type_hints)  # get_type_hints compiles every annotation on each call


def _field_types(cls: type) -> dict[str, Any]:
    hints = _type_hints(cls)
    if "kind" in hints:
        raise TypeError(f"{cls.__name__}: a field cannot be called kind, which names the class in JSON")
    return {f.name: hints[f.name] for f in dataclasses.fields(cls)}


def _union_members(hint: Any) -> tuple[Any, ...]:
    is_union = isinstance(hint, types.UnionType) or typing.get_origin(hint) is typing.Union
    return typing.get_args(hint) if is_union else (hint,)


def _config_types(hint: Any) -> list[type[Config]]:
    return [m for m in _union_members(hint) if isinstance(m, type) and issubclass(m, Config)]


def check_in_range(name: str, value: float, low: float, high: float) -> None:
    """Raise `ConfigError` unless low ≤ value < high."""
    if isinstance(value, int | float) and not low <= value < high:  # from_json reports a wrong type with its location
        expected = f"{low:g} or more" if high == math.inf else f"at least {low:g} and less than {high:g}"
        raise ConfigError(f"{name} is {value}, expected {expected}")


def _to_plain(value: Any) -> Any:
    if isinstance(value, Config):
        return value.to_json()
    if isinstance(value, tuple | list):
        return [_to_plain(v) for v in value]
    if isinstance(value, dict):
        return {k: _to_plain(v) for k, v in value.items()}
    return value


def parse_value(hint: Any, value: Any, location: str) -> Any:
    """Convert a JSON value to the annotated type; raise `ConfigError` naming the location."""
    if isinstance(value, Config):
        return value
    for member in _union_members(hint):
        origin, args = typing.get_origin(member), typing.get_args(member)
        if member is Any or (member is type(None) and value is None):
            return value
        if origin is tuple and isinstance(value, list | tuple):
            inner = args[0] if args else Any
            return tuple(parse_value(inner, v, f"{location}[{i}]") for i, v in enumerate(value))
        if origin is dict and isinstance(value, dict):
            return {k: parse_value(args[1], v, f"{location}.{k}") for k, v in value.items()}
        if origin is typing.Literal and value in args:
            return value
        if member is float and isinstance(value, int | float) and not isinstance(value, bool):
            return float(value)
        if member in (int, str, bool) and type(value) is member:
            return value
    config_types = _config_types(hint)
    if config_types and isinstance(value, dict):
        if len(config_types) == 1:
            return config_types[0].from_json(value, location)
        types_by_name = {s.__name__: s for s in config_types}
        kind = value.get("kind", config_types[0].__name__)  # `to_json` omits it for a field with one class
        if kind not in types_by_name:
            raise ConfigError(f"kind {kind!r} at {location}; {suggest(str(kind), types_by_name)}")
        return types_by_name[kind].from_json(value, location)
    raise ConfigError(f"{location} is {value!r}, expected {_describe_type(hint)}")


def _describe_type(hint: Any) -> str:
    if typing.get_origin(hint) is typing.Literal:
        return "one of " + ", ".join(map(repr, typing.get_args(hint)))
    return " or ".join(
        _describe_type(m) if m is not hint else getattr(m, "__name__", str(m)) for m in _union_members(hint)
    )


def _parse_text(text: str) -> Any:
    import json

    try:
        return json.loads(text)
    except json.JSONDecodeError:
        return text

"""Requests as frozen dataclasses: a strict parser with bounds, and the JSON schema of a dataclass."""

import dataclasses
import functools
import json
import types
import typing
from dataclasses import dataclass
from typing import Any

from polyseme.config import Config
from polyseme.errors import ConfigError

_JSON_ENCODER = json.JSONEncoder(ensure_ascii=False, separators=(",", ":"), allow_nan=False)


@dataclass(frozen=True)
class Rule:
    """What a field means, and its bounds: of a number, or of the length of a string or list."""

    description: str = ""
    minimum: float | None = None
    maximum: float | None = None
    exclusive_minimum: float | None = None
    min_length: int | None = None
    max_length: int | None = None
    example: Any = None

    def check(self, name: str, value: Any) -> None:
        """Raise `ConfigError` if a value is out of bounds; a list of lists is checked at the outer level."""
        if value is None or isinstance(value, bool):
            return
        is_number = isinstance(value, int | float)
        if is_number and self.minimum is not None and value < self.minimum:
            raise ConfigError(f"{name} is {value}, expected {self.minimum:g} or more")
        if is_number and self.maximum is not None and value > self.maximum:
            raise ConfigError(f"{name} is {value}, expected {self.maximum:g} or less")
        if is_number and self.exclusive_minimum is not None and value <= self.exclusive_minimum:
            raise ConfigError(f"{name} is {value}, expected more than {self.exclusive_minimum:g}")
        if isinstance(value, str | tuple):
            unit = "characters" if isinstance(value, str) else "elements"
            if self.min_length is not None and len(value) < self.min_length:
                raise ConfigError(f"{name} has {len(value)} {unit}, at least {self.min_length} are needed")
            if self.max_length is not None and len(value) > self.max_length:
                raise ConfigError(f"{name} has {len(value):,} {unit}, at most {self.max_length:,} are allowed")


@dataclass(frozen=True)
class BoundedConfig(Config):
    """A config whose annotations may have a `Rule`."""

    def __post_init__(self) -> None:
        cls: type = type(self)
        for name, (_, rule) in field_rules(cls).items():
            if rule is not None:
                rule.check(name, getattr(self, name))


@functools.cache
def field_rules(cls: type) -> dict[str, tuple[Any, Rule | None]]:
    """Return the annotation and the rule of each field of a dataclass."""
    hints = typing.get_type_hints(cls, include_extras=True)
    rules: dict[str, tuple[Any, Rule | None]] = {}
    for field in dataclasses.fields(cls):
        hint, rule = hints[field.name], None
        if typing.get_origin(hint) is typing.Annotated:
            hint, *metadata = typing.get_args(hint)
            rule = next((each for each in metadata if isinstance(each, Rule)), None)
        rules[field.name] = hint, rule
    return rules


def json_schema(cls: type, definitions: dict[str, Any]) -> dict[str, Any]:
    """Return a reference to the JSON schema of a dataclass; add it to the definitions, with those it refers to."""
    if cls.__name__ not in definitions:
        definitions[cls.__name__] = {}  # a class may refer to itself
        properties, required = {}, []
        for field in dataclasses.fields(cls):
            hint, rule = field_rules(cls)[field.name]
            properties[field.name] = _field_schema(hint, rule, definitions)
            has_default = (field.default, field.default_factory) != (dataclasses.MISSING, dataclasses.MISSING)
            if not has_default:
                required.append(field.name)
            elif isinstance(field.default, str | int | float | bool):
                properties[field.name]["default"] = field.default
        definition: dict[str, Any] = {"type": "object", "properties": properties, "required": required}
        definition["description"] = (cls.__doc__ or "").strip().split("\n\n")[0]
        if issubclass(cls, Config):
            definition["additionalProperties"] = False
        if not required:
            del definition["required"]
        definitions[cls.__name__] = definition
    return {"$ref": f"#/components/schemas/{cls.__name__}"}


def _field_schema(hint: Any, rule: Rule | None, definitions: dict[str, Any]) -> dict[str, Any]:
    schema = _type_schema(hint, definitions)
    if rule is None:
        return schema
    parts = schema.get("anyOf", [schema])
    for part in parts:
        bounds: dict[str, dict[str, float | None]] = {
            "number": {
                "minimum": rule.minimum,
                "maximum": rule.maximum,
                "exclusiveMinimum": rule.exclusive_minimum,
            },
            "string": {"minLength": rule.min_length, "maxLength": rule.max_length},
            "array": {"minItems": rule.min_length, "maxItems": rule.max_length},
        }
        kind = "number" if part.get("type") == "integer" else part.get("type", "")
        part.update({name: bound for name, bound in bounds.get(kind, {}).items() if bound is not None})
    if rule.description:
        schema["description"] = rule.description
    if rule.example is not None:
        schema["example"] = rule.example
    return schema


def _type_schema(hint: Any, definitions: dict[str, Any]) -> dict[str, Any]:
    origin, args = typing.get_origin(hint), typing.get_args(hint)
    if origin in (types.UnionType, typing.Union):
        return {"anyOf": [_type_schema(member, definitions) for member in args]}
    if origin is typing.Literal:
        return {"type": "string", "enum": list(args)}
    if origin in (tuple, list):
        return {"type": "array", "items": _type_schema(args[0], definitions)}
    if origin is dict:
        return {"type": "object", "additionalProperties": _type_schema(args[1], definitions)}
    if dataclasses.is_dataclass(hint):
        return json_schema(typing.cast(type, hint), definitions)
    names = {str: "string", int: "integer", float: "number", bool: "boolean", type(None): "null"}
    return {"type": names[hint]} if hint in names else {}


def to_plain(value: Any) -> Any:
    """Convert a response to plain values for JSON; a field that is None is left out."""
    if dataclasses.is_dataclass(value):
        names = field_names(type(value))  # type: ignore[arg-type]
        return {name: to_plain(each) for name in names if (each := getattr(value, name)) is not None}
    if isinstance(value, list | tuple):
        if value and isinstance(value[0], str | int | float):
            return value
        return [to_plain(each) for each in value]
    if isinstance(value, dict):
        return {key: to_plain(each) for key, each in value.items()}
    return value


def encode_json(value: Any) -> bytes:
    """Return plain values as compact JSON; raise `ValueError` for a number that is not finite."""
    return _JSON_ENCODER.encode(value).encode("utf-8", "replace")


@functools.cache
def field_names(cls: type) -> tuple[str, ...]:
    """Return the names of a dataclass's fields."""
    return tuple(field.name for field in dataclasses.fields(cls))

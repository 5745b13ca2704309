"""Base class of configs: frozen dataclasses with strict conversion to and from JSON."""

from __future__ import annotations

import dataclasses
import functools
import inspect
import json
import math
import types
import typing
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Self, TypeVar

from polyseme.errors import ConfigError, suggest
from polyseme.io.json import parse_strict
from polyseme.io.limits import MAX_INTEGER, MIN_INTEGER

ConfigT = TypeVar("ConfigT", bound="Config")
# Names of the same settings in other libraries, for the suggestion in an error.
_NAMES_ELSEWHERE = {
    "learning_rate": "lr",
    "num_train_epochs": "epochs",
    "num_epochs": "epochs",
    "per_device_train_batch_size": "batch_size",
    "warmup_ratio": "warmup",
    "warmup_steps": "warmup",
    "max_seq_length": "max_len",
    "max_length": "max_len",
    "mlm_probability": "mask_prob",
    "adam_epsilon": "eps",
}


@dataclass(frozen=True)
class Config:
    """Base class of configs of model parts, objectives and recipes.

    `to_json` writes plain values and nests configs; if a field may hold one of several types, `kind` is the name of
    the type. `from_json` is strict: an unknown key is an error that names the nearest valid one. The possible types are
    those of the field's annotation. For an abstract base they are its subclasses in `config_types` and among those
    passed to `from_json`, so there is no registry, and a file cannot name code to run.
    """

    config_types: ClassVar[tuple[type[Config], ...]] = ()
    error_name: ClassVar[str] = ""  # what errors call it; default: the name of the class
    name_field: ClassVar[str] = ""  # the field that a bare name in an override sets: `schedule=cosine`

    def to_json(self) -> dict[str, Any]:
        """Convert to a JSON object."""
        values: dict[str, Any] = {"kind": type(self).__name__}
        for name, hint in _field_types(type(self)).items():
            value = _to_plain(getattr(self, name))
            if isinstance(value, dict) and _config_types(hint) == [type(getattr(self, name))]:
                del value["kind"]
            values[name] = value
        return values

    @classmethod
    def from_json(cls, obj: Any, location: str = "", config_types: Sequence[type[Config]] = ()) -> Self:
        """Parse what `to_json` returns; `location` is for errors, `config_types` are extra types."""
        config_types = (*cls.config_types, *config_types)
        suffix = f" at {location}" if location else ""
        shown = cls.error_name or cls.__name__
        if not isinstance(obj, dict):
            raise ConfigError(f"{shown}{suffix}: expected an object, got {obj!r}")
        hints = _field_types(cls)
        values: dict[str, Any] = {}
        for key, value in obj.items():
            if key == "kind" and not cls.error_name:
                if value != cls.__name__:
                    raise ConfigError(f"kind{suffix} is {value!r}, expected {cls.__name__!r}")
                continue
            if key not in hints:
                raise ConfigError(f"unknown key {key!r} in {shown}{suffix}; {suggest(key, hints)}")
            values[key] = parse_value(hints[key], value, f"{location}.{key}" if location else key, config_types)
        if missing := sorted(_required_fields(cls) - values.keys()):
            raise ConfigError(f"{shown}{suffix}: missing {', '.join(missing)}")
        return cls(**values)

    def replace(self, **changes: Any) -> Self:
        """Return a copy with changed fields."""
        return dataclasses.replace(self, **changes)

    def build(self, *args: Any, **kwargs: Any) -> Any:
        """Create the module or object that this config describes."""
        raise NotImplementedError(f"{type(self).__name__} describes no module")

    def check_range(self, low: float, high: float, *names: str) -> None:
        """Raise `ConfigError` unless low ≤ value < high for each of these fields."""
        for name in names:
            check_in_range(name, getattr(self, name), low, high)

    def with_override(self, path: str, text: str) -> Self:
        """Return a copy with the value at a path (`optimizer.lr`, or just `lr`) replaced by a parsed one (`1e-4`)."""
        path = self.expand_path(path)
        name, _, rest = path.partition(".")
        hints = _field_types(type(self))
        if rest:
            inner = getattr(self, name)
            if isinstance(inner, dict):
                value = parse_value(typing.get_args(hints[name])[1], parse_text(text, path), path)
                return self.replace(**{name: {**inner, rest: value}})
            if not isinstance(inner, Config):
                raise ConfigError(f"{name!r} in {type(self).__name__} has no fields, so {path!r} does not exist")
            try:
                return self.replace(**{name: inner.with_override(rest, text)})
            except ConfigError as error:
                raise ConfigError(f"{name}.{error}" if str(error).startswith(rest) else str(error)) from None
        value, inner = parse_text(text, path), getattr(self, name)
        if isinstance(value, str) and isinstance(inner, Config):
            if inner.name_field:
                return self.with_override(f"{name}.{inner.name_field}", text)
            if (named := inner.with_name(value)) is not None:
                return self.replace(**{name: named})
        if hints[name] is str and not isinstance(value, str):
            value = text  # a string that looks like a number
        return self.replace(**{name: parse_value(hints[name], value, path, self.config_types)})

    def with_name(self, name: str) -> Self | None:
        """Return the config that a bare name in its place stands for; None if names mean nothing here."""
        return None

    def expand_path(self, path: str) -> str:
        """Return the dotted path of a field: the path itself, or that of the only nested config with such a field."""
        name, dot, rest = path.partition(".")
        paths = self.find_paths(name)
        if len(paths) > 1:
            raise ConfigError(f"{name!r} may be {' or '.join(paths)}: use one of these names")
        if not paths:
            known = {*_field_types(type(self)), *_nested_paths(self)}
            usual_name = _NAMES_ELSEWHERE.get(name, "")
            hint = f"did you mean {usual_name!r}?" if usual_name in known else suggest(name, known)
            raise ConfigError(f"unknown key {name!r} in {type(self).__name__}; {hint}")
        return paths[0] + dot + rest

    def find_paths(self, name: str) -> list[str]:
        """Return the dotted paths that a name may stand for: a field of this config, or else of nested ones."""
        return [name] if name in _field_types(type(self)) else _nested_paths(self).get(name, [])


def _nested_paths(config: Config) -> dict[str, list[str]]:
    """Return the dotted paths of all fields of nested configs by their name, of several levels the outermost."""
    values = {field.name: getattr(config, field.name) for field in dataclasses.fields(config)}
    nested_configs = {name: value for name, value in values.items() if isinstance(value, Config)}
    paths: dict[str, list[str]] = {}
    for name, nested in nested_configs.items():
        for field in dataclasses.fields(nested):
            paths.setdefault(field.name, []).append(f"{name}.{field.name}")
    deeper_paths: dict[str, list[str]] = {}
    for name, nested in nested_configs.items():
        for field_name, rest in _nested_paths(nested).items():
            deeper_paths.setdefault(field_name, []).extend(f"{name}.{path}" for path in rest)
    return deeper_paths | paths


def override_config(config: ConfigT, overrides: Mapping[str, Any], prefix: str = "") -> ConfigT:
    """Replace fields by plain values; a mapping replaces fields of a nested config: `{"optimizer": {"lr": 1e-4}}`."""
    for name, value in overrides.items():
        path = f"{prefix}{name}"
        if isinstance(value, Mapping) and "kind" not in value:
            config = override_config(config, value, f"{path}.")
        elif isinstance(value, Config):
            config = config.replace(**{path: value})
        else:
            try:
                text = json.dumps(value)
            except (TypeError, ValueError, RecursionError) as error:
                raise ConfigError(f"{path} is not a plain value ({error})") from None
            config = config.with_override(path, text)
    return config


_type_hints = functools.cache(typing.get_type_hints)  # get_type_hints compiles every annotation on each call


@functools.cache
def _describe_fields(cls: type) -> tuple[dict[str, Any], frozenset[str]]:
    hints, fields = _type_hints(cls), dataclasses.fields(cls)
    if "kind" in hints:
        raise TypeError(f"{cls.__name__}: a field cannot be called kind, which names the class in JSON")
    missing_default = (dataclasses.MISSING, dataclasses.MISSING)
    required = frozenset(f.name for f in fields if (f.default, f.default_factory) == missing_default)
    return {f.name: hints[f.name] for f in fields}, required


def _field_types(cls: type) -> dict[str, Any]:
    """Return the type of each field of a dataclass; the result is shared."""
    return _describe_fields(cls)[0]


def _required_fields(cls: type) -> frozenset[str]:
    """Return the names of the fields of a dataclass without a default."""
    return _describe_fields(cls)[1]


def _union_members(hint: Any) -> tuple[Any, ...]:
    is_union = isinstance(hint, types.UnionType) or typing.get_origin(hint) is typing.Union
    return typing.get_args(hint) if is_union else (hint,)


def _config_types(hint: Any) -> list[type[Config]]:
    """Return the configs named in an annotation."""
    return [m for m in _union_members(hint) if isinstance(m, type) and issubclass(m, Config)]


def _possible_types(hint: Any, config_types: Sequence[type[Config]]) -> list[type[Config]]:
    """Return the types of a value: those of the annotation, an abstract one replaced by its known subclasses."""
    possible: list[type[Config]] = []
    for base in _config_types(hint):
        possible += [t for t in config_types if issubclass(t, base)] if inspect.isabstract(base) else [base]
    return possible


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


def parse_value(hint: Any, value: Any, location: str, config_types: Sequence[type[Config]] = ()) -> Any:
    """Convert a JSON value to the annotated type; raise `ConfigError` naming the location."""
    if isinstance(value, Config):
        return value
    for member in _union_members(hint):
        origin, args = typing.get_origin(member), typing.get_args(member)
        if member is Any or (member is type(None) and value is None):
            return value
        if origin is tuple and isinstance(value, list | tuple):
            inner = args[0] if args else Any
            if inner is str and all(type(v) is str for v in value):
                return tuple(value)
            return tuple(parse_value(inner, v, f"{location}[{i}]", config_types) for i, v in enumerate(value))
        if origin is dict and isinstance(value, dict):
            return {k: parse_value(args[1], v, f"{location}.{k}", config_types) for k, v in value.items()}
        if origin is typing.Literal and value in args:
            return value
        if member is float and isinstance(value, int | float) and not isinstance(value, bool):
            return float(_check_number(value, location))
        if member in (int, str, bool) and type(value) is member:
            return _check_number(value, location) if member is int else value
    possible = _possible_types(hint, config_types)
    types_by_name = {t.__name__: t for t in possible}
    if len(possible) > 1 and isinstance(value, str):  # the name of a type stands for its default
        names = {_fold_name(name): name for name in types_by_name}
        if _fold_name(value) not in names:
            raise ConfigError(f"{location} is {value!r}; {suggest(value, types_by_name)}")
        return types_by_name[names[_fold_name(value)]].from_json({}, location, config_types)
    if possible and isinstance(value, dict):
        kind = value.get("kind", possible[0].__name__)  # a field of one type has no kind
        if not isinstance(kind, str) or kind not in types_by_name:
            raise ConfigError(f"kind {kind!r} at {location}; {suggest(str(kind), types_by_name)}")
        return types_by_name[kind].from_json(value, location, config_types)
    raise ConfigError(f"{location} is {value!r}, expected {_describe_type(hint)}")


def _fold_name(name: str) -> str:
    """Return a name without case and separators: `causal-lm` and `CausalLM` are one name."""
    return name.replace("_", "").replace("-", "").replace(" ", "").lower()


def _describe_type(hint: Any) -> str:
    if typing.get_origin(hint) is typing.Literal:
        return "one of " + ", ".join(map(repr, typing.get_args(hint)))
    members = _union_members(hint)
    return " or ".join(map(_describe_type, members)) if members != (hint,) else _type_name(hint)


def _type_name(hint: Any) -> str:
    if hint is type(None):
        return "None"
    return getattr(hint, "error_name", "") or getattr(hint, "__name__", str(hint))


def _check_number(value: float, location: str) -> float:
    if isinstance(value, int) and not MIN_INTEGER <= value <= MAX_INTEGER:
        raise ConfigError(f"{location} is an integer of {value.bit_length()} bits, expected at most 64")
    if not math.isfinite(value):
        raise ConfigError(f"{location} is {value}, expected a finite number")
    return value


def parse_text(text: str, location: str) -> Any:
    """Parse the value of a setting: JSON, or else the text itself."""
    try:
        return parse_strict(text)
    except json.JSONDecodeError:
        return text
    except ValueError as error:
        raise ConfigError(f"{location}: {error}") from None

"""Two-way tables between our configs and weights and those of the folder format of `transformers`."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from operator import attrgetter
from typing import Any, Literal

from polyseme.errors import ModelError, PolysemeError
from polyseme.nn.model import ModelConfig, build_meta
from polyseme.nn.sizes import check_sizes
from polyseme.nn.trunks.base import TrunkConfig

# where a Transformer's config has the value of an argument of `trunk_config`, if not under the argument's name
PATHS = {
    "num_heads": "block.attention.num_heads",
    "head_dim": "block.attention.head_dim",
    "attention_dropout": "block.attention.dropout",
    "ffn_dim": "block.ffn.ffn_dim",
    "activation": "block.ffn.activation",
    "dropout": "block.dropout",
    "eps": "block.post_norm.eps",
    "init_std": "init.std",
    "embedding_dropout": "embeddings.dropout",
    **{name: f"embeddings.{name}" for name in ("vocab_size", "max_len", "num_segments", "embedding_dim", "div_value")},
}
ConfigPath = str | Callable[[Any], Any]  # attributes of the trunk's config, or a function of the model's
Op = Literal["same", "transpose", "concat", "merge_heads", "flatten_heads"]


@dataclass(frozen=True)
class ConfigMap:
    """One row of the two-way config table: a key of `config.json` and an argument of `trunk_config`.

    If the key is missing, the argument keeps its default, unless the row `is_required` (an integer) or has a `default`.
    `path` locates the value in a model's config (by default as in `PATHS`); a value equal to `omit` is not written.
    `values` maps our values to published ones, `parse` converts a published value to ours. A value that is not
    `allowed` is an error. A row without an argument only checks or writes its key.
    """

    key: str
    arg: str = ""
    path: ConfigPath = ""
    is_required: bool = False
    values: Mapping[Any, Any] = field(default_factory=dict)
    allowed: tuple[Any, ...] = ()
    default: Any = ...
    omit: Any = ...
    parse: Callable[[Any], Any] | None = None

    def check(self, hf_config: Mapping[str, Any]) -> None:
        """Raise if the value in a published config is not supported."""
        allowed = self.allowed or tuple(self.values.values())
        if allowed and hf_config.get(self.key, allowed[0]) not in allowed:
            expected = " or ".join(map(repr, allowed))
            raise ModelError(f"config.json: {self.key} is {hf_config[self.key]!r}, but only {expected} is supported")

    def to_hf(self, config: ModelConfig, paths: Mapping[str, Any]) -> Any:
        """Return the published value of a model, or `omit`."""
        path = self.path or paths.get(self.arg) or PATHS.get(self.arg, self.arg)
        value = path(config) if callable(path) else attrgetter(path)(config.trunk)
        return self.values[value] if self.values else value

    def from_hf(self, value: Any) -> Any:
        """Return our value of a published one."""
        if self.values:
            value = next(name for name, published in self.values.items() if published == value)
        return self.parse(value) if self.parse else value


def target_vocab_size(config: Any) -> int:
    """Return the size of the target's own vocabulary, or 0 if both sides share one."""
    embeddings = config.trunk.decoder.embeddings
    return 0 if embeddings.tied_to_encoder else embeddings.vocab_size


def optional(*names: str, **args: str) -> tuple[ConfigMap, ...]:
    """Return rows of settings with a default: keys named like our arguments, and keys with their arguments."""
    return tuple(ConfigMap(key, arg) for key, arg in [*zip(names, names), *args.items()])


def required(*names: str, **args: str) -> tuple[ConfigMap, ...]:
    """Return rows of integers that every config has: keys named like our arguments, and keys with their arguments."""
    return tuple(replace(row, is_required=True) for row in optional(*names, **args))


def choices(**allowed: tuple[Any, ...]) -> tuple[ConfigMap, ...]:
    """Return rows of settings named like our arguments, with their possible values."""
    return tuple(ConfigMap(name, name, allowed=values) for name, values in allowed.items())


def constants(**values: Any) -> tuple[ConfigMap, ...]:
    """Return rows of keys with one supported value, which is also written."""
    return tuple(ConfigMap(key, path=lambda _, v=value: v, allowed=(value,)) for key, value in values.items())  # type: ignore[misc]


def fixed(**values: Any) -> tuple[ConfigMap, ...]:
    """Return rows of keys with one supported value, the default of `transformers`, which is not written."""
    return tuple(ConfigMap(key, allowed=(value,)) for key, value in values.items())


@dataclass(frozen=True)
class ConfigTable:
    """Two-way table between a model's config and the `config.json` of `transformers`.

    `paths` locates arguments that are not where `PATHS` says. `finish` receives the published config and the arguments
    of `trunk_config` that the rows yield, and returns the final arguments.
    """

    model_type: str  # "" means the family's name
    trunk_config: Callable[..., TrunkConfig]
    rows: tuple[ConfigMap, ...]
    paths: Mapping[str, ConfigPath] = field(default_factory=dict)
    finish: Callable[[dict[str, Any], dict[str, Any]], dict[str, Any]] | None = None

    def to_hf(self, config: ModelConfig) -> dict[str, Any]:
        """Return the `config.json` of a model."""
        hf_config = {"model_type": self.model_type or config.family}
        for row in self.rows:
            if (row.arg or row.path) and (value := row.to_hf(config, self.paths)) != row.omit:
                hf_config[row.key] = value
        return hf_config

    def from_hf(self, hf_config: dict[str, Any]) -> TrunkConfig:
        """Return the trunk's config from a `config.json`; raise for settings the family does not support."""
        try:
            return self.trunk_config(**self.arguments(hf_config))
        except PolysemeError:
            raise
        except Exception as error:  # a value of the wrong type or outside its range
            raise ModelError(f"config.json does not describe a {self.model_type} model ({error})") from error

    def arguments(self, hf_config: dict[str, Any]) -> dict[str, Any]:
        """Return the arguments of `trunk_config` for a `config.json`."""
        hf_config = {row.key: row.default for row in self.rows if row.default is not ...} | hf_config
        for row in self.rows:
            row.check(hf_config)
        sizes = [row.key for row in self.rows if row.is_required]
        if missing := [key for key in sizes if key not in hf_config]:
            raise ModelError(f"config.json lacks {', '.join(missing)}")
        for key in sizes:
            if type(hf_config[key]) is not int:
                raise ModelError(f"config.json: {key} is {hf_config[key]!r}, expected an integer")
        check_sizes({row.key: hf_config.get(row.key) for row in self.rows}, "config.json")
        args = {row.arg: row.from_hf(hf_config[row.key]) for row in self.rows if row.arg and row.key in hf_config}
        return self.finish(hf_config, args) if self.finish else args


@dataclass(frozen=True)
class WeightMap:
    """One row of the two-way weight table: our name, the published name or names, and the operation between them.

    `same` copies, `transpose` transposes a matrix (GPT-2 stores linear layers transposed), `concat` concatenates along
    the first axis. For published matrices [dim, heads, head_dim], `merge_heads` reshapes to [heads · head_dim, dim] and
    concatenates, `flatten_heads` reshapes to [dim, heads · head_dim]. `{}` stands for the layer index.
    """

    name: str
    published_names: tuple[str, ...]
    op: Op = "same"


def same_names(*names: str) -> tuple[WeightMap, ...]:
    """Return weight maps of tensors that are saved under our names."""
    return tuple(WeightMap(name, (name,)) for name in names)


def all_same_names(config: ModelConfig) -> tuple[WeightMap, ...]:
    """Return weight maps of a whole trunk that is saved under our names."""
    return same_names(*build_meta(config.replace(heads={})).state_dict())


def weight_and_bias(name: str, *published: str, op: Op = "same") -> tuple[WeightMap, WeightMap]:
    """Return weight maps of a layer, from one or several published ones; `op` applies to the weight."""
    weight, bias = (tuple(f"{layer}.{part}" for layer in published or (name,)) for part in ("weight", "bias"))
    if len(published) > 1:
        return WeightMap(f"{name}.weight", weight, "concat"), WeightMap(f"{name}.bias", bias, "concat")
    return WeightMap(f"{name}.weight", weight, op), WeightMap(f"{name}.bias", bias)


def layer_maps(
    published_block: str, layers: Mapping[str, str | tuple[str, ...]], op: Op = "same"
) -> tuple[WeightMap, ...]:
    """Return weight maps of layers inside a block, given as our name and one or several published names."""
    maps: list[WeightMap] = []
    for name, published in layers.items():
        names = (f"{published_block}.{n}" for n in ([published] if isinstance(published, str) else published))
        maps += weight_and_bias(f"trunk.blocks.{{}}.{name}", *names, op=op)
    return tuple(maps)


def dense_head_maps(dense: str, linear: str, *heads: str) -> dict[str, tuple[WeightMap, ...]]:
    """Return weight maps of heads with a dense and a linear layer, which share their published names."""
    return {
        head: (*weight_and_bias(f"heads.{head}.dense", dense), *weight_and_bias(f"heads.{head}.linear", linear))
        for head in heads
    }


def linear_head_maps(**published: str) -> dict[str, tuple[WeightMap, ...]]:
    """Return weight maps of heads with one linear layer."""
    return {head: weight_and_bias(f"heads.{head}.linear", layer) for head, layer in published.items()}


NATIVE_LABEL_HEADS = linear_head_maps(classify="heads.classify.linear", tag="heads.tag.linear")
TASK_CLASSES = {
    "classify": "ForSequenceClassification",
    "tag": "ForTokenClassification",
    "span": "ForQuestionAnswering",
    "choice": "ForMultipleChoice",
}
TASKS = tuple(TASK_CLASSES)


def architectures(
    prefix: str, tasks: tuple[str, ...] = ("classify", "tag"), **pretraining: tuple[str, ...]
) -> dict[str, tuple[str, ...]]:
    """Return class names as in `transformers`: with pre-training heads, with the head of each task, and with none."""
    task_classes = {TASK_CLASSES[task]: (task,) for task in tasks}
    return {prefix + suffix: heads for suffix, heads in {**pretraining, **task_classes, "Model": ()}.items()}

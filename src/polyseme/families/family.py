"""Family: an architecture described as data."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from polyseme.config import Config
from polyseme.errors import ConfigError, ModelError, suggest
from polyseme.nn.heads.base import HeadConfig
from polyseme.nn.model import ModelConfig
from polyseme.nn.trunks.base import TrunkConfig

# Task heads and the states they use: sequence label, token labels, start and end of an answer, score of a choice.
HEAD_POOLING: dict[str, Literal["tokens", "pooled"]] = {
    "classify": "pooled",
    "tag": "tokens",
    "span": "tokens",
    "choice": "pooled",
}
FIXED_LABELS: dict[str, tuple[str, ...]] = {"span": ("start", "end"), "choice": ("score",)}


@dataclass(frozen=True)
class WeightMap:
    """One row of the two-way weight table: our name, the published name or names, and the operation between them.

    `same` copies, `transpose` transposes a matrix (GPT-2 stores linear layers transposed), `concat` concatenates along
    the first axis. For published matrices [dim, heads, head_dim], `merge_heads` reshapes to [heads · head_dim, dim] and
    concatenates, `flatten_heads` reshapes to [dim, heads · head_dim]. `{}` stands for the layer index.
    """

    name: str
    published_names: tuple[str, ...]
    op: Literal["same", "transpose", "concat", "merge_heads", "flatten_heads"] = "same"


@dataclass(frozen=True)
class Family:
    """An architecture: its config function, published sizes, and the names of its weights in published files."""

    name: str
    paper: str
    tokenizer: Literal["wordpiece", "bpe", "byte-bpe-roberta", "unigram", "events", "words", "characters"]
    objective: str  # pre-training objective, for display
    trunk_config: Callable[..., TrunkConfig]
    sizes: dict[str, dict[str, Any]]  # arguments of `trunk_config`
    num_params: dict[str, int]  # published number of parameters, without heads
    pretraining_heads: Callable[[Any], dict[str, HeadConfig]]
    task_head: Callable[[str, tuple[str, ...], Any], HeadConfig]  # a key of `HEAD_POOLING`, labels, trunk
    # the folder format of `transformers`
    to_hf_config: Callable[[ModelConfig], dict[str, Any]]
    from_hf_config: Callable[[dict[str, Any]], TrunkConfig]  # its key `tensors` lists the names in the files
    architectures: dict[str, tuple[str, ...]]  # class name in `transformers` -> names of our heads
    base_model_prefix: str  # prefix of the base model's weights in a model with a head
    weight_maps: tuple[WeightMap, ...] | Callable[[ModelConfig], tuple[WeightMap, ...]]
    head_weight_maps: dict[str, tuple[WeightMap, ...]]
    tied_weights: dict[str, str] = field(default_factory=dict)  # published names that repeat another tensor
    optional_weights: tuple[str, ...] = ()  # our names that some published architectures lack
    ignored_weights: tuple[str, ...] = ()  # published names of tensors that are not weights
    legacy_suffixes: dict[str, str] = field(default_factory=dict)  # suffixes in older files -> current ones
    cls_position: Literal["first", "last"] = "first"  # of the classification token, if there is one
    departures: tuple[str, ...] = ()  # differences from the paper
    model_type: str = ""  # in config.json, if it differs from `name`
    paper_params: dict[str, str] = field(default_factory=dict)  # counts printed in the paper, if rounded differently
    # tokens that fine-tuning adds to the vocabulary: before a text, between two texts, after the last
    finetune_template: tuple[str, str, str] | None = None
    decoder_start_token: Literal["bos", "pad"] = "bos"  # first token of a target; eos if the vocabulary lacks it
    num_sentinels: int = 0  # sentinel tokens at the end of the vocabulary that stand for corrupted spans
    is_text_to_text: bool = False  # whether it answers tasks as generated text, given a decoder, instead of by heads
    config_types: tuple[type[Config], ...] = ()  # trunk and head configs that are not part of the package

    def upgrade_name(self, name: str) -> str:
        """Return the current form of a published tensor's name."""
        for legacy, current in self.legacy_suffixes.items():
            if name.endswith(legacy):
                return name.removesuffix(legacy) + current
        return name

    def model_config(self, size: str | None = None, *, with_heads: bool = True, **overrides: Any) -> ModelConfig:
        """Return the model's config at a published size, with overridden arguments of `trunk_config`."""
        if size is not None and size not in self.sizes:
            raise ConfigError(f"{self.name} has no size {size!r}; {suggest(size, self.sizes)}")
        trunk_config = self.trunk_config(**{**(self.sizes[size] if size else {}), **overrides})
        return ModelConfig(self.name, trunk_config, self.pretraining_heads(trunk_config) if with_heads else {})


def read_hf_config(
    hf_config: dict[str, Any], int_fields: dict[str, Any], allowed_values: dict[str, Any]
) -> dict[str, Any]:
    """Return the integers of a published config under our names; raise for settings the family does not support."""
    for key, allowed in allowed_values.items():
        if hf_config.get(key, allowed[0]) not in allowed:
            expected = " or ".join(map(repr, allowed))
            raise ModelError(f"config.json: {key} is {hf_config[key]!r}, but only {expected} is supported")
    if missing := [published for published in int_fields.values() if published not in hf_config]:
        raise ModelError(f"config.json lacks {', '.join(missing)}")
    for published in int_fields.values():
        if type(hf_config[published]) is not int:
            raise ModelError(f"config.json: {published} is {hf_config[published]!r}, expected an integer")
    return {name: hf_config[published] for name, published in int_fields.items()}


def same_names(*names: str) -> tuple[WeightMap, ...]:
    """Return weight maps of tensors that are saved under our names."""
    return tuple(WeightMap(name, (name,)) for name in names)


def all_same_names(config: ModelConfig) -> tuple[WeightMap, ...]:
    """Return weight maps of a whole trunk that is saved under our names."""
    from polyseme.nn.model import build_meta

    return same_names(*build_meta(config.replace(heads={})).state_dict())


def weight_and_bias(
    name: str, published: str = "", op: Literal["same", "transpose"] = "same"
) -> tuple[WeightMap, WeightMap]:
    """Return weight maps of a layer's weight and bias; `published` defaults to our name, `op` applies to the weight."""
    published = published or name
    return WeightMap(f"{name}.weight", (f"{published}.weight",), op), WeightMap(f"{name}.bias", (f"{published}.bias",))


NATIVE_LABEL_HEADS = {name: weight_and_bias(f"heads.{name}.linear") for name in ("classify", "tag")}


def native_architectures(prefix: str, pretraining: Mapping[str, tuple[str, ...]]) -> dict[str, tuple[str, ...]]:
    """Return class names of a family that `transformers` lacks: with pre-training heads, label heads, and none."""
    labels = {"ForSequenceClassification": ("classify",), "ForTokenClassification": ("tag",)}
    return {prefix + suffix: heads for suffix, heads in {**pretraining, **labels, "Model": ()}.items()}

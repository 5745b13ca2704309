"""What a family is: data, in a plain dataclass."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from polyseme.config import Config
from polyseme.errors import ConfigError, ModelError, suggest
from polyseme.nn.heads.base import HeadConfig
from polyseme.nn.model import ModelConfig
from polyseme.nn.trunks.base import TrunkConfig

# The heads of tasks: a label of the sequence, of each token, where an answer begins and ends, the worth of a choice.
HEAD_POOLING: dict[str, Literal["tokens", "pooled"]] = {
    "classify": "pooled",
    "tag": "tokens",
    "span": "tokens",
    "choice": "pooled",
}
FIXED_LABELS: dict[str, tuple[str, ...]] = {"span": ("start", "end"), "choice": ("score",)}


@dataclass(frozen=True)
class WeightMap:
    """One row of the two-way weight table: our name, the published name or names, and what lies between.

    `same` copies, `transpose` turns a matrix (GPT-2 stores its linear layers the other way round), `stack` joins
    several along their first axis. Where others keep a matrix as [dim, heads, head_dim], `fold` turns it into ours,
    [heads · head_dim, dim], joined as by `stack`, and `flat` into [dim, heads · head_dim]. `{}` stands for the layer's
    number.
    """

    name: str
    published_names: tuple[str, ...]
    op: Literal["same", "transpose", "concat", "merge_heads", "flatten_heads"] = "same"


@dataclass(frozen=True)
class Family:
    """An architecture: how its spec is made, the sizes its paper published, and how its weights are named elsewhere."""

    name: str
    paper: str
    tokenizer: Literal["wordpiece", "bpe", "byte-bpe-roberta", "unigram", "events", "words", "characters"]
    objective: str  # what it was pre-trained with, in words
    trunk_config: Callable[..., TrunkConfig]
    sizes: dict[str, dict[str, Any]]  # arguments of `trunk`
    num_params: dict[str, int]  # parameters of the bare model at its published vocabulary
    pretraining_heads: Callable[[Any], dict[str, HeadConfig]]  # the heads of pre-training, of its kind of trunk
    task_head: Callable[[str, tuple[str, ...], Any], HeadConfig]  # a name of `HEAD_POOLING`, and its labels
    # the folder that `transformers` reads and writes
    to_hf_config: Callable[[ModelConfig], dict[str, Any]]
    from_hf_config: Callable[[dict[str, Any]], TrunkConfig]  # under `tensors`, the names that the files hold
    architectures: dict[str, tuple[str, ...]]  # class name there -> names of our heads
    base_model_prefix: str  # the base model's prefix inside a model with a head
    weight_maps: tuple[WeightMap, ...] | Callable[[ModelConfig], tuple[WeightMap, ...]]
    head_weight_maps: dict[str, tuple[WeightMap, ...]]
    tied_weights: dict[str, str] = field(default_factory=dict)  # published names that repeat another tensor
    optional_weights: tuple[str, ...] = ()  # our names that some published architectures lack
    ignored_weights: tuple[str, ...] = ()  # published names that hold no weight
    legacy_suffixes: dict[str, str] = field(default_factory=dict)  # endings that older files use, and what they became
    cls_position: Literal["first", "last"] = "first"  # where the token of the whole sequence stands, if there is one
    departures: tuple[str, ...] = ()
    model_type: str = ""  # what config.json calls it, where that is not its name
    paper_params: dict[str, str] = field(
        default_factory=dict
    )  # counts as the paper prints them, where it rounds otherwise
    # what fine-tuning adds to the vocabulary: before a text, between two texts, behind the last
    finetune_template: tuple[str, str, str] | None = None
    decoder_start_token: Literal["bos", "pad"] = "bos"  # the mark that a target opens with; eos, where there is none
    num_sentinels: int = 0  # special tokens at the end of its vocabulary that stand for spans
    text_to_text_tasks: tuple[
        str, ...
    ] = ()  # the kinds of tasks that it answers in text, given a decoder; else by heads
    config_types: tuple[type[Config], ...] = ()  # trunk and head configs that are not part of the package

    def upgrade_name(self, name: str) -> str:
        """A published tensor's name as today's files write it."""
        for legacy, current in self.legacy_suffixes.items():
            if name.endswith(legacy):
                return name.removesuffix(legacy) + current
        return name

    def model_config(self, size: str | None = None, *, with_heads: bool = True, **overrides: Any) -> ModelConfig:
        """The model's spec at a published size, any argument of `trunk_config` changed."""
        if size is not None and size not in self.sizes:
            raise ConfigError(f"{self.name} has no size {size!r}; {suggest(size, self.sizes)}")
        trunk_config = self.trunk_config(**{**(self.sizes[size] if size else {}), **overrides})
        return ModelConfig(self.name, trunk_config, self.pretraining_heads(trunk_config) if with_heads else {})


def read_hf_config(
    hf_config: dict[str, Any], int_fields: dict[str, Any], allowed_values: dict[str, Any]
) -> dict[str, Any]:
    """Whole numbers of a published config by name; a setting that the family does not have is an error, not a guess."""
    for key, allowed in allowed_values.items():
        if hf_config.get(key, allowed[0]) not in allowed:
            expected = " or ".join(map(repr, allowed))
            raise ModelError(f"config.json: {key} is {hf_config[key]!r}, but only {expected} is supported")
    if missing := [published for published in int_fields.values() if published not in hf_config]:
        raise ModelError(f"config.json lacks {', '.join(missing)}")
    for published in int_fields.values():
        if type(hf_config[published]) is not int:
            raise ModelError(f"config.json: {published} is {hf_config[published]!r}, expected a whole number")
    return {name: hf_config[published] for name, published in int_fields.items()}


def same_names(*names: str) -> tuple[WeightMap, ...]:
    """The rules of tensors that keep their names: no other tool has them."""
    return tuple(WeightMap(name, (name,)) for name in names)


def all_same_names(config: ModelConfig) -> tuple[WeightMap, ...]:
    """The rules of a trunk that nobody else has."""
    from polyseme.nn.model import build_meta

    return same_names(*build_meta(config.replace(heads={})).state_dict())


def weight_and_bias(
    name: str, published: str = "", op: Literal["same", "transpose"] = "same"
) -> tuple[WeightMap, WeightMap]:
    """The rules of a layer's weight and bias, under our own name if there is no other; only a weight is transposed."""
    published = published or name
    return WeightMap(f"{name}.weight", (f"{published}.weight",), op), WeightMap(f"{name}.bias", (f"{published}.bias",))


NATIVE_LABEL_HEADS = {
    name: weight_and_bias(f"heads.{name}.linear") for name in ("classify", "tag")
}  # rules of heads under our own names


def native_architectures(prefix: str, pretraining: Mapping[str, tuple[str, ...]]) -> dict[str, tuple[str, ...]]:
    """Class names of a family that no other tool has: with the heads of its training, those of labels, and none."""
    labels = {"ForSequenceClassification": ("classify",), "ForTokenClassification": ("tag",)}
    return {prefix + suffix: heads for suffix, heads in {**pretraining, **labels, "Model": ()}.items()}

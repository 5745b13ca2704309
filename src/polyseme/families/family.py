"""Family: an architecture described as data."""

from collections.abc import Callable
from dataclasses import dataclass, field
from operator import attrgetter
from typing import Any, Literal

from polyseme.config import Config
from polyseme.errors import ConfigError, suggest
from polyseme.families.hf import ConfigTable, WeightMap, all_same_names
from polyseme.nn.heads.base import HeadConfig
from polyseme.nn.heads.classification import ClassificationHeadConfig
from polyseme.nn.heads.lm import LMHeadConfig
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


# of a family whose paper, or whose published models, have vocabularies of several kinds
TEXT_TOKENIZERS = ("wordpiece", "bpe", "byte-bpe-roberta", "unigram", "words", "whitespace", "characters")


def transformer_sizes(**sizes: tuple[int, int, int]) -> dict[str, dict[str, Any]]:
    """Return the arguments of sizes given as layers, dimension and attention heads."""
    return {name: dict(zip(("num_layers", "dim", "num_heads"), numbers)) for name, numbers in sizes.items()}


def causal_lm_head(config: Any) -> dict[str, HeadConfig]:
    """Return the head of causal LM, tied to the token embeddings."""
    return {"next": LMHeadConfig(config.embeddings.vocab_size)}


def linear_task_head(dropout_path: str) -> Callable[[str, tuple[str, ...], Any], HeadConfig]:
    """Return a `task_head` function for linear heads, with the dropout at a path in the trunk's config."""

    def task_head(name: str, labels: tuple[str, ...], config: Any) -> HeadConfig:
        """Return a linear head for a task."""
        return ClassificationHeadConfig(labels, HEAD_POOLING[name], attrgetter(dropout_path)(config))

    return task_head


BLOCK_TASK_HEAD = linear_task_head("block.dropout")


@dataclass(frozen=True)
class Family:
    """An architecture: its config function, published sizes, and its format in published files."""

    name: str
    paper: str
    tokenizer: Literal[
        "wordpiece", "bpe", "byte-bpe-roberta", "unigram", "unigram-roberta", "events", "words", "characters"
    ]
    objective: str  # pre-training objective, for display
    trunk_config: Callable[..., TrunkConfig]
    sizes: dict[str, dict[str, Any]]  # arguments of `trunk_config`
    pretraining_heads: Callable[[Any], dict[str, HeadConfig]]
    # the folder format of `transformers`
    hf_config: ConfigTable
    architectures: dict[str, tuple[str, ...]]  # class name in `transformers` -> names of our heads
    head_weight_maps: dict[str, tuple[WeightMap, ...]]
    weight_maps: tuple[WeightMap, ...] | Callable[[ModelConfig], tuple[WeightMap, ...]] = all_same_names
    # heads that no class computes over a trunk of this config
    heads_without_class: Callable[[Any], tuple[str, ...]] = lambda config: ()
    base_model_prefix: str = "trunk."  # prefix of the base model's weights in a model with a head
    task_head: Callable[[str, tuple[str, ...], Any], HeadConfig] = BLOCK_TASK_HEAD
    num_params: dict[str, int] = field(default_factory=dict)  # published number of parameters, without heads
    tied_weights: dict[str, str] = field(default_factory=dict)  # published names that repeat another tensor
    optional_weights: tuple[str, ...] = ()  # our names that some published architectures lack
    ignored_weights: tuple[str, ...] = ()  # published names of tensors that are not weights
    legacy_suffixes: dict[str, str] = field(default_factory=dict)  # suffixes in older files -> current ones
    cls_position: Literal["first", "last"] = "first"  # of the classification token, if there is one
    other_tokenizers: tuple[str, ...] = ()  # kinds that suit it as well as `tokenizer`
    departures: tuple[str, ...] = ()  # differences from the paper
    model_type: str = ""  # in config.json, if it differs from `name`
    paper_params: dict[str, str] = field(default_factory=dict)  # counts printed in the paper, if rounded differently
    # tokens that fine-tuning adds to the vocabulary: before a text, between two texts, after the last
    finetune_template: tuple[str, str, str] | None = None
    # what its paper fine-tunes with: an auxiliary LM loss of this weight, and pairs of similarity tasks in both orders
    finetune_lm_loss_weight: float = 0.0
    reads_pairs_in_both_orders: bool = False
    # what precedes a text: eos if texts follow each other in training, so that it ends the text before
    text_start: Literal["bos", "eos"] = "bos"
    decoder_start_token: Literal["bos", "pad"] = "bos"  # first token of a target; eos if the vocabulary lacks it
    num_sentinels: int = 0  # sentinel tokens at the end of the vocabulary that stand for corrupted spans
    is_text_to_text: bool = False  # whether it answers tasks as generated text, given a decoder, instead of by heads
    config_types: tuple[type[Config], ...] = ()  # trunk and head configs that are not part of the package

    def to_hf_config(self, config: ModelConfig) -> dict[str, Any]:
        """Return the `config.json` of a model."""
        return self.hf_config.to_hf(config)

    def from_hf_config(self, hf_config: dict[str, Any]) -> TrunkConfig:
        """Return the trunk's config from a `config.json`, to which the key `tensors` adds the names in the files."""
        return self.hf_config.from_hf(hf_config)

    def architectures_for(self, trunk: TrunkConfig) -> dict[str, tuple[str, ...]]:
        """Return the classes of `transformers` that compute what a model with this trunk does, and their heads."""
        excluded = self.heads_without_class(trunk)
        return {name: heads for name, heads in self.architectures.items() if not set(heads) & set(excluded)}

    def represents(self, trunk: TrunkConfig) -> bool:
        """Return whether `config.json` describes the attention of a trunk, which may have lost heads.

        `transformers` derives the size of a head from their number, unless the config has it, and has one number of
        heads for all layers.
        """
        stacks = [stack for stack in getattr(trunk, "stacks", [trunk]) if hasattr(stack, "block_configs")]
        attentions = [(block.attention, stack.dim) for stack in stacks for block in stack.block_configs]
        has_head_dim = any(row.arg == "head_dim" for row in self.hf_config.rows)
        is_usual = has_head_dim or all(attention.inner_dim(dim) == dim for attention, dim in attentions)
        return is_usual and len({attention.num_heads for attention, _ in attentions}) <= 1

    def head_maps(self, head: str, config: ModelConfig) -> tuple[WeightMap, ...]:
        """Return the weight maps of a head of a model, none if no class computes it."""
        has_class = config.heads[head].is_published and head not in self.heads_without_class(config.trunk)
        return self.head_weight_maps.get(head, ()) if has_class else ()

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

"""What a family is: data, in a plain dataclass."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from polyseme.errors import UserError, nearest
from polyseme.nn.heads.standard import HeadSpec
from polyseme.nn.model import ModelSpec, TrunkSpec

# The heads of tasks: a label of the sequence, of each token, where an answer begins and ends, the worth of a choice.
READS: dict[str, Literal["tokens", "pooled"]] = {
    "classify": "pooled",
    "tag": "tokens",
    "span": "tokens",
    "choice": "pooled",
}
FIXED_LABELS: dict[str, tuple[str, ...]] = {"span": ("start", "end"), "choice": ("score",)}


@dataclass(frozen=True)
class Rule:
    """One row of the two-way weight table: our name, the published name or names, and what lies between.

    `same` copies, `transpose` turns a matrix (GPT-2 stores its linear layers the other way round), `stack` joins
    several along their first axis. Where others keep a matrix as [dim, heads, head_dim], `fold` turns it into ours,
    [heads · head_dim, dim], joined as by `stack`, and `flat` into [dim, heads · head_dim]. `{}` stands for the layer's
    number.
    """

    ours: str
    theirs: tuple[str, ...]
    how: Literal["same", "transpose", "stack", "fold", "flat"] = "same"


@dataclass(frozen=True)
class Family:
    """An architecture: how its spec is made, the sizes its paper published, and how its weights are named elsewhere."""

    name: str
    paper: str
    tokenizer: Literal["wordpiece", "bpe", "bpe-masked", "unigram", "events", "words", "characters"]
    objective: str  # what it was pre-trained with, in words
    trunk: Callable[..., TrunkSpec]
    sizes: dict[str, dict[str, Any]]  # arguments of `trunk`
    published: dict[str, int]  # parameters of the bare model at its published vocabulary
    heads: Callable[[Any], dict[str, HeadSpec]]  # the heads of pre-training, of its kind of trunk
    label_head: Callable[[str, tuple[str, ...], Any], HeadSpec]  # a name of `READS`, and its labels
    # the folder that `transformers` reads and writes
    to_config: Callable[[ModelSpec], dict[str, Any]]
    from_config: Callable[[dict[str, Any]], TrunkSpec]  # under `tensors`, the names that the files hold
    architectures: dict[str, tuple[str, ...]]  # class name there -> names of our heads
    prefix: str  # the base model's prefix inside a model with a head
    rules: tuple[Rule, ...] | Callable[[ModelSpec], tuple[Rule, ...]]
    head_rules: dict[str, tuple[Rule, ...]]
    tied: dict[str, str] = field(default_factory=dict)  # published names that repeat another tensor
    optional: tuple[str, ...] = ()  # our names that some published architectures lack
    ignored: tuple[str, ...] = ()  # published names that hold no weight
    renamed: dict[str, str] = field(default_factory=dict)  # endings that older files use, and what they became
    marks: Literal["first", "last"] = "first"  # where the token of the whole sequence stands, if there is one
    departures: tuple[str, ...] = ()
    model_type: str = ""  # what config.json calls it, where that is not its name
    printed: dict[str, str] = field(default_factory=dict)  # counts as the paper prints them, where it rounds otherwise
    # what fine-tuning adds to the vocabulary: before a text, between two texts, behind the last
    frame: tuple[str, str, str] | None = None
    start: Literal["bos", "pad"] = "bos"  # the mark that a target opens with; eos, where there is none
    sentinels: int = 0  # special tokens at the end of its vocabulary that stand for spans
    writes: tuple[str, ...] = ()  # the kinds of tasks that it answers in text, given a decoder; else by heads

    def modern(self, name: str) -> str:
        """A published tensor's name as today's files write it."""
        for old, new in self.renamed.items():
            if name.endswith(old):
                return name.removesuffix(old) + new
        return name

    def spec(self, size: str | None = None, *, heads: bool = True, **changes: Any) -> ModelSpec:
        """The model's spec at a published size, any argument of `trunk` changed."""
        if size is not None and size not in self.sizes:
            raise UserError(f"{self.name} has no size {size!r}; {nearest(size, self.sizes)}")
        trunk = self.trunk(**{**(self.sizes[size] if size else {}), **changes})
        return ModelSpec(self.name, trunk, self.heads(trunk) if heads else {})


def read_config(config: dict[str, Any], needed: dict[str, Any], fixed: dict[str, Any]) -> dict[str, Any]:
    """Whole numbers of a published config by name; a setting that the family does not have is an error, not a guess."""
    for key, only in fixed.items():
        if config.get(key, only[0]) not in only:
            shown = " or ".join(map(repr, only))
            raise UserError(f"config.json: {key} is {config[key]!r}, but only {shown} is supported")
    if missing := [theirs for theirs in needed.values() if theirs not in config]:
        raise UserError(f"config.json lacks {', '.join(missing)}")
    for theirs in needed.values():
        if type(config[theirs]) is not int:
            raise UserError(f"config.json: {theirs} is {config[theirs]!r}, expected a whole number")
    return {ours: config[theirs] for ours, theirs in needed.items()}


def own(*names: str) -> tuple[Rule, ...]:
    """The rules of tensors that keep their names: no other tool has them."""
    return tuple(Rule(name, (name,)) for name in names)


def own_names(spec: ModelSpec) -> tuple[Rule, ...]:
    """The rules of a trunk that nobody else has."""
    from polyseme.nn.model import outline

    return own(*outline(spec.replace(heads={})).state_dict())


def both(ours: str, theirs: str = "", how: Literal["same", "transpose"] = "same") -> tuple[Rule, Rule]:
    """The rules of a layer's weight and bias, under our own name if there is no other; only a weight is transposed."""
    theirs = theirs or ours
    return Rule(f"{ours}.weight", (f"{theirs}.weight",), how), Rule(f"{ours}.bias", (f"{theirs}.bias",))


OWN_LABELS = {name: both(f"heads.{name}.linear") for name in ("classify", "tag")}  # rules of heads under our own names


def own_classes(name: str, trained: Mapping[str, tuple[str, ...]]) -> dict[str, tuple[str, ...]]:
    """Class names of a family that no other tool has: with the heads of its training, those of labels, and none."""
    labels = {"ForSequenceClassification": ("classify",), "ForTokenClassification": ("tag",)}
    return {name + ending: heads for ending, heads in {**trained, **labels, "Model": ()}.items()}

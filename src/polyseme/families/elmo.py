"""ELMo (Peters et al. 2018): words in context from a bidirectional language model over characters."""

from __future__ import annotations

from typing import Any

from polyseme.families.family import READS, Family, own, own_names, read_config
from polyseme.nn.heads.standard import HeadSpec, LabelHeadSpec, LanguageHeadSpec
from polyseme.nn.init import InitSpec
from polyseme.nn.layers.char_cnn import CharactersSpec
from polyseme.nn.layers.feedforward import ActivationName
from polyseme.nn.model import ModelSpec
from polyseme.nn.trunks.recurrent import RecurrentSpec
from polyseme.nn.trunks.transformer import PoolerSpec

FILTERS = ((1, 32), (2, 32), (3, 64), (4, 128), (5, 256), (6, 512), (7, 1024))


def trunk(
    num_layers: int = 2,
    dim: int = 1024,
    num_heads: int = 0,
    ffn_dim: int = 0,
    vocab_size: int = 793471,
    max_len: int = 1 << 20,
    dropout: float = 0.1,
    attention_dropout: float = 0.0,
    filters: tuple[tuple[int, ...], ...] = (),
    char_dim: int = 16,
    width: int = 50,
    num_highway: int = 2,
    activation: ActivationName = "relu",
    cell_clip: float = 0.0,
    projection_clip: float = 0.0,
    skip: bool = True,
) -> RecurrentSpec:
    """Two stacks of LSTMs side by side over one reading of the characters (§3.1, 3.4).

    `dim` is of both directions together, `ffn_dim` an LSTM's own size (0: 4 · dim). From the second layer on a layer's
    input is added to its output. The published weights were trained with clipping, which the fused kernel cannot do;
    training from scratch does without. Without `filters` they are the published ones, fewer for models below 256. There
    are no heads of attention and no attention to drop.
    """
    filters = filters or tuple((width, max(number * min(dim, 256) // 256, 2)) for width, number in FILTERS)
    return RecurrentSpec(
        CharactersSpec(vocab_size, dim // 2, max_len, filters, char_dim, num_highway, width, activation),
        sizes=(ffn_dim or 4 * dim,) * num_layers,
        projection=dim // 2,
        direction="both",
        links="residual" if skip else "none",
        input_dropout=dropout,
        dropout=dropout,
        output_dropout=dropout,
        forget_offset=1.0,
        cell_clip=cell_clip,
        projection_clip=projection_clip,
        links_from=2,
        pooler=PoolerSpec("mean"),
        init=InitSpec(1.0, fan_in=True),
    )


def heads(spec: RecurrentSpec) -> dict[str, HeadSpec]:
    """One for each direction; both have one softmax, sampled where the vocabulary is large."""
    size = spec.embeddings.vocab_size
    head = LanguageHeadSpec(size, bias=True, tied=False, half="first", sampled=8192 if size > 65536 else 0)
    return {"next": head, "previous": head.replace(half="second", shares="next")}


def label_head(name: str, labels: tuple[str, ...], spec: RecurrentSpec) -> HeadSpec:
    return LabelHeadSpec(labels, READS[name], spec.dropout)


def to_config(spec: ModelSpec) -> dict[str, Any]:
    trunk = spec.trunk
    assert isinstance(trunk, RecurrentSpec) and isinstance(trunk.embeddings, CharactersSpec)
    characters = trunk.embeddings
    return {
        "model_type": "elmo",
        "num_layers": trunk.num_layers,
        "dim": trunk.dim,
        "ffn_dim": trunk.sizes[0],
        "vocab_size": characters.vocab_size,
        "max_len": characters.max_len,
        "char_dim": characters.char_dim,
        "width": characters.width,
        "num_highway": characters.num_highway,
        "filters": [list(each) for each in characters.filters],
        "activation": characters.activation,
        "dropout": trunk.dropout,
        "cell_clip": trunk.cell_clip,
        "projection_clip": trunk.projection_clip,
        "skip": trunk.links == "residual",
    }


NUMBERS = ("num_layers", "dim", "ffn_dim", "vocab_size", "max_len", "char_dim", "width", "num_highway")
OTHERS = ("activation", "dropout", "cell_clip", "projection_clip", "skip")


def from_config(config: dict[str, Any]) -> RecurrentSpec:
    numbers = read_config(config, needed={name: name for name in NUMBERS}, fixed={})
    filters = tuple(tuple(each) for each in config.get("filters", ()))
    return trunk(**numbers, filters=filters, **{name: config[name] for name in OTHERS if name in config})


ELMO = Family(
    name="elmo",
    paper="Peters et al. 2018, Deep contextualized word representations",
    tokenizer="words",
    objective="bidirectional LM",
    trunk=trunk,
    sizes={
        "tiny": {"dim": 128, "ffn_dim": 256, "num_highway": 1},
        "small": {"dim": 256, "ffn_dim": 1024, "num_highway": 1},
        "medium": {"dim": 512, "ffn_dim": 2048, "num_highway": 1},
        "original": {"dim": 1024, "ffn_dim": 4096},
    },
    published={"small": 13_593_312, "medium": 28_027_744, "original": 93_600_864},
    heads=heads,
    label_head=label_head,
    to_config=to_config,
    from_config=from_config,
    architectures={"ElmoForBidirectionalLM": ("next", "previous"), "Elmo": ()},
    prefix="trunk.",
    rules=own_names,
    head_rules={name: own(f"heads.{name}.own.weight", f"heads.{name}.bias") for name in ("next", "previous")},
    departures=(
        "Trained from scratch, cells and projections are not clipped: the fused kernel cannot.",
        "A batch does not go on from the states of the batch before; the published program does, even when it is asked "
        "for vectors.",
        "A word outside of the vocabulary is read as the unknown word while training, not by its characters.",
        "Gates that carry start at one half, not near one.",
    ),
)

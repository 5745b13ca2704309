"""Transformer-XL (Dai et al. 2019): a causal Transformer with a memory of states and relative positions."""

from __future__ import annotations

from typing import Any

from polyseme.families.family import OWN_LABELS, READS, Family, both, own, own_classes, read_config
from polyseme.nn.attention.relative import RelationsSpec, RelativeAttentionSpec
from polyseme.nn.heads.standard import HeadSpec, LabelHeadSpec
from polyseme.nn.init import InitSpec
from polyseme.nn.layers.adaptive import AdaptiveEmbeddingsSpec, AdaptiveHeadSpec
from polyseme.nn.layers.block import BlockSpec
from polyseme.nn.layers.feedforward import FeedForwardSpec
from polyseme.nn.layers.norms import LayerNormSpec
from polyseme.nn.model import ModelSpec
from polyseme.nn.trunks.transformer import PoolerSpec, TransformerSpec

VOCABULARY = 267_735  # the words of WikiText-103
CUTOFFS = (20_000, 40_000, 200_000)


def trunk(
    num_layers: int = 16,
    dim: int = 410,
    num_heads: int = 10,
    ffn_dim: int = 0,
    vocab_size: int = VOCABULARY,
    max_len: int = 1 << 20,
    dropout: float = 0.1,
    attention_dropout: float = 0.0,
    head_dim: int = 0,
    memory_len: int = 150,
    furthest: int = 0,
    factor: int = 1,
    shared: bool = True,
    eps: float = 1e-5,
    init_std: float = 0.02,
) -> TransformerSpec:
    """Post-norm blocks over adaptive embeddings (§3, §4.1).

    The vocabulary is cut where WikiText-103's is, in proportion. With `shared`, u and v are the same
    in all layers; `furthest` is the distance beyond which all count the same (the code's clamp_len).
    """
    shape = num_heads, head_dim or dim // num_heads
    attention = RelativeAttentionSpec(num_heads, head_dim, attention_dropout, causal=True, offsets=not shared)
    return TransformerSpec(
        AdaptiveEmbeddingsSpec(vocab_size, dim, cutoffs(vocab_size), factor, max_len, dropout),
        BlockSpec(
            attention,
            FeedForwardSpec(ffn_dim or 4 * dim, "relu", dropout=dropout),
            after=LayerNormSpec(eps),
            dropout=dropout,
        ),
        order=tuple(range(num_layers)),
        pooler=PoolerSpec("last"),
        init=InitSpec(init_std),
        relations=RelationsSpec(furthest, dropout, shape if shared else ()),
        memory_len=memory_len,
    )


def cutoffs(vocab_size: int) -> tuple[int, ...]:
    found = [vocab_size * cut // VOCABULARY for cut in CUTOFFS]
    return tuple(sorted({cut for cut in found if 0 < cut < vocab_size}))


def heads(spec: TransformerSpec) -> dict[str, HeadSpec]:
    found = spec.embeddings
    assert isinstance(found, AdaptiveEmbeddingsSpec)
    return {"next": AdaptiveHeadSpec(found.vocab_size, found.dim, found.cutoffs, found.factor)}


def label_head(name: str, labels: tuple[str, ...], spec: TransformerSpec) -> HeadSpec:
    return LabelHeadSpec(labels, READS[name], spec.block.dropout)


FIELDS = (
    "num_layers",
    "dim",
    "num_heads",
    "ffn_dim",
    "vocab_size",
    "max_len",
    "head_dim",
    "memory_len",
    "furthest",
    "factor",
)


def to_config(spec: ModelSpec) -> dict[str, Any]:
    trunk, block = spec.transformer, spec.transformer.block
    attention, relations, embeddings = block.attention, trunk.relations, trunk.embeddings
    assert isinstance(attention, RelativeAttentionSpec) and isinstance(relations, RelationsSpec)
    assert isinstance(embeddings, AdaptiveEmbeddingsSpec)
    return {
        "model_type": "transformer_xl",
        "num_layers": trunk.num_layers,
        "dim": trunk.dim,
        "num_heads": attention.num_heads,
        "ffn_dim": block.ffn.ffn_dim,
        "vocab_size": embeddings.vocab_size,
        "max_len": embeddings.max_len,
        "dropout": block.dropout,
        "attention_dropout": attention.dropout,
        "head_dim": attention.head_dim,
        "memory_len": trunk.memory_len,
        "furthest": relations.furthest,
        "factor": embeddings.factor,
        "shared_offsets": not attention.offsets,
        "layer_norm_eps": block.after.eps,
        "initializer_range": trunk.init.std,
    }


def from_config(config: dict[str, Any]) -> TransformerSpec:
    return trunk(
        **read_config(config, needed={name: name for name in FIELDS}, fixed={"shared_offsets": [True, False]}),
        dropout=config.get("dropout", 0.1),
        attention_dropout=config.get("attention_dropout", 0.0),
        shared=config.get("shared_offsets", True),
        eps=config.get("layer_norm_eps", 1e-5),
        init_std=config.get("initializer_range", 0.02),
    )


_BANDS = range(len(CUTOFFS) + 1)

TRANSFORMER_XL = Family(
    name="transformer_xl",
    paper="Dai et al. 2019, Transformer-XL: Attentive Language Models Beyond a Fixed-Length Context",
    tokenizer="bpe",
    objective="causal LM over segments with memory",
    trunk=trunk,
    sizes={
        "tiny": {"num_layers": 2, "dim": 128, "num_heads": 2, "memory_len": 128},
        "mini": {"num_layers": 4, "dim": 256, "num_heads": 4},
        "base": {"num_layers": 16, "dim": 410, "num_heads": 10, "ffn_dim": 2100},
        "large": {
            "num_layers": 18,
            "dim": 1024,
            "num_heads": 16,
            "ffn_dim": 4096,
            "memory_len": 384,
            "factor": 4,
            "shared": False,
        },
    },
    published={"base": 150_838_570, "large": 283_885_936},
    heads=heads,
    label_head=label_head,
    to_config=to_config,
    from_config=from_config,
    architectures=own_classes("TransformerXL", {"ForCausalLM": ("next",)}),
    prefix="trunk.",
    rules=(
        *own(*(f"trunk.embeddings.{part}.{i}.weight" for part in ("tables", "projections") for i in _BANDS)),
        *own("trunk.relations.u", "trunk.relations.v"),
        *own(*(f"trunk.blocks.{{}}.attention.{part}.weight" for part in ("qkv", "distance", "out"))),
        *own("trunk.blocks.{}.attention.u", "trunk.blocks.{}.attention.v"),
        *both("trunk.blocks.{}.attention_after"),
        *both("trunk.blocks.{}.ffn.up"),
        *both("trunk.blocks.{}.ffn.down"),
        *both("trunk.blocks.{}.ffn_after"),
    ),
    head_rules={
        "next": own(
            *(f"heads.next.biases.{i}" for i in _BANDS),
            "heads.next.clusters.weight",
            "heads.next.clusters.bias",
            "heads.next.projection.weight",
        ),
        **OWN_LABELS,
    },
    departures=(
        "The vocabulary is of pieces, not of words, and is cut into bands in proportion to WikiText-103's.",
        "Norms begin at identity; the code draws their weights around 1.",
    ),
)

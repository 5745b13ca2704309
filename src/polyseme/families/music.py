"""Music Transformer (Huang et al. 2018): a causal Transformer whose scores know how far apart two events are."""

from __future__ import annotations

import math
from typing import Any, Literal

from polyseme.config import in_range
from polyseme.families.family import OWN_LABELS, READS, Family, both, own, own_classes, read_config
from polyseme.nn.attention.multihead import AttentionSpec
from polyseme.nn.attention.relative import NoRelationsSpec, RelationsSpec, RelativeAttentionSpec
from polyseme.nn.heads.standard import HeadSpec, LabelHeadSpec, LanguageHeadSpec
from polyseme.nn.init import InitSpec
from polyseme.nn.layers.block import BlockSpec
from polyseme.nn.layers.embeddings import EmbeddingsSpec
from polyseme.nn.layers.feedforward import FeedForwardSpec
from polyseme.nn.layers.norms import LayerNormSpec
from polyseme.nn.model import ModelSpec
from polyseme.nn.trunks.transformer import PoolerSpec, TransformerSpec


def trunk(
    num_layers: int = 6,
    dim: int = 384,
    num_heads: int = 8,
    ffn_dim: int = 0,
    vocab_size: int = 392,
    max_len: int = 4096,
    dropout: float = 0.1,
    attention_dropout: float = 0.1,
    positions: Literal["relative", "learned"] = "relative",
    furthest: int = 1024,
    eps: float = 1e-5,
    init_std: float = 0.02,
) -> TransformerSpec:
    """Each layer and head has a vector for every distance up to `furthest`, which greater ones share (§3.4).

    With `positions="learned"` it is the same model with a vector for each place instead, to be compared with.
    """
    relative = positions == "relative"
    in_range("furthest", furthest, int(relative), math.inf)
    attention = (
        RelativeAttentionSpec(num_heads, 0, attention_dropout, causal=True, offsets=False, learned=furthest)
        if relative
        else AttentionSpec(num_heads, attention_dropout, bias=False, causal=True)
    )
    norm = LayerNormSpec(eps)
    return TransformerSpec(
        EmbeddingsSpec(vocab_size, dim, max_len, dropout=dropout, positions="none" if relative else "learned"),
        BlockSpec(attention, FeedForwardSpec(ffn_dim or 4 * dim, "relu"), before=norm, dropout=dropout),
        order=tuple(range(num_layers)),
        final_norm=norm,
        pooler=PoolerSpec("last"),
        init=InitSpec(init_std),
        relations=RelationsSpec(waves=False) if relative else NoRelationsSpec(),
    )


def heads(spec: TransformerSpec) -> dict[str, HeadSpec]:
    return {"next": LanguageHeadSpec(spec.embeddings.vocab_size)}


def label_head(name: str, labels: tuple[str, ...], spec: TransformerSpec) -> HeadSpec:
    return LabelHeadSpec(labels, READS[name], spec.block.dropout)


FIELDS = ("num_layers", "dim", "num_heads", "ffn_dim", "vocab_size", "max_len", "furthest")


def to_config(spec: ModelSpec) -> dict[str, Any]:
    trunk, block = spec.transformer, spec.transformer.block
    attention = block.attention
    learned = attention.learned if isinstance(attention, RelativeAttentionSpec) else 0
    return {
        "model_type": "music",
        "num_layers": trunk.num_layers,
        "dim": trunk.dim,
        "num_heads": attention.num_heads,
        "ffn_dim": block.ffn.ffn_dim,
        "vocab_size": trunk.embeddings.vocab_size,
        "max_len": trunk.embeddings.max_len,
        "positions": "relative" if learned else "learned",
        "furthest": learned,
        "dropout": block.dropout,
        "attention_dropout": attention.dropout,
        "layer_norm_eps": block.before.eps,
        "initializer_range": trunk.init.std,
    }


def from_config(config: dict[str, Any]) -> TransformerSpec:
    return trunk(
        **read_config(config, needed={name: name for name in FIELDS}, fixed={"positions": ["relative", "learned"]}),
        positions=config.get("positions", "relative"),
        dropout=config.get("dropout", 0.1),
        attention_dropout=config.get("attention_dropout", 0.1),
        eps=config.get("layer_norm_eps", 1e-5),
        init_std=config.get("initializer_range", 0.02),
    )


MUSIC = Family(
    name="music",
    paper="Huang et al. 2018, Music Transformer: Generating Music with Long-Term Structure",
    tokenizer="events",
    objective="causal LM",
    trunk=trunk,
    sizes={
        "tiny": {"num_layers": 2, "dim": 128, "num_heads": 2, "furthest": 256},
        "mini": {"num_layers": 4, "dim": 256, "num_heads": 4, "furthest": 512},
        "base": {"num_layers": 6, "dim": 384, "num_heads": 8, "ffn_dim": 1024},
    },
    published={},
    heads=heads,
    label_head=label_head,
    to_config=to_config,
    from_config=from_config,
    architectures=own_classes("Music", {"ForCausalLM": ("next",)}),
    prefix="trunk.",
    rules=(
        *own("trunk.embeddings.tokens.weight", "trunk.embeddings.positions.weight"),
        *own(*(f"trunk.blocks.{{}}.attention.{part}.weight" for part in ("qkv", "distance", "out"))),
        *both("trunk.blocks.{}.attention_before"),
        *both("trunk.blocks.{}.ffn_before"),
        *both("trunk.blocks.{}.ffn.up"),
        *both("trunk.blocks.{}.ffn.down"),
        *both("trunk.final_norm"),
    ),
    head_rules={"next": (), **OWN_LABELS},
    departures=(
        "Norms stand before each sublayer and after the last, as in GPT-2.",
        "No absolute places are added to the relative ones, so a piece may be longer than those of training.",
        "The sizes are ours; token vectors and the last matrix are one.",
        "A performance is one piano: channels are joined, drums left out, a note lasts 10 ms or more.",
    ),
)

"""The Transformer (Vaswani et al. 2017): the first encoder and decoder of attention alone, for translation."""

from __future__ import annotations

from typing import Any

from polyseme.families.family import READS, Family, Rule, both, own, read_config
from polyseme.nn.attention.multihead import AttentionSpec
from polyseme.nn.heads.standard import HeadSpec, LabelHeadSpec, LanguageHeadSpec
from polyseme.nn.init import InitSpec
from polyseme.nn.layers.block import BlockSpec
from polyseme.nn.layers.embeddings import EmbeddingsSpec
from polyseme.nn.layers.feedforward import ActivationName, FeedForwardSpec
from polyseme.nn.layers.norms import LayerNormSpec
from polyseme.nn.model import ModelSpec
from polyseme.nn.trunks.encoder_decoder import EncoderDecoderSpec
from polyseme.nn.trunks.transformer import PoolerSpec, TransformerSpec


def trunk(
    num_layers: int = 6,
    dim: int = 512,
    num_heads: int = 8,
    ffn_dim: int = 0,
    vocab_size: int = 37000,
    max_len: int = 512,
    dropout: float = 0.1,
    attention_dropout: float = 0.0,
    num_decoder_layers: int = 0,
    target_vocab_size: int = 0,
    activation: ActivationName = "relu",
    eps: float = 1e-6,
) -> EncoderDecoderSpec:
    """Post-norm stacks over token vectors times √dim plus sinusoids; one table for both sides and the output (§3.4).

    With a `target_vocab_size` the target side has a vocabulary and a table of its own, which the output shares.
    Projections of attention have no bias vectors, the feed-forward layers have (§3.2, §3.3).
    """
    norm = LayerNormSpec(eps)
    init = InitSpec(1.0, fan_in=True, token_std=dim**-0.5)

    def stack(depth: int, decodes: bool) -> TransformerSpec:
        return TransformerSpec(
            EmbeddingsSpec(
                (decodes and target_vocab_size) or vocab_size,
                dim,
                max_len,
                dropout=dropout,
                positions="sinusoid",
                scale=dim**0.5,
                shared=decodes and not target_vocab_size,
            ),
            BlockSpec(
                AttentionSpec(num_heads, attention_dropout, bias=False, causal=decodes),
                FeedForwardSpec(ffn_dim or 4 * dim, activation),
                after=norm,
                dropout=dropout,
                cross=AttentionSpec(num_heads, attention_dropout, bias=False) if decodes else None,
            ),
            order=tuple(range(depth)),
            pooler=PoolerSpec("last"),
            init=init,
        )

    return EncoderDecoderSpec(stack(num_layers, False), stack(num_decoder_layers or num_layers, True), init=init)


def heads(spec: EncoderDecoderSpec) -> dict[str, HeadSpec]:
    return {"next": LanguageHeadSpec((spec.decoder or spec).embeddings.vocab_size)}


def label_head(name: str, labels: tuple[str, ...], spec: EncoderDecoderSpec) -> HeadSpec:
    """On the encoder's states; of the whole sequence, that of its last token."""
    return LabelHeadSpec(labels, READS[name], spec.block.dropout)


NUMBERS = ("num_layers", "num_decoder_layers", "dim", "num_heads", "ffn_dim", "vocab_size", "max_len")
OTHERS = ("target_vocab_size", "dropout", "attention_dropout", "activation", "eps")


def to_config(spec: ModelSpec) -> dict[str, Any]:
    trunk = spec.trunk
    assert isinstance(trunk, EncoderDecoderSpec) and trunk.decoder is not None
    block, norm = trunk.block, trunk.block.after
    return {
        "model_type": "transformer",
        "num_layers": trunk.num_layers,
        "num_decoder_layers": trunk.decoder.num_layers,
        "dim": trunk.dim,
        "num_heads": block.attention.num_heads,
        "ffn_dim": block.ffn.ffn_dim,
        "vocab_size": trunk.embeddings.vocab_size,
        "max_len": trunk.embeddings.max_len,
        "dropout": block.dropout,
        "attention_dropout": block.attention.dropout,
        "activation": block.ffn.activation,
        "eps": norm.eps,
        **(
            {}
            if getattr(trunk.decoder.embeddings, "shared", True)
            else {"target_vocab_size": trunk.decoder.embeddings.vocab_size}
        ),
        "is_encoder_decoder": True,
    }


def from_config(config: dict[str, Any]) -> EncoderDecoderSpec:
    numbers = read_config(config, needed={name: name for name in NUMBERS}, fixed={"tie_word_embeddings": [True]})
    return trunk(**numbers, **{name: config[name] for name in OTHERS if name in config})


def rules(spec: ModelSpec) -> tuple[Rule, ...]:
    """Our own names: `transformers` has no such family."""
    trunk = spec.trunk
    assert isinstance(trunk, EncoderDecoderSpec) and trunk.decoder is not None
    tables = ("encoder",) if getattr(trunk.decoder.embeddings, "shared", True) else ("encoder", "decoder")
    found = [*own(*(f"trunk.{stack}.embeddings.tokens.weight" for stack in tables))]
    for stack, parts in (("encoder", ("attention",)), ("decoder", ("attention", "cross"))):
        block = f"trunk.{stack}.blocks.{{}}"
        for part in parts:
            found += own(f"{block}.{part}.qkv.weight", f"{block}.{part}.out.weight")
        for part in (*(f"{p}_after" for p in parts), "ffn.up", "ffn.down", "ffn_after"):
            found += both(f"{block}.{part}")
    return tuple(found)


TRANSFORMER = Family(
    name="transformer",
    paper="Vaswani et al. 2017, Attention Is All You Need",
    tokenizer="bpe",
    objective="translation",
    trunk=trunk,
    sizes={
        "tiny": {"num_layers": 2, "dim": 128, "num_heads": 2},
        "base": {"num_layers": 6, "dim": 512, "num_heads": 8},
        "big": {"num_layers": 6, "dim": 1024, "num_heads": 16},
    },
    published={},  # the paper's table 3 has 65 and 213 million, rounded
    heads=heads,
    label_head=label_head,
    to_config=to_config,
    from_config=from_config,
    architectures={"Translation": ("next",), "EncoderDecoder": ()},
    prefix="trunk.",
    rules=rules,
    head_rules={"next": ()},
    departures=(
        "Weights start at a deviation of 1 / √inputs; the paper does not say how they start.",
        "The vocabulary is a byte-level BPE of both languages.",
    ),
)

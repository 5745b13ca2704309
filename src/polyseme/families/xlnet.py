"""XLNet (Yang et al. 2019): every order of factorisation, by two streams of attention with relative positions."""

from __future__ import annotations

from typing import Any

from polyseme.families.family import READS, Family, Rule, both, read_config
from polyseme.nn.attention.relative import RelationsSpec, RelativeAttentionSpec
from polyseme.nn.heads.standard import HeadSpec, LabelHeadSpec, LanguageHeadSpec
from polyseme.nn.init import InitSpec
from polyseme.nn.layers.block import BlockSpec
from polyseme.nn.layers.embeddings import EmbeddingsSpec
from polyseme.nn.layers.feedforward import ActivationName, FeedForwardSpec
from polyseme.nn.layers.norms import LayerNormSpec
from polyseme.nn.model import ModelSpec
from polyseme.nn.trunks.transformer import PoolerSpec, TransformerSpec


def trunk(
    num_layers: int = 12,
    dim: int = 768,
    num_heads: int = 12,
    ffn_dim: int = 0,
    vocab_size: int = 32000,
    max_len: int = 1 << 20,
    dropout: float = 0.1,
    attention_dropout: float = 0.1,
    memory_len: int = 0,
    furthest: int = 0,
    activation: ActivationName = "gelu",
    eps: float = 1e-12,
    init_std: float = 0.02,
) -> TransformerSpec:
    """Post-norm blocks over token vectors alone: where a token stands, attention knows (§2.3 to §2.5).

    No position is stored, so `max_len` only guards against readings that no machine holds.
    """
    return TransformerSpec(
        EmbeddingsSpec(vocab_size, dim, max_len, dropout=dropout, positions="none"),
        BlockSpec(
            RelativeAttentionSpec(num_heads, dropout=attention_dropout, segments=True),
            FeedForwardSpec(ffn_dim or 4 * dim, activation, dropout=dropout),
            after=LayerNormSpec(eps),
            dropout=dropout,
        ),
        order=tuple(range(num_layers)),
        pooler=PoolerSpec("last"),
        init=InitSpec(init_std),
        relations=RelationsSpec(furthest, dropout, stream=True),
        memory_len=memory_len,
    )


def heads(spec: TransformerSpec) -> dict[str, HeadSpec]:
    return {"masked": LanguageHeadSpec(spec.embeddings.vocab_size, bias=True)}


def label_head(name: str, labels: tuple[str, ...], spec: TransformerSpec) -> HeadSpec:
    """On the last token, `<cls>`, a dense layer and tanh; on each token, a linear layer alone."""
    if READS[name] == "tokens":
        return LabelHeadSpec(labels, "tokens")
    return LabelHeadSpec(labels, "pooled", spec.block.dropout, dense=True)


ACTIVATIONS: dict[ActivationName, str] = {"gelu": "gelu", "gelu_tanh": "gelu_new", "relu": "relu"}


def to_config(spec: ModelSpec) -> dict[str, Any]:
    trunk, block = spec.transformer, spec.transformer.block
    relations = trunk.relations
    return {
        "model_type": "xlnet",
        "vocab_size": trunk.embeddings.vocab_size,
        "d_model": trunk.dim,
        "n_layer": trunk.num_layers,
        "n_head": block.attention.num_heads,
        "d_head": trunk.dim // block.attention.num_heads,
        "d_inner": block.ffn.ffn_dim,
        "ff_activation": ACTIVATIONS[block.ffn.activation],
        "dropout": block.dropout,
        "summary_last_dropout": block.dropout,
        "mem_len": trunk.memory_len or None,
        "clamp_len": getattr(relations, "furthest", 0) or -1,
        "layer_norm_eps": block.after.eps,
        "initializer_range": trunk.init.std,
        "attn_type": "bi",
    }


def from_config(config: dict[str, Any]) -> TransformerSpec:
    names = {theirs: ours for ours, theirs in ACTIVATIONS.items()}
    values = read_config(
        config,
        needed={
            "num_layers": "n_layer",
            "dim": "d_model",
            "num_heads": "n_head",
            "ffn_dim": "d_inner",
            "vocab_size": "vocab_size",
        },
        fixed={
            "attn_type": ["bi"],
            "bi_data": [False],
            "same_length": [False],
            "ff_activation": list(names),
            "reuse_len": [None, 0],
            "summary_type": ["last"],
            "summary_use_proj": [True],
            "summary_activation": ["tanh"],
            "tie_word_embeddings": [True],
        },
    )
    dropout = config.get("dropout", 0.1)
    return trunk(
        **values,
        dropout=dropout,
        attention_dropout=dropout,
        memory_len=config.get("mem_len") or 0,
        furthest=max(config.get("clamp_len", -1), 0),
        activation=names[config.get("ff_activation", "gelu")],
        eps=config.get("layer_norm_eps", 1e-12),
        init_std=config.get("initializer_range", 0.02),
    )


def _layer(ours: str, theirs: str) -> tuple[Rule, Rule]:
    return both(f"trunk.blocks.{{}}.{ours}", f"transformer.layer.{{}}.{theirs}")


def _attention(ours: str, *theirs: str, how: Any = "same") -> Rule:
    names = tuple(f"transformer.layer.{{}}.rel_attn.{name}" for name in theirs)
    return Rule(f"trunk.blocks.{{}}.attention.{ours}", names, how)


def _summed(head: str) -> tuple[Rule, ...]:
    return (
        *both(f"heads.{head}.dense", "sequence_summary.summary"),
        *both(f"heads.{head}.linear", "logits_proj"),
    )


XLNET = Family(
    name="xlnet",
    paper="Yang et al. 2019, XLNet: Generalized Autoregressive Pretraining for Language Understanding",
    tokenizer="unigram",
    objective="permutation LM",
    trunk=trunk,
    sizes={
        "tiny": {"num_layers": 2, "dim": 128, "num_heads": 2},
        "mini": {"num_layers": 4, "dim": 256, "num_heads": 4},
        "base": {"num_layers": 12, "dim": 768, "num_heads": 12},
        "large": {"num_layers": 24, "dim": 1024, "num_heads": 16},
    },
    published={"base": 116_718_336, "large": 360_268_800},
    heads=heads,
    label_head=label_head,
    to_config=to_config,
    from_config=from_config,
    architectures={
        "XLNetLMHeadModel": ("masked",),
        "XLNetForSequenceClassification": ("classify",),
        "XLNetForTokenClassification": ("tag",),
        "XLNetForQuestionAnsweringSimple": ("span",),
        "XLNetForMultipleChoice": ("choice",),
        "XLNetModel": (),
    },
    prefix="transformer.",
    rules=(
        Rule("trunk.embeddings.tokens.weight", ("transformer.word_embedding.weight",)),
        Rule("trunk.relations.start", ("transformer.mask_emb",)),
        _attention("qkv.weight", "q", "k", "v", how="fold"),
        _attention("distance.weight", "r", how="fold"),
        _attention("out.weight", "o", how="flat"),
        _attention("u", "r_w_bias"),
        _attention("v", "r_r_bias"),
        _attention("s", "r_s_bias"),
        _attention("segments", "seg_embed"),
        *_layer("attention_after", "rel_attn.layer_norm"),
        *_layer("ffn.up", "ff.layer_1"),
        *_layer("ffn.down", "ff.layer_2"),
        *_layer("ffn_after", "ff.layer_norm"),
    ),
    head_rules={
        "masked": (Rule("heads.masked.bias", ("lm_loss.bias",)),),
        "classify": _summed("classify"),
        "choice": _summed("choice"),
        "tag": both("heads.tag.linear", "classifier"),
        "span": both("heads.span.linear", "qa_outputs"),
    },
    tied={"lm_loss.weight": "transformer.word_embedding.weight"},
    marks="last",
    departures=(
        "Pre-training reads single runs of sentences without memory between them; the paper reads pairs of segments, "
        "each with the memory of the one before.",
        "There is no dropout on the last states, and one draw of it on the distances serves the whole batch.",
    ),
)

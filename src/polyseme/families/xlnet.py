"""XLNet (Yang et al. 2019): permutation language model with two-stream attention and relative positions."""

from __future__ import annotations

from typing import Any

from polyseme.families.family import HEAD_POOLING, Family, WeightMap, read_hf_config, weight_and_bias
from polyseme.nn.attention.relative import RelativeAttentionConfig, RelativePositionConfig
from polyseme.nn.heads.base import HeadConfig
from polyseme.nn.heads.classification import ClassificationHeadConfig
from polyseme.nn.heads.lm import LMHeadConfig
from polyseme.nn.init import InitConfig
from polyseme.nn.layers.block import TransformerBlockConfig
from polyseme.nn.layers.embeddings import EmbeddingsConfig
from polyseme.nn.layers.feedforward import ActivationName, FeedForwardConfig
from polyseme.nn.layers.norms import LayerNormConfig
from polyseme.nn.model import ModelConfig
from polyseme.nn.trunks.base import PoolerConfig
from polyseme.nn.trunks.transformer import TransformerConfig


def trunk_config(
    num_layers: int = 12,
    dim: int = 768,
    num_heads: int = 12,
    ffn_dim: int = 0,
    vocab_size: int = 32000,
    max_len: int = 1 << 20,
    dropout: float = 0.1,
    attention_dropout: float = 0.1,
    memory_len: int = 0,
    max_distance: int = 0,
    activation: ActivationName = "gelu",
    eps: float = 1e-12,
    init_std: float = 0.02,
) -> TransformerConfig:
    """Post-norm blocks with relative attention over token embeddings (§2.3 to §2.5).

    There are no position embeddings; `max_len` only guards against running out of memory.
    """
    return TransformerConfig(
        EmbeddingsConfig(vocab_size, dim, max_len, dropout=dropout, position_embedding_type="none"),
        TransformerBlockConfig(
            RelativeAttentionConfig(num_heads, dropout=attention_dropout, has_segment_bias=True),
            FeedForwardConfig(ffn_dim or 4 * dim, activation, dropout=dropout),
            post_norm=LayerNormConfig(eps),
            dropout=dropout,
        ),
        layer_to_block=tuple(range(num_layers)),
        pooler=PoolerConfig("last"),
        init=InitConfig(init_std),
        position_bias=RelativePositionConfig(max_distance, dropout, two_stream=True),
        memory_len=memory_len,
    )


def pretraining_heads(config: TransformerConfig) -> dict[str, HeadConfig]:
    """Return the pre-training heads."""
    return {"masked": LMHeadConfig(config.embeddings.vocab_size, bias=True)}


def task_head(name: str, labels: tuple[str, ...], config: TransformerConfig) -> HeadConfig:
    """Return a task's head: over the last token, `<cls>`, with a dense layer and tanh; over each token, linear."""
    if HEAD_POOLING[name] == "tokens":
        return ClassificationHeadConfig(labels, "tokens")
    return ClassificationHeadConfig(labels, "pooled", config.block.dropout, dense=True)


ACTIVATIONS: dict[ActivationName, str] = {"gelu": "gelu", "gelu_tanh": "gelu_new", "relu": "relu"}


def to_hf_config(config: ModelConfig) -> dict[str, Any]:
    """Return the `config.json` of a model."""
    trunk, block = config.transformer, config.transformer.block
    position_bias = trunk.position_bias
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
        "clamp_len": getattr(position_bias, "max_distance", 0) or -1,
        "layer_norm_eps": block.post_norm.eps,
        "initializer_range": trunk.init.std,
        "attn_type": "bi",
    }


def from_hf_config(hf_config: dict[str, Any]) -> TransformerConfig:
    """Return the trunk's config from a `config.json`."""
    activations = {published: activation for activation, published in ACTIVATIONS.items()}
    values = read_hf_config(
        hf_config,
        int_fields={
            "num_layers": "n_layer",
            "dim": "d_model",
            "num_heads": "n_head",
            "ffn_dim": "d_inner",
            "vocab_size": "vocab_size",
        },
        allowed_values={
            "attn_type": ["bi"],
            "bi_data": [False],
            "same_length": [False],
            "ff_activation": list(activations),
            "reuse_len": [None, 0],
            "summary_type": ["last"],
            "summary_use_proj": [True],
            "summary_activation": ["tanh"],
            "tie_word_embeddings": [True],
        },
    )
    dropout = hf_config.get("dropout", 0.1)
    return trunk_config(
        **values,
        dropout=dropout,
        attention_dropout=dropout,
        memory_len=hf_config.get("mem_len") or 0,
        max_distance=max(hf_config.get("clamp_len", -1), 0),
        activation=activations[hf_config.get("ff_activation", "gelu")],
        eps=hf_config.get("layer_norm_eps", 1e-12),
        init_std=hf_config.get("initializer_range", 0.02),
    )


def _layer(name: str, published: str) -> tuple[WeightMap, WeightMap]:
    return weight_and_bias(f"trunk.blocks.{{}}.{name}", f"transformer.layer.{{}}.{published}")


def _attention(weight_name: str, *published: str, op: Any = "same") -> WeightMap:
    names = tuple(f"transformer.layer.{{}}.rel_attn.{name}" for name in published)
    return WeightMap(f"trunk.blocks.{{}}.attention.{weight_name}", names, op)


def _summary_weights(head: str) -> tuple[WeightMap, ...]:
    return (
        *weight_and_bias(f"heads.{head}.dense", "sequence_summary.summary"),
        *weight_and_bias(f"heads.{head}.linear", "logits_proj"),
    )


XLNET = Family(
    name="xlnet",
    paper="Yang et al. 2019, XLNet: Generalized Autoregressive Pretraining for Language Understanding",
    tokenizer="unigram",
    objective="permutation LM",
    trunk_config=trunk_config,
    sizes={
        "tiny": {"num_layers": 2, "dim": 128, "num_heads": 2},
        "mini": {"num_layers": 4, "dim": 256, "num_heads": 4},
        "base": {"num_layers": 12, "dim": 768, "num_heads": 12},
        "large": {"num_layers": 24, "dim": 1024, "num_heads": 16},
    },
    num_params={"base": 116_718_336, "large": 360_268_800},
    pretraining_heads=pretraining_heads,
    task_head=task_head,
    to_hf_config=to_hf_config,
    from_hf_config=from_hf_config,
    architectures={
        "XLNetLMHeadModel": ("masked",),
        "XLNetForSequenceClassification": ("classify",),
        "XLNetForTokenClassification": ("tag",),
        "XLNetForQuestionAnsweringSimple": ("span",),
        "XLNetForMultipleChoice": ("choice",),
        "XLNetModel": (),
    },
    base_model_prefix="transformer.",
    weight_maps=(
        WeightMap("trunk.embeddings.tokens.weight", ("transformer.word_embedding.weight",)),
        WeightMap("trunk.position_bias.mask_emb", ("transformer.mask_emb",)),
        _attention("qkv.weight", "q", "k", "v", op="merge_heads"),
        _attention("distance.weight", "r", op="merge_heads"),
        _attention("out.weight", "o", op="flatten_heads"),
        _attention("u", "r_w_bias"),
        _attention("v", "r_r_bias"),
        _attention("s", "r_s_bias"),
        _attention("segments", "seg_embed"),
        *_layer("attention_post_norm", "rel_attn.layer_norm"),
        *_layer("ffn.up", "ff.layer_1"),
        *_layer("ffn.down", "ff.layer_2"),
        *_layer("ffn_post_norm", "ff.layer_norm"),
    ),
    head_weight_maps={
        "masked": (WeightMap("heads.masked.bias", ("lm_loss.bias",)),),
        "classify": _summary_weights("classify"),
        "choice": _summary_weights("choice"),
        "tag": weight_and_bias("heads.tag.linear", "classifier"),
        "span": weight_and_bias("heads.span.linear", "qa_outputs"),
    },
    tied_weights={"lm_loss.weight": "transformer.word_embedding.weight"},
    cls_position="last",
    departures=(
        "Pre-training uses single segments without memory between them; the paper uses pairs of segments, each with "
        "the memory of the one before.",
        "There is no dropout on the final hidden states, and the whole batch shares one dropout mask on the distances.",
    ),
)

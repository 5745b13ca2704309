"""GPT-2 (Radford et al. 2019): causal pre-norm Transformer."""

from __future__ import annotations

from typing import Any

from polyseme.families.family import Family, WeightMap, weight_and_bias
from polyseme.families.gpt import common_hf_config, layer_weights, pretraining_heads, read_trunk_args, task_head
from polyseme.nn.attention.multihead import AttentionConfig
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
    vocab_size: int = 50257,
    max_len: int = 1024,
    dropout: float = 0.1,
    attention_dropout: float = 0.1,
    embedding_dropout: float | None = None,
    activation: ActivationName = "gelu_tanh",
    eps: float = 1e-5,
    init_std: float = 0.02,
    window: int = 0,
) -> TransformerConfig:
    """Causal pre-norm blocks with a norm after the last one (§2.3).

    With a `window`, every second block attends at most that far back, as in GPT-3 (Brown et al. 2020, §2.1).
    """
    norm = LayerNormConfig(eps)
    block = TransformerBlockConfig(
        AttentionConfig(num_heads, attention_dropout, causal=True),
        FeedForwardConfig(ffn_dim or 4 * dim, activation),
        pre_norm=norm,
        dropout=dropout,
    )
    return TransformerConfig(
        EmbeddingsConfig(vocab_size, dim, max_len, dropout=dropout if embedding_dropout is None else embedding_dropout),
        block,
        layer_to_block=tuple(range(num_layers)),
        block_variants=(block.replace(attention=block.attention.replace(window=window)),) if window else (),
        variant_per_block=tuple(i % 2 for i in range(num_layers)) if window else (),
        final_norm=norm,
        pooler=PoolerConfig("last"),
        init=InitConfig(init_std, position_std=init_std / 2, scale_residuals=True),
    )


ACTIVATIONS: dict[ActivationName, str] = {"gelu_tanh": "gelu_new", "gelu": "gelu", "relu": "relu"}


def to_hf_config(config: ModelConfig) -> dict[str, Any]:
    """Return the `config.json` of a model.

    There is no published format for GPT-3's banded attention; the model type `gpt3` keeps other tools from loading it
    as dense.
    """
    trunk, block = config.transformer, config.transformer.block
    window = trunk.block_variants[0].attention.window if trunk.block_variants else 0
    return {
        "model_type": "gpt2",
        **common_hf_config(config),
        "n_inner": block.ffn.ffn_dim,
        "n_ctx": trunk.embeddings.max_len,
        "activation_function": ACTIVATIONS[block.ffn.activation],
        "layer_norm_epsilon": block.pre_norm.eps,
        **({"model_type": "gpt3", "architectures": [], "window": window} if window else {}),
    }


def from_hf_config(hf_config: dict[str, Any]) -> TransformerConfig:
    """Return the trunk's config from a `config.json`."""
    allowed_values = {
        "scale_attn_weights": [True],
        "scale_attn_by_inverse_layer_idx": [False],
        "add_cross_attention": [False],
    }
    values = read_trunk_args(hf_config, "activation_function", ACTIVATIONS, allowed_values)
    return trunk_config(**values, ffn_dim=hf_config.get("n_inner") or 0, window=hf_config.get("window", 0))


# GPT-3 (Brown et al. 2020, table 2.1): layers, width, heads
GPT3_SIZES = {
    "125m": (12, 768, 12),
    "350m": (24, 1024, 16),
    "760m": (24, 1536, 16),
    "1.3b": (24, 2048, 16),
    "2.7b": (32, 2560, 32),
    "6.7b": (32, 4096, 32),
    "13b": (40, 5120, 40),
    "175b": (96, 12288, 96),
}


def _gpt3_size(num_layers: int, dim: int, num_heads: int) -> dict[str, int]:
    return {"num_layers": num_layers, "dim": dim, "num_heads": num_heads, "max_len": 2048, "window": 256}


GPT2 = Family(
    name="gpt2",
    paper="Radford et al. 2019, Language Models are Unsupervised Multitask Learners",
    tokenizer="bpe",
    objective="causal LM",
    trunk_config=trunk_config,
    sizes={
        "tiny": {"num_layers": 2, "dim": 128, "num_heads": 2},
        "mini": {"num_layers": 4, "dim": 256, "num_heads": 4},
        "small": {"num_layers": 12, "dim": 768, "num_heads": 12},
        "medium": {"num_layers": 24, "dim": 1024, "num_heads": 16},
        "large": {"num_layers": 36, "dim": 1280, "num_heads": 20},
        "xl": {"num_layers": 48, "dim": 1600, "num_heads": 25},
        **{f"gpt3-{name}": _gpt3_size(*numbers) for name, numbers in GPT3_SIZES.items()},
    },
    num_params={
        "small": 124_439_808,
        "medium": 354_823_168,
        "large": 774_030_080,
        "xl": 1_557_611_200,
    },
    pretraining_heads=pretraining_heads,
    task_head=task_head,
    to_hf_config=to_hf_config,
    from_hf_config=from_hf_config,
    architectures={
        "GPT2LMHeadModel": ("next",),
        "GPT2DoubleHeadsModel": ("next", "choice"),
        "GPT2ForSequenceClassification": ("classify",),
        "GPT2ForTokenClassification": ("tag",),
        "GPT2ForQuestionAnswering": ("span",),
        "GPT2Model": (),
    },
    base_model_prefix="transformer.",
    weight_maps=(
        WeightMap("trunk.embeddings.tokens.weight", ("transformer.wte.weight",)),
        WeightMap("trunk.embeddings.positions.weight", ("transformer.wpe.weight",)),
        *layer_weights("attention_pre_norm", "ln_1", is_transposed=False),
        *layer_weights("attention.qkv", "attn.c_attn"),
        *layer_weights("attention.out", "attn.c_proj"),
        *layer_weights("ffn_pre_norm", "ln_2", is_transposed=False),
        *layer_weights("ffn.up", "mlp.c_fc"),
        *layer_weights("ffn.down", "mlp.c_proj"),
        *weight_and_bias("trunk.final_norm", "transformer.ln_f"),
    ),
    head_weight_maps={
        "next": (),
        "classify": (WeightMap("heads.classify.linear.weight", ("score.weight",)),),
        "tag": weight_and_bias("heads.tag.linear", "classifier"),
        "span": weight_and_bias("heads.span.linear", "qa_outputs"),
        "choice": weight_and_bias("heads.choice.linear", "multiple_choice_head.summary"),
    },
    tied_weights={"lm_head.weight": "transformer.wte.weight"},
    ignored_weights=(".attn.bias", ".attn.masked_bias"),
    departures=(
        "Documents are not concatenated: a sequence stays inside one document and attends to nothing else.",
        "GPT-3: the width of its attention bands is not published; every second layer attends 256 tokens back.",
        "GPT-3: table 2.1 lists 24 heads of 128 at width 2,048 for 1.3B (here 16), width 5,140 for 13B (here 5,120).",
    ),
)

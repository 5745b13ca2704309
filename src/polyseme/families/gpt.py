"""GPT (Radford et al. 2018): causal post-norm Transformer, fine-tuned on texts joined by delimiter tokens."""

from __future__ import annotations

from typing import Any

from polyseme.errors import ConfigError
from polyseme.families.family import HEAD_POOLING, Family, WeightMap, read_hf_config, weight_and_bias
from polyseme.nn.attention.multihead import AttentionConfig
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
    vocab_size: int = 40478,
    max_len: int = 512,
    dropout: float = 0.1,
    attention_dropout: float = 0.1,
    embedding_dropout: float | None = None,
    activation: ActivationName = "gelu_tanh",
    eps: float = 1e-5,
    init_std: float = 0.02,
) -> TransformerConfig:
    """Causal post-norm blocks over the sum of token and position embeddings (§4.1)."""
    return TransformerConfig(
        EmbeddingsConfig(vocab_size, dim, max_len, dropout=dropout if embedding_dropout is None else embedding_dropout),
        TransformerBlockConfig(
            AttentionConfig(num_heads, attention_dropout, causal=True),
            FeedForwardConfig(ffn_dim or 4 * dim, activation),
            post_norm=LayerNormConfig(eps),
            dropout=dropout,
        ),
        layer_to_block=tuple(range(num_layers)),
        pooler=PoolerConfig("last"),
        init=InitConfig(init_std, init_std),
    )


def pretraining_heads(config: TransformerConfig) -> dict[str, HeadConfig]:
    """Return the pre-training heads."""
    return {"next": LMHeadConfig(config.embeddings.vocab_size)}


def task_head(name: str, labels: tuple[str, ...], config: TransformerConfig) -> HeadConfig:
    """Return a task's head as in `transformers`: for classes a matrix over the last token, others with dropout 0.1."""
    if name == "classify":
        return ClassificationHeadConfig(labels, "pooled", bias=False)
    return ClassificationHeadConfig(labels, HEAD_POOLING[name], 0.0 if name == "span" else 0.1)


# "gelu" in the published config is the tanh approximation.
ACTIVATIONS: dict[ActivationName, str] = {"gelu_tanh": "gelu", "relu": "relu"}


def to_hf_config(config: ModelConfig) -> dict[str, Any]:
    """Return the `config.json` of a model."""
    dim, block = config.transformer.dim, config.transformer.block
    if block.ffn.ffn_dim != 4 * dim:
        raise ConfigError(f"ffn_dim is {block.ffn.ffn_dim}; the format of GPT only supports 4 × dim, here {4 * dim}")
    activation = {"afn": ACTIVATIONS[block.ffn.activation]}
    return {
        "model_type": "openai-gpt",
        **common_hf_config(config),
        **activation,
        "layer_norm_epsilon": block.post_norm.eps,
    }


def from_hf_config(hf_config: dict[str, Any]) -> TransformerConfig:
    """Return the trunk's config from a `config.json`."""
    return trunk_config(**read_trunk_args(hf_config, "afn", ACTIVATIONS))


def common_hf_config(config: ModelConfig) -> dict[str, Any]:
    """Return the part of `config.json` that GPT and GPT-2 have in common."""
    trunk, block = config.transformer, config.transformer.block
    return {
        "vocab_size": trunk.embeddings.vocab_size,
        "n_embd": trunk.dim,
        "n_layer": trunk.num_layers,
        "n_head": block.attention.num_heads,
        "n_positions": trunk.embeddings.max_len,
        "resid_pdrop": block.dropout,
        "embd_pdrop": trunk.embeddings.dropout,
        "attn_pdrop": block.attention.dropout,
        "initializer_range": trunk.init.std,
    }


def read_trunk_args(
    hf_config: dict[str, Any],
    activation_key: str,
    activations: dict[ActivationName, str],
    allowed_values: dict[str, Any] | None = None,
) -> dict[str, Any]:
    """Return the arguments of `trunk_config` from a published config of GPT or GPT-2."""
    activation_names = {published: activation for activation, published in activations.items()}
    values = read_hf_config(
        hf_config,
        int_fields={
            "num_layers": "n_layer",
            "dim": "n_embd",
            "num_heads": "n_head",
            "vocab_size": "vocab_size",
            "max_len": "n_positions",
        },
        allowed_values={
            activation_key: list(activation_names),
            "summary_activation": [None],
            "tie_word_embeddings": [True],
            **(allowed_values or {}),
        },
    )
    return values | {
        "dropout": hf_config.get("resid_pdrop", 0.1),
        "attention_dropout": hf_config.get("attn_pdrop", 0.1),
        "embedding_dropout": hf_config.get("embd_pdrop", 0.1),
        "activation": activation_names[hf_config.get(activation_key, activations["gelu_tanh"])],
        "eps": hf_config.get("layer_norm_epsilon", 1e-5),
        "init_std": hf_config.get("initializer_range", 0.02),
    }


def layer_weights(name: str, published: str, is_transposed: bool = True) -> tuple[WeightMap, WeightMap]:
    """Return weight maps of a layer inside a block."""
    op = "transpose" if is_transposed else "same"
    return weight_and_bias(f"trunk.blocks.{{}}.{name}", f"transformer.h.{{}}.{published}", op)  # type: ignore[arg-type]


GPT = Family(
    name="gpt",
    paper="Radford et al. 2018, Improving Language Understanding by Generative Pre-Training",
    tokenizer="bpe",
    objective="causal LM",
    trunk_config=trunk_config,
    sizes={
        "tiny": {"num_layers": 2, "dim": 128, "num_heads": 2},
        "base": {"num_layers": 12, "dim": 768, "num_heads": 12},
    },
    num_params={"base": 116_534_784},
    pretraining_heads=pretraining_heads,
    task_head=task_head,
    to_hf_config=to_hf_config,
    from_hf_config=from_hf_config,
    architectures={
        "OpenAIGPTLMHeadModel": ("next",),
        "OpenAIGPTDoubleHeadsModel": ("next", "choice"),
        "OpenAIGPTForSequenceClassification": ("classify",),
        "OpenAIGPTModel": (),
    },
    base_model_prefix="transformer.",
    weight_maps=(
        WeightMap("trunk.embeddings.tokens.weight", ("transformer.tokens_embed.weight",)),
        WeightMap("trunk.embeddings.positions.weight", ("transformer.positions_embed.weight",)),
        *layer_weights("attention.qkv", "attn.c_attn"),
        *layer_weights("attention.out", "attn.c_proj"),
        *layer_weights("attention_post_norm", "ln_1", is_transposed=False),
        *layer_weights("ffn.up", "mlp.c_fc"),
        *layer_weights("ffn.down", "mlp.c_proj"),
        *layer_weights("ffn_post_norm", "ln_2", is_transposed=False),
    ),
    head_weight_maps={
        "next": (),
        "classify": (WeightMap("heads.classify.linear.weight", ("score.weight",)),),
        "choice": weight_and_bias("heads.choice.linear", "multiple_choice_head.summary"),
    },
    tied_weights={"lm_head.weight": "transformer.tokens_embed.weight"},
    ignored_weights=(".attn.bias", ".position_ids"),
    legacy_suffixes={"ln_1.g": "ln_1.weight", "ln_1.b": "ln_1.bias", "ln_2.g": "ln_2.weight", "ln_2.b": "ln_2.bias"},
    departures=(
        "A sequence stays inside one document; the paper's code reads 512 tokens from any position in a book.",
        "Vocabularies trained here are byte-level BPE, as in GPT-2; the published character-level BPE can be loaded.",
        "The auxiliary LM loss in fine-tuning is a mean over all tokens, not a mean of the means of texts.",
    ),
    model_type="openai-gpt",
    finetune_template=("<start>", "<delimiter>", "<extract>"),
)

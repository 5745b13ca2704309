"""Neural probabilistic language model (Bengio et al. 2003): the next word from a window of word vectors."""

from __future__ import annotations

from typing import Any

from polyseme.families.family import (
    HEAD_POOLING,
    NATIVE_LABEL_HEADS,
    Family,
    native_architectures,
    read_hf_config,
    same_names,
    weight_and_bias,
)
from polyseme.nn.heads.base import HeadConfig
from polyseme.nn.heads.classification import ClassificationHeadConfig
from polyseme.nn.heads.lm import LMHeadConfig
from polyseme.nn.init import InitConfig
from polyseme.nn.layers.embeddings import EmbeddingsConfig
from polyseme.nn.model import ModelConfig
from polyseme.nn.trunks.window import FeedForwardLMConfig


def trunk_config(
    dim: int = 100,
    hidden_dim: int = 60,
    window: int = 5,
    vocab_size: int = 17_964,
    max_len: int = 1 << 20,
    direct_connections: bool = False,
    dropout: float = 0.0,
    init_std: float = 0.05,
) -> FeedForwardLMConfig:
    """A hidden layer over the previous words; `window` is the paper's n − 1, `dim` its m, `hidden_dim` its h (§2)."""
    return FeedForwardLMConfig(
        EmbeddingsConfig(vocab_size, dim, max_len, position_embedding_type="none"),
        window,
        hidden_dim,
        direct_connections,
        dropout,
        init=InitConfig(init_std),
    )


def pretraining_heads(config: FeedForwardLMConfig) -> dict[str, HeadConfig]:
    """Return the head b + U tanh(d + Hx) and, with direct connections, + Wx: one matrix over the state (eq. 1)."""
    return {"next": LMHeadConfig(config.embeddings.vocab_size, bias=True, tie_word_embeddings=False)}


def task_head(name: str, labels: tuple[str, ...], config: FeedForwardLMConfig) -> HeadConfig:
    """Return a task's head."""
    return ClassificationHeadConfig(labels, HEAD_POOLING[name], config.dropout)


INT_FIELDS = ("dim", "hidden_dim", "window", "vocab_size", "max_len")


def to_hf_config(config: ModelConfig) -> dict[str, Any]:
    """Return the `config.json` of a model."""
    trunk = config.trunk
    assert isinstance(trunk, FeedForwardLMConfig)
    return {
        "model_type": "nnlm",
        "dim": trunk.embeddings.dim,
        "hidden_dim": trunk.hidden_dim,
        "window": trunk.window,
        "vocab_size": trunk.embeddings.vocab_size,
        "max_len": trunk.embeddings.max_len,
        "direct_connections": trunk.direct_connections,
        "dropout": trunk.dropout,
        "initializer_range": trunk.init.std,
    }


def from_hf_config(hf_config: dict[str, Any]) -> FeedForwardLMConfig:
    """Return the trunk's config from a `config.json`."""
    return trunk_config(
        **read_hf_config(
            hf_config,
            int_fields={name: name for name in INT_FIELDS},
            allowed_values={"direct_connections": [False, True]},
        ),
        direct_connections=hf_config.get("direct_connections", False),
        dropout=hf_config.get("dropout", 0.0),
        init_std=hf_config.get("initializer_range", 0.05),
    )


NNLM = Family(
    name="nnlm",
    paper="Bengio et al. 2003, A Neural Probabilistic Language Model",
    tokenizer="bpe",
    objective="causal LM",
    trunk_config=trunk_config,
    sizes={
        "tiny": {"dim": 64, "hidden_dim": 128, "window": 5},
        "ap": {"dim": 100, "hidden_dim": 60, "window": 5},
    },
    num_params={},
    pretraining_heads=pretraining_heads,
    task_head=task_head,
    to_hf_config=to_hf_config,
    from_hf_config=from_hf_config,
    architectures=native_architectures("NNLM", {"ForCausalLM": ("next",)}),
    base_model_prefix="trunk.",
    weight_maps=(*same_names("trunk.embeddings.tokens.weight"), *weight_and_bias("trunk.hidden")),
    head_weight_maps={"next": same_names("heads.next.bias", "heads.next.decoder.weight"), **NATIVE_LABEL_HEADS},
    departures=(
        "The vocabulary has subwords; the paper uses the words of AP News (17,964) or of the Brown corpus.",
        "The window is padded with zeros before the first token of a text.",
        "AdamW instead of stochastic gradient ascent; the paper's mixture with a trigram model is not included.",
    ),
)

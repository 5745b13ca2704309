"""Recurrent encoder-decoder for translation, with or without attention (Sutskever 2014; Bahdanau 2015; Luong 2015)."""

from __future__ import annotations

from typing import Any, Literal

from polyseme.errors import ConfigError
from polyseme.families.family import (
    HEAD_POOLING,
    NATIVE_LABEL_HEADS,
    Family,
    all_same_names,
    read_hf_config,
    same_names,
    weight_and_bias,
)
from polyseme.families.rnn_lm import DEPARTURES
from polyseme.nn.attention.rnn_attention import RNNAttentionConfig
from polyseme.nn.heads.base import HeadConfig
from polyseme.nn.heads.classification import ClassificationHeadConfig
from polyseme.nn.heads.lm import LMHeadConfig
from polyseme.nn.init import InitConfig
from polyseme.nn.layers.embeddings import EmbeddingsConfig
from polyseme.nn.layers.rnn import Cell
from polyseme.nn.model import ModelConfig
from polyseme.nn.trunks.base import PoolerConfig
from polyseme.nn.trunks.encoder_decoder import EncoderDecoderConfig
from polyseme.nn.trunks.recurrent import RecurrentDecoderConfig, RecurrentTrunkConfig

AttentionScoreName = Literal["none", "dot", "cosine", "multiplicative", "additive"]
ATTENTION_SCORES: tuple[AttentionScoreName, ...] = ("none", "dot", "cosine", "multiplicative", "additive")


def trunk_config(
    num_layers: int = 1,
    dim: int = 512,
    vocab_size: int = 10_000,
    max_len: int = 1024,
    dropout: float = 0.3,
    attention: AttentionScoreName = "multiplicative",
    context_order: Literal["inside_recurrence", "after_recurrence"] = "after_recurrence",
    attention_dim: int = 0,
    embedding_dim: int = 0,
    cell: Cell = "lstm",
    gru_reset: Literal["before", "after"] = "after",
    num_decoder_layers: int = 0,
    target_vocab_size: int = 0,
    tie_word_embeddings: bool = True,
    weight_dropout: float = 0.0,
    forget_bias: float = 1.0,
    init_std: float = 0.0,
) -> EncoderDecoderConfig:
    """A bidirectional encoder, each direction with half of `dim`, and a decoder of size `dim`.

    Attention uses the previous state and its context enters the recurrence (`inside_recurrence`), or the current state
    and its context is joined after it. One table of token embeddings serves both sides and, if `tie_word_embeddings`,
    the output; with a `target_vocab_size`, the target has its own. `init_std` is its standard deviation; 0 means
    4 / √dim, with which models of 48 to 192 dimensions learned fastest. With an `embedding_dim`, embeddings have that
    size and a linear layer to `dim`.
    """
    if dim % 2:
        raise ConfigError(f"dim is {dim}; it has to be even, since each of the two directions has half of it")
    init = InitConfig(1.0, scale_by_fan_in=True, token_std=init_std or 4 * dim**-0.5)
    attention_config = (
        None if attention == "none" else RNNAttentionConfig(attention, attention_dim if attention == "additive" else 0)
    )
    encoder = RecurrentTrunkConfig(
        EmbeddingsConfig(vocab_size, dim, max_len, position_embedding_type="none", embedding_dim=embedding_dim),
        (dim // 2,) * num_layers,
        cell,
        gru_reset=gru_reset,
        direction="bidirectional",
        input_dropout=dropout,
        dropout=dropout,
        output_dropout=dropout,
        weight_dropout=weight_dropout,
        forget_bias=forget_bias,
        pooler=PoolerConfig("final_states"),
        init=init,
    )
    decoder_stack = encoder.replace(
        embeddings=encoder.embeddings.replace(
            vocab_size=target_vocab_size or vocab_size, tied_to_encoder=not target_vocab_size
        ),
        hidden_dims=(dim,) * (num_decoder_layers or num_layers),
        direction="forward",
        output_dropout=0.0,
        context_dim=dim if attention_config and context_order == "inside_recurrence" else 0,
        pooler=PoolerConfig("last"),
    )
    return EncoderDecoderConfig(
        encoder,
        RecurrentDecoderConfig(decoder_stack, dim, attention_config, dropout=dropout),
        tie_word_embeddings,
        init=init,
    )


def pretraining_heads(config: EncoderDecoderConfig) -> dict[str, HeadConfig]:
    """Return the LM head, with a dense layer and tanh before tied embeddings of another size."""
    target_embeddings = (config.decoder or config).embeddings
    embedding_dim = getattr(target_embeddings, "embedding_dim", 0) if config.tie_word_embeddings else 0
    head = LMHeadConfig(target_embeddings.vocab_size, bias=True, tie_word_embeddings=config.tie_word_embeddings)
    return {"next": head.replace(dense=True, embedding_dim=embedding_dim, activation="tanh") if embedding_dim else head}


def task_head(name: str, labels: tuple[str, ...], config: EncoderDecoderConfig) -> HeadConfig:
    """Return a task's head over the encoder; the sequence is pooled to the final states of both directions."""
    assert isinstance(config.encoder, RecurrentTrunkConfig)
    return ClassificationHeadConfig(labels, HEAD_POOLING[name], config.encoder.output_dropout)


def to_hf_config(config: ModelConfig) -> dict[str, Any]:
    """Return the `config.json` of a model."""
    trunk = config.trunk
    assert isinstance(trunk, EncoderDecoderConfig) and isinstance(trunk.encoder, RecurrentTrunkConfig)
    encoder, decoder = trunk.encoder, trunk.decoder
    assert isinstance(decoder, RecurrentDecoderConfig)
    attention = decoder.attention
    return {
        "model_type": "seq2seq",
        "num_layers": encoder.num_layers,
        "num_decoder_layers": decoder.num_layers,
        "dim": trunk.dim,
        "vocab_size": encoder.embeddings.vocab_size,
        "target_vocab_size": 0 if decoder.embeddings.tied_to_encoder else decoder.embeddings.vocab_size,
        "max_len": encoder.embeddings.max_len,
        "attention": attention.score if attention else "none",
        "attention_dim": attention.hidden_dim if attention else 0,
        "embedding_dim": encoder.embeddings.embedding_dim,
        "context_order": "inside_recurrence" if decoder.stack.context_dim else "after_recurrence",
        "cell": encoder.cell,
        "gru_reset": encoder.gru_reset,
        "tie_word_embeddings": trunk.tie_word_embeddings,
        "dropout": decoder.dropout,
        "weight_dropout": encoder.weight_dropout,
        "forget_bias": encoder.forget_bias,
        "initializer_range": trunk.init.token_std,
        "is_encoder_decoder": True,
    }


INT_FIELDS = ("num_layers", "num_decoder_layers", "dim", "vocab_size", "target_vocab_size", "max_len")
CHOICES: dict[str, list[Any]] = {
    "attention": ["multiplicative", *ATTENTION_SCORES],
    "context_order": ["after_recurrence", "inside_recurrence"],
    "cell": ["lstm", "rnn", "gru"],
    "gru_reset": ["after", "before"],
    "tie_word_embeddings": [True, False],
}


def from_hf_config(hf_config: dict[str, Any]) -> EncoderDecoderConfig:
    """Return the trunk's config from a `config.json`."""
    return trunk_config(
        **read_hf_config(
            hf_config,
            int_fields={name: name for name in (*INT_FIELDS, "attention_dim", "embedding_dim")},
            allowed_values=CHOICES,
        ),
        **{name: hf_config.get(name, choices[0]) for name, choices in CHOICES.items()},
        dropout=hf_config.get("dropout", 0.3),
        weight_dropout=hf_config.get("weight_dropout", 0.0),
        forget_bias=hf_config.get("forget_bias", 1.0),
        init_std=hf_config.get("initializer_range", 0.0),
    )


SEQ2SEQ = Family(
    name="seq2seq",
    paper="Sutskever et al. 2014, Sequence to Sequence Learning; Bahdanau et al. 2015; Luong et al. 2015",
    tokenizer="bpe",
    objective="translation",
    trunk_config=trunk_config,
    sizes={
        "tiny": {"num_layers": 1, "dim": 128, "dropout": 0.1},
        "small": {"num_layers": 1, "dim": 512},
        "luong": {"num_layers": 4, "dim": 1000, "dropout": 0.2},
    },
    num_params={},
    pretraining_heads=pretraining_heads,
    task_head=task_head,
    to_hf_config=to_hf_config,
    from_hf_config=from_hf_config,
    architectures={
        "RecurrentTranslation": ("next",),
        "RecurrentEncoderForSequenceClassification": ("classify",),
        "RecurrentEncoderForTokenClassification": ("tag",),
        "RecurrentEncoderDecoder": (),
    },
    base_model_prefix="trunk.",
    weight_maps=all_same_names,
    head_weight_maps={
        "next": (*same_names("heads.next.bias", "heads.next.decoder.weight"), *weight_and_bias("heads.next.dense")),
        **NATIVE_LABEL_HEADS,
    },
    departures=(
        *DEPARTURES[:2],
        "All decoder cells start from the final states of the encoder's last layer, through one dense layer and tanh.",
        "State and context are combined by tanh in both orders; Bahdanau et al. use a maxout with the last word.",
        "With context inside the recurrence and several layers, only the first layer attends.",
        "Cosine scores are multiplied by a learned scale; the softmax of bare cosines is nearly uniform.",
        "No input feeding (Luong et al. 2015, §3.3): it would prevent processing all target steps at once.",
        "The vocabulary is a byte-level BPE of both languages, with one embedding table for both and the output.",
    ),
)

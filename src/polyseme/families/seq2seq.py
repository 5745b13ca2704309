"""Recurrent encoder-decoder for translation, with or without attention (Sutskever 2014; Bahdanau 2015; Luong 2015)."""

from typing import Literal

from polyseme.errors import ConfigError
from polyseme.families import hf
from polyseme.families.family import TEXT_TOKENIZERS, Family, linear_task_head
from polyseme.families.rnn_lm import DEPARTURES
from polyseme.nn.heads.base import HeadConfig
from polyseme.nn.heads.lm import LMHeadConfig
from polyseme.nn.init import InitConfig
from polyseme.nn.layers.embeddings import EmbeddingsConfig
from polyseme.nn.layers.rnn import Cell, RNNAttentionConfig
from polyseme.nn.trunks.base import PoolerConfig
from polyseme.nn.trunks.encoder_decoder import EncoderDecoderConfig
from polyseme.nn.trunks.recurrent import RecurrentDecoderConfig, RecurrentTrunkConfig

AttentionScoreName = Literal["none", "dot", "cosine", "multiplicative", "additive"]


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
        context_dim=dim if attention != "none" and context_order == "inside_recurrence" else 0,
        pooler=PoolerConfig("last"),
    )
    decoder = RecurrentDecoderConfig(decoder_stack, dim, _attention_config(attention, attention_dim), dropout=dropout)
    return EncoderDecoderConfig(encoder, decoder, tie_word_embeddings, init=init)


def _attention_config(score: AttentionScoreName, hidden_dim: int) -> RNNAttentionConfig | None:
    return None if score == "none" else RNNAttentionConfig(score, hidden_dim if score == "additive" else 0)


def pretraining_heads(config: EncoderDecoderConfig) -> dict[str, HeadConfig]:
    """Return the LM head, with a dense layer and tanh before tied embeddings of another size."""
    target_embeddings = (config.decoder or config).embeddings
    embedding_dim = getattr(target_embeddings, "embedding_dim", 0) if config.tie_word_embeddings else 0
    head = LMHeadConfig(target_embeddings.vocab_size, bias=True, tie_word_embeddings=config.tie_word_embeddings)
    return {"next": head.replace(dense=True, embedding_dim=embedding_dim, activation="tanh") if embedding_dim else head}


HF_ROWS = (
    *hf.required("num_layers", "num_decoder_layers", "dim", "vocab_size", "target_vocab_size", "max_len"),
    *hf.choices(attention=("multiplicative", "none", "dot", "cosine", "additive")),
    *hf.required("attention_dim", "embedding_dim"),
    *hf.choices(context_order=("after_recurrence", "inside_recurrence"), cell=("lstm", "rnn", "gru")),
    *hf.choices(gru_reset=("after", "before"), tie_word_embeddings=(True, False)),
    *hf.optional("dropout", "weight_dropout", "forget_bias", initializer_range="init_std"),
    hf.ConfigMap("is_encoder_decoder", path=lambda _: True),
)
PATHS: dict[str, hf.ConfigPath] = {
    **{name: f"encoder.{name}" for name in ("cell", "gru_reset", "weight_dropout", "forget_bias")},
    "num_decoder_layers": "decoder.num_layers",
    "target_vocab_size": hf.target_vocab_size,
    "attention": lambda config: getattr(config.trunk.decoder.attention, "score", "none"),
    "attention_dim": lambda config: getattr(config.trunk.decoder.attention, "hidden_dim", 0),
    "context_order": lambda config: f"{'inside' if config.trunk.decoder.stack.context_dim else 'after'}_recurrence",
    "dropout": "decoder.dropout",
    "init_std": "init.token_std",
}

SEQ2SEQ = Family(
    name="seq2seq",
    paper="Sutskever et al. 2014, Sequence to Sequence Learning; Bahdanau et al. 2015; Luong et al. 2015",
    tokenizer="bpe",
    other_tokenizers=TEXT_TOKENIZERS,
    objective="translation",
    trunk_config=trunk_config,
    sizes={
        "tiny": {"num_layers": 1, "dim": 128, "dropout": 0.1},
        "small": {"num_layers": 1, "dim": 512},
        "luong": {"num_layers": 4, "dim": 1000, "dropout": 0.2},
    },
    pretraining_heads=pretraining_heads,
    task_head=linear_task_head("encoder.output_dropout"),
    hf_config=hf.ConfigTable("seq2seq", trunk_config, HF_ROWS, PATHS),
    architectures={
        "RecurrentTranslation": ("next",),
        "RecurrentEncoderForSequenceClassification": ("classify",),
        "RecurrentEncoderForTokenClassification": ("tag",),
        "RecurrentEncoderDecoder": (),
    },
    head_weight_maps={
        "next": (
            *hf.same_names("heads.next.bias", "heads.next.decoder.weight"),
            *hf.weight_and_bias("heads.next.dense"),
        ),
        **hf.NATIVE_LABEL_HEADS,
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

"""Recurrent encoder and decoder for translation, with attention or without (Sutskever 2014, Bahdanau, Luong 2015)."""

from __future__ import annotations

from typing import Any, Literal

from polyseme.errors import UserError
from polyseme.families.family import OWN_LABELS, READS, Family, both, own, own_names, read_config
from polyseme.families.rnn_lm import DEPARTURES
from polyseme.nn.attention.rnn_attention import LookSpec
from polyseme.nn.heads.standard import HeadSpec, LabelHeadSpec, LanguageHeadSpec
from polyseme.nn.init import InitSpec
from polyseme.nn.layers.embeddings import EmbeddingsSpec
from polyseme.nn.model import ModelSpec
from polyseme.nn.trunks.encoder_decoder import EncoderDecoderSpec
from polyseme.nn.trunks.recurrent import Cell, RecurrentSpec
from polyseme.nn.trunks.recurrent_decoder import RecurrentDecoderSpec
from polyseme.nn.trunks.transformer import PoolerSpec

Attention = Literal["none", "dot", "cosine", "multiplicative", "additive"]
ATTENTIONS: tuple[Attention, ...] = ("none", "dot", "cosine", "multiplicative", "additive")


def trunk(
    num_layers: int = 1,
    dim: int = 512,
    vocab_size: int = 10_000,
    max_len: int = 1024,
    dropout: float = 0.3,
    attention: Attention = "multiplicative",
    order: Literal["inside", "after"] = "after",
    attention_dim: int = 0,
    word_dim: int = 0,
    cell: Cell = "lstm",
    reset: Literal["before", "after"] = "after",
    num_decoder_layers: int = 0,
    target_vocab_size: int = 0,
    tied: bool = True,
    weight_dropout: float = 0.0,
    forget_bias: float = 1.0,
    init_std: float = 0.0,
) -> EncoderDecoderSpec:
    """Layers that read both ways, each way half of `dim`, and a decoder of the same size over their states.

    The context is found before the recurrence and goes `inside` it, or `after` it from its states. One table of token
    vectors serves both sides and, if `tied`, the output; with a `target_vocab_size` the target has its own. They begin
    with a deviation of `init_std`; 0 is 4 / √dim, with which models of 48 to 192 learnt soonest. With a `word_dim` they
    are of that size, and a linear layer on each side goes from there to `dim`.
    """
    if dim % 2:
        raise UserError(f"dim is {dim}, but each of two directions has half of it: {dim - 1} or {dim + 1}")
    init = InitSpec(1.0, fan_in=True, token_std=init_std or 4 * dim**-0.5)
    look = None if attention == "none" else LookSpec(attention, attention_dim if attention == "additive" else 0)
    encoder = RecurrentSpec(
        EmbeddingsSpec(vocab_size, dim, max_len, positions="none", inner=word_dim),
        (dim // 2,) * num_layers,
        cell,
        reset=reset,
        direction="crossed",
        input_dropout=dropout,
        dropout=dropout,
        output_dropout=dropout,
        weight_dropout=weight_dropout,
        forget_bias=forget_bias,
        pooler=PoolerSpec("ends"),
        init=init,
    )
    stack = encoder.replace(
        embeddings=encoder.embeddings.replace(vocab_size=target_vocab_size or vocab_size, shared=not target_vocab_size),
        sizes=(dim,) * (num_decoder_layers or num_layers),
        direction="forward",
        output_dropout=0.0,
        context=dim if look and order == "inside" else 0,
        pooler=PoolerSpec("last"),
    )
    return EncoderDecoderSpec(encoder, RecurrentDecoderSpec(stack, dim, look, dropout=dropout), tied, init=init)


def heads(spec: EncoderDecoderSpec) -> dict[str, HeadSpec]:
    """What meets token vectors of another size goes there through a dense layer and tanh."""
    target = (spec.decoder or spec).embeddings
    inner = getattr(target, "inner", 0) if spec.tied else 0
    head = LanguageHeadSpec(target.vocab_size, bias=True, tied=spec.tied)
    return {"next": head.replace(dense=True, inner=inner, activation="tanh") if inner else head}


def label_head(name: str, labels: tuple[str, ...], spec: EncoderDecoderSpec) -> HeadSpec:
    """On the encoder's states; of the whole sequence, where each direction has read all of it."""
    assert isinstance(spec.encoder, RecurrentSpec)
    return LabelHeadSpec(labels, READS[name], spec.encoder.output_dropout)


def to_config(spec: ModelSpec) -> dict[str, Any]:
    trunk = spec.trunk
    assert isinstance(trunk, EncoderDecoderSpec) and isinstance(trunk.encoder, RecurrentSpec)
    encoder, decoder = trunk.encoder, trunk.decoder
    assert isinstance(decoder, RecurrentDecoderSpec)
    look = decoder.look
    return {
        "model_type": "seq2seq",
        "num_layers": encoder.num_layers,
        "num_decoder_layers": decoder.num_layers,
        "dim": trunk.dim,
        "vocab_size": encoder.embeddings.vocab_size,
        "target_vocab_size": 0 if decoder.embeddings.shared else decoder.embeddings.vocab_size,
        "max_len": encoder.embeddings.max_len,
        "attention": look.score if look else "none",
        "attention_dim": look.inner if look else 0,
        "word_dim": encoder.embeddings.inner,
        "order": "inside" if decoder.stack.context else "after",
        "cell": encoder.cell,
        "reset": encoder.reset,
        "tied": trunk.tied,
        "dropout": decoder.dropout,
        "weight_dropout": encoder.weight_dropout,
        "forget_bias": encoder.forget_bias,
        "initializer_range": trunk.init.token_std,
        "is_encoder_decoder": True,
    }


NUMBERS = ("num_layers", "num_decoder_layers", "dim", "vocab_size", "target_vocab_size", "max_len")
CHOICES: dict[str, list[Any]] = {
    "attention": ["multiplicative", *ATTENTIONS],
    "order": ["after", "inside"],
    "cell": ["lstm", "rnn", "gru"],
    "reset": ["after", "before"],
    "tied": [True, False],
}


def from_config(config: dict[str, Any]) -> EncoderDecoderSpec:
    return trunk(
        **read_config(config, needed={name: name for name in (*NUMBERS, "attention_dim", "word_dim")}, fixed=CHOICES),
        **{name: config.get(name, choices[0]) for name, choices in CHOICES.items()},
        dropout=config.get("dropout", 0.3),
        weight_dropout=config.get("weight_dropout", 0.0),
        forget_bias=config.get("forget_bias", 1.0),
        init_std=config.get("initializer_range", 0.0),
    )


SEQ2SEQ = Family(
    name="seq2seq",
    paper="Sutskever et al. 2014, Sequence to Sequence Learning; Bahdanau et al. 2015; Luong et al. 2015",
    tokenizer="bpe",
    objective="translation",
    trunk=trunk,
    sizes={
        "tiny": {"num_layers": 1, "dim": 128, "dropout": 0.1},
        "small": {"num_layers": 1, "dim": 512},
        "luong": {"num_layers": 4, "dim": 1000, "dropout": 0.2},
    },
    published={},
    heads=heads,
    label_head=label_head,
    to_config=to_config,
    from_config=from_config,
    architectures={
        "RecurrentTranslation": ("next",),
        "RecurrentEncoderForSequenceClassification": ("classify",),
        "RecurrentEncoderForTokenClassification": ("tag",),
        "RecurrentEncoderDecoder": (),
    },
    prefix="trunk.",
    rules=own_names,
    head_rules={
        "next": (*own("heads.next.bias", "heads.next.own.weight"), *both("heads.next.dense")),
        **OWN_LABELS,
    },
    departures=(
        *DEPARTURES[:2],
        "All cells of the decoder start from the ends of the encoder's last layer, through one dense layer and tanh.",
        "State and context leave through tanh in both orders; Bahdanau et al. have a maxout of them and the last word.",
        "Inside, with several layers, the first one looks; the context reaches the others through its states.",
        "A cosine is multiplied with a strength that is learned; a softmax of the bare one is nearly even.",
        "No input feeding (Luong et al. 2015, §3.3): it would forbid to read all steps of a target at once.",
        "The vocabulary is a byte-level BPE of both languages, with one table of vectors for both and the output.",
    ),
)

"""Recurrent language models: vanilla RNN (Mikolov et al. 2010), GRU, LSTM (Zaremba et al. 2014), Performance RNN."""

from dataclasses import replace
from typing import Any, Literal

from polyseme.families import hf
from polyseme.families.family import TEXT_TOKENIZERS, Family, linear_task_head
from polyseme.nn.heads.base import HeadConfig
from polyseme.nn.heads.lm import LMHeadConfig
from polyseme.nn.init import InitConfig
from polyseme.nn.layers.embeddings import EmbeddingsConfig
from polyseme.nn.trunks.base import PoolerConfig
from polyseme.nn.trunks.recurrent import RecurrentTrunkConfig

UNLIMITED_LEN = 1 << 20  # there are no position embeddings
POOLING: dict[str, Literal["last", "first", "final_states"]] = {
    "forward": "last",
    "backward": "first",
    "both": "final_states",
}


def trunk_config(
    num_layers: int = 2,
    dim: int = 650,
    hidden_dim: int = 0,
    vocab_size: int = 10_000,
    max_len: int = UNLIMITED_LEN,
    dropout: float = 0.5,
    cell: Literal["rnn", "gru", "lstm"] = "lstm",
    direction: Literal["forward", "backward", "both"] = "forward",
    skip: Literal["none", "residual", "dense", "highway"] = "none",
    gru_reset: Literal["before", "after"] = "after",
    has_projection: bool = False,
    weight_dropout: float = 0.0,
    variational_dropout: bool = False,
    forget_bias: float = 1.0,
    init_std: float = 0.2,
) -> RecurrentTrunkConfig:
    """Recurrent layers; token embeddings and the last layer have size `dim`, the others `hidden_dim` (0 means `dim`).

    With `has_projection`, all layers have `hidden_dim` units and a projection to `dim`. Dropout applies to the inputs
    and outputs of layers, never between time steps (Zaremba et al. 2014, §3). `init_std` is that of the token
    embeddings: with the papers' 0.05, a tied LSTM trained with Adam learns little more than word frequencies in its
    first million tokens.
    """
    layer_dim = hidden_dim or dim
    return RecurrentTrunkConfig(
        EmbeddingsConfig(vocab_size, dim, max_len, position_embedding_type="none"),
        (layer_dim,) * num_layers if has_projection else (layer_dim,) * (num_layers - 1) + (dim,) * min(num_layers, 1),
        cell,
        projection_dim=dim * has_projection,
        gru_reset=gru_reset,
        direction=direction,
        skip=skip,
        input_dropout=dropout,
        dropout=dropout,
        output_dropout=dropout,
        weight_dropout=weight_dropout,
        variational_dropout=variational_dropout,
        forget_bias=forget_bias,
        pooler=PoolerConfig(POOLING[direction]),
        init=InitConfig(0.05, token_std=init_std),
    )


def pretraining_heads(config: RecurrentTrunkConfig) -> dict[str, HeadConfig]:
    """Return one head per direction, over its own states and tied to the token embeddings."""
    head = LMHeadConfig(config.embeddings.vocab_size, bias=True)
    if config.direction == "both":
        return {"next": head.replace(direction="forward"), "previous": head.replace(direction="backward")}
    return {"previous" if config.direction == "backward" else "next": head}


def _hidden_dim(config: Any) -> int:
    trunk = config.trunk
    return trunk.hidden_dims[0] if trunk.projection_dim or trunk.num_layers > 1 else 0


HF_CONFIG = hf.ConfigTable(
    "",
    trunk_config,
    (
        *hf.required("num_layers", "dim", "hidden_dim", "vocab_size", "max_len"),
        *hf.choices(cell=("lstm", "rnn", "gru"), direction=("forward", "backward", "both")),
        *hf.choices(skip=("none", "residual", "dense", "highway"), gru_reset=("after", "before")),
        *hf.choices(has_projection=(False, True), variational_dropout=(False, True)),
        *hf.optional("dropout", "weight_dropout", "forget_bias", initializer_range="init_std"),
    ),
    {
        "dim": "embeddings.dim",
        "hidden_dim": _hidden_dim,
        "has_projection": lambda config: bool(config.trunk.projection_dim),
        "dropout": "output_dropout",
        "init_std": "init.token_std",
    },
)


def architectures(name: str, *tasks: str) -> dict[str, tuple[str, ...]]:
    """Return the class names of a recurrent family and their heads."""
    return hf.architectures(
        name,
        ("classify", "tag", *tasks),
        ForCausalLM=("next",),
        ForReverseLM=("previous",),
        ForBidirectionalLM=("next", "previous"),
    )


HEAD_WEIGHT_MAPS = {
    "next": hf.same_names("heads.next.bias"),
    "previous": hf.same_names("heads.previous.bias"),
    **hf.NATIVE_LABEL_HEADS,
}
DEPARTURES = (
    "The GRU resets after the product, like torch's fused kernel; gru_reset=before follows the paper, step by step.",
    "Each gate has two biases, as in torch; the papers have one.",
    "Input and output embeddings are tied (Press and Wolf 2017).",
)

RNN_LM = Family(
    name="rnn_lm",
    paper="Zaremba et al. 2014, Recurrent Neural Network Regularization; Mikolov et al. 2010; Cho et al. 2014",
    tokenizer="bpe",
    other_tokenizers=TEXT_TOKENIZERS,
    objective="causal LM over segments with memory",
    text_start="eos",
    trunk_config=trunk_config,
    sizes={
        "tiny": {"num_layers": 1, "dim": 128, "dropout": 0.1},
        "small": {"num_layers": 2, "dim": 200, "dropout": 0.0},
        "medium": {"num_layers": 2, "dim": 650, "dropout": 0.5},
        "large": {"num_layers": 2, "dim": 1500, "dropout": 0.65},
    },
    pretraining_heads=pretraining_heads,
    task_head=linear_task_head("output_dropout"),
    hf_config=HF_CONFIG,
    architectures=architectures("RNN"),
    head_weight_maps=HEAD_WEIGHT_MAPS,
    departures=(
        *DEPARTURES,
        "The vocabulary has subwords; weights are initialized as in torch, with 1 added to the forget gate biases.",
        "Token embeddings start with a standard deviation of 0.2, not within ± 0.05 to 0.1: AdamW, instead of SGD, "
        "learns faster that way.",
    ),
)


def performance_rnn_config(
    num_layers: int = 3,
    dim: int = 512,
    vocab_size: int = 392,
    max_len: int = UNLIMITED_LEN,
    dropout: float = 0.1,
    init_std: float = 0.2,
) -> RecurrentTrunkConfig:
    """Three LSTM layers of 512 units over music events; a piece may have any length."""
    return trunk_config(num_layers, dim, 0, vocab_size, max_len, dropout, init_std=init_std)


PERFORMANCE_RNN = replace(  # for comparison with the Music Transformer
    RNN_LM,
    name="performance_rnn",
    paper="Simon and Oore 2017, Performance RNN: Generating Music with Expressive Timing and Dynamics",
    tokenizer="events",
    other_tokenizers=(),
    trunk_config=performance_rnn_config,
    sizes={"tiny": {"num_layers": 1, "dim": 128}, "base": {"num_layers": 3, "dim": 512}},
    architectures=architectures("PerformanceRNN"),
    departures=(
        *DEPARTURES,
        "Events have learned embeddings; the original uses one-hot vectors.",
        "A performance is one piano: channels are merged, drums are omitted, notes last at least 10 ms.",
    ),
)

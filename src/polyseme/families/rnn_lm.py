"""Recurrent language models: vanilla RNN (Mikolov et al. 2010), GRU and LSTM (Zaremba et al. 2014)."""

from __future__ import annotations

from typing import Any, Literal

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


def task_head(name: str, labels: tuple[str, ...], config: RecurrentTrunkConfig) -> HeadConfig:
    """Return a task's head."""
    return ClassificationHeadConfig(labels, HEAD_POOLING[name], config.output_dropout)


def to_hf_config(config: ModelConfig) -> dict[str, Any]:
    """Return the `config.json` of a model."""
    trunk = config.trunk
    assert isinstance(trunk, RecurrentTrunkConfig)
    return {
        "model_type": config.family,
        "num_layers": trunk.num_layers,
        "dim": trunk.embeddings.dim,
        "hidden_dim": trunk.hidden_dims[0] if trunk.projection_dim or trunk.num_layers > 1 else 0,
        "vocab_size": trunk.embeddings.vocab_size,
        "max_len": trunk.embeddings.max_len,
        "cell": trunk.cell,
        "direction": trunk.direction,
        "skip": trunk.skip,
        "gru_reset": trunk.gru_reset,
        "has_projection": trunk.projection_dim > 0,
        "variational_dropout": trunk.variational_dropout,
        "dropout": trunk.output_dropout,
        "weight_dropout": trunk.weight_dropout,
        "forget_bias": trunk.forget_bias,
        "initializer_range": trunk.init.token_std,
    }


INT_FIELDS = ("num_layers", "dim", "hidden_dim", "vocab_size", "max_len")
CHOICES: dict[str, list[Any]] = {
    "cell": ["lstm", "rnn", "gru"],
    "direction": ["forward", "backward", "both"],
    "skip": ["none", "residual", "dense", "highway"],
    "gru_reset": ["after", "before"],
    "has_projection": [False, True],
    "variational_dropout": [False, True],
}


def from_hf_config(hf_config: dict[str, Any]) -> RecurrentTrunkConfig:
    """Return the trunk's config from a `config.json`."""
    return trunk_config(
        **read_hf_config(hf_config, int_fields={name: name for name in INT_FIELDS}, allowed_values=CHOICES),
        **{name: hf_config.get(name, choices[0]) for name, choices in CHOICES.items()},
        dropout=hf_config.get("dropout", 0.5),
        weight_dropout=hf_config.get("weight_dropout", 0.0),
        forget_bias=hf_config.get("forget_bias", 1.0),
        init_std=hf_config.get("initializer_range", 0.2),
    )


def architectures(name: str) -> dict[str, tuple[str, ...]]:
    """Return the class names of a recurrent family and their heads."""
    unidirectional = {"ForCausalLM": ("next",), "ForReverseLM": ("previous",)}
    return native_architectures(name, {**unidirectional, "ForBidirectionalLM": ("next", "previous")})


_CELL = ("weight_ih", "weight_hh", "bias_ih", "bias_hh", "weight_hr")
WEIGHT_MAPS = (
    *same_names("trunk.embeddings.tokens.weight"),
    *same_names(*(f"trunk.stacks.{stack}.{{}}.cells.0.{name}" for stack in (0, 1) for name in _CELL)),
    *(rule for stack in (0, 1) for rule in weight_and_bias(f"trunk.stacks.{stack}.{{}}.gate")),
)
HEAD_WEIGHT_MAPS = {
    "next": same_names("heads.next.bias"),
    "previous": same_names("heads.previous.bias"),
    **NATIVE_LABEL_HEADS,
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
    objective="causal LM over segments with memory",
    trunk_config=trunk_config,
    sizes={
        "tiny": {"num_layers": 1, "dim": 128, "dropout": 0.1},
        "small": {"num_layers": 2, "dim": 200, "dropout": 0.0},
        "medium": {"num_layers": 2, "dim": 650, "dropout": 0.5},
        "large": {"num_layers": 2, "dim": 1500, "dropout": 0.65},
    },
    num_params={},
    pretraining_heads=pretraining_heads,
    task_head=task_head,
    to_hf_config=to_hf_config,
    from_hf_config=from_hf_config,
    architectures=architectures("RNN"),
    base_model_prefix="trunk.",
    weight_maps=WEIGHT_MAPS,
    head_weight_maps=HEAD_WEIGHT_MAPS,
    departures=(
        *DEPARTURES,
        "The vocabulary has subwords; weights are initialized as in torch, with 1 added to the forget gate biases.",
        "Token embeddings start with a standard deviation of 0.2, not within ± 0.05 to 0.1: AdamW, instead of SGD, "
        "learns faster that way.",
    ),
)

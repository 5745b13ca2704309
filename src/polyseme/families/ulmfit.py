"""ULMFiT (Howard and Ruder 2018): AWD-LSTM language model (Merity et al. 2018), fine-tuned as a classifier."""

from typing import Literal

from polyseme.families import hf, rnn_lm
from polyseme.families.family import HEAD_POOLING, TEXT_TOKENIZERS, Family
from polyseme.nn.heads.base import HeadConfig
from polyseme.nn.heads.classification import ClassificationHeadConfig
from polyseme.nn.init import InitConfig
from polyseme.nn.layers.block import BatchNormConfig
from polyseme.nn.layers.embeddings import EmbeddingsConfig
from polyseme.nn.trunks.base import PoolerConfig
from polyseme.nn.trunks.recurrent import RecurrentTrunkConfig

VOCAB_SIZE = 33_278  # WikiText-2


def trunk_config(
    num_layers: int = 3,
    dim: int = 400,
    hidden_dim: int = 0,
    vocab_size: int = VOCAB_SIZE,
    max_len: int = rnn_lm.UNLIMITED_LEN,
    dropout: float = 1.0,
    embedding_row_dropout: float = 0.05,
    input_dropout: float = 0.4,
    weight_dropout: float = 0.5,
    hidden_dropout: float = 0.3,
    output_dropout: float = 0.4,
    direction: Literal["forward", "backward"] = "forward",
) -> RecurrentTrunkConfig:
    """LSTM layers of `hidden_dim` units (0 means `dim`), the last of `dim` for the tied embeddings.

    `dropout` multiplies the five dropouts, as in the released code; their values are those of the paper (§4.1).
    """
    embeddings = EmbeddingsConfig(vocab_size, dim, max_len, position_embedding_type="none")
    return RecurrentTrunkConfig(
        embeddings.replace(embedding_row_dropout=dropout * embedding_row_dropout),
        hidden_dims=(*[hidden_dim or dim] * (num_layers - 1), *[dim] * min(num_layers, 1)),
        direction=direction,
        input_dropout=dropout * input_dropout,
        dropout=dropout * hidden_dropout,
        output_dropout=dropout * output_dropout,
        weight_dropout=dropout * weight_dropout,
        variational_dropout=True,
        pooler=PoolerConfig("last" if direction == "forward" else "first"),
        init=InitConfig(std=3**-0.5, scale_by_fan_in=True, token_std=0.1 * 3**-0.5),
    )


def task_head(name: str, labels: tuple[str, ...], config: RecurrentTrunkConfig) -> HeadConfig:
    """Return a task's head; for texts, two blocks of batch norm, dropout and linear over concat pooling (§3.3)."""
    if HEAD_POOLING[name] == "tokens":
        return ClassificationHeadConfig(labels, "tokens", 0.1)
    head = ClassificationHeadConfig(labels, "concat", dropout=0.1, dense=True, activation="relu", hidden_dim=50)
    return head.replace(norm=BatchNormConfig(), input_dropout=0.4, input_norm=BatchNormConfig())


HF_ROWS = (
    *hf.required("num_layers", "dim", "hidden_dim", "vocab_size", "max_len"),
    *hf.optional("embedding_row_dropout", "input_dropout", "weight_dropout", "hidden_dropout", "output_dropout"),
    *hf.choices(direction=("forward", "backward")),
)
PATHS: dict[str, hf.ConfigPath] = {
    "hidden_dim": lambda config: config.trunk.hidden_dims[0],
    "embedding_row_dropout": "embeddings.embedding_row_dropout",
    "hidden_dropout": "dropout",
}


def _text_head_maps(head: str) -> tuple[hf.WeightMap, ...]:
    norm_tensors = (f"{n}.{part}" for n in ("input_norm", "norm") for part in ("running_mean", "running_var"))
    layers = (f"heads.{head}.{layer}" for layer in ("input_norm", "norm", "dense", "linear"))
    statistics = hf.same_names(*(f"heads.{head}.{name}" for name in norm_tensors))
    return *statistics, *(weight_map for layer in layers for weight_map in hf.weight_and_bias(layer))


ULMFIT = Family(
    name="ulmfit",
    paper="Howard and Ruder 2018, Universal Language Model Fine-tuning for Text Classification",
    tokenizer="bpe",
    other_tokenizers=TEXT_TOKENIZERS,
    objective="causal LM over segments of variable length, with memory",
    text_start="eos",
    trunk_config=trunk_config,
    sizes={
        "tiny": {"num_layers": 2, "dim": 64, "hidden_dim": 128, "dropout": 0.3},
        "mini": {"num_layers": 3, "dim": 200, "hidden_dim": 400, "dropout": 0.5},
        "lecture": {"dim": 300, "hidden_dim": 1150, "vocab_size": 60_003},
        "paper": {"dim": 400, "hidden_dim": 1150},
    },
    num_params={"lecture": 37_011_700, "paper": 33_522_800},
    paper_params={"paper": "33M"},
    pretraining_heads=rnn_lm.pretraining_heads,
    task_head=task_head,
    hf_config=hf.ConfigTable("ulmfit", trunk_config, HF_ROWS, PATHS),
    architectures=rnn_lm.architectures("ULMFiT", "choice"),
    head_weight_maps=rnn_lm.HEAD_WEIGHT_MAPS | {name: _text_head_maps(name) for name in ("classify", "choice")},
    departures=(
        "The vocabulary has subwords instead of words.",
        "Token embeddings and head layers are drawn from a normal distribution with the standard deviation of the "
        "authors' uniform one.",
        "Weight decay of NT-ASGD applies only to matrices.",
    ),
)

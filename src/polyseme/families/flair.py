"""Flair (Akbik et al. 2018): contextual word vectors from a forward and a backward character language model."""

from typing import Literal

from polyseme.families import hf, rnn_lm
from polyseme.families.family import HEAD_POOLING, Family
from polyseme.nn.heads.base import HeadConfig
from polyseme.nn.trunks.recurrent import RecurrentTrunkConfig


def trunk_config(
    num_layers: int = 1,
    dim: int = 2048,
    char_dim: int = 100,
    vocab_size: int = 275,
    max_len: int = rnn_lm.UNLIMITED_LEN,
    dropout: float = 0.25,
    direction: Literal["forward", "backward", "both"] = "both",
) -> RecurrentTrunkConfig:
    """LSTMs of `dim` units over character embeddings (§3), which the stacks of both directions share."""
    config = rnn_lm.trunk_config(num_layers, dim, 0, vocab_size, max_len, dropout, direction=direction)
    return config.replace(embeddings=config.embeddings.replace(dim=char_dim))


def pretraining_heads(config: RecurrentTrunkConfig) -> dict[str, HeadConfig]:
    """Return one untied head per direction: character embeddings are much smaller than hidden states."""
    return {name: head.replace(tie_word_embeddings=False) for name, head in rnn_lm.pretraining_heads(config).items()}


HF_ROWS = (
    *hf.required("num_layers", "dim", "char_dim", "vocab_size", "max_len"),
    *hf.optional("dropout"),
    *hf.choices(direction=("both", "forward", "backward")),
)
PATHS: dict[str, hf.ConfigPath] = {
    "dim": lambda config: config.trunk.hidden_dims[0],
    "char_dim": "embeddings.dim",
    "dropout": "dropout",
}

FLAIR = Family(
    name="flair",
    paper="Akbik et al. 2018, Contextual String Embeddings for Sequence Labeling",
    tokenizer="characters",
    objective="causal LM over characters, both directions",
    trunk_config=trunk_config,
    sizes={"tiny": {"dim": 192, "char_dim": 32, "dropout": 0.0}, "small": {"dim": 1024}, "paper": {}},
    pretraining_heads=pretraining_heads,
    task_head=rnn_lm.RNN_LM.task_head,
    hf_config=hf.ConfigTable("flair", trunk_config, HF_ROWS, PATHS),
    architectures=rnn_lm.architectures("Flair"),
    head_weight_maps={
        name: maps if name in HEAD_POOLING else (*maps, *hf.same_names(f"heads.{name}.decoder.weight"))
        for name, maps in rnn_lm.HEAD_WEIGHT_MAPS.items()
    },
    departures=(
        "Both directions are trained together and share character embeddings, unless model.direction selects one.",
        "LSTM states are not carried over from batch to batch; with one direction, StreamingCausalLM does so.",
        "AdamW instead of SGD with a learning rate of 20.",
        "A sentence is enclosed in [CLS] and [SEP], not in a newline and a space.",
    ),
)

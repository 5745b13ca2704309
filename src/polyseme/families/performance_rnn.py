"""Performance RNN (Simon and Oore 2017): LSTM over music events, for comparison with the Music Transformer."""

from __future__ import annotations

from dataclasses import replace

from polyseme.families.rnn_lm import DEPARTURES, RNN_LM, UNLIMITED_LEN, architectures
from polyseme.families.rnn_lm import trunk_config as recurrent
from polyseme.nn.trunks.recurrent import RecurrentTrunkConfig


def trunk_config(
    num_layers: int = 3,
    dim: int = 512,
    vocab_size: int = 392,
    max_len: int = UNLIMITED_LEN,
    dropout: float = 0.1,
    init_std: float = 0.2,
) -> RecurrentTrunkConfig:
    """Three LSTM layers of 512 units; a piece may have any length."""
    return recurrent(num_layers, dim, 0, vocab_size, max_len, dropout, init_std=init_std)


PERFORMANCE_RNN = replace(
    RNN_LM,
    name="performance_rnn",
    paper="Simon and Oore 2017, Performance RNN: Generating Music with Expressive Timing and Dynamics",
    tokenizer="events",
    trunk_config=trunk_config,
    sizes={
        "tiny": {"num_layers": 1, "dim": 128},
        "base": {"num_layers": 3, "dim": 512},
    },
    architectures=architectures("PerformanceRNN"),
    departures=(
        *DEPARTURES,
        "Events have learned embeddings; the original uses one-hot vectors.",
        "A performance is one piano: channels are merged, drums are omitted, notes last at least 10 ms.",
    ),
)

"""Auxiliary heads of cross-view training, each of which sees a part of the text (Clark et al. 2018, §3.1)."""

from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from polyseme.nn.heads.base import Head, HeadConfig, PoolFn
from polyseme.nn.packing import PackedLayout

VIEWS = ("forward", "backward", "future", "past")


@dataclass(frozen=True)
class CrossViewHeadConfig(HeadConfig):
    """Four classifiers of words over the first layer of a BiLSTM, with one hidden layer of `hidden_dim` units each.

    "forward" reads the forward state of a word, "backward" the backward state, "future" the forward state of the word
    before (it predicts a label before it has seen the word), and "past" the backward state of the word after.
    """

    labels: tuple[str, ...]
    hidden_dim: int
    dropout: float = 0.0

    def __post_init__(self) -> None:
        self.check_range(0, 1, "dropout")
        self.check_range(1, 1 << 20, "hidden_dim")

    @property
    def is_published(self) -> bool:
        return False

    def matmul_params(self, dim: int) -> int:
        return len(VIEWS) * self.hidden_dim * (dim // 2 + len(self.labels))

    def build(self, dim: int) -> Head:
        return CrossViewHead(self, dim)


class CrossViewHead(Head):
    """The auxiliary classifiers. They read states [T, dim] whose first half is the forward direction."""

    def __init__(self, config: CrossViewHeadConfig, dim: int):
        super().__init__(config)
        self.dropout = nn.Dropout(config.dropout)
        self.hidden = nn.ModuleList(nn.Linear(dim // 2, config.hidden_dim) for _ in VIEWS)
        self.linear = nn.ModuleList(nn.Linear(config.hidden_dim, len(config.labels)) for _ in VIEWS)

    def select_states(self, hidden: Tensor, layout: PackedLayout, rows: Tensor | None, pool: PoolFn) -> list[Tensor]:
        """Return the states of each view, [n, dim / 2]; outside of a sequence they are zero."""
        forward, backward = hidden.chunk(2, dim=-1)  # [T, dim / 2] each
        is_first = layout.positions == 0
        is_last = F.pad(is_first[1:], (0, 1), value=True)
        future = F.pad(forward[:-1], (0, 0, 1, 0)).masked_fill(is_first[:, None], 0.0)
        past = F.pad(backward[1:], (0, 0, 0, 1)).masked_fill(is_last[:, None], 0.0)
        views = [forward, backward, future, past]
        return views if rows is None else [states.index_select(0, rows) for states in views]

    def forward(self, states: list[Tensor], token_embeddings: Any) -> Tensor:
        """Return the logits of each view, [views, n, labels]."""
        parts = zip(states, self.hidden, self.linear)
        return torch.stack([linear(hidden(self.dropout(x)).relu()) for x, hidden, linear in parts])

    def loss(self, states: Any, token_embeddings: Any, labels: Tensor, label_smoothing: float = 0.0) -> Tensor:
        """Return the KL divergence of every view from the log-probabilities `labels`, [n, labels], summed."""
        logits = self(states, token_embeddings)  # [views, n, labels]
        log_probs = logits.to(torch.promote_types(logits.dtype, torch.float32)).log_softmax(-1)
        return F.kl_div(log_probs, labels.expand_as(log_probs), log_target=True, reduction="sum")

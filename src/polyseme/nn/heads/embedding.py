"""Embedding head: compares texts by the cosine of their vectors, and learns from the other texts of a batch."""

from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from polyseme.nn.heads.base import Head, HeadConfig, HeadPooling, PoolFn
from polyseme.nn.packing import PackedLayout


@dataclass(frozen=True)
class EmbeddingHeadConfig(HeadConfig):
    """One vector of length one per text: the mean of its states, or the first of them. There are no weights.

    The loss is InfoNCE: cross entropy over cosines divided by the `temperature`.
    """

    pooling: HeadPooling = "mean"
    temperature: float = 0.05

    def matmul_params(self, dim: int) -> int:
        return 0

    def build(self, dim: int) -> Head:
        return EmbeddingHead(self)


class EmbeddingHead(Head):
    """Vectors of texts. A row of the targets has the text, its positive and, where there is one, a hard negative."""

    needs_host_sync = True  # the number of texts varies from batch to batch

    def select_states(self, hidden: Tensor, layout: PackedLayout, rows: Tensor | None, pool: PoolFn) -> Tensor:
        """Return the vectors of every text, [texts, dim], or of `rows`, [n, columns, dim]; -1 is no text."""
        states = super().select_states(hidden, layout, None, pool)
        vectors = F.normalize(states.to(torch.promote_types(states.dtype, torch.float32)), dim=-1)
        if rows is None:
            return vectors
        return vectors.index_select(0, rows.clamp(min=0).flatten()).unflatten(0, rows.shape)

    def forward(self, states: Any, token_embeddings: Any) -> Tensor:
        """Return the vectors."""
        vectors: Tensor = states
        return vectors

    def loss(self, states: Any, token_embeddings: Any, labels: Tensor, label_smoothing: float = 0.0) -> Tensor:
        """Return the summed cross entropy of each text's positive among the positives and negatives of all texts.

        These are in-batch negatives (Henderson et al. 2017, §4.1; Gao et al. 2021, SimCSE, eq. 1 and 5). `labels`,
        [n, columns], are equal for equal texts and -1 where there is none: a text that equals the first text or its
        positive, or is the positive of an equal text, is not a negative.
        """
        num_texts = len(labels)
        candidates = states[:, 1:].transpose(0, 1).flatten(0, 1)  # [m, dim]: all positives, then all hard negatives
        candidate_ids = labels[:, 1:].T.flatten()  # [m]
        logits = states[:, 0] @ candidates.T / self.config.temperature  # [n, m]
        is_positive = torch.eye(num_texts, len(candidate_ids), dtype=torch.bool, device=labels.device)
        is_equal = (candidate_ids == labels[:, :1]) | (candidate_ids == labels[:, 1:2])
        is_equal[:, :num_texts] |= labels[:, 0] == labels[:, :1]
        excluded = (is_equal & ~is_positive) | (candidate_ids < 0)
        targets = torch.arange(num_texts, device=labels.device)
        return F.cross_entropy(logits.masked_fill(excluded, float("-inf")), targets, reduction="sum")

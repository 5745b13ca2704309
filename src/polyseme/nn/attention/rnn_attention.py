"""Bahdanau or Luong attention of a recurrent decoder over encoder states.

There is one head, and states are projected only where the score function requires it.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import ClassVar, Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from polyseme.config import Config
from polyseme.errors import ConfigError
from polyseme.nn.packing import EncoderInput, PackedLayout


@dataclass(frozen=True)
class RNNAttentionConfig(Config):
    """Score of a decoder state s and an encoder state h.

    dot: s·h; cosine: their cosine times a learned scale (Graves et al. 2014, §3.3.1); multiplicative: s·W h (Luong et
    al. 2015, §3.1, "general"); additive: v·tanh(W s + U h) with `hidden_dim` hidden units (Bahdanau et al. 2015,
    A.1.2); 0 means the size of s.
    """

    score: Literal["dot", "cosine", "multiplicative", "additive"] = "multiplicative"
    hidden_dim: int = 0

    def __post_init__(self) -> None:
        self.check_range(0, math.inf, "hidden_dim")

    @property
    def projects_source(self) -> bool:
        """Whether encoder states are multiplied by a matrix."""
        return self.score in ("multiplicative", "additive")

    def build(self, dim: int, source_dim: int) -> RNNAttention:
        if not self.projects_source and dim != source_dim:
            sizes = f"one size, got {dim} and {source_dim}; use multiplicative or additive attention"
            raise ConfigError(f"{self.score} attention needs decoder and encoder states of {sizes}")
        return RNNAttention(self, dim, source_dim)


class RNNAttention(nn.Module):
    """Attention of decoder states over encoder states."""

    constant_init: ClassVar = {"cosine_scale": 10.0}  # the softmax of numbers in ± 1 is nearly uniform

    def __init__(self, config: RNNAttentionConfig, dim: int, source_dim: int):
        super().__init__()
        self.config, self.source_dim = config, source_dim
        is_additive, hidden_dim = config.score == "additive", config.hidden_dim or dim
        key_dim = hidden_dim if is_additive else dim
        self.key_proj = nn.Linear(source_dim, key_dim, bias=is_additive) if config.projects_source else None
        self.query_proj = nn.Linear(dim, hidden_dim, bias=False) if is_additive else None
        self.score_proj = nn.Linear(hidden_dim, 1, bias=False) if is_additive else None
        self.cosine_scale = nn.Parameter(torch.empty(1)) if config.score == "cosine" else None

    def precompute_keys(self, states: Tensor) -> Tensor:
        """Return encoder states with their keys appended on the last axis, computed once per source."""
        if self.key_proj is not None:
            return torch.cat([states, self.key_proj(states)], dim=-1)
        return states if self.cosine_scale is None else torch.cat([states, F.normalize(states, dim=-1)], dim=-1)

    def begin(self, source: EncoderInput) -> SourceAttention:
        """Start a forward pass of the decoder over a source prepared by `precompute_keys`."""
        padded = source.layout.pad(source.values)
        values, keys = padded[..., : self.source_dim], padded[..., self.source_dim :]
        return SourceAttention(self, values, keys if keys.shape[-1] else values, ~source.layout.attention_mask())

    def scores(self, states: Tensor, keys: Tensor) -> Tensor:
        """Score states [B, n, dim] against keys [B, m, …]; returns [B, n, m]."""
        if self.query_proj is not None and self.score_proj is not None:
            return self.score_proj((self.query_proj(states)[:, :, None] + keys[:, None]).tanh())[..., 0]
        if self.cosine_scale is not None:
            states = self.cosine_scale * F.normalize(states, dim=-1)
        return states @ keys.transpose(1, 2)


class SourceAttention:
    """Attention over the sources of a batch during one forward pass of the decoder.

    The decoder attends at each step (`make_step_fn`) or for all states at once; `weights` and `contexts` of all tokens
    are set afterwards.
    """

    weights: Tensor  # [T, max source length]
    contexts: Tensor  # [T, source_dim]

    def __init__(self, attention: RNNAttention, values: Tensor, keys: Tensor, padding_mask: Tensor):
        self.attention, self.values, self.keys, self.padding_mask = attention, values, keys, padding_mask
        self.steps: list[tuple[Tensor, Tensor]] = []  # weights and contexts

    def _attention_weights(self, states: Tensor, keys: Tensor, padding_mask: Tensor) -> Tensor:
        scores = self.attention.scores(states, keys).masked_fill(padding_mask[:, None], -math.inf)
        return scores.softmax(-1, dtype=torch.promote_types(scores.dtype, torch.float32)).to(scores.dtype)

    def make_step_fn(self, sequence_order: Tensor | None) -> Callable[[Tensor], Tensor]:
        """Return a function from the states [n, dim] of the first n sequences, in this order, to their contexts."""
        values, keys, padding_mask = self.values, self.keys, self.padding_mask
        if sequence_order is not None:
            values, keys, padding_mask = (t.index_select(0, sequence_order) for t in (values, keys, padding_mask))
        self.steps = []

        def step(states: Tensor) -> Tensor:
            n = len(states)
            weights = self._attention_weights(states[:, None], keys[:n], padding_mask[:n])
            self.steps.append((weights[:, 0], (weights @ values[:n])[:, 0]))
            return self.steps[-1][1]

        return step

    def finalize(self, pack: Callable[[Tensor], Tensor]) -> None:
        """Set `weights` and `contexts` after the last step; `pack` turns time-major rows into packed ones."""
        self.weights, self.contexts = (pack(torch.cat(rows)) for rows in zip(*self.steps))

    def attend_all(self, states: Tensor, layout: PackedLayout) -> None:
        """Set `weights` and `contexts` for all states [T, dim] at once."""
        weights = self._attention_weights(layout.pad(states), self.keys, self.padding_mask)
        self.weights, self.contexts = layout.unpad(weights), layout.unpad(weights @ self.values)

"""Looking at a source: a state scores every state of its source, and gets their mean by these scores.

One head, and the states are not projected but where a score asks for it: attention as it was before the Transformer.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from polyseme.config import Config
from polyseme.errors import ConfigError
from polyseme.nn.packing import EncoderInput, PackedLayout

INITIAL_COSINE_SCALE = 10.0  # of cosines at the start: a softmax of numbers within ± 1 is nearly even


@dataclass(frozen=True)
class RNNAttentionConfig(Config):
    """How a state s scores a state h of its source.

    dot: s·h; cosine: their angle, times a strength that is learned (Graves et al. 2014, §3.3.1); multiplicative: s·W h
    (Luong et al. 2015, §3.1, general); additive: v·tanh(W s + U h), in a space of size `hidden_dim` (Bahdanau et al.
    2015, A.1.2); 0 is as large as s.
    """

    score: Literal["dot", "cosine", "multiplicative", "additive"] = "multiplicative"
    hidden_dim: int = 0

    def __post_init__(self) -> None:
        self.check_range(0, math.inf, "hidden_dim")

    @property
    def projects_source(self) -> bool:
        """Whether a source is multiplied with a matrix."""
        return self.score in ("multiplicative", "additive")

    def build(self, dim: int, source_dim: int) -> RNNAttention:
        if not self.projects_source and dim != source_dim:
            raise ConfigError(
                f"{self.score} compares states of one size, not {dim} with {source_dim}: multiplicative or additive"
            )
        return RNNAttention(self, dim, source_dim)


class RNNAttention(nn.Module):
    def __init__(self, config: RNNAttentionConfig, dim: int, source_dim: int):
        super().__init__()
        self.config, self.source_dim = config, source_dim
        is_additive, hidden_dim = config.score == "additive", config.hidden_dim or dim
        key_dim = hidden_dim if is_additive else dim
        self.key_proj = nn.Linear(source_dim, key_dim, bias=is_additive) if config.projects_source else None
        self.query_proj = nn.Linear(dim, hidden_dim, bias=False) if is_additive else None
        self.score_proj = nn.Linear(hidden_dim, 1, bias=False) if is_additive else None
        self.cosine_scale = nn.Parameter(torch.empty(1)) if config.score == "cosine" else None

    @torch.no_grad()
    def initialize(self) -> None:
        if self.cosine_scale is not None:
            self.cosine_scale.fill_(INITIAL_COSINE_SCALE)

    def precompute_keys(self, states: Tensor) -> Tensor:
        """The states of a source with their keys behind them: made once, however often they are looked at."""
        if self.key_proj is not None:
            return torch.cat([states, self.key_proj(states)], dim=-1)
        return states if self.cosine_scale is None else torch.cat([states, F.normalize(states, dim=-1)], dim=-1)

    def begin(self, source: EncoderInput) -> EncoderAttentionState:
        """For one reading, of a source as `precompute_keys` has it."""
        padded = source.layout.pad(source.values)
        values, keys = padded[..., : self.source_dim], padded[..., self.source_dim :]
        return EncoderAttentionState(self, values, keys if keys.shape[-1] else values, ~source.layout.attention_mask())

    def scores(self, states: Tensor, keys: Tensor) -> Tensor:
        """[B, n, dim] and [B, m, …] to [B, n, m]."""
        if self.query_proj is not None and self.score_proj is not None:
            return self.score_proj((self.query_proj(states)[:, :, None] + keys[:, None]).tanh())[..., 0]
        if self.cosine_scale is not None:
            states = self.cosine_scale * F.normalize(states, dim=-1)
        return states @ keys.transpose(1, 2)


class EncoderAttentionState:
    """The sources of a batch as one reading looks at them; afterwards `weights` and `contexts` are of every token.

    It answers a layer at every step (`Answers`), or all states at once.
    """

    weights: Tensor  # [T, longest source]
    contexts: Tensor  # [T, source]

    def __init__(self, attention: RNNAttention, values: Tensor, keys: Tensor, padding_mask: Tensor):
        self.attention, self.values, self.keys, self.padding_mask = attention, values, keys, padding_mask
        self.weights_per_step: list[Tensor] = []
        self.contexts_per_step: list[Tensor] = []

    def _attention_weights(self, states: Tensor, keys: Tensor, padding_mask: Tensor) -> Tensor:
        scores = self.attention.scores(states, keys).masked_fill(padding_mask[:, None], -math.inf)
        return scores.softmax(-1, dtype=torch.promote_types(scores.dtype, torch.float32)).to(scores.dtype)

    def make_step_fn(self, sequence_order: Tensor | None) -> Callable[[Tensor], Tensor]:
        tensors = self.values, self.keys, self.padding_mask
        values, keys, padding_mask = (
            tensors if sequence_order is None else (p.index_select(0, sequence_order) for p in tensors)
        )
        self.weights_per_step, self.contexts_per_step = [], []

        def step(states: Tensor) -> Tensor:
            n = len(states)
            weights = self._attention_weights(states[:, None], keys[:n], padding_mask[:n])
            self.weights_per_step.append(weights[:, 0])
            self.contexts_per_step.append((weights @ values[:n])[:, 0])
            return self.contexts_per_step[-1]

        return step

    def finalize(self, pack: Callable[[Tensor], Tensor]) -> None:
        self.weights, self.contexts = pack(torch.cat(self.weights_per_step)), pack(torch.cat(self.contexts_per_step))

    def attend_all(self, states: Tensor, layout: PackedLayout) -> None:
        """The answers to all states of a batch, [T, dim]."""
        weights = self._attention_weights(layout.pad(states), self.keys, self.padding_mask)
        self.weights, self.contexts = layout.unpad(weights), layout.unpad(weights @ self.values)

"""What attention computes for one sequence, term by term: for inspection, and the reference for fast kernels."""

from __future__ import annotations

from dataclasses import dataclass, field

import torch
from torch import Tensor

from polyseme.nn.attention.attend import AttentionOptions, expand_relative_bias, visibility_mask


@dataclass(frozen=True, eq=False)
class AttentionTerms:
    """Queries, keys and values of all heads of a layer, and the terms of the attention scores.

    A score is `scale · product`, plus each of the `biases`, which are scaled already. `product` is q·k unless
    `score_function` says otherwise (attention of a recurrent decoder).
    """

    queries: Tensor  # [heads, queries, head_dim]
    keys: Tensor  # [heads, keys, head_dim]
    values: Tensor  # [heads, keys, head_dim]
    products: Tensor  # [heads, queries, keys]
    scale: float = 1.0
    biases: dict[str, Tensor] = field(default_factory=dict)  # by name, each [heads, queries, keys]
    mask: Tensor | None = None  # bool [queries, keys], True = may be attended to; None: all
    score_function: str = "dot"
    is_rotary: bool = False  # whether queries and keys were rotated by position

    @property
    def scores(self) -> Tensor:
        """The scores, [heads, queries, keys]; −∞ for masked keys."""
        scores = self.products * self.scale
        for bias in self.biases.values():
            scores = scores + bias
        return scores if self.mask is None else scores.masked_fill(~self.mask, float("-inf"))

    @property
    def weights(self) -> Tensor:
        """The attention probabilities, [heads, queries, keys]; each row sums to one."""
        return self.scores.softmax(-1)

    @property
    def attended(self) -> Tensor:
        """The weighted sum of the values, [heads, queries, head_dim]."""
        return self.weights @ self.values


def split_heads(*projected: Tensor) -> tuple[Tensor, ...]:
    """Convert [rows, heads, head_dim] to [heads, rows, head_dim], in at least float32."""
    return tuple(x.transpose(0, 1).to(torch.promote_types(x.dtype, torch.float32)) for x in projected)


def attention_terms(q: Tensor, k: Tensor, v: Tensor, options: AttentionOptions) -> AttentionTerms:
    """Compute the terms of one sequence from q [queries, heads, head_dim], k and v [keys, heads, head_dim]."""
    queries, keys, values = split_heads(q, k, v)
    num_queries, num_keys = len(q), len(k)
    biases = {}
    if options.bias is not None:
        biases["relative position"] = expand_relative_bias(options.bias, num_queries, num_keys).to(queries.dtype)
    mask = visibility_mask(num_queries, num_keys, options.causal, options.window, q.device)
    products = queries @ keys.transpose(1, 2)
    return AttentionTerms(queries, keys, values, products, options.resolve_scale(q.shape[-1]), biases, mask)

"""Multi-head attention: projections around `attend`."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor, nn

from polyseme.errors import UserError
from polyseme.parts.attend import attend, attend_self, attention_weights
from polyseme.parts.layout import Layout
from polyseme.parts.memory import Cache
from polyseme.parts.spec import Spec, in_range


@dataclass(frozen=True)
class AttentionSpec(Spec):
    num_heads: int
    dropout: float = 0.0  # on the probabilities
    bias: bool = True
    causal: bool = False

    def __post_init__(self) -> None:
        in_range("attention dropout", self.dropout, 0, 1)

    def build(self, dim: int) -> Attention:
        if self.num_heads < 1 or dim % self.num_heads:
            raise UserError(f"num_heads is {self.num_heads}, which does not divide dim {dim}")
        return Attention(self, dim)


class Attention(nn.Module):
    """Self-attention; query, key and value are one matrix `qkv`."""

    def __init__(self, spec: AttentionSpec, dim: int):
        super().__init__()
        self.spec, self.dim = spec, dim
        self.qkv = nn.Linear(dim, 3 * dim, bias=spec.bias)
        self.out = nn.Linear(dim, dim, bias=spec.bias)

    def project(self, x: Tensor) -> Tensor:
        """Queries, keys and values, [T, 3, heads, head_dim]."""
        return self.qkv(x).view(x.shape[0], 3, self.spec.num_heads, -1)

    def forward(self, x: Tensor, layout: Layout, cache: Cache | None = None) -> Tensor:
        qkv, dropout = self.project(x), self.spec.dropout if self.training else 0.0
        if cache is None:
            return self.out(attend_self(qkv, layout, self.spec.causal, dropout).flatten(1))
        q, k, v = qkv.unbind(1)
        k, v, k_layout = cache.extend(k, v)
        return self.out(attend(q, k, v, layout, k_layout, self.spec.causal, dropout).flatten(1))

    def weights(self, x: Tensor, layout: Layout) -> list[Tensor]:
        q, k, _ = self.project(x).unbind(1)
        return attention_weights(q, k, layout, layout, self.spec.causal)

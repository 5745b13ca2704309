"""One Transformer layer. Each sublayer has two norm slots, one of them real: pre- and post-norm are data."""

from __future__ import annotations

from dataclasses import dataclass, field

from torch import Tensor, nn

from polyseme.config import Spec
from polyseme.nn.attention.multihead import AttentionSpec
from polyseme.nn.attention.relative import RelativeAttentionSpec, Shared
from polyseme.nn.layers.feedforward import FeedForwardSpec
from polyseme.nn.layers.norms import NoNormSpec, NormSpec, added
from polyseme.nn.memory import Cache
from polyseme.nn.packing import Layout, Source


@dataclass(frozen=True)
class BlockSpec(Spec):
    attention: AttentionSpec | RelativeAttentionSpec
    ffn: FeedForwardSpec
    before: NormSpec = field(default_factory=NoNormSpec)
    after: NormSpec = field(default_factory=NoNormSpec)
    dropout: float = 0.0  # on each sublayer's output, before the residual sum
    bare: bool = False  # without the norm before attention: a first block whose input is normed already
    cross: AttentionSpec | None = None  # to a source, between attention and feed-forward

    def build(self, dim: int) -> Block:
        return Block(self, dim)


class Block(nn.Module):
    def __init__(self, spec: BlockSpec, dim: int):
        super().__init__()
        self.attention_before = (NoNormSpec() if spec.bare else spec.before).build(dim)
        self.attention = spec.attention.build(dim)
        self.attention_after = spec.after.build(dim)
        self.cross_before = (spec.before if spec.cross else NoNormSpec()).build(dim)
        self.cross = spec.cross.build(dim) if spec.cross else None
        self.cross_after = (spec.after if spec.cross else NoNormSpec()).build(dim)
        self.ffn_before = spec.before.build(dim)
        self.ffn = spec.ffn.build(dim)
        self.ffn_after = spec.after.build(dim)
        self.dropout = nn.Dropout(spec.dropout)

    def forward(
        self,
        x: Tensor,
        layout: Layout,
        positions: Tensor,
        cache: Cache | None = None,
        relations: Shared | None = None,
        source: Source | None = None,
    ) -> Tensor:
        attended = self.attention(self.attention_before(x), layout, positions, cache, relations=relations)
        x = added(self.attention_after, x, self._kept(attended))
        if self.cross is not None:
            attended = self.cross.across(self.cross_before(x), layout, source, cache)
            x = added(self.cross_after, x, self._kept(attended))
        return added(self.ffn_after, x, self._kept(self.ffn(self.ffn_before(x))))

    def _kept(self, y: Tensor) -> Tensor:
        """With dropout, in training; a step of decoding would feel the call of a part that does nothing."""
        found: Tensor = self.dropout(y) if self.training else y
        return found

    def cross_weights(self, x: Tensor, layout: Layout, relations: Shared | None, source: Source) -> list[Tensor]:
        """Which states of the source a target looks at, [heads, queries, keys] for each sequence."""
        assert self.cross is not None
        attended = self.attention(self.attention_before(x), layout, layout.positions, None, relations=relations)
        x = added(self.attention_after, x, attended)
        return self.cross.across_weights(self.cross_before(x), layout, source)

    def attention_weights(self, x: Tensor, layout: Layout, relations: Shared | None = None) -> list[Tensor]:
        return self.attention.weights(self.attention_before(x), layout, relations=relations)

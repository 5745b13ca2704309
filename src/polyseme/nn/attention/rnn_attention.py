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

from polyseme.config import Spec
from polyseme.errors import UserError
from polyseme.nn.packing import Layout, Source

STRENGTH = 10.0  # of cosines at the start: a softmax of numbers within ± 1 is nearly even


@dataclass(frozen=True)
class LookSpec(Spec):
    """How a state s scores a state h of its source.

    dot: s·h; cosine: their angle, times a strength that is learned (Graves et al. 2014, §3.3.1); multiplicative: s·W h
    (Luong et al. 2015, §3.1, general); additive: v·tanh(W s + U h), in a space of size `inner` (Bahdanau et al. 2015,
    A.1.2); 0 is as large as s.
    """

    score: Literal["dot", "cosine", "multiplicative", "additive"] = "multiplicative"
    inner: int = 0

    def __post_init__(self) -> None:
        self.within(0, math.inf, "inner")

    @property
    def projects(self) -> bool:
        """Whether a source is multiplied with a matrix."""
        return self.score in ("multiplicative", "additive")

    def build(self, dim: int, source: int) -> Look:
        if not self.projects and dim != source:
            raise UserError(
                f"{self.score} compares states of one size, not {dim} with {source}: multiplicative or additive"
            )
        return Look(self, dim, source)


class Look(nn.Module):
    def __init__(self, spec: LookSpec, dim: int, source: int):
        super().__init__()
        self.spec, self.source = spec, source
        additive, inner = spec.score == "additive", spec.inner or dim
        size = inner if additive else dim
        self.keys = nn.Linear(source, size, bias=additive) if spec.projects else None
        self.query = nn.Linear(dim, inner, bias=False) if additive else None
        self.out = nn.Linear(inner, 1, bias=False) if additive else None
        self.strength = nn.Parameter(torch.empty(1)) if spec.score == "cosine" else None

    @torch.no_grad()
    def initialise(self) -> None:
        if self.strength is not None:
            self.strength.fill_(STRENGTH)

    def offered(self, states: Tensor) -> Tensor:
        """The states of a source with their keys behind them: made once, however often they are looked at."""
        if self.keys is not None:
            return torch.cat([states, self.keys(states)], dim=-1)
        return states if self.strength is None else torch.cat([states, F.normalize(states, dim=-1)], dim=-1)

    def opened(self, source: Source) -> Looking:
        """For one reading, of a source as `offered` has it."""
        padded = source.layout.pad(source.values)
        values, keys = padded[..., : self.source], padded[..., self.source :]
        return Looking(self, values, keys if keys.shape[-1] else values, ~source.layout.mask())

    def scores(self, states: Tensor, keys: Tensor) -> Tensor:
        """[B, n, dim] and [B, m, …] to [B, n, m]."""
        if self.query is not None and self.out is not None:
            return self.out((self.query(states)[:, :, None] + keys[:, None]).tanh())[..., 0]
        if self.strength is not None:
            states = self.strength * F.normalize(states, dim=-1)
        return states @ keys.transpose(1, 2)


class Looking:
    """The sources of a batch as one reading looks at them; afterwards `shares` and `contexts` are of every token.

    It answers a layer at every step (`Answers`), or all states at once.
    """

    shares: Tensor  # [T, longest source]
    contexts: Tensor  # [T, source]

    def __init__(self, look: Look, values: Tensor, keys: Tensor, hidden: Tensor):
        self.look, self.values, self.keys, self.hidden = look, values, keys, hidden
        self.seen: list[Tensor] = []
        self.said: list[Tensor] = []

    def _shares(self, states: Tensor, keys: Tensor, hidden: Tensor) -> Tensor:
        scores = self.look.scores(states, keys).masked_fill(hidden[:, None], -math.inf)
        return scores.softmax(-1, dtype=torch.promote_types(scores.dtype, torch.float32)).to(scores.dtype)

    def along(self, sequences: Tensor | None) -> Callable[[Tensor], Tensor]:
        parts = self.values, self.keys, self.hidden
        values, keys, hidden = parts if sequences is None else (p.index_select(0, sequences) for p in parts)
        self.seen, self.said = [], []

        def answer(states: Tensor) -> Tensor:
            n = len(states)
            shares = self._shares(states[:, None], keys[:n], hidden[:n])
            self.seen.append(shares[:, 0])
            self.said.append((shares @ values[:n])[:, 0])
            return self.said[-1]

        return answer

    def done(self, packed: Callable[[Tensor], Tensor]) -> None:
        self.shares, self.contexts = packed(torch.cat(self.seen)), packed(torch.cat(self.said))

    def at_once(self, states: Tensor, layout: Layout) -> None:
        """The answers to all states of a batch, [T, dim]."""
        shares = self._shares(layout.pad(states), self.keys, self.hidden)
        self.shares, self.contexts = layout.unpad(shares), layout.unpad(shares @ self.values)

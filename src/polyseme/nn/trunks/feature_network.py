"""Task models over features, as the tables before 2018 had them: linear, BiLSTM, biattentive, ESIM, BiDAF."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any, ClassVar, Literal

import torch
from torch import Tensor, nn

from polyseme.errors import UserError
from polyseme.nn.init import InitSpec
from polyseme.nn.layers.embeddings import EmbeddingsSpec
from polyseme.nn.layers.frozen_features import Features, FeaturesSpec
from polyseme.nn.packing import Layout
from polyseme.nn.trunks.recurrent import Layer, Recurrence, RecurrentSpec, Steps
from polyseme.nn.trunks.transformer import PoolerSpec, Reading, SimpleTrunkSpec, Trunk

Network = Literal["linear", "bilstm", "biattentive", "esim", "bidaf"]


@dataclass(frozen=True)
class OverSpec(SimpleTrunkSpec):
    """`linear` is the features themselves; `bilstm` reads them both ways (Lample et al. 2016, §4).

    `biattentive` lets two texts, or a text and itself, attend to each other and integrates what they saw (McCann et al.
    2017, §5; one maxout layer without batch norm); `esim` compares two texts (Chen et al. 2017, §3). These two say one
    vector of a sequence, which stands at its first token. `bidaf` reads the first text by the light of the second and
    says a vector of each of its words (Seo et al. 2017, §2, without highway layers).
    """

    features: FeaturesSpec
    network: Network = "bilstm"
    size: int = 256  # of a direction
    num_layers: int = 1
    dropout: float = 0.5
    init: InitSpec = field(default_factory=lambda: InitSpec(1.0, fan_in=True))

    causal: ClassVar[bool] = False
    by_lengths: ClassVar[bool] = True
    num_segments: ClassVar[int] = 2

    def __post_init__(self) -> None:
        self.within(0, 1, "dropout")
        self.within(1, 1 << 20, "size")
        self.within(1, 100, "num_layers")
        if self.features.between and (self.network != "bilstm" or self.num_layers < 2):
            has = f"{self.network} with num_layers {self.num_layers}"
            raise UserError(f"features join between the layers of a bilstm with num_layers 2 or more, not of {has}")

    @property
    def embeddings(self) -> FeaturesSpec:
        return self.features

    @property
    def body(self) -> int:
        """How long the network's own states are."""
        sizes = {"linear": self.features.entering, "bilstm": 2 * self.size, "bidaf": 12 * self.size}
        return sizes.get(self.network, self.size)

    @property
    def dim(self) -> int:
        return self.body + self.features.behind

    @property
    def weights(self) -> int:
        """How many weights of matrices a token meets."""
        read, size = self.features.entering, self.size
        one = 4 * size * (read + size + self.features.between) + (self.num_layers - 1) * 12 * size * size
        more = {"bidaf": 8 * size * (9 + 3 + 3) * size}.get(self.network, 32 * size * size)
        return {"linear": 0, "bilstm": 2 * one}.get(self.network, 2 * one + more)

    @property
    def pooler(self) -> PoolerSpec:
        return PoolerSpec("mean" if self.network in ("linear", "bilstm") else "first")

    def build(self) -> Over:
        return Over(self)


class BiLstm(nn.Module):
    """Layers that read both directions of those below, with dropout between them; the second may read more.

    `joins` is how long that is.
    """

    def __init__(self, read: int, size: int, num_layers: int = 1, dropout: float = 0.0, joins: int = 0):
        super().__init__()
        reads = [read, 2 * size + joins, *[2 * size] * num_layers][:num_layers]
        specs = [RecurrentSpec(EmbeddingsSpec(1, n, 1), (size,), direction="crossed", forget_bias=1.0) for n in reads]
        self.layers = nn.ModuleList(Layer(spec, spec.stacks[0], 1) for spec in specs)
        self.dropout = nn.Dropout(dropout)

    def forward(self, x: Tensor, layout: Layout, joining: Tensor | None = None) -> Tensor:
        steps = Steps(layout)
        y = steps.enter(x)
        for depth, layer in enumerate(self.layers):
            y = self.dropout(y) if depth else y
            y = torch.cat([y, steps.enter(joining)], dim=-1) if depth == 1 and joining is not None else y
            y = layer(y, steps, layer.start(steps.number, x), False)[0]  # type: ignore[operator]
        return steps.leave(y)


def attend_across(a: Tensor, of_a: Layout, b: Tensor, of_b: Layout) -> tuple[Tensor, Tensor]:
    """For each row of a the rows of its partner b, weighted by softmax(a·b), and for each row of b those of a."""
    one, other = of_a.pad(a), of_b.pad(b)
    here, there = of_a.mask(), of_b.mask()
    scores = one @ other.transpose(1, 2)
    from_b = scores.masked_fill(~there[:, None], -torch.inf).softmax(2) @ other
    from_a = scores.transpose(1, 2).masked_fill(~here[:, None], -torch.inf).softmax(2) @ one
    return of_a.unpad(from_b), of_b.unpad(from_a)


class Biattention(nn.Module):
    """The biattentive classification network behind its encoder; both sides share all weights."""

    def __init__(self, size: int, dropout: float):
        super().__init__()
        self.dropout = nn.Dropout(dropout)
        self.integrate = BiLstm(6 * size, size)
        self.look = nn.Linear(2 * size, 1)
        self.maxout = nn.Linear(16 * size, 4 * size)

    def forward(self, a: Tensor, of_a: Layout, b: Tensor, of_b: Layout) -> Tensor:
        seen = attend_across(a, of_a, b, of_b)
        pooled = [self._pooled(x, y, of) for x, y, of in zip((a, b), seen, (of_a, of_b))]
        return self.maxout(self.dropout(torch.cat(pooled, dim=-1))).unflatten(-1, (4, -1)).amax(1)

    def _pooled(self, x: Tensor, seen: Tensor, layout: Layout) -> Tensor:
        x = self.integrate(self.dropout(torch.cat([x, x - seen, x * seen], dim=-1)), layout)
        shares = layout.pad(self.look(x), -torch.inf).softmax(1)
        own = (shares * layout.pad(x)).sum(1)
        least, most = layout.pad(x, torch.inf).amin(1), layout.pad(x, -torch.inf).amax(1)
        return torch.cat([most, layout.mean(x), least, own], dim=-1)


class Esim(nn.Module):
    """Enhanced sequential inference behind its encoder: local comparison, composition, mean and greatest."""

    def __init__(self, size: int, dropout: float):
        super().__init__()
        self.project, self.dropout = nn.Linear(8 * size, size), nn.Dropout(dropout)
        self.compose = BiLstm(size, size)
        self.final = nn.Linear(8 * size, size)

    def forward(self, a: Tensor, of_a: Layout, b: Tensor, of_b: Layout) -> Tensor:
        pooled = []
        for x, seen, layout in zip((a, b), attend_across(a, of_a, b, of_b), (of_a, of_b)):
            compared = torch.cat([x, seen, x - seen, x * seen], dim=-1)
            y = self.compose(self.dropout(self.project(compared).relu()), layout)
            pooled += [layout.mean(y), layout.pad(y, -torch.inf).amax(1)]
        return self.final(self.dropout(torch.cat(pooled, dim=-1))).tanh()


def attend_both_ways(h: Tensor, of_h: Layout, u: Tensor, of_u: Layout, w: Tensor) -> Tensor:
    """G of Seo et al. 2017, §2 (4), [rows of h, 4 dim], from the similarity w·[h; u; h∘u] of a context and a question.

    Each word of the context looks at the question (ũ), and all of the context is looked at by how well any word of the
    question fits each of its words (h̃): [h; ũ; h∘ũ; h∘h̃].
    """
    context, question, (to_h, to_u, to_both) = of_h.pad(h), of_u.pad(u), w.chunk(3)
    scores = (context @ to_h)[:, :, None] + (question @ to_u)[:, None] + (context * to_both) @ question.transpose(1, 2)
    scores = scores.masked_fill(~of_u.mask()[:, None], -torch.inf)
    seen = of_h.unpad(scores.softmax(2) @ question)
    shares = scores.amax(2).masked_fill(~of_h.mask(), -torch.inf).softmax(1)
    whole = of_h.unpad((shares[:, None] @ context).expand_as(context))
    return torch.cat([h, seen, h * seen, h * whole], dim=-1)


class Bidaf(nn.Module):
    """Bidirectional attention flow behind its encoder: attention, two modelling layers, and one more for the end.

    Of a word it says [G; M; M²], from which a head scores it as a start and as an end (in the paper a start sees no M²,
    an end no M). Every other row has the state `none`, so that "no answer" has a score of its own (Levy et al. 2017,
    §4).
    """

    def __init__(self, size: int, dropout: float):
        super().__init__()
        self.dropout = nn.Dropout(dropout)
        self.similarity = nn.Linear(6 * size, 1, bias=False)
        self.model = BiLstm(8 * size, size, 2, dropout)
        self.end = BiLstm(2 * size, size)
        self.none = nn.Parameter(torch.zeros(12 * size))

    def zeros(self) -> list[nn.Parameter]:
        return [self.none]

    def forward(self, h: Tensor, of_h: Layout, u: Tensor, of_u: Layout) -> Tensor:
        attended = attend_both_ways(h, of_h, u, of_u, self.similarity.weight[0])
        modelled = self.model(self.dropout(attended), of_h)
        ended = self.end(self.dropout(modelled), of_h)
        return self.dropout(torch.cat([attended, modelled, ended], dim=-1))


class Over(Trunk):
    """A trunk whose tokens are places of a store."""

    def __init__(self, spec: OverSpec):
        super().__init__()
        self.spec = spec
        self.features: Features = spec.features.build()
        recurrent = spec.network != "linear"
        sizes = spec.features.entering, spec.size, spec.num_layers
        self.encoder = BiLstm(*sizes, spec.dropout, spec.features.between) if recurrent else None
        pairs = {"biattentive": Biattention, "esim": Esim, "bidaf": Bidaf}
        self.compare = pairs[spec.network](spec.size, spec.dropout) if spec.network in pairs else None
        self.dropout = nn.Dropout(spec.dropout if recurrent else 0.0)
        self.pooler = spec.pooler.build(spec.dim)

    def forward(
        self,
        tokens: Tensor,
        layout: Layout,
        segments: Tensor | None = None,
        *,
        keep: Iterable[int] = (),
        memory: Any = None,
        remember: bool = False,
        queries: Any = None,
        source: Any = None,
    ) -> Reading:
        x, later = self.features(tokens, segments)
        if self.encoder is not None and self.compare is None:
            x = self.dropout(self.encoder(x, layout, later if self.spec.features.between else None))
        elif self.compare is not None:
            x = self._compared(x, layout, segments)
        return Reading(torch.cat([x, later], dim=-1) if later is not None and self.spec.features.behind else x, {})

    def _compared(self, x: Tensor, layout: Layout, segments: Tensor | None) -> Tensor:
        """Both texts of each sequence, or a text and itself; what is said of them stands at the first token, or at
        every token of the first text."""
        assert self.encoder is not None and self.compare is not None
        second = torch.zeros(len(x), dtype=torch.bool, device=x.device) if segments is None else segments > 0
        places = [(~second).nonzero()[:, 0], second.nonzero()[:, 0]]
        if not len(places[1]):
            places[1] = places[0]
        sides: list[Any] = []
        for rows in places:
            side = Layout.of(layout.counts(rows), device=x.device)
            sides += [self.encoder(x.index_select(0, rows), side), side]
        said = self.compare(*sides)
        if isinstance(self.compare, Bidaf):
            return self.compare.none.expand(len(x), -1).index_copy(0, places[0], said)
        return x.new_zeros(len(x), said.shape[1]).index_copy(0, layout.first[: len(said)], said)

    @property
    def table(self) -> None:
        """There is none that a head could share."""

    def groups(self) -> list[list[nn.Parameter]]:
        parts = [part for part in (self.features, self.encoder, self.compare) if part is not None]
        found = [list(part.parameters()) for part in parts]
        return [group for group in found if group]

    def initialise(self, generator: torch.Generator | None = None) -> None:
        self.spec.init.apply(self, 1, generator)
        for part in self.modules():
            if isinstance(part, Recurrence):
                part.initialise(generator)

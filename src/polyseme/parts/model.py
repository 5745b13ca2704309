"""A model is one trunk and named heads."""

from __future__ import annotations

from dataclasses import dataclass, field

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from polyseme.parts import kernels
from polyseme.parts.encoder_decoder import EncoderDecoderSpec
from polyseme.parts.heads import HeadSpec, LanguageHead
from polyseme.parts.layout import Layout
from polyseme.parts.spec import Spec
from polyseme.parts.trunk import TransformerSpec

TrunkSpec = TransformerSpec | EncoderDecoderSpec


@dataclass(frozen=True)
class ModelSpec(Spec):
    family: str
    trunk: TrunkSpec
    heads: dict[str, HeadSpec] = field(default_factory=dict)

    def build(self, seed: int | None = None) -> Model:
        """The module, with weights drawn from `seed` (or torch's own generator)."""
        model = Model(self)
        generator = None if seed is None else torch.Generator().manual_seed(seed)
        model.initialise(generator)
        return model


class Model(nn.Module):
    """Parameters are named `trunk.*` and `heads.<name>.*`."""

    def __init__(self, spec: ModelSpec):
        super().__init__()
        self.spec = spec
        self.trunk = spec.trunk.build()
        self.heads = nn.ModuleDict({name: head.build(spec.trunk.dim) for name, head in spec.heads.items()})

    def initialise(self, generator: torch.Generator | None = None) -> None:
        self.trunk.initialise(generator)
        for head in self.heads.values():
            self.spec.trunk.init.apply(head, 1, generator)

    def predict(self, head: str, last: Tensor, layout: Layout, rows: Tensor | None = None) -> Tensor:
        """A head's scores from the trunk's last states: of every token or sequence, or of the `rows` asked for."""
        return self.heads[head](self._states(head, last, layout, rows), self.trunk.table)

    def cross_entropy(
        self,
        head: str,
        last: Tensor,
        layout: Layout,
        rows: Tensor,
        values: Tensor,
        ignored: int,
        smoothing: float = 0.0,
    ) -> Tensor:
        """The summed cross entropy of a head's scores of `rows`; on a GPU those over a vocabulary are never whole.

        `smoothing` moves that share of the truth evenly over all classes (Szegedy et al. 2016, §7).
        """
        module, states, table = self.heads[head], self._states(head, last, layout, rows), self.trunk.table
        if isinstance(module, LanguageHead) and kernels.serve(states) and kernels.serve(table) and not smoothing:
            whole, bias = module.table(table), module.bias
            found: Tensor = kernels.vocabulary_loss(module.transform(states), whole, bias, values, ignored)
            return found
        scores = module(states, table).float()
        return F.cross_entropy(scores, values, ignore_index=ignored, reduction="sum", label_smoothing=smoothing)

    def _states(self, head: str, last: Tensor, layout: Layout, rows: Tensor | None) -> Tensor:
        states = self.trunk.pool(last, layout) if self.heads[head].reads == "pooled" else last
        return states if rows is None else states.index_select(0, rows)

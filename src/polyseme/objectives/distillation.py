"""Distillation as a function from objective to objective (Hinton et al. 2015; Sanh et al. 2019, §2).

A student does what the objective asks, and is shown what its teacher makes of the same batch: the same text, damaged in
the same places.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from polyseme.config import Spec
from polyseme.nn.model import Model
from polyseme.objectives.batch import IGNORED, Batch, Targets
from polyseme.objectives.packing import Bound, Shape, Vocabulary
from polyseme.objectives.specs import MaskedLM, Objective

if TYPE_CHECKING:
    from polyseme.corpus.store import Corpus


@dataclass(frozen=True)
class Distilled(Spec):
    """The terms of `base`, each with the weight `hard`, and two more: `soft` and `cosine`, with theirs.

    `soft` is the divergence of the student's guesses from the teacher's, both at `temperature`, where `base` predicts
    tokens; times the temperature squared, so that its gradient keeps its size (Hinton et al., §2). `cosine` is one
    minus the cosine of the two last states of every token. The weights are those of DistilBERT's released code.
    """

    base: Objective = field(default_factory=MaskedLM)
    temperature: float = 2.0
    soft: float = 5.0
    hard: float = 2.0
    cosine: float = 1.0

    def __post_init__(self) -> None:
        self.within(1e-3, math.inf, "temperature")
        self.within(0, math.inf, "soft", "hard", "cosine")

    @property
    def terms(self) -> tuple[str, ...]:
        """Those that have a head."""
        return self.base.terms

    @property
    def head(self) -> str:
        """The head that guesses tokens."""
        return self.base.terms[0]

    def bind(self, corpus: Corpus, vocabulary: Vocabulary, max_len: int, seed: int = 0) -> Bound:
        return _Distilled(self, self.base.bind(corpus, vocabulary, max_len, seed))

    def weighed(self, batch: Batch) -> Batch:
        """A batch of `base` with targets for the two terms more, and the weights of all.

        `soft` is counted by the rows of `head`, `cosine` by all tokens but filler.
        """
        rows = torch.arange(len(batch.tokens))
        states = torch.where(rows < batch.num_tokens, 0, IGNORED)
        targets = {name: replace(found, weight=self.hard * found.weight) for name, found in batch.targets.items()}
        targets["soft"] = replace(batch.targets[self.head], weight=self.soft)
        targets["cosine"] = Targets(rows, states, batch.num_tokens, self.cosine)
        return replace(batch, targets=targets)

    def losses(self, teacher: Model) -> Callable[[Model, Batch], dict[str, Tensor]]:
        """What the loop sums. The teacher does not learn and drops nothing out."""
        teacher.eval().requires_grad_(False)
        head, temperature = self.head, self.temperature

        def terms(model: Model, batch: Batch) -> dict[str, Tensor]:
            layout, targets = batch.layout, batch.targets
            rows, values = targets[head].rows, targets[head].values
            last = model.trunk(batch.tokens, layout, batch.segments).last
            with torch.no_grad():
                shown = teacher.trunk(batch.tokens, layout, batch.segments).last
                wanted = (teacher.predict(head, shown, layout, rows).float() / temperature).log_softmax(-1)
            guesses = model.predict(head, last, layout, rows).float()
            apart = F.kl_div((guesses / temperature).log_softmax(-1), wanted, log_target=True, reduction="none").sum(-1)
            turned = 1 - F.cosine_similarity(last.float(), shown.float(), dim=-1)
            found = {
                head: F.cross_entropy(guesses, values, ignore_index=IGNORED, reduction="sum"),
                "soft": (apart * (values != IGNORED)).sum() * temperature**2,
                "cosine": (turned * (targets["cosine"].values != IGNORED)).sum(),
            }
            for name in targets.keys() - found.keys():
                target = targets[name]
                found[name] = model.loss(name, last, layout, target.rows, target.values, IGNORED)
            return {name: found[name] for name in targets}

        return terms


class _Distilled(Bound):
    """The batches of a bound objective, with targets for the two terms more: so they are counted as all terms are."""

    def __init__(self, spec: Distilled, base: Bound):
        super().__init__(base.samples, base.longest, base.overhead)
        self.spec, self.base = spec, base

    def lengths(self, ids: np.ndarray, epoch: int) -> np.ndarray:
        return self.base.lengths(ids, epoch)

    def rows(self, num_tokens: int) -> int:
        return self.base.rows(num_tokens)

    def batch(self, ids: np.ndarray, epoch: int, shape: Shape | None = None) -> Batch:
        return self.spec.weighed(self.base.batch(ids, epoch, shape))

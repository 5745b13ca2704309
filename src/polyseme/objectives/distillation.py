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

from polyseme.config import Config
from polyseme.nn.model import Model
from polyseme.objectives.batch import IGNORE_INDEX, Batch, Targets
from polyseme.objectives.packing import BatchBuilder, SpecialIds, StaticShape
from polyseme.objectives.specs import MaskedLM, Objective

if TYPE_CHECKING:
    from polyseme.corpus.store import Corpus


@dataclass(frozen=True)
class Distillation(Config):
    """The terms of `base`, weighted by `hard_weight`, and two more, weighted by `soft_weight` and `cosine_weight`.

    The first is the divergence of the student's guesses from the teacher's, both at `temperature`, where `base`
    predicts tokens; times the temperature squared, so that its gradient keeps its size (Hinton et al., §2). The second
    is one minus the cosine of the two last states of every token. The weights are those of DistilBERT's released code.
    """

    base: Objective = field(default_factory=MaskedLM)
    temperature: float = 2.0
    soft_weight: float = 5.0
    hard_weight: float = 2.0
    cosine_weight: float = 1.0

    def __post_init__(self) -> None:
        self.check_range(1e-3, math.inf, "temperature")
        self.check_range(0, math.inf, "soft_weight", "hard_weight", "cosine_weight")

    @property
    def terms(self) -> tuple[str, ...]:
        """Those that have a head."""
        return self.base.terms

    @property
    def token_head(self) -> str:
        """The head that guesses tokens."""
        return self.base.terms[0]

    def bind(self, corpus: Corpus, special_ids: SpecialIds, max_len: int, seed: int = 0) -> BatchBuilder:
        return _DistillationBatchBuilder(self, self.base.bind(corpus, special_ids, max_len, seed))

    def add_teacher_targets(self, batch: Batch) -> Batch:
        """A batch of `base` with targets for the two terms more, and the weights of all.

        `soft_weight` is counted by the rows of `token_head`, `cosine_weight` by all tokens but filler.
        """
        rows = torch.arange(len(batch.tokens))
        labels = torch.where(rows < batch.num_tokens, 0, IGNORE_INDEX)
        targets = {
            name: replace(target, weight=self.hard_weight * target.weight) for name, target in batch.targets.items()
        }
        targets["soft"] = replace(batch.targets[self.token_head], weight=self.soft_weight)
        targets["cosine"] = Targets(rows, labels, batch.num_tokens, self.cosine_weight)
        return replace(batch, targets=targets)

    def build_loss_fn(self, teacher: Model) -> Callable[[Model, Batch], dict[str, Tensor]]:
        """What the loop sums. The teacher does not learn and drops nothing out."""
        teacher.eval().requires_grad_(False)
        head, temperature = self.token_head, self.temperature

        def terms(model: Model, batch: Batch) -> dict[str, Tensor]:
            layout, targets = batch.layout, batch.targets
            rows, labels = targets[head].rows, targets[head].labels
            hidden = model.trunk(batch.tokens, layout, batch.segments).hidden
            with torch.no_grad():
                teacher_hidden = teacher.trunk(batch.tokens, layout, batch.segments).hidden
                teacher_log_probs = (
                    teacher.predict(head, teacher_hidden, layout, rows).float() / temperature
                ).log_softmax(-1)
            logits = model.predict(head, hidden, layout, rows).float()
            divergence = F.kl_div(
                (logits / temperature).log_softmax(-1), teacher_log_probs, log_target=True, reduction="none"
            ).sum(-1)
            cosine_distance = 1 - F.cosine_similarity(hidden.float(), teacher_hidden.float(), dim=-1)
            loss_sums = {
                head: F.cross_entropy(logits, labels, ignore_index=IGNORE_INDEX, reduction="sum"),
                "soft": (divergence * (labels != IGNORE_INDEX)).sum() * temperature**2,
                "cosine": (cosine_distance * (targets["cosine"].labels != IGNORE_INDEX)).sum(),
            }
            for name in targets.keys() - loss_sums.keys():
                target = targets[name]
                loss_sums[name] = model.loss(name, hidden, layout, target.rows, target.labels, IGNORE_INDEX)
            return {name: loss_sums[name] for name in targets}

        return terms


class _DistillationBatchBuilder(BatchBuilder):
    """The batches of a bound objective, with targets for the two terms more: so they are counted as all terms are."""

    def __init__(self, config: Distillation, base: BatchBuilder):
        super().__init__(base.samples, base.max_len, base.num_special_tokens)
        self.config, self.base = config, base

    def lengths(self, ids: np.ndarray, epoch: int) -> np.ndarray:
        return self.base.lengths(ids, epoch)

    def max_predictions(self, num_tokens: int) -> int:
        return self.base.max_predictions(num_tokens)

    def batch(self, ids: np.ndarray, epoch: int, shape: StaticShape | None = None) -> Batch:
        return self.config.add_teacher_targets(self.base.batch(ids, epoch, shape))

"""Distillation: a student learns an objective and the predictions of a teacher (Hinton et al. 2015; Sanh et al. 2019).

Student and teacher get the same batches, masked at the same positions.
"""

import math
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from polyseme.corpus.store import Corpus
from polyseme.errors import ConfigError
from polyseme.nn.model import Model, ModelConfig
from polyseme.objectives.base import Objective, ObjectiveLoss
from polyseme.objectives.batch import IGNORE_INDEX, Batch, Targets
from polyseme.objectives.masked_lm import MaskedLM
from polyseme.objectives.packing import BatchBuilder, SpecialIds, StaticShape
from polyseme.weights.folder import hash_weights, load_model


@dataclass(frozen=True)
class Distillation(Objective):
    """The terms of `base`, weighted by `hard_weight`, and two more, `soft` and `cosine`, with their own weights.

    `soft` is the KL divergence of the student's token predictions from the teacher's, both at `temperature`, times the
    temperature squared, which keeps the size of its gradient (Hinton et al., §2). `cosine` is one minus the cosine of
    the hidden states of every token. The weights are those of DistilBERT's released code. `teacher` is the path of a
    model folder, `teacher_hash` the hash of its weights, which a resumed run must find unchanged.
    """

    base: Objective = field(default_factory=MaskedLM)
    temperature: float = 2.0
    soft_weight: float = 5.0
    hard_weight: float = 2.0
    cosine_weight: float = 1.0
    teacher: str = ""
    teacher_hash: str = ""

    def __post_init__(self) -> None:
        self.check_range(1e-3, math.inf, "temperature")
        self.check_range(0, math.inf, "soft_weight", "hard_weight", "cosine_weight")

    @property
    def terms(self) -> tuple[str, ...]:
        return self.base.terms

    @property
    def token_head(self) -> str:
        """The head that predicts tokens."""
        return self.base.terms[0]

    def check(self, model: ModelConfig, max_len: int) -> None:
        base = self.base
        if base.needs_source or base.needs_query_stream or base.needs_bounded_memory or base.is_sparse:
            raise ConfigError(f"Distillation of {type(base).__name__} is not supported: it needs plain sequences")
        base.check(model, max_len)

    def bind(self, corpus: Corpus, special_ids: SpecialIds, max_len: int, seed: int = 0) -> BatchBuilder:
        return _DistillationBatchBuilder(self, self.base.bind(corpus, special_ids, max_len, seed))

    def build_loss(self, device: torch.device, dtype: torch.dtype) -> ObjectiveLoss:
        """Load the teacher and return the loss that compares a student with it."""
        if not self.teacher:
            raise ConfigError("objective.teacher is empty: distillation needs the model folder of a teacher")
        if self.teacher_hash and hash_weights(Path(self.teacher)) != self.teacher_hash:
            raise ConfigError(f"the weights of the teacher {self.teacher} have changed since the run was started")
        teacher = load_model(self.teacher).model.to(device, dtype)
        return ObjectiveLoss(DistillationLoss(self, teacher).compute, (teacher,))

    def add_teacher_targets(self, batch: Batch) -> Batch:
        """Return a batch of `base` with targets for the terms `soft` and `cosine`, and the weights of all terms.

        `soft` has the rows of `token_head`, `cosine` all tokens except filler.
        """
        rows = torch.arange(len(batch.inputs.tokens))
        labels = torch.where(rows < batch.num_tokens, 0, IGNORE_INDEX)
        targets = {name: replace(t, weight=self.hard_weight * t.weight) for name, t in batch.targets.items()}
        targets["soft"] = replace(batch.targets[self.token_head], weight=self.soft_weight)
        targets["cosine"] = Targets(rows, labels, batch.num_tokens, self.cosine_weight)
        return replace(batch, targets=targets)


class DistillationLoss:
    """The loss of a student beside its teacher, which is frozen and without dropout."""

    def __init__(self, config: Distillation, teacher: Model):
        self.config, self.teacher = config, teacher.eval().requires_grad_(False)

    def compute(self, model: Model, batch: Batch) -> dict[str, Tensor]:
        """Return the summed loss of each term."""
        head, temperature = self.config.token_head, self.config.temperature
        layout, targets = batch.inputs.layout, batch.targets
        rows, labels = targets[head].rows, targets[head].labels
        hidden = model.trunk(batch.inputs).hidden
        with torch.no_grad():
            teacher_hidden = self.teacher.trunk(batch.inputs).hidden
            teacher_logits = self.teacher.predict(head, teacher_hidden, layout, rows).float()
            teacher_log_probs = (teacher_logits / temperature).log_softmax(-1)
        logits = model.predict(head, hidden, layout, rows).float()
        log_probs = (logits / temperature).log_softmax(-1)
        divergence = F.kl_div(log_probs, teacher_log_probs, log_target=True, reduction="none").sum(-1)
        cosine_distance = 1 - F.cosine_similarity(hidden.float(), teacher_hidden.float(), dim=-1)
        loss_sums = {
            head: F.cross_entropy(logits, labels, ignore_index=IGNORE_INDEX, reduction="sum"),
            "soft": (divergence * (labels != IGNORE_INDEX)).sum() * temperature**2,
            "cosine": (cosine_distance * (targets["cosine"].labels != IGNORE_INDEX)).sum(),
        }
        for name in targets.keys() - loss_sums.keys():
            target = targets[name]
            loss_sums[name] = model.loss(name, hidden, layout, target.rows, target.labels)
        return {name: loss_sums[name] for name in targets}


class _DistillationBatchBuilder(BatchBuilder):
    """The batches of another builder, with targets for the terms of the teacher."""

    def __init__(self, config: Distillation, base: BatchBuilder):
        super().__init__(base.samples, base.max_len, base.num_special_tokens)
        self.config, self.base = config, base

    def lengths(self, ids: np.ndarray, epoch: int) -> np.ndarray:
        return self.base.lengths(ids, epoch)

    def max_predictions(self, num_tokens: int) -> int:
        return self.base.max_predictions(num_tokens)

    def batch(self, ids: np.ndarray, epoch: int, shape: StaticShape | None = None) -> Batch:
        batch = self.base.batch(ids, epoch, shape)
        assert isinstance(batch, Batch)
        return self.config.add_teacher_targets(batch)

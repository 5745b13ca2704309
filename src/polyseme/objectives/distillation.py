"""Distillation: a student learns an objective and the predictions of a teacher (Hinton et al. 2015; Sanh et al. 2019).

Student and teacher get the same batches, masked at the same positions, and have the same vocabulary.
"""

import math
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from polyseme.corpus.sampling import SampleBin
from polyseme.corpus.store import Corpus
from polyseme.errors import ConfigError
from polyseme.nn.losses import chunked_soft_divergence, soft_chunk_rows
from polyseme.nn.memory import Memory
from polyseme.nn.model import Model, ModelConfig
from polyseme.objectives.base import Objective, ObjectiveLoss
from polyseme.objectives.batch import IGNORE_INDEX, AnyBatch, Batch, SegmentExtra, SegmentState, Targets
from polyseme.objectives.losses import compute_term, run_trunk
from polyseme.objectives.masked_lm import MaskedLM
from polyseme.objectives.packing import BatchBuilder, Sampler, SpecialIds, StaticShape
from polyseme.weights.folder import hash_weights, load_model


@dataclass(frozen=True)
class Distillation(Objective):
    """The terms of `base`, weighted by `hard_weight`, and two more, `soft` and `cosine`, with their own weights.

    `soft` is the KL divergence of the student's token predictions from the teacher's, both at `temperature`, times the
    temperature squared, which keeps the size of its gradient (Hinton et al., §2). With `soft_tokens` "all" it is the
    mean over all tokens, as in DistilBERT's released code; with "masked", over those that `base` predicts. `cosine` is
    one minus the cosine of the hidden states of every token. A term with the weight 0 is left out; without `cosine` the
    hidden sizes may differ, and without both the teacher is not run. The weights are those of the released code. With
    `init_from_teacher` the student starts with layers of the teacher, where it has the same sizes, and with
    `freeze_positions` it then keeps the teacher's position embeddings, as by the released command. `teacher` is the
    path of a model folder, `teacher_hash` the hash of its weights, which a resumed run must find unchanged.
    """

    base: Objective = field(default_factory=MaskedLM)
    temperature: float = 2.0
    soft_tokens: Literal["all", "masked"] = "all"
    soft_weight: float = 5.0
    hard_weight: float = 2.0
    cosine_weight: float = 1.0
    init_from_teacher: bool = True
    freeze_positions: bool = False
    teacher: str = ""
    teacher_hash: str = ""

    def __post_init__(self) -> None:
        self.check_range(1e-3, math.inf, "temperature")
        self.check_range(0, math.inf, "soft_weight", "hard_weight", "cosine_weight")
        if not (self.soft_weight or self.hard_weight or self.cosine_weight):
            raise ConfigError("soft_weight, hard_weight and cosine_weight are 0, so nothing would be learned")

    @property
    def needs_bounded_memory(self) -> bool:  # type: ignore[override]
        """Whether the batches of `base` continue those before them."""
        return self.base.needs_bounded_memory

    @property
    def terms(self) -> tuple[str, ...]:
        return self.base.terms

    @property
    def token_head(self) -> str:
        """The head that predicts tokens."""
        return self.base.terms[0]

    @property
    def has_soft_rows(self) -> bool:
        """Whether the soft targets have rows of their own, of all tokens, and not those of `token_head`."""
        return self.soft_tokens == "all" and self.token_head == "masked" and not self.base.needs_query_stream

    @property
    def predicted_fraction(self) -> float:
        return 1.0 if self.has_soft_rows and self.soft_weight else self.base.predicted_fraction

    def max_input_len(self, max_len: int) -> int:
        return self.base.max_input_len(max_len)

    def full_lengths(self, max_len: int) -> tuple[int, int]:
        return self.base.full_lengths(max_len)

    def check(self, model: ModelConfig, max_len: int) -> None:
        if self.base.needs_hybrid or self.base.is_sparse:
            problem = "it has no single token prediction"
            raise ConfigError(f"Distillation of {type(self.base).__name__} is not supported: {problem}")
        self.base.check(model, max_len)

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

        `cosine` has all tokens except filler, and so has `soft` unless it has the rows of `token_head`.
        """
        token_targets, rows = batch.targets[self.token_head], torch.arange(len(batch.inputs.tokens))
        count = batch.num_tokens if batch.inputs.source is None else token_targets.count  # not those of the source
        all_tokens = Targets(rows, torch.where(rows < count, 0, IGNORE_INDEX), count)
        targets = {name: replace(t, weight=self.hard_weight * t.weight) for name, t in batch.targets.items()}
        soft_targets = all_tokens if self.has_soft_rows else token_targets
        if self.soft_weight:
            targets["soft"] = replace(soft_targets, weight=self.soft_weight)
        if self.cosine_weight:
            targets["cosine"] = replace(all_tokens, weight=self.cosine_weight)
        return replace(batch, targets=targets)


class DistillationLoss:
    """The loss of a student beside its teacher, which is frozen and without dropout."""

    def __init__(self, config: Distillation, teacher: Model):
        self.config, self.teacher = config, teacher.eval().requires_grad_(False)

    def compute(self, model: Model, batch: Batch) -> dict[str, Tensor]:
        """Return the summed loss of each term."""
        targets = batch.targets
        if model.training:
            batch = batch.extra.prepare(model, batch)
        memory = batch.extra.memory
        output = run_trunk(model, batch)
        loss_sums = {}
        if "soft" in targets or "cosine" in targets:
            teacher_hidden = self._run_teacher(batch, memory)
        if "soft" in targets:
            loss_sums["soft"] = self._soft_loss(model, batch, output.hidden, teacher_hidden)
        if "cosine" in targets:
            labels = targets["cosine"].labels
            hidden, shown = (h[: len(labels)].float() for h in (output.hidden, teacher_hidden))  # no query stream
            loss_sums["cosine"] = ((1 - F.cosine_similarity(hidden, shown, dim=-1)) * (labels != IGNORE_INDEX)).sum()
        return {n: loss_sums[n] if n in loss_sums else compute_term(model, batch, output, n) for n in targets}

    @torch.no_grad()
    def _run_teacher(self, batch: Batch, memory: Memory | None) -> Tensor:
        """Return the hidden states of the teacher, after the memory of its own, if it has one of fixed size.

        `memory` is the one before the batch; the student's after it, which has been stored, gets that of the teacher.
        """
        trunk = self.teacher.config.trunk
        inputs = trunk.omit_unsupported(batch.inputs)
        if not isinstance(batch.extra, SegmentExtra):
            return batch.extra.forward(self.teacher, inputs).hidden
        if not trunk.has_bounded_memory:
            return self.teacher.trunk(inputs).hidden
        output = self.teacher.trunk(inputs, memory=memory.teacher if memory else None, return_memory=True)
        assert batch.extra.state.memory is not None
        batch.extra.store_memory(replace(batch.extra.state.memory, teacher=output.memory.detach()))
        return output.hidden

    def _soft_loss(self, model: Model, batch: Batch, hidden: Tensor, teacher_hidden: Tensor) -> Tensor:
        """Return the summed divergence of the predictions; the logits of all rows never exist at once."""
        head, layout, soft = self.config.token_head, batch.inputs.layout, batch.targets["soft"]
        temperature, is_valid = self.config.temperature, soft.labels != IGNORE_INDEX
        student_inputs = model.linear_inputs(head, hidden, layout, soft.rows)
        with torch.no_grad():
            teacher_inputs = self.teacher.linear_inputs(head, teacher_hidden, layout, soft.rows)
        if student_inputs is not None and teacher_inputs is not None:
            return chunked_soft_divergence(student_inputs, teacher_inputs, is_valid, temperature)

        def chunk_loss(hidden: Tensor, rows: Tensor, is_valid: Tensor) -> Tensor:
            with torch.no_grad():
                teacher_logits = self.teacher.predict(head, teacher_hidden, layout, rows).float()
            logits = model.predict(head, hidden, layout, rows).float()
            return (soft_divergence(logits, teacher_logits, temperature) * is_valid).sum()

        chunk_rows = soft_chunk_rows(model.config.trunk.embeddings.vocab_size, hidden.device)
        chunks = zip(soft.rows.split(chunk_rows), is_valid.split(chunk_rows))
        settings: dict[str, Any] = {"use_reentrant": False, "preserve_rng_state": False}  # heads have no dropout
        return torch.stack([checkpoint(chunk_loss, hidden, *chunk, **settings) for chunk in chunks]).sum()


def soft_divergence(logits: Tensor, teacher_logits: Tensor, temperature: float) -> Tensor:
    """Return the KL divergence of each row from the teacher's at a temperature, times the temperature squared."""
    log_probs, teacher_log_probs = ((each / temperature).log_softmax(-1) for each in (logits, teacher_logits))
    return F.kl_div(log_probs, teacher_log_probs, log_target=True, reduction="none").sum(-1) * temperature**2


class _DistillationBatchBuilder(BatchBuilder):
    """The batches of another builder, with targets for the terms of the teacher."""

    def __init__(self, config: Distillation, base: BatchBuilder):
        super().__init__(base.samples, base.max_len, base.num_special_tokens)
        self.config, self.base, self.token_counts = config, base, base.token_counts

    def lengths(self, ids: np.ndarray, epoch: int) -> np.ndarray:
        return self.base.lengths(ids, epoch)

    def max_predictions(self, num_tokens: int) -> int:
        return self.base.max_predictions(num_tokens)

    def static_shape(self, micro_batch_tokens: int) -> StaticShape:
        return self.base.static_shape(micro_batch_tokens)

    def build_sampler(self, micro_batch_tokens: int, micro_batches_per_step: int = 1, **options: Any) -> Sampler:
        return self.base.build_sampler(micro_batch_tokens, micro_batches_per_step, **options)

    def batch(self, ids: np.ndarray, epoch: int, shape: StaticShape | None = None) -> Batch:
        return self._add_targets(self.base.batch(ids, epoch, shape))

    def batch_of_bin(self, sample_bin: SampleBin, shape: StaticShape | None, state: SegmentState) -> Batch:
        return self._add_targets(self.base.batch_of_bin(sample_bin, shape, state))

    def _add_targets(self, batch: AnyBatch) -> Batch:
        assert isinstance(batch, Batch)
        return self.config.add_teacher_targets(batch)

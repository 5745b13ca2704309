"""Masked and causal language modeling in one model (Charpentier and Samuel 2024, GPT-BERT)."""

import math
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import numpy as np
import torch

from polyseme.corpus.sampling import SampleBin
from polyseme.corpus.store import Corpus
from polyseme.nn.model import Model
from polyseme.objectives.base import check_probability
from polyseme.objectives.batch import IGNORE_INDEX, Batch, BatchExtra, SegmentState, Targets
from polyseme.objectives.losses import evaluate_batch
from polyseme.objectives.masked_lm import MaskedLMBatchBuilder, MaskingConfig
from polyseme.objectives.packing import BatchBuilder, Labels, SpecialIds, StaticShape, pack

NUM_IGNORED_ROWS = 8  # of the term that a batch does not train, so that all batches of a step have the same terms


@dataclass(frozen=True)
class HybridLM(MaskingConfig):
    """Masked and causal LM by one head, on sequences `[CLS] sentences [SEP]` inside a document.

    A share `causal_fraction` of the micro-batches of each step is read left to right, and every token is predicted from
    those before it. The others are read in both directions and have masks; a masked token is predicted from the state
    before it, as the next token is. The loss is the mean over micro-batches, so `causal_fraction` is also the weight of
    causal LM. Departures: the masked share is constant, while the paper lowers it from 30 % to 15 %; spans are masked
    only if `mask_unit` says so.
    """

    terms: ClassVar[tuple[str, ...]] = ("next", "masked")
    needs_hybrid: ClassVar[bool] = True
    causal_fraction: float = 0.5

    def __post_init__(self) -> None:
        super().__post_init__()
        check_probability("causal_fraction", self.causal_fraction)

    @property
    def predicted_fraction(self) -> float:
        return self.causal_fraction + (1 - self.causal_fraction) * self.mask_prob

    @property
    def is_mixed(self) -> bool:
        """Whether there are batches of both kinds."""
        return 0 < self.causal_fraction < 1

    @property
    def min_micro_batches(self) -> int:
        """The fewest micro-batches of a step that have both kinds."""
        smaller = min(self.causal_fraction, 1 - self.causal_fraction)
        return math.ceil(1 / smaller - 1e-9) if self.is_mixed else 1

    def num_causal(self, step: int, step_size: int) -> int:
        """Return the number of causal micro-batches in a step of `step_size`; over many steps, their share is exact."""
        share = self.causal_fraction * step_size
        return math.floor((step + 1) * share + 1e-9) - math.floor(step * share + 1e-9)

    def bind(self, corpus: Corpus, special_ids: SpecialIds, max_len: int, seed: int = 0) -> BatchBuilder:
        return _HybridLMBatchBuilder(self, corpus, special_ids, max_len, seed)

    def evaluate(self, model: Model, batch: Any) -> dict[str, tuple[float, int, int]]:
        scores = evaluate_batch(model, batch)
        return scores | (evaluate_batch(model, batch.extra.batch) if isinstance(batch.extra, CausalBatchExtra) else {})


@dataclass(frozen=True, eq=False)
class CausalBatchExtra(BatchExtra):
    """The same text as a causal batch, for evaluation, which measures both losses on all text."""

    batch: Batch


class _HybridLMBatchBuilder(MaskedLMBatchBuilder):
    """Builder of masked and causal batches of the same sequences."""

    config: HybridLM

    def batch(self, ids: np.ndarray, epoch: int, shape: StaticShape | None = None) -> Batch:
        """Return the masked batch, or the causal one if all of them are."""
        return self._build(ids, epoch, shape, self.config.causal_fraction == 1)

    def batch_of_bin(self, sample_bin: SampleBin, shape: StaticShape | None, state: SegmentState) -> Batch:
        ids, epoch, step_size = sample_bin.sample_ids, sample_bin.epoch, sample_bin.step_size
        if not self.config.is_mixed:
            return self.batch(ids, epoch, shape)
        if step_size == 1:  # evaluation
            causal_batch = self._build(ids, epoch, shape, is_causal=True)
            return replace(self.batch(ids, epoch, shape), extra=CausalBatchExtra(causal_batch))
        num_causal, index = self.config.num_causal(sample_bin.step, step_size), sample_bin.index
        is_causal = (index + 1) * num_causal // step_size > index * num_causal // step_size  # spread evenly
        batch = self._build(ids, epoch, shape, is_causal)
        weight = (num_causal if is_causal else step_size - num_causal) / step_size
        trained = {name: replace(targets, weight=weight) for name, targets in batch.targets.items()}
        rows, labels = (torch.full((NUM_IGNORED_ROWS,), value) for value in (1, IGNORE_INDEX))
        return replace(batch, targets={name: trained.get(name, Targets(rows, labels, 0)) for name in self.config.terms})

    def _build(self, ids: np.ndarray, epoch: int, shape: StaticShape | None, is_causal: bool) -> Batch:
        if not is_causal:
            return super().batch(ids, epoch, shape)
        sizes = self.lengths(ids, epoch)
        tokens, _, _ = self.gather(*self.document_ranges(ids))
        rows = np.delete(np.arange(len(tokens)), np.cumsum(sizes) - 1)
        labels: dict[str, Labels] = {"next": (rows, tokens[rows + 1])}
        batch = pack(tokens, sizes, replace(shape, num_predictions=shape.num_tokens) if shape else None, labels)
        return replace(batch, inputs=replace(batch.inputs, layout=batch.inputs.layout.as_causal()))

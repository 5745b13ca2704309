"""An objective, as a user would write it: each token predicts itself."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

import numpy as np

from polyseme.corpus.sampling import build_samples
from polyseme.objectives.base import Objective
from polyseme.objectives.batch import Batch
from polyseme.objectives.packing import BatchBuilder, SpecialIds, StaticShape, pack

if TYPE_CHECKING:
    from polyseme.corpus.store import Corpus


@dataclass(frozen=True)
class CopyTokens(Objective):
    """Predict every `every`-th token from its own state."""

    terms: ClassVar[tuple[str, ...]] = ("next",)
    every: int = 1

    def bind(self, corpus: Corpus, special_ids: SpecialIds, max_len: int, seed: int = 0) -> BatchBuilder:
        return _CopyBatchBuilder(self, corpus, max_len)


class _CopyBatchBuilder(BatchBuilder):
    def __init__(self, config: CopyTokens, corpus: Corpus, max_len: int):
        super().__init__(build_samples(corpus, max_len), max_len, 0)
        self.config, self.corpus = config, corpus

    def max_predictions(self, num_tokens: int) -> int:
        return num_tokens

    def lengths(self, ids: np.ndarray, epoch: int) -> np.ndarray:
        return self.samples.lengths[ids]

    def batch(self, ids: np.ndarray, epoch: int, shape: StaticShape | None = None) -> Batch:
        tokens = self.corpus.gather_tokens(self.samples.starts[ids], self.samples.lengths[ids])
        tokens = tokens.astype(np.int64)
        rows = np.arange(0, len(tokens), self.config.every)
        return pack(tokens, self.samples.lengths[ids], shape, {"next": (rows, tokens[rows])})

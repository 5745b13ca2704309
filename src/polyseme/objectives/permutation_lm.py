"""Permutation LM: some places are predicted in a drawn order, each from all that comes before it (Yang et al. 2019)."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, ClassVar

import numpy as np
import torch

from polyseme.corpus.sampling import build_samples
from polyseme.errors import ConfigError
from polyseme.nn.attention.relative import QueryStream
from polyseme.nn.packing import PackedLayout
from polyseme.objectives.base import Objective
from polyseme.objectives.batch import Batch
from polyseme.objectives.packing import BatchBuilder, SpecialIds, StaticShape, pack
from polyseme.rng import RandomStream, derive_sample_keys, integers, random_bits

if TYPE_CHECKING:
    from polyseme.corpus.store import Corpus


@dataclass(frozen=True)
class PermutationLM(Objective):
    """Runs of sentences, `run <sep> <cls>`, of which one token in `predict_one_in` is predicted.

    Spans as in §3.1: a sequence is cut into windows of `predict_one_in` · L tokens, L drawn evenly from 1 to
    `max_span_length`, and of each window L tokens in a row are predicted; of n tokens ⌊n / one_in⌋, always. These and
    the two marks stand in a random order; all other tokens come before them and see each other, as in the paper's code
    (§2.3 needs no order among what is not predicted). Departures: the code draws L by 1 / L and lets spans end where
    words do.
    """

    terms: ClassVar[tuple[str, ...]] = ("masked",)
    needs_query_stream: ClassVar[bool] = True
    has_static_shapes: ClassVar[bool] = True  # where all sequences have one length
    predict_one_in: int = 6
    max_span_length: int = 5

    def __post_init__(self) -> None:
        self.check_range(2, math.inf, "predict_one_in")
        self.check_range(1, math.inf, "max_span_length")

    def bind(self, corpus: Corpus, special_ids: SpecialIds, max_len: int, seed: int = 0) -> BatchBuilder:
        return _PermutationLMBatchBuilder(self, corpus, special_ids, max_len, seed)


class _PermutationLMBatchBuilder(BatchBuilder):
    def __init__(self, config: PermutationLM, corpus: Corpus, special_ids: SpecialIds, max_len: int, seed: int):
        if max_len < config.predict_one_in + 2:
            raise ConfigError(
                f"max_len is {max_len}, expected {config.predict_one_in + 2} or more: else nothing is predicted"
            )
        super().__init__(build_samples(corpus, max_len - 2), max_len, 2)
        self.config, self.corpus, self.seed = config, corpus, seed
        self.cls, self.sep = (special_ids.require(token, "PermutationLM") for token in ("cls", "sep"))

    def max_predictions(self, num_tokens: int) -> int:
        return math.ceil(num_tokens / self.config.predict_one_in)

    def lengths(self, ids: np.ndarray, epoch: int) -> np.ndarray:
        return self.samples.lengths[ids] + 2

    def sample_spans(self, sizes: np.ndarray, sample_keys: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Start and length of each span, [samples, windows]; a length of 0 is none."""
        predict_one_in = self.config.predict_one_in
        windows = np.arange(int(sizes.max()) // predict_one_in)[None]
        sizes, window_keys = sizes[:, None], sample_keys[:, None]
        span_lengths = 1 + integers(
            random_bits(window_keys, windows, RandomStream.SPAN_LENGTH), self.config.max_span_length
        )
        starts = np.cumsum(predict_one_in * span_lengths, axis=1) - predict_one_in * span_lengths
        remaining = np.maximum(sizes - starts, 0)
        fits = predict_one_in * span_lengths <= remaining  # else this window is the last, and is what is left
        lengths, window_lengths = (
            np.where(fits, span_lengths, remaining // predict_one_in),
            np.where(fits, predict_one_in * span_lengths, remaining),
        )
        return starts + integers(
            random_bits(window_keys, windows, RandomStream.SPAN_POSITION), window_lengths - lengths + 1
        ), lengths

    def batch(self, ids: np.ndarray, epoch: int, shape: StaticShape | None = None) -> Batch:
        """Return a batch of exact size, whatever the shape: a query stream has one row per predicted position."""
        sizes, sample_keys = self.samples.lengths[ids], derive_sample_keys(self.seed, epoch, ids)
        ends = np.cumsum(sizes + 2)
        firsts = ends - sizes - 2
        is_text = np.ones(int(ends[-1]), dtype=bool)
        is_text[ends - 1] = is_text[ends - 2] = False
        tokens = np.empty(len(is_text), dtype=np.int64)
        tokens[is_text] = self.corpus.gather_tokens(self.samples.starts[ids], sizes)
        tokens[ends - 2], tokens[ends - 1] = self.sep, self.cls

        starts, lengths = self.sample_spans(sizes, sample_keys)
        span_starts, span_lengths = (starts + firsts[:, None]).ravel(), lengths.ravel()
        predicted = np.repeat(span_starts - np.cumsum(span_lengths) + span_lengths, span_lengths) + np.arange(
            span_lengths.sum()
        )
        is_ordered = ~is_text
        is_ordered[predicted] = True
        positions = np.flatnonzero(is_ordered)
        sequence_ids = np.searchsorted(ends, positions, side="right")
        bits = random_bits(sample_keys[sequence_ids], positions - firsts[sequence_ids], RandomStream.PERMUTATION_RANK)
        permutation = np.lexsort((bits, sequence_ids))
        ranks = np.full(len(tokens), -1)
        ranks[positions[permutation]] = np.arange(len(positions)) - np.searchsorted(
            sequence_ids, sequence_ids
        )  # `sequence_ids` is sorted, and drawn keeps it

        batch = pack(tokens, sizes + 2, None, {"masked": (len(tokens) + np.arange(len(predicted)), tokens[predicted])})
        query_stream = QueryStream(
            torch.from_numpy(ranks), torch.from_numpy(predicted), PackedLayout.from_lengths(lengths.sum(axis=1))
        )
        return replace(batch, inputs=replace(batch.inputs, query_stream=query_stream))

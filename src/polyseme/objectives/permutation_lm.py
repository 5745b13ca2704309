"""Permutation LM: some tokens are predicted in a random order, each from those before it in it (Yang et al. 2019)."""

import math
from dataclasses import dataclass, replace
from typing import ClassVar

import numpy as np
import torch

from polyseme.corpus.sampling import build_samples
from polyseme.corpus.store import Corpus
from polyseme.errors import ConfigError
from polyseme.nn.attention.relative import QueryStream
from polyseme.nn.packing import PackedLayout
from polyseme.objectives.base import Objective
from polyseme.objectives.batch import Batch
from polyseme.objectives.packing import (
    BatchBuilder,
    SpecialIds,
    StaticShape,
    divide_evenly,
    insert_ids,
    pack,
    round_up_to_8,
)
from polyseme.rng import RandomStream, derive_sample_keys, integers, random_bits
from polyseme.text.cached_encoder import concat_ranges


@dataclass(frozen=True)
class PermutationLM(Objective):
    """Sequences of sentences, `sentences <sep> <cls>`, of which one token in `predict_one_in` is predicted.

    Spans as in §3.1: a sequence is divided into windows of `predict_one_in` · L tokens, L uniform from 1 to
    `max_span_length`, and L consecutive tokens of each window are predicted, ⌊n / predict_one_in⌋ of n tokens. These
    and the two special tokens are in a random order; all other tokens come before them and see each other, as in the
    paper's code (§2.3 needs no order of tokens that are not predicted). Departures: the code draws L with probability
    proportional to 1 / L and ends spans at word ends.
    """

    terms: ClassVar[tuple[str, ...]] = ("masked",)
    needs_query_stream: ClassVar[bool] = True
    has_static_shapes: ClassVar[bool] = True  # if all sequences have one length
    predict_one_in: int = 6
    max_span_length: int = 5

    @property
    def predicted_fraction(self) -> float:
        return 1 / self.predict_one_in

    def __post_init__(self) -> None:
        self.check_range(2, math.inf, "predict_one_in")
        self.check_range(1, math.inf, "max_span_length")

    def bind(self, corpus: Corpus, special_ids: SpecialIds, max_len: int, seed: int = 0) -> BatchBuilder:
        return _PermutationLMBatchBuilder(self, corpus, special_ids, max_len, seed)


class _PermutationLMBatchBuilder(BatchBuilder):
    def __init__(self, config: PermutationLM, corpus: Corpus, special_ids: SpecialIds, max_len: int, seed: int):
        if max_len < (min_len := config.predict_one_in + 2):
            raise ConfigError(f"max_len is {max_len}, expected {min_len} or more, so that a token is predicted")
        super().__init__(build_samples(corpus, max_len - 2), max_len, 2)
        self.config, self.corpus, self.seed = config, corpus, seed
        self.cls, self.sep = (special_ids.require(token, "PermutationLM") for token in ("cls", "sep"))

    def max_predictions(self, num_tokens: int) -> int:
        return math.ceil(num_tokens / self.config.predict_one_in)

    def sample_spans(self, sizes: np.ndarray, sample_keys: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return start and length of each span, [samples, windows]; a length of 0 is no span."""
        predict_one_in = self.config.predict_one_in
        windows = np.arange(int(sizes.max()) // predict_one_in)[None]
        sizes, window_keys = sizes[:, None], sample_keys[:, None]
        length_bits = random_bits(window_keys, windows, RandomStream.SPAN_LENGTH)
        span_lengths = 1 + integers(length_bits, self.config.max_span_length)
        window_lengths = predict_one_in * span_lengths
        starts = np.cumsum(window_lengths, axis=1) - window_lengths
        remaining = np.maximum(sizes - starts, 0)
        fits = window_lengths <= remaining  # otherwise this window is the last one, with the remaining tokens
        lengths = np.where(fits, span_lengths, remaining // predict_one_in)
        num_positions = np.where(fits, window_lengths, remaining) - lengths + 1
        return starts + integers(random_bits(window_keys, windows, RandomStream.SPAN_POSITION), num_positions), lengths

    @property
    def max_targets(self) -> int:
        """The largest number of predicted tokens of a sequence."""
        return (self.max_len - 2) // self.config.predict_one_in

    def static_shape(self, micro_batch_tokens: int) -> StaticShape:
        """Return a shape with enough filler sequences for the targets that fill up the query stream."""
        shape = super().static_shape(micro_batch_tokens)
        num_fillers = max(
            -(-(micro_batch_tokens + 8) // (self.max_len - 1)), -(-shape.num_predictions // self.max_targets)
        )
        num_tokens = round_up_to_8(micro_batch_tokens + num_fillers)  # each filler has a token
        num_sequences = shape.max_samples + num_fillers
        return replace(shape, num_tokens=num_tokens, num_sequences=num_sequences, num_fillers=num_fillers)

    def batch(self, ids: np.ndarray, epoch: int, shape: StaticShape | None = None) -> Batch:
        sizes, sample_keys = self.samples.lengths[ids], derive_sample_keys(self.seed, epoch, ids)
        ends = np.cumsum(sizes + 2)
        firsts = ends - sizes - 2
        text = self.corpus.gather_tokens(self.samples.starts[ids], sizes)
        tokens, is_text = insert_ids(text, (ends - 2, self.sep), (ends - 1, self.cls))

        starts, lengths = self.sample_spans(sizes, sample_keys)
        predicted = concat_ranges((starts + firsts[:, None]).ravel(), lengths.ravel())
        is_ordered = ~is_text
        is_ordered[predicted] = True
        positions = np.flatnonzero(is_ordered)
        sequence_ids = np.searchsorted(ends, positions, side="right")  # sorted
        bits = random_bits(sample_keys[sequence_ids], positions - firsts[sequence_ids], RandomStream.PERMUTATION_RANK)
        permutation = np.lexsort((bits, sequence_ids))  # within sequences
        ranks = np.full(len(tokens), -1)
        ranks[positions[permutation]] = np.arange(len(positions)) - np.searchsorted(sequence_ids, sequence_ids)

        first_row = len(tokens) if shape is None else shape.num_tokens  # of the query stream
        labels = first_row + np.arange(len(predicted)), tokens[predicted]
        batch = pack(tokens, sizes + 2, shape, {"masked": labels})
        num_targets, num_slots, max_targets = lengths.sum(axis=1), 0, 0
        if shape is not None:  # targets that see nothing, at the first token of each filler sequence
            filler_lengths = batch.inputs.layout.lengths[len(ids) :]
            fillers = divide_evenly(shape.num_predictions - len(predicted), shape.num_fillers)
            filler_starts = len(tokens) + np.cumsum(filler_lengths) - filler_lengths
            predicted = np.append(predicted, np.repeat(filler_starts, fillers))
            ranks = np.append(ranks, np.full(first_row - len(ranks), -1))
            num_targets = np.append(num_targets, fillers)
            num_slots, max_targets = shape.num_sequences, self.max_targets
        query_layout = PackedLayout.from_lengths(num_targets, num_slots, max_targets)
        query_stream = QueryStream(torch.from_numpy(ranks), torch.from_numpy(predicted), query_layout)
        return replace(batch, inputs=replace(batch.inputs, query_stream=query_stream))

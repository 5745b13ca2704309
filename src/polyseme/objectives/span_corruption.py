"""Span corruption (T5; Raffel et al. 2020, §3.1.4, §3.3.4): the model predicts spans that are removed from a text."""

import math
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from polyseme.corpus.sampling import build_samples
from polyseme.corpus.store import Corpus
from polyseme.errors import ConfigError
from polyseme.objectives.base import Objective
from polyseme.objectives.packing import BatchBuilder, Seq2SeqBatchBuilder, SpecialIds, insert_ids, local_positions
from polyseme.rng import RandomStream, derive_sample_keys, random_bits


@dataclass(frozen=True)
class SpanCorruption(Objective):
    """A share `noise_density` of the tokens is removed, in spans of `mean_span_length` tokens on average.

    The source has a sentinel for each span; the target has each sentinel with its span, and a final sentinel: `a b c d
    e f` becomes `a b X e f Y` and `X c d Y … Z`, each followed by eos; the decoder starts with pad. The length of the
    text determines the number of removed tokens and spans; their positions are random, with the same probability for
    all placements of spans that do not touch. `max_len` is the maximum length of source and target.

    Departures from the released code: a sample is a sequence of sentences of one document, not a slice of concatenated
    documents, so texts may be short, and their end is not always removed. The final sentinel is the paper's.
    """

    terms: ClassVar[tuple[str, ...]] = ("next",)
    needs_source: ClassVar[bool] = True
    noise_density: float = 0.15
    mean_span_length: float = 3.0

    def __post_init__(self) -> None:
        self.check_range(0, 1, "noise_density")
        self.check_range(1, math.inf, "mean_span_length")

    def full_lengths(self, max_len: int) -> tuple[int, int]:
        lengths = np.arange(1, 2 * max_len)
        source, target = self.output_lengths(lengths)
        longest = int(np.flatnonzero((source <= max_len) & (target <= max_len)).max(initial=0))
        return int(target[longest]), int(source[longest])

    def bind(self, corpus: Corpus, special_ids: SpecialIds, max_len: int, seed: int = 0) -> BatchBuilder:
        return _SpanCorruptionBatchBuilder(self, corpus, special_ids, max_len, seed)

    def count_noise(self, lengths: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return the numbers of removed tokens and of spans for texts of these lengths, at least one of each."""
        num_noise_tokens = np.floor(lengths * self.noise_density + 0.5).astype(np.int64)
        num_noise_tokens = np.maximum(np.minimum(num_noise_tokens, lengths - 1), 1)
        num_spans = np.floor(num_noise_tokens / self.mean_span_length + 0.5).astype(np.int64)
        return num_noise_tokens, np.maximum(np.minimum(num_spans, lengths - num_noise_tokens + 1), 1)

    def output_lengths(self, lengths: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return the lengths of sources and targets of texts of these lengths."""
        num_noise_tokens, num_spans = self.count_noise(lengths)
        return lengths - num_noise_tokens + num_spans + 1, num_noise_tokens + num_spans + 2


class _SpanCorruptionBatchBuilder(Seq2SeqBatchBuilder):
    def __init__(self, config: SpanCorruption, corpus: Corpus, special_ids: SpecialIds, max_len: int, seed: int):
        name = type(config).__name__
        self.eos = special_ids.require("sep" if special_ids.eos is None else "eos", name)
        self.config, self.corpus, self.seed = config, corpus, seed
        self.sentinels = np.array(special_ids.sentinels, dtype=np.int64)
        longest = np.arange(1, 2 * max_len)
        source, target = config.output_lengths(longest)
        fitting_lengths = longest[(source <= max_len) & (target <= max_len)]
        if not len(fitting_lengths):
            raise ConfigError(f"max_len is {max_len}, expected 4 or more: 2 are a sentinel and eos")
        num_sentinels = int(config.count_noise(fitting_lengths[-1:])[1][0]) + 1
        if num_sentinels > len(self.sentinels):
            raise ConfigError(
                f"{name} with max_len {max_len} needs {num_sentinels} sentinels, and the tokenizer has "
                f"{len(self.sentinels) or 'none'}: train it with more sentinels, or set a smaller max_len"
            )
        samples = build_samples(corpus, int(fitting_lengths[-1]))
        start = self.eos if special_ids.pad is None else special_ids.pad
        super().__init__(samples, *config.output_lengths(samples.lengths), start)

    def gather_pairs(self, ids: np.ndarray, epoch: int) -> tuple[np.ndarray, np.ndarray]:
        lengths = self.samples.lengths[ids]
        tokens = self.corpus.gather_tokens(self.samples.starts[ids], lengths)
        num_noise_tokens, num_spans = self.config.count_noise(lengths)
        sample_keys = derive_sample_keys(self.seed, epoch, ids)
        # there is one kept segment more than spans, and the first and the last may be empty
        totals = lengths - num_noise_tokens + 2
        kept_lengths = random_segmentation(sample_keys, totals, num_spans + 1, RandomStream.CORRUPTION_GAPS)
        last = np.cumsum(num_spans + 1) - 1  # the last kept segment of each sample
        kept_lengths[last] -= 1
        kept_lengths[last - num_spans] -= 1
        noise_lengths = random_segmentation(sample_keys, num_noise_tokens, num_spans, RandomStream.CORRUPTION_SPANS)
        has_noise = np.ones(len(kept_lengths), dtype=bool)  # which kept segments a span follows
        has_noise[last] = False
        sentinel_ids = self.sentinels[local_positions(num_spans + 1)]
        noise_after = np.zeros(len(kept_lengths), dtype=np.int64)
        noise_after[has_noise] = noise_lengths
        run_lengths = np.stack((kept_lengths, noise_after), axis=1).ravel()
        is_noise = np.repeat(np.tile([False, True], len(kept_lengths)), run_lengths)

        ends = np.cumsum(kept_lengths + 1)
        source, _ = insert_ids(tokens[~is_noise], (ends - 1, np.where(has_noise, sentinel_ids, self.eos)))

        sizes = np.where(has_noise, noise_after + 1, 2)
        ends = np.cumsum(sizes)
        target, _ = insert_ids(tokens[is_noise], (ends - sizes, sentinel_ids), (ends[last] - 1, self.eos))
        return source, target


def random_segmentation(
    sample_keys: np.ndarray, totals: np.ndarray, counts: np.ndarray, stream: RandomStream
) -> np.ndarray:
    """Divide `totals` tokens of each sample into `counts` non-empty segments, all divisions with the same probability.

    Returns the lengths of all segments, concatenated. A sample is cut at the positions with the lowest draws: one sort
    over (sample, draw, position), so that ties do not depend on the other samples.
    """
    num_cut_points = totals - 1
    if len(totals) >= 1 << 20 or num_cut_points.max(initial=0) >= 1 << 16:
        raise ValueError("a batch of spans holds at most 2^20 samples of at most 2^16 tokens")
    owner = np.repeat(np.arange(len(totals)), num_cut_points)
    cut_point = local_positions(num_cut_points)
    bits = random_bits(sample_keys[owner], cut_point, stream)
    ranked = owner.astype(np.uint64) << np.uint64(44)
    ranked |= bits >> np.uint64(36) << np.uint64(16)
    ranked |= cut_point.astype(np.uint64)
    ranked.sort()
    chosen_ranks = np.flatnonzero(cut_point < (counts - 1)[owner])
    sample_starts = np.cumsum(totals) - totals
    cuts = sample_starts[owner[chosen_ranks]] + (ranked[chosen_ranks] & np.uint64(0xFFFF)).astype(np.int64) + 1
    starts = np.concatenate((sample_starts, cuts))
    starts.sort()
    return np.diff(starts, append=int(totals.sum()))

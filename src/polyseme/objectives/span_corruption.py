"""Span corruption (Raffel et al. 2020, §3.1.4, §3.3.4): spans are taken out of a text, and the model writes them."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

import numpy as np

from polyseme.corpus.sampling import build_samples
from polyseme.errors import ConfigError
from polyseme.objectives.base import Objective
from polyseme.objectives.packing import BatchBuilder, Seq2SeqBatchBuilder, SpecialIds
from polyseme.rng import RandomStream, derive_sample_keys, random_bits

if TYPE_CHECKING:
    from polyseme.corpus.store import Corpus


@dataclass(frozen=True)
class SpanCorruption(Objective):
    """A share `noise_density` of the tokens goes, in spans of `mean_span_length` tokens on average.

    The source has a sentinel for each span, the target each sentinel and its span, and one sentinel more: `a b c d e f`
    becomes `a b X e f Y` and `X c d Y … Z`, both closed by eos; the decoder starts with pad. How many tokens and spans
    go is fixed by the length of the text, where they are is random: all ways to place spans that do not touch are as
    likely. `max_len` is the longest source.

    Departures from the released code: a sample is a run of sentences of one document, not a slice of joined documents;
    so texts may be short, and it is not always their end that goes, as it is there. The last sentinel is the paper's.
    """

    terms: ClassVar[tuple[str, ...]] = ("next",)
    needs_source: ClassVar[bool] = True
    noise_density: float = 0.15
    mean_span_length: float = 3.0

    def __post_init__(self) -> None:
        self.check_range(0, 1, "noise_density")
        self.check_range(1, math.inf, "mean_span_length")

    def bind(self, corpus: Corpus, special_ids: SpecialIds, max_len: int, seed: int = 0) -> BatchBuilder:
        return _SpanCorruptionBatchBuilder(self, corpus, special_ids, max_len, seed)

    def count_noise(self, lengths: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """How many tokens go, and in how many spans, from texts of these lengths: one of each at the least."""
        num_noise_tokens = np.floor(lengths * self.noise_density + 0.5).astype(np.int64)
        num_noise_tokens = np.maximum(np.minimum(num_noise_tokens, lengths - 1), 1)
        num_spans = np.floor(num_noise_tokens / self.mean_span_length + 0.5).astype(np.int64)
        return num_noise_tokens, np.maximum(np.minimum(num_spans, lengths - num_noise_tokens + 1), 1)

    def output_lengths(self, lengths: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """How long sources and targets come out."""
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
            raise ConfigError(f"max_len is {max_len}, expected 4 or more: 2 go to a sentinel and the end mark")
        num_sentinels = int(config.count_noise(fitting_lengths[-1:])[1][0]) + 1
        if num_sentinels > len(self.sentinels):
            available = f"has {len(self.sentinels)}" if len(self.sentinels) else "has none"
            raise ConfigError(
                f"{name} with max_len {max_len} needs {num_sentinels} sentinels, and the tokenizer {available}: "
                "train it with more sentinels, or set a smaller max_len"
            )
        samples = build_samples(corpus, int(fitting_lengths[-1]))
        start = self.eos if special_ids.pad is None else special_ids.pad
        super().__init__(samples, *config.output_lengths(samples.lengths), start)

    def gather_pairs(self, ids: np.ndarray, epoch: int) -> tuple[np.ndarray, np.ndarray]:
        lengths = self.samples.lengths[ids]
        tokens = self.corpus.gather_tokens(self.samples.starts[ids], lengths)
        num_noise_tokens, num_spans = self.config.count_noise(lengths)
        sample_keys = derive_sample_keys(self.seed, epoch, ids)
        # what stays is one stretch more, of which the first and the last may be empty
        kept_lengths = random_segmentation(
            sample_keys, lengths - num_noise_tokens + 2, num_spans + 1, RandomStream.CORRUPTION_GAPS
        )
        last = np.cumsum(num_spans + 1) - 1
        kept_lengths[last] -= 1
        kept_lengths[last - num_spans] -= 1
        noise_lengths = random_segmentation(sample_keys, num_noise_tokens, num_spans, RandomStream.CORRUPTION_SPANS)
        return corrupt_spans(tokens, kept_lengths, noise_lengths, num_spans, self.sentinels, self.eos)


def random_segmentation(
    sample_keys: np.ndarray, totals: np.ndarray, counts: np.ndarray, stream: RandomStream
) -> np.ndarray:
    """Each sample's `totals` items cut into `counts` runs, none empty; all ways to cut are as likely.

    Returns the lengths of all runs, end to end. Of the places where a sample can be cut, those with the lowest draws
    are: one sort over (sample, draw, place), so that no tie depends on who else is in the batch.
    """
    num_cut_points = totals - 1
    if len(totals) >= 1 << 20 or num_cut_points.max(initial=0) >= 1 << 16:
        raise ValueError("a batch of spans holds at most 2^20 samples of at most 2^16 tokens")
    ends = np.cumsum(num_cut_points)
    owner = np.repeat(np.arange(len(totals)), num_cut_points)
    first_cut_point = np.repeat(ends - num_cut_points, num_cut_points)
    cut_point = np.arange(len(owner)) - first_cut_point
    bits = random_bits(sample_keys[owner], cut_point, stream)
    ranked = owner.astype(np.uint64) << np.uint64(44)
    ranked |= bits >> np.uint64(36) << np.uint64(16)
    ranked |= cut_point.astype(np.uint64)
    ranked.sort()
    chosen_ranks = np.flatnonzero(np.arange(len(owner)) - first_cut_point < (counts - 1)[owner])
    sample_starts = np.cumsum(totals) - totals
    cuts = sample_starts[owner[chosen_ranks]] + (ranked[chosen_ranks] & np.uint64(0xFFFF)).astype(np.int64) + 1
    starts = np.concatenate((sample_starts, cuts))
    starts.sort()
    return np.diff(starts, append=int(totals.sum()))


def corrupt_spans(
    tokens: np.ndarray,
    kept_lengths: np.ndarray,
    noise_lengths: np.ndarray,
    num_spans: np.ndarray,
    sentinels: np.ndarray,
    eos: int,
) -> tuple[np.ndarray, np.ndarray]:
    """Sources and targets of texts, each end to end. Of each text, `num_spans` go between stretches that stay."""
    last_runs = np.cumsum(num_spans + 1) - 1  # the last stretch of each text
    has_noise = np.ones(len(kept_lengths), dtype=bool)
    has_noise[last_runs] = False
    sentinel_ids = sentinels[np.arange(len(kept_lengths)) - np.repeat(last_runs - num_spans, num_spans + 1)]
    noise_after = np.zeros(len(kept_lengths), dtype=np.int64)
    noise_after[has_noise] = noise_lengths
    is_noise = np.repeat(
        np.tile([False, True], len(kept_lengths)), np.stack((kept_lengths, noise_after), axis=1).ravel()
    )

    ends = np.cumsum(kept_lengths + 1)
    source = np.full(int(ends[-1]), -1, dtype=np.int64)
    source[ends - 1] = np.where(has_noise, sentinel_ids, eos)
    source[source < 0] = tokens[~is_noise]

    sizes = np.where(has_noise, noise_after + 1, 2)
    ends = np.cumsum(sizes)
    target = np.full(int(ends[-1]), -1, dtype=np.int64)
    target[ends - sizes] = sentinel_ids
    target[ends[last_runs] - 1] = eos
    target[target < 0] = tokens[is_noise]
    return source, target

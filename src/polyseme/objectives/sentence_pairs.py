"""Masked language modeling with sentence pairs: next sentence (BERT), sentence order (ALBERT), or no label."""

from dataclasses import dataclass
from typing import Literal

import numpy as np

from polyseme.corpus.sampling import build_samples
from polyseme.corpus.store import Corpus
from polyseme.errors import ConfigError, DataError
from polyseme.nn.model import ModelConfig
from polyseme.objectives.base import check_probability, text_capacity
from polyseme.objectives.batch import Batch
from polyseme.objectives.masked_lm import MaskingBatchBuilder, MaskingConfig
from polyseme.objectives.packing import BatchBuilder, SpecialIds, StaticShape, pack
from polyseme.rng import RandomStream, bernoulli, derive_sample_keys, integers, random_bits

MAX_TRIES = 8  # draws of a random B until its first sentence fits


@dataclass(frozen=True)
class MaskedLMWithSentencePairs(MaskingConfig):
    """Masked LM and a classification of two segments, `[CLS] A [SEP] B [SEP]`.

    `pair_task` "nsp" is BERT's next-sentence prediction (Devlin et al. 2019, §3.1 and A.2); "sop" is ALBERT's
    sentence-order prediction (Lan et al. 2020, §3.1): B always follows A in the text, and half of the pairs are
    swapped. Labels of "sop": 0, in order; 1, swapped. A sample of one sentence is cut in the middle and has no label.
    With "none", B always follows A and nothing is classified, to measure what the other tasks add.

    A and B are sequences of sentences that together fill `max_len` or, with probability `short_seq_prob`, a length
    drawn between 2 and that; A ends at a random sentence. Labels of "nsp": 0, B follows A; 1, B is random: it starts at
    a random sentence of another document and ends where the target length is reached. As in BERT's script, a sample of
    one sentence (the last of a document) always gets a random B; the others get one so often that `random_next_prob` of
    all samples do.

    Departures from the script (create_pretraining_data.py): a sample ends before the length is exceeded, so pairs are
    not truncated; sentences after A that a random B replaces are not used again in that epoch (the next epoch splits
    elsewhere); the random sentence is uniform over the corpus, as in the paper, not over documents first; its first
    sentence has to fit, as the true one does, and is cut only if eight draws did not; a sentence of more than half the
    length counts as several; and those of MaskedLM.
    """

    short_seq_prob: float = 0.1
    random_next_prob: float = 0.5  # or swapped
    pair_task: Literal["nsp", "sop", "none"] = "nsp"

    @property
    def terms(self) -> tuple[str, ...]:
        return ("masked",) if self.pair_task == "none" else ("masked", "pair")

    def __post_init__(self) -> None:
        super().__post_init__()
        check_probability("short_seq_prob", self.short_seq_prob)
        check_probability("random_next_prob", self.random_next_prob)

    def check(self, model: ModelConfig, max_len: int) -> None:
        super().check(model, max_len)
        if model.trunk.num_segments == 1:
            raise ConfigError("num_segments is 1, but pairs have two segments: use 2, or 0 for no segment embeddings")

    def bind(self, corpus: Corpus, special_ids: SpecialIds, max_len: int, seed: int = 0) -> BatchBuilder:
        return _SentencePairBatchBuilder(self, corpus, special_ids, max_len, seed)


class _SentencePairBatchBuilder(MaskingBatchBuilder):
    def __init__(
        self, config: MaskedLMWithSentencePairs, corpus: Corpus, special_ids: SpecialIds, max_len: int, seed: int
    ):
        self.text_capacity = text_capacity(max_len, 3, 2)

        def limits(units: np.ndarray) -> np.ndarray:
            unit_keys = derive_sample_keys(seed, 0, units)
            lengths = 2 + integers(random_bits(unit_keys, 1, RandomStream.SHORT_SEQUENCE), self.text_capacity - 1)
            is_short = bernoulli(random_bits(unit_keys, 0, RandomStream.SHORT_SEQUENCE), config.short_seq_prob)
            return np.where(is_short, lengths, self.text_capacity)

        samples = build_samples(corpus, self.text_capacity, min_units=2, target_length_fn=limits)
        super().__init__(config, corpus, special_ids, samples, max_len, 3, seed)
        self.is_in_one_document = config.pair_task != "nsp"
        document_offsets = np.asarray(corpus.sentence_offsets)[np.asarray(corpus.document_offsets)]
        self.document_units = np.searchsorted(samples.unit_offsets, document_offsets)
        if not self.is_in_one_document and np.count_nonzero(np.diff(self.document_units)) < 2:
            raise DataError("MaskedLMWithSentencePairs needs two documents or more, for a random B of another document")
        single_fraction = float(np.mean(np.diff(samples.first_units) == 1))
        if single_fraction == 1:
            raise DataError("MaskedLMWithSentencePairs needs documents of two sentences or more; the corpus has none")
        self.negative_prob = 0.0 if config.pair_task == "none" else config.random_next_prob
        if not self.is_in_one_document:
            self.negative_prob = max(config.random_next_prob - single_fraction, 0) / (1 - single_fraction)

    def plan_pairs(self, ids: np.ndarray, epoch: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Return starts [n, 2] and lengths [n, 2] of A and B, and which B are random or which pairs are swapped."""
        samples = self.samples
        pair_keys = self.sample_keys(ids, epoch)
        first, last, start = samples.first_units[ids], samples.first_units[ids + 1], samples.starts[ids]
        is_single = last - first == 1
        split = first + 1 + integers(random_bits(pair_keys, 0, RandomStream.PAIR_SPLIT), last - first - ~is_single)
        middle = start + samples.lengths[ids] // 2
        ends = np.where(self.is_in_one_document & is_single, middle, samples.unit_offsets[split])
        starts = np.stack((start, ends), axis=1)
        lengths = np.stack((ends - start, start + samples.lengths[ids] - ends), axis=1)
        is_negative = bernoulli(random_bits(pair_keys, 0, RandomStream.PAIR_IS_NEGATIVE), self.negative_prob)
        if self.is_in_one_document:
            is_negative &= ~is_single
            starts[is_negative], lengths[is_negative] = starts[is_negative, ::-1], lengths[is_negative, ::-1]
            return starts, lengths, is_negative
        is_negative |= is_single
        negatives = np.flatnonzero(is_negative)
        drawn = self._draw_random_segment(ids[negatives], lengths[negatives, 0], pair_keys[negatives])
        starts[negatives, 1], lengths[negatives, 1] = drawn
        return starts, lengths, is_negative

    def _draw_random_segment(
        self, ids: np.ndarray, used_lengths: np.ndarray, pair_keys: np.ndarray
    ) -> tuple[np.ndarray, np.ndarray]:
        """Return start and length of a B from another document, for pairs whose A has `used_lengths`."""
        borders, documents = self.samples.unit_offsets, self.samples.document_ids[ids]
        low, high = self.document_units[documents], self.document_units[documents + 1]
        units, pending = np.empty(len(ids), dtype=np.int64), np.arange(len(ids))
        for attempt in range(MAX_TRIES):
            skipped = (high - low)[pending]
            bits = random_bits(pair_keys[pending], attempt, RandomStream.RANDOM_SENTENCE)
            candidates = integers(bits, len(borders) - 1 - skipped)
            candidates += np.where(candidates >= low[pending], skipped, 0)
            units[pending] = candidates
            too_long = borders[candidates + 1] - borders[candidates] > self.text_capacity - used_lengths[pending]
            pending = pending[too_long]
            if not len(pending):
                break
        starts = borders[units]
        document_ends = self.document_units[np.searchsorted(self.document_units, units, side="right")]
        ends = np.searchsorted(borders, starts + self.samples.target_lengths[ids] - used_lengths, side="right") - 1
        ends = np.minimum(np.maximum(ends, units + 1), document_ends)
        return starts, np.minimum(borders[ends] - starts, self.text_capacity - used_lengths)

    def lengths(self, ids: np.ndarray, epoch: int) -> np.ndarray:
        return self.plan_pairs(ids, epoch)[1].sum(axis=1) + 3

    def batch(self, ids: np.ndarray, epoch: int, shape: StaticShape | None = None) -> Batch:
        starts, lengths, is_negative = self.plan_pairs(ids, epoch)
        has_cls = np.tile([True, False], len(ids))
        sizes, sample_keys = lengths.sum(axis=1) + 3, self.sample_keys(ids, epoch)
        tokens, labels = self.corrupt(starts.ravel(), lengths.ravel(), has_cls, sizes, sample_keys)
        segments = np.repeat(np.tile([0, 1], len(ids)), (lengths + np.array([2, 1])).ravel())
        labeled = np.arange(len(ids))
        if self.is_in_one_document:
            labeled = np.flatnonzero(np.diff(self.samples.first_units)[ids] > 1)
        pairs = labeled, is_negative[labeled].astype(np.int64)
        sequence_labels = {"pair": pairs} if "pair" in self.config.terms else {}
        return pack(tokens, sizes, shape, labels, sequence_labels, segments)

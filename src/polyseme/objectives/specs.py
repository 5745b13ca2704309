"""Pre-training objectives as data: masked LM, masked LM with sentence pairs, causal LM.

A spec is what a recipe holds. `bind` ties it to a corpus and a vocabulary; from there on a batch is a pure
function of (sample numbers, epoch). Losses are elsewhere: here is only what the model sees and what it has to
predict.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, Literal

import numpy as np

from polyseme.config import Config
from polyseme.corpus.sampling import SampleTable, build_samples
from polyseme.errors import ConfigError, DataError
from polyseme.objectives.batch import Batch
from polyseme.objectives.glove import GloVe
from polyseme.objectives.masking import MaskUnit, mask_tokens, span_boundaries
from polyseme.objectives.packing import BatchBuilder, Labels, SpecialIds, StaticShape, add_special_tokens, pack
from polyseme.objectives.permutation_lm import PermutationLM
from polyseme.objectives.span_corruption import SpanCorruption
from polyseme.objectives.streaming_lm import StreamingCausalLM
from polyseme.objectives.translation import Translation
from polyseme.objectives.word2vec import Word2Vec
from polyseme.rng import RandomStream, bernoulli, derive_sample_keys, integers, random_bits

if TYPE_CHECKING:
    from polyseme.corpus.store import Corpus

MAX_TRIES = 8  # places looked at for a random B whose first sentence fits


@dataclass(frozen=True)
class MaskingConfig(Config):
    """The fields of every objective that masks; abstract.

    `num_static_masks` 0 draws a new mask in every epoch (Liu et al. 2019, §4.1); n uses n fixed ones in turn, as
    BERT's data with its ten duplicates did.
    """

    mask_prob: float = 0.15
    mask_unit: MaskUnit = "token"
    random_token_prob: float = 0.1
    keep_token_prob: float = 0.1
    num_static_masks: int = 0

    def __post_init__(self) -> None:
        _check_probability("mask_prob", self.mask_prob)
        _check_probability("random_token_prob + keep_token_prob", self.random_token_prob + self.keep_token_prob)
        self.check_range(0, math.inf, "num_static_masks")

    def mask_epoch(self, epoch: int) -> int:
        """The epoch that enters the draws."""
        return epoch % self.num_static_masks if self.num_static_masks else epoch


@dataclass(frozen=True)
class MaskedLM(MaskingConfig):
    """Masked LM on single runs of sentences, `[CLS] run [SEP]`.

    The runs are RoBERTa's "doc-sentences" (Liu et al. 2019, §4.2): they never cross into another document. With
    `cross_documents` they are its "full-sentences": a run goes on into the next document, with a separator more between the two.
    Departures from BERT: each token is chosen with probability 15 % instead of 15 % of each sequence exactly,
    so a short sequence may have nothing to predict; [UNK], being special, is never masked.
    """

    terms: ClassVar[tuple[str, ...]] = ("masked",)
    cross_documents: bool = False

    def bind(self, corpus: Corpus, special_ids: SpecialIds, max_len: int, seed: int = 0) -> BatchBuilder:
        return _MaskedLMBatchBuilder(self, corpus, special_ids, max_len, seed, self.cross_documents)


@dataclass(frozen=True)
class MaskedLMWithSentencePairs(MaskingConfig):
    """Masked LM and a question about two runs of sentences, `[CLS] A [SEP] B [SEP]`.

    `pair_task="nsp"` is BERT's next-sentence prediction (Devlin et al. 2019, §3.1 and A.2); "sop" is ALBERT's
    sentence order (Lan et al. 2020, §3.1): B always follows A in the text, and in half of the pairs the two are
    swapped. Labels: 0, as in the text; 1, swapped. A run of one sentence is cut in its middle and has no label.

    A and B are runs of sentences that together fill `max_len`, or in one of ten cases (`short_seq_prob`) a length
    drawn between 2 and that; A ends at a sentence drawn at random. Labels of "next": 0, B follows A; 1, B is
    random: it starts at a random sentence of another document and ends where a run with that room would. As in BERT's
    script, a run of one sentence (a document's last) always gets a random B; the others get one so often that
    `random_next_prob` of all do.

    Departures from the script (create_pretraining_data.py): a run stops before the length is passed, so pairs
    are not truncated; sentences after A that made way for a random B are not used again in that epoch (the
    next epoch splits elsewhere); the random sentence is uniform over the corpus, as in the paper, not over
    documents first; its first sentence has to fit, as the true one does, and is cut only when eight draws
    found none; a sentence of more than half the length counts as several; and those of MaskedLM.
    """

    terms: ClassVar[tuple[str, ...]] = ("masked", "pair")
    short_seq_prob: float = 0.1
    random_next_prob: float = 0.5  # or swapped
    pair_task: Literal["nsp", "sop"] = "nsp"

    def __post_init__(self) -> None:
        super().__post_init__()
        _check_probability("short_seq_prob", self.short_seq_prob)
        _check_probability("random_next_prob", self.random_next_prob)

    def bind(self, corpus: Corpus, special_ids: SpecialIds, max_len: int, seed: int = 0) -> BatchBuilder:
        return _SentencePairBatchBuilder(self, corpus, special_ids, max_len, seed)


@dataclass(frozen=True)
class SpanMaskedLM(MaskingConfig):
    """Masked spans of words in single runs of sentences, and the span boundary objective (Joshi et al. 2020, §3).

    A masked token is predicted twice: from its own state, and from the states on both sides of its span with its
    place in the span.
    """

    terms: ClassVar[tuple[str, ...]] = ("masked", "boundary")
    mask_unit: MaskUnit = "span"
    max_span_offset: int = 20  # a token deeper in a span is predicted from its own state alone

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.mask_unit not in ("ngram", "span"):
            raise ConfigError(
                f"mask_unit is {self.mask_unit!r}, but only 'ngram' and 'span' leave both sides of a span to be read"
            )

    def bind(self, corpus: Corpus, special_ids: SpecialIds, max_len: int, seed: int = 0) -> BatchBuilder:
        return _SpanMaskedLMBatchBuilder(self, corpus, special_ids, max_len, seed)


@dataclass(frozen=True)
class CausalLM(Config):
    """Next-token prediction: a document reads `<bos> w1 … wn` and predicts `w1 … wn <eos>`, cut at `max_len`.

    So every token and the end of every document is predicted exactly once an epoch; a slice that does not
    open its document starts with the token before its first prediction. GPT-2 has one mark, `<|endoftext|>`,
    which is both; a tokenizer without bos uses eos, one with neither BERT's [CLS] and [SEP]. Without `add_bos_eos`, as in
    GPT (2018), whose vocabulary has none, the first token and the end of a document are not predicted. Departure from
    both: a sequence never runs on into the next document. Backward, it reads `w1 … wn <eos>` and predicts
    `<bos> w1 … wn`, each token from those behind it; with both directions it reads all of them, and the states of each
    direction predict its own (Peters et al. 2018).
    """

    add_bos_eos: bool = True
    direction: Literal["forward", "backward", "both"] = "forward"

    @property
    def terms(self) -> tuple[str, ...]:
        return {"forward": ("next",), "backward": ("previous",), "both": ("next", "previous")}[self.direction]

    def bind(self, corpus: Corpus, special_ids: SpecialIds, max_len: int, seed: int = 0) -> BatchBuilder:
        return _CausalLMBatchBuilder(self, corpus, special_ids, max_len)


Objective = (
    MaskedLM
    | MaskedLMWithSentencePairs
    | SpanMaskedLM
    | CausalLM
    | PermutationLM
    | StreamingCausalLM
    | SpanCorruption
    | Translation
    | Word2Vec
    | GloVe
)


class _MaskingBatchBuilder(BatchBuilder):
    """What the two masked objectives share: marks, masks, and the cap on predicted tokens."""

    def __init__(
        self,
        config: MaskingConfig,
        corpus: Corpus,
        special_ids: SpecialIds,
        samples: SampleTable,
        max_len: int,
        num_special_tokens: int | np.ndarray,
        seed: int,
    ):
        super().__init__(samples, max_len, num_special_tokens)
        self.config, self.corpus, self.seed = config, corpus, seed
        name = type(config).__name__
        self.cls, self.sep, self.mask = (special_ids.require(token, name) for token in ("cls", "sep", "mask"))
        self.non_special_mask, self.replacement_ids = (
            special_ids.non_special_mask,
            np.flatnonzero(special_ids.non_special_mask),
        )

    def max_predictions(self, num_tokens: int) -> int:
        expected = num_tokens * self.config.mask_prob
        tokens_per_draw = {"token": 1, "word": 4, "ngram": 8, "span": 16}[
            self.config.mask_unit
        ]  # tokens that are one draw
        return min(math.ceil(expected + 6 * math.sqrt(expected * tokens_per_draw)), num_tokens)

    def corrupt(
        self,
        starts: np.ndarray,
        lengths: np.ndarray,
        has_cls: np.ndarray,
        sizes: np.ndarray,
        sample_keys: np.ndarray,
    ) -> tuple[np.ndarray, Labels]:
        """Ranges of the corpus with their marks, masked; `sizes` and `sample_keys` are those of sequences."""
        needs_word_starts = self.config.mask_unit != "token"
        tokens, word_starts = add_special_tokens(
            self.corpus, starts, lengths, has_cls, self.cls, self.sep, needs_word_starts
        )
        corrupted, rows, labels = mask_tokens(
            tokens,
            np.repeat(sample_keys, sizes),
            np.arange(len(tokens)) - np.repeat(np.cumsum(sizes) - sizes, sizes),
            self.non_special_mask[tokens],
            word_starts,
            mask_id=self.mask,
            replacement_ids=self.replacement_ids,
            mask_prob=self.config.mask_prob,
            random_token_prob=self.config.random_token_prob,
            keep_token_prob=self.config.keep_token_prob,
            mask_unit=self.config.mask_unit,
        )
        return corrupted, (rows, labels)


class _MaskedLMBatchBuilder(_MaskingBatchBuilder):
    def __init__(
        self,
        config: MaskingConfig,
        corpus: Corpus,
        special_ids: SpecialIds,
        max_len: int,
        seed: int,
        cross_documents: bool = False,
    ):
        samples = build_samples(corpus, _text_capacity(max_len, 2, 1), cross_documents=cross_documents)
        document_offsets = np.unique(np.asarray(corpus.sentence_offsets)[np.asarray(corpus.document_offsets)])
        self.document_starts = document_offsets[:-1]  # of those that hold something
        self.first_inner_document = np.searchsorted(
            self.document_starts, samples.starts, side="right"
        )  # that begins inside a sample
        self.num_documents = (
            np.searchsorted(self.document_starts, samples.starts + samples.lengths) - self.first_inner_document + 1
        )
        super().__init__(config, corpus, special_ids, samples, max_len, 1 + self.num_documents, seed)

    def lengths(self, ids: np.ndarray, epoch: int) -> np.ndarray:
        return self.samples.lengths[ids] + 1 + self.num_documents[ids]

    def document_ranges(self, ids: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Start and length of each stretch inside one document, and which of them open a sample."""
        starts, lengths, num_documents = self.samples.starts[ids], self.samples.lengths[ids], self.num_documents[ids]
        if num_documents.max() == 1:
            return starts, lengths, np.ones(len(ids), dtype=bool)
        ends = np.cumsum(num_documents)
        rank = np.arange(ends[-1]) - np.repeat(ends - num_documents, num_documents)  # of a stretch in its sample
        document = np.repeat(self.first_inner_document[ids], num_documents) + rank - 1
        stops = np.append(self.document_starts, 0)[document + 1]
        stops[ends - 1] = starts + lengths
        starts = np.where(rank == 0, np.repeat(starts, num_documents), self.document_starts[document])
        return starts, stops - starts, rank == 0

    def batch(self, ids: np.ndarray, epoch: int, shape: StaticShape | None = None) -> Batch:
        sizes = self.lengths(ids, epoch)
        sample_keys = derive_sample_keys(self.seed, self.config.mask_epoch(epoch), ids)
        tokens, masked = self.corrupt(*self.document_ranges(ids), sizes, sample_keys)
        return pack(tokens, sizes, shape, self.build_labels(masked))

    def build_labels(self, masked: Labels) -> dict[str, Labels]:
        """The rows of each term, from those that are masked."""
        return {"masked": masked}


class _SpanMaskedLMBatchBuilder(_MaskedLMBatchBuilder):
    def __init__(self, config: SpanMaskedLM, corpus: Corpus, special_ids: SpecialIds, max_len: int, seed: int):
        super().__init__(config, corpus, special_ids, max_len, seed)
        self.max_span_offset = config.max_span_offset

    def build_labels(self, masked: Labels) -> dict[str, Labels]:
        around = span_boundaries(masked[0])
        is_near = around[:, 2] < self.max_span_offset
        return {"masked": masked, "boundary": (around[is_near], masked[1][is_near])}


class _SentencePairBatchBuilder(_MaskingBatchBuilder):
    def __init__(
        self, config: MaskedLMWithSentencePairs, corpus: Corpus, special_ids: SpecialIds, max_len: int, seed: int
    ):
        self.text_capacity = _text_capacity(max_len, 3, 2)

        def limits(units: np.ndarray) -> np.ndarray:
            unit_keys = derive_sample_keys(seed, 0, units)
            lengths = 2 + integers(random_bits(unit_keys, 1, RandomStream.SHORT_SEQUENCE), self.text_capacity - 1)
            return np.where(
                bernoulli(random_bits(unit_keys, 0, RandomStream.SHORT_SEQUENCE), config.short_seq_prob),
                lengths,
                self.text_capacity,
            )

        samples = build_samples(corpus, self.text_capacity, min_units=2, target_length_fn=limits)
        super().__init__(config, corpus, special_ids, samples, max_len, 3, seed)
        self.is_sentence_order = config.pair_task == "sop"
        document_offsets = np.asarray(corpus.sentence_offsets)[np.asarray(corpus.document_offsets)]
        self.document_units = np.searchsorted(samples.unit_offsets, document_offsets)
        if not self.is_sentence_order and np.count_nonzero(np.diff(self.document_units)) < 2:
            name = "MaskedLMWithSentencePairs"
            raise DataError(f"{name} needs two documents or more: a random B comes from another document")
        single_fraction = float(np.mean(np.diff(samples.first_units) == 1))
        if single_fraction == 1:
            raise DataError("MaskedLMWithSentencePairs needs documents of two sentences or more; here there is none")
        self.negative_prob = (
            config.random_next_prob
            if self.is_sentence_order
            else max(config.random_next_prob - single_fraction, 0) / (1 - single_fraction)
        )

    def plan_pairs(self, ids: np.ndarray, epoch: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Starts [n, 2] and lengths [n, 2] of A and B, and which B are random, or which pairs swapped."""
        samples = self.samples
        pair_keys = derive_sample_keys(self.seed, self.config.mask_epoch(epoch), ids)
        first, last, start = samples.first_units[ids], samples.first_units[ids + 1], samples.starts[ids]
        is_single = last - first == 1
        split = first + 1 + integers(random_bits(pair_keys, 0, RandomStream.PAIR_SPLIT), last - first - ~is_single)
        ends = np.where(
            self.is_sentence_order & is_single, start + samples.lengths[ids] // 2, samples.unit_offsets[split]
        )
        starts = np.stack((start, ends), axis=1)
        lengths = np.stack((ends - start, start + samples.lengths[ids] - ends), axis=1)
        is_negative = bernoulli(random_bits(pair_keys, 0, RandomStream.PAIR_IS_NEGATIVE), self.negative_prob)
        if self.is_sentence_order:
            is_negative &= ~is_single
            starts[is_negative], lengths[is_negative] = starts[is_negative, ::-1], lengths[is_negative, ::-1]
            return starts, lengths, is_negative
        is_negative |= is_single
        negatives = np.flatnonzero(is_negative)
        starts[negatives, 1], lengths[negatives, 1] = self._draw_random_segment(
            ids[negatives], lengths[negatives, 0], pair_keys[negatives]
        )
        return starts, lengths, is_negative

    def _draw_random_segment(
        self, ids: np.ndarray, used_lengths: np.ndarray, pair_keys: np.ndarray
    ) -> tuple[np.ndarray, np.ndarray]:
        """Start and length of a B from another document, for pairs whose A has taken some of the room."""
        borders, documents = self.samples.unit_offsets, self.samples.document_ids[ids]
        low, high = self.document_units[documents], self.document_units[documents + 1]
        units, pending = np.empty(len(ids), dtype=np.int64), np.arange(len(ids))
        for attempt in range(MAX_TRIES):
            skipped = (high - low)[pending]
            candidates = integers(
                random_bits(pair_keys[pending], attempt, RandomStream.RANDOM_SENTENCE), len(borders) - 1 - skipped
            )
            candidates += np.where(candidates >= low[pending], skipped, 0)
            units[pending] = candidates
            pending = pending[
                borders[candidates + 1] - borders[candidates] > self.text_capacity - used_lengths[pending]
            ]
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
        sizes = lengths.sum(axis=1) + 3
        sample_keys = derive_sample_keys(self.seed, self.config.mask_epoch(epoch), ids)
        tokens, masked = self.corrupt(starts.ravel(), lengths.ravel(), has_cls, sizes, sample_keys)
        segments = np.repeat(np.tile([0, 1], len(ids)), (lengths + np.array([2, 1])).ravel())
        labeled = (
            np.flatnonzero(np.diff(self.samples.first_units)[ids] > 1)
            if self.is_sentence_order
            else np.arange(len(ids))
        )
        pairs = labeled, is_negative[labeled].astype(np.int64)
        return pack(tokens, sizes, shape, {"masked": masked}, {"pair": pairs}, segments)


class _CausalLMBatchBuilder(BatchBuilder):
    def __init__(self, config: CausalLM, corpus: Corpus, special_ids: SpecialIds, max_len: int):
        is_bidirectional = config.direction == "both"
        samples = build_samples(
            corpus,
            _text_capacity(max_len, is_bidirectional, 1),
            split_by="length",
            num_end_tokens=1 if config.add_bos_eos else -1,
        )
        super().__init__(samples, max_len, int(is_bidirectional))
        self.config, self.corpus = config, corpus
        self.bos, self.eos = special_ids.require_bos_eos("CausalLM") if config.add_bos_eos else (0, 0)
        self.document_offsets = np.asarray(corpus.sentence_offsets)[np.asarray(corpus.document_offsets)]

    def max_predictions(self, num_tokens: int) -> int:
        return num_tokens

    def lengths(self, ids: np.ndarray, epoch: int) -> np.ndarray:
        return self.samples.lengths[ids] + self.num_special_tokens

    def batch(self, ids: np.ndarray, epoch: int, shape: StaticShape | None = None) -> Batch:
        samples = self.samples
        starts, sizes, document = samples.starts[ids], samples.lengths[ids], samples.document_ids[ids]
        starts_document = starts == self.document_offsets[document]
        ends_document = starts + sizes > self.document_offsets[document + 1]
        if not self.config.add_bos_eos:  # a slice starts with a token of its own
            starts, starts_document, ends_document = (
                starts + 1,
                np.zeros_like(starts_document),
                np.zeros_like(ends_document),
            )
        # One token longer than what is predicted: forward, inputs are all but its last, predictions all but its first.
        ends = np.cumsum(sizes + 1)
        first, last = ends - sizes - 1, ends - 1
        is_text = np.ones(int(ends[-1]), dtype=bool)
        is_text[first[starts_document]] = is_text[last[ends_document]] = False
        extended = np.empty(len(is_text), dtype=np.int64)
        extended[is_text] = self.corpus.gather_tokens(
            starts - ~starts_document, sizes + 1 - starts_document - ends_document
        )
        extended[first[starts_document]], extended[last[ends_document]] = self.bos, self.eos
        all_but_last, all_but_first, rows = (
            np.delete(extended, last),
            np.delete(extended, first),
            np.arange(len(extended)),
        )
        if self.config.direction == "both":
            labels_by_term = {
                "next": (np.delete(rows, last), all_but_first),
                "previous": (np.delete(rows, first), all_but_last),
            }
            return pack(extended, sizes + 1, shape, labels_by_term)
        tokens, labels = (
            (all_but_last, all_but_first) if self.config.direction == "forward" else (all_but_first, all_but_last)
        )
        return pack(tokens, sizes, shape, {self.config.terms[0]: (rows[: len(tokens)], labels)})


def _check_probability(name: str, value: float) -> None:
    if not 0 <= value <= 1:
        raise ConfigError(f"{name} is {value}, expected a share from 0 to 1")


def _text_capacity(max_len: int, num_special_tokens: int, min_tokens: int) -> int:
    """The length left for text beside the special tokens."""
    if max_len < num_special_tokens + min_tokens:
        raise ConfigError(
            f"max_len is {max_len}, expected {num_special_tokens + min_tokens} or more: {num_special_tokens} go to special tokens"
        )
    return max_len - num_special_tokens

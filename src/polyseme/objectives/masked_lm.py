"""Masked language modeling: tokens, words, n-grams or spans (Devlin et al. 2019, §3.1; Liu et al. 2019; SpanBERT)."""

import math
from dataclasses import dataclass
from typing import ClassVar, Literal

import numpy as np

from polyseme.corpus.sampling import SampleTable, build_samples, count_tokens
from polyseme.corpus.store import Corpus
from polyseme.errors import ConfigError
from polyseme.nn.heads.lm import SpanBoundaryHeadConfig
from polyseme.nn.model import ModelConfig
from polyseme.objectives.base import Objective, check_probability, text_capacity
from polyseme.objectives.batch import Batch
from polyseme.objectives.packing import BatchBuilder, Labels, SpecialIds, StaticShape, insert_ids, local_positions, pack
from polyseme.rng import RandomStream, bernoulli, derive_sample_keys, integers, random_bits, uniform
from polyseme.text.cached_encoder import concat_ranges

MaskUnit = Literal["token", "word", "ngram", "span"]
# Relative frequencies of spans of 1, 2, 3, … words: 1/n up to three words (Lan et al. 2020, §4.1); geometric with
# p = 0.2, at most ten words, 3.8 on average (Joshi et al. 2020, §3.1).
SPAN_LENGTH_WEIGHTS = {"ngram": 1 / np.arange(1, 4), "span": 0.8 ** np.arange(10)}


@dataclass(frozen=True)
class MaskingConfig(Objective):
    """Fields of all objectives that mask tokens; abstract.

    Each `mask_unit` is chosen with probability `mask_prob`. Of the chosen tokens, `random_token_prob` become a random
    token, `keep_token_prob` stay, and the rest become the mask token. `random_tokens` "all" are drawn from the whole
    vocabulary with its special tokens, as by BERT's code, "text" from the others, as by RoBERTa's. With
    `num_static_masks` 0 every epoch draws a new mask (Liu et al. 2019, §4.1); with n, epochs use n fixed masks in turn,
    like BERT's data with its ten copies.
    """

    mask_prob: float = 0.15
    mask_unit: MaskUnit = "token"
    random_token_prob: float = 0.1
    keep_token_prob: float = 0.1
    num_static_masks: int = 0
    random_tokens: Literal["text", "all"] = "text"

    @property
    def predicted_fraction(self) -> float:
        return self.mask_prob

    def __post_init__(self) -> None:
        check_probability("mask_prob", self.mask_prob)
        if self.mask_prob == 0:
            raise ConfigError("mask_prob is 0, so nothing would be predicted: expected more than 0, such as 0.15")
        check_probability("random_token_prob", self.random_token_prob)
        check_probability("keep_token_prob", self.keep_token_prob)
        check_probability("random_token_prob + keep_token_prob", self.random_token_prob + self.keep_token_prob)
        self.check_range(0, math.inf, "num_static_masks")

    def bind(self, corpus: Corpus, special_ids: SpecialIds, max_len: int, seed: int = 0) -> BatchBuilder:
        return MaskedLMBatchBuilder(self, corpus, special_ids, max_len, seed)

    def check(self, model: ModelConfig, max_len: int) -> None:
        if model.trunk.causal and {"masked", "next"} & set(model.heads):
            reason = f"that of {model.family} is causal with this config: train it with CausalLM"
            raise ConfigError(f"{type(self).__name__} needs a trunk that reads both sides of a token, and {reason}")
        super().check(model, max_len)

    def mask_epoch(self, epoch: int) -> int:
        """Return the epoch that random draws depend on."""
        return epoch % self.num_static_masks if self.num_static_masks else epoch

    def build_labels(self, masked: Labels) -> dict[str, Labels]:
        """Return the labels of each term that predicts tokens, from those of masked tokens."""
        return {"masked": masked}


@dataclass(frozen=True)
class MaskedLM(MaskingConfig):
    """Masked LM on sequences of whole sentences, `[CLS] sentences [SEP]`.

    Sequences are RoBERTa's "doc-sentences" (Liu et al. 2019, §4.2), which do not cross document borders; with
    `cross_documents` its "full-sentences", which continue into the next document after an extra separator. Departures
    from BERT: each token is chosen with probability 15 % instead of exactly 15 % of each sequence, so a short sequence
    may have nothing to predict; [UNK], being special, is never masked. With `mask_smoothing` s > 0, rare tokens are
    chosen more often, with weights count^-s and the same share overall (Lample and Conneau 2019, XLM, §3.2).
    """

    terms: ClassVar[tuple[str, ...]] = ("masked",)
    cross_documents: bool = False
    mask_smoothing: float = 0.0

    def __post_init__(self) -> None:
        super().__post_init__()
        self.check_range(0, math.inf, "mask_smoothing")
        if self.mask_smoothing and self.mask_unit != "token":
            raise ConfigError(
                f"mask_smoothing is for single tokens, but mask_unit is {self.mask_unit!r}: set one of them"
            )


@dataclass(frozen=True)
class SpanMaskedLM(MaskingConfig):
    """Masked spans of words, and the span boundary objective (SpanBERT; Joshi et al. 2020, §3).

    A masked token is predicted twice: from its own state, and from the states on both sides of its span together with
    its offset in the span.
    """

    terms: ClassVar[tuple[str, ...]] = ("masked", "boundary")
    mask_unit: MaskUnit = "span"
    max_span_offset: int = 20  # tokens deeper inside a span have no boundary term

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.mask_unit not in ("ngram", "span"):
            raise ConfigError(f"mask_unit is {self.mask_unit!r}, expected 'ngram' or 'span', which never touch")
        self.check_range(1, math.inf, "max_span_offset")

    def check(self, model: ModelConfig, max_len: int) -> None:
        super().check(model, max_len)
        head = model.heads["boundary"]
        if isinstance(head, SpanBoundaryHeadConfig) and self.max_span_offset > head.max_span_offset:
            expected = f"{head.max_span_offset} or less, the offsets that the head has"
            raise ConfigError(f"max_span_offset is {self.max_span_offset}, expected {expected}")

    def build_labels(self, masked: Labels) -> dict[str, Labels]:
        boundaries = span_boundaries(masked[0])
        is_near = boundaries[:, 2] < self.max_span_offset
        return {"masked": masked, "boundary": (boundaries[is_near], masked[1][is_near])}


class MaskingBatchBuilder(BatchBuilder):
    """Builder of masked batches: special tokens, masks, and the maximum of predicted tokens."""

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
        self.special_ids = special_ids
        self.cls, self.sep, _ = (special_ids.require(token, name) for token in ("cls", "sep", "mask"))
        self.token_probs: np.ndarray | None = None
        if isinstance(config, MaskedLM) and config.mask_smoothing:
            self.token_probs = smoothed_mask_probs(
                count_tokens(corpus, special_ids.vocab_size), special_ids.non_special_mask, config
            )

    def max_predictions(self, num_tokens: int) -> int:
        expected = num_tokens * self.config.mask_prob
        tokens_per_draw = {"token": 1, "word": 4, "ngram": 8, "span": 16}[self.config.mask_unit]
        if self.token_probs is not None:
            tokens_per_draw = 16  # some texts have many rare tokens
        return min(math.ceil(expected + 6 * math.sqrt(expected * tokens_per_draw)), num_tokens)

    def sample_keys(self, ids: np.ndarray, epoch: int) -> np.ndarray:
        """Return the keys of the random draws of samples."""
        return derive_sample_keys(self.seed, self.config.mask_epoch(epoch), ids)

    def gather(
        self, starts: np.ndarray, lengths: np.ndarray, has_cls: np.ndarray
    ) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Return token ranges with special tokens, which tokens are text, and the first text row of each range."""
        ends = np.cumsum(lengths + has_cls + 1)
        first = ends - lengths - 1
        text = self.corpus.gather_tokens(starts, lengths)
        return *insert_ids(text, (first[has_cls] - 1, self.cls), (ends - 1, self.sep)), first

    def corrupt(
        self, starts: np.ndarray, lengths: np.ndarray, has_cls: np.ndarray, sizes: np.ndarray, sample_keys: np.ndarray
    ) -> tuple[np.ndarray, dict[str, Labels]]:
        """Return masked token ranges and labels by term, with `sep` after each range and `cls` before some.

        `sizes` and `sample_keys` belong to sequences, which may have several ranges.
        """
        tokens, is_text, first = self.gather(starts, lengths, has_cls)
        word_starts = None
        if self.config.mask_unit != "token":
            word_starts = ~is_text  # a special token is a word, and a range starts one even if it was cut inside a word
            word_starts[is_text] = self.corpus.gather_word_starts(starts, lengths)
            word_starts[first] = True
        keys, positions = np.repeat(sample_keys, sizes), local_positions(sizes)
        corrupted, rows, labels = mask_tokens(
            self.config, tokens, keys, positions, word_starts, self.special_ids, self.token_probs
        )
        return corrupted, self.config.build_labels((rows, labels))


class MaskedLMBatchBuilder(MaskingBatchBuilder):
    """Builder of masked sequences of sentences."""

    def __init__(self, config: MaskingConfig, corpus: Corpus, special_ids: SpecialIds, max_len: int, seed: int):
        cross_documents = isinstance(config, MaskedLM) and config.cross_documents
        samples = build_samples(corpus, text_capacity(max_len, 2, 1), cross_documents=cross_documents)
        document_offsets = np.unique(np.asarray(corpus.sentence_offsets)[np.asarray(corpus.document_offsets)])
        self.document_starts = document_offsets[:-1]  # of those that are not empty
        # the first document that starts inside a sample, and the number of documents in it
        self.first_inner_document = np.searchsorted(self.document_starts, samples.starts, side="right")
        ends = np.searchsorted(self.document_starts, samples.starts + samples.lengths)
        self.num_documents = ends - self.first_inner_document + 1
        super().__init__(config, corpus, special_ids, samples, max_len, 1 + self.num_documents, seed)

    def document_ranges(self, ids: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Return start and length of each range inside one document, and which of them start a sample."""
        starts, lengths, num_documents = self.samples.starts[ids], self.samples.lengths[ids], self.num_documents[ids]
        if num_documents.max() == 1:
            return starts, lengths, np.ones(len(ids), dtype=bool)
        rank = local_positions(num_documents)  # of a range in its sample
        document = np.repeat(self.first_inner_document[ids], num_documents) + rank - 1
        stops = np.append(self.document_starts, 0)[document + 1]
        stops[np.cumsum(num_documents) - 1] = starts + lengths
        starts = np.where(rank == 0, np.repeat(starts, num_documents), self.document_starts[document])
        return starts, stops - starts, rank == 0

    def batch(self, ids: np.ndarray, epoch: int, shape: StaticShape | None = None) -> Batch:
        sizes = self.lengths(ids, epoch)
        tokens, labels = self.corrupt(*self.document_ranges(ids), sizes, self.sample_keys(ids, epoch))
        return pack(tokens, sizes, shape, labels)


def smoothed_mask_probs(counts: np.ndarray, is_text: np.ndarray, config: MaskedLM) -> np.ndarray:
    """Return the probability that a token of each id is masked, so that a share `mask_prob` of the text is.

    XLM and DistilBERT draw a fixed number of tokens of a batch without replacement, with weights count^-s. The tokens
    with the smallest of independent exponential draws, divided by their weights, are such a sample; those below a fixed
    threshold t are one that depends on nothing around a token: 1 - exp(-t · weight) (Efraimidis and Spirakis 2006).
    """
    weights = np.where(is_text, np.maximum(counts, 1.0) ** -config.mask_smoothing, 0.0)
    text_counts = np.where(is_text, counts, 0)
    expected = config.mask_prob * text_counts.sum()
    low, high = 0.0, 1.0
    while (text_counts * -np.expm1(-high * weights)).sum() < expected and high < 2.0**64:
        high *= 2
    for _ in range(64):  # bisection, to the precision of a double
        threshold = (low + high) / 2
        is_low = (text_counts * -np.expm1(-threshold * weights)).sum() < expected
        low, high = (threshold, high) if is_low else (low, threshold)
    probs: np.ndarray = -np.expm1(-high * weights)
    return probs


def mask_tokens(
    config: MaskingConfig,
    tokens: np.ndarray,
    keys: np.ndarray,
    positions: np.ndarray,
    word_starts: np.ndarray | None,
    special_ids: SpecialIds,
    token_probs: np.ndarray | None = None,
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return the corrupted tokens, the rows to predict, and the true ids there.

    `keys` and `positions` belong to tokens: the key of the token's sample and its position there. Each unit is drawn
    independently, instead of exactly 15 % of a sequence, so that a draw depends on nothing around it. A whole word is
    chosen by the draw at its first piece (`word_starts`, true at the first token of every sample too). What becomes of
    a chosen piece is drawn for each piece, as in BERT's later release, or once for a span. `token_probs` replace
    `mask_prob` by a probability for each id.
    """
    maskable, mask_prob = special_ids.non_special_mask[tokens], config.mask_prob
    if config.mask_unit == "token":
        probs = mask_prob if token_probs is None else token_probs[tokens]
        is_chosen = bernoulli(random_bits(keys, positions, RandomStream.MASK_CHOICE), probs)
        rows = draw_rows = np.flatnonzero(is_chosen & maskable)
    else:
        assert word_starts is not None, "mask units other than tokens need word starts"
        if config.mask_unit == "word":
            heads = np.flatnonzero(word_starts)
            is_chosen = bernoulli(random_bits(keys[heads], positions[heads], RandomStream.MASK_CHOICE), mask_prob)
            first, end = heads[is_chosen], np.append(heads[1:], len(tokens))[is_chosen]
        else:
            first, end = sample_spans(config, keys, positions, maskable, word_starts)
        rows = concat_ranges(first, end - first)
        draw_rows = np.repeat(first, end - first) if config.mask_unit == "span" else rows
        is_maskable = maskable[rows]
        rows, draw_rows = rows[is_maskable], draw_rows[is_maskable]
    labels = tokens[rows]
    action_bits = random_bits(keys[draw_rows], positions[draw_rows], RandomStream.MASK_ACTION)
    is_unmasked = bernoulli(action_bits, config.random_token_prob + config.keep_token_prob)
    new_ids = np.where(is_unmasked, labels, special_ids.mask)  # type: ignore[arg-type]
    randomized = np.flatnonzero(bernoulli(action_bits, config.random_token_prob))
    bits = random_bits(keys[rows[randomized]], positions[rows[randomized]], RandomStream.REPLACEMENT_ID)
    if config.random_tokens == "all":
        new_ids[randomized] = integers(bits, len(special_ids.non_special_mask))
    else:
        new_ids[randomized] = special_ids.text_ids[integers(bits, len(special_ids.text_ids))]
    corrupted = tokens.copy()
    corrupted[rows] = new_ids
    return corrupted, rows, labels


def sample_spans(
    config: MaskingConfig, keys: np.ndarray, positions: np.ndarray, maskable: np.ndarray, word_starts: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """Draw spans of whole words: return the first token of each and the one after its last.

    A run of words between special tokens has a budget of a share `mask_prob` of its words. Span lengths are drawn until
    it is spent. Part of the budget is spent at the start, as if a span had begun before the run (the residual length of
    a renewal process), so that lengths follow SPAN_LENGTH_WEIGHTS and the share holds on average for all run lengths.
    Spans are then placed at random among the remaining words, with a word or more between two. Spans that do not fit
    into a run are dropped.
    """
    heads = np.flatnonzero(word_starts)
    word_ends = np.append(heads[1:], len(word_starts))
    is_text = maskable[heads]
    starts_run = is_text.copy()
    starts_run[1:] &= ~is_text[:-1] | (positions[heads[1:]] == 0)
    words = np.flatnonzero(is_text)
    run_starts = np.flatnonzero(starts_run[words])
    run_lengths = np.diff(run_starts, append=len(words))
    keys, positions = keys[heads[words]], positions[heads[words]]

    def draw(words: np.ndarray, stream: RandomStream) -> np.ndarray:
        return random_bits(keys[words], positions[words], stream)

    length_weights = SPAN_LENGTH_WEIGHTS[config.mask_unit]
    length_cdf = np.cumsum(length_weights) / length_weights.sum()
    survival = 1 - np.append(0, length_cdf[:-1])  # probability that a span is longer than 0, 1, 2, …
    residual_cdf = np.cumsum(survival) / survival.sum()
    budget = (run_lengths * config.mask_prob + uniform(draw(run_starts, RandomStream.MASK_BUDGET))).astype(np.int64)
    residual_draws = uniform(draw(run_starts, RandomStream.MASK_SPAN_RESIDUAL))
    residual = np.searchsorted(residual_cdf, residual_draws, side="right")
    run, rank = np.repeat(np.arange(len(budget)), budget), local_positions(budget)
    word = run_starts[run] + rank
    lengths = 1 + np.searchsorted(length_cdf, uniform(draw(word, RandomStream.MASK_SPAN_LENGTH)), side="right")
    preceding = _preceding_sums(lengths, budget, run)
    fits = (residual[run] + preceding < budget[run]) & (preceding + lengths + rank <= run_lengths[run])
    run, rank, word, lengths = run[fits], rank[fits], word[fits], lengths[fits]

    counts = np.bincount(run, minlength=len(run_starts))
    num_masked = np.bincount(run, lengths, len(run_starts)).astype(np.int64)
    num_free = run_lengths - num_masked - counts + 1  # without one word between spans
    gaps = integers(draw(word, RandomStream.MASK_SPAN_POSITION), num_free[run] + 1)
    order = np.argsort(run * len(words) + gaps, kind="stable")  # within runs
    gaps, lengths = gaps[order], lengths[order]
    first = words[run_starts[run] + gaps + _preceding_sums(lengths, counts, run) + rank]
    return heads[first], word_ends[first + lengths - 1]


def span_boundaries(rows: np.ndarray) -> np.ndarray:
    """Return for each masked row the rows before and after its span, and its offset in the span: [n, 3].

    Spans do not touch each other, so consecutive rows are one span and the rows around it are not masked.
    """
    starts_span = np.diff(rows, prepend=-2) != 1
    span = np.cumsum(starts_span) - 1
    first, last = rows[starts_span], rows[np.append(starts_span[1:], True)] if len(rows) else rows
    return np.stack((first[span] - 1, last[span] + 1, rows - first[span]), axis=1)


def _preceding_sums(values: np.ndarray, counts: np.ndarray, list_index: np.ndarray) -> np.ndarray:
    """Return the sum of the values before each value in its list, for concatenated lists of `counts` values."""
    cumulative = np.append(0, np.cumsum(values))
    return cumulative[:-1] - cumulative[np.cumsum(counts) - counts][list_index]

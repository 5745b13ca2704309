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

from polyseme.config import Spec
from polyseme.corpus.sampling import Samples, cut_samples
from polyseme.errors import UserError
from polyseme.objectives.batch import Batch
from polyseme.objectives.glove import Counts
from polyseme.objectives.masking import Unit, boundaries, mask
from polyseme.objectives.packing import Bound, Rows, Shape, Vocabulary, enclose, pack
from polyseme.objectives.permutation_lm import PermutationLM
from polyseme.objectives.span_corruption import SpanCorruption
from polyseme.objectives.streaming_lm import SegmentLM
from polyseme.objectives.translation import Translation
from polyseme.objectives.word2vec import Windows
from polyseme.rng import NEXT, SHORT, SPLIT, WHERE, below, draw, integers, keys

if TYPE_CHECKING:
    from polyseme.corpus.store import Corpus

TRIES = 8  # places looked at for a random B whose first sentence fits


@dataclass(frozen=True)
class Masking(Spec):
    """The fields of every objective that masks; abstract.

    `repeats` 0 draws a new mask in every epoch (Liu et al. 2019, §4.1); n uses n fixed ones in turn, as
    BERT's data with its ten duplicates did.
    """

    rate: float = 0.15
    unit: Unit = "token"
    random: float = 0.1
    keep: float = 0.1
    repeats: int = 0

    def __post_init__(self) -> None:
        _share("rate", self.rate)
        _share("random + keep", self.random + self.keep)
        self.within(0, math.inf, "repeats")

    def turn(self, epoch: int) -> int:
        """The epoch that enters the draws."""
        return epoch % self.repeats if self.repeats else epoch


@dataclass(frozen=True)
class MaskedLM(Masking):
    """Masked LM on single runs of sentences, `[CLS] run [SEP]`.

    The runs are RoBERTa's "doc-sentences" (Liu et al. 2019, §4.2): they never cross into another document. With
    `across` they are its "full-sentences": a run goes on into the next document, with a separator more between the two.
    Departures from BERT: each token is chosen with probability 15 % instead of 15 % of each sequence exactly,
    so a short sequence may have nothing to predict; [UNK], being special, is never masked.
    """

    terms: ClassVar[tuple[str, ...]] = ("masked",)
    across: bool = False

    def bind(self, corpus: Corpus, vocabulary: Vocabulary, max_len: int, seed: int = 0) -> Bound:
        return _MaskedLM(self, corpus, vocabulary, max_len, seed, self.across)


@dataclass(frozen=True)
class MaskedPairs(Masking):
    """Masked LM and a question about two runs of sentences, `[CLS] A [SEP] B [SEP]`.

    `question="next"` is BERT's next-sentence prediction (Devlin et al. 2019, §3.1 and A.2); "order" is ALBERT's
    sentence order (Lan et al. 2020, §3.1): B always follows A in the text, and in half of the pairs the two are
    swapped. Labels: 0, as in the text; 1, swapped. A run of one sentence is cut in its middle and has no label.

    A and B are runs of sentences that together fill `max_len`, or in one of ten cases (`short`) a length
    drawn between 2 and that; A ends at a sentence drawn at random. Labels of "next": 0, B follows A; 1, B is
    random: it starts at a random sentence of another document and ends where a run with that room would. As in BERT's
    script, a run of one sentence (a document's last) always gets a random B; the others get one so often that
    `random_next` of all do.

    Departures from the script (create_pretraining_data.py): a run stops before the length is passed, so pairs
    are not truncated; sentences after A that made way for a random B are not used again in that epoch (the
    next epoch splits elsewhere); the random sentence is uniform over the corpus, as in the paper, not over
    documents first; its first sentence has to fit, as the true one does, and is cut only when eight draws
    found none; a sentence of more than half the length counts as several; and those of MaskedLM.
    """

    terms: ClassVar[tuple[str, ...]] = ("masked", "pair")
    short: float = 0.1
    random_next: float = 0.5  # or swapped
    question: Literal["next", "order"] = "next"

    def __post_init__(self) -> None:
        super().__post_init__()
        _share("short", self.short)
        _share("random_next", self.random_next)

    def bind(self, corpus: Corpus, vocabulary: Vocabulary, max_len: int, seed: int = 0) -> Bound:
        return _MaskedPairs(self, corpus, vocabulary, max_len, seed)


@dataclass(frozen=True)
class MaskedSpans(Masking):
    """Masked spans of words in single runs of sentences, and the span boundary objective (Joshi et al. 2020, §3).

    A masked token is predicted twice: from its own state, and from the states on both sides of its span with its
    place in the span.
    """

    terms: ClassVar[tuple[str, ...]] = ("masked", "boundary")
    unit: Unit = "span"
    places: int = 20  # a token deeper in a span is predicted from its own state alone

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.unit not in ("ngram", "span"):
            raise UserError(f"unit is {self.unit!r}, but only 'ngram' and 'span' leave both sides of a span to be read")

    def bind(self, corpus: Corpus, vocabulary: Vocabulary, max_len: int, seed: int = 0) -> Bound:
        return _MaskedSpans(self, corpus, vocabulary, max_len, seed)


@dataclass(frozen=True)
class CausalLM(Spec):
    """Next-token prediction: a document reads `<bos> w1 … wn` and predicts `w1 … wn <eos>`, cut at `max_len`.

    So every token and the end of every document is predicted exactly once an epoch; a slice that does not
    open its document starts with the token before its first prediction. GPT-2 has one mark, `<|endoftext|>`,
    which is both; a tokenizer without bos uses eos, one with neither BERT's [CLS] and [SEP]. Without `marks`, as in
    GPT (2018), whose vocabulary has none, the first token and the end of a document are not predicted. Departure from
    both: a sequence never runs on into the next document. Backward, it reads `w1 … wn <eos>` and predicts
    `<bos> w1 … wn`, each token from those behind it; with both directions it reads all of them, and the states of each
    direction predict its own (Peters et al. 2018).
    """

    marks: bool = True
    direction: Literal["forward", "backward", "both"] = "forward"

    @property
    def terms(self) -> tuple[str, ...]:
        return {"forward": ("next",), "backward": ("previous",), "both": ("next", "previous")}[self.direction]

    def bind(self, corpus: Corpus, vocabulary: Vocabulary, max_len: int, seed: int = 0) -> Bound:
        return _CausalLM(self, corpus, vocabulary, max_len)


Objective = (
    MaskedLM
    | MaskedPairs
    | MaskedSpans
    | CausalLM
    | PermutationLM
    | SegmentLM
    | SpanCorruption
    | Translation
    | Windows
    | Counts
)


class _Masked(Bound):
    """What the two masked objectives share: marks, masks, and the cap on predicted tokens."""

    def __init__(
        self,
        spec: Masking,
        corpus: Corpus,
        vocabulary: Vocabulary,
        samples: Samples,
        longest: int,
        overhead: int | np.ndarray,
        seed: int,
    ):
        super().__init__(samples, longest, overhead)
        self.masking, self.corpus, self.seed = spec, corpus, seed
        name = type(spec).__name__
        self.cls, self.sep, self.mask = (vocabulary.need(token, name) for token in ("cls", "sep", "mask"))
        self.ordinary, self.replacements = vocabulary.ordinary, np.flatnonzero(vocabulary.ordinary)

    def rows(self, num_tokens: int) -> int:
        usual = num_tokens * self.masking.rate
        clumps = {"token": 1, "word": 4, "ngram": 8, "span": 16}[self.masking.unit]  # tokens that are one draw
        return min(math.ceil(usual + 6 * math.sqrt(usual * clumps)), num_tokens)

    def damage(
        self,
        starts: np.ndarray,
        lengths: np.ndarray,
        leads: np.ndarray,
        sizes: np.ndarray,
        sample_keys: np.ndarray,
    ) -> tuple[np.ndarray, Rows]:
        """Ranges of the corpus with their marks, masked; `sizes` and `sample_keys` are those of sequences."""
        words = self.masking.unit != "token"
        tokens, word_starts = enclose(self.corpus, starts, lengths, leads, self.cls, self.sep, words)
        damaged, rows, values = mask(
            tokens,
            np.repeat(sample_keys, sizes),
            np.arange(len(tokens)) - np.repeat(np.cumsum(sizes) - sizes, sizes),
            self.ordinary[tokens],
            word_starts,
            mask_id=self.mask,
            replacements=self.replacements,
            rate=self.masking.rate,
            random=self.masking.random,
            keep=self.masking.keep,
            unit=self.masking.unit,
        )
        return damaged, (rows, values)


class _MaskedLM(_Masked):
    def __init__(
        self, spec: Masking, corpus: Corpus, vocabulary: Vocabulary, max_len: int, seed: int, across: bool = False
    ):
        samples = cut_samples(corpus, _room(max_len, 2, 1), across=across)
        documents = np.unique(np.asarray(corpus.sentences)[np.asarray(corpus.documents)])
        self.begins = documents[:-1]  # of those that hold something
        self.first = np.searchsorted(self.begins, samples.starts, side="right")  # that begins inside a sample
        self.parts = np.searchsorted(self.begins, samples.starts + samples.lengths) - self.first + 1
        super().__init__(spec, corpus, vocabulary, samples, max_len, 1 + self.parts, seed)

    def lengths(self, ids: np.ndarray, epoch: int) -> np.ndarray:
        return self.samples.lengths[ids] + 1 + self.parts[ids]

    def ranges(self, ids: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Start and length of each stretch inside one document, and which of them open a sample."""
        starts, lengths, parts = self.samples.starts[ids], self.samples.lengths[ids], self.parts[ids]
        if parts.max() == 1:
            return starts, lengths, np.ones(len(ids), dtype=bool)
        ends = np.cumsum(parts)
        rank = np.arange(ends[-1]) - np.repeat(ends - parts, parts)  # of a stretch in its sample
        cut = np.repeat(self.first[ids], parts) + rank - 1
        stops = np.append(self.begins, 0)[cut + 1]
        stops[ends - 1] = starts + lengths
        starts = np.where(rank == 0, np.repeat(starts, parts), self.begins[cut])
        return starts, stops - starts, rank == 0

    def batch(self, ids: np.ndarray, epoch: int, shape: Shape | None = None) -> Batch:
        sizes = self.lengths(ids, epoch)
        sample_keys = keys(self.seed, self.masking.turn(epoch), ids)
        tokens, masked = self.damage(*self.ranges(ids), sizes, sample_keys)
        return pack(tokens, sizes, shape, self.found(masked))

    def found(self, masked: Rows) -> dict[str, Rows]:
        """The rows of each term, from those that are masked."""
        return {"masked": masked}


class _MaskedSpans(_MaskedLM):
    def __init__(self, spec: MaskedSpans, corpus: Corpus, vocabulary: Vocabulary, max_len: int, seed: int):
        super().__init__(spec, corpus, vocabulary, max_len, seed)
        self.places = spec.places

    def found(self, masked: Rows) -> dict[str, Rows]:
        around = boundaries(masked[0])
        near = around[:, 2] < self.places
        return {"masked": masked, "boundary": (around[near], masked[1][near])}


class _MaskedPairs(_Masked):
    def __init__(self, spec: MaskedPairs, corpus: Corpus, vocabulary: Vocabulary, max_len: int, seed: int):
        self.room = _room(max_len, 3, 2)

        def limits(units: np.ndarray) -> np.ndarray:
            unit_keys = keys(seed, 0, units)
            lengths = 2 + integers(draw(unit_keys, 1, SHORT), self.room - 1)
            return np.where(below(draw(unit_keys, 0, SHORT), spec.short), lengths, self.room)

        samples = cut_samples(corpus, self.room, least=2, limits=limits)
        super().__init__(spec, corpus, vocabulary, samples, max_len, 3, seed)
        self.swaps = spec.question == "order"
        documents = np.asarray(corpus.sentences)[np.asarray(corpus.documents)]
        self.document_units = np.searchsorted(samples.borders, documents)
        if not self.swaps and np.count_nonzero(np.diff(self.document_units)) < 2:
            raise UserError("MaskedPairs needs two documents or more: a random B comes from another document")
        alone = float(np.mean(np.diff(samples.first) == 1))
        if alone == 1:
            raise UserError("MaskedPairs needs documents of two sentences or more; here there is none")
        self.share = spec.random_next if self.swaps else max(spec.random_next - alone, 0) / (1 - alone)

    def plan(self, ids: np.ndarray, epoch: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Starts [n, 2] and lengths [n, 2] of A and B, and which B are random, or which pairs swapped."""
        table = self.samples
        pair_keys = keys(self.seed, self.masking.turn(epoch), ids)
        first, last, start = table.first[ids], table.first[ids + 1], table.starts[ids]
        alone = last - first == 1
        cut = first + 1 + integers(draw(pair_keys, 0, SPLIT), last - first - ~alone)
        ends = np.where(self.swaps & alone, start + table.lengths[ids] // 2, table.borders[cut])
        starts = np.stack((start, ends), axis=1)
        lengths = np.stack((ends - start, start + table.lengths[ids] - ends), axis=1)
        random = below(draw(pair_keys, 0, NEXT), self.share)
        if self.swaps:
            random &= ~alone
            starts[random], lengths[random] = starts[random, ::-1], lengths[random, ::-1]
            return starts, lengths, random
        random |= alone
        drawn = np.flatnonzero(random)
        starts[drawn, 1], lengths[drawn, 1] = self._elsewhere(ids[drawn], lengths[drawn, 0], pair_keys[drawn])
        return starts, lengths, random

    def _elsewhere(self, ids: np.ndarray, taken: np.ndarray, pair_keys: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Start and length of a B from another document, for pairs whose A has taken some of the room."""
        borders, own = self.samples.borders, self.samples.document[ids]
        low, high = self.document_units[own], self.document_units[own + 1]
        unit, pending = np.empty(len(ids), dtype=np.int64), np.arange(len(ids))
        for attempt in range(TRIES):
            skipped = (high - low)[pending]
            found = integers(draw(pair_keys[pending], attempt, WHERE), len(borders) - 1 - skipped)
            found += np.where(found >= low[pending], skipped, 0)
            unit[pending] = found
            pending = pending[borders[found + 1] - borders[found] > self.room - taken[pending]]
            if not len(pending):
                break
        start = borders[unit]
        document_end = self.document_units[np.searchsorted(self.document_units, unit, side="right")]
        end = np.searchsorted(borders, start + self.samples.limits[ids] - taken, side="right") - 1
        end = np.minimum(np.maximum(end, unit + 1), document_end)
        return start, np.minimum(borders[end] - start, self.room - taken)

    def lengths(self, ids: np.ndarray, epoch: int) -> np.ndarray:
        return self.plan(ids, epoch)[1].sum(axis=1) + 3

    def batch(self, ids: np.ndarray, epoch: int, shape: Shape | None = None) -> Batch:
        starts, lengths, random = self.plan(ids, epoch)
        leads = np.tile([True, False], len(ids))
        sizes = lengths.sum(axis=1) + 3
        sample_keys = keys(self.seed, self.masking.turn(epoch), ids)
        tokens, masked = self.damage(starts.ravel(), lengths.ravel(), leads, sizes, sample_keys)
        segments = np.repeat(np.tile([0, 1], len(ids)), (lengths + np.array([2, 1])).ravel())
        asked = np.flatnonzero(np.diff(self.samples.first)[ids] > 1) if self.swaps else np.arange(len(ids))
        pairs = asked, random[asked].astype(np.int64)
        return pack(tokens, sizes, shape, {"masked": masked}, {"pair": pairs}, segments)


class _CausalLM(Bound):
    def __init__(self, spec: CausalLM, corpus: Corpus, vocabulary: Vocabulary, max_len: int):
        both = spec.direction == "both"
        samples = cut_samples(corpus, _room(max_len, both, 1), at="length", closing=1 if spec.marks else -1)
        super().__init__(samples, max_len, int(both))
        self.spec, self.corpus = spec, corpus
        self.bos, self.eos = vocabulary.ends("CausalLM") if spec.marks else (0, 0)
        self.documents = np.asarray(corpus.sentences)[np.asarray(corpus.documents)]

    def rows(self, num_tokens: int) -> int:
        return num_tokens

    def lengths(self, ids: np.ndarray, epoch: int) -> np.ndarray:
        return self.samples.lengths[ids] + self.overhead

    def batch(self, ids: np.ndarray, epoch: int, shape: Shape | None = None) -> Batch:
        table = self.samples
        starts, sizes, document = table.starts[ids], table.lengths[ids], table.document[ids]
        opens = starts == self.documents[document]
        closes = starts + sizes > self.documents[document + 1]
        if not self.spec.marks:  # a slice starts with a token of its own
            starts, opens, closes = starts + 1, np.zeros_like(opens), np.zeros_like(closes)
        # One token longer than what is predicted: forward, inputs are all but its last, predictions all but its first.
        ends = np.cumsum(sizes + 1)
        first, last = ends - sizes - 1, ends - 1
        inner = np.ones(int(ends[-1]), dtype=bool)
        inner[first[opens]] = inner[last[closes]] = False
        stream = np.empty(len(inner), dtype=np.int64)
        stream[inner] = self.corpus.gather(starts - ~opens, sizes + 1 - opens - closes)
        stream[first[opens]], stream[last[closes]] = self.bos, self.eos
        early, late, rows = np.delete(stream, last), np.delete(stream, first), np.arange(len(stream))
        if self.spec.direction == "both":
            found = {"next": (np.delete(rows, last), late), "previous": (np.delete(rows, first), early)}
            return pack(stream, sizes + 1, shape, found)
        tokens, values = (early, late) if self.spec.direction == "forward" else (late, early)
        return pack(tokens, sizes, shape, {self.spec.terms[0]: (rows[: len(tokens)], values)})


def _share(name: str, value: float) -> None:
    if not 0 <= value <= 1:
        raise UserError(f"{name} is {value}, expected a share from 0 to 1")


def _room(max_len: int, marks: int, least: int) -> int:
    """The length left for text beside the special tokens."""
    if max_len < marks + least:
        raise UserError(f"max_len is {max_len}, expected {marks + least} or more: {marks} go to special tokens")
    return max_len - marks

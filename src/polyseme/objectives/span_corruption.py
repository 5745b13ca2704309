"""Span corruption (Raffel et al. 2020, §3.1.4, §3.3.4): spans are taken out of a text, and the model writes them."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

import numpy as np

from polyseme.config import Spec
from polyseme.corpus.sampling import cut_samples
from polyseme.errors import UserError
from polyseme.objectives.packing import Bound, Paired, Vocabulary
from polyseme.rng import GAPS, SPANS, draw, keys

if TYPE_CHECKING:
    from polyseme.corpus.store import Corpus


@dataclass(frozen=True)
class SpanCorruption(Spec):
    """A share `rate` of the tokens goes, in spans of `mean` tokens on average.

    The source has a sentinel for each span, the target each sentinel and its span, and one sentinel more: `a b c d e f`
    becomes `a b X e f Y` and `X c d Y … Z`, both closed by eos; the decoder starts with pad. How many tokens and spans
    go is fixed by the length of the text, where they are is random: all ways to place spans that do not touch are as
    likely. `max_len` is the longest source.

    Departures from the released code: a sample is a run of sentences of one document, not a slice of joined documents;
    so texts may be short, and it is not always their end that goes, as it is there. The last sentinel is the paper's.
    """

    terms: ClassVar[tuple[str, ...]] = ("next",)
    rate: float = 0.15
    mean: float = 3.0

    def __post_init__(self) -> None:
        self.within(0, 1, "rate")
        self.within(1, math.inf, "mean")

    def bind(self, corpus: Corpus, vocabulary: Vocabulary, max_len: int, seed: int = 0) -> Bound:
        return _SpanCorruption(self, corpus, vocabulary, max_len, seed)

    def taken(self, lengths: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """How many tokens go, and in how many spans, from texts of these lengths: one of each at the least."""
        tokens = np.floor(lengths * self.rate + 0.5).astype(np.int64)
        tokens = np.maximum(np.minimum(tokens, lengths - 1), 1)
        spans = np.floor(tokens / self.mean + 0.5).astype(np.int64)
        return tokens, np.maximum(np.minimum(spans, lengths - tokens + 1), 1)

    def sizes(self, lengths: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """How long sources and targets come out."""
        tokens, spans = self.taken(lengths)
        return lengths - tokens + spans + 1, tokens + spans + 2


class _SpanCorruption(Paired):
    def __init__(self, spec: SpanCorruption, corpus: Corpus, vocabulary: Vocabulary, max_len: int, seed: int):
        name = type(spec).__name__
        self.eos = vocabulary.need("sep" if vocabulary.eos is None else "eos", name)
        self.spec, self.corpus, self.seed = spec, corpus, seed
        self.sentinels = np.array(vocabulary.sentinels, dtype=np.int64)
        longest = np.arange(1, 2 * max_len)
        source, target = spec.sizes(longest)
        fitting = longest[(source <= max_len) & (target <= max_len)]
        if not len(fitting):
            raise UserError(f"max_len is {max_len}, expected 4 or more: 2 go to a sentinel and the end mark")
        most = int(spec.taken(fitting[-1:])[1][0]) + 1
        if most > len(self.sentinels):
            has = f"has {len(self.sentinels)}" if len(self.sentinels) else "has none"
            raise UserError(
                f"{name} with max_len {max_len} needs {most} sentinels, and the tokenizer {has}: "
                "train it with --sentinels, or set a smaller max_len"
            )
        samples = cut_samples(corpus, int(fitting[-1]))
        start = self.eos if vocabulary.pad is None else vocabulary.pad
        super().__init__(samples, *spec.sizes(samples.lengths), start)

    def sides(self, ids: np.ndarray, epoch: int) -> tuple[np.ndarray, np.ndarray]:
        lengths = self.samples.lengths[ids]
        tokens = self.corpus.gather(self.samples.starts[ids], lengths)
        taken, spans = self.spec.taken(lengths)
        sample_keys = keys(self.seed, epoch, ids)
        # what stays is one stretch more, of which the first and the last may be empty
        stays = segment(sample_keys, lengths - taken + 2, spans + 1, GAPS)
        last = np.cumsum(spans + 1) - 1
        stays[last] -= 1
        stays[last - spans] -= 1
        goes = segment(sample_keys, taken, spans, SPANS)
        return take_out(tokens, stays, goes, spans, self.sentinels, self.eos)


def segment(sample_keys: np.ndarray, totals: np.ndarray, counts: np.ndarray, stream: int) -> np.ndarray:
    """Each sample's `totals` items cut into `counts` runs, none empty; all ways to cut are as likely.

    Returns the lengths of all runs, end to end. Of the places where a sample can be cut, those with the lowest draws
    are: one sort over (sample, draw, place), so that no tie depends on who else is in the batch.
    """
    places = totals - 1
    if len(totals) >= 1 << 20 or places.max(initial=0) >= 1 << 16:
        raise ValueError("a batch of spans holds at most 2^20 samples of at most 2^16 tokens")
    ends = np.cumsum(places)
    owner = np.repeat(np.arange(len(totals)), places)
    first = np.repeat(ends - places, places)
    place = np.arange(len(owner)) - first
    bits = draw(sample_keys[owner], place, stream)
    ranked = owner.astype(np.uint64) << np.uint64(44)
    ranked |= bits >> np.uint64(36) << np.uint64(16)
    ranked |= place.astype(np.uint64)
    ranked.sort()
    chosen = np.flatnonzero(np.arange(len(owner)) - first < (counts - 1)[owner])
    begins = np.cumsum(totals) - totals
    cuts = begins[owner[chosen]] + (ranked[chosen] & np.uint64(0xFFFF)).astype(np.int64) + 1
    starts = np.concatenate((begins, cuts))
    starts.sort()
    return np.diff(starts, append=int(totals.sum()))


def take_out(
    tokens: np.ndarray,
    stays: np.ndarray,
    goes: np.ndarray,
    spans: np.ndarray,
    sentinels: np.ndarray,
    eos: int,
) -> tuple[np.ndarray, np.ndarray]:
    """Sources and targets of texts, each end to end. Of each text, `spans` go between stretches that stay."""
    closing = np.cumsum(spans + 1) - 1  # the last stretch of each text
    inner = np.ones(len(stays), dtype=bool)
    inner[closing] = False
    marks = sentinels[np.arange(len(stays)) - np.repeat(closing - spans, spans + 1)]
    gone = np.zeros(len(stays), dtype=np.int64)
    gone[inner] = goes
    goes_out = np.repeat(np.tile([False, True], len(stays)), np.stack((stays, gone), axis=1).ravel())

    ends = np.cumsum(stays + 1)
    source = np.full(int(ends[-1]), -1, dtype=np.int64)
    source[ends - 1] = np.where(inner, marks, eos)
    source[source < 0] = tokens[~goes_out]

    sizes = np.where(inner, gone + 1, 2)
    ends = np.cumsum(sizes)
    target = np.full(int(ends[-1]), -1, dtype=np.int64)
    target[ends - sizes] = marks
    target[ends[closing] - 1] = eos
    target[target < 0] = tokens[goes_out]
    return source, target

"""Permutation LM: some places are predicted in a drawn order, each from all that comes before it (Yang et al. 2019)."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

import numpy as np
import torch

from polyseme.config import Spec
from polyseme.corpus.sampling import cut_samples
from polyseme.errors import UserError
from polyseme.nn.attention.relative import Queries
from polyseme.nn.packing import Layout
from polyseme.objectives.batch import Batch
from polyseme.objectives.packing import Bound, Shape, Vocabulary, pack
from polyseme.rng import RANK, SPAN, SPAN_PLACE, draw, integers, keys

if TYPE_CHECKING:
    from polyseme.corpus.store import Corpus


@dataclass(frozen=True)
class PermutationLM(Spec):
    """Runs of sentences, `run <sep> <cls>`, of which one token in `one_in` is predicted.

    Spans as in §3.1: a sequence is cut into windows of `one_in` · L tokens, L drawn evenly from 1 to `longest`, and of
    each window L tokens in a row are predicted; of n tokens ⌊n / one_in⌋, always. These and the two marks stand in a
    random order; all other tokens come before them and see each other, as in the paper's code (§2.3 needs no order
    among what is not predicted). Departures: the code draws L by 1 / L and lets spans end where words do.
    """

    terms: ClassVar[tuple[str, ...]] = ("masked",)
    one_in: int = 6
    longest: int = 5

    def __post_init__(self) -> None:
        self.within(2, math.inf, "one_in")
        self.within(1, math.inf, "longest")

    def bind(self, corpus: Corpus, vocabulary: Vocabulary, max_len: int, seed: int = 0) -> Bound:
        return _PermutationLM(self, corpus, vocabulary, max_len, seed)


class _PermutationLM(Bound):
    def __init__(self, spec: PermutationLM, corpus: Corpus, vocabulary: Vocabulary, max_len: int, seed: int):
        if max_len < spec.one_in + 2:
            raise UserError(f"max_len is {max_len}, expected {spec.one_in + 2} or more: else nothing is predicted")
        super().__init__(cut_samples(corpus, max_len - 2), max_len, 2)
        self.spec, self.corpus, self.seed = spec, corpus, seed
        self.cls, self.sep = (vocabulary.need(token, "PermutationLM") for token in ("cls", "sep"))

    def rows(self, num_tokens: int) -> int:
        return math.ceil(num_tokens / self.spec.one_in)

    def lengths(self, ids: np.ndarray, epoch: int) -> np.ndarray:
        return self.samples.lengths[ids] + 2

    def spans(self, sizes: np.ndarray, sample_keys: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Start and length of each span, [samples, windows]; a length of 0 is none."""
        one_in = self.spec.one_in
        windows = np.arange(int(sizes.max()) // one_in)[None]
        sizes, each = sizes[:, None], sample_keys[:, None]
        drawn = 1 + integers(draw(each, windows, SPAN), self.spec.longest)
        starts = np.cumsum(one_in * drawn, axis=1) - one_in * drawn
        rest = np.maximum(sizes - starts, 0)
        fits = one_in * drawn <= rest  # else this window is the last, and is what is left
        lengths, room = np.where(fits, drawn, rest // one_in), np.where(fits, one_in * drawn, rest)
        return starts + integers(draw(each, windows, SPAN_PLACE), room - lengths + 1), lengths

    def batch(self, ids: np.ndarray, epoch: int, shape: Shape | None = None) -> Batch:
        """Of exact size whatever the shape: a query stream has as many rows as there are places to predict."""
        sizes, sample_keys = self.samples.lengths[ids], keys(self.seed, epoch, ids)
        ends = np.cumsum(sizes + 2)
        firsts = ends - sizes - 2
        inner = np.ones(int(ends[-1]), dtype=bool)
        inner[ends - 1] = inner[ends - 2] = False
        tokens = np.empty(len(inner), dtype=np.int64)
        tokens[inner] = self.corpus.gather(self.samples.starts[ids], sizes)
        tokens[ends - 2], tokens[ends - 1] = self.sep, self.cls

        starts, lengths = self.spans(sizes, sample_keys)
        begin, length = (starts + firsts[:, None]).ravel(), lengths.ravel()
        predicted = np.repeat(begin - np.cumsum(length) + length, length) + np.arange(length.sum())
        chosen = ~inner
        chosen[predicted] = True
        places = np.flatnonzero(chosen)
        of = np.searchsorted(ends, places, side="right")
        bits = draw(sample_keys[of], places - firsts[of], RANK)
        drawn = np.lexsort((bits, of))
        order = np.full(len(tokens), -1)
        order[places[drawn]] = np.arange(len(places)) - np.searchsorted(of, of)  # `of` is sorted, and drawn keeps it

        batch = pack(tokens, sizes + 2, None, {"masked": (len(tokens) + np.arange(len(predicted)), tokens[predicted])})
        queries = Queries(torch.from_numpy(order), torch.from_numpy(predicted), Layout.of(lengths.sum(axis=1)))
        return Batch(batch.tokens, batch.layout, None, batch.targets, batch.num_tokens, queries=queries)

"""Words and the words around them: skip-gram and CBOW (Mikolov et al. 2013a, §3; 2013b, §2).

Frequent words are left out at random before windows are laid, so that windows reach further; how far a window reaches
is drawn for each word. Every draw is a hash of the sample and the place in it.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING, Literal

import numpy as np
import torch

from polyseme.config import Spec, in_range
from polyseme.corpus.sampling import cut_samples
from polyseme.errors import UserError
from polyseme.nn.heads.word2vec import Stream
from polyseme.nn.packing import Layout
from polyseme.objectives.batch import Batch, Targets
from polyseme.objectives.packing import Bound, Shape, Vocabulary
from polyseme.rng import KEPT, NOISE, REACH, draw, integers, keys, uniform

if TYPE_CHECKING:
    from polyseme.corpus.store import Corpus

AT_ONCE = 1 << 22  # tokens that are counted together


@dataclass(frozen=True)
class Windows(Spec):
    """`predict` the contexts of a word (skip-gram) or the word from their mean (CBOW).

    `output` is how: against `negatives` other words, drawn in proportion to count^`power`, or down a tree. For a block
    of `block` words `drawn` negatives are drawn once, each of which then counts for negatives / drawn. `subsample` is
    the frequency above which words are left out: one of frequency f stays with probability √(t/f) + t/f, as in the
    authors' code (the paper has the first term alone); 0 keeps all.
    """

    predict: Literal["contexts", "word"] = "contexts"
    output: Literal["negative", "tree"] = "negative"
    window: int = 5
    dynamic: bool = True
    subsample: float = 1e-3
    negatives: int = 5
    power: float = 0.75
    block: int = 16
    drawn: int = 16

    def __post_init__(self) -> None:
        for name in ("window", "block", "drawn", "negatives"):
            in_range(name, getattr(self, name), 1, math.inf)
        for name in ("subsample", "power"):
            in_range(name, getattr(self, name), 0, math.inf)
        if self.window > self.block:
            raise UserError(f"window is {self.window}, wider than a block of {self.block} words")

    @property
    def terms(self) -> tuple[str, ...]:
        return (self.output,)

    def bind(self, corpus: Corpus, vocabulary: Vocabulary, max_len: int, seed: int = 0) -> _Windows:
        return _Windows(self, corpus, vocabulary, max_len, seed)


def count_tokens(corpus: Corpus, size: int) -> np.ndarray:
    """How often each id occurs, int64 [size]."""
    found = np.zeros(size, np.int64)
    borders = np.asarray(corpus.sentences)[np.asarray(corpus.documents)]
    groups = np.unique(np.searchsorted(borders, np.arange(0, borders[-1] + AT_ONCE, AT_ONCE)))
    for low, high in pairwise(groups.tolist()):
        starts, ends = borders[low:high], borders[low + 1 : high + 1]
        found += np.bincount(corpus.gather(starts[: len(ends)], ends - starts[: len(ends)]), minlength=size)
    return found


class _Windows(Bound):
    def __init__(self, spec: Windows, corpus: Corpus, vocabulary: Vocabulary, max_len: int, seed: int):
        super().__init__(cut_samples(corpus, max_len), max_len, 0)
        self.spec, self.corpus, self.seed = spec, corpus, seed
        self.counts = count_tokens(corpus, vocabulary.size)
        known = np.where(vocabulary.ordinary, self.counts, 0).astype(np.float64)
        if not known.any():
            raise UserError("the corpus has no known word: all of its tokens are special ones")
        frequency = np.maximum(known / known.sum(), 1e-300)
        with np.errstate(over="ignore"):
            kept = np.sqrt(spec.subsample / frequency) + spec.subsample / frequency if spec.subsample else 1.0
        self.kept = np.where(known > 0, np.minimum(kept, 1.0), 0.0)
        noise = np.where(known > 0, known**spec.power, 0.0)
        self.noise = np.cumsum(noise) / noise.sum()
        self.noise[np.flatnonzero(noise)[-1] :] = 1.0

    def lengths(self, ids: np.ndarray, epoch: int) -> np.ndarray:
        return self.samples.lengths[ids]

    def rows(self, num_tokens: int) -> int:
        return num_tokens

    def batch(self, ids: np.ndarray, epoch: int, shape: Shape | None = None) -> Batch:
        """Unknown words leave no gap, as in the authors' code: those on their two sides are neighbours."""
        spec, starts, sizes = self.spec, self.samples.starts[ids], self.samples.lengths[ids]
        tokens = self.corpus.gather(starts, sizes)
        ends = np.cumsum(sizes)
        owner = np.repeat(np.arange(len(ids)), sizes)
        places = np.arange(len(tokens)) - (ends - sizes)[owner]
        token_keys = keys(self.seed, epoch, ids)[owner]
        chosen = np.flatnonzero(uniform(draw(token_keys, places, KEPT)) < self.kept[tokens])
        kept, owner, places, token_keys = tokens[chosen], owner[chosen], places[chosen], token_keys[chosen]
        left_sizes = np.bincount(owner, minlength=len(ids))
        before = np.arange(len(kept)) - (np.cumsum(left_sizes) - left_sizes)[owner]
        behind = left_sizes[owner] - 1 - before
        reach: int | np.ndarray = spec.window
        if spec.dynamic:
            reach = 1 + integers(draw(token_keys, places, REACH), spec.window)
        left, right = (np.minimum(most, reach).astype(np.int16) for most in (before, behind))
        away = np.arange(-spec.window, spec.window + 1, dtype=np.int16)
        near = (away >= -left[:, None]) & (away <= right[:, None]) & (away != 0)
        number = max(-(-len(kept) // spec.block), 1)
        spare = number * spec.block - len(kept)
        firsts = np.arange(0, max(len(kept), 1), spec.block)
        count = int((left + right > 0).sum() if spec.predict == "word" else (left + right).sum())
        stream = Stream(
            torch.from_numpy(np.pad(kept, (spec.window, spec.window + spare))),
            torch.from_numpy(np.pad(near, ((0, spare), (0, 0)))),
            torch.from_numpy(self._negatives(token_keys[firsts], places[firsts]) if len(kept) else _none(number, spec)),
            spec.block,
            spec.window,
            spec.negatives / spec.drawn,
            spec.predict == "word",
        )
        none = torch.zeros(0, dtype=torch.int64)
        targets: dict[str, Targets] = {spec.output: Targets(none, none, count)}
        return Batch(none, Layout.of([]), None, targets, len(tokens), near=stream)

    def _negatives(self, block_keys: np.ndarray, places: np.ndarray) -> np.ndarray:
        """Those of each block, [blocks, drawn]; a tree needs none."""
        drawn = 1 if self.spec.output == "tree" else self.spec.drawn
        turns = places[:, None] * drawn + np.arange(drawn)
        bits = draw(np.repeat(block_keys, drawn), turns.ravel(), NOISE)
        return np.searchsorted(self.noise, uniform(bits), side="right").reshape(-1, drawn)


def _none(number: int, spec: Windows) -> np.ndarray:
    return np.zeros((number, spec.drawn), np.int64)

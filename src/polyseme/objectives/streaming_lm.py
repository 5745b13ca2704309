"""Next-token prediction over segments that go on, for models with a memory (Dai et al. 2019, §3.2)."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Literal

import numpy as np
import torch

from polyseme.config import Spec
from polyseme.corpus.sampling import Samples
from polyseme.objectives.batch import Batch, Targets
from polyseme.objectives.packing import Shape, Streamed, Vocabulary, pack
from polyseme.rng import HALF, VARIED, below, draw, keys, normal

if TYPE_CHECKING:
    from polyseme.corpus.store import Corpus

SHORT, LEAST = 0.05, 5  # the share of steps that read half as much; the fewest tokens of a segment


@dataclass(frozen=True)
class SegmentLM(Spec):
    """The corpus as one stream, `<eos>` before and behind each document, in segments of `max_len` tokens.

    A step reads the next segment of many lanes, and what the model remembers of each lane is handed on: truncated
    back-propagation through time, over document borders too, as in the paper's code. An epoch begins without memory.

    With a `spread`, the length of a step's segments is drawn around `max_len` (in one step of twenty, around half of
    it) with that deviation, and the step's rate goes with it, so that it is not always the same tokens whose gradient
    is cut off (Merity et al. 2018, §4.1). Backward, the stream is read from its end, and a token predicts the one
    before it. `activation` is the weight of the mean square of the last states, `change` that of their change from
    token to token before dropout (§4.6, AR and TAR; their α is 2, their β 1).
    """

    spread: float = 0.0
    direction: Literal["forward", "backward"] = "forward"
    activation: float = 0.0
    change: float = 0.0

    def __post_init__(self) -> None:
        self.within(0, 1e6, "spread", "activation", "change")

    def most(self, max_len: int) -> int:
        """How many tokens a segment has at most: a draw beyond six deviations is held there."""
        return int(max_len + 6 * self.spread)

    @property
    def terms(self) -> tuple[str, ...]:
        return ("next",) if self.direction == "forward" else ("previous",)

    def bind(self, corpus: Corpus, vocabulary: Vocabulary, max_len: int, seed: int = 0) -> Streamed:
        return _SegmentLM(self, corpus, vocabulary, max_len, seed)


class _SegmentLM(Streamed):
    def __init__(self, spec: SegmentLM, corpus: Corpus, vocabulary: Vocabulary, max_len: int, seed: int):
        self.spec, self.corpus, self.seed = spec, corpus, seed
        self.eos = vocabulary.ends("SegmentLM")[1]
        borders = np.unique(np.asarray(corpus.sentences)[np.asarray(corpus.documents)])
        self.marks = borders + np.arange(len(borders))  # the places of <eos> in the stream
        self.end = int(self.marks[-1]) // max_len * max_len  # what is read of it
        starts = np.arange(0, self.end, max_len)
        numbers, sizes = np.arange(len(starts)), np.full(len(starts), max_len)
        super().__init__(Samples(starts, sizes, numbers, np.append(starts, 0), numbers, sizes), max_len, 0)

    def rows(self, num_tokens: int) -> int:
        return num_tokens

    def lengths(self, ids: np.ndarray, epoch: int) -> np.ndarray:
        return self.samples.lengths[ids]

    def batch(self, ids: np.ndarray, epoch: int, shape: Shape | None = None) -> Batch:
        return self.stretch(self.samples.starts[ids], self.longest)

    def cuts(self, length: int, epoch: int) -> np.ndarray:
        if not self.spec.spread:
            return super().cuts(length, epoch)
        steps = np.arange(-(-length // LEAST))  # there are no more, and a draw is cheap
        each = keys(self.seed, epoch, steps)
        around = np.where(below(draw(each, 0, HALF), SHORT), self.longest / 2, self.longest)
        drawn = around + self.spec.spread * normal(draw(each, 0, VARIED), draw(each, 1, VARIED))
        ends = np.cumsum(np.clip(drawn.astype(np.int64), LEAST, self.spec.most(self.longest)))
        return np.concatenate([[0], ends[ends < length], [length]])

    def stretch(self, places: np.ndarray, length: int) -> Batch:
        backward = self.spec.direction == "backward"
        starts = self.end - places - length if backward else places
        # one token longer than the segment: forward, inputs are all but its last, predictions all but its first
        where = (starts[:, None] + np.arange(length + 1)).ravel()
        before = np.searchsorted(self.marks, where, side="right")
        inner = self.marks[before - 1] != where
        stream = np.full(len(where), self.eos)
        offsets = (where - before)[inner]
        cut = np.flatnonzero(np.diff(before[inner], prepend=-1) | (np.diff(offsets, prepend=-2) != 1))
        if len(cut):
            stream[inner] = self.corpus.gather(offsets[cut], np.diff(cut, append=len(offsets)))
        both = stream.reshape(len(starts), length + 1)
        early, late = both[:, :-1].ravel(), both[:, 1:].ravel()
        tokens, values = (late, early) if backward else (early, late)
        found = {self.spec.terms[0]: (np.arange(len(tokens)), values)}
        batch = pack(tokens, np.full(len(starts), length), None, found)
        targets = batch.targets | self._penalties(len(tokens), len(starts))
        return replace(batch, targets=targets, rate=length / self.longest if self.spec.spread else 1.0)

    def _penalties(self, num_tokens: int, num_lanes: int) -> dict[str, Targets]:
        """Terms about the states themselves, which predict nothing: they are counted as all terms are."""
        none = torch.zeros(0, dtype=torch.int64)
        counts = {"activation": num_tokens, "change": num_tokens - num_lanes}
        weights = {name: getattr(self.spec, name) for name in counts}
        return {name: Targets(none, none, counts[name], weight) for name, weight in weights.items() if weight}

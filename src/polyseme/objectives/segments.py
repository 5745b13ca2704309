"""Next-token prediction over segments that go on, for models with a memory (Dai et al. 2019, §3.2)."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from statistics import NormalDist
from typing import TYPE_CHECKING, ClassVar

import numpy as np
import torch

from polyseme.corpus.order import Samples
from polyseme.objectives.batch import Batch, Targets
from polyseme.objectives.draws import HALVED, SPREAD, below, draw, keys, uniform
from polyseme.objectives.packing import Bound, Shape, Vocabulary, pack
from polyseme.parts.spec import Spec, in_range

if TYPE_CHECKING:
    from polyseme.corpus.store import Corpus


@dataclass(frozen=True)
class SegmentLM(Spec):
    """The corpus as one stream, `<eos>` before and behind each document, in segments of `max_len` tokens.

    A step reads the next segment of many lanes, and what the model remembers of each lane is handed on: truncated
    back-propagation through time, over document borders too, as in the paper's code. An epoch begins without memory.

    With a `spread`, a step reads a number of tokens drawn around `max_len`, or with probability `halved` around half of
    it, and its rate is in proportion: no token always stands where the gradient ends (Merity et al. 2018, §4; theirs is
    5). `activation` is the weight of the mean square of the last states, `change` of their change from token to token,
    before dropout (§5; their α is 2, their β 1). `backward` reads the stream from its end and predicts what stands
    before.
    """

    terms: ClassVar[tuple[str, ...]] = ("next",)
    spread: float = 0.0
    halved: float = 0.05
    activation: float = 0.0
    change: float = 0.0
    backward: bool = False

    def __post_init__(self) -> None:
        for name in ("spread", "activation", "change"):
            in_range(name, getattr(self, name), 0, math.inf)
        in_range("halved", self.halved, 0, 1)

    def bind(self, corpus: Corpus, vocabulary: Vocabulary, max_len: int, seed: int = 0) -> Bound:
        return _SegmentLM(self, corpus, vocabulary, max_len, seed)


class _SegmentLM(Bound):
    goes_on = True

    def __init__(self, spec: SegmentLM, corpus: Corpus, vocabulary: Vocabulary, max_len: int, seed: int):
        self.spec, self.seed, self.uneven = spec, seed, spec.spread > 0
        self.corpus, self.eos = corpus, vocabulary.need("eos", "SegmentLM")
        borders = np.unique(np.asarray(corpus.sentences)[np.asarray(corpus.documents)])
        self.marks = borders + np.arange(len(borders))  # the places of <eos> in the stream
        starts = np.arange(0, int(self.marks[-1]) // max_len * max_len, max_len)
        numbers, sizes = np.arange(len(starts)), np.full(len(starts), max_len)
        super().__init__(Samples(starts, sizes, numbers, np.append(starts, 0), numbers, sizes), max_len, 0)

    def rows(self, num_tokens: int) -> int:
        return num_tokens

    def lengths(self, ids: np.ndarray, epoch: int) -> np.ndarray:
        return self.samples.lengths[ids]

    def length(self, place: int, epoch: int) -> int:
        """How many tokens a step reads that begins at this place of its lanes."""
        key, spec = keys(self.seed, epoch, np.array([place])), self.spec
        usual = self.longest / 2 if below(draw(key, 0, HALVED), spec.halved)[0] else self.longest
        share = float(uniform(draw(key, 0, SPREAD))[0]) + 2.0**-54
        size = int(NormalDist(usual, spec.spread).inv_cdf(share))
        return max(min(size, int(self.longest + 4 * spec.spread)), min(5, self.longest))

    def batch(self, ids: np.ndarray, epoch: int, shape: Shape | None = None) -> Batch:
        return self.stretch(self.samples.starts[ids], self.longest, shape)

    def stretch(self, places: np.ndarray, size: int, shape: Shape | None = None) -> Batch:
        """The next `size` tokens from each of these places of the stream, counted from its end if it is read so."""
        backward = self.spec.backward
        first = int(self.marks[-1]) - places - size if backward else places
        # one token longer than the segment: inputs are all but its last, predictions all but its first, or vice versa
        both = self._stream((first[:, None] + np.arange(size + 1)).ravel()).reshape(len(places), size + 1)
        tokens, values = both[:, :-1].ravel(), both[:, 1:].ravel()
        if backward:
            tokens, values = values, tokens
        batch = pack(tokens, np.full(len(places), size), shape, {"next": (np.arange(len(tokens)), values)})
        return replace(batch, targets=batch.targets | self._penalties(len(tokens), len(places)), rate=size / self.longest)

    def _stream(self, places: np.ndarray) -> np.ndarray:
        before = np.searchsorted(self.marks, places, side="right")
        inner = self.marks[before - 1] != places
        stream = np.full(len(places), self.eos)
        offsets = (places - before)[inner]
        cut = np.flatnonzero(np.diff(before[inner], prepend=-1) | (np.diff(offsets, prepend=-2) != 1))
        if len(cut):
            stream[inner] = self.corpus.gather(offsets[cut], np.diff(cut, append=len(offsets)))
        return stream

    def _penalties(self, num_tokens: int, num_lanes: int) -> dict[str, Targets]:
        """Terms about the states themselves, which predict nothing: they are counted as all terms are."""
        none = torch.zeros(0, dtype=torch.int64)
        weights = {"activation": self.spec.activation, "change": self.spec.change}
        counts = {"activation": num_tokens, "change": num_tokens - num_lanes}
        return {name: Targets(none, none, counts[name], weight) for name, weight in weights.items() if weight}

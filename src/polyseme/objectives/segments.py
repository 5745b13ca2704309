"""Next-token prediction over segments that go on, for models with a memory (Dai et al. 2019, §3.2)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

import numpy as np

from polyseme.corpus.order import Samples
from polyseme.objectives.batch import Batch
from polyseme.objectives.packing import Bound, Shape, Vocabulary, pack
from polyseme.parts.spec import Spec

if TYPE_CHECKING:
    from polyseme.corpus.store import Corpus


@dataclass(frozen=True)
class SegmentLM(Spec):
    """The corpus as one stream, `<eos>` before and behind each document, in segments of `max_len` tokens.

    A step reads the next segment of many lanes, and what the model remembers of each lane is handed on: truncated
    back-propagation through time, over document borders too, as in the paper's code. An epoch begins without memory.
    """

    terms: ClassVar[tuple[str, ...]] = ("next",)

    def bind(self, corpus: Corpus, vocabulary: Vocabulary, max_len: int, seed: int = 0) -> Bound:
        return _SegmentLM(corpus, vocabulary, max_len)


class _SegmentLM(Bound):
    goes_on = True

    def __init__(self, corpus: Corpus, vocabulary: Vocabulary, max_len: int):
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

    def batch(self, ids: np.ndarray, epoch: int, shape: Shape | None = None) -> Batch:
        size = self.longest
        # one token longer than the segment: inputs are all but its last, predictions all but its first
        places = (self.samples.starts[ids][:, None] + np.arange(size + 1)).ravel()
        before = np.searchsorted(self.marks, places, side="right")
        inner = self.marks[before - 1] != places
        stream = np.full(len(places), self.eos)
        offsets = (places - before)[inner]
        cut = np.flatnonzero(np.diff(before[inner], prepend=-1) | (np.diff(offsets, prepend=-2) != 1))
        if len(cut):
            stream[inner] = self.corpus.gather(offsets[cut], np.diff(cut, append=len(offsets)))
        both = stream.reshape(len(ids), size + 1)
        tokens, values = both[:, :-1].ravel(), both[:, 1:].ravel()
        return pack(tokens, np.full(len(ids), size), shape, {"next": (np.arange(len(tokens)), values)})

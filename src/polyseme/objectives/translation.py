"""Translation: a text in, its other language out, each token after those before it (Vaswani et al. 2017, §5)."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

import numpy as np

from polyseme.config import Spec
from polyseme.corpus.sampling import Samples
from polyseme.errors import UserError
from polyseme.objectives.packing import Bound, Paired, Vocabulary
from polyseme.rng import OWN, below, draw, keys

if TYPE_CHECKING:
    from polyseme.corpus.store import Corpus


@dataclass(frozen=True, eq=False)
class Pairs:
    """Parallel texts in memory: the ids of each side end to end, and the length of each text."""

    source: np.ndarray  # int64
    source_lengths: np.ndarray  # int64 [n]
    target: np.ndarray
    target_lengths: np.ndarray

    @classmethod
    def of(cls, sources: Sequence[Sequence[int]], targets: Sequence[Sequence[int]]) -> Pairs:
        """From texts as ids, the n-th of one side with the n-th of the other."""
        if len(sources) != len(targets):
            raise UserError(f"{len(sources)} sources and {len(targets)} targets are no pairs")
        sides = []
        for texts in (sources, targets):
            sides.append(np.array([token for text in texts for token in text], dtype=np.int64))
            sides.append(np.array([len(text) for text in texts], dtype=np.int64))
        return cls(*sides)

    def __len__(self) -> int:
        return len(self.source_lengths)


@dataclass(frozen=True)
class Translation(Spec):
    """The source is closed by eos, and so is the target; the decoder starts with bos, or eos where there is none.

    `smoothing` is the share of each truth that goes to all tokens evenly (§5.4). With `own`, tokens are read as the
    model itself would have written them, with that probability, to which it rises evenly over the first `own_epochs`
    (scheduled sampling, Bengio et al. 2015, §2.4). What it would have written is found in one reading of the true
    target, so that a decoder still reads all steps at once (Mihaylova and Martins 2019, §3).
    """

    terms: ClassVar[tuple[str, ...]] = ("next",)
    smoothing: float = 0.1
    own: float = 0.0
    own_epochs: int = 0

    def __post_init__(self) -> None:
        self.within(0, 1, "own", "smoothing")
        self.within(0, math.inf, "own_epochs")

    def bind(self, corpus: Corpus | Pairs, vocabulary: Vocabulary, max_len: int, seed: int = 0) -> Bound:
        """Of pairs in memory, or of a corpus whose documents are pairs."""
        return _Translation(self, corpus if isinstance(corpus, Pairs) else _pairs(corpus), vocabulary, max_len, seed)


class _Translation(Paired):
    def __init__(self, spec: Translation, pairs: Pairs, vocabulary: Vocabulary, max_len: int, seed: int):
        self.spec, self.seed = spec, seed
        name, other = type(spec).__name__, vocabulary.target or vocabulary
        self.pairs, self.eos, self.end = pairs, vocabulary.need("eos", name), other.need("eos", name)
        longest = np.maximum(pairs.source_lengths, pairs.target_lengths) + 1
        if len(long := np.flatnonzero(longest > max_len)):
            raise UserError(
                f"pair {long[0] + 1} has {longest[long[0]]} tokens with its end mark, more than {max_len}: "
                "prepare shorter ones, or set a larger max_len"
            )
        start = self.end if other.bos is None else other.bos
        first, numbers = _begins(pairs.source_lengths), np.arange(len(pairs))
        borders = np.append(first, len(pairs.source))
        samples = Samples(first, pairs.source_lengths, numbers, borders, np.arange(len(borders)), pairs.source_lengths)
        super().__init__(samples, pairs.source_lengths + 1, pairs.target_lengths + 1, start, spec.smoothing)

    def sides(self, ids: np.ndarray, epoch: int) -> tuple[np.ndarray, np.ndarray]:
        pairs = self.pairs
        return (
            _closed(pairs.source, pairs.source_lengths, ids, self.eos),
            _closed(pairs.target, pairs.target_lengths, ids, self.end),
        )

    def own(self, ids: np.ndarray, epoch: int) -> np.ndarray | None:
        risen = min(epoch / self.spec.own_epochs, 1.0) if self.spec.own_epochs else 1.0
        if not (chance := self.spec.own * risen):
            return None
        lengths = self.target[ids]
        places = np.arange(int(lengths.sum())) - np.repeat(_begins(lengths), lengths)
        bits = draw(np.repeat(keys(self.seed, epoch, ids), lengths), places, OWN)
        return below(bits, chance) & (places > 0)  # the start mark is nobody's


def _pairs(corpus: Corpus) -> Pairs:
    """The pairs of a corpus, each a document of two sentences."""
    if "pairs" not in corpus.manifest:
        raise UserError(f"{corpus.path} is no corpus of pairs: make one with `polyseme pairs`")
    lengths = np.diff(corpus.sentences).reshape(-1, 2)
    starts = corpus.sentences[:-1].reshape(-1, 2)
    sides = [(corpus.gather(starts[:, i], lengths[:, i]), lengths[:, i].astype(np.int64)) for i in (0, 1)]
    return Pairs(*sides[0], *sides[1])


def _closed(tokens: np.ndarray, lengths: np.ndarray, ids: np.ndarray, eos: int) -> np.ndarray:
    """The texts of these numbers end to end, each with its end mark."""
    chosen = lengths[ids]
    ends = np.cumsum(chosen + 1)
    inner = np.ones(int(ends[-1]), dtype=bool)
    inner[ends - 1] = False
    found = np.full(len(inner), eos, dtype=np.int64)
    at = np.arange(int(chosen.sum())) - np.repeat(np.cumsum(chosen) - chosen, chosen)
    found[inner] = tokens[at + np.repeat(_begins(lengths)[ids], chosen)]
    return found


def _begins(lengths: np.ndarray) -> np.ndarray:
    return np.cumsum(lengths) - lengths

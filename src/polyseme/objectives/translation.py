"""Translation: a text in, its other language out, each token after those before it (Vaswani et al. 2017, §5)."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

import numpy as np

from polyseme.corpus.sampling import SampleTable
from polyseme.errors import DataError
from polyseme.objectives.base import Objective
from polyseme.objectives.packing import BatchBuilder, Seq2SeqBatchBuilder, SpecialIds
from polyseme.rng import RandomStream, bernoulli, derive_sample_keys, random_bits

if TYPE_CHECKING:
    from polyseme.corpus.store import Corpus


@dataclass(frozen=True, eq=False)
class ParallelText:
    """Parallel texts in memory: the ids of each side end to end, and the length of each text."""

    source: np.ndarray  # int64
    source_lengths: np.ndarray  # int64 [n]
    target: np.ndarray
    target_lengths: np.ndarray

    @classmethod
    def from_ids(cls, sources: Sequence[Sequence[int]], targets: Sequence[Sequence[int]]) -> ParallelText:
        """From texts as ids, the n-th of one side with the n-th of the other."""
        if len(sources) != len(targets):
            raise DataError(f"{len(sources)} sources and {len(targets)} targets are no pairs")
        sides = []
        for texts in (sources, targets):
            sides.append(np.array([token for text in texts for token in text], dtype=np.int64))
            sides.append(np.array([len(text) for text in texts], dtype=np.int64))
        return cls(*sides)

    def __len__(self) -> int:
        return len(self.source_lengths)


@dataclass(frozen=True)
class Translation(Objective):
    """The source is closed by eos, and so is the target; the decoder starts with bos, or eos where there is none.

    `label_smoothing` is the share of each truth that goes to all tokens evenly (§5.4). With `scheduled_sampling`,
    tokens are read as the model itself would have written them, with that probability, to which it rises evenly over
    the first `scheduled_sampling_epochs` (scheduled sampling, Bengio et al. 2015, §2.4). What it would have written is
    found in one reading of the true target, so that a decoder still reads all steps at once (Mihaylova and Martins
    2019, §3).
    """

    terms: ClassVar[tuple[str, ...]] = ("next",)
    needs_source: ClassVar[bool] = True
    label_smoothing: float = 0.1
    scheduled_sampling: float = 0.0
    scheduled_sampling_epochs: int = 0

    def __post_init__(self) -> None:
        self.check_range(0, 1, "scheduled_sampling", "label_smoothing")
        self.check_range(0, math.inf, "scheduled_sampling_epochs")

    def bind(self, corpus: Corpus | ParallelText, special_ids: SpecialIds, max_len: int, seed: int = 0) -> BatchBuilder:
        """Of pairs in memory, or of a corpus whose documents are pairs."""
        return _TranslationBatchBuilder(
            self,
            corpus if isinstance(corpus, ParallelText) else _load_parallel_text(corpus),
            special_ids,
            max_len,
            seed,
        )


class _TranslationBatchBuilder(Seq2SeqBatchBuilder):
    def __init__(self, config: Translation, pairs: ParallelText, special_ids: SpecialIds, max_len: int, seed: int):
        self.config, self.seed = config, seed
        name, target_special_ids = type(config).__name__, special_ids.target or special_ids
        self.pairs, self.source_eos, self.target_eos = (
            pairs,
            special_ids.require("eos", name),
            target_special_ids.require("eos", name),
        )
        longest = np.maximum(pairs.source_lengths, pairs.target_lengths) + 1
        if len(too_long := np.flatnonzero(longest > max_len)):
            raise DataError(
                f"pair {too_long[0] + 1} has {longest[too_long[0]]} tokens with its end mark, more than {max_len}: "
                "prepare shorter ones, or set a larger max_len"
            )
        start = self.target_eos if target_special_ids.bos is None else target_special_ids.bos
        first, numbers = _exclusive_cumsum(pairs.source_lengths), np.arange(len(pairs))
        borders = np.append(first, len(pairs.source))
        samples = SampleTable(
            first, pairs.source_lengths, numbers, borders, np.arange(len(borders)), pairs.source_lengths
        )
        super().__init__(samples, pairs.source_lengths + 1, pairs.target_lengths + 1, start, config.label_smoothing)

    def gather_pairs(self, ids: np.ndarray, epoch: int) -> tuple[np.ndarray, np.ndarray]:
        pairs = self.pairs
        return (
            _gather_with_eos(pairs.source, pairs.source_lengths, ids, self.source_eos),
            _gather_with_eos(pairs.target, pairs.target_lengths, ids, self.target_eos),
        )

    def draw_sample_mask(self, ids: np.ndarray, epoch: int) -> np.ndarray | None:
        ramp = min(epoch / self.config.scheduled_sampling_epochs, 1.0) if self.config.scheduled_sampling_epochs else 1.0
        if not (prob := self.config.scheduled_sampling * ramp):
            return None
        lengths = self.target_lengths[ids]
        positions = np.arange(int(lengths.sum())) - np.repeat(_exclusive_cumsum(lengths), lengths)
        bits = random_bits(
            np.repeat(derive_sample_keys(self.seed, epoch, ids), lengths), positions, RandomStream.SCHEDULED_SAMPLING
        )
        return bernoulli(bits, prob) & (positions > 0)  # the start mark is nobody's


def _load_parallel_text(corpus: Corpus) -> ParallelText:
    """The pairs of a corpus, each a document of two sentences."""
    if "pairs" not in corpus.manifest:
        raise DataError(f"{corpus.path} is no corpus of pairs: make one with `polyseme pairs`")
    lengths = np.diff(corpus.sentence_offsets).reshape(-1, 2)
    starts = corpus.sentence_offsets[:-1].reshape(-1, 2)
    sides = [(corpus.gather_tokens(starts[:, i], lengths[:, i]), lengths[:, i].astype(np.int64)) for i in (0, 1)]
    return ParallelText(*sides[0], *sides[1])


def _gather_with_eos(tokens: np.ndarray, lengths: np.ndarray, ids: np.ndarray, eos: int) -> np.ndarray:
    """The texts of these numbers end to end, each with its end mark."""
    chosen_lengths = lengths[ids]
    ends = np.cumsum(chosen_lengths + 1)
    is_text = np.ones(int(ends[-1]), dtype=bool)
    is_text[ends - 1] = False
    token_ids = np.full(len(is_text), eos, dtype=np.int64)
    offsets = np.arange(int(chosen_lengths.sum())) - np.repeat(
        np.cumsum(chosen_lengths) - chosen_lengths, chosen_lengths
    )
    token_ids[is_text] = tokens[offsets + np.repeat(_exclusive_cumsum(lengths)[ids], chosen_lengths)]
    return token_ids


def _exclusive_cumsum(lengths: np.ndarray) -> np.ndarray:
    return np.cumsum(lengths) - lengths

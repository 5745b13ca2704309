"""Translation: target tokens are predicted from the source and the target tokens before them (Vaswani et al. 2017)."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar, Self

import numpy as np

from polyseme.corpus.sampling import SampleTable
from polyseme.corpus.store import Corpus
from polyseme.errors import DataError
from polyseme.objectives.base import Objective
from polyseme.objectives.packing import BatchBuilder, Seq2SeqBatchBuilder, SpecialIds, insert_ids, local_positions
from polyseme.rng import RandomStream, bernoulli, derive_sample_keys, random_bits
from polyseme.text.cached_encoder import concat_ranges


@dataclass(frozen=True, eq=False)
class ParallelText:
    """Parallel texts in memory: the concatenated ids of each side, and the length of each text."""

    source: np.ndarray  # int64
    source_lengths: np.ndarray  # int64 [n]
    target: np.ndarray
    target_lengths: np.ndarray

    @classmethod
    def from_ids(cls, sources: Sequence[Sequence[int]], targets: Sequence[Sequence[int]]) -> Self:
        """Build from token ids, the n-th source paired with the n-th target."""
        if len(sources) != len(targets):
            raise DataError(f"{len(sources)} sources and {len(targets)} targets cannot be paired")
        sides = []
        for texts in (sources, targets):
            sides.append(np.array([token for text in texts for token in text], dtype=np.int64))
            sides.append(np.array([len(text) for text in texts], dtype=np.int64))
        return cls(*sides)

    def __len__(self) -> int:
        return len(self.source_lengths)


@dataclass(frozen=True)
class Translation(Objective):
    """Translation of pairs. Source and target end with eos; the decoder starts with bos, or eos if there is no bos.

    `label_smoothing` is the probability mass of each label that is spread over all tokens (§5.4). With
    `scheduled_sampling` (Bengio et al. 2015, §2.4), the decoder reads the model's own predictions instead of the target
    with that probability, to which it rises linearly over the first `scheduled_sampling_epochs`. The predictions come
    from one forward pass over the true target, so that a decoder still processes all positions at once (Mihaylova and
    Martins 2019, §3).
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
        """Return the builder for pairs in memory, or for a corpus whose documents are pairs."""
        pairs = corpus if isinstance(corpus, ParallelText) else _load_parallel_text(corpus)
        return _TranslationBatchBuilder(self, pairs, special_ids, max_len, seed)


class _TranslationBatchBuilder(Seq2SeqBatchBuilder):
    def __init__(self, config: Translation, pairs: ParallelText, special_ids: SpecialIds, max_len: int, seed: int):
        self.config, self.pairs, self.seed = config, pairs, seed
        name, target_special_ids = type(config).__name__, special_ids.target or special_ids
        self.source_eos, self.target_eos = special_ids.require("eos", name), target_special_ids.require("eos", name)
        longest = np.maximum(pairs.source_lengths, pairs.target_lengths) + 1
        if len(too_long := np.flatnonzero(longest > max_len)):
            raise DataError(
                f"pair {too_long[0] + 1} has {longest[too_long[0]]} tokens with eos, more than {max_len}: "
                "prepare shorter pairs, or set a larger max_len"
            )
        start = self.target_eos if target_special_ids.bos is None else target_special_ids.bos
        lengths, numbers = pairs.source_lengths, np.arange(len(pairs) + 1)
        borders = np.append(0, np.cumsum(lengths))
        samples = SampleTable(borders[:-1], lengths, numbers[:-1], borders, numbers, lengths)
        super().__init__(samples, pairs.source_lengths + 1, pairs.target_lengths + 1, start, config.label_smoothing)

    def gather_pairs(self, ids: np.ndarray, epoch: int) -> tuple[np.ndarray, np.ndarray]:
        pairs = self.pairs
        return (
            gather_with_eos(pairs.source, pairs.source_lengths, ids, self.source_eos),
            gather_with_eos(pairs.target, pairs.target_lengths, ids, self.target_eos),
        )

    def draw_sample_mask(self, ids: np.ndarray, epoch: int) -> np.ndarray | None:
        ramp = min(epoch / self.config.scheduled_sampling_epochs, 1.0) if self.config.scheduled_sampling_epochs else 1.0
        if not (prob := self.config.scheduled_sampling * ramp):
            return None
        lengths = self.target_lengths[ids]
        keys, positions = np.repeat(derive_sample_keys(self.seed, epoch, ids), lengths), local_positions(lengths)
        bits = random_bits(keys, positions, RandomStream.SCHEDULED_SAMPLING)
        return bernoulli(bits, prob) & (positions > 0)  # the start token is not predicted


def _load_parallel_text(corpus: Corpus) -> ParallelText:
    """Load the pairs of a corpus, each a document of two sentences."""
    if "pairs" not in corpus.manifest:
        raise DataError(f"{corpus.path} is not a corpus of pairs: prepare one with `polyseme pairs`")
    starts, lengths = (a.reshape(-1, 2) for a in (corpus.sentence_offsets[:-1], np.diff(corpus.sentence_offsets)))
    sides = [(corpus.gather_tokens(starts[:, i], lengths[:, i]), lengths[:, i].astype(np.int64)) for i in (0, 1)]
    return ParallelText(*sides[0], *sides[1])


def gather_with_eos(tokens: np.ndarray, lengths: np.ndarray, ids: np.ndarray, eos: int) -> np.ndarray:
    """Return the concatenated texts of these numbers, each followed by eos."""
    starts, sizes = (np.cumsum(lengths) - lengths)[ids], lengths[ids]
    return insert_ids(tokens[concat_ranges(starts, sizes)], (np.cumsum(sizes + 1) - 1, eos))[0]

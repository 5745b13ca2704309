"""word2vec: skip-gram and CBOW (Mikolov et al. 2013a, §3; 2013b, §2).

Frequent words are dropped at random before windows are applied, so that windows reach further; the size of the window
is drawn for each word. Every draw is a hash of the sample and the position in it.
"""

import math
from dataclasses import dataclass
from typing import ClassVar, Literal

import numpy as np
import torch

from polyseme.corpus.sampling import build_samples, count_tokens
from polyseme.corpus.store import Corpus
from polyseme.errors import ConfigError, DataError
from polyseme.nn.heads.word_vectors import WindowBatch
from polyseme.objectives.base import Objective
from polyseme.objectives.batch import SparseUpdateBatch
from polyseme.objectives.packing import BatchBuilder, SpecialIds, StaticShape, local_positions
from polyseme.rng import RandomStream, derive_sample_keys, integers, random_bits, uniform


@dataclass(frozen=True)
class Word2Vec(Objective):
    """Prediction of the contexts of a word ("skipgram") or of a word from the mean of its contexts ("cbow").

    The `loss` is negative sampling, against `num_negatives` words drawn in proportion to count^`ns_exponent`, or
    hierarchical softmax. For a block of `block_size` words, `negatives_per_block` negatives are drawn once, and each of
    them counts num_negatives / negatives_per_block times. Words more frequent than `subsample_threshold` t are left out
    at random: a word of frequency f stays with probability √(t/f) + t/f, as in the published program (the paper has the
    first term only); with 0 all words stay.
    """

    is_sparse: ClassVar[bool] = True
    has_static_shapes: ClassVar[bool] = True
    architecture: Literal["skipgram", "cbow"] = "skipgram"
    loss: Literal["negative_sampling", "hierarchical_softmax"] = "negative_sampling"
    window: int = 5
    dynamic_window: bool = True
    subsample_threshold: float = 1e-3
    num_negatives: int = 5
    ns_exponent: float = 0.75
    block_size: int = 16
    negatives_per_block: int = 16

    def __post_init__(self) -> None:
        self.check_range(1, math.inf, "window", "block_size", "negatives_per_block", "num_negatives")
        self.check_range(0, math.inf, "subsample_threshold", "ns_exponent")
        if self.window > self.block_size:
            raise ConfigError(f"window is {self.window}, wider than a block of {self.block_size} words")

    @property
    def terms(self) -> tuple[str, ...]:
        return (self.loss,)

    def bind(self, corpus: Corpus, special_ids: SpecialIds, max_len: int, seed: int = 0) -> BatchBuilder:
        return _Word2VecBatchBuilder(self, corpus, special_ids, max_len, seed)


class _Word2VecBatchBuilder(BatchBuilder):
    def __init__(self, config: Word2Vec, corpus: Corpus, special_ids: SpecialIds, max_len: int, seed: int):
        super().__init__(build_samples(corpus, max_len), max_len)
        self.config, self.corpus, self.seed = config, corpus, seed
        self.token_counts = count_tokens(corpus, special_ids.vocab_size)
        known_counts = np.where(special_ids.non_special_mask, self.token_counts, 0).astype(np.float64)
        if not known_counts.any():
            raise DataError("the corpus has no known word: all of its tokens are special ones")
        frequency = np.maximum(known_counts / known_counts.sum(), 1e-300)
        with np.errstate(over="ignore"):
            ratio = (config.subsample_threshold or math.inf) / frequency
            keep_prob = np.minimum(np.sqrt(ratio) + ratio, 1.0)
        self.keep_prob = np.where(known_counts > 0, keep_prob, 0.0)
        noise_weights = np.where(known_counts > 0, known_counts**config.ns_exponent, 0.0)
        self.noise_cdf = np.cumsum(noise_weights) / noise_weights.sum()
        self.noise_cdf[np.flatnonzero(noise_weights)[-1] :] = 1.0

    def batch(self, ids: np.ndarray, epoch: int, shape: StaticShape | None = None) -> SparseUpdateBatch:
        """Return the batch; unknown words are removed, so that the words around them are neighbors, as in word2vec."""
        config, sizes = self.config, self.samples.lengths[ids]
        tokens = self.corpus.gather_tokens(self.samples.starts[ids], sizes)
        owner, positions = np.repeat(np.arange(len(ids)), sizes), local_positions(sizes)
        token_keys = derive_sample_keys(self.seed, epoch, ids)[owner]
        draws = uniform(random_bits(token_keys, positions, RandomStream.SUBSAMPLING))
        chosen = np.flatnonzero(draws < self.keep_prob[tokens])
        words, owner, positions, token_keys = tokens[chosen], owner[chosen], positions[chosen], token_keys[chosen]
        lengths = np.bincount(owner, minlength=len(ids))
        num_before = local_positions(lengths)
        num_after = lengths[owner] - 1 - num_before
        window: int | np.ndarray = config.window
        if config.dynamic_window:
            window = 1 + integers(random_bits(token_keys, positions, RandomStream.WINDOW_SIZE), config.window)
        left, right = (np.minimum(available, window).astype(np.int16) for available in (num_before, num_after))
        distances = np.arange(-config.window, config.window + 1, dtype=np.int16)
        context_mask = (distances >= -left[:, None]) & (distances <= right[:, None]) & (distances != 0)
        context_sizes = left + right
        is_cbow = config.architecture == "cbow"
        num_filler = -len(words) % config.block_size if len(words) else config.block_size
        window_batch = WindowBatch(
            torch.from_numpy(np.pad(words, (config.window, config.window + num_filler))),
            torch.from_numpy(np.pad(context_mask, ((0, num_filler), (0, 0)))),
            torch.from_numpy(self._draw_negatives(token_keys[:: config.block_size], positions[:: config.block_size])),
            config.block_size,
            config.window,
            config.num_negatives / config.negatives_per_block,
            is_cbow,
        )
        count = int((context_sizes > 0).sum() if is_cbow else context_sizes.sum())
        return SparseUpdateBatch(config.loss, window_batch, count, len(tokens))

    def _draw_negatives(self, block_keys: np.ndarray, positions: np.ndarray) -> np.ndarray:
        """Draw the negatives of each block, [blocks, drawn]; hierarchical softmax does not use them."""
        if not len(positions):  # one block of filler
            return np.zeros((1, self.config.negatives_per_block), np.int64)
        num_drawn = 1 if self.config.loss == "hierarchical_softmax" else self.config.negatives_per_block
        draw_positions = positions[:, None] * num_drawn + np.arange(num_drawn)
        bits = random_bits(np.repeat(block_keys, num_drawn), draw_positions.ravel(), RandomStream.NEGATIVE_SAMPLES)
        return np.searchsorted(self.noise_cdf, uniform(bits), side="right").reshape(-1, num_drawn)

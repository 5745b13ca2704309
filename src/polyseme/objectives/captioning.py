"""Captioning: the words about an image are predicted from its regions and the words before them (Xu et al. 2015)."""

from dataclasses import dataclass, replace
from typing import ClassVar

import numpy as np
import torch

from polyseme.corpus.captions import open_regions
from polyseme.corpus.sampling import SampleTable
from polyseme.corpus.store import Corpus
from polyseme.errors import ConfigError, DataError
from polyseme.nn.model import ModelConfig
from polyseme.nn.trunks.image_text import ImageTextConfig
from polyseme.nn.trunks.recurrent import RecurrentDecoderConfig
from polyseme.objectives.base import Objective
from polyseme.objectives.batch import Batch, Targets, WordDropoutExtra
from polyseme.objectives.packing import BatchBuilder, Seq2SeqBatchBuilder, SpecialIds, StaticShape, local_positions
from polyseme.objectives.translation import gather_with_eos
from polyseme.rng import RandomStream, bernoulli, derive_sample_keys, random_bits


@dataclass(frozen=True)
class Captioning(Objective):
    """Captions of images. A caption ends with eos; the decoder starts with bos, or eos if there is no bos.

    `attention_coverage` is the weight λ of λ Σ_i (1 − Σ_t α_ti)², by which the attention α to each region i sums to one
    over all words t (doubly stochastic attention, §4.2.1), for a recurrent decoder. With `word_dropout`, the decoder
    reads the mask token, or eos, instead of a previous word with that probability (Bowman et al. 2016, §3.1), so that
    it has to look at the image rather than guess from the words before.
    """

    terms: ClassVar[tuple[str, ...]] = ("next",)
    needs_source: ClassVar[bool] = True
    label_smoothing: float = 0.0
    attention_coverage: float = 0.0
    word_dropout: float = 0.0

    def __post_init__(self) -> None:
        self.check_range(0, 1, "label_smoothing")
        self.check_range(0, 1e6, "attention_coverage")
        if not 0 <= self.word_dropout <= 1:
            raise ConfigError(f"word_dropout is {self.word_dropout}, expected a value from 0 to 1")

    def check(self, model: ModelConfig, max_len: int) -> None:
        super().check(model, max_len)
        trunk = model.trunk
        if not isinstance(trunk, ImageTextConfig):
            raise ConfigError(f"Captioning needs a model that reads images, and {model.family} reads text")
        if self.attention_coverage and not isinstance(trunk.decoder, RecurrentDecoderConfig):
            weight, decoder = self.attention_coverage, f"a recurrent decoder, and {model.family} has none"
            raise ConfigError(f"attention_coverage is {weight:g}, which is for {decoder}: set it to 0")

    def bind(self, corpus: Corpus, special_ids: SpecialIds, max_len: int, seed: int = 0) -> BatchBuilder:
        return _CaptioningBatchBuilder(self, corpus, special_ids, max_len, seed)


class _CaptioningBatchBuilder(Seq2SeqBatchBuilder):
    def __init__(self, config: Captioning, corpus: Corpus, special_ids: SpecialIds, max_len: int, seed: int):
        self.config, self.seed = config, seed
        self.format, self.regions, self.image_ids = open_regions(corpus)
        self.eos = special_ids.require("eos", "Captioning")
        self.dropped_id = self.eos if special_ids.mask is None else special_ids.mask
        starts, lengths = corpus.sentence_offsets[:-1], np.diff(corpus.sentence_offsets)
        if len(too_long := np.flatnonzero(lengths + 1 > max_len)):
            size = lengths[too_long[0]] + 1
            raise DataError(f"caption {too_long[0] + 1} has {size} tokens with eos, more than {max_len}")
        self.captions = corpus.gather_tokens(starts, lengths)
        self.caption_lengths = lengths.astype(np.int64)
        numbers = np.arange(len(lengths) + 1)
        source_lengths = np.full(len(lengths), self.format.num_regions)
        borders = np.append(0, np.cumsum(source_lengths))
        samples = SampleTable(borders[:-1], source_lengths, numbers[:-1], borders, numbers, source_lengths)
        start = self.eos if special_ids.bos is None else special_ids.bos
        super().__init__(samples, source_lengths, self.caption_lengths + 1, start, config.label_smoothing)

    def gather_pairs(self, ids: np.ndarray, epoch: int) -> tuple[np.ndarray, np.ndarray]:
        images = self.regions[self.image_ids[ids]]
        sources = np.concatenate([self.format.to_regions(image) for image in images])
        return sources, gather_with_eos(self.captions, self.caption_lengths, ids, self.eos)

    def batch(self, ids: np.ndarray, epoch: int, shape: StaticShape | None = None) -> Batch:
        ids = ids[np.argsort(self.target_lengths[ids], kind="stable")]
        batch = super().batch(ids, epoch, shape)
        if self.config.word_dropout:
            lengths = self.target_lengths[ids]
            keys, positions = np.repeat(derive_sample_keys(self.seed, epoch, ids), lengths), local_positions(lengths)
            bits = random_bits(keys, positions, RandomStream.WORD_DROPOUT)
            is_dropped = torch.from_numpy(bernoulli(bits, self.config.word_dropout) & (positions > 0))
            batch = replace(batch, extra=WordDropoutExtra(is_dropped, self.dropped_id))
        if self.config.attention_coverage:
            rows = torch.zeros(0, dtype=torch.int64)
            coverage = Targets(rows, rows, len(ids), self.config.attention_coverage)
            batch = replace(batch, targets={**batch.targets, "attention_coverage": coverage})
        return batch

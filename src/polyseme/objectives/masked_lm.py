"""Masked language modeling (Devlin et al. 2019, §3.1; Liu et al. 2019)."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

import numpy as np

from polyseme.corpus.sampling import SampleTable, build_samples
from polyseme.objectives.base import Objective, check_probability, text_capacity
from polyseme.objectives.batch import Batch
from polyseme.objectives.masking import MaskUnit, mask_tokens
from polyseme.objectives.packing import BatchBuilder, Labels, SpecialIds, StaticShape, add_special_tokens, pack
from polyseme.rng import derive_sample_keys

if TYPE_CHECKING:
    from polyseme.corpus.store import Corpus


@dataclass(frozen=True)
class MaskingConfig(Objective):
    """Fields of all objectives that mask tokens; abstract.

    With `num_static_masks` 0 every epoch draws a new mask (Liu et al. 2019, §4.1); with n, epochs use n fixed masks in
    turn, like BERT's data with its ten copies.
    """

    mask_prob: float = 0.15
    mask_unit: MaskUnit = "token"
    random_token_prob: float = 0.1
    keep_token_prob: float = 0.1
    num_static_masks: int = 0

    def __post_init__(self) -> None:
        check_probability("mask_prob", self.mask_prob)
        check_probability("random_token_prob + keep_token_prob", self.random_token_prob + self.keep_token_prob)
        self.check_range(0, math.inf, "num_static_masks")

    def mask_epoch(self, epoch: int) -> int:
        """Return the epoch that random draws depend on."""
        return epoch % self.num_static_masks if self.num_static_masks else epoch


@dataclass(frozen=True)
class MaskedLM(MaskingConfig):
    """Masked LM on sequences of whole sentences, `[CLS] sentences [SEP]`.

    Sequences are RoBERTa's "doc-sentences" (Liu et al. 2019, §4.2), which do not cross document borders; with
    `cross_documents` its "full-sentences", which continue into the next document after an extra separator. Departures
    from BERT: each token is chosen with probability 15 % instead of exactly 15 % of each sequence, so a short sequence
    may have nothing to predict; [UNK], being special, is never masked.
    """

    terms: ClassVar[tuple[str, ...]] = ("masked",)
    cross_documents: bool = False

    def bind(self, corpus: Corpus, special_ids: SpecialIds, max_len: int, seed: int = 0) -> BatchBuilder:
        return MaskedLMBatchBuilder(self, corpus, special_ids, max_len, seed, self.cross_documents)


class MaskingBatchBuilder(BatchBuilder):
    """Builder of masked batches: special tokens, masks, and the maximum of predicted tokens."""

    def __init__(
        self,
        config: MaskingConfig,
        corpus: Corpus,
        special_ids: SpecialIds,
        samples: SampleTable,
        max_len: int,
        num_special_tokens: int | np.ndarray,
        seed: int,
    ):
        super().__init__(samples, max_len, num_special_tokens)
        self.config, self.corpus, self.seed = config, corpus, seed
        name = type(config).__name__
        self.cls, self.sep, self.mask = (special_ids.require(token, name) for token in ("cls", "sep", "mask"))
        self.non_special_mask = special_ids.non_special_mask
        self.replacement_ids = np.flatnonzero(self.non_special_mask)

    def max_predictions(self, num_tokens: int) -> int:
        expected = num_tokens * self.config.mask_prob
        tokens_per_draw = {"token": 1, "word": 4, "ngram": 8, "span": 16}[self.config.mask_unit]
        return min(math.ceil(expected + 6 * math.sqrt(expected * tokens_per_draw)), num_tokens)

    def corrupt(
        self,
        starts: np.ndarray,
        lengths: np.ndarray,
        has_cls: np.ndarray,
        sizes: np.ndarray,
        sample_keys: np.ndarray,
    ) -> tuple[np.ndarray, Labels]:
        """Return masked token ranges with special tokens, and labels; `sizes` and `sample_keys` belong to sequences."""
        needs_word_starts = self.config.mask_unit != "token"
        tokens, word_starts = add_special_tokens(
            self.corpus, starts, lengths, has_cls, self.cls, self.sep, needs_word_starts
        )
        corrupted, rows, labels = mask_tokens(
            tokens,
            np.repeat(sample_keys, sizes),
            np.arange(len(tokens)) - np.repeat(np.cumsum(sizes) - sizes, sizes),
            self.non_special_mask[tokens],
            word_starts,
            mask_id=self.mask,
            replacement_ids=self.replacement_ids,
            mask_prob=self.config.mask_prob,
            random_token_prob=self.config.random_token_prob,
            keep_token_prob=self.config.keep_token_prob,
            mask_unit=self.config.mask_unit,
        )
        return corrupted, (rows, labels)


class MaskedLMBatchBuilder(MaskingBatchBuilder):
    """Builder of masked sequences of sentences."""

    def __init__(
        self,
        config: MaskingConfig,
        corpus: Corpus,
        special_ids: SpecialIds,
        max_len: int,
        seed: int,
        cross_documents: bool = False,
    ):
        samples = build_samples(corpus, text_capacity(max_len, 2, 1), cross_documents=cross_documents)
        document_offsets = np.unique(np.asarray(corpus.sentence_offsets)[np.asarray(corpus.document_offsets)])
        self.document_starts = document_offsets[:-1]  # of those that are not empty
        # the first document that starts inside a sample, and the number of documents in it
        self.first_inner_document = np.searchsorted(self.document_starts, samples.starts, side="right")
        ends = np.searchsorted(self.document_starts, samples.starts + samples.lengths)
        self.num_documents = ends - self.first_inner_document + 1
        super().__init__(config, corpus, special_ids, samples, max_len, 1 + self.num_documents, seed)

    def lengths(self, ids: np.ndarray, epoch: int) -> np.ndarray:
        return self.samples.lengths[ids] + 1 + self.num_documents[ids]

    def document_ranges(self, ids: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Return start and length of each range inside one document, and which of them start a sample."""
        starts, lengths, num_documents = self.samples.starts[ids], self.samples.lengths[ids], self.num_documents[ids]
        if num_documents.max() == 1:
            return starts, lengths, np.ones(len(ids), dtype=bool)
        ends = np.cumsum(num_documents)
        rank = np.arange(ends[-1]) - np.repeat(ends - num_documents, num_documents)  # of a range in its sample
        document = np.repeat(self.first_inner_document[ids], num_documents) + rank - 1
        stops = np.append(self.document_starts, 0)[document + 1]
        stops[ends - 1] = starts + lengths
        starts = np.where(rank == 0, np.repeat(starts, num_documents), self.document_starts[document])
        return starts, stops - starts, rank == 0

    def batch(self, ids: np.ndarray, epoch: int, shape: StaticShape | None = None) -> Batch:
        sizes = self.lengths(ids, epoch)
        sample_keys = derive_sample_keys(self.seed, self.config.mask_epoch(epoch), ids)
        tokens, masked = self.corrupt(*self.document_ranges(ids), sizes, sample_keys)
        return pack(tokens, sizes, shape, self.build_labels(masked))

    def build_labels(self, masked: Labels) -> dict[str, Labels]:
        """Return the labels of each term, from those of masked tokens."""
        return {"masked": masked}

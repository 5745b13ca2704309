"""Packing of token ranges of a corpus into batches, of exact size or of one fixed shape."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F

from polyseme.corpus.sampling import SampleBin, SampleTable, ShuffledSampler, StreamSampler
from polyseme.errors import DataError, ModelError
from polyseme.nn.inputs import Inputs
from polyseme.nn.packing import EncoderInput, PackedLayout
from polyseme.objectives.batch import (
    IGNORE_INDEX,
    NO_EXTRA,
    AnyBatch,
    Batch,
    ScheduledSamplingExtra,
    SegmentExtra,
    SegmentState,
    Targets,
)
from polyseme.text.cached_encoder import concat_ranges
from polyseme.text.tokenizer import Tokenizer

Sampler = ShuffledSampler | StreamSampler
Labels = tuple[np.ndarray, np.ndarray]  # the rows to predict, and their true values


@dataclass(frozen=True)
class SpecialIds:
    """The ids of special tokens that objectives use."""

    vocab_size: int
    all_ids: frozenset[int]
    cls: int | None = None
    sep: int | None = None
    mask: int | None = None
    bos: int | None = None
    eos: int | None = None
    pad: int | None = None
    sentinels: tuple[int, ...] = ()  # the n-th stands for the n-th span that is removed
    target: SpecialIds | None = None  # those of the target vocabulary, if it is a separate one

    @classmethod
    def from_tokenizer(cls, tokenizer: Tokenizer, target_tokenizer: Tokenizer | None = None) -> SpecialIds:
        """Return the special ids of a tokenizer, and of the one of targets."""
        ids = tokenizer.special_token_ids
        special_ids = (ids.cls, ids.sep, ids.mask, ids.bos, ids.eos, ids.pad, tokenizer.sentinel_ids)
        target = cls.from_tokenizer(target_tokenizer) if target_tokenizer else None
        return cls(tokenizer.vocab_size, tokenizer.all_special_ids, *special_ids, target)

    @cached_property
    def non_special_mask(self) -> np.ndarray:
        """bool [vocab_size]: the ids of text, which may be masked and drawn as replacements."""
        mask = np.ones(self.vocab_size, dtype=bool)
        mask[list(self.all_ids)] = False
        return mask

    @cached_property
    def text_ids(self) -> np.ndarray:
        """The ids of text."""
        return np.flatnonzero(self.non_special_mask)

    def require(self, name: str, objective: str) -> int:
        """Return the id of a special token, or raise if the tokenizer lacks it."""
        token_id: int | None = getattr(self, name)
        if token_id is None:
            raise ModelError(f"{objective} needs a {name} token, which this tokenizer lacks")
        return token_id

    def require_bos_eos(self, objective: str) -> tuple[int, int]:
        """Return the ids before and after a document: bos and eos, eos twice, or BERT's cls and sep."""
        if self.eos is None and self.sep is not None and self.cls is not None:
            return self.cls, self.sep
        eos = self.require("eos", objective)
        return eos if self.bos is None else self.bos, eos


@dataclass(frozen=True)
class StaticShape:
    """One shape for every micro-batch, so that `torch.compile` sees one graph."""

    num_tokens: int
    num_sequences: int  # slots in the layout, including those of filler
    max_seqlen: int
    num_predictions: int  # predicted tokens
    source: StaticShape | None = None  # of the source of an encoder-decoder
    num_fillers: int = 0  # filler sequences, if their number is fixed: a target filler needs a source filler

    @property
    def max_samples(self) -> int:
        """The number of samples that a bin may hold so that slots for filler are left."""
        return self.num_sequences - (self.num_fillers or -(-self.num_tokens // self.max_seqlen))


class BatchBuilder(ABC):
    """An objective bound to a corpus and a vocabulary: packs samples into batches.

    `max_len` is the maximum length of a sample with special tokens; `num_special_tokens` is the number of special
    tokens added to each sample, one number or an array.
    """

    token_counts: np.ndarray | None = None  # occurrences of each token, for models that need them

    def __init__(self, samples: SampleTable, max_len: int, num_special_tokens: int | np.ndarray = 0):
        if not len(samples):
            raise DataError("the corpus has no text to read")
        self.samples, self.max_len, self.num_special_tokens = samples, max_len, num_special_tokens

    def __len__(self) -> int:
        return len(self.samples)

    def lengths(self, ids: np.ndarray, epoch: int) -> np.ndarray:
        """Return the lengths of samples in an epoch, with special tokens."""
        return self.samples.lengths[ids] + np.broadcast_to(self.num_special_tokens, len(self.samples))[ids]

    @abstractmethod
    def batch(self, ids: np.ndarray, epoch: int, shape: StaticShape | None = None) -> AnyBatch:
        """Return the batch of these samples in an epoch, which depends on nothing else."""

    def build_sampler(self, micro_batch_tokens: int, micro_batches_per_step: int = 1, **options: Any) -> Sampler:
        """Return a sampler of bins for `batch_of_bin`; `options` are those of `ShuffledSampler`."""
        return ShuffledSampler(self, micro_batch_tokens, micro_batches_per_step, **options)

    def batch_of_bin(self, sample_bin: SampleBin, shape: StaticShape | None, state: SegmentState) -> AnyBatch:
        """Return the batch of a bin; `state` is carried from bin to bin of a stream."""
        return self.batch(sample_bin.sample_ids, sample_bin.epoch, shape)

    def max_predictions(self, num_tokens: int) -> int:
        """Return a bound on the predicted tokens among `num_tokens`, exceeded once in many millions of batches."""
        return num_tokens

    def static_shape(self, micro_batch_tokens: int) -> StaticShape:
        """Return the fixed shape of micro-batches, with room for all samples but in one of many millions of bins."""
        max_samples = _max_samples_per_bin(self.samples.lengths + self.num_special_tokens, micro_batch_tokens)
        num_sequences = max_samples + -(-micro_batch_tokens // self.max_len)
        num_predictions = _round_up_to_8(self.max_predictions(micro_batch_tokens))
        return StaticShape(micro_batch_tokens, num_sequences, self.max_len, num_predictions)


class StreamingBatchBuilder(BatchBuilder):
    """A builder whose samples continue: each step reads the next segment of many parallel lanes of one stream."""

    def cuts(self, length: int, epoch: int) -> np.ndarray:
        """Return the segment boundaries of a lane of `length` tokens in an epoch, from 0 to `length`."""
        return np.arange(0, length + 1, self.max_len)

    @abstractmethod
    def segment_batch(self, offsets: np.ndarray, length: int) -> Batch:
        """Return the batch of segments of `length` tokens at these offsets of the stream."""

    def build_sampler(self, micro_batch_tokens: int, micro_batches_per_step: int = 1, **options: Any) -> Sampler:
        return StreamSampler(self, micro_batch_tokens, micro_batches_per_step)

    def batch_of_bin(self, sample_bin: SampleBin, shape: StaticShape | None, state: SegmentState) -> Batch:
        batch = self.segment_batch(sample_bin.sample_ids, sample_bin.segment_length)
        return replace(batch, extra=SegmentExtra(state, sample_bin.starts_epoch))


class Seq2SeqBatchBuilder(BatchBuilder):
    """A builder whose samples have a source and a target; the target is predicted.

    Targets count as `length_ratio` tokens each, so that a micro-batch is full when its sources or its targets are.
    `source_lengths` and `target_lengths` include special tokens.
    """

    def __init__(
        self,
        samples: SampleTable,
        source_lengths: np.ndarray,
        target_lengths: np.ndarray,
        decoder_start_id: int,
        label_smoothing: float = 0.0,
    ):
        self.source_lengths, self.target_lengths = source_lengths, target_lengths
        self.decoder_start_id, self.label_smoothing = decoder_start_id, label_smoothing
        # 0.95, so that most micro-batches are filled by their sources
        self.length_ratio = 0.95 * float(source_lengths.sum() / max(target_lengths.sum(), 1))
        scaled_lengths = np.ceil(self.length_ratio * target_lengths).astype(np.int64)
        self.effective_lengths = np.maximum(source_lengths, scaled_lengths)
        super().__init__(samples, int(self.effective_lengths.max(initial=0)))

    def lengths(self, ids: np.ndarray, epoch: int) -> np.ndarray:
        return self.effective_lengths[ids]

    @abstractmethod
    def gather_pairs(self, ids: np.ndarray, epoch: int) -> tuple[np.ndarray, np.ndarray]:
        """Return the concatenated sources and the concatenated targets of samples."""

    def draw_sample_mask(self, ids: np.ndarray, epoch: int) -> np.ndarray | None:
        """Return which target tokens are replaced by the model's own predictions, bool [tokens]."""
        return None

    def batch(self, ids: np.ndarray, epoch: int, shape: StaticShape | None = None) -> Batch:
        ids = ids[np.lexsort((self.target_lengths[ids], self.source_lengths[ids]))]  # equal lengths are neighbors
        target_lengths, source_lengths = self.target_lengths[ids], self.source_lengths[ids]
        source_ids, labels = self.gather_pairs(ids, epoch)
        tokens = np.empty_like(labels)
        tokens[1:] = labels[:-1]
        tokens[np.cumsum(target_lengths) - target_lengths] = self.decoder_start_id
        num_tokens, count = len(source_ids) + len(labels), len(labels)
        sample_mask = self.draw_sample_mask(ids, epoch)
        source_slots, target_slots = (0, 0), (0, 0)
        if shape is not None:
            assert shape.source is not None
            source_ids, source_lengths = _fill_to_shape(source_ids, source_lengths, shape.source)
            tokens, target_lengths = _fill_to_shape(tokens, target_lengths, shape)
            source_slots = shape.source.num_sequences, shape.source.max_seqlen
            target_slots = shape.num_sequences, shape.max_seqlen
            labels = _append_constant(labels, shape.num_predictions, IGNORE_INDEX)
            sample_mask = None if sample_mask is None else _append_constant(sample_mask, len(tokens), False)
        rows = torch.arange(len(labels))
        targets = {"next": Targets(rows, torch.from_numpy(labels), count, label_smoothing=self.label_smoothing)}
        source = EncoderInput(torch.from_numpy(source_ids), PackedLayout.from_lengths(source_lengths, *source_slots))
        layout = PackedLayout.from_lengths(target_lengths, *target_slots)
        extra = NO_EXTRA if sample_mask is None else ScheduledSamplingExtra(torch.from_numpy(sample_mask))
        return Batch(Inputs(torch.from_numpy(tokens), layout, source=source), targets, num_tokens, extra=extra)

    def static_shape(self, micro_batch_tokens: int) -> StaticShape:
        sizes = micro_batch_tokens, int(micro_batch_tokens / self.length_ratio)
        max_lengths = [max(int(lengths.max()), 2) for lengths in (self.source_lengths, self.target_lengths)]
        num_fillers = max(-(-(size + 8) // (max_len - 1)) for size, max_len in zip(sizes, max_lengths))
        num_sequences = _max_samples_per_bin(self.effective_lengths, micro_batch_tokens) + num_fillers
        totals = [_round_up_to_8(size + num_fillers) for size in sizes]
        source, target = (
            StaticShape(total, num_sequences, max_len, total, num_fillers=num_fillers)
            for total, max_len in zip(totals, max_lengths)
        )
        return replace(target, source=source)


def ragged_positions(lengths: np.ndarray) -> np.ndarray:
    """Return 0 … n - 1 for each length n, concatenated: positions in concatenated sequences."""
    return concat_ranges(np.zeros_like(lengths), lengths)


def insert_ids(text: np.ndarray, *insertions: tuple[np.ndarray, int | np.ndarray]) -> tuple[np.ndarray, np.ndarray]:
    """Insert each (positions, ids) so that they have these positions in the output; also return where text is."""
    is_text = np.ones(len(text) + sum(len(positions) for positions, _ in insertions), dtype=bool)
    tokens = np.empty(len(is_text), dtype=np.int64)
    for positions, inserted_ids in insertions:
        is_text[positions], tokens[positions] = False, inserted_ids
    tokens[is_text] = text
    return tokens, is_text


def pack(
    tokens: np.ndarray,
    lengths: np.ndarray,
    shape: StaticShape | None,
    token_labels: dict[str, Labels],
    sequence_labels: dict[str, Labels] | None = None,
    segments: np.ndarray | None = None,
) -> Batch:
    """Build a batch. With a shape, it is filled up: sequences of id 0, empty slots, ignored rows."""
    num_tokens, num_slots, max_seqlen, max_predictions = len(tokens), 0, 0, 0
    if shape is not None:
        num_slots, max_seqlen, max_predictions = shape.num_sequences, shape.max_seqlen, shape.num_predictions
        filler_lengths = _filler_lengths(shape.num_tokens - num_tokens, max_seqlen)
        if num_tokens > shape.num_tokens or len(lengths) + len(filler_lengths) > num_slots:
            raise ValueError(f"{len(lengths)} sequences of {num_tokens} tokens do not fit into {shape}")
        lengths = np.append(lengths, filler_lengths).astype(np.int64)
        tokens = _append_constant(tokens, shape.num_tokens, 0)
        segments = None if segments is None else _append_constant(segments, shape.num_tokens, 0)
    targets = {name: _build_targets(labels, max_predictions) for name, labels in token_labels.items()}
    targets |= {name: _build_targets(labels, num_slots) for name, labels in (sequence_labels or {}).items()}
    layout = PackedLayout.from_lengths(lengths, num_slots, max_seqlen)
    segment_ids = None if segments is None else torch.from_numpy(segments)
    return Batch(Inputs(torch.from_numpy(tokens), layout, segment_ids), targets, num_tokens)


def pad_to_bucket(batch: Batch, max_len: int) -> Batch:
    """Fill a batch up to one of few shapes, eight per octave, so that a CUDA graph serves many batches.

    Targets of tokens are filled up with ignored labels; those of sequences or of several columns stay as they are.
    """
    inputs, lengths = batch.inputs, batch.inputs.layout.lengths
    bucket = max(1 << inputs.layout.num_tokens.bit_length() >> 4, 64)
    max_seqlen = min(max(1 << (inputs.layout.max_seqlen - 1).bit_length(), 32), max_len)
    num_filler_tokens = -inputs.layout.num_tokens % bucket
    filled_lengths = [*lengths, *_filler_lengths(num_filler_tokens, max_seqlen)]
    layout = PackedLayout.from_lengths(filled_lengths, len(lengths) + bucket // max_seqlen + 1, max_seqlen)
    targets = {
        name: target
        if target.rows.ndim > 1 or len(target.rows) == len(lengths)
        else _pad_targets(target, -len(target.rows) % bucket)
        for name, target in batch.targets.items()
    }
    segments = None if inputs.segments is None else F.pad(inputs.segments, (0, num_filler_tokens))
    tokens = F.pad(inputs.tokens, (0, num_filler_tokens))
    return replace(batch, inputs=replace(inputs, tokens=tokens, layout=layout, segments=segments), targets=targets)


def _max_samples_per_bin(lengths: np.ndarray, micro_batch_tokens: int) -> int:
    """Return the expected number of samples in a micro-batch plus six standard deviations."""
    expected = micro_batch_tokens / lengths.mean()
    std = lengths.std() / lengths.mean() * math.sqrt(expected)
    return int(min(math.ceil(expected * 1.05 + 6 * std) + 1, micro_batch_tokens))


def _fill_to_shape(tokens: np.ndarray, lengths: np.ndarray, shape: StaticShape) -> tuple[np.ndarray, np.ndarray]:
    """Fill up source or target by the fixed number of filler sequences, none of them empty."""
    num_filler_tokens = shape.num_tokens - len(tokens)
    if num_filler_tokens < shape.num_fillers or len(lengths) > shape.max_samples:
        raise ValueError(f"{len(lengths)} sequences of {len(tokens)} tokens do not fit into {shape}")
    filler_lengths = np.diff(num_filler_tokens * np.arange(shape.num_fillers + 1) // shape.num_fillers)
    return _append_constant(tokens, shape.num_tokens, 0), np.append(lengths, filler_lengths)


def _filler_lengths(num_tokens: int, max_seqlen: int) -> list[int]:
    """Divide filler tokens into sequences of at most `max_seqlen`."""
    num_full, remainder = divmod(num_tokens, max_seqlen)
    return [max_seqlen] * num_full + [remainder] * (remainder > 0)


def _append_constant(values: np.ndarray, size: int, value: int) -> np.ndarray:
    return np.append(values, np.full(size - len(values), value, dtype=values.dtype))


def _pad_targets(targets: Targets, num_added: int) -> Targets:
    fill_value = float("nan") if targets.labels.is_floating_point() else IGNORE_INDEX
    labels = F.pad(targets.labels, (0, 0) * (targets.labels.ndim - 1) + (0, num_added), value=fill_value)
    return replace(targets, rows=F.pad(targets.rows, (0, num_added)), labels=labels)


def _build_targets(labels: Labels, max_rows: int) -> Targets:
    """Fill up with row 0 and `IGNORE_INDEX` to `max_rows`, if set; rows beyond it are dropped and not counted."""
    rows, label_values = (values[: max_rows or None] for values in labels)
    count = len(rows)
    if max_rows > count:
        rows = np.append(rows, np.zeros((max_rows - count, *rows.shape[1:]), dtype=np.int64), axis=0)
        label_values = _append_constant(label_values, max_rows, IGNORE_INDEX)
    return Targets(torch.from_numpy(rows), torch.from_numpy(label_values), count)


def _round_up_to_8(number: float) -> int:
    return 8 * math.ceil(number / 8)

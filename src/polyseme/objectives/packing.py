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
from torch import Tensor

from polyseme.corpus.sampling import SampleBin, SampleTable, ShuffledSampler, StreamSampler
from polyseme.errors import DataError, ModelError
from polyseme.nn.packing import EncoderInput, Inputs, PackedLayout
from polyseme.objectives.batch import (
    IGNORE_INDEX,
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
        num_predictions = round_up_to_8(self.max_predictions(micro_batch_tokens))
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
        source = EncoderInput(*_fill_to_shape(source_ids, source_lengths, shape and shape.source))
        inputs = Inputs(*_fill_to_shape(tokens, target_lengths, shape), source=source)
        label_ids = _append_constant(labels, shape.num_predictions if shape else count, IGNORE_INDEX)
        rows = torch.arange(len(label_ids))
        targets = {"next": Targets(rows, label_ids, count, label_smoothing=self.label_smoothing)}
        if (sample_mask := self.draw_sample_mask(ids, epoch)) is None:
            return Batch(inputs, targets, num_tokens)
        extra = ScheduledSamplingExtra(_append_constant(sample_mask, len(inputs.tokens), False))
        return Batch(inputs, targets, num_tokens, extra=extra)

    def static_shape(self, micro_batch_tokens: int) -> StaticShape:
        sizes = micro_batch_tokens, int(micro_batch_tokens / self.length_ratio)
        max_lengths = [max(int(lengths.max()), 2) for lengths in (self.source_lengths, self.target_lengths)]
        num_fillers = max(-(-(size + 8) // (max_len - 1)) for size, max_len in zip(sizes, max_lengths))
        num_sequences = _max_samples_per_bin(self.effective_lengths, micro_batch_tokens) + num_fillers
        totals = [round_up_to_8(size + num_fillers) for size in sizes]
        source, target = (
            StaticShape(total, num_sequences, max_len, total, num_fillers=num_fillers)
            for total, max_len in zip(totals, max_lengths)
        )
        return replace(target, source=source)


def local_positions(lengths: np.ndarray) -> np.ndarray:
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
    num_slots, max_predictions = (shape.num_sequences, shape.num_predictions) if shape else (0, 0)
    token_ids, layout = _fill_to_shape(tokens, lengths, shape)
    segment_ids = None if segments is None else _append_constant(segments, len(token_ids), 0)
    targets = {name: _build_targets(labels, max_predictions) for name, labels in token_labels.items()}
    targets |= {name: _build_targets(labels, num_slots) for name, labels in (sequence_labels or {}).items()}
    return Batch(Inputs(token_ids, layout, segment_ids), targets, len(tokens))


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


def _fill_to_shape(tokens: np.ndarray, lengths: np.ndarray, shape: StaticShape | None) -> tuple[Tensor, PackedLayout]:
    """Return tokens and their layout, with a shape filled up by sequences of id 0 and empty slots."""
    if shape is None:
        return torch.from_numpy(tokens), PackedLayout.from_lengths(lengths)
    num_filler_tokens = shape.num_tokens - len(tokens)
    fillers = _filler_lengths(num_filler_tokens, shape.max_seqlen, shape.num_fillers)
    if num_filler_tokens < shape.num_fillers or len(lengths) + len(fillers) > shape.num_sequences:
        raise ValueError(f"{len(lengths)} sequences of {len(tokens)} tokens do not fit into {shape}")
    filled_lengths = np.append(lengths, fillers).astype(np.int64)
    layout = PackedLayout.from_lengths(filled_lengths, shape.num_sequences, shape.max_seqlen)
    return _append_constant(tokens, shape.num_tokens, 0), layout


def _filler_lengths(num_tokens: int, max_seqlen: int, num_fillers: int = 0) -> list[int]:
    """Divide filler tokens into sequences: `num_fillers` that are not empty, or the fewest."""
    if num_fillers:
        return divide_evenly(num_tokens, num_fillers).tolist()
    num_full, remainder = divmod(num_tokens, max_seqlen)
    return [max_seqlen] * num_full + [remainder] * (remainder > 0)


def divide_evenly(number: int, num_parts: int) -> np.ndarray:
    """Divide a number into integers that differ by at most 1."""
    return np.diff(number * np.arange(num_parts + 1) // num_parts)


def _append_constant(values: np.ndarray, size: int, value: int) -> Tensor:
    tensor = torch.from_numpy(values)
    return tensor if size == len(values) else F.pad(tensor, (0, size - len(values)), value=value)


def _pad_targets(targets: Targets, num_added: int) -> Targets:
    if not num_added:
        return targets
    fill_value = float("nan") if targets.labels.is_floating_point() else IGNORE_INDEX
    rows, labels = (
        F.pad(t, (0, 0) * (t.ndim - 1) + (0, num_added), value=value)
        for t, value in ((targets.rows, 0), (targets.labels, fill_value))
    )
    groups = None if targets.groups is None else F.pad(targets.groups, (0, num_added), value=-1)
    return replace(targets, rows=rows, labels=labels, groups=groups)


def _build_targets(labels: Labels, max_rows: int) -> Targets:
    """Fill up with row 0 and `IGNORE_INDEX` to `max_rows`, if set; rows beyond it are dropped and not counted."""
    rows, values = (torch.from_numpy(array[: max_rows or None]) for array in labels)
    return _pad_targets(Targets(rows, values, len(rows)), max(max_rows - len(rows), 0))


def round_up_to_8(number: float) -> int:
    """Return the next multiple of 8, which matrix products prefer."""
    return 8 * math.ceil(number / 8)

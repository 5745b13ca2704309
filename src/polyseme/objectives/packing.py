"""Packing of token ranges of a corpus into batches, of exact size or of one fixed shape."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np
import torch
import torch.nn.functional as F

from polyseme.corpus.sampling import SampleTable
from polyseme.errors import DataError, ModelError
from polyseme.nn.inputs import Inputs
from polyseme.nn.packing import EncoderInput, PackedLayout
from polyseme.objectives.batch import IGNORE_INDEX, Batch, ScheduledSamplingExtra, SparseUpdateBatch, Targets

if TYPE_CHECKING:
    from polyseme.corpus.store import Corpus

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
    sentinels: tuple[int, ...] = ()  # the first, second, … stands for the first, second, … span taken out
    target: SpecialIds | None = None  # of the target side, where that has its own

    @cached_property
    def non_special_mask(self) -> np.ndarray:
        """bool [size]: the ids that text is made of, which may be masked and drawn as replacements."""
        mask = np.ones(self.vocab_size, dtype=bool)
        mask[list(self.all_ids)] = False
        return mask

    def require(self, name: str, objective: str) -> int:
        token = getattr(self, name)
        if token is None:
            raise ModelError(f"{objective} needs a {name} token, which this tokenizer lacks")
        return int(token)

    def require_bos_eos(self, objective: str) -> tuple[int, int]:
        """What stands before a document and behind it: bos and eos, one of them for both, or BERT's cls and sep."""
        if self.eos is None and self.sep is not None and self.cls is not None:
            return self.cls, self.sep
        eos = self.require("eos", objective)
        return eos if self.bos is None else self.bos, eos


@dataclass(frozen=True)
class StaticShape:
    """One shape for every micro-batch, so that `torch.compile` sees one graph."""

    num_tokens: int
    num_sequences: int  # slots in the layout, filler counted
    max_seqlen: int
    num_predictions: int  # predicted tokens
    source: StaticShape | None = None  # of the source, where there is one
    num_fillers: int = 0  # sequences of filler, where their number is fixed: one of a target needs one of a source

    @property
    def max_samples(self) -> int:
        """How many samples a bin may hold such that its filler finds a slot too."""
        return self.num_sequences - (self.num_fillers or -(-self.num_tokens // self.max_seqlen))


class BatchBuilder(ABC):
    """An objective tied to a corpus and a vocabulary: numbered samples in, packed batches out.

    `max_len` is the most tokens a sample can come out with; `num_special_tokens` the special tokens a sample is given,
    the same for all or one number each.
    """

    token_counts: np.ndarray | None = None  # how often each token occurs, where the model has to be told

    def __init__(self, samples: SampleTable, max_len: int, num_special_tokens: int | np.ndarray):
        if not len(samples):
            raise DataError("the corpus has no text to read")
        self.samples, self.max_len, self.num_special_tokens = samples, max_len, num_special_tokens

    def __len__(self) -> int:
        return len(self.samples)

    @abstractmethod
    def lengths(self, ids: np.ndarray, epoch: int) -> np.ndarray:
        """How long samples come out in an epoch, special tokens counted."""

    @abstractmethod
    def batch(self, ids: np.ndarray, epoch: int, shape: StaticShape | None = None) -> Batch | SparseUpdateBatch:
        """Return the batch of these samples in an epoch, which depends on nothing else."""

    @abstractmethod
    def max_predictions(self, num_tokens: int) -> int:
        """A cap on predicted tokens among `num_tokens` that is passed once in many millions of batches."""

    def static_shape(self, micro_batch_tokens: int) -> StaticShape:
        """The fixed shape for bins of this size: room for the usual number of samples and six deviations."""
        max_samples = max_samples_per_bin(self.samples.lengths + self.num_special_tokens, micro_batch_tokens)
        num_fillers = -(-micro_batch_tokens // self.max_len)
        return StaticShape(
            micro_batch_tokens,
            max_samples + num_fillers,
            self.max_len,
            _round_up_to_8(self.max_predictions(micro_batch_tokens)),
        )


class StreamingBatchBuilder(BatchBuilder):
    """An objective whose samples go on: each step reads the next stretch of many lanes of one stream."""

    def cuts(self, length: int, epoch: int) -> np.ndarray:
        """Where a lane of so many tokens is cut into the stretches of an epoch's steps, its two ends among them."""
        return np.arange(0, length + 1, self.max_len)

    @abstractmethod
    def segment_batch(self, offsets: np.ndarray, length: int) -> Batch:
        """The batch of these places of the stream, so many tokens from each: a function of nothing else."""


class Seq2SeqBatchBuilder(BatchBuilder):
    """An objective whose samples have two sides, a source and a target; what is predicted is the target.

    A bin is full when its sources have `bin_tokens` tokens, or its targets `bin_tokens / ratio`.
    """

    def __init__(
        self,
        samples: SampleTable,
        source_lengths: np.ndarray,
        target_lengths: np.ndarray,
        decoder_start_id: int,
        label_smoothing: float = 0.0,
    ):
        """`source_lengths` and `target_lengths` are the lengths of the two sides of each sample, marks counted."""
        self.source_lengths, self.target_lengths, self.decoder_start_id, self.label_smoothing = (
            source_lengths,
            target_lengths,
            decoder_start_id,
            label_smoothing,
        )
        self.length_ratio = 0.95 * float(
            source_lengths.sum() / max(target_lengths.sum(), 1)
        )  # so that the sources fill most bins
        self.effective_lengths = np.maximum(
            source_lengths, np.ceil(self.length_ratio * target_lengths).astype(np.int64)
        )
        super().__init__(samples, int(self.effective_lengths.max(initial=0)), 0)

    def lengths(self, ids: np.ndarray, epoch: int) -> np.ndarray:
        return self.effective_lengths[ids]

    def max_predictions(self, num_tokens: int) -> int:
        return num_tokens

    @abstractmethod
    def gather_pairs(self, ids: np.ndarray, epoch: int) -> tuple[np.ndarray, np.ndarray]:
        """Sources and targets of samples, each end to end."""

    def draw_sample_mask(self, ids: np.ndarray, epoch: int) -> np.ndarray | None:
        """Which tokens of the targets are read as the model would write them, bool, end to end."""
        return None

    def batch(self, ids: np.ndarray, epoch: int, shape: StaticShape | None = None) -> Batch:
        ids = ids[np.lexsort((self.target_lengths[ids], self.source_lengths[ids]))]  # both sides alike are neighbours
        target_lengths, source_lengths = self.target_lengths[ids], self.source_lengths[ids]
        source_ids, labels = self.gather_pairs(ids, epoch)
        tokens = np.empty_like(labels)
        tokens[1:] = labels[:-1]
        tokens[np.cumsum(target_lengths) - target_lengths] = self.decoder_start_id
        num_tokens, count = len(source_ids) + len(labels), len(labels)
        sample_mask = self.draw_sample_mask(ids, epoch)
        source_layout, num_slots, max_seqlen = PackedLayout.from_lengths(source_lengths), 0, 0
        if shape is not None:
            assert shape.source is not None
            source_ids, source_lengths = _fill_to_shape(source_ids, source_lengths, shape.source)
            tokens, target_lengths = _fill_to_shape(tokens, target_lengths, shape)
            source_layout = PackedLayout.from_lengths(
                source_lengths, shape.source.num_sequences, shape.source.max_seqlen
            )
            labels = np.append(labels, np.full(shape.num_predictions - count, IGNORE_INDEX))
            num_slots, max_seqlen = shape.num_sequences, shape.max_seqlen
            sample_mask = (
                None if sample_mask is None else np.append(sample_mask, np.zeros(len(tokens) - count, dtype=bool))
            )
        rows = torch.arange(len(labels))
        targets = {"next": Targets(rows, torch.from_numpy(labels), count, label_smoothing=self.label_smoothing)}
        encoder_input = EncoderInput(torch.from_numpy(source_ids), source_layout)
        layout = PackedLayout.from_lengths(target_lengths, num_slots, max_seqlen)
        extra = None if sample_mask is None else ScheduledSamplingExtra(torch.from_numpy(sample_mask))
        return Batch(Inputs(torch.from_numpy(tokens), layout, source=encoder_input), targets, num_tokens, extra=extra)

    def static_shape(self, micro_batch_tokens: int) -> StaticShape:
        max_samples, target_tokens = (
            max_samples_per_bin(self.effective_lengths, micro_batch_tokens),
            int(micro_batch_tokens / self.length_ratio),
        )
        max_lengths = [max(int(lengths.max()), 2) for lengths in (self.source_lengths, self.target_lengths)]
        num_fillers = max(
            -(-(size + 8) // (max_seqlen - 1))
            for size, max_seqlen in zip((micro_batch_tokens, target_tokens), max_lengths)
        )
        shapes = []
        for size, max_seqlen in zip((micro_batch_tokens, target_tokens), max_lengths):
            num_tokens = _round_up_to_8(size + num_fillers)
            shapes.append(
                StaticShape(num_tokens, max_samples + num_fillers, max_seqlen, num_tokens, num_fillers=num_fillers)
            )
        return replace(shapes[1], source=shapes[0])


def max_samples_per_bin(lengths: np.ndarray, micro_batch_tokens: int) -> int:
    """How many samples of these sizes a bin may be given: the usual number and six deviations."""
    expected = micro_batch_tokens / lengths.mean()
    std = lengths.std() / lengths.mean() * math.sqrt(expected)
    return int(min(math.ceil(expected * 1.05 + 6 * std) + 1, micro_batch_tokens))


def _fill_to_shape(tokens: np.ndarray, lengths: np.ndarray, shape: StaticShape) -> tuple[np.ndarray, np.ndarray]:
    """One side filled up to its shape, by its number of fillers, none of them empty."""
    num_filler_tokens = shape.num_tokens - len(tokens)
    if num_filler_tokens < shape.num_fillers or len(lengths) > shape.max_samples:
        raise ValueError(f"{len(lengths)} sequences of {len(tokens)} tokens do not fit into {shape}")
    filler_lengths = np.diff(num_filler_tokens * np.arange(shape.num_fillers + 1) // shape.num_fillers)
    return np.append(tokens, np.zeros(num_filler_tokens, dtype=np.int64)), np.append(lengths, filler_lengths)


def add_special_tokens(
    corpus: Corpus,
    starts: np.ndarray,
    lengths: np.ndarray,
    has_cls: np.ndarray,
    cls: int,
    sep: int,
    needs_word_starts: bool,
) -> tuple[np.ndarray, np.ndarray | None]:
    """Token ranges end to end, with `sep` after each and `cls` before those that lead; and where words start.

    The first token of a range starts a word even if the range was cut inside one, and so does a special
    token.
    """
    sizes = lengths + has_cls + 1
    ends = np.cumsum(sizes)
    is_text = np.ones(int(ends[-1]), dtype=bool)
    cls_positions = (ends - sizes)[has_cls]
    is_text[cls_positions] = is_text[ends - 1] = False
    tokens = np.empty(len(is_text), dtype=np.int64)
    tokens[is_text] = corpus.gather_tokens(starts, lengths)
    tokens[cls_positions], tokens[ends - 1] = cls, sep
    if not needs_word_starts:
        return tokens, None
    word_starts = ~is_text
    word_starts[is_text] = corpus.gather_word_starts(starts, lengths)
    word_starts[ends - sizes + has_cls] = True
    return tokens, word_starts


def pack(
    tokens: np.ndarray,
    lengths: np.ndarray,
    shape: StaticShape | None,
    token_labels: dict[str, Labels],
    sequence_labels: dict[str, Labels] | None = None,
    segments: np.ndarray | None = None,
) -> Batch:
    """The torch batch. With a shape, the rest is filler: sequences of id 0, empty slots, ignored rows."""
    num_tokens, num_slots, max_seqlen, max_predictions = len(tokens), 0, 0, 0
    if shape is not None:
        num_filler_tokens = shape.num_tokens - num_tokens
        num_full, remainder = divmod(num_filler_tokens, shape.max_seqlen)
        filler_lengths = [shape.max_seqlen] * num_full + [remainder] * (remainder > 0)
        if num_filler_tokens < 0 or len(lengths) + len(filler_lengths) > shape.num_sequences:
            raise ValueError(f"{len(lengths)} sequences of {num_tokens} tokens do not fit into {shape}")
        lengths = np.append(lengths, filler_lengths).astype(np.int64)
        tokens = np.append(tokens, np.zeros(num_filler_tokens, dtype=np.int64))
        segments = None if segments is None else np.append(segments, np.zeros(num_filler_tokens, dtype=np.int64))
        num_slots, max_seqlen, max_predictions = shape.num_sequences, shape.max_seqlen, shape.num_predictions
    targets = {name: _build_targets(labels, max_predictions) for name, labels in token_labels.items()}
    targets |= {name: _build_targets(labels, num_slots) for name, labels in (sequence_labels or {}).items()}
    layout = PackedLayout.from_lengths(lengths, num_slots, max_seqlen)
    segment_ids = None if segments is None else torch.from_numpy(segments)
    return Batch(Inputs(torch.from_numpy(tokens), layout, segment_ids), targets, num_tokens)


def pad_to_bucket(batch: Batch, max_len: int) -> Batch:
    """Fill a batch up to one of few shapes, eight per octave, so that a CUDA graph serves many batches.

    Targets of tokens are filled up with ignored labels; those of sequences or of several columns stay as they are.
    """
    inputs, lengths = batch.inputs, list(batch.inputs.layout.lengths)
    bucket = max(1 << inputs.layout.num_tokens.bit_length() >> 4, 64)
    max_seqlen = min(max(1 << (inputs.layout.max_seqlen - 1).bit_length(), 32), max_len)
    num_filler_tokens = -inputs.layout.num_tokens % bucket
    num_full, remainder = divmod(num_filler_tokens, max_seqlen)
    layout = PackedLayout.from_lengths(
        [*lengths, *[max_seqlen] * num_full, *[remainder] * (remainder > 0)],
        len(lengths) + bucket // max_seqlen + 1,
        max_seqlen,
    )
    targets = {
        name: target
        if target.rows.ndim > 1 or len(target.rows) == len(lengths)
        else _pad_targets(target, -len(target.rows) % bucket)
        for name, target in batch.targets.items()
    }
    segments = None if inputs.segments is None else F.pad(inputs.segments, (0, num_filler_tokens))
    tokens = F.pad(inputs.tokens, (0, num_filler_tokens))
    return replace(batch, inputs=replace(inputs, tokens=tokens, layout=layout, segments=segments), targets=targets)


def _pad_targets(targets: Targets, num_added: int) -> Targets:
    fill_value = float("nan") if targets.labels.is_floating_point() else IGNORE_INDEX
    labels = F.pad(targets.labels, (0, 0) * (targets.labels.ndim - 1) + (0, num_added), value=fill_value)
    return replace(targets, rows=F.pad(targets.rows, (0, num_added)), labels=labels)


def _build_targets(labels: Labels, max_rows: int) -> Targets:
    """Filled up with row 0 and `IGNORE_INDEX` to the cap; what is above it is dropped, and `count` says so."""
    rows, label_values = labels
    if max_rows:
        rows, label_values = rows[:max_rows], label_values[:max_rows]
    count = len(rows)
    if max_rows > count:
        rows = np.append(rows, np.zeros((max_rows - count, *rows.shape[1:]), dtype=np.int64), axis=0)
        label_values = np.append(label_values, np.full(max_rows - count, IGNORE_INDEX))
    return Targets(torch.from_numpy(rows), torch.from_numpy(label_values), count)


def _round_up_to_8(number: float) -> int:
    return 8 * math.ceil(number / 8)

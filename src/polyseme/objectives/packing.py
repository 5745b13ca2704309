"""From token ranges of a corpus to a packed batch, of exact size or of one fixed shape."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np
import torch
import torch.nn.functional as F

from polyseme.corpus.sampling import Samples
from polyseme.errors import UserError
from polyseme.nn.packing import Layout, Source
from polyseme.objectives.batch import IGNORED, Batch, Targets

if TYPE_CHECKING:
    from polyseme.corpus.store import Corpus

Rows = tuple[np.ndarray, np.ndarray]  # the rows to predict, and their true values


@dataclass(frozen=True)
class Vocabulary:
    """What an objective has to know of a tokenizer."""

    size: int
    specials: frozenset[int]
    cls: int | None = None
    sep: int | None = None
    mask: int | None = None
    bos: int | None = None
    eos: int | None = None
    pad: int | None = None
    sentinels: tuple[int, ...] = ()  # the first, second, … stands for the first, second, … span taken out
    target: Vocabulary | None = None  # of the target side, where that has its own

    @cached_property
    def ordinary(self) -> np.ndarray:
        """bool [size]: the ids that text is made of, which may be masked and drawn as replacements."""
        found = np.ones(self.size, dtype=bool)
        found[list(self.specials)] = False
        return found

    def need(self, name: str, objective: str) -> int:
        token = getattr(self, name)
        if token is None:
            raise UserError(f"{objective} needs a {name} token, which this tokenizer lacks")
        return int(token)

    def ends(self, objective: str) -> tuple[int, int]:
        """What stands before a document and behind it: bos and eos, one of them for both, or BERT's cls and sep."""
        if self.eos is None and self.sep is not None and self.cls is not None:
            return self.cls, self.sep
        eos = self.need("eos", objective)
        return eos if self.bos is None else self.bos, eos


@dataclass(frozen=True)
class Shape:
    """One shape for every micro-batch, so that `torch.compile` sees one graph."""

    tokens: int
    sequences: int  # slots in the layout, filler counted
    longest: int
    rows: int  # predicted tokens
    source: Shape | None = None  # of the source, where there is one
    fillers: int = 0  # sequences of filler, where their number is fixed: one of a target needs one of a source

    @property
    def samples(self) -> int:
        """How many samples a bin may hold such that its filler finds a slot too."""
        return self.sequences - (self.fillers or -(-self.tokens // self.longest))


class Bound(ABC):
    """An objective tied to a corpus and a vocabulary: numbered samples in, packed batches out.

    `longest` is the most tokens a sample can come out with; `overhead` the special tokens a sample is given, the same
    for all or one number each.
    """

    counts: np.ndarray | None = None  # how often each token occurs, where the model has to be told

    def __init__(self, samples: Samples, longest: int, overhead: int | np.ndarray):
        if not len(samples):
            raise UserError("the corpus has no text to read")
        self.samples, self.longest, self.overhead = samples, longest, overhead

    def __len__(self) -> int:
        return len(self.samples)

    @abstractmethod
    def lengths(self, ids: np.ndarray, epoch: int) -> np.ndarray:
        """How long samples come out in an epoch, special tokens counted."""

    @abstractmethod
    def batch(self, ids: np.ndarray, epoch: int, shape: Shape | None = None) -> Batch:
        """The batch of these samples in this epoch: a function of nothing else."""

    @abstractmethod
    def rows(self, num_tokens: int) -> int:
        """A cap on predicted tokens among `num_tokens` that is passed once in many millions of batches."""

    def shape(self, bin_tokens: int) -> Shape:
        """The fixed shape for bins of this size: room for the usual number of samples and six deviations."""
        samples = most_samples(self.samples.lengths + self.overhead, bin_tokens)
        filler = -(-bin_tokens // self.longest)
        return Shape(bin_tokens, samples + filler, self.longest, _rounded(self.rows(bin_tokens)))


class Streamed(Bound):
    """An objective whose samples go on: each step reads the next stretch of many lanes of one stream."""

    def cuts(self, length: int, epoch: int) -> np.ndarray:
        """Where a lane of so many tokens is cut into the stretches of an epoch's steps, its two ends among them."""
        return np.arange(0, length + 1, self.longest)

    @abstractmethod
    def stretch(self, places: np.ndarray, length: int) -> Batch:
        """The batch of these places of the stream, so many tokens from each: a function of nothing else."""


class Paired(Bound):
    """An objective whose samples have two sides, a source and a target; what is predicted is the target.

    A bin is full when its sources have `bin_tokens` tokens, or its targets `bin_tokens / ratio`.
    """

    def __init__(self, samples: Samples, source: np.ndarray, target: np.ndarray, start: int, smoothing: float = 0.0):
        """`source` and `target` are the lengths of the two sides of each sample, marks counted."""
        self.source, self.target, self.start, self.smoothing = source, target, start, smoothing
        self.ratio = 0.95 * float(source.sum() / max(target.sum(), 1))  # so that the sources fill most bins
        self.sizes = np.maximum(source, np.ceil(self.ratio * target).astype(np.int64))
        super().__init__(samples, int(self.sizes.max(initial=0)), 0)

    def lengths(self, ids: np.ndarray, epoch: int) -> np.ndarray:
        return self.sizes[ids]

    def rows(self, num_tokens: int) -> int:
        return num_tokens

    @abstractmethod
    def sides(self, ids: np.ndarray, epoch: int) -> tuple[np.ndarray, np.ndarray]:
        """Sources and targets of samples, each end to end."""

    def own(self, ids: np.ndarray, epoch: int) -> np.ndarray | None:
        """Which tokens of the targets are read as the model would write them, bool, end to end."""
        return None

    def batch(self, ids: np.ndarray, epoch: int, shape: Shape | None = None) -> Batch:
        ids = ids[np.lexsort((self.target[ids], self.source[ids]))]  # both sides alike are neighbours
        lengths, sizes = self.target[ids], self.source[ids]
        source, values = self.sides(ids, epoch)
        tokens = np.empty_like(values)
        tokens[1:] = values[:-1]
        tokens[np.cumsum(lengths) - lengths] = self.start
        num_tokens, count = len(source) + len(values), len(values)
        own = self.own(ids, epoch)
        sources, slots, longest = Layout.of(sizes), 0, 0
        if shape is not None:
            assert shape.source is not None
            source, sizes = _filled_up(source, sizes, shape.source)
            tokens, lengths = _filled_up(tokens, lengths, shape)
            sources = Layout.of(sizes, shape.source.sequences, shape.source.longest)
            values = np.append(values, np.full(shape.rows - count, IGNORED))
            slots, longest = shape.sequences, shape.longest
            own = None if own is None else np.append(own, np.zeros(len(tokens) - count, dtype=bool))
        rows = torch.arange(len(values))
        targets = {"next": Targets(rows, torch.from_numpy(values), count, smoothing=self.smoothing)}
        other = Source(torch.from_numpy(source), sources)
        layout = Layout.of(lengths, slots, longest)
        mine = None if own is None else torch.from_numpy(own)
        return Batch(torch.from_numpy(tokens), layout, None, targets, num_tokens, source=other, own=mine)

    def shape(self, bin_tokens: int) -> Shape:
        samples, targets = most_samples(self.sizes, bin_tokens), int(bin_tokens / self.ratio)
        most = [max(int(side.max()), 2) for side in (self.source, self.target)]
        fillers = max(-(-(size + 8) // (longest - 1)) for size, longest in zip((bin_tokens, targets), most))
        both = []
        for size, longest in zip((bin_tokens, targets), most):
            tokens = _rounded(size + fillers)
            both.append(Shape(tokens, samples + fillers, longest, tokens, fillers=fillers))
        return replace(both[1], source=both[0])


def most_samples(sizes: np.ndarray, bin_tokens: int) -> int:
    """How many samples of these sizes a bin may be given: the usual number and six deviations."""
    usual = bin_tokens / sizes.mean()
    spread = sizes.std() / sizes.mean() * math.sqrt(usual)
    return int(min(math.ceil(usual * 1.05 + 6 * spread) + 1, bin_tokens))


def _filled_up(tokens: np.ndarray, lengths: np.ndarray, shape: Shape) -> tuple[np.ndarray, np.ndarray]:
    """One side filled up to its shape, by its number of fillers, none of them empty."""
    spare = shape.tokens - len(tokens)
    if spare < shape.fillers or len(lengths) > shape.samples:
        raise ValueError(f"{len(lengths)} sequences of {len(tokens)} tokens do not fit into {shape}")
    filler = np.diff(spare * np.arange(shape.fillers + 1) // shape.fillers)
    return np.append(tokens, np.zeros(spare, dtype=np.int64)), np.append(lengths, filler)


def enclose(
    corpus: Corpus,
    starts: np.ndarray,
    lengths: np.ndarray,
    leads: np.ndarray,
    cls: int,
    sep: int,
    words: bool,
) -> tuple[np.ndarray, np.ndarray | None]:
    """Token ranges end to end, with `sep` after each and `cls` before those that lead; and where words start.

    The first token of a range starts a word even if the range was cut inside one, and so does a special
    token.
    """
    sizes = lengths + leads + 1
    ends = np.cumsum(sizes)
    inner = np.ones(int(ends[-1]), dtype=bool)
    first = (ends - sizes)[leads]
    inner[first] = inner[ends - 1] = False
    tokens = np.empty(len(inner), dtype=np.int64)
    tokens[inner] = corpus.gather(starts, lengths)
    tokens[first], tokens[ends - 1] = cls, sep
    if not words:
        return tokens, None
    word_starts = ~inner
    word_starts[inner] = corpus.gather_words(starts, lengths)
    word_starts[ends - sizes + leads] = True
    return tokens, word_starts


def pack(
    tokens: np.ndarray,
    lengths: np.ndarray,
    shape: Shape | None,
    by_token: dict[str, Rows],
    by_sequence: dict[str, Rows] | None = None,
    segments: np.ndarray | None = None,
) -> Batch:
    """The torch batch. With a shape, the rest is filler: sequences of id 0, empty slots, ignored rows."""
    real, slots, longest, row_cap = len(tokens), 0, 0, 0
    if shape is not None:
        spare = shape.tokens - real
        full, rest = divmod(spare, shape.longest)
        filler = [shape.longest] * full + [rest] * (rest > 0)
        if spare < 0 or len(lengths) + len(filler) > shape.sequences:
            raise ValueError(f"{len(lengths)} sequences of {real} tokens do not fit into {shape}")
        lengths = np.append(lengths, filler).astype(np.int64)
        tokens = np.append(tokens, np.zeros(spare, dtype=np.int64))
        segments = None if segments is None else np.append(segments, np.zeros(spare, dtype=np.int64))
        slots, longest, row_cap = shape.sequences, shape.longest, shape.rows
    targets = {name: _targets(rows, row_cap) for name, rows in by_token.items()}
    targets |= {name: _targets(rows, slots) for name, rows in (by_sequence or {}).items()}
    return Batch(
        torch.from_numpy(tokens),
        Layout.of(lengths, slots, longest),
        None if segments is None else torch.from_numpy(segments),
        targets,
        real,
    )


def rounded(batch: Batch, max_len: int) -> Batch:
    """The batch filled up to one of few shapes, eight an octave, so that a recording of a step's kernels serves many.

    Targets that are one a sequence, or one of several, stay as they are; those of tokens are filled with what never
    counts.
    """
    lengths = list(batch.layout.lengths)
    unit = max(1 << batch.layout.total.bit_length() >> 4, 64)
    longest = min(max(1 << (batch.layout.longest - 1).bit_length(), 32), max_len)
    spare = -batch.layout.total % unit
    full, rest = divmod(spare, longest)
    layout = Layout.of([*lengths, *[longest] * full, *[rest] * (rest > 0)], len(lengths) + unit // longest + 1, longest)
    targets = {
        name: found
        if found.rows.ndim > 1 or len(found.rows) == len(lengths)
        else _filled(found, -len(found.rows) % unit)
        for name, found in batch.targets.items()
    }
    segments = None if batch.segments is None else F.pad(batch.segments, (0, spare))
    return replace(batch, tokens=F.pad(batch.tokens, (0, spare)), layout=layout, segments=segments, targets=targets)


def _filled(targets: Targets, more: int) -> Targets:
    ignored = float("nan") if targets.values.is_floating_point() else IGNORED
    values = F.pad(targets.values, (0, 0) * (targets.values.ndim - 1) + (0, more), value=ignored)
    return replace(targets, rows=F.pad(targets.rows, (0, more)), values=values)


def _targets(found: Rows, cap: int) -> Targets:
    """Filled up with row 0 and `IGNORED` to the cap; what is above it is dropped, and `count` says so."""
    rows, values = found
    if cap:
        rows, values = rows[:cap], values[:cap]
    count = len(rows)
    if cap > count:
        rows = np.append(rows, np.zeros((cap - count, *rows.shape[1:]), dtype=np.int64), axis=0)
        values = np.append(values, np.full(cap - count, IGNORED))
    return Targets(torch.from_numpy(rows), torch.from_numpy(values), count)


def _rounded(number: float) -> int:
    return 8 * math.ceil(number / 8)

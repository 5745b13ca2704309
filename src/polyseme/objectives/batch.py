"""What an objective hands to the trunk: a packed batch, and what is to be predicted where."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, fields, is_dataclass, replace
from typing import TypeVar

import torch
from torch import Tensor

from polyseme.nn.attention.relative import QueryStream
from polyseme.nn.memory import Memory
from polyseme.nn.model import SparseBatch
from polyseme.nn.packing import EncoderInput, PackedLayout

IGNORE_INDEX = -100  # a target value that fills a fixed shape and never counts


@dataclass(frozen=True, eq=False)
class Targets:
    """The rows a term predicts and their true values.

    `rows` index tokens (or sequences, for a term about whole sequences); what several columns mean, the head that reads
    them knows. `count` is the number of values that count, known before the forward pass: the law of sums needs it.
    `weight` is the term's factor in the loss; `label_smoothing` the share of each truth that goes to all values evenly,
    in training.
    """

    rows: Tensor  # int64 [n] or [n, columns]
    labels: Tensor  # int64 [n] or [n, 2], IGNORED where it fills; float32 for numbers, there NaN fills
    count: int
    weight: float = 1.0
    label_smoothing: float = 0.0


class SegmentState:
    """What a row of batches hands on, each of which goes on where the one before it ended."""

    def __init__(self, memory: Memory | None = None) -> None:
        self.memory = memory


@dataclass(frozen=True, eq=False)
class Batch:
    """One micro-batch. `num_tokens` leaves filler out, and counts the tokens of a source too.

    With `query_stream`, the states of the query stream stand behind those of the tokens, and targets may name their
    rows. With a `segment_state`, the batch is read with the memory in it, unless it `starts_fresh` the row, and leaves
    its own there. With `chunk_size`, sequences are read so many tokens at a time, and `grad_tokens` of their last
    tokens have a gradient (0 is all). `lr_scale` is a factor on the rate of the step. Tokens that are the model's
    `sample_mask` are, in training, what it would have written there (scheduled sampling).
    """

    tokens: Tensor  # int64 [T]
    layout: PackedLayout
    segments: Tensor | None = None  # int64 [T]
    targets: dict[str, Targets] = field(default_factory=dict)
    num_tokens: int = 0
    query_stream: QueryStream | None = None
    segment_state: SegmentState | None = None
    starts_fresh: bool = False
    sparse: SparseBatch | None = None  # for heads that learn by rows: what they learn from, instead of rows and values
    source: EncoderInput | None = None  # what the tokens are a target of: ids, one sequence for each
    sample_mask: Tensor | None = None  # bool [T]
    lr_scale: float = 1.0
    chunk_size: int = 0
    grad_tokens: int = 0

    def to(self, device: str | torch.device) -> Batch:
        return tree_map(self, lambda t: t.to(device, non_blocking=True))

    def pin_memory(self) -> Batch:
        """In memory that a GPU can fetch from without the host waiting."""
        return tree_map(self, lambda t: t.pin_memory())


Value = TypeVar("Value")


def tree_map(value: Value, fn: Callable[[Tensor], Tensor]) -> Value:
    """The same value, each tensor in it changed: those of dataclasses, dictionaries and tuples of such."""
    if isinstance(value, Tensor):
        return fn(value)  # type: ignore[return-value]
    if is_dataclass(value) and not isinstance(value, type):
        return replace(value, **{f.name: tree_map(getattr(value, f.name), fn) for f in fields(value)})
    if isinstance(value, dict):
        return {key: tree_map(item, fn) for key, item in value.items()}  # type: ignore[return-value]
    if isinstance(value, tuple) and not all(isinstance(item, int) for item in value):
        return tuple(tree_map(item, fn) for item in value)  # type: ignore[return-value]
    return value


def tree_leaves(value: object) -> list[Tensor]:
    """The tensors in it, in order."""
    leaves: list[Tensor] = []
    tree_map(value, lambda t: leaves.append(t) or t)  # type: ignore[func-returns-value]
    return leaves


def shape_signature(value: object) -> tuple[object, ...]:
    """All that a recording of its kernels depends on: the shapes of its tensors, the bounds of its layouts, factors."""
    if isinstance(value, PackedLayout):
        return (value.max_seqlen, value.cu_seqlens.shape, value.positions.shape)
    if isinstance(value, Tensor):
        return (value.shape,)
    if isinstance(value, float):
        return (value,)
    if is_dataclass(value) and not isinstance(value, type):
        return tuple(part for f in fields(value) for part in shape_signature(getattr(value, f.name)))
    items = value.values() if isinstance(value, dict) else value if isinstance(value, tuple) else ()
    return tuple(part for item in items for part in shape_signature(item))

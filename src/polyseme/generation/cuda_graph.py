"""On a GPU: buffers that stay from call to call, and the kernels of a step recorded over them.

A step of a small model launches some hundred kernels, each shorter than its launch; replayed as one they do not wait
for the host. A recording knows its buffers by their place, so both live as long as the model, or until larger ones are
needed. Only one text, or batch of texts, is on a stage at a time; another that comes meanwhile gets its own.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any
from weakref import WeakKeyDictionary

import torch
from torch import Tensor

from polyseme.nn.memory import Memory
from polyseme.nn.model import Model
from polyseme.nn.packing import Layout
from polyseme.nn.static_memory import Pair, StaticMemory

STEP = 64  # columns are made in such steps, so that texts of like length share recordings
MOST = 16  # recordings of a stage: numbers of rows


@dataclass(eq=False)
class Stage:
    """Buffers, and for each number of rows and sources a recording of one step over them."""

    memory: StaticMemory
    weights: tuple[int, ...]  # where the model's are: a model that was moved or cast is recorded anew
    recordings: dict[tuple[int, int], Any] = field(default_factory=dict)
    warm: set[tuple[int, int]] = field(default_factory=set)
    layouts: dict[int, Layout] = field(default_factory=dict)
    holder: Callable[[], object | None] = lambda: None  # who is on it

    def layout(self, rows: int) -> Layout:
        """One token in each of so many rows; recordings read it, so it stays."""
        if rows not in self.layouts:
            self.layouts[rows] = Layout.of([1] * rows, device=self.memory.lengths.device)
        return self.layouts[rows]

    def step(self, kind: tuple[int, int], function: Callable[[Tensor], Tensor], tokens: Tensor) -> Tensor:
        """The scores behind these tokens: the first call of a kind is plain, the second records, all others replay."""
        if kind not in self.warm or (kind not in self.recordings and len(self.recordings) == MOST):
            self.warm.add(kind)
            return function(tokens)
        if kind not in self.recordings:
            held = tokens.clone()
            torch.cuda.synchronize()
            graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(graph, capture_error_mode="thread_local"):
                scores = function(held)
            self.recordings[kind] = graph, held, scores
        graph, held, scores = self.recordings[kind]
        held.copy_(tokens)
        graph.replay()
        return scores  # the next replay writes over it


def records(device: torch.device) -> bool:
    """Whether steps on a device are recorded."""
    return device.type == "cuda"


_STAGES: WeakKeyDictionary[Model, Stage] = WeakKeyDictionary()


def stage_for(
    model: Model, memory: Memory, crossed: Sequence[Pair], rows: int, longest: int, wide: int, most: int
) -> Stage:
    """The model's stage, or a new one if what is asked for does not fit it; no sequence has more than `most` tokens."""
    found = _STAGES.get(model)
    weights = tuple(p.data_ptr() for p in model.parameters())
    number = len(memory.source.layout.lengths) if memory.source is not None else 0
    held = found is not None and found.holder() is not None
    if found is not None and not held:
        kept = found.memory
        there = kept.crossed[0][0].shape[:2] if kept.crossed else (0, 0)
        fits = rows <= len(kept.lengths) and longest <= kept.columns and number <= there[0] and wide <= there[1]
        if fits and weights == found.weights and kept.states[0][0].dtype == memory.states[0][0].dtype:
            return found
    columns, wide = (-(-size // STEP) * STEP for size in (longest, wide))
    if not held:
        found = _STAGES.pop(model, None)
        del found  # its buffers go before the new ones come
    made = Stage(StaticMemory.made(memory, crossed, rows, min(columns, most), wide, fixed=True), weights)
    if not held:
        _STAGES[model] = made
    return made

"""On a GPU: buffers that stay from call to call, and the kernels of a step recorded over them.

A step of a small model launches some hundred kernels, each shorter than its launch; replayed as one they do not wait
for the host. A recording knows its buffers by their place, so both live as long as the model, or until larger ones are
needed. Only one text, or batch of texts, is on a stage at a time; another that comes meanwhile gets its own.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from weakref import WeakKeyDictionary

import torch
from torch import Tensor

from polyseme.nn.cuda_graph import CudaGraphs
from polyseme.nn.memory import KeyValue, Memory, StaticKVCache
from polyseme.nn.model import Model
from polyseme.nn.packing import PackedLayout

CAPACITY_STEP = 64  # columns are made in such steps, so that texts of like length share recordings
MAX_GRAPHS = 16  # recordings of a stage: numbers of rows


@dataclass(eq=False)
class GraphedDecoder:
    """Buffers, and for each number of rows and sources a recording of one step over them."""

    memory: StaticKVCache
    weight_pointers: tuple[int, ...]  # where the model's are: a model that was moved or cast is recorded anew
    graphs: CudaGraphs = field(default_factory=lambda: CudaGraphs(1, MAX_GRAPHS, clone_outputs=False, share_pool=False))
    layouts: dict[int, PackedLayout] = field(default_factory=dict)
    current_user: Callable[[], object | None] = lambda: None  # who is on it

    def layout(self, rows: int) -> PackedLayout:
        """One token in each of so many rows; recordings read it, so it stays."""
        if rows not in self.layouts:
            self.layouts[rows] = PackedLayout.from_lengths([1] * rows, device=self.memory.lengths.device)
        return self.layouts[rows]

    def step(self, shape_key: tuple[int, int], fn: Callable[[Tensor], Tensor], tokens: Tensor) -> Tensor:
        """Return the logits after these tokens; the next call may overwrite them."""
        logits: Tensor = self.graphs(shape_key, fn, tokens)
        return logits


def uses_cuda_graphs(device: torch.device) -> bool:
    """Whether steps on a device are recorded."""
    return device.type == "cuda"


_DECODERS: WeakKeyDictionary[Model, GraphedDecoder] = WeakKeyDictionary()


def get_graphed_decoder(
    model: Model,
    memory: Memory,
    cross_kv: Sequence[KeyValue],
    num_rows: int,
    max_len: int,
    max_source_len: int,
    max_positions: int,
) -> GraphedDecoder:
    """The model's decoder, or a new one if what is asked for does not fit it; no sequence has more than
    `max_positions` tokens."""
    existing = _DECODERS.get(model)
    weight_pointers = tuple(p.data_ptr() for p in model.parameters())
    num_sources = len(memory.source.layout.lengths) if memory.source is not None else 0
    in_use = existing is not None and existing.current_user() is not None
    if existing is not None and not in_use:
        existing_memory = existing.memory
        source_capacity = existing_memory.cross_kv[0][0].shape[:2] if existing_memory.cross_kv else (0, 0)
        fits = (
            num_rows <= len(existing_memory.lengths)
            and max_len <= existing_memory.capacity
            and num_sources <= source_capacity[0]
            and max_source_len <= source_capacity[1]
        )
        if (
            fits
            and weight_pointers == existing.weight_pointers
            and existing_memory.states[0][0].dtype == memory.states[0][0].dtype
        ):
            return existing
    capacity, max_source_len = (-(-size // CAPACITY_STEP) * CAPACITY_STEP for size in (max_len, max_source_len))
    if not in_use:
        existing = _DECODERS.pop(model, None)
        del existing  # its buffers go before the new ones come
    decoder = GraphedDecoder(
        StaticKVCache.allocate(
            memory, cross_kv, num_rows, min(capacity, max_positions), max_source_len, static_shape=True
        ),
        weight_pointers,
    )
    if not in_use:
        _DECODERS[model] = decoder
    return decoder

"""KV caches that live as long as a model on a GPU, with CUDA graphs of a decoding step over them.

A step of a small model launches some hundred kernels, each shorter than its launch; as one graph they do not wait for
the host. A graph refers to its buffers by address, so both are kept until larger ones are needed. One session uses a
decoder at a time; another that starts meanwhile gets its own.
"""

import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from weakref import WeakKeyDictionary, ref

import torch
from torch import Tensor

from polyseme.nn.cuda_graph import CudaGraphs
from polyseme.nn.memory import KeyValue, Memory, StaticKVCache
from polyseme.nn.model import Model
from polyseme.nn.packing import PackedLayout

CAPACITY_STEP = 64  # capacities are multiples of this, so that texts of similar length share graphs
MAX_GRAPHS = 16  # per decoder, one for each number of rows


@dataclass(eq=False)
class GraphedDecoder:
    """Buffers, and a graph of one step over them for each number of rows and sources."""

    memory: StaticKVCache
    weight_pointers: tuple[int, ...]  # graphs of a model that was moved or cast are invalid
    graphs: CudaGraphs = field(default_factory=lambda: CudaGraphs(1, MAX_GRAPHS, clone_outputs=False, share_pool=False))
    layouts: dict[int, PackedLayout] = field(default_factory=dict)
    current_user: Callable[[], object | None] = lambda: None  # a weak reference to the session that uses it

    def layout(self, rows: int) -> PackedLayout:
        """Return the layout of one token per row; graphs read it, so it is kept."""
        if rows not in self.layouts:
            self.layouts[rows] = PackedLayout.from_lengths([1] * rows, device=self.memory.lengths.device)
        return self.layouts[rows]

    def step(self, shape_key: tuple[int, int], fn: Callable[[Tensor], Tensor], tokens: Tensor) -> Tensor:
        """Return the logits after these tokens; the next call may overwrite them."""
        logits: Tensor = self.graphs(shape_key, fn, tokens)
        return logits

    def fits(self, memory: Memory, num_rows: int, max_len: int, max_source_len: int) -> bool:
        """Whether the buffers have room for this many rows, columns and sources."""
        source_shape = self.memory.cross_kv[0][0].shape[:2] if self.memory.cross_kv else (0, 0)
        return (
            num_rows <= len(self.memory.lengths)
            and max_len <= self.memory.capacity
            and _num_sources(memory) <= source_shape[0]
            and max_source_len <= source_shape[1]
            and self.memory.states[0][0].dtype == memory.states[0][0].dtype
        )


def uses_cuda_graphs(device: torch.device) -> bool:
    """Whether steps on a device are captured."""
    return device.type == "cuda"


_DECODERS: WeakKeyDictionary[Model, GraphedDecoder] = WeakKeyDictionary()
_LOCK = threading.Lock()


def get_graphed_decoder(
    user: object,
    model: Model,
    memory: Memory,
    cross_kv: Sequence[KeyValue],
    num_rows: int,
    max_len: int,
    max_source_len: int,
    max_positions: int,
) -> GraphedDecoder:
    """Reserve the model's decoder for a user; create one if another user has it, or it is too small.

    No sequence has more than `max_positions` tokens.
    """
    weight_pointers = tuple(p.data_ptr() for p in model.parameters())
    with _LOCK:
        decoder = _DECODERS.get(model)
        in_use = decoder is not None and decoder.current_user() not in (None, user)
        has_room = decoder is not None and decoder.fits(memory, num_rows, max_len, max_source_len)
        if decoder is None or in_use or not has_room or decoder.weight_pointers != weight_pointers:
            if not in_use:
                _DECODERS.pop(model, None)
            decoder = None  # frees old buffers before new ones are allocated
            capacity, source_len = (-(-size // CAPACITY_STEP) * CAPACITY_STEP for size in (max_len, max_source_len))
            sizes = num_rows, min(capacity, max_positions), source_len
            cache = StaticKVCache.allocate(memory, cross_kv, *sizes, static_shape=True)
            decoder = GraphedDecoder(cache, weight_pointers)
            if not in_use:
                _DECODERS[model] = decoder
        decoder.current_user = ref(user)
        return decoder


def _num_sources(memory: Memory) -> int:
    return len(memory.source.layout.lengths) if memory.source is not None else 0

"""CUDA graphs: the kernels of a function captured once and replayed on new values."""

from collections import Counter
from collections.abc import Callable, Hashable
from dataclasses import fields, is_dataclass
from functools import cached_property
from threading import RLock
from typing import Any, ClassVar

import torch
from torch import Tensor

from polyseme.nn.index_cache import retain_entries
from polyseme.nn.packing import PackedLayout, tree_leaves, tree_map


def shape_signature(tree: object) -> tuple[object, ...]:
    """Return what captured kernels depend on: shapes, layout bounds, and the factors and names of loss terms.

    Lengths and counts are not part of it, and neither are fields with the metadata `host_only`.
    """
    if isinstance(tree, PackedLayout):
        return (tree.max_seqlen, tree.causal, tree.has_static_shape, tree.cu_seqlens.shape, tree.positions.shape)
    if isinstance(tree, Tensor | float):
        return (tree.shape if isinstance(tree, Tensor) else tree,)
    keys: tuple[object, ...] = ()
    parts: tuple[object, ...] = ()
    if is_dataclass(tree) and not isinstance(tree, type):
        parts = tuple(getattr(tree, f.name) for f in fields(tree) if not f.metadata.get("host_only"))
    elif isinstance(tree, dict):
        keys, parts = tuple(tree), tuple(tree.values())
    elif isinstance(tree, tuple) and not (tree and isinstance(tree[0], int)):
        parts = tree
    return keys + tuple(signature for part in parts for signature in shape_signature(part))


class CudaGraphs:
    """CUDA graphs by key: the first calls with a key are eager, the next one is captured, all others are replayed.

    Python code of the function runs only in eager calls and in the capture. Keys beyond `max_graphs` stay eager; with
    `max_graphs` 0 no GPU is needed. The output of a replay is overwritten by the next one, unless it is cloned.
    Threads may call it concurrently: one at a time captures or replays.
    """

    memory_pool: ClassVar[Any] = None  # shared by all graphs: no two of them run at once, and their outputs are cloned
    lock: ClassVar = RLock()  # also held from the copy of the inputs to the clone of the output

    def __init__(self, num_warmup_calls: int, max_graphs: int, clone_outputs: bool, share_pool: bool = True):
        self.num_warmup_calls, self.max_graphs = num_warmup_calls, max_graphs
        self.clone_outputs, self.share_pool = clone_outputs, share_pool
        self.call_counts: Counter[Hashable] = Counter()
        self.graphs: dict[Hashable, tuple[torch.cuda.CUDAGraph, list[Tensor], Any]] = {}

    @cached_property
    def stream(self) -> torch.cuda.Stream:
        """The stream of warmup calls and captures."""
        return torch.cuda.Stream()

    def __call__(self, key: Hashable, fn: Callable[..., Any], *args: Any) -> Any:
        """Run `fn(*args)` on the values of `args`."""
        if self.max_graphs == 0:
            return fn(*args)
        with self.lock:
            if key not in self.graphs:
                self.call_counts[key] += 1
                if self.call_counts[key] <= self.num_warmup_calls or len(self.graphs) == self.max_graphs:
                    return self._warmup_call(fn, args)
                self.graphs[key] = self._capture(fn, args)
            graph, static_inputs, output = self.graphs[key]
            for static_input, tensor in zip(static_inputs, tree_leaves(args)):
                static_input.copy_(tensor, non_blocking=True)
            graph.replay()
            return tree_map(output, torch.clone) if self.clone_outputs else output

    def clear(self) -> None:
        """Release the memory of all graphs."""
        self.graphs.clear()

    def _warmup_call(self, fn: Callable[..., Any], args: tuple[Any, ...]) -> Any:
        """Call the function eagerly on the stream of the capture, to which the gradients it allocates belong."""
        self.stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(self.stream), retain_entries():
            output = fn(*args)
        torch.cuda.current_stream().wait_stream(self.stream)
        return output

    def _capture(self, fn: Callable[..., Any], args: tuple[Any, ...]) -> tuple[torch.cuda.CUDAGraph, list[Tensor], Any]:
        static_args = tree_map(args, lambda tensor: tensor.to("cuda", copy=True))
        torch.cuda.synchronize()
        torch.cuda.empty_cache()  # the capture allocates anew what eager calls have used
        if self.share_pool and CudaGraphs.memory_pool is None:
            CudaGraphs.memory_pool = torch.cuda.graph_pool_handle()
        pool = CudaGraphs.memory_pool if self.share_pool else None
        graph = torch.cuda.CUDAGraph()
        # thread_local: another thread may copy the next batches to pinned memory meanwhile
        capture = torch.cuda.graph(graph, pool=pool, stream=self.stream, capture_error_mode="thread_local")
        with capture, retain_entries():
            output = fn(*static_args)
        return graph, tree_leaves(static_args), output

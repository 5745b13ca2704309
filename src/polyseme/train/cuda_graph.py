"""CUDA graphs of training steps: what is captured, and the wrapper of a captured function."""

from collections.abc import Callable
from typing import Any

from polyseme.nn.cuda_graph import CudaGraphs, shape_signature
from polyseme.nn.model import Model

WARMUP_CALLS = 3  # eager calls before a capture, in which kernels are compiled and chosen
MAX_GRAPHS = 48  # per function


class CudaGraphed:
    """A function whose kernels are captured at the fourth call with arguments of the same shapes, then replayed.

    Unless `enabled`, it is called eagerly.
    """

    def __init__(self, fn: Callable[..., Any], enabled: bool):
        self.fn, self.enabled = fn, enabled
        self.graphs = CudaGraphs(WARMUP_CALLS, MAX_GRAPHS, clone_outputs=True)

    def __call__(self, *args: Any) -> Any:
        return self.graphs(shape_signature(args), self.fn, *args) if self.enabled else self.fn(*args)


def can_capture(model: Model, has_static_shapes: bool, is_padded: bool) -> bool:
    """Return whether training steps of a model can be captured.

    Batches must have shapes that recur: by themselves (`has_static_shapes`), or because they are padded to few shapes,
    which a trunk whose kernels depend on lengths does not allow. A module that reads tensors on the host rules it out.
    """
    if any(getattr(module, "needs_host_sync", False) for module in model.modules()):
        return False
    return has_static_shapes or (is_padded and not model.config.trunk.depends_on_lengths)

"""Forward hooks that leave other threads alone, which may be using the same model."""

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from torch import nn


@contextmanager
def output_hook(module: nn.Module, hook: Callable[[Any], Any]) -> Iterator[None]:
    """Call `hook(output)` after each forward pass of a module in this thread; unless None, its result replaces it."""
    thread = threading.get_ident()

    def call_hook(module: nn.Module, inputs: Any, output: Any) -> Any:
        return hook(output) if threading.get_ident() == thread else None

    handle = module.register_forward_hook(call_hook)
    try:
        yield
    finally:
        handle.remove()

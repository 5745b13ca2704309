"""LRU cache of index tensors that depend only on sequence lengths, so that each is built and copied to the device once.

A CUDA graph reads tensors at their recorded addresses: entries used inside `retain_entries` are never evicted.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from functools import lru_cache, wraps
from threading import Lock
from typing import Any, TypeVar

import torch

Function = TypeVar("Function", bound=Callable[..., Any])
_retaining = ContextVar("retaining", default=False)  # of this thread


@contextmanager
def retain_entries() -> Iterator[None]:
    """Retain all entries used in this context, during the warm-up and capture of a CUDA graph."""
    token = _retaining.set(True)
    try:
        yield
    finally:
        _retaining.reset(token)


def cached_index(max_entries: int) -> Callable[[Function], Function]:
    """Decorate a function to cache its `max_entries` most recent results and all retained ones, for all threads."""

    def decorate(function: Function) -> Function:
        retained: dict[tuple[Any, ...], Any] = {}
        lock = Lock()

        @lru_cache(max_entries)
        def compute(*key: Any) -> Any:
            with torch.inference_mode(False):  # the entry may be used in training later
                return function(*key)

        @wraps(function)
        def lookup(*key: Any) -> Any:
            if key in retained:
                return retained[key]
            with lock:
                value = compute(*key)
                if _retaining.get():
                    retained[key] = value
            return value

        return lookup  # type: ignore[return-value]

    return decorate

"""Facts that follow from lengths, worked out and sent to a device once: those that come again are found again.

Recorded kernels read them where they lie: what was asked for inside `retain_entries` is never let go.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import wraps
from typing import Any, TypeVar

import torch

Function = TypeVar("Function", bound=Callable[..., Any])
_retaining = False


@contextmanager
def retain_entries() -> Iterator[None]:
    """While kernels are recorded, and in the calls before that are to find the same facts."""
    global _retaining
    previous, _retaining = _retaining, True
    try:
        yield
    finally:
        _retaining = previous


def cached_index(max_entries: int) -> Callable[[Function], Function]:
    """A function whose last `max_entries` answers are kept, and those that are pinned."""

    def decorate(function: Function) -> Function:
        recent: OrderedDict[tuple[Any, ...], Any] = OrderedDict()
        retained: dict[tuple[Any, ...], Any] = {}

        @wraps(function)
        def lookup(*key: Any) -> Any:
            if key in retained:
                return retained[key]
            value = recent.pop(key, None)
            if value is None:
                with torch.inference_mode(False):  # whoever asks first may not learn; who asks next may
                    value = function(*key)
            if _retaining:
                retained[key] = value
            else:
                recent[key] = value
                if len(recent) > max_entries:
                    recent.popitem(last=False)
            return value

        return lookup  # type: ignore[return-value]

    return decorate

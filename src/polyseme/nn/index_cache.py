"""Facts that follow from lengths, worked out and sent to a device once: those that come again are found again.

Recorded kernels read them where they lie: what was asked for inside `pinned` is never let go.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import wraps
from typing import Any, TypeVar

import torch

Function = TypeVar("Function", bound=Callable[..., Any])
_pinning = False


@contextmanager
def pinned() -> Iterator[None]:
    """While kernels are recorded, and in the calls before that are to find the same facts."""
    global _pinning
    before, _pinning = _pinning, True
    try:
        yield
    finally:
        _pinning = before


def known(most: int) -> Callable[[Function], Function]:
    """A function whose last `most` answers are kept, and those that are pinned."""

    def wrap(function: Function) -> Function:
        recent: OrderedDict[tuple[Any, ...], Any] = OrderedDict()
        kept: dict[tuple[Any, ...], Any] = {}

        @wraps(function)
        def find(*key: Any) -> Any:
            if key in kept:
                return kept[key]
            found = recent.pop(key, None)
            if found is None:
                with torch.inference_mode(False):  # whoever asks first may not learn; who asks next may
                    found = function(*key)
            if _pinning:
                kept[key] = found
            else:
                recent[key] = found
                if len(recent) > most:
                    recent.popitem(last=False)
            return found

        return find  # type: ignore[return-value]

    return wrap

"""Work done ahead, by a thread."""

from __future__ import annotations

import queue
import threading
from collections.abc import Iterable, Iterator
from typing import Any, TypeVar

Item = TypeVar("Item")


def prefetch(items: Iterable[Item], buffer_size: int = 2) -> Iterator[Item]:
    """The same items, made by one thread while the caller works: corrupting a batch is numpy, which frees the lock."""
    buffer: queue.Queue[tuple[str, Any]] = queue.Queue(buffer_size)
    stop = threading.Event()

    def enqueue(kind: str, value: Any) -> None:
        while not stop.is_set():
            try:
                return buffer.put((kind, value), timeout=0.1)
            except queue.Full:
                continue

    def produce() -> None:
        try:
            for item in items:
                enqueue("item", item)
                if stop.is_set():
                    return
            enqueue("end", None)
        except BaseException as error:
            enqueue("error", error)

    thread = threading.Thread(target=produce, daemon=True)
    thread.start()
    try:
        while True:
            kind, value = buffer.get()
            if kind == "error":
                raise value
            if kind == "end":
                return
            yield value
    finally:
        stop.set()
        thread.join()

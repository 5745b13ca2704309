"""One worker thread per model: concurrent calls are combined into batches of about `max_batch_tokens` tokens.

An idle worker starts at once. After a batch, calls that arrived meanwhile run together; if they do not fill a batch,
the worker waits for more, until the oldest has waited `max_wait`. Steps of text generation run in turn with batches.
"""

import asyncio
import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from polyseme.errors import PolysemeError, is_out_of_memory
from polyseme.serve.api.errors import RequestError
from polyseme.serve.batching.generation import TextGeneration
from polyseme.serve.batching.scheduler import GenerationScheduler

logger = logging.getLogger(__name__)
MIN_BATCH_TOKENS = 64  # a single request is not divided further when memory runs out
BATCHES_BEFORE_GROWTH = 64  # after memory ran out, the budget is doubled when this many batches have succeeded
RETRY_AFTER_SECONDS = 1


@dataclass(frozen=True)
class WorkerLimits:
    """How calls are combined, and how many may wait; `max_wait` is in seconds."""

    max_wait: float = 0.005
    max_batch_tokens: int = 16_384
    max_queue: int = 512


@dataclass(eq=False)
class Call:
    """One request's part of a batch: calls with the same key are run at once, on all of their inputs."""

    key: Hashable
    inputs: Sequence[Any]
    num_tokens: int
    run: Callable[[Sequence[Any]], Sequence[Any]]
    future: asyncio.Future[Sequence[Any]]
    arrival: float = field(default_factory=time.perf_counter)
    start: float = 0.0
    end: float = 0.0

    @property
    def is_cancelled(self) -> bool:
        """Whether nobody waits for the results any more."""
        return self.future.done()


class BatchListener(Protocol):
    """What is told about every batch, from the worker's thread."""

    def record_batch(self, num_calls: int, num_tokens: int, seconds: float) -> None:
        """Take the size and time of a batch."""


class ModelWorker:
    """The queue of a model, and the thread that runs it."""

    def __init__(
        self,
        name: str,
        limits: WorkerLimits,
        listener: BatchListener | None = None,
        max_cells: int = 1 << 14,
        resize: Callable[[int], None] | None = None,
        warm_up: Callable[[], object] | None = None,
    ):
        """`resize` is told how many tokens may be read at once when memory ran out, and later when more may be.

        `warm_up` is called first, in the worker's thread, which has its own threads for computing.
        """
        self.name, self.limits, self.listener = name, limits, listener
        self.batch_tokens, self.resize = limits.max_batch_tokens, resize  # fewer tokens after memory ran out
        self._num_successes, self._warm_up = 0, warm_up
        self._calls: deque[Call] = deque()
        self._generations: deque[TextGeneration] = deque()
        self._scheduler = GenerationScheduler(name, max_cells)
        self._condition = threading.Condition()
        self._is_closing = False
        self._thread = threading.Thread(target=self._run, name=f"worker-{name}", daemon=True)
        self._thread.start()

    @property
    def queue_length(self) -> int:
        """The number of requests that wait."""
        return len(self._calls) + len(self._generations)

    @property
    def num_generations(self) -> int:
        """The number of requests whose text is being generated."""
        return self._scheduler.num_generations

    def check_room(self) -> None:
        """Raise if the queue is full."""
        if self.queue_length >= self.limits.max_queue:
            with self._condition:
                self._drop_cancelled()
            if self.queue_length >= self.limits.max_queue:
                message = f"{self.queue_length} requests are waiting for the model {self.name!r}: try again later"
                raise RequestError("overloaded", message, {"Retry-After": str(RETRY_AFTER_SECONDS)})

    def submit(self, work: Call | TextGeneration) -> None:
        """Add work to the queue; raise if it is full."""
        self.check_room()
        with self._condition:
            if self._is_closing:
                raise RequestError("unavailable", "the server is shutting down")
            queue: deque[Any] = self._calls if isinstance(work, Call) else self._generations
            queue.append(work)
            self._condition.notify()

    def close(self, timeout: float = 10.0) -> None:
        """Finish what was submitted and end the thread."""
        with self._condition:
            self._is_closing = True
            self._condition.notify()
        self._thread.join(timeout)

    # ------------------------------------------------------------------------------------- the worker's thread

    def _run(self) -> None:
        if self._warm_up is not None:
            try:
                self._warm_up()
            except Exception as error:  # requests will say what is wrong
                logger.warning(f"the first call of the model {self.name} failed: {type(error).__name__}")
        while True:
            with self._condition:
                was_idle = self._wait_for_work()
                if was_idle is None:
                    return
                batch = self._take_calls(was_idle)
                self._scheduler.admit(self._generations)
            if batch:
                self._run_batch(batch)
            self._scheduler.step()

    def _wait_for_work(self) -> bool | None:
        """Wait until there is work; return whether the worker was idle before, or None to end."""
        was_idle = False
        self._drop_cancelled()
        while not (self._calls or self._generations or self._scheduler.batches):
            if self._is_closing:
                return None
            was_idle = True
            self._condition.wait()
            self._drop_cancelled()
        return was_idle

    def _drop_cancelled(self) -> None:
        if any(call.is_cancelled for call in self._calls):
            self._calls = deque(call for call in self._calls if not call.is_cancelled)
        if any(each.is_cancelled for each in self._generations):
            self._generations = deque(each for each in self._generations if not each.is_cancelled)

    def _take_calls(self, was_idle: bool) -> list[Call]:
        """Take the oldest call and others with its key, up to the budget; wait for more after a batch."""
        if not self._calls:
            return []
        if not was_idle and not self._scheduler.batches and not self._is_closing:
            deadline = self._calls[0].arrival + self.limits.max_wait
            while self._calls and not self._is_full() and (rest := deadline - time.perf_counter()) > 0:
                self._condition.wait(rest)
                self._drop_cancelled()
        batch: list[Call] = []
        others: deque[Call] = deque()
        num_tokens = 0
        for call in self._calls:
            fits = not batch or (call.key == batch[0].key and num_tokens + call.num_tokens <= self.batch_tokens)
            if fits:
                batch.append(call)
                num_tokens += call.num_tokens
            else:
                others.append(call)
        self._calls = others
        return batch

    def _is_full(self) -> bool:
        first = self._calls[0]
        return sum(call.num_tokens for call in self._calls if call.key == first.key) >= self.batch_tokens

    def _run_batch(self, batch: list[Call]) -> None:
        start, num_tokens = time.perf_counter(), sum(call.num_tokens for call in batch)
        for call in batch:
            call.start = start
        self._compute(batch)
        if self.listener is not None:
            self.listener.record_batch(len(batch), num_tokens, time.perf_counter() - start)

    def _compute(self, batch: list[Call]) -> None:
        """Run a batch and deliver the results; if it fails, run its halves, so that an error reaches its own call."""
        batch = [call for call in batch if not call.is_cancelled]
        if not batch:
            return
        try:
            inputs = batch[0].inputs if len(batch) == 1 else [each for call in batch for each in call.inputs]
            results = batch[0].run(inputs)
        except Exception as error:
            if _is_memory_error(error):
                num_tokens = sum(call.num_tokens for call in batch)
                self._shrink(num_tokens)
                if len(batch) == 1 and self.resize is not None and self.batch_tokens >= MIN_BATCH_TOKENS:
                    self._compute(batch)
                    return
            elif not isinstance(error, PolysemeError):
                logger.error(f"a batch of the model {self.name} failed: {type(error).__name__}", exc_info=error)
            if len(batch) == 1:
                deliver([(batch[0], error)])
                return
            middle = len(batch) // 2
            self._compute(batch[:middle])
            self._compute(batch[middle:])
            return
        self._grow()
        outcomes: list[tuple[Call, Any]] = []
        first, end = 0, time.perf_counter()
        for call in batch:
            call.end = end
            outcomes.append((call, results[first : first + len(call.inputs)]))
            first += len(call.inputs)
        deliver(outcomes)

    def _shrink(self, num_tokens: int) -> None:
        """Halve the budget after memory ran out."""
        self.batch_tokens, self._num_successes = max(min(self.batch_tokens, num_tokens) // 2, 1), 0
        if self.resize is not None:
            self.resize(self.batch_tokens)
        logger.warning(f"out of memory: batches of {self.name} are limited to {self.batch_tokens:,} tokens for a while")

    def _grow(self) -> None:
        """Return to the full budget step by step."""
        if self.batch_tokens < self.limits.max_batch_tokens:
            self._num_successes += 1
            if self._num_successes >= BATCHES_BEFORE_GROWTH:
                self.batch_tokens, self._num_successes = min(2 * self.batch_tokens, self.limits.max_batch_tokens), 0
                if self.resize is not None:
                    self.resize(self.batch_tokens)


def _is_memory_error(error: BaseException) -> bool:
    return is_out_of_memory(error) or (error.__cause__ is not None and is_out_of_memory(error.__cause__))


def deliver(outcomes: Sequence[tuple[Call, Any]]) -> None:
    """Set the results, or errors, of calls in the thread of their event loop, with one wake-up for all."""

    def set_outcomes() -> None:
        for call, outcome in outcomes:
            if call.future.done():
                continue
            if isinstance(outcome, BaseException):
                call.future.set_exception(outcome)
            else:
                call.future.set_result(outcome)

    loop = outcomes[0][0].future.get_loop()
    if not loop.is_closed():
        loop.call_soon_threadsafe(set_outcomes)

"""The queue of a model: concurrent calls are combined into batches of about `max_batch_tokens` tokens.

An idle model starts at once. After a batch, calls that arrived meanwhile run together; if they do not fill a batch,
they wait for more, until the oldest has waited `max_wait`. Steps of text generation run in turn with batches.

On a processor, several waiting calls are computed by several streams: threads that each run a batch on their share of
the cores. They lose less time than one batch on all cores, above all if other threads need a core now and then. A call
that waits alone runs on all cores, unless calls have just been rejected.
"""

import asyncio
import logging
import math
import threading
import time
from collections import deque
from collections.abc import Callable, Hashable, Sequence, Sized
from dataclasses import dataclass, field
from typing import Any, Protocol

from polyseme.errors import PolysemeError, is_out_of_memory
from polyseme.serve.api.errors import RequestError
from polyseme.serve.batching.estimate import BatchTimeEstimate
from polyseme.serve.batching.generation import TextGeneration
from polyseme.serve.batching.scheduler import GenerationScheduler

logger = logging.getLogger(__name__)
MIN_BATCH_TOKENS = 64  # a single request is not divided further when memory runs out
BATCHES_BEFORE_GROWTH = 64  # after memory ran out, the budget is doubled when this many batches have succeeded
RETRY_AFTER_SECONDS = 1
EXPECTED_SHARE = 0.5  # of `max_delay`: later calls join the batch of a call, and the time of batches varies
ALONE_SHARE = 2 / 3  # of the expected time of a call in whose way nothing is: none will join it
OVERLOAD_SECONDS = 1.0  # after a rejection because of other calls
MEAN_WEIGHT = 0.05  # of a call in the mean of recent ones


@dataclass(frozen=True)
class WorkerLimits:
    """How calls are combined, and how many may wait; `max_wait` and `max_delay` (0: none) are in seconds."""

    max_wait: float = 0.005
    max_batch_tokens: int = 16_384
    max_queue: int = 512
    max_delay: float = 0.0  # calls that would probably take longer are rejected


@dataclass(frozen=True)
class Streams:
    """How many batches a model computes at once; `share_cores` gives a thread all cores, or its share of them."""

    number: int = 1
    share_cores: Callable[[bool], None] = lambda has_all: None


def join_lists(parts: Sequence[Sequence[Any]]) -> list[Any]:
    """Return the elements of all lists."""
    return [each for part in parts for each in part]


@dataclass(eq=False)
class Call:
    """One request's part of a batch: calls with the same key are run at once, on all of their inputs."""

    key: Hashable
    inputs: Sized
    num_tokens: int
    run: Callable[[Any], Sequence[Any]]
    future: asyncio.Future[Sequence[Any]]
    is_parallel: bool = False  # whether other streams may compute at the same time
    join: Callable[[Sequence[Any]], Any] = join_lists  # of the inputs of several calls
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
    """The queue of a model, and the threads that run it: streams, the first of which also generates texts."""

    def __init__(
        self,
        name: str,
        limits: WorkerLimits,
        listener: BatchListener | None = None,
        max_cells: int = 1 << 14,
        resize: Callable[[int], None] | None = None,
        warm_up: Callable[[], object] | None = None,
        streams: Streams | None = None,
    ):
        """`resize` is told how many tokens may be read at once when memory ran out, and later when more may be.

        `warm_up` is called first in the thread of each stream, which has its own memory and threads for computing.
        """
        self.name, self.limits, self.listener = name, limits, listener
        self.batch_tokens, self.resize = limits.max_batch_tokens, resize  # fewer tokens after memory ran out
        self.streams = streams or Streams()
        self._num_successes, self._warm_up = 0, warm_up
        self._calls: deque[Call] = deque()
        self._num_waiting_tokens = 0
        self._generations: deque[TextGeneration] = deque()
        self._scheduler = GenerationScheduler(name, max_cells)
        self._lock = threading.RLock()
        self._turns = [threading.Condition(self._lock) for _ in range(self.streams.number)]
        self._idle: set[int] = set()  # streams that wait for work
        self._filling: set[int] = set()  # streams that wait for a batch to fill
        self._expected_ends: dict[int, float] = {}  # of the batches that streams compute
        self._has_all_cores = False  # whether a batch runs that no other may run beside
        self._is_generating = False
        self._estimates = {has_all: BatchTimeEstimate() for has_all in (True, False)}  # by cores: all, or a share
        self.tokens_per_byte = 0.0  # of recent requests
        self._last_rejection = self._last_end = -math.inf  # of a call, and of a batch
        self._max_expected_delay = EXPECTED_SHARE * limits.max_delay or math.inf
        self._max_wait = 0.0 if limits.max_delay else limits.max_wait  # no time is left to wait for others
        self._is_closing = False
        self._threads = [
            threading.Thread(target=self._run, args=(stream,), name=f"worker-{name}-{stream}", daemon=True)
            for stream in range(self.streams.number)
        ]
        for thread in self._threads:
            thread.start()

    @property
    def queue_length(self) -> int:
        """The number of requests that wait."""
        return len(self._calls) + len(self._generations)

    @property
    def num_generations(self) -> int:
        """The number of requests whose text is being generated."""
        return self._scheduler.num_generations

    def has_room(self, num_tokens: float = 0.0, other_delay: float = 0.0) -> bool:
        """Whether a call of this many tokens may wait: the queue is not full, and the call is done in time.

        `other_delay` are the seconds that it spends elsewhere.
        """
        delay = self.expected_delay(num_tokens) + other_delay
        has_room = not self._is_queue_full() and delay <= self._max_expected_delay
        if not has_room and self._expected_ends:
            self._last_rejection = time.perf_counter()
        return has_room

    def _is_queue_full(self) -> bool:
        if self.queue_length >= self.limits.max_queue:
            with self._lock:
                self._drop_cancelled()
        return self.queue_length >= self.limits.max_queue

    @property
    def is_overloaded(self) -> bool:
        """Whether calls were rejected a moment ago."""
        return time.perf_counter() < self._last_rejection + OVERLOAD_SECONDS

    def expected_delay(self, num_tokens: float) -> float:
        """Return the expected seconds until a call of this many tokens is done.

        0 if nothing is in its way, so that it is accepted. Right after rejections it is only lower then, since a long
        text would be late by itself.
        """
        ends, estimate = list(self._expected_ends.values()), self._estimates[len(self._threads) == 1]
        if not ends:
            return ALONE_SHARE * estimate(num_tokens) if self.is_overloaded else 0.0
        is_free = len(ends) < len(self._threads) and not self._has_all_cores
        seconds_until_start = 0.0 if is_free else max(min(ends) - time.perf_counter(), 0.0)
        return seconds_until_start + estimate(self._num_waiting_tokens + num_tokens)

    def check_room(self, num_tokens: float = 0.0) -> None:
        """Raise if a call of this many tokens may not wait."""
        if not self.has_room(num_tokens):
            raise self.overload_error()

    def overload_error(self) -> RequestError:
        """Return the error of a request that is rejected."""
        message = f"{self.queue_length} requests are waiting for the model {self.name!r}: try again later"
        return RequestError("overloaded", message, {"Retry-After": str(RETRY_AFTER_SECONDS)})

    def record_size(self, num_tokens: int, num_bytes: int) -> None:
        """Note how many tokens a request of this size has, to guess those of requests that are not read."""
        self.tokens_per_byte += MEAN_WEIGHT * (num_tokens / max(num_bytes, 1) - self.tokens_per_byte)

    def submit(self, work: Call | TextGeneration) -> None:
        """Add work to the queue; raise if it is full."""
        self.check_room(work.num_tokens if isinstance(work, Call) else 0)
        with self._lock:
            if self._is_closing:
                raise RequestError("unavailable", "the server is shutting down")
            if isinstance(work, Call):
                self._calls.append(work)
                self._num_waiting_tokens += work.num_tokens
            else:
                self._generations.append(work)
            self._wake_stream()

    def close(self, timeout: float = 10.0) -> None:
        """Finish what was submitted and end the threads."""
        with self._lock:
            self._is_closing = True
            for turn in self._turns:
                turn.notify()
        for thread in self._threads:
            thread.join(timeout)

    # -------------------------------------------------------------------------------------- the worker's threads

    def _run(self, stream: int) -> None:
        if self._warm_up is not None:
            try:
                self.streams.share_cores(len(self._threads) == 1)
                self._warm_up()
            except Exception as error:  # requests will say what is wrong
                logger.warning(f"the first call of the model {self.name} failed: {type(error).__name__}")
        while True:
            with self._lock:
                was_idle = self._wait_for_work(stream)
                if was_idle is None:
                    return
                batch = self._take_calls(stream, was_idle)
                if stream == 0:
                    self._scheduler.admit(self._generations)
                    self._is_generating = bool(self._scheduler.batches)
                if batch:
                    self._start_batch(stream, batch)
            if batch:
                self._run_batch(stream, batch)
            if self._is_generating and stream == 0:
                self.streams.share_cores(True)
                self._scheduler.step()

    def _can_run(self, stream: int) -> bool:
        """Whether a stream may take work: the first any if no other computes, others only calls that can share."""
        is_alone = not self._expected_ends
        if stream == 0 and is_alone:
            return bool(self._calls or self._generations or self._scheduler.batches)
        if self._has_all_cores or self._is_generating or self._generations or not self._calls:
            return False
        return self._calls[0].is_parallel and (not is_alone or len(self._calls) > 1 or self.is_overloaded)

    def _wake_stream(self) -> None:
        """Wake a stream for which there is work, and those that wait for a batch to fill when it is full."""
        if self._filling and self._num_waiting_tokens >= self.batch_tokens:
            for stream in self._filling:
                self._turns[stream].notify()
        for stream in self._idle:
            if self._can_run(stream):
                self._turns[stream].notify()
                return

    def _wait_for_work(self, stream: int) -> bool | None:
        """Wait until a stream has work; return whether the whole model was idle before, or None to end."""
        was_idle = False
        self._drop_cancelled()
        if stream == 0:
            self._is_generating = bool(self._scheduler.batches)
        while not self._can_run(stream):
            if self._is_closing and not (self._calls or self._generations or self._is_generating):
                for turn in self._turns:
                    turn.notify()
                return None
            self._idle.add(stream)
            was_idle = not self._expected_ends
            self._turns[stream].wait()
            self._idle.discard(stream)
            self._drop_cancelled()
        return was_idle and not self._expected_ends

    def _drop_cancelled(self) -> None:
        if any(call.is_cancelled for call in self._calls):
            self._calls = deque(call for call in self._calls if not call.is_cancelled)
            self._num_waiting_tokens = sum(call.num_tokens for call in self._calls)
        if any(each.is_cancelled for each in self._generations):
            self._generations = deque(each for each in self._generations if not each.is_cancelled)

    def _take_calls(self, stream: int, was_idle: bool) -> list[Call]:
        """Take the oldest call and others with its key, up to the budget; wait for more if the model is busy."""
        if self._calls and not self._expected_ends and self._calls[0].arrival > self._last_end:
            was_idle = True  # the call came after the last batch
        if self._calls and not was_idle and not self._scheduler.batches and not self._is_closing:
            deadline = self._calls[0].arrival + self._max_wait
            while self._calls and not self._is_full() and (rest := deadline - time.perf_counter()) > 0:
                self._filling.add(stream)
                self._turns[stream].wait(rest)
                self._filling.discard(stream)
                self._drop_cancelled()
            if not self._can_run(stream):
                return []
        if not self._calls:
            return []
        budget: float = self.batch_tokens
        if self._calls[0].is_parallel:  # leave the other streams that are free their part
            budget = min(budget, self._num_waiting_tokens / (len(self._threads) - len(self._expected_ends)))
        batch: list[Call] = []
        others: deque[Call] = deque()
        num_tokens = 0
        for call in self._calls:
            if not batch or (call.key == batch[0].key and num_tokens + call.num_tokens <= budget):
                batch.append(call)
                num_tokens += call.num_tokens
            else:
                others.append(call)
        self._calls = others
        self._num_waiting_tokens -= num_tokens
        return batch

    def _is_full(self) -> bool:
        first = self._calls[0]
        return sum(call.num_tokens for call in self._calls if call.key == first.key) >= self.batch_tokens

    def _start_batch(self, stream: int, batch: list[Call]) -> None:
        """Record that a stream computes; on all cores if nothing else could use them now."""
        start = time.perf_counter()
        has_others = bool(self._calls) or len(batch) > 1 or self.is_overloaded
        is_shared = len(self._threads) > 1 and batch[0].is_parallel and has_others
        self._has_all_cores = not self._expected_ends and not is_shared
        estimate = self._estimates[self._has_all_cores]
        self._expected_ends[stream] = start + estimate(sum(call.num_tokens for call in batch))
        for call in batch:
            call.start = start
        self._wake_stream()

    def _run_batch(self, stream: int, batch: list[Call]) -> None:
        """Run a batch and deliver its results, when the stream counts as free again: new calls may come at once."""
        start, num_tokens = time.perf_counter(), sum(call.num_tokens for call in batch)
        self.streams.share_cores(self._has_all_cores)
        outcomes = self._compute(batch)
        seconds = time.perf_counter() - start
        with self._lock:
            self._estimates[self._has_all_cores].add(num_tokens, seconds)
            self._has_all_cores = False
            del self._expected_ends[stream]
            self._last_end = time.perf_counter()
            self._wake_stream()
        if self.listener is not None:
            self.listener.record_batch(len(batch), num_tokens, seconds)
        deliver(outcomes)

    def _compute(self, batch: list[Call]) -> list[tuple[Call, Any]]:
        """Return the results of a batch; if it fails, run its halves, so that an error reaches its own call."""
        batch = [call for call in batch if not call.is_cancelled]
        if not batch:
            return []
        try:
            first_call = batch[0]
            inputs = first_call.inputs if len(batch) == 1 else first_call.join([call.inputs for call in batch])
            results = first_call.run(inputs)
        except Exception as error:
            if _is_memory_error(error):
                num_tokens = sum(call.num_tokens for call in batch)
                self._shrink(num_tokens)
                if len(batch) == 1 and self.resize is not None and self.batch_tokens >= MIN_BATCH_TOKENS:
                    return self._compute(batch)
            elif not isinstance(error, PolysemeError):
                logger.error(f"a batch of the model {self.name} failed: {type(error).__name__}", exc_info=error)
            if len(batch) == 1:
                return [(batch[0], error)]
            middle = len(batch) // 2
            return self._compute(batch[:middle]) + self._compute(batch[middle:])
        self._grow()
        outcomes: list[tuple[Call, Any]] = []
        first, end = 0, time.perf_counter()
        for call in batch:
            call.end = end
            outcomes.append((call, results[first : first + len(call.inputs)]))
            first += len(call.inputs)
        return outcomes

    def _shrink(self, num_tokens: int) -> None:
        """Halve the budget after memory ran out."""
        with self._lock:
            self.batch_tokens, self._num_successes = max(min(self.batch_tokens, num_tokens) // 2, 1), 0
            if self.resize is not None:
                self.resize(self.batch_tokens)
        logger.warning(f"out of memory: batches of {self.name} are limited to {self.batch_tokens:,} tokens for a while")

    def _grow(self) -> None:
        """Return to the full budget step by step."""
        with self._lock:
            if self.batch_tokens == self.limits.max_batch_tokens:
                return
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

    loop = outcomes[0][0].future.get_loop() if outcomes else None
    if loop is not None and not loop.is_closed():
        loop.call_soon_threadsafe(set_outcomes)

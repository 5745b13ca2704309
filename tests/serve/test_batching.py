"""Batches: a response does not depend on what else is in its batch, and errors reach their own request."""

import asyncio
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

import polyseme
from polyseme.errors import DataError
from polyseme.generation.continuous import ContinuousBatch
from polyseme.serve.api.errors import RequestError
from polyseme.serve.batching.worker import Call, ModelWorker, WorkerLimits
from tests.serve.models import TEXTS, running_server, send


class Recorder:
    """The sizes of batches."""

    def __init__(self):
        self.sizes = []

    def record_batch(self, num_calls, num_tokens, seconds):
        self.sizes.append((num_calls, num_tokens))


def run_calls(run, inputs, limits=None, tokens=1, keys=None, resize=None):
    """Submit calls at once while the worker is busy; return their outcomes and the sizes of the batches."""
    recorder, gate = Recorder(), threading.Event()

    async def submit():
        worker = ModelWorker("test", limits or WorkerLimits(), recorder, resize=resize)
        loop = asyncio.get_running_loop()
        blocker = Call("blocker", [0], 0, lambda _: gate.wait(5) and [0], loop.create_future())
        worker.submit(blocker)
        while not blocker.start:
            await asyncio.sleep(0.001)
        calls = [
            Call(keys[i] if keys else "key", each, tokens * len(each), run, loop.create_future())
            for i, each in enumerate(inputs)
        ]
        for call in calls:
            worker.submit(call)
        gate.set()
        outcomes = await asyncio.wait_for(asyncio.gather(*(c.future for c in calls), return_exceptions=True), 10)
        await asyncio.to_thread(worker.close)
        return outcomes

    return asyncio.run(submit()), recorder.sizes[1:]


def test_waiting_calls_run_together_and_get_their_own_results():
    outcomes, sizes = run_calls(lambda values: [v * v for v in values], [[1, 2], [3], [4, 5, 6]])
    assert outcomes == [[1, 4], [9], [16, 25, 36]] and sizes == [(3, 6)]


def test_batches_fill_to_the_token_budget():
    limits = WorkerLimits(max_batch_tokens=100)
    outcomes, sizes = run_calls(list, [[i] for i in range(10)], limits, tokens=30)
    assert outcomes == [[i] for i in range(10)]
    assert sizes == [(3, 90), (3, 90), (3, 90), (1, 30)]


def test_calls_with_other_options_run_by_themselves():
    keys = ["a", "b", "a", "b"]
    outcomes, sizes = run_calls(list, [[0], [1], [2], [3]], keys=keys)
    assert outcomes == [[0], [1], [2], [3]] and sizes == [(2, 2), (2, 2)]


def test_an_error_reaches_its_own_call():
    def run(values):
        if 3 in values:
            raise DataError("three")
        return values

    outcomes, _ = run_calls(run, [[1], [2], [3], [4]])
    assert [outcomes[i] for i in (0, 1, 3)] == [[1], [2], [4]] and isinstance(outcomes[2], DataError)


def test_out_of_memory_halves_the_batch_and_recovers():
    sizes, budgets = [], []

    def run(values):
        sizes.append(len(values))
        if len(values) > 2:
            raise MemoryError
        return values

    outcomes, _ = run_calls(
        run, [[i] for i in range(8)], WorkerLimits(max_batch_tokens=8000), 1000, resize=budgets.append
    )
    assert outcomes == [[i] for i in range(8)]
    assert sizes == [8, 4, 2, 2, 4, 2, 2] and budgets == [4000, 2000, 1000]


def test_a_request_that_is_too_large_for_memory_is_divided_by_the_model_or_fails():
    budget = [4096]

    def run(values):
        if budget[0] > 300:
            raise MemoryError
        return values

    def resize(num_tokens):
        budget[0] = num_tokens

    outcomes, _ = run_calls(run, [[7]], tokens=4096, resize=resize)
    assert outcomes == [[7]] and budget == [256]

    def fail(values):
        raise RuntimeError("CUDA out of memory")

    outcomes, _ = run_calls(fail, [[7], [8]], tokens=4096, resize=resize)
    assert all(isinstance(each, RuntimeError) for each in outcomes)


def test_the_budget_grows_again_after_out_of_memory():
    worker = ModelWorker("test", WorkerLimits(max_batch_tokens=1000))
    worker._shrink(1000)
    assert worker.batch_tokens == 500
    for _ in range(64):
        worker._grow()
    assert worker.batch_tokens == 1000
    worker.close()


def test_a_full_queue_rejects_at_once():
    async def overflow():
        gate = threading.Event()
        worker, loop = ModelWorker("test", WorkerLimits(max_queue=2)), asyncio.get_running_loop()
        calls = [Call(i, [i], 1, lambda v: gate.wait(5) and v, loop.create_future()) for i in range(4)]
        worker.submit(calls[0])
        while not calls[0].start:
            await asyncio.sleep(0.001)
        worker.submit(calls[1])
        worker.submit(calls[2])
        start = time.perf_counter()
        with pytest.raises(RequestError) as rejected:
            worker.submit(calls[3])
        assert time.perf_counter() - start < 0.01
        assert rejected.value.status == 429 and rejected.value.headers["Retry-After"] == "1"
        calls[1].future.cancel()  # its place is free again
        worker.submit(calls[3])
        gate.set()
        assert await asyncio.wait_for(calls[3].future, 5) == [3]
        await asyncio.to_thread(worker.close)
        assert not any(thread.is_alive() for thread in worker._threads)

    asyncio.run(overflow())


def test_an_idle_worker_does_not_wait_and_a_busy_one_at_most_max_wait():
    async def measure():
        worker, loop = ModelWorker("test", WorkerLimits(max_wait=0.3)), asyncio.get_running_loop()
        start = time.perf_counter()
        call = Call("key", [1], 1, list, loop.create_future())
        worker.submit(call)
        await call.future
        assert time.perf_counter() - start < 0.2
        gate = threading.Event()
        blocker = Call("blocker", [0], 1, lambda v: gate.wait(5) and v, loop.create_future())
        worker.submit(blocker)
        while not blocker.start:
            await asyncio.sleep(0.001)
        late = Call("key", [1], 1, list, loop.create_future())
        worker.submit(late)
        gate.set()
        await late.future
        assert 0.25 < late.start - late.arrival < 0.6
        await asyncio.to_thread(worker.close)

    asyncio.run(measure())


@pytest.mark.parametrize("name", ["bert", "gpt2"])
def test_vectors_are_the_same_alone_and_in_any_batch(url, models, name):
    alone = [models[name].embed(text) for text in TEXTS]
    with ThreadPoolExecutor(16) as pool:

        def embed(i):
            body = {"model": name, "text": TEXTS[i % len(TEXTS)]}
            return i, send(url, "/v1/embed", body).json["results"][0]["vectors"]

        for i, vector in pool.map(embed, range(64)):
            np.testing.assert_allclose(vector, alone[i % len(TEXTS)], atol=1e-5)
    metrics = send(url, "/metrics").content.decode()
    values = dict(line.rsplit(" ", 1) for line in metrics.splitlines() if not line.startswith("#"))
    num_batches = float(values[f'polyseme_batch_requests_count{{model="{name}"}}'])
    num_requests = float(values[f'polyseme_batch_requests_sum{{model="{name}"}}'])
    assert num_batches < num_requests


def test_one_bad_request_does_not_disturb_others(url):
    texts = ["The old cat", "the cat " * 90, "", "The young dog"] * 8
    with ThreadPoolExecutor(16) as pool:
        statuses = list(pool.map(lambda t: send(url, "/v1/score", {"model": "bert", "text": t}).status, texts))
    assert statuses == [200, 413, 422, 200] * 8


def test_masks_of_several_texts_are_filled_as_one_by_one(models):
    texts = [f"{text.split()[0]} [MASK] {' '.join(text.split()[1:n])} [MASK]" for n, text in enumerate(TEXTS, 2)]
    together, alone = models["bert"].fill(texts), [models["bert"].fill(text) for text in texts]
    for first, second in zip(together, alone):
        assert [[c.token for c in mask] for mask in first] == [[c.token for c in mask] for mask in second]
        values = [[[c.probability for c in mask] for mask in masks] for masks in (first, second)]
        np.testing.assert_allclose(*values, atol=1e-6)


def test_overload_gets_429_and_service_returns(models):
    lock = threading.Lock()

    class Slow(type(models["bert"])):
        def _embed_sequences(self, *args):
            with lock:
                time.sleep(0.05)
            return super()._embed_sequences(*args)

    slow = Slow(models["bert"].folder)
    with running_server({"slow": slow}, max_queue=4, max_batch_tokens=1) as url:
        times = []

        def request(i):
            start = time.perf_counter()
            answer = send(url, "/v1/embed", {"text": f"the cat {i}"})
            times.append((answer.status, time.perf_counter() - start))
            return answer

        with ThreadPoolExecutor(24) as pool:
            answers = list(pool.map(request, range(24)))
        statuses = [answer.status for answer in answers]
        assert set(statuses) == {200, 429} and statuses.count(200) >= 5
        rejected = next(answer for answer in answers if answer.status == 429)
        assert rejected.headers["retry-after"] == "1" and rejected.json["error"]["type"] == "overloaded"
        assert min(seconds for status, seconds in times if status == 429) < 0.1
        assert request(0).status == 200


def test_deadlines(models):
    class Slow(type(models["bert"])):
        def _embed_sequences(self, *args):
            time.sleep(0.3)
            return super()._embed_sequences(*args)

    with running_server({"slow": Slow(models["bert"].folder)}) as url:
        start = time.perf_counter()
        answer = send(url, "/v1/embed", {"text": "the cat", "timeout": 0.05})
        assert answer.status == 503 and answer.json["error"]["type"] == "deadline_exceeded"
        assert time.perf_counter() - start < 0.25
        answer = send(url, "/v1/embed", {"text": "the cat"}, headers={"X-Timeout": "0.05"})
        assert answer.status == 503
        assert send(url, "/v1/embed", {"text": "the cat"}, headers={"X-Timeout": "soon"}).status == 400
        with pytest.raises(polyseme.PolysemeError, match="timeout"):
            polyseme.connect(url, timeout=0.1).embed("the cat")


def test_a_disconnected_client_is_not_computed_for(models):
    import socket

    started, computed = threading.Event(), []

    class Slow(type(models["bert"])):
        def _embed_sequences(self, sequences, *args):
            computed.extend(sequences.lengths.tolist())
            started.set()
            time.sleep(0.2)
            return super()._embed_sequences(sequences, *args)

    with running_server({"slow": Slow(models["bert"].folder)}) as url:
        host, port = url.removeprefix("http://").split(":")

        def start_request(text):
            body = f'{{"text": "{text}"}}'.encode()
            head = f"POST /v1/embed HTTP/1.1\r\nHost: {host}\r\nContent-Length: {len(body)}\r\n"
            head += "Content-Type: application/json"
            connection = socket.create_connection((host, int(port)))
            connection.sendall(head.encode() + b"\r\n\r\n" + body)
            return connection

        first = start_request("the cat sees")
        assert started.wait(5)
        start_request("the dog sees the cat").close()  # waits in the queue, and is gone before its turn
        time.sleep(0.05)
        assert send(url, "/v1/embed", {"text": "the"}).status == 200
        first.close()
        assert computed == [5, 3]  # tokens with special ones


def test_a_disconnected_stream_stops(url, monkeypatch):
    steps, sample = [], ContinuousBatch.sample

    def slow_sample(batch):
        time.sleep(0.02)
        steps.append(len(batch.rows))
        return sample(batch)

    monkeypatch.setattr(ContinuousBatch, "sample", slow_sample)
    events = polyseme.connect(url, "gpt2").stream_events({"text": "The cat", "max_new_tokens": 50})
    next(events)
    assert 'polyseme_active_generations{model="gpt2"} 1' in send(url, "/metrics").content.decode()
    assert send(url, "/v1/score", {"model": "gpt2", "text": "the cat"}).status == 200  # between two steps
    events.close()
    deadline = time.perf_counter() + 5
    while 'polyseme_active_generations{model="gpt2"} 0' not in send(url, "/metrics").content.decode():
        assert time.perf_counter() < deadline
    assert len(steps) < 40


def test_concurrent_requests_keep_their_own_options(url, models):
    def request(i):
        if i % 2:
            answer = send(url, "/v1/fill", {"model": "bert", "text": "The [MASK] cat", "top_k": i})
            return len(answer.json["results"][0][0]) == i
        layers = ("last", 0, "all", "sum_all")[i // 2 % 4]
        answer = send(url, "/v1/embed", {"model": "bert", "text": "The old cat", "layers": layers})
        expected = models["bert"].embed("The old cat", layers=layers)
        return np.allclose(answer.json["results"][0]["vectors"], expected, atol=1e-5)

    with ThreadPoolExecutor(16) as pool:
        assert all(pool.map(request, range(1, 49)))


def test_a_worker_survives_a_failed_warm_up():
    def fail():
        raise MemoryError

    async def run():
        worker = ModelWorker("test", WorkerLimits(), warm_up=fail)
        call = Call("key", [1], 1, list, asyncio.get_running_loop().create_future())
        worker.submit(call)
        assert await asyncio.wait_for(call.future, 5) == [1]
        await asyncio.to_thread(worker.close)

    asyncio.run(run())

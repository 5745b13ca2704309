"""Load: streams that share the cores, admission by time, and rejection before a request is read."""

import asyncio
import http.client
import json
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

from polyseme.serve import state as state_module
from polyseme.serve.admission import drain
from polyseme.serve.api.errors import RequestError
from polyseme.serve.batching.estimate import BatchTimeEstimate
from polyseme.serve.batching.worker import Call, ModelWorker, Streams, WorkerLimits
from tests.serve.models import TEXTS, running_server, send


class Cores:
    """Whether each batch had all cores."""

    def __init__(self):
        self.shares = []

    def share(self, has_all):
        self.shares.append(has_all)


def make_worker(cores, **limits):
    return ModelWorker("test", WorkerLimits(**limits), streams=Streams(2, cores.share))


def run_with_worker(worker, use):
    """Run an async function of the worker and a function that makes calls; close the worker."""

    async def run():
        loop = asyncio.get_running_loop()

        def make_call(function, num_tokens=1, is_parallel=True, key="key"):
            return Call(key, [0], num_tokens, function, loop.create_future(), is_parallel)

        try:
            return await asyncio.wait_for(use(make_call), 10)
        finally:
            await asyncio.to_thread(worker.close)

    return asyncio.run(run())


async def wait_for_start(call):
    while not call.start:
        await asyncio.sleep(0.001)


def test_waiting_calls_are_computed_by_several_streams_at_once():
    cores, barrier = Cores(), threading.Barrier(2)
    worker = make_worker(cores)

    def meet(values):
        barrier.wait(5)  # passes only if both batches are computed at the same time
        return values

    async def use(make_call):
        gate = threading.Event()
        alone = make_call(lambda values: gate.wait(5) and values, is_parallel=False)
        worker.submit(alone)
        await wait_for_start(alone)
        calls = [make_call(meet) for _ in range(2)]
        for call in calls:
            worker.submit(call)
        gate.set()
        return await asyncio.gather(*(call.future for call in (alone, *calls)))

    assert run_with_worker(worker, use) == [[0], [0], [0]]
    assert cores.shares[0] is True and cores.shares[1:] == [False, False]


def test_a_single_call_has_all_cores():
    cores = Cores()
    worker = make_worker(cores)

    async def use(make_call):
        for _ in range(3):
            call = make_call(list)
            worker.submit(call)
            await call.future

    run_with_worker(worker, use)
    assert cores.shares == [True] * 3


def test_after_a_rejection_a_single_call_shares_the_cores():
    cores = Cores()
    worker = make_worker(cores, max_queue=1)

    async def use(make_call):
        for _ in range(2):
            call = make_call(list)
            worker.submit(call)
            await call.future
            worker._last_rejection = time.perf_counter()
        assert worker.is_overloaded
        fixed = make_call(list, is_parallel=False)
        worker.submit(fixed)
        await fixed.future

    run_with_worker(worker, use)
    assert cores.shares == [True, False, True]


def test_calls_that_cannot_run_in_parallel_run_one_by_one():
    running, most, lock = [0], [0], threading.Lock()

    def count(values):
        with lock:
            running[0] += 1
            most[0] = max(most[0], running[0])
        threading.Event().wait(0.005)
        with lock:
            running[0] -= 1
        return values

    worker = make_worker(Cores(), max_wait=0.0)

    async def use(make_call):
        calls = [make_call(count, is_parallel=i % 3 == 0, key=i) for i in range(12)]
        for call in calls:
            worker.submit(call)
            await asyncio.sleep(0)
        await asyncio.gather(*(call.future for call in calls))
        singles = [make_call(count, is_parallel=False, key=i) for i in range(6)]
        most[0] = 0
        for call in singles:
            worker.submit(call)
        await asyncio.gather(*(call.future for call in singles))

    run_with_worker(worker, use)
    assert most[0] == 1


def test_closing_finishes_the_calls_of_all_streams():
    worker, gate = make_worker(Cores()), threading.Event()

    async def use(make_call):
        calls = [make_call(lambda values: gate.wait(5) and values, key=i) for i in range(5)]
        for call in calls:
            worker.submit(call)
        await wait_for_start(calls[0])
        closing = asyncio.create_task(asyncio.to_thread(worker.close))
        gate.set()
        await closing
        return await asyncio.gather(*(call.future for call in calls))

    assert run_with_worker(worker, use) == [[0]] * 5


def test_vectors_do_not_depend_on_the_streams(models, monkeypatch):
    monkeypatch.setattr(state_module.torch, "get_num_threads", lambda: 2)
    monkeypatch.setattr(state_module.torch, "set_num_threads", lambda number: None)
    expected = models["bert"].embed(TEXTS)
    with running_server({"bert": models["bert"]}) as url, ThreadPoolExecutor(16) as pool:
        answers = list(pool.map(lambda i: send(url, "/v1/embed", {"text": TEXTS[i % len(TEXTS)]}), range(64)))
    for i, answer in enumerate(answers):
        np.testing.assert_allclose(answer.json["results"][0]["vectors"], expected[i % len(TEXTS)], atol=1e-5)


def test_streams_share_the_threads_of_torch(monkeypatch):
    numbers = []
    monkeypatch.setattr(state_module.torch, "set_num_threads", numbers.append)
    for num_threads, number, share in ((1, 1, 1), (2, 2, 1), (6, 4, 1), (16, 4, 4)):
        streams = state_module.make_streams(num_threads)
        assert streams.number == number
        streams.share_cores(True)
        streams.share_cores(False)
        assert numbers[-2:] == [num_threads, share]


# ------------------------------------------------------------------------------------------------ admission


def test_the_time_of_a_batch_is_a_line_over_its_tokens():
    estimate = BatchTimeEstimate()
    assert estimate(100) == 0
    estimate.add(100, 0.02)
    assert estimate(10) == pytest.approx(0.02)  # one batch says nothing about the slope
    for num_tokens in (10, 50, 200, 400):
        estimate.add(num_tokens, 0.01 + 0.0001 * num_tokens)
    assert estimate(300) == pytest.approx(0.04, rel=0.01) and estimate(0) == pytest.approx(0.01, rel=0.01)
    shrinking = BatchTimeEstimate()
    for num_tokens, seconds in ((10, 0.5), (1000, 0.1)):
        shrinking.add(num_tokens, seconds)
    assert shrinking(10_000) > 0


def test_calls_that_would_take_too_long_are_rejected():
    worker, gate = make_worker(Cores(), max_delay=1.0), threading.Event()  # 0.5 s are accepted

    async def use(make_call):
        for num_tokens, seconds in ((10, 0.1), (100, 1.0)):
            worker._estimates[False].add(num_tokens, seconds)
        assert worker.expected_delay(1000) == 0  # nothing is in its way
        running = [make_call(lambda values: gate.wait(5) and values, 10, False) for _ in range(1)]
        worker.submit(running[0])
        await wait_for_start(running[0])
        worker.check_room(20)
        with pytest.raises(RequestError) as rejected:
            worker.submit(make_call(list, 100))
        assert rejected.value.status == 429 and rejected.value.headers["Retry-After"] == "1"
        waiting = make_call(list, 30)
        worker.submit(waiting)
        assert not worker.has_room(30)
        gate.set()
        await waiting.future
        assert worker.is_overloaded and not worker.has_room(1000) and worker.has_room(60)
        worker._last_rejection = -1.0  # a while ago
        assert worker.has_room(1000)

    run_with_worker(worker, use)


@pytest.mark.parametrize("num_streams", [1, 2])
def test_the_time_of_batches_is_learned(num_streams):
    worker = ModelWorker("test", WorkerLimits(max_delay=10.0), streams=Streams(num_streams))
    gates = [threading.Event() for _ in range(2)]

    async def use(make_call):
        delays = []
        for gate in gates:
            blocker = make_call(lambda values, gate=gate: gate.wait(5) and values, is_parallel=False)
            worker.submit(blocker)
            await wait_for_start(blocker)
            calls = [make_call(list, num_tokens=5) for _ in range(4)]
            for call in calls:
                worker.submit(call)
            delays.append(worker.expected_delay(10))
            gate.set()
            await asyncio.gather(*(call.future for call in (blocker, *calls)))
        assert delays[0] == 0 < delays[1]

    run_with_worker(worker, use)


@pytest.fixture
def full_server(models):
    """A server with a full queue: one request is computed, one waits."""
    started, gate = threading.Event(), threading.Event()

    class Slow(type(models["bert"])):
        def _embed_sequences(self, *args):
            if not warm:
                started.set()
                gate.wait(10)
            return super()._embed_sequences(*args)

    warm = [True]
    with (
        running_server({"slow": Slow(models["bert"].folder)}, max_queue=1, max_batch_tokens=1) as url,
        ThreadPoolExecutor(2) as pool,
    ):
        assert send(url, "/v1/embed", {"text": "the cat"}).status == 200
        warm.clear()
        first = pool.submit(send, url, "/v1/embed", {"text": "the cat"})
        assert started.wait(5)
        second = pool.submit(send, url, "/v1/embed", {"text": "the dog"})
        while "polyseme_queue_length" + '{model="slow"} 1' not in send(url, "/metrics").content.decode():
            pass
        yield url
        gate.set()
        assert [first.result().status, second.result().status] == [200, 200]


def test_a_full_server_rejects_without_reading_and_keeps_the_connection(full_server):
    host = full_server.removeprefix("http://")
    connection = http.client.HTTPConnection(host, timeout=10)
    headers = {"Content-Type": "application/json"}
    for body in (b"no JSON", b"x" * 300_000, json.dumps({"text": "the cat"}).encode()):
        connection.request("POST", "/v1/embed", body, headers)
        answer = connection.getresponse()
        content = json.loads(answer.read())
        assert answer.status == 429 and answer.headers["Retry-After"] == "1" and not answer.will_close
        assert content["error"]["type"] == "overloaded" and "'slow'" in content["error"]["message"]
        assert answer.headers["X-Content-Type-Options"] == "nosniff"
    socket = connection.sock
    connection.request("GET", "/health")
    answer = connection.getresponse()
    assert answer.status == 200 and answer.read() and connection.sock is socket  # the same connection
    connection.close()
    assert send(full_server, "/v1/nothing", {"text": "the cat"}).status == 404
    metrics = send(full_server, "/metrics").content.decode()
    assert 'polyseme_requests_total{verb="embed",status="429"} 3' in metrics


def test_a_client_that_waits_for_permission_is_rejected_and_sends_nothing(full_server):
    host = full_server.removeprefix("http://")
    connection = http.client.HTTPConnection(host, timeout=10)
    connection.putrequest("POST", "/v1/embed")
    for name, value in {"Content-Length": "100", "Content-Type": "application/json", "Expect": "100-continue"}.items():
        connection.putheader(name, value)
    connection.endheaders()
    answer = connection.getresponse()
    assert answer.status == 429 and answer.will_close
    connection.close()


def test_a_foreign_host_learns_nothing_about_the_load(full_server):
    assert send(full_server, "/v1/embed", {"text": "a"}, headers={"Host": "attacker.example"}).status == 403


def test_draining_a_body():
    async def run(messages, headers=()):
        remaining = list(messages)

        async def receive():
            return remaining.pop(0)

        return await drain({"headers": list(headers)}, receive), len(remaining)

    part = {"type": "http.request", "body": b"abc", "more_body": True}
    last, end = {"type": "http.request", "body": b""}, {"type": "http.disconnect"}
    assert asyncio.run(run([part, part, last])) == (True, 0)
    assert asyncio.run(run([part, end])) == (None, 0)
    assert asyncio.run(run([part], [(b"expect", b"100-continue")])) == (False, 1)
    large = part | {"body": bytes(1 << 20)}
    assert asyncio.run(run([large] * 9)) == (False, 6)


# --------------------------------------------------------------------------------------------------- errors


@pytest.mark.parametrize(
    "path, body, message",
    [
        ("/v1/embed", {"tex": "a"}, "unknown key 'tex' in a request to /v1/embed; did you mean 'text'?"),
        ("/v1/embed", {"text": "a", "kind": "EmbedRequest"}, "unknown key 'kind' in a request to /v1/embed"),
        ("/v1/next_sentence", [1], "a request to /v1/next_sentence: expected an object, got [1]"),
        (
            "/v1/completions",
            {"prompt": "a", "stream_options": {"x": 1}},
            "unknown key 'x' in an object at stream_options",
        ),
        ("/v1/completions", {"prompt": "a", "stream_options": 3}, "stream_options is 3, expected an object"),
    ],
)
def test_errors_name_the_endpoint_or_the_field(url, path, body, message):
    answer = send(url, path, body)
    assert answer.status == 422 and answer.json["error"]["type"] == "invalid_request"
    assert message in answer.json["error"]["message"] and "Request" not in answer.json["error"]["message"]

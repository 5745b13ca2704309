"""Several processes at one port: all answer, one that ends is replaced, the metrics are those of all."""

import contextlib
import os
import re
import signal
import sys
import threading
import time
from pathlib import Path
from typing import ClassVar

import pytest

import polyseme
from polyseme.errors import PolysemeError
from polyseme.serve.config import ServerConfig
from polyseme.serve.metrics import Metrics
from polyseme.serve.processes import supervisor as processes
from polyseme.serve.processes.shared_metrics import EndedMetrics, SharedMetrics
from polyseme.serve.processes.supervisor import ModelSources, Supervisor, serve_paths
from polyseme.serve.server import serve_models
from tests.serve.models import save_small_model, send
from tests.serve.test_server import start_server

pytestmark = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="needs Linux")


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return save_small_model(tmp_path_factory.mktemp("processes") / "gpt2", "gpt2", max_len=128)


def child_pids(process) -> list[int]:
    return [int(pid) for pid in Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()]


def read_metrics(url) -> dict[str, float]:
    lines = send(url, "/metrics").content.decode().splitlines()
    return {name: float(value) for name, value in (line.rsplit(" ", 1) for line in lines if line[0] != "#")}


def count_answers(pid) -> int:
    """Return the number of texts that a process has generated, as far as it has published it."""
    parts = [
        re.search(r'"200".*?(\d+)', path.read_text(), re.S) for path in Path("/dev/shm").glob(f"polyseme-*/{pid}.json")
    ]
    return int(parts[0][1]) if any(parts) else 0


def wait_for(condition, seconds=30.0):
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.05)


def test_two_processes_answer_are_replaced_and_drain(folder):
    process, url = start_server(folder, "--workers", "2")
    try:
        pids = child_pids(process)
        body = {"text": "The old cat", "max_new_tokens": 3}
        num_requests, counts = 0, [0, 0]

        def have_both_answered():  # whoever accepts a connection first answers it
            nonlocal num_requests, counts
            assert send(url, "/v1/generate", body).status == 200
            num_requests += 1
            counts = [count_answers(pid) for pid in pids]
            return all(counts)

        wait_for(have_both_answered)
        wait_for(lambda: sum(map(count_answers, pids)) == num_requests)
        metrics, key = read_metrics(url), 'polyseme_requests_total{verb="generate",status="200"}'
        assert metrics[key] == num_requests and metrics["polyseme_workers"] == 2
        (shared,) = {path.parent for path in Path("/dev/shm").glob(f"polyseme-*/{pids[0]}.json")}

        os.kill(pids[0], signal.SIGKILL)
        wait_for(lambda: process.poll() is None and pids[0] not in child_pids(process))
        assert send(url, "/v1/generate", body).status == 200
        wait_for(lambda: read_metrics(url)["polyseme_workers"] == 2)
        assert len(child_pids(process)) == 2 and send(url, "/ready").status == 200
        metrics = read_metrics(url)
        assert metrics[key] >= num_requests and metrics["polyseme_worker_restarts_total"] == 1, (
            "counts of the old one remain"
        )

        bodies = [{"text": f"The old cat {i}", "max_new_tokens": 100, "num_top_tokens": 1} for i in range(4)]
        streams = [polyseme.connect(url).stream_events(body) for body in bodies]
        assert [next(stream)["event"] for stream in streams] == ["token"] * 4
        process.send_signal(signal.SIGTERM)
        assert [list(stream)[-1]["event"] for stream in streams] == ["done"] * 4
        assert process.wait(30) == 0 and not shared.exists()
        assert not [pid for pid in pids if Path(f"/proc/{pid}").exists()]
    finally:
        process.kill()
        process.stderr.close()


def test_bad_options_are_one_line(folder, rejects, tmp_path):
    rejects("serve", "--port", 0, folder, "--workers", 0, match="workers")
    rejects("serve", "--port", 0, folder, "--workers", 2, "--device", "cuda", match=["GPU", "--device to cpu"])
    with pytest.raises(PolysemeError, match="num_workers is 0"):
        serve_paths(ModelSources((str(folder),)), ServerConfig(port=0, num_workers=0))
    with pytest.raises(PolysemeError, match="use serve_paths"):
        serve_models({}, ServerConfig(num_workers=2))


# ----------------------------------------------------------------------------------- without further processes


class FakeWorker:
    """A process that does what a test says."""

    instances: ClassVar[list] = []

    def __init__(self, settings, environment):
        self.settings, self.environment, self.start = settings, environment, time.monotonic()
        self.is_ready, self.sent, self.inbox, self.returncode = False, [], [], None
        self.name, self.process = str(len(self.instances)), self
        self.instances.append(self)

    def poll(self):
        return self.returncode

    def send(self, message):
        self.sent.append(message)

    def receive(self):
        messages, self.inbox = self.inbox, []
        return messages

    def terminate(self):
        self.returncode = 0

    def close(self):
        pass


@pytest.fixture
def supervisor(tmp_path, monkeypatch):
    monkeypatch.setattr(processes, "WorkerProcess", FakeWorker)
    monkeypatch.setattr(processes, "FIRST_DELAY", 0.0)
    monkeypatch.setattr(FakeWorker, "instances", [])
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    return Supervisor(ModelSources(("model",)), ServerConfig(num_workers=2, metrics_folder=str(tmp_path)))


def test_processes_listen_when_all_are_ready(supervisor):
    supervisor.check()
    first, second = FakeWorker.instances
    assert int(first.environment["OMP_NUM_THREADS"]) >= 1 and first.settings["sources"]["paths"] == ("model",)
    first.inbox.append({"status": "ready"})
    supervisor.check()
    assert not first.sent
    second.inbox.append({"status": "ready"})
    supervisor.check()
    assert first.sent == [{"announces": True}] and second.sent == [{"announces": False}]
    second.returncode = -9
    supervisor.check()
    supervisor.check()
    third = FakeWorker.instances[2]
    third.inbox.append({"status": "ready"})
    supervisor.check()
    assert third.sent == [{"announces": False}] and len(FakeWorker.instances) == 3
    supervisor.stop()
    assert all(worker.returncode is not None for worker in FakeWorker.instances)


def test_the_server_ends_if_processes_keep_ending_at_their_start(supervisor):
    with pytest.raises(PolysemeError, match="3 workers in a row ended before they were ready, the last with status 7"):
        for _ in range(20):
            supervisor.check()
            for worker in FakeWorker.instances:
                worker.returncode = 7
    assert len(FakeWorker.instances) <= 4


def test_one_that_works_keeps_the_server_alive(supervisor):
    supervisor.check()
    for worker in FakeWorker.instances:
        worker.inbox.append({"status": "ready"})
    supervisor.check()
    for _ in range(12):
        supervisor.check()
        for worker in FakeWorker.instances[1:]:
            worker.returncode = 7
    assert len(FakeWorker.instances) > 5 and supervisor.delays[0] == 0.0


def test_an_error_of_a_process_is_that_of_the_server(supervisor):
    supervisor.check()
    FakeWorker.instances[1].inbox.append({"error": "there is no model folder"})
    with pytest.raises(PolysemeError, match="there is no model folder"):
        supervisor.check()


def test_a_signal_stops_all(supervisor):
    threading.Timer(0.2, lambda: signal.raise_signal(signal.SIGTERM)).start()
    if threading.current_thread() is threading.main_thread():
        supervisor.run()
        assert supervisor.signals == [signal.SIGTERM] and all(w.returncode == 0 for w in FakeWorker.instances)


def test_metrics_of_processes_are_added_up_and_never_go_down(tmp_path):
    every = [Metrics(), Metrics()]
    gauges = {"polyseme_queue_length": {(("model", "a"),): 2.0}, "polyseme_max_batch_tokens": {(("model", "a"),): 64.0}}
    shared = [SharedMetrics(tmp_path, str(i), lambda i=i: every[i].to_snapshot(gauges)) for i in range(2)]
    ended = EndedMetrics(tmp_path)
    ended.set_workers(["0", "1"])
    for amount, metrics in enumerate(every, 1):
        metrics.count("polyseme_tokens_total", amount, model="a")
        metrics.observe("polyseme_queue_seconds", 0.002 * amount, model="a")
    shared[0].publish()
    for reader in shared:
        text = reader.format()
        assert 'polyseme_tokens_total{model="a"} ' + ("1" if reader is shared[0] else "3") in text
    text = shared[0].format()
    expected = ['tokens_total{model="a"} 3', 'queue_length{model="a"} 4', 'max_batch_tokens{model="a"} 64', "workers 2"]
    expected += ['queue_seconds_count{model="a"} 2', 'queue_seconds_bucket{model="a",le="0.0025"} 1']
    assert all(f"polyseme_{line}\n" in text for line in expected)
    ended.add("1")
    text = shared[0].format()
    assert 'polyseme_tokens_total{model="a"} 3\n' in text and 'polyseme_queue_length{model="a"} 2\n' in text
    assert "polyseme_workers 1\n" in text and not (tmp_path / "1.json").exists()
    shared[1].publish()  # as if the file had been seen just before it was removed
    (tmp_path / "1.json").write_text((tmp_path / "0.json").read_text())
    assert 'polyseme_tokens_total{model="a"} 3\n' in shared[0].format()
    with contextlib.suppress(FileNotFoundError):
        (tmp_path / "1.json").unlink()

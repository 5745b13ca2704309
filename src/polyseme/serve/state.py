"""What all requests share: the models, their workers, and the metrics."""

import os
import time
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

import torch

from polyseme.generation.text import MAX_CACHE_CELLS
from polyseme.inference.neural_lm import NeuralLM
from polyseme.serve.api.errors import RequestError
from polyseme.serve.batching.worker import ModelWorker, Streams, WorkerLimits
from polyseme.serve.config import AppConfig
from polyseme.serve.metrics import Labels, Metrics, ModelMetrics, Snapshot
from polyseme.serve.processes.shared_metrics import SharedMetrics
from polyseme.serve.registry import ModelRegistry, ServedModel

WARM_UP_TEXT = "the first call takes longer"
WARM_UP_SECONDS, WARM_UP_TOKENS = 0.25, 512  # at most, of the last batch of a warm-up
MAX_STREAMS = 4  # batches that a processor computes at once; Python runs one thread at a time


@dataclass(eq=False)
class ServerState:
    """What all requests share: models, workers and metrics."""

    registry: ModelRegistry
    config: AppConfig
    metrics: Metrics = field(default_factory=Metrics)
    workers: dict[str, ModelWorker] = field(default_factory=dict)
    is_ready: bool = False
    num_in_flight: int = 0
    created: int = field(default_factory=lambda: int(time.time()))
    shared_metrics: SharedMetrics | None = None

    def start(self) -> None:
        """Start a worker for each model."""
        for name, served in self.registry.models.items():
            self.workers[name] = _start_worker(served, self.config, ModelMetrics(self.metrics, name))
        if self.config.metrics_folder:
            name = str(os.getpid())
            self.shared_metrics = SharedMetrics(Path(self.config.metrics_folder), name, self.take_snapshot)
            self.shared_metrics.start()
        self.is_ready = True

    def find_overload(self, num_bytes: int, loop_delay: float = 0.0) -> RequestError | None:
        """Return the error for a request of this size that has not been read; None if some model may have room.

        `loop_delay` are the seconds that it waits outside the queue of the model.
        """
        for worker in self.workers.values():
            if worker.has_room(worker.tokens_per_byte * num_bytes, loop_delay):
                return None
        return next((worker.overload_error() for worker in self.workers.values()), None)

    def record_request(self, verb: str, status: int, seconds: float) -> None:
        """Count a request that was answered."""
        self.metrics.count("polyseme_requests_total", verb=verb, status=str(status))
        self.metrics.observe("polyseme_request_seconds", seconds, verb=verb)

    def close(self) -> None:
        """Finish all work and end the workers."""
        self.is_ready = False
        for worker in self.workers.values():
            worker.close()
        if self.shared_metrics is not None:
            self.shared_metrics.close()

    @property
    def gauges(self) -> dict[str, dict[Labels, float]]:
        """Values that are measured now."""
        workers = self.workers.items()
        return {
            "polyseme_requests_in_flight": {(): float(self.num_in_flight)},
            "polyseme_queue_length": {(("model", name),): float(worker.queue_length) for name, worker in workers},
            "polyseme_active_generations": {(("model", name),): float(each.num_generations) for name, each in workers},
            "polyseme_max_batch_tokens": {(("model", name),): float(worker.batch_tokens) for name, worker in workers},
        }

    def take_snapshot(self) -> Snapshot:
        """Return the metrics of this process."""
        return self.metrics.to_snapshot(self.gauges)

    def format_metrics(self) -> str:
        """Return the metrics in Prometheus' text format, of all processes if there are several."""
        return self.metrics.format(self.gauges) if self.shared_metrics is None else self.shared_metrics.format()


def _start_worker(served: ServedModel, config: AppConfig, listener: ModelMetrics) -> ModelWorker:
    network = served.model if isinstance(served.model, NeuralLM) else None
    model_tokens = network.max_batch_tokens if network is not None else WorkerLimits.max_batch_tokens
    max_batch_tokens = config.max_batch_tokens or model_tokens
    limits = WorkerLimits(config.max_wait / 1000, max_batch_tokens, config.max_queue, config.max_delay / 1000)

    def resize(num_tokens: int) -> None:
        assert network is not None
        network.max_batch_tokens = min(num_tokens, model_tokens)

    kind = "cuda" if network is not None and network.device.type == "cuda" else "cpu"
    max_cells = MAX_CACHE_CELLS[kind]
    warm_up = partial(warm_up_model, network, limits.max_batch_tokens) if network is not None else None
    streams = make_streams(torch.get_num_threads()) if network is not None and _computes_on_cpu(served) else None
    return ModelWorker(
        served.name, limits, listener, max_cells, resize if network is not None else None, warm_up, streams
    )


def warm_up_model(model: NeuralLM, max_batch_tokens: int) -> None:
    """Compute batches of growing size, up to a slow one, so that later ones find the memory that they need."""
    num_texts, seconds = 1, 0.0
    tokens_per_text = len(WARM_UP_TEXT.split()) + model.tokenizer.num_special_tokens_to_add()
    while seconds < WARM_UP_SECONDS and num_texts * tokens_per_text <= min(max_batch_tokens, WARM_UP_TOKENS):
        start = time.perf_counter()
        model.embed([WARM_UP_TEXT] * num_texts)
        seconds, num_texts = time.perf_counter() - start, 4 * num_texts


def _computes_on_cpu(served: ServedModel) -> bool:
    """Whether torch computes a network on the processor."""
    return isinstance(served.model, NeuralLM) and served.model.device.type == "cpu" and not served.is_graph


def make_streams(num_threads: int) -> Streams:
    """Return streams that share this many threads of torch."""
    number = min(num_threads, MAX_STREAMS)

    def share_cores(has_all: bool) -> None:
        torch.set_num_threads(num_threads if has_all else max(num_threads // number, 1))

    return Streams(number, share_cores)

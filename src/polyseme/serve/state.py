"""What all requests share: the models, their workers, and the metrics."""

import os
import time
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

from polyseme.generation.text import MAX_CACHE_CELLS
from polyseme.inference.neural_lm import NeuralLM
from polyseme.serve.batching.worker import ModelWorker, WorkerLimits
from polyseme.serve.config import AppConfig
from polyseme.serve.metrics import Labels, Metrics, ModelMetrics, Snapshot
from polyseme.serve.processes.shared_metrics import SharedMetrics
from polyseme.serve.registry import ModelRegistry, ServedModel

WARM_UP_TEXT = "the first call takes longer"


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
    limits = WorkerLimits(config.max_wait / 1000, config.max_batch_tokens or model_tokens, config.max_queue)

    def resize(num_tokens: int) -> None:
        assert network is not None
        network.max_batch_tokens = min(num_tokens, model_tokens)

    kind = "cuda" if network is not None and network.device.type == "cuda" else "cpu"
    max_cells = MAX_CACHE_CELLS[kind]
    warm_up = partial(served.model.embed, [WARM_UP_TEXT]) if network is not None else None
    return ModelWorker(served.name, limits, listener, max_cells, resize if network is not None else None, warm_up)

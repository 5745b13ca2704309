"""Runs of a benchmark in worker processes. The results are saved after every run, and the same command continues."""

from __future__ import annotations

import json
import multiprocessing
import os
import sys
import time
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import Future, ProcessPoolExecutor, as_completed
from dataclasses import asdict, fields
from pathlib import Path
from typing import Any

from polyseme.io.json import read_json, write_json

Run = dict[str, Any]  # the fields of a job, and its results or its error


def worker_pool(num_workers: int) -> ProcessPoolExecutor:
    """Return a pool whose workers share the cores and show no progress bars."""
    threads = int(os.environ.get("OMP_NUM_THREADS") or max((os.cpu_count() or 1) // num_workers, 1))
    return ProcessPoolExecutor(num_workers, multiprocessing.get_context("spawn"), _init_worker, (threads,))


def _init_worker(threads: int) -> None:
    import torch

    torch.set_num_threads(threads)
    sys.stderr = open(os.devnull, "w")  # noqa: SIM115 (open as long as the worker lives)


def failed_run(job: Any, error: Exception) -> Run:
    """Return the result of a job that failed."""
    return {**asdict(job), "error": f"{type(error).__name__}: {error}"[:500]}


class RunFile:
    """JSON file of finished runs and their summary. Failed runs are stored with their error and run again next time."""

    def __init__(
        self, path: Path, title: str, jobs: Sequence[Any], summarize: Callable[[Iterable[Run]], list[dict[str, Any]]]
    ):
        self.path, self.title, self.jobs, self.summarize = path, title, jobs, summarize
        self.runs: list[Run] = []
        if path.exists():
            self.runs = [run for run in read_json(path)["runs"] if "error" not in run]
        self.extra: dict[str, Any] = {}
        self.start = time.perf_counter()
        done = set(map(self._job, self.runs))
        self.pending = [job for job in jobs if job not in done]

    def _job(self, run: Run) -> Any:
        return type(self.jobs[0])(**{field.name: run[field.name] for field in fields(self.jobs[0])})

    def save(self) -> list[dict[str, Any]]:
        """Write the file and return the summary of the jobs of this command."""
        jobs = set(self.jobs)
        summary = self.summarize([run for run in self.runs if self._job(run) in jobs])
        write_json(self.path, {"about": self.title, **self.extra, "summary": summary, "runs": self.runs})
        return summary

    def run_pending(self, submit: Callable[[Any], Future[Run]], digits: int = 1) -> list[dict[str, Any]]:
        """Run all pending jobs, save and print each result, and return the summary."""
        futures = {submit(job): job for job in self.pending}
        for future in as_completed(futures):
            try:
                run = future.result()
            except Exception as error:  # a worker that died ends the pool; the other jobs are left for next time
                run = failed_run(futures[future], error)
            self.runs.append(run)
            self.save()
            metric = run.get("primary_metric", "")
            outcome = run["error"] if "error" in run else f"{metric} {100 * run['mean'][metric]:.{digits}f}"
            self.print(f"{futures[future].name}: {outcome}")
        return self.save()

    def print(self, message: str) -> None:
        """Print a message with the elapsed time."""
        print(f"{time.perf_counter() - self.start:6.0f} s  {message}", flush=True)

    def exit_on_failure(self) -> None:
        """Exit with an error if a run failed."""
        if failed := [run for run in self.runs if "error" in run]:
            sys.exit(f"{len(failed)} runs failed, the first: {json.dumps(failed[0])}")

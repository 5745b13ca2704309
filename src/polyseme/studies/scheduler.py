"""Run jobs in this process, or several at a time in processes of their own, within a time limit."""

import logging
import math
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import torch

from polyseme.corpus.build.workers import num_cores
from polyseme.errors import Interrupted
from polyseme.studies.arms import resolve_recipe, trains_on_cpu
from polyseme.studies.jobs import Job, run_job
from polyseme.studies.plan import StudyPlan
from polyseme.studies.worker import STOPPED_STATUS, describe_error
from polyseme.train.signals import catch_signals

logger = logging.getLogger(__name__)
POLL_SECONDS = 0.25
SAVE_SECONDS = 20.0  # before the time limit, in which running jobs save their state
KILL_SECONDS = 60.0  # after which a job that does not stop is killed


class RunningJob(NamedTuple):
    """A job with its process and the file of its output."""

    job: Job
    process: subprocess.Popen[bytes]
    log: Path
    start_time: float


@dataclass
class Scheduler:
    """Runs jobs; `on_end` is called after each with its error, which is empty if it succeeded.

    An `end_time` of 0 is none. `estimate` returns the seconds that a job is expected to take. Of `num_jobs` processes,
    `num_trainings` may train on the device (`is_training`), the others are for everything else. No training starts
    while as many trained models wait for their measurement, so that few are lost with the machine.
    """

    plan: StudyPlan
    estimate: Callable[[Job], float]
    on_end: Callable[[Job, str, float], None]
    num_jobs: int = 1
    end_time: float = 0.0
    num_trainings: int = 1
    is_training: Callable[[Job], bool] = lambda job: False
    is_stopped: bool = field(default=False, init=False)  # by the time limit

    @property
    def is_local(self) -> bool:
        """Whether jobs run in this process: one at a time, without a GPU or a time limit, which would not stop them."""
        return self.num_jobs <= 1 and not torch.cuda.is_available() and not self.end_time

    def run(self, jobs: Sequence[Job], is_ready: Callable[[Job], bool] = lambda job: True) -> None:
        """Run jobs in order, each when it is ready; a job that is not expected to end in time is not started."""
        if self.is_local:
            for job in filter(is_ready, jobs):
                self._run_local(job)
            return
        pending = list(jobs)
        with self._processes() as (running, caught):
            while (pending or running) and not caught and not self._is_over:
                for each in [each for each in running if each.process.poll() is not None]:
                    running.remove(each)
                    self._finish(each)
                while next_job := self._next_job(pending, [each.job for each in running], is_ready):
                    pending.remove(next_job)
                    running.append(self._start(next_job))
                if not running:  # the others do not fit, or wait for what has failed
                    break
                time.sleep(POLL_SECONDS)
            if self.end_time and (unstarted := list(filter(is_ready, pending))):
                self.is_stopped = True
                text = "%d jobs are left for another run; the first, %s, is expected to take %.0f s"
                logger.info(text, len(unstarted), unstarted[0], self.estimate(unstarted[0]))
        if caught:
            raise Interrupted(caught[0], 0, "a job of the study")

    @property
    def _is_over(self) -> bool:
        return bool(self.end_time) and time.monotonic() > self.end_time - SAVE_SECONDS

    def _next_job(self, pending: Sequence[Job], running: Sequence[Job], is_ready: Callable[[Job], bool]) -> Job | None:
        """Return a job that is ready and expected to end in time, trainings first; None if no process is free."""
        if len(running) >= self.num_jobs:
            return None
        ready = list(filter(is_ready, pending))
        waiting = {(job.arm, job.seed) for job in ready if job.kind == "measure"}
        can_train = sum(map(self.is_training, running)) < self.num_trainings > len(waiting)
        time_left = self.end_time - time.monotonic() if self.end_time else math.inf
        trainings = [job for job in ready if self.is_training(job)] if can_train else []
        others = [job for job in ready if not self.is_training(job)]
        return next((job for job in (*trainings, *others) if self.estimate(job) <= time_left), None)

    def _run_local(self, job: Job) -> None:
        start_time, error = time.monotonic(), ""
        try:
            run_job(self.plan, job)
        except Interrupted:
            raise
        except Exception as problem:  # which may be that of one arm
            if isinstance(problem.__cause__ or problem, OSError):  # a full disk is that of all
                raise
            logger.debug("%s failed", job, exc_info=True)
            error = describe_error(problem)
        self.on_end(job, error, time.monotonic() - start_time)

    def _start(self, job: Job) -> RunningJob:
        name = "-".join(filter(None, (job.kind, job.metric, str(job.seed))))
        log = self.plan.out / "logs" / f"{job.arm}.{name}.log"
        log.parent.mkdir(parents=True, exist_ok=True)
        threads = str(max(num_cores() // max(self.num_jobs, 1), 1))
        environment: dict[str, Any] = {"OMP_NUM_THREADS": threads, **os.environ}
        arm = self.plan.study.find_arm(job.arm)
        if job.kind != "measure" and trains_on_cpu(resolve_recipe(arm, self.plan.options.overrides, self.plan.corpus)):
            environment["CUDA_VISIBLE_DEVICES"] = ""
        command = [sys.executable, "-m", "polyseme.studies.worker", str(self.plan.out)]
        command += [job.kind, job.arm, str(job.seed), *([job.metric] if job.metric else [])]
        with log.open("ab") as output:
            process = subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=output, stderr=output, env=environment, start_new_session=True
            )
        return RunningJob(job, process, log, time.monotonic())

    def _finish(self, each: RunningJob) -> None:
        status, error = each.process.wait(), ""
        if status in (STOPPED_STATUS, -signal.SIGTERM):
            return
        if status:
            lines = each.log.read_text(errors="replace").strip().splitlines()
            error = lines[-1] if status > 0 and lines else f"the process was killed by signal {-status}"
            error = f"{error} (see {each.log})"
        self.on_end(each.job, error, time.monotonic() - each.start_time)

    @contextmanager
    def _processes(self) -> Iterator[tuple[list[RunningJob], list[int]]]:
        """Yield the running jobs and the caught signals; at the end, let jobs save their state and stop."""
        running: list[RunningJob] = []
        with catch_signals() as caught:
            try:
                yield running, caught
            finally:
                for each in running:
                    each.process.send_signal(signal.SIGTERM)
                end_time = time.monotonic() + KILL_SECONDS
                for each in running:
                    self.is_stopped = True
                    try:
                        each.process.wait(max(end_time - time.monotonic(), 0.1))
                    except subprocess.TimeoutExpired:  # in code that handles no signals: it has not failed
                        each.process.kill()
                        each.process.wait()
                    else:
                        self._finish(each)

"""The scheduler of a study: which jobs start in the time that is left, and what happens to those that do not end."""

import subprocess
import sys
import time

import pytest

from polyseme.studies import scheduler
from polyseme.studies.jobs import Job
from polyseme.studies.scheduler import RunningJob, Scheduler

ENDS, SLEEPS = "pass", "import time; time.sleep(60)"
IGNORES_SIGNALS = (
    "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); print(flush=True); time.sleep(60)"
)
SHORT, LONG, ENDLESS = (Job("measure", name) for name in ("short", "long", "endless"))


@pytest.fixture
def start(monkeypatch, tmp_path):
    """Return a scheduler of two processes with so many seconds left, and its finished jobs with their errors."""
    ended = []

    def run(seconds, endless=SLEEPS, failing=()):
        def start_process(self, job):
            code = endless if job == ENDLESS else "raise SystemExit(2)" if job in failing else ENDS
            process = subprocess.Popen([sys.executable, "-S", "-c", code], stdout=subprocess.PIPE)
            if job == ENDLESS and code == IGNORES_SIGNALS:
                process.stdout.readline()  # its handler is installed
            (tmp_path / "log").write_text("no luck\n")
            return RunningJob(job, process, tmp_path / "log", time.monotonic())

        monkeypatch.setattr(Scheduler, "_start", start_process)
        estimate = {SHORT: 1.0, LONG: 1000.0, ENDLESS: 1.0}.__getitem__
        on_end = lambda job, error, seconds: ended.append((job, error))  # noqa: E731
        return Scheduler(None, estimate, on_end, num_jobs=2, end_time=seconds and time.monotonic() + seconds)

    monkeypatch.setattr(scheduler, "POLL_SECONDS", 0.01)
    return run, ended


def test_a_job_that_fits_starts_behind_one_that_does_not(start):
    run, ended = start
    jobs = run(100.0)
    jobs.run([LONG, SHORT])
    assert ended == [(SHORT, "")] and jobs.is_stopped
    jobs.run([SHORT])
    assert len(ended) == 2, "what fits runs in the next phase, too"


def test_all_jobs_run_without_a_limit(start):
    run, ended = start
    jobs = run(0.0, failing=[SHORT])
    jobs.run([LONG, SHORT, ENDLESS], lambda job: job != ENDLESS)
    assert {job: error.partition(" (")[0] for job, error in ended} == {LONG: "", SHORT: "no luck"}
    assert not jobs.is_stopped, "a job that is never ready waits for one that has failed"


def test_few_jobs_train_at_a_time_and_no_training_starts_while_models_wait(start):
    jobs = start[0](0.0)
    jobs.num_jobs, jobs.num_trainings, jobs.is_training = 4, 2, lambda job: job.kind == "pretrain"
    jobs.estimate = lambda job: 1.0
    a, b, c = (Job("pretrain", name) for name in "abc")
    measured_a, measured_b, measured_c = (Job("measure", name, 0, metric) for name in "abc" for metric in ["cola"])
    other_a = Job("measure", "a", 0, "blimp")
    nothing, everything = lambda job: job.kind == "pretrain", lambda job: True
    assert jobs._next_job([a, b, c, measured_a], [], nothing) == a
    assert jobs._next_job([b, c, measured_a], [a], nothing) == b
    assert jobs._next_job([c, measured_a], [a, b], nothing) is None, "two train already"
    assert jobs._next_job([c, measured_a, other_a], [b], everything) == c
    assert jobs._next_job([c, other_a, measured_b], [], everything) == other_a, "two models wait"
    assert jobs._next_job([c, other_a], [b, measured_a, measured_b], everything) == c
    assert jobs._next_job([other_a], [b, measured_a, measured_b], everything) == other_a, "nothing is left to train"
    assert jobs._next_job([other_a, c], [b, measured_a, measured_b], everything) == c, "trainings come first"
    assert jobs._next_job([other_a, c, measured_c], [b, measured_a, measured_b], everything) == other_a
    assert jobs._next_job([other_a, c], [a, b, measured_a, measured_b], everything) is None
    jobs.num_jobs, jobs.num_trainings = 1, 1
    assert jobs._next_job([c, other_a], [], everything) == other_a and jobs._next_job([c], [], everything) == c


@pytest.mark.parametrize("endless", [SLEEPS, IGNORES_SIGNALS])
def test_a_job_that_is_stopped_by_the_limit_has_not_failed(start, monkeypatch, endless):
    run, ended = start
    monkeypatch.setattr(scheduler, "KILL_SECONDS", 0.2)
    jobs = run(scheduler.SAVE_SECONDS + 1.5, endless)
    jobs.run([ENDLESS])
    assert jobs.is_stopped and not ended

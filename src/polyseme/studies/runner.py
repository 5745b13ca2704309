"""`run_study`: calibrate the arms, search their learning rates, train and measure every seed, and write the pages.

Every finished part is a file in the folder of the study, so that the same call continues a study that was stopped, also
on another machine.
"""

import logging
import time
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import torch

from polyseme.io.hashes import HASHES_FILE, write_hashes
from polyseme.io.json import read_json_object, write_json
from polyseme.io.lock import lock_folder
from polyseme.studies.arms import check_overrides, resolve_recipe, trains_on_cpu
from polyseme.studies.base import Arm, Study, load_study
from polyseme.studies.corpora import arm_corpus, check_sources, missing_corpora
from polyseme.studies.jobs import (
    Job,
    copy_rows,
    finish_rows,
    is_trained,
    measurements,
    metrics_of,
    needs_calibration,
    needs_search,
    remove_searches,
    repeats_first_seed,
)
from polyseme.studies.measurement import describe_inputs, measure_baselines, read_passages
from polyseme.studies.metrics import METRICS, check_data, metric_limits
from polyseme.studies.page import export_page, write_pages
from polyseme.studies.plan import StudyOptions, StudyPlan
from polyseme.studies.scheduler import Scheduler
from polyseme.studies.transfer import check_transfer

logger = logging.getLogger(__name__)
GPU_JOBS = 4
START_SECONDS = 60.0  # expected time of a job in addition to its training, before one was measured


@dataclass(frozen=True)
class StudyStatus:
    """How far a study is: the number of finished rows and of all, and the errors of those that failed.

    `is_stopped` if a time limit ended the call before the rows that it was to run were finished.
    """

    out: Path
    num_done: int
    num_rows: int
    errors: dict[str, str]
    is_stopped: bool = False

    @property
    def is_complete(self) -> bool:
        """Whether every row is finished."""
        return self.num_done == self.num_rows


def run_study(
    study: str | Path | Study,
    corpus: Path | str,
    data: Path | str,
    out: Path | str,
    budget: str,
    seeds: Any = 3,
    options: StudyOptions | None = None,
) -> StudyStatus:
    """Run a study, or continue the one in `out`, and write its pages after each finished seed.

    `corpus` is a corpus folder and `data` a folder of data sets. `budget` is that of each arm: a time on this device
    (`90s`), which is measured once and fixed as steps, or `500steps` or `1e8tokens`.
    """
    options = options or StudyOptions()
    plan = StudyPlan.create(load_study(study), Path(corpus), Path(data), Path(out), budget, seeds, options)
    check_data(plan.study, plan.data, plan.options.held_out)
    check_overrides(plan.study, plan.options.overrides, plan.corpus)
    check_transfer(plan.study, plan.options.finetune)
    check_sources(plan)
    if any(METRICS[name].kind == "likelihood" for name in plan.study.metrics):
        read_passages(plan, 1)  # raises if the text has none
    end_time = time.monotonic() + options.time_limit if options.time_limit else 0.0
    with lock_folder(plan.out, "study"):
        plan.write(metric_limits(plan.study, options.max_examples), describe_inputs(plan))
        (plan.out / HASHES_FILE).unlink(missing_ok=True)  # the folder is that of an unfinished study
        if any(METRICS[name].kind == "pairs" for name in plan.study.metrics):
            plan.minimal_pairs  # noqa: B018  # extracts them once
        measure_baselines(plan)
        is_stopped = StudyRunner(plan, end_time).run()
        status = replace(plan_status(plan), is_stopped=is_stopped)
        if status.is_complete:
            write_hashes(plan.out)
        return status


def rewrite_pages(out: Path, page: Path | None = None) -> Path:
    """Write the pages of a study again, or one page for a documentation to `page`; return the page."""
    with lock_folder(out, "study"):
        StudyPlan.read(out)
        path = write_pages(out)
        if (out / HASHES_FILE).is_file():
            write_hashes(out)
        return path if page is None else export_page(out, page)


@dataclass
class StudyRunner:
    """Runs the jobs of a plan that are left, until `end_time`."""

    plan: StudyPlan
    end_time: float = 0.0
    trained: set[tuple[str, int]] = field(default_factory=set)  # rows whose models are trained

    def run(self) -> bool:
        """Prepare all corpora, calibrate all arms, then search learning rates, train and measure.

        Return whether the time limit ended that.

        Steps are timed before anything else runs. An arm is trained as soon as its learning rate is known, and measured
        as soon as it is trained. A measurement has many small steps, each of which waits for the large ones of the
        trainings beside it, so few train at a time.
        """
        plan = self.plan
        for arm, seed in ((arm, seed) for arm in plan.arms for seed in plan.seeds):
            self._finish_rows(arm, seed)  # of a study that was killed after the last measurement of a row
            for each in plan.evaluated_arms(arm):
                if not plan.is_done(each, seed):
                    plan.row_path(each, seed).unlink(missing_ok=True)  # an error, which this call tries again
        remove_searches(plan)
        scheduler = Scheduler(plan, self._estimate, self._on_end, self._num_jobs, self.end_time)
        scheduler.run([Job("prepare", arm.name) for arm in missing_corpora(plan)])
        arms = [
            arm for arm in plan.arms if plan.seeds_left(arm) and (arm_corpus(plan, arm) / "manifest.json").is_file()
        ]
        scheduler.run([Job("calibrate", arm.name) for arm in arms if needs_calibration(plan, arm)])
        arms = [arm for arm in arms if not needs_calibration(plan, arm)]
        self.trained |= {(arm.name, seed) for arm in arms for seed in plan.seeds if is_trained(plan, arm, seed)}
        on_cpu = {arm.name for arm in arms if trains_on_cpu(resolve_recipe(arm, plan.options.overrides, plan.corpus))}
        scheduler.num_trainings = self._num_trainings
        scheduler.is_training = lambda job: job.kind != "measure" and job.arm not in on_cpu
        scheduler.run(self._list_jobs(arms), self._is_ready)
        write_pages(plan.out)
        return scheduler.is_stopped

    def _list_jobs(self, arms: Sequence[Arm]) -> list[Job]:
        """Return the jobs of all rows that are left: first the rows of the first seed, each with its measurements."""
        plan = self.plan
        jobs = []
        for arm, seed in ((arm, seed) for seed in plan.seeds for arm in arms if seed in plan.seeds_left(arm)):
            if repeats_first_seed(plan, arm, seed):
                continue
            if needs_search(plan, arm):
                jobs.append(Job("search", arm.name))
            if (arm.name, seed) not in self.trained:
                jobs.append(Job("pretrain", arm.name, seed))
            jobs += self._measurements(arm, seed)
        return list(dict.fromkeys(jobs))

    def _measurements(self, arm: Arm, seed: int) -> list[Job]:
        """Return the jobs that measure a row: what the questions need first, then those that take long."""
        plan, times = self.plan, read_times(self.plan.out)

        def position(job: Job) -> tuple[bool, float]:
            is_asked = set(metrics_of(plan, job)) & set(plan.study.asked_metrics(job.arm))
            return not is_asked, -times.get(_kind_of_time(job), 0.0)

        jobs = [job for each in plan.evaluated_arms(arm) for job in measurements(plan, each, seed)]
        return sorted(jobs, key=position)

    @property
    def _num_jobs(self) -> int:
        return self.plan.options.jobs or (GPU_JOBS if torch.cuda.is_available() else 1)

    @property
    def _num_trainings(self) -> int:
        """How many of the jobs that run at a time may be trainings on the device."""
        return max(min(1 + self._num_jobs // 4, self._num_jobs - 1), 1)

    def _is_ready(self, job: Job) -> bool:
        """Return whether a search can start, a training whose rate is known, or the measurement of a trained model."""
        arm = self.plan.study.find_arm(job.arm)
        if job.kind == "pretrain":
            return not needs_search(self.plan, arm)
        return job.kind == "search" or (self.plan.trained_arm(arm).name, job.seed) in self.trained

    def _estimate(self, job: Job) -> float:
        """Return the seconds that a job is expected to take: as long as the longest of its kind and arm so far.

        To a training belongs the measurement of its model, which is lost with the machine.
        """
        plan, times = self.plan, read_times(self.plan.out)
        search = plan.options.search_fraction * len(plan.study.lr_factors)
        share = {"search": search, "pretrain": 1.0}.get(job.kind, 0.0)
        expected = START_SECONDS + share * 60 * plan.budget.minutes * self._num_trainings
        seconds = float(times.get(_kind_of_time(job), expected))
        if job.kind == "pretrain":
            seconds += max((t for kind, t in times.items() if kind.startswith("measure")), default=START_SECONDS)
        return seconds

    def _on_end(self, job: Job, error: str, seconds: float) -> None:
        """Record the end of a job: its error in the rows that need it, and its time."""
        plan, arm = self.plan, self.plan.study.find_arm(job.arm)
        if error:
            logger.error("%s failed: %s", job, error)
            seeds = plan.seeds if job.kind in ("prepare", "calibrate", "search") else [job.seed]
            for each, seed in ((each, seed) for each in self._affected_arms(job, arm) for seed in seeds):
                if not plan.is_done(each, seed):
                    write_json(plan.row_path(each, seed), {"arm": each.name, "seed": seed, "error": error})
        else:
            times = read_times(plan.out)
            times[_kind_of_time(job)] = max(times.get(_kind_of_time(job), 0.0), round(seconds, 1))
            write_json(plan.out / "times.json", {"seconds": times})
            logger.info("%s (%.0f s)%s", job, seconds, self._summarize(job, arm))
            if job.kind == "pretrain":
                self.trained.add((job.arm, job.seed))
            elif job.kind == "measure":
                self._finish_rows(plan.trained_arm(arm), job.seed)
                seeds_left = {seed for arm in plan.arms for seed in plan.seeds_left(arm)}
                if seeds_left and job.seed not in seeds_left:
                    write_pages(plan.out)
        merge_arm_files(plan)

    def _finish_rows(self, arm: Arm, seed: int) -> None:
        """Write the rows of a seed that are measured, and those of other seeds that repeat them."""
        finish_rows(self.plan, arm, seed)
        for other in self.plan.seeds:
            if repeats_first_seed(self.plan, arm, other):
                copy_rows(self.plan, arm, other)

    def _affected_arms(self, job: Job, arm: Arm) -> list[Arm]:
        """Return the arms whose rows are missing if a job of an arm fails."""
        plan = self.plan
        if job.kind == "measure":
            return [arm]
        corpus = arm_corpus(plan, arm)
        trained = [each for each in plan.arms if arm_corpus(plan, each) == corpus] if job.kind == "prepare" else [arm]
        return [evaluated for each in trained for evaluated in plan.evaluated_arms(each)]

    def _summarize(self, job: Job, arm: Arm) -> str:
        """Return what a job has found, in a few words."""
        plan = self.plan
        if job.kind == "prepare":
            return f": {arm_corpus(plan, arm)}"
        if job.kind == "calibrate":
            facts = plan.read_arm_file(arm, "calibration.json")
            return f": {1000 * facts['seconds_per_step']:.1f} ms per step, {facts['steps']:,} steps"
        if job.kind == "search":
            return f": learning rate {plan.read_arm_file(arm, 'lr.json')['lr']:g}"
        if job.kind == "pretrain":
            return ": trained, not measured yet"
        row = plan.read_partial_row(arm, job.seed) or read_json_object(plan.row_path(arm, job.seed))
        metrics = {name: facts for name in metrics_of(plan, job) if (facts := row["metrics"].get(name))}
        values = [f"{name} {facts['value']:.4g}" for name, facts in metrics.items()]
        return ": " + ", ".join([*values, *(["void"] if row["is_void"] else [])])


def _kind_of_time(job: Job) -> str:
    depends_on_arm = job.kind in ("search", "pretrain", "measure")
    return " ".join(filter(None, (job.kind, job.arm if depends_on_arm else "", job.metric)))


def read_times(out: Path) -> dict[str, float]:
    """Return the longest time of each kind of job so far."""
    path = out / "times.json"
    return dict(read_json_object(path).get("seconds", {})) if path.is_file() else {}


def merge_arm_files(plan: StudyPlan) -> None:
    """Write `calibration.json` and `lr.json` of the study from those of its arms."""
    arms = [arm for arm in plan.study.arms if plan.arm_folder(arm).is_dir()]
    calibration = {arm.name: facts for arm in arms if (facts := plan.read_arm_file(arm, "calibration.json"))}
    rates = {arm.name: facts for arm in arms if (facts := plan.read_arm_file(arm, "lr.json"))}
    write_json(plan.out / "calibration.json", calibration)
    write_json(plan.out / "lr.json", rates)


def plan_status(plan: StudyPlan) -> StudyStatus:
    """Return how far a study is."""
    paths = [plan.row_path(arm, seed) for arm in plan.study.arms for seed in plan.seeds]
    rows = [read_json_object(path) for path in paths if path.is_file()]
    errors = {f"{row['arm']}, seed {row['seed']}": str(row["error"]) for row in rows if "error" in row}
    return StudyStatus(plan.out, len(rows) - len(errors), len(paths), errors)

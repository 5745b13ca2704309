"""`run_study`: calibrate the arms, search their learning rates, train and measure every seed, and write the pages.

Every finished part is a file in the folder of the study, so that the same call continues a study that was stopped, also
on another machine.
"""

import logging
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

from polyseme.io.hashes import HASHES_FILE, write_hashes
from polyseme.io.json import read_json_object, write_json
from polyseme.io.lock import lock_folder
from polyseme.studies.arms import check_overrides
from polyseme.studies.base import Arm, Study, load_study
from polyseme.studies.corpora import check_sources, prepare_corpora
from polyseme.studies.jobs import Job, JobKind, needs_calibration, needs_search
from polyseme.studies.measurement import measure_baselines
from polyseme.studies.metrics import METRICS, check_data, metric_limits
from polyseme.studies.page import export_page, write_pages
from polyseme.studies.plan import FINETUNE_FILE, StudyOptions, StudyPlan
from polyseme.studies.scheduler import Scheduler

logger = logging.getLogger(__name__)
GPU_JOBS = 4
ROWS_PER_JOB = 4  # at least, in a phase of a study
JOBS_OF_ROW: tuple[JobKind, ...] = ("pretrain", "answer", "train")
START_SECONDS = 60.0  # expected time of a job in addition to its training, before one was measured


@dataclass(frozen=True)
class StudyStatus:
    """How far a study is: the number of finished rows and of all, and the errors of those that failed."""

    out: Path
    num_done: int
    num_rows: int
    errors: dict[str, str]

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
    """Run a study, or continue the one in `out`, and write its pages after each finished arm and seed.

    `corpus` is a corpus folder and `data` a folder of data sets. `budget` is that of each arm: a time on this device
    (`90s`), which is measured once and fixed as steps, or `500steps` or `1e8tokens`.
    """
    options = options or StudyOptions()
    plan = StudyPlan.create(load_study(study), Path(corpus), Path(data), Path(out), budget, seeds, options)
    check_data(plan.study, plan.data, plan.options.held_out)
    check_overrides(plan.study, plan.options.overrides, plan.corpus)
    check_sources(plan)
    end_time = time.monotonic() + options.time_limit if options.time_limit else 0.0
    with lock_folder(plan.out, "study"):
        plan.write(metric_limits(plan.study, options.max_examples))
        (plan.out / HASHES_FILE).unlink(missing_ok=True)  # the folder is that of an unfinished study
        prepare_corpora(plan)
        if any(METRICS[name].kind == "pairs" for name in plan.study.metrics):
            plan.minimal_pairs  # noqa: B018  # extracts them once
        measure_baselines(plan)
        StudyRunner(plan, end_time).run()
        status = plan_status(plan)
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
    searches: list[Job] = field(default_factory=list)  # of this call
    waited_for: list[Job] = field(default_factory=list)  # rates and answers, before the rest of a row is measured
    tried: set[Job] = field(default_factory=set)  # jobs that have ended in this call

    def run(self) -> None:
        """Calibrate all arms before any other runs, then search learning rates, train and measure.

        Where several jobs run at a time, models are trained first, then measured: a measurement has many small steps,
        each of which would wait for the large ones of a training beside it. An arm is trained as soon as its learning
        rate is known. What the questions need is measured first.
        """
        plan = self.plan
        arms = [arm for arm in plan.arms if self._seeds_left(arm)]
        scheduler = Scheduler(plan, self._estimate, self._on_end, self._num_jobs, self.end_time)
        scheduler.run([Job("calibrate", arm.name) for arm in arms if needs_calibration(plan, arm)])
        arms = [arm for arm in arms if not needs_calibration(plan, arm)]
        searches = self.searches = [Job("search", arm.name) for arm in arms if needs_search(plan, arm)]
        for seeds in self._phases(len(arms)):
            rows = [(arm, seed) for seed in seeds for arm in arms if seed in self._seeds_left(arm)]
            if not rows or scheduler.is_stopped:
                continue
            jobs = {kind: [Job(kind, arm.name, seed) for arm, seed in rows] for kind in JOBS_OF_ROW}
            if scheduler.is_local:
                scheduler.run(searches)
                scheduler.run(jobs["train"], self._can_measure)
            else:
                scheduler.run([*searches, *jobs["pretrain"]], self._has_pretraining_rate)
                self.waited_for = [*self._rates_left(rows), *filter(self._needs_answers, jobs["answer"])]
                scheduler.run([*self.waited_for, *jobs["train"]], self._can_measure)
            write_pages(plan.out)  # takes half a minute in a large study, in which no job could start
            searches = []

    def _phases(self, num_arms: int) -> list[list[int]]:
        """Divide the seeds into phases of several rows for each job at a time, since jobs end at different times."""
        size = max(-(-ROWS_PER_JOB * self._num_jobs // max(num_arms, 1)), 1)
        return [list(self.plan.seeds[i : i + size]) for i in range(0, len(self.plan.seeds), size)]

    def _rates_left(self, rows: list[tuple[Arm, int]]) -> list[Job]:
        """Return the searches of fine-tuning rates, which the first seed of each arm makes for all."""
        first = self.plan.seeds[0]
        arms = [each for arm, seed in rows if seed == first for each in self.plan.evaluated_arms(arm)]
        return [Job("rates", arm.name, first, metric) for arm in arms for metric in self._unknown_rates(arm)]

    def _unknown_rates(self, arm: Arm) -> list[str]:
        """Return the tasks whose fine-tuning rate was not chosen yet."""
        tasks = [name for name in self.plan.study.metrics if METRICS[name].kind == "task" and arm.transfer != "none"]
        return [name for name in tasks if name not in self.plan.read_arm_file(arm, FINETUNE_FILE)]

    def _needs_answers(self, job: Job) -> bool:
        """Return whether a row lacks something that the questions need."""
        arm = self.plan.study.find_arm(job.arm)
        return not all(self.plan.has_answers(each, job.seed) for each in self.plan.evaluated_arms(arm))

    @property
    def _num_jobs(self) -> int:
        return self.plan.options.jobs or (GPU_JOBS if torch.cuda.is_available() else 1)

    def _seeds_left(self, arm: Arm) -> list[int]:
        plan = self.plan
        return [s for s in plan.seeds if not all(plan.is_done(each, s) for each in plan.evaluated_arms(arm))]

    def _has_pretraining_rate(self, job: Job) -> bool:
        """Return whether a search can start, or a training, whose search has to be over."""
        search = Job("search", job.arm)
        if job == search or search not in self.searches:
            return True
        return search in self.tried and not needs_search(self.plan, self.plan.study.find_arm(job.arm))

    def _can_measure(self, job: Job) -> bool:
        """Return whether a row can be measured, which needs the fine-tuning rates that the first seed chose.

        Where no job chooses them, the first seed does when it is measured. The rest follows after the answers.
        """
        if job.kind == "rates":
            return True
        arm, first = self.plan.study.find_arm(job.arm), self.plan.seeds[0]
        arms = self.plan.evaluated_arms(arm)
        pending = [each for each in self.waited_for if each not in self.tried]
        if any(each.kind == "rates" and each.arm in (arm.name for arm in arms) for each in pending):
            return False
        if job.kind == "train" and Job("answer", job.arm, job.seed) in pending:
            return False
        needs_first = arm.transfer == "none" or any(map(self._unknown_rates, arms))  # n-grams are counted once
        needs_first = needs_first and job.seed != first and first in self._seeds_left(arm)
        return self._has_pretraining_rate(job) and (not needs_first or Job(job.kind, job.arm, first) in self.tried)

    def _estimate(self, job: Job) -> float:
        """Return the seconds that a job is expected to take: as long as the longest of its kind so far."""
        plan, times = self.plan, read_times(self.plan.out)
        if job.kind in times:
            return float(times[job.kind])
        share = {"calibrate": 0.0, "search": plan.options.search_fraction * len(plan.study.lr_factors), "train": 1.0}
        share |= {"pretrain": 1.0, "answer": 1.0, "rates": 0.0}
        return START_SECONDS + share[job.kind] * 60 * plan.budget.minutes * self._num_jobs

    def _on_end(self, job: Job, error: str, seconds: float) -> None:
        """Record the end of a job: its error in the rows that need it, its time, and the pages."""
        plan, arm = self.plan, self.plan.study.find_arm(job.arm)
        self.tried.add(job)
        if error:
            logger.error("%s failed: %s", job, error)
            failed = self._seeds_left(arm) if job.kind in ("calibrate", "search") else [job.seed]
            for seed in failed if job.kind != "rates" else []:  # whose rows fail by themselves
                for each in plan.evaluated_arms(arm):
                    if not plan.is_done(each, seed):
                        write_json(plan.row_path(each, seed), {"arm": each.name, "seed": seed, "error": error})
        else:
            times = read_times(plan.out)
            times[job.kind] = max(times.get(job.kind, 0.0), round(seconds, 1))
            write_json(plan.out / "times.json", {"seconds": times})
            logger.info("%s (%.0f s)%s", job, seconds, self._summarize(job, arm))
        merge_arm_files(plan)

    def _summarize(self, job: Job, arm: Arm) -> str:
        """Return what a job has found, in a few words."""
        plan = self.plan
        if job.kind == "calibrate":
            facts = plan.read_arm_file(arm, "calibration.json")
            return f": {1000 * facts['seconds_per_step']:.1f} ms per step, {facts['steps']:,} steps"
        if job.kind == "search":
            return f": learning rate {plan.read_arm_file(arm, 'lr.json')['lr']:g}"
        if job.kind == "pretrain":
            return ": trained, not measured yet"
        if job.kind == "rates":
            choice = plan.read_arm_file(arm, FINETUNE_FILE).get(job.metric)
            return f": learning rate {choice['lr']:g}" if choice else ""
        path = plan.row_path(arm, job.seed) if job.kind == "train" else plan.partial_row_path(arm, job.seed)
        if not path.is_file():  # the results of another seed, copied later
            return ""
        row = read_json_object(path)
        values = [f"{name} {facts['value']:.4g}" for name, facts in row["metrics"].items() if facts]
        return ": " + ", ".join([*values, *(["void"] if row["is_void"] else [])])


def read_times(out: Path) -> dict[str, float]:
    """Return the longest time of each kind of job so far."""
    path = out / "times.json"
    return dict(read_json_object(path)["seconds"]) if path.is_file() else {}


def merge_arm_files(plan: StudyPlan) -> None:
    """Write `calibration.json` and `lr.json` of the study from those of its arms."""
    arms = [arm for arm in plan.study.arms if plan.arm_folder(arm).is_dir()]
    calibration = {arm.name: facts for arm in arms if (facts := plan.read_arm_file(arm, "calibration.json"))}
    rates: dict[str, Any] = {}
    for arm in arms:
        choices = plan.read_arm_file(arm, FINETUNE_FILE)
        facts = plan.read_arm_file(arm, "lr.json") | ({"finetune": choices} if choices else {})
        rates |= {arm.name: facts} if facts else {}
    write_json(plan.out / "calibration.json", calibration)
    write_json(plan.out / "lr.json", rates)


def plan_status(plan: StudyPlan) -> StudyStatus:
    """Return how far a study is."""
    paths = [plan.row_path(arm, seed) for arm in plan.study.arms for seed in plan.seeds]
    rows = [read_json_object(path) for path in paths if path.is_file()]
    errors = {f"{row['arm']}, seed {row['seed']}": str(row["error"]) for row in rows if "error" in row}
    return StudyStatus(plan.out, len(rows) - len(errors), len(paths), errors)

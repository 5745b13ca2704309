"""Several tasks over one trunk (Caruana 1997; Liu et al. 2019, MT-DNN): one head for each, a step for one at a time.

Which task a step is of is drawn in proportion to size^α (Stickland and Murray 2019, §3.4), and each has its own loss,
divided by its own count. A head's name is that of its kind, an @ and the name of the task.
"""

from __future__ import annotations

import json
import math
import re
import statistics
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from polyseme.errors import UserError, nearest
from polyseme.evaluation.predict import Extra
from polyseme.finetuning.finetune import FinetuneSpec, _encode, chain_of, check_run, crf_of, open_for, written_form
from polyseme.finetuning.runner import Best, Part, Work, _rows, _summary, in_phases, steps, training
from polyseme.io.files import write_json, write_text
from polyseme.nn.model import Model
from polyseme.objectives.batch import Batch
from polyseme.progress import progress
from polyseme.report.html import write_report
from polyseme.tasks.baselines.surface import majority
from polyseme.tasks.coreference import lost_mentions
from polyseme.tasks.examples import Example, Kind
from polyseme.tasks.readers.squad import trainable
from polyseme.tasks.task import HEADS, Task
from polyseme.train.flops import num_parameters
from polyseme.train.loop import Report, Training
from polyseme.weights.folder import ModelFolder, save_model

SEVERAL = "several"  # what the notes of such a folder say its task is


@dataclass(frozen=True, eq=False)
class Job:
    """One of the tasks: its name, what it learns from, and what it is measured on and by."""

    name: str
    kind: Kind
    train: Sequence[Example]
    dev: Sequence[Example]
    primary: str = ""
    data_set: str = ""
    extra: Extra | None = None

    @property
    def data(self) -> str:
        return self.data_set or (self.name if self.name != self.kind else "")


def finetune_together(
    model_folder: Path,
    jobs: Sequence[Job],
    out: Path | None,
    settings: FinetuneSpec | None = None,
    *,
    seeds: int = 1,
    first_seed: int = 0,
    scratch: bool = False,
) -> dict[str, Any]:
    """As `finetune`, for all jobs at once. An epoch has as many steps as those of all tasks together.

    What counts is the mean of what counts for each. `out` gets the results of all, one model with all heads, and for
    each task its `results.json` and `predictions.json` in `tasks/NAME`, as a run of that task alone has them.
    """
    settings = (settings or FinetuneSpec()).check()
    _check(jobs, settings)
    plain = settings.replace(decoder="softmax")
    for job in jobs:
        check_run(job.kind, out, settings if job.kind == "tagging" else plain, seeds)
    shape = (settings.both_orders, settings.span, settings.coreference)
    tasks = []
    for job in jobs:
        form = written_form(Path(model_folder), job.kind, job.train, job.data_set or job.name)
        tasks.append(replace(Task.of(job.kind, job.train, *_for(job.kind, shape), form), name=job.name))
    asked = [(t, crf_of(settings, j.train) if j.kind == "tagging" else None) for t, j in zip(tasks, jobs)]
    loaded = open_for(Path(model_folder), asked, settings, first_seed, scratch)

    def part(task: Task, examples: Sequence[Example]) -> Part:
        return Part(examples, _encode(task, examples, loaded, settings))

    works = [
        Work(task, part(task, trainable(job.train)), part(task, job.dev), settings, job.primary, job.extra)
        for task, job in zip(tasks, jobs)
    ]
    tallies = [Tally(work, job) for work, job in zip(works, jobs)]
    size = settings.batch_size * sum(math.ceil(len(work.train.encoded) / settings.batch_size) for work in works)
    rows: list[dict[str, Any]] = []
    runs: list[dict[str, Any]] = []
    best: tuple[float, int, Model] | None = None
    spent = {"tokens": 0, "flops": 0, "seconds": 0.0}
    for seed in range(first_seed, first_seed + seeds):
        folder = loaded if seed == first_seed else open_for(Path(model_folder), asked, settings, seed, scratch)
        run = training(folder.model, settings, size, seed)
        run.record = False  # a recording gives the heads that wait gradients of zero, which are no gradients
        began = time.perf_counter()
        done = _learn(tallies, run, size, settings, seed)
        rows += _rows(seed, done)
        spent["tokens"] += sum(report.tokens for report in done)
        spent["flops"] += sum(report.flops for report in done)
        spent["seconds"] += time.perf_counter() - began
        values = {tally.job.name: tally.add(seed, run.model) for tally in tallies}
        runs.append({"seed": seed, "mean": statistics.fmean(values.values()), **values})
        if best is None or runs[-1]["mean"] > best[0]:
            best = (runs[-1]["mean"], seed, run.model)
    assert best is not None
    about = {"model": str(model_folder), "from_scratch": scratch, "best_seed": best[1], **spent}
    about |= {"steps": settings.total(size), "parameters": num_parameters(best[2])}
    each = {tally.job.name: tally.results() | about for tally in tallies}
    results = {
        "task": SEVERAL,
        "data": " + ".join(each),
        "primary": "mean",
        **_summary(runs),
        "blind": None,
        "failed": sorted({seed for found in each.values() for seed in found["failed"]}),
        "chosen_on_dev": ["the epoch"] if settings.patience else [],
        **{n: sum(found[n] for found in each.values()) for n in ("train_examples", "dev_examples")},
        "cut": {n: sum(found["cut"][n] for found in each.values()) for n in ("train", "dev")},
        **about,
        "tasks": each,
    }
    if out is not None:
        notes = {
            "task": SEVERAL,
            "data": results["data"],
            "settings": settings.to_json(),
            "results": {name: value for name, value in results.items() if name != "tasks"},
            "tasks": {tally.job.name: tally.notes(best[1]) | {"results": each[tally.job.name]} for tally in tallies},
            "chosen": f"seed {best[1]}: the best mean on the dev examples of {seeds} seed(s)",
        }
        write_text(out / "log.jsonl", "".join(json.dumps(row) + "\n" for row in rows))
        save_model(out / "model", best[2], loaded.tokenizer, notes | chain_of(loaded.notes))
        for tally in tallies:
            place = out / "tasks" / tally.job.name
            place.mkdir(parents=True, exist_ok=True)
            gold = [e.answer for e in tally.job.dev]
            labels = tally.work.task.labels
            write_json(place / "predictions.json", {"gold": gold, "said": tally.kept, "labels": labels})
            write_json(place / "results.json", each[tally.job.name])
        write_json(out / "results.json", results)
        write_report(out)
    return results


class Tally:
    """What the seeds say of one task, and what that is worth."""

    def __init__(self, work: Work, job: Job):
        self.work, self.job, self.primary = work, job, work.metric()
        self.blind = majority(work.train.examples, job.dev, job.kind).get(self.primary, -math.inf)
        self.runs: list[dict[str, Any]] = []
        self.kept: dict[int, list[Any]] = {}
        self.fitted: dict[int, Task] = {}

    def value(self, model: Model) -> float:
        return self.work.answers(model)[2][self.primary]

    def add(self, seed: int, model: Model) -> float:
        self.fitted[seed], said, found = self.work.answers(model)
        self.kept[seed] = [p.answer for p in said]
        self.runs.append({"seed": seed, self.primary: found[self.primary], **found})
        return found[self.primary]

    def results(self) -> dict[str, Any]:
        """As those of a run of this task alone."""
        task, train, dev = self.work.task, self.work.train, self.work.dev
        return {
            "task": task.kind,
            **({"data": self.job.data} if self.job.data else {}),
            "primary": self.primary,
            **_summary(self.runs),
            "blind": self.blind if math.isfinite(self.blind) else None,
            "failed": [run["seed"] for run in self.runs if run[self.primary] <= self.blind],
            "train_examples": len(train.examples),
            "dev_examples": len(dev.examples),
            "cut": {name: sum(e.cut for e in part.encoded) for name, part in (("train", train), ("dev", dev))},
            **lost_mentions(task, train.examples, dev.examples),
        }

    def notes(self, seed: int) -> dict[str, Any]:
        found = self.work.notes(self.fitted[seed], data=self.job.data)
        return found | {"settings": found["settings"] | {"both_orders": self.work.task.both_orders}}


def one_task(folder: ModelFolder, name: str = "") -> ModelFolder:
    """A folder of several tasks as if it had been fine-tuned for one of them alone; any other folder as it is."""
    tasks = folder.notes.get("tasks")
    if not isinstance(tasks, dict):
        return folder
    if name not in tasks:
        wrong = f"no task {name!r}; {nearest(name, tasks)}" if name else f"several tasks, {', '.join(tasks)}: say which"
        raise UserError(f"{folder.path} answers {wrong}")
    if "text" in tasks[name]:  # one head writes them all
        return replace(folder, model=folder.model.only("next", "next"), notes=tasks[name])
    head = HEADS[tasks[name]["task"]]
    return replace(folder, model=folder.model.only(f"{head}@{name}", head), notes=tasks[name])


def draw(sizes: Sequence[int], alpha: float, total: int, seed: int) -> np.ndarray:
    """The task of each step, by the seed alone, so that a run can go on anywhere."""
    shares = np.array(sizes, dtype=np.float64) ** alpha
    found: np.ndarray = np.random.default_rng((seed, len(sizes))).choice(len(sizes), total, p=shares / shares.sum())
    return found


def mixed(
    works: Sequence[Work], settings: FinetuneSpec, seed: int, total: int, run: Training | None = None, done: int = 0
) -> Iterator[tuple[list[Batch], Any]]:
    """The steps after the `done` ones: each task's own, in their own order, one drawn after the other."""
    order = draw([len(work.train.examples) for work in works], settings.alpha, total, seed)
    behind = np.bincount(order[:done], minlength=len(works)).tolist()
    own = [steps(w.task, w.train.encoded, settings, seed, run, n) for w, n in zip(works, behind)]
    for number in order[done:].tolist():
        batches, cursor = next(own[number])
        yield batches, (number, cursor)


def _learn(tallies: Sequence[Tally], run: Training, size: int, settings: FinetuneSpec, seed: int) -> list[Report]:
    """Train one seed's model; with patience, to the best of its epochs by the mean over tasks."""
    best, done = Best(settings.patience), list[Report]()
    works, epoch = [tally.work for tally in tallies], size // settings.batch_size
    with progress(f"finetune, seed {seed}", run.total, "steps") as bar:
        for report in in_phases(run, settings, size, lambda first: mixed(works, settings, seed, run.total, run, first)):
            bar.advance(1)
            done.append(report)
            if best.patience and report.step % epoch == 0:
                best.note(report.step, statistics.fmean(t.value(run.model) for t in tallies), run.model)
                if best.over:
                    break
    best.restore(run.model)
    return done


def _for(kind: Kind, shape: tuple[bool, Any, Any]) -> tuple[bool, Any, Any]:
    """Settings that mean something to this kind: a pair may be read twice, another text not."""
    return (shape[0] and kind in ("pair", "regression"), *shape[1:])


def _check(jobs: Sequence[Job], settings: FinetuneSpec) -> None:
    names = [job.name for job in jobs]
    if not jobs:
        raise UserError("there is no task to fine-tune for")
    for name in names:
        if re.fullmatch(r"\w[\w-]*(/\w[\w-]*)*", name) is None:
            raise UserError(f"{name!r} is no name for a task: letters, digits, _ and - are")
        if names.count(name) > 1:
            raise UserError(f"two tasks are called {name!r}: give them names, NAME=KIND")
    if settings.decoder == "crf" and all(job.kind != "tagging" for job in jobs):
        raise UserError("the decoder crf is for tagging, and none of the tasks is")

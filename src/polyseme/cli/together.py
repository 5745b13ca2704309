"""`polyseme finetune` with several --task: one trunk, one head for each."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from polyseme.errors import UserError

if TYPE_CHECKING:
    from polyseme.finetuning.finetune import FinetuneSpec
    from polyseme.finetuning.multitask import Job


def single(option: str, given: Sequence[Any]) -> Any:
    """The one value of an option that is for one task, or none."""
    if len(given) > 1:
        raise UserError(f"{len(given)} {option} for one task: one is read; several tasks are several --task")
    return given[0] if given else None


def read_jobs(
    tasks: Sequence[str], data: Sequence[Path], train: Sequence[Path], dev: Sequence[Path], columns: dict[str, Any]
) -> list[Job]:
    """Each --task with its own data: named data sets take the --data in their order, or all the same one; the others
    the --train and --dev in theirs."""
    from polyseme.cli.output import kind_of
    from polyseme.datasets.catalog import DATA_SETS
    from polyseme.finetuning.multitask import Job
    from polyseme.tasks.examples import read_examples

    split = [task.partition("=") for task in tasks]
    pairs = [(name, kind) if equals else (name, name) for name, equals, kind in split]
    named = [of for _, of in pairs if of in DATA_SETS]
    files = len(pairs) - len(named)
    for _, of in pairs:
        kind_of(of)
    if (named and len(data) not in (1, len(named))) or (data and not named):
        raise UserError(f"{len(data)} --data for {len(named)} named data sets: one for each, or one for all")
    if len(train) != files or len(dev) != files:
        raise UserError(f"{len(train)} --train and {len(dev)} --dev for {files} tasks that read files: one for each")
    folders, trains, devs = iter(list(data) * (len(named) if len(data) == 1 else 1)), iter(train), iter(dev)
    found = []
    for name, of in pairs:
        kind = kind_of(of)
        if of in DATA_SETS:
            one = DATA_SETS[of]
            both = one.read(next(folders), columns["skip_bad"], columns["strict"])
            found.append(Job(name, kind, *both, one.metric, of, one.extra))
        else:
            to_learn, to_measure = (read_examples(next(paths), kind, **columns) for paths in (trains, devs))
            found.append(Job(name, kind, to_learn, to_measure))
    return found


def several(
    model: Path | None,
    jobs: Sequence[Job],
    out: Path,
    settings: FinetuneSpec,
    grid: Sequence[str],
    seeds: int,
    scratch: bool,
    baselines: bool,
) -> None:
    """Fine-tune for all jobs at once, and print what each is worth."""
    import sys

    from polyseme.cli.output import print_table
    from polyseme.finetuning.grid import points, search
    from polyseme.finetuning.multitask import finetune_together
    from polyseme.tasks.baselines.surface import linear, majority

    if model is None:
        raise UserError("several tasks share a trunk that learns: give a model folder, not --features")

    def once(chosen: FinetuneSpec, folder: Path) -> dict[str, Any]:
        return finetune_together(model, jobs, folder, chosen, seeds=seeds, scratch=scratch)

    if grid:
        results, searched = search(once, out, points(settings, grid))
        print_table(["mean", "settings"], [[f"{r['mean']['mean']:.4f}", name] for name, r in searched])
    else:
        results = once(settings, out)
    rows = []
    for job in jobs:
        found = results["tasks"][job.name]
        metric, failed = found["primary"], ", ".join(map(str, found["failed"]))
        deviation = found["deviation"][metric]
        shown = f"{found['mean'][metric]:.4f}" + (f" ± {deviation:.4f}" if deviation is not None else "")
        guesses = [baseline(job.train, job.dev, job.kind) for baseline in (majority, linear)] if baselines else []
        rows.append([job.name, job.kind, metric, *(f"{guess[metric]:.4f}" for guess in guesses), shown])
        if failed:
            said = f"no better than a blind guess ({found['blind']:.4f})"
            print(f"{job.name}: failed seeds, {said}: {failed}", file=sys.stderr)
        for part, cut in found["cut"].items():
            if cut:
                print(f"{job.name}, {part}: {cut} examples were cut", file=sys.stderr)
    head = ["task", "kind", "metric", *(["blind", "linear"] if baselines else []), f"{seeds} seed(s)"]
    print_table(head, rows)
    print(f"mean: {results['mean']['mean']:.4f}")
    print(f"{out}/model: seed {results['best_seed']}; ask it with --task NAME; see {out}/report.html")

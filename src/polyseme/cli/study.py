"""`polyseme study`: run a pre-training experiment of a paper, with every arm on equal terms."""

import shlex
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from typer import Argument, Option

from polyseme.cli import options
from polyseme.cli.output import parse_seeds, parse_settings, print_json, print_wrapped, print_wrapped_table
from polyseme.errors import ConfigError

if TYPE_CHECKING:
    from polyseme.studies.base import Study
    from polyseme.studies.runner import StudyStatus

NAME_HELP = "A name from `polyseme study --list`, or a JSON file of a study of your own."
DATA_HELP = "Folder of the data sets: glue, blimp (or blimp.tar.xz), trec, wic, wnut17, squad-shifts, ud-ewt, pretrain."
HELD_OUT_HELP = (
    "Text that nothing is trained on, for bits per character; default: pretrain/heldout-wiki.jsonl.xz in --data."
)
BUDGET_HELP = "Training of each arm: 90s (measured once on this device and fixed as steps), 500steps or 1e8tokens."
MAX_HELP = (
    "Use at most this many examples of each split, held-out sentences, and minimal pairs of each paradigm; 0: all."
)
JOBS_HELP = "Jobs that run at a time, as processes on one GPU; default: 4 on a GPU, 1 on a CPU."
LIMIT_HELP = (
    "Stop after this time, such as 9m; no job is started that is not expected to end. The same command continues."
)
SEARCH_HELP = "Part of the budget that each learning rate is tried for."
SEARCH_FRACTION = 1 / 6
FAILED_STATUS, UNFINISHED_STATUS = 1, 3


def study(
    name: Annotated[str | None, Argument(help=NAME_HELP)] = None,
    corpus: Annotated[Path | None, Option(help="Corpus folder from `polyseme prepare`.")] = None,
    data: Annotated[Path | None, Option(help=DATA_HELP)] = None,
    budget: Annotated[str, Option(help=BUDGET_HELP)] = "",
    seeds: options.SeedsOption = "3",
    out: Annotated[Path | None, Option(help="Folder of the study; with --page the file to write.")] = None,
    arms: Annotated[str, Option(help="Run only these arms now: a,b.")] = "",
    metrics: Annotated[str, Option(help="Measure only these: blimp,cola; default: those of the study.")] = "",
    held_out: Annotated[Path | None, Option(help=HELD_OUT_HELP)] = None,
    overrides: options.SetOption = [],
    finetune: Annotated[list[str], Option(help="Set a fine-tuning setting for all tasks: epochs=1.")] = [],
    max_examples: Annotated[int, Option(help=MAX_HELP, min=0)] = 0,
    search_fraction: Annotated[float, Option(help=SEARCH_HELP, show_default="1/6")] = SEARCH_FRACTION,
    jobs: Annotated[int, Option(help=JOBS_HELP, min=0, show_default=False)] = 0,
    time_limit: Annotated[str, Option(help=LIMIT_HELP)] = "",
    keep_models: Annotated[bool, Option("--keep-models", help="Keep the models after they are measured.")] = False,
    list_all: Annotated[bool, Option("--list", help="List the studies.")] = False,
    page: Annotated[
        Path | None, Option(help="Write the pages of the study in this folder again; --out copies one.")
    ] = None,
    as_json: options.JsonOption = False,
) -> None:
    """Run an experiment of a paper, or one of your own.

    It pre-trains the arms on equal terms, measures them, and answers the questions. Each arm gets the same text,
    budget, seeds, and learning-rate search. The same command continues a study that was stopped. Exits with 1 if an
    arm failed, and with 3 if --time-limit ended it before the last one.
    """
    others: dict[str, Any] = {"--corpus": corpus, "--data": data, "--budget": budget, "--seeds": seeds != "3"}
    others |= {"--arms": arms, "--metrics": metrics, "--held-out": held_out, "--set": overrides, "--finetune": finetune}
    others |= {"--max-examples": max_examples, "--search-fraction": search_fraction != SEARCH_FRACTION, "--jobs": jobs}
    others |= {"--time-limit": time_limit, "--keep-models": keep_models}
    if list_all:
        _reject(others | {"--out": out, "--page": page}, "--list, which takes only NAME and --json")
        _list(name, as_json)
        return
    if page is not None:
        _reject({"NAME": name, **others, "--json": as_json}, "--page, which takes only --out")
        _write_page(page, out)
        return
    from polyseme.studies.plan import StudyOptions
    from polyseme.studies.runner import run_study

    required = {"NAME": name, "--corpus": corpus, "--data": data, "--budget": budget, "--out": out}
    _require(required)
    assert name and corpus and data and out
    study_options = StudyOptions(
        parse_settings(overrides), parse_settings(finetune), _split(metrics), held_out, max_examples, search_fraction,
        keep_models=keep_models, arms=_split(arms), jobs=jobs, time_limit=_parse_limit(time_limit),
        command=shlex.join(["polyseme", *sys.argv[1:]]),
    )  # fmt: skip
    status = run_study(name, corpus, data, out, budget, parse_seeds(seeds), study_options)
    _print_status(status, as_json)
    if status.errors or status.is_stopped:
        raise typer.Exit(FAILED_STATUS if status.errors else UNFINISHED_STATUS)


def _require(values: dict[str, Any]) -> None:
    """Raise `ConfigError` for options without a value."""
    if missing := [flag for flag, value in values.items() if not value]:
        raise ConfigError(f"{', '.join(missing)} missing: a study needs a name, a corpus, data, a budget and a folder")


def _reject(values: dict[str, Any], other: str) -> None:
    """Raise `ConfigError` for options for running a study beside one that does something else."""
    if ignored := [flag for flag, value in values.items() if value]:
        raise ConfigError(f"{ignored[0]} has no effect with {other}")


def _write_page(study_folder: Path, out: Path | None) -> None:
    """Write the pages of a study again."""
    from polyseme.studies.runner import rewrite_pages

    print(rewrite_pages(study_folder, out))


def _parse_limit(text: str) -> float:
    """Return the seconds of a time such as 9m; 0 for none."""
    from polyseme.train.recipe import BudgetConfig

    if text and not (limit := BudgetConfig.parse(text)).is_wall_clock:
        raise ConfigError(f"--time-limit is {text}, expected a time such as 9m")
    return 60 * limit.minutes if text else 0.0


def _split(names: str) -> list[str]:
    return [name.strip() for name in names.split(",") if name.strip()]


def _print_status(status: "StudyStatus", as_json: bool) -> None:
    if as_json:
        facts = {"out": str(status.out), "done": status.num_done, "rows": status.num_rows, "errors": status.errors}
        print_json(facts)
        return
    rest = "" if status.is_complete else "; the same command continues"
    print(f"{status.out}: {status.num_done} of {status.num_rows} runs are done{rest}")
    for run, error in status.errors.items():
        print(f"failed: {run}: {error}")
    if (status.out / "report.html").is_file():
        print(f"see {status.out / 'report.html'}")


def _list(name: str | None, as_json: bool) -> None:
    from polyseme.studies.base import list_studies, load_study

    studies = {name: load_study(name)} if name else list_studies()
    if as_json:
        print_json([each.to_plain() for each in studies.values()])
    elif name:
        _print_study(studies[name])
    else:
        rows: list[list[Any]] = [
            [each.name, len(each.arms), len(each.questions), f"{each.title} ({each.source})"]
            for each in studies.values()
        ]
        print_wrapped_table(["study", "arms", "questions", "title"], rows)


def _print_study(study: "Study") -> None:
    print_wrapped(f"{study.title} ({study.source})", 2)
    print(f"metrics: {', '.join(study.metrics)}")
    print_wrapped_table(["arm", "recipe"], [[arm.name, arm.recipe or f"model of {arm.from_arm}"] for arm in study.arms])
    for question in study.questions:
        print_wrapped(f"- {question.text} ({question.source})", 2)

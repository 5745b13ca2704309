"""`README.md` of a run folder: what is in it, and the commands that repeat, resume and use it."""

import os
import re
import shlex
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from pathlib import Path
from typing import Any

from polyseme.io.json import read_json
from polyseme.report.cards.readme import format_code, format_list, format_sections, short_name, write_readme

_command: ContextVar[tuple[str, ...]] = ContextVar("command", default=())
_ABSOLUTE_PATH = re.compile(r"(?<![\w.~/])/[^\s,=:]+")
FILES = {
    "report.html": "the results as a page",
    "model": "the model; its `README.md` says how to use it",
    "seeds": "the models of all seeds",
    "results.json": "all figures",
    "benchmark.json": "all figures",
    "predictions.json": "predictions for the dev examples",
    "diagnostics.json": "what the model gets right and wrong on the dev examples, with texts of them",
    "submission": "predictions for the test examples",
    "grid.json": "the scores of the grid search",
    "curve.json": "the points of the low-shot curve",
    "log.jsonl": "the log",
    "recipe.json": "the complete recipe",
    "checkpoints": "checkpoints, which are needed to resume",
    "SHA256SUMS": "the hashes of all files",
}


@contextmanager
def record_command(arguments: Sequence[str]) -> Iterator[None]:
    """Record the command that runs, for the cards of the folders that it writes."""
    token = _command.set(tuple(arguments))
    try:
        yield
    finally:
        _command.reset(token)


def format_command(arguments: Sequence[str]) -> str:
    """Return a command as one line, without the folders of this machine: absolute paths become relative ones."""

    def shorten(match: re.Match[str]) -> str:
        path = Path(match[0])
        if path.is_relative_to(Path.cwd()):
            return os.path.relpath(path)
        return "/".join(path.parts[-2 if path.name == "model" else -1 :])

    return shlex.join(["polyseme", *(_ABSOLUTE_PATH.sub(shorten, argument) for argument in arguments)])


def write_run_card(folder: Path, title: str = "") -> None:
    """Write the card of a run folder; the title of a pre-training run is its recipe.

    It does not depend on the name of the folder, which a user may change.
    """
    record = read_json(folder / "recipe.json") if (folder / "recipe.json").is_file() else {}
    lines = [f"`{file}`: {text}" for file, text in FILES.items() if (folder / file).exists() or file == "SHA256SUMS"]
    lines += [f"`{path.name}/`: a run of its own" for path in sorted(folder.iterdir()) if _is_run(path)]
    title = title or f"{record['recipe']['name']} on {_corpus_name(record)}"
    lead = f"A {'pre-training' if record else 'fine-tuning'} run. `polyseme verify FOLDER` checks all files."
    sections = [("Files", format_list(lines)), ("Reproduce", _format_reproduction(record))]
    write_readme(folder, format_sections(title, lead, sections))


def _is_run(path: Path) -> bool:
    return path.name not in FILES and any((path / file).is_file() for file in ("results.json", "manifest.json"))


def _corpus_name(record: dict[str, Any]) -> str:
    return short_name(os.path.abspath(record["corpus"]))  # also of `.`


def _format_reproduction(record: dict[str, Any]) -> str:
    arguments = [argument for argument in _command.get() if argument != "--resume"]
    if not arguments and record:
        arguments = _recipe_command(record)
    if not arguments:
        return "The run was started from Python; all settings are in `model/polyseme.json`."
    steps = record.get("total_steps")
    is_timed = record.get("recipe", {}).get("budget", {}).get("minutes") and steps
    command = format_command(arguments)
    parts = ["The command, with paths as short as possible:", format_code(command, "bash")]
    if is_timed:
        parts.append(f"The time was enough for {steps:,} steps: `--budget {steps}steps` trains the same number.")
    if "total_steps" in record:
        parts += ["After an interruption it continues with:", format_code(f"{command} --resume", "bash")]
    else:
        parts.append("After an interruption the same command continues.")
    return "\n\n".join(parts)


def _recipe_command(record: dict[str, Any]) -> list[str]:
    """Return the command for a run that was started from Python, given in its folder."""
    corpus, objective = _corpus_name(record), record["recipe"].get("objective", {})
    target = ["--corpus", corpus, "--out", "RUN"]
    if objective.get("teacher"):
        return ["distill", short_name(objective["teacher"]), "--student", "recipe.json", *target]
    start = ["--init-from", short_name(record["initialized_from"])] if record.get("initialized_from") else []
    return ["pretrain", "recipe.json", *target, *start]

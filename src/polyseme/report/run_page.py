"""HTML report of a pre-training or fine-tuning run."""

from pathlib import Path
from typing import Any

from polyseme.config import Config
from polyseme.io.atomic import write_text
from polyseme.io.json import read_json
from polyseme.report.pages.finetuning_page import finetuning_page
from polyseme.report.pages.pretraining_page import pretraining_page, read_rows


def read_log(run: Path) -> list[dict[str, Any]]:
    """Read the rows of a run's `log.jsonl`; none if it does not exist."""
    return read_rows(run / "log.jsonl")


def write_report(run: Path, results: dict[str, Any] | None = None, named_recipe: Config | None = None) -> Path:
    """Write `report.html` of a pre-training or fine-tuning run from its results and the files of the run folder.

    The results are those in `results.json` unless they are passed, before that file is written. The page of a
    pre-training run shows how its recipe differs from `named_recipe`.
    """
    results = read_json(run / "results.json") if results is None else results
    is_pretraining = (run / "recipe.json").exists()
    if is_pretraining:
        text = pretraining_page(run, results, named_recipe)
    else:
        text = finetuning_page(run, results, read_log(run))
    write_text(run / "report.html", text)
    return run / "report.html"

"""HTML report of a pre-training or fine-tuning run."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from polyseme.config import Config
from polyseme.io.atomic import write_text
from polyseme.io.json import read_json
from polyseme.report.charts import loss_chart
from polyseme.report.html import code, escape, html_page, html_table, note
from polyseme.report.pretraining_page import pretraining_page, read_rows


def dev_selection_note(choices: Sequence[str]) -> str:
    """Return a warning about scores on dev examples that were also used for selection; empty if none were."""
    return f"Scores are optimistic: chosen on the same dev examples: {', '.join(choices)}." if choices else ""


def truncation_note(results: dict[str, Any], split: str) -> str:
    """Return how many examples of a split were truncated; empty if none were."""
    count, total = results["num_truncated"][split], results[f"{split}_examples"]
    return f"{split}: {count:,} of {total:,} examples ({count / max(total, 1):.1%}) were truncated" if count else ""


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
    text = pretraining_page(run, results, named_recipe) if is_pretraining else _finetuning_page(run, results)
    write_text(run / "report.html", text)
    return run / "report.html"


def _finetuning_page(run: Path, results: dict[str, Any]) -> str:
    names = list(results["mean"])
    rows = [[f"seed {r['seed']}", *(f"{r[n]:.4f}" for n in names)] for r in results["seeds"]]
    rows.append(["mean", *(f"{results['mean'][n]:.4f}" for n in names)])
    if len(results["seeds"]) > 1:
        rows.append(["std", *(f"{results['std'][n]:.4f}" for n in names)])
    notes = [dev_selection_note(results.get("chosen_on_dev", ()))]
    notes += [truncation_note(results, part) for part in results["num_truncated"]]
    log = [row for row in read_log(run) if row.get("seed") == results["best_seed"]]
    sections = [
        ("Results", html_table(["", *names], rows) + "".join(note(line) for line in notes if line)),
        (f"Loss of seed {results['best_seed']}", loss_chart(log, unit=results.get("loss_unit", "nats"))),
        ("Facts", code({k: v for k, v in results.items() if k not in ("seeds", "mean", "std")})),
        ("Settings", code(read_json(run / "model" / "polyseme.json")["metadata"]["settings"])),
    ]
    title = f"Fine-tuning: {results.get('data') or results['task']}"
    return html_page(title, f"from {escape(str(results['model']))}", sections)

"""HTML report of a pre-training or fine-tuning run."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from polyseme.io.atomic import write_text
from polyseme.io.json import read_json
from polyseme.report.charts import loss_chart
from polyseme.report.html import code, escape, html_page, html_table, note


def cost_table(results: dict[str, Any]) -> str:
    """Tabulate the cost of a pre-training run."""
    rows = [
        ("parameters", results["parameters"]),
        ("steps", results["steps"]),
        ("tokens read", results["tokens"]),
        ("floating-point operations", f"{results['flops']:.3g}"),
        ("device-hours", f"{results['device_hours']:.4f}"),
        ("tokens per second", round(results["tokens"] / max(results["device_hours"] * 3600, 1e-9))),
    ]
    environment = ", ".join(f"{k} {v}" for k, v in results["environment"].items())
    return html_table(["cost", ""], rows) + note(environment)


def metrics_table(values: dict[str, float]) -> str:
    """Tabulate metrics on held-out text."""
    return html_table(["held-out text", ""], [(name, f"{value:.4f}") for name, value in values.items()])


def dev_selection_note(choices: Sequence[str]) -> str:
    """Return a warning about scores on dev examples that were also used for selection; empty if none were."""
    return f"Scores are optimistic: chosen on the same dev examples: {', '.join(choices)}." if choices else ""


def truncation_note(results: dict[str, Any], split: str) -> str:
    """Return how many examples of a split were truncated; empty if none were."""
    count, total = results["num_truncated"][split], results[f"{split}_examples"]
    return f"{split}: {count:,} of {total:,} examples ({count / max(total, 1):.1%}) were truncated" if count else ""


def read_log(run: Path) -> list[dict[str, Any]]:
    """Read the rows of a run's `log.jsonl`; none if it does not exist."""
    path = run / "log.jsonl"
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()] if path.exists() else []


def write_report(run: Path, results: dict[str, Any] | None = None) -> Path:
    """Write `report.html` of a pre-training or fine-tuning run from its results and the files of the run folder.

    The results are those in `results.json` unless they are passed, before that file is written.
    """
    results = read_json(run / "results.json") if results is None else results
    is_pretraining = (run / "recipe.json").exists()
    text = _pretraining_page(run, results) if is_pretraining else _finetuning_page(run, results)
    write_text(run / "report.html", text)
    return run / "report.html"


def _pretraining_page(run: Path, results: dict[str, Any]) -> str:
    saved_recipe = read_json(run / "recipe.json")
    recipe = saved_recipe["recipe"]
    sections = [
        ("Loss", loss_chart(read_log(run))),
        ("Results", metrics_table(results["valid"])),
        ("Cost", cost_table(results)),
        ("The exact recipe", code(recipe)),
        ("What next", code(f"polyseme score {run}/model --data TEXT.txt\npolyseme finetune {run}/model --help")),
    ]
    lead = f"{escape(recipe['family'])} on {escape(saved_recipe['corpus'])}"
    return html_page(f"Pre-training: {recipe['name']}", lead, sections)


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

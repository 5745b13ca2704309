"""HTML report of a pre-training or fine-tuning run."""

import json
from pathlib import Path
from typing import Any

from polyseme.io.atomic import write_text
from polyseme.io.json import read_json
from polyseme.report.charts import loss_chart
from polyseme.report.finetuning_page import finetuning_page
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
    text = _pretraining_page(run, results) if is_pretraining else finetuning_page(run, results, read_log(run))
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

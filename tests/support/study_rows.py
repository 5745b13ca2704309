"""Folders of studies with rows that no run has produced, for tests of verdicts and pages."""

import json
from pathlib import Path
from typing import Any

import numpy as np

from polyseme.studies.base import Arm, Question, Study

NUM_EXAMPLES = 200


def make_study(arms: list[str] | list[Arm], metrics: list[str], questions: list[tuple[str, str, str, str]]) -> Study:
    """A study with questions (arm, reference, metric, predicted)."""
    arms = [arm if isinstance(arm, Arm) else Arm(arm, "bert-tiny") for arm in arms]
    asked = tuple(
        Question(f"Is {arm} {predicted} than {reference}?", arm, reference, metric, predicted, "A paper, table 1", 1.5)
        for arm, reference, metric, predicted in questions
    )
    return Study("made-up", "A made-up study", "A paper, table 1", tuple(arms), tuple(metrics), asked)


def make_row(arm: str, seed: int, values: dict[str, float], **facts: Any) -> dict[str, Any]:
    """A row as the engine writes it."""
    return {
        "arm": arm, "seed": seed, "recipe": {"objective": {"kind": "MaskedLM"}}, "lr": 1e-3, "steps": 900,
        "tokens": 14_700_000, "parameters": 11_200_000, "non_embedding_parameters": 3_200_000, "train_seconds": 90.2,
        "device": "a GPU", "date": "2026-01-01 12:00", "torch": "2.11.0", "commit": "0123456789ab",
        "valid": {"masked": 6.9}, "unigram_loss": 7.0, "is_void": False, "warnings": [],
        "metrics": {
            name: {"value": value, "metric": "accuracy", "num_examples": NUM_EXAMPLES, "seconds": 3.0}
            for name, value in values.items()
        },
        **facts,
    }  # fmt: skip


def write_study(out: Path, study: Study, rows: list[dict[str, Any]], seeds: list[int] | None = None) -> Path:
    """Write the files of a study; a metric with `points` gets a file of examples."""
    seeds = seeds or sorted({row["seed"] for row in rows})
    plan = {
        "kind": "study",
        "study": study.to_plain(),
        "corpus": str(out.resolve() / "corpus"),
        "data": "data",
        "budget": "90s",
        "search_fraction": 1 / 6,
    }
    command = f"polyseme study made-up --corpus {out.resolve() / 'my_corpus'} --budget 90s"
    plan |= {"seeds": seeds, "command": command, "limits": {"sst-2": {"train": 10_000}}}
    out.mkdir(parents=True, exist_ok=True)
    (out / "study.json").write_text(json.dumps(plan))
    rates = {"lr": 1e-3, "rates": [{"lr": 5e-4, "loss": 3.0}, {"lr": 1e-3, "loss": 2.9}]}
    (out / "lr.json").write_text(json.dumps({arm.name: rates for arm in study.arms}))
    for row in rows:
        folder = out / "arms" / row["arm"]
        folder.mkdir(parents=True, exist_ok=True)
        for name, facts in row.get("metrics", {}).items():
            if examples := facts.pop("examples", None):
                facts["items"] = f"seed-{row['seed']}.{name}.json"
                (folder / facts["items"]).write_text(json.dumps(examples))
        (folder / f"seed-{row['seed']}.json").write_text(json.dumps(row))
    return out


def random_rows(study: Study, num_seeds: int, seed: int = 0, spread: float = 0.01) -> list[dict[str, Any]]:
    """Rows whose arms differ by about `spread`."""
    rng, rows = np.random.default_rng(seed), []
    for number, arm in enumerate(study.arms):
        for each in range(num_seeds):
            values = {
                name: (2.2 - 0.05 * number if "bits" in name or "loss" in name else 0.6 + 0.012 * number)
                + rng.normal(0, spread)
                for name in study.metrics
            }
            rows.append(make_row(arm.name, each, values))
    return rows

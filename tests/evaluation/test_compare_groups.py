"""`compare` with groups of runs, whose models differ in their pre-training seed."""

import json
import logging

import numpy as np
import pytest

import polyseme
from polyseme.tasks.classification import ClassificationTask

GOLD = ["ab"[i % 2] for i in range(120)]


def write_run(folder, model, shares, seed, task="cola"):
    """Write the files of a fine-tuning run, with a seed for each share of right answers."""
    rng = np.random.default_rng(seed)
    difficulty = np.random.default_rng(99).random(len(GOLD))
    predictions = {
        number: [g if 0.5 * d + 0.5 * rng.random() < share else "ab".replace(g, "") for g, d in zip(GOLD, difficulty)]
        for number, share in enumerate(shares)
    }
    scores = [np.mean([a == b for a, b in zip(GOLD, each)]) for each in predictions.values()]
    results = {"primary_metric": "accuracy", "task": "classification", "data": task, "model": model, "parameters": 5,
               "seconds": 2.0, "seeds": [{"seed": n, "accuracy": s} for n, s in enumerate(scores)]}  # fmt: skip
    folder.mkdir(parents=True)
    (folder / "results.json").write_text(json.dumps(results))
    task_json = ClassificationTask(labels=("a", "b")).to_json()
    content = {"gold": GOLD, "predictions": predictions, "task": task_json}
    (folder / "predictions.json").write_text(json.dumps(content))


@pytest.fixture
def runs(tmp_path):
    for number in range(3):
        for name, share in (("bert", 0.75), ("gpt", 0.6)):
            share += 0.01 * number
            write_run(tmp_path / f"{name}-{number}/cola", f"{name}-{number}", [share, share + 0.02], number)
        write_run(tmp_path / f"tuned-{number}/cola", f"bert-{number}", [0.76 + 0.01 * number], 10 + number)
    return tmp_path


def test_groups_are_compared_over_pretraining_seeds(runs, run_cli, caplog):
    arguments = [f"bert={runs}/bert-*/cola", f"gpt={runs}/gpt-*/cola"]
    printed = run_cli("compare", *arguments, "--num-resamples", 200, "--out", runs / "page")
    assert "bert is better than gpt on cola" in printed and "multi-bootstrap over 3 and 3 pre-training seeds" in printed
    rows = [line.split() for line in printed.splitlines() if line.startswith(("bert ", "gpt "))]
    assert [row[0] for row in rows[:2]] == ["bert", "gpt"] and "3 pre-trained" in printed
    written = json.loads((runs / "page/compare.json").read_text())
    assert written["runs"][0]["seeds"] == 3 and len(written["runs"][0]["models"]) == 3
    folders = {name: sorted(runs.glob(f"{name}-*/cola")) for name in ("bert", "gpt")}
    with caplog.at_level(logging.WARNING):
        comparison = polyseme.compare(folders, num_resamples=200)
    by_command = json.loads(run_cli("compare", *arguments, "--num-resamples", 200, "--json"))
    assert json.loads(json.dumps(comparison.to_json())) == by_command
    assert "95 % intervals cover only about 80 %" in caplog.text
    (test,) = comparison.tests
    group = comparison.runs[0]
    assert group.mean == pytest.approx(np.mean([run.mean for run in group.models])) and group.std > 0
    assert test.low < test.difference < test.high and test.is_significant


def test_groups_of_the_same_models_are_paired(runs):
    """The differences between models cancel, so the interval of the pair is narrower than those of the groups."""
    groups = {name: sorted(runs.glob(f"{name}-*/cola")) for name in ("tuned", "bert")}
    (paired,) = polyseme.compare(groups, num_resamples=500).tests
    for number in range(3):  # the same scores from other models
        path = runs / f"tuned-{number}/cola/results.json"
        path.write_text(path.read_text().replace("bert-", "unrelated-"))
    (unpaired,) = polyseme.compare(groups, num_resamples=500).tests
    assert paired.difference == unpaired.difference
    assert (paired.low, paired.high) != (unpaired.low, unpaired.high)


def test_a_run_next_to_a_group_is_one_pretraining_seed(runs):
    groups = {"three": sorted(runs.glob("bert-*/cola")), "one": [runs / "gpt-0/cola"]}
    (test,) = polyseme.compare(groups, num_resamples=200).tests
    assert "3 and 1 pre-training seeds" in test.method


def test_what_is_no_group(runs, rejects, project):
    bert = f"bert={runs}/bert-*/cola"
    rejects("compare", bert, runs / "gpt-0/cola", match="is in no group: write NAME=FOLDER")
    rejects("compare", bert, f"none={runs}/none-*", match="there is no run at .*none-")
    rejects("compare", bert, bert, match="'bert' is no name of a group, or that of two")
    rejects("compare", f"x={runs}/bert-0/cola,{runs}/tuned-0/cola", match="fine-tune the same model bert-0")
    rejects("compare", bert, f"x={project / 'run-bert'}", match="run-bert is a pre-training run: a group has")

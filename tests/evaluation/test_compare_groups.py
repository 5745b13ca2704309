"""`compare` with groups of runs, whose models differ in their pre-training seed."""

import json
import logging

import numpy as np
import pytest

import polyseme
from polyseme.errors import ConfigError, DataError
from polyseme.tasks.classification import ClassificationTask
from polyseme.tasks.coreference import CoreferenceTask

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


def test_models_are_identified_by_their_hash(runs, rejects):
    """The same model may have several paths, and several models the same path."""
    groups = {name: sorted(runs.glob(f"{name}-*/cola")) for name in ("tuned", "bert")}
    (by_path,) = polyseme.compare(groups, num_resamples=500).tests
    for number in range(3):
        for name in ("bert", "tuned"):
            path = runs / f"{name}-{number}/cola/results.json"
            content = json.loads(path.read_text()) | {"model": f"{name}/model", "model_hash": str(number)}
            path.write_text(json.dumps(content))
    (by_hash,) = polyseme.compare(groups, num_resamples=500).tests
    assert (by_hash.low, by_hash.high) == (by_path.low, by_path.high)
    rejects("compare", f"x={runs}/bert-0/cola,{runs}/tuned-0/cola", match="fine-tune the same model")


def test_runs_in_one_folder_have_rows_of_their_own(runs):
    write_run(runs / "several/a", "bert-0", [0.6], 0)
    write_run(runs / "several/b", "bert-0", [0.7], 1)
    assert [run.row for run in polyseme.compare([runs / "several"], num_resamples=200).runs] == ["a", "b"]


def test_runs_on_other_examples_or_by_other_metrics_are_not_tested(runs, caplog):
    a, b, c = (runs / f"gpt-{number}/cola" for number in range(3))
    content = json.loads((c / "predictions.json").read_text())
    (c / "predictions.json").write_text(json.dumps(content | {"gold": content["gold"][::-1]}))
    with caplog.at_level(logging.WARNING):
        (test,) = polyseme.compare([a, b, c], num_resamples=200).tests
    assert {test.first, test.second} == {"gpt-0/cola", "gpt-1/cola"}
    assert "gpt-0/cola, gpt-1/cola; gpt-2/cola (cola)" in caplog.text
    for path, label in ((a, "a"), (b, "b")):
        for name in ("results.json", "predictions.json"):
            text = (path / name).read_text().replace('"accuracy"', '"f1"')
            (path / name).write_text(text.replace('"positive_label": ""', f'"positive_label": "{label}"'))
    with pytest.raises(ConfigError, match="measured by f1 of a, and gpt-1/cola by f1 of b"):
        polyseme.compare([a, b])
    with pytest.raises(ConfigError, match="by accuracy"):
        polyseme.compare([a, c])


def test_damaged_predictions_and_no_runs(runs):
    path = runs / "gpt-0/cola/predictions.json"
    content = json.loads(path.read_text())
    one_seed = {"predictions": {"0": content["predictions"]["0"]}}
    short = {"predictions": {seed: each[:3] for seed, each in content["predictions"].items()}}
    for change, match in ((one_seed, "1 seeds have predictions, and 2 scores"), (short, "predictions of each seed")):
        path.write_text(json.dumps(content | change))
        with pytest.raises(DataError, match=match):
            polyseme.compare([path.parent])
    for none in ([], {}):
        with pytest.raises(ConfigError, match="there are no runs to compare"):
            polyseme.compare(none)
    assert len(repr(polyseme.compare([runs / "gpt-1/cola"], num_resamples=200))) < 1000


def test_a_run_next_to_a_group_is_one_pretraining_seed(runs):
    groups = {"three": sorted(runs.glob("bert-*/cola")), "one": [runs / "gpt-0/cola"]}
    (test,) = polyseme.compare(groups, num_resamples=200).tests
    assert "3 and 1 pre-training seeds" in test.method


def test_what_is_no_group(runs, rejects):
    bert = f"bert={runs}/bert-*/cola"
    rejects("compare", bert, runs / "gpt-0/cola", match="is in no group: write NAME=FOLDER")
    rejects("compare", bert, f"none={runs}/none-*", match="there is no run at .*none-")
    rejects("compare", bert, bert, match="'bert' is no name of a group, or that of two")
    rejects("compare", f"x={runs}/bert-0/cola,{runs}/tuned-0/cola", match="fine-tune the same model bert-0")
    (runs / "run").mkdir()
    (runs / "run/recipe.json").write_text("{}")
    rejects("compare", bert, f"x={runs}/run", match="run is a pre-training run: a group has")


def test_runs_with_nested_predictions_are_compared(tmp_path, run_cli):
    clusters = [[[[0, 1], [3, 4]]], [[[0, 1], [5, 5]]]]  # of the mentions of two documents
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
        results = {"primary_metric": "f1", "task": "coreference", "data": "x", "model": name}
        results["seeds"] = [{"seed": 0, "f1": 1.0}]
        (tmp_path / name / "results.json").write_text(json.dumps(results))
        content = {"gold": clusters, "predictions": {"0": clusters}, "task": CoreferenceTask().to_json()}
        (tmp_path / name / "predictions.json").write_text(json.dumps(content))
    assert "not significantly better" in run_cli("compare", tmp_path / "a", tmp_path / "b", "--num-resamples", 100)

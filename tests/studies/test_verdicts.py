"""Verdicts of studies: every answer, the correction for several questions, noise of examples, pairs."""

import json

import numpy as np
import pytest

from polyseme.errors import DataError
from polyseme.studies.analysis.examples import example_deviations, multi_bootstrap_interval
from polyseme.studies.base import Arm
from polyseme.studies.verdicts import decide
from polyseme.tasks.classification import ClassificationTask
from tests.support.study_rows import make_row, make_study, write_study

SST = ("new", "old", "sst-2", "higher")


def rows_of(**values):
    return [make_row(arm, seed, {"sst-2": v}) for arm, each in values.items() for seed, v in enumerate(each)]


def answer(rows, *questions, **options):
    study = make_study(["new", "old", "other"], ["sst-2", "blimp"], list(questions or [SST]))
    return decide(study, rows, **options)


def test_agrees_disagrees_and_undecided():
    rows = rows_of(new=(0.80, 0.81, 0.82), old=(0.70, 0.71, 0.72), other=(0.7, 0.8, 0.9))
    higher, lower, unclear = answer(rows, SST, ("new", "old", "sst-2", "lower"), ("new", "other", "sst-2", "higher"))
    assert (higher.answer, lower.answer, unclear.answer) == ("agrees", "disagrees", "undecided")
    assert higher.difference == pytest.approx(0.1) and higher.num_seeds == (3, 3)
    low, high = higher.interval
    assert 0.07 < low < 0.1 < high < 0.13 and higher.p < higher.adjusted_p < 0.05
    assert unclear.detectable > 0.2 > higher.detectable
    assert not higher.includes_examples and not higher.is_paired


def test_questions_are_corrected_for_their_number():
    """The same difference is clear as the only question, and not among ten."""
    rows = rows_of(new=(0.80, 0.82, 0.84), old=(0.74, 0.76, 0.78))
    (alone,) = answer(rows)
    among = answer(rows, *[SST] * 10)
    assert alone.answer == "agrees" and {each.answer for each in among} == {"undecided"}
    assert among[0].p == alone.p and among[0].adjusted_p == pytest.approx(10 * alone.p)
    assert among[0].detectable > alone.detectable
    unanswered = answer(rows, SST, ("new", "other", "sst-2", "higher"))
    assert unanswered[0].adjusted_p == pytest.approx(2 * alone.p)  # a question that is not answered yet counts


def test_void_arms_and_failed_runs():
    rows = rows_of(new=(0.8, 0.81, 0.82), old=(0.7, 0.71, 0.72))
    rows[4] |= {"is_void": True, "recipe": {"name": "x", "family": "bert", "size": "tiny"}}
    (void,) = answer(rows)
    assert void.answer == "void" and void.difference is None
    assert void.reason == (
        "old never left the word-frequency plateau (1 of 3 seeds): post-norm bert needs Muon or more steps."
    )
    rows[4]["recipe"] = {"name": "x", "family": "modernbert", "size": ""}
    assert "modernbert needs more steps or another learning rate" in answer(rows)[0].reason
    rows[4]["valid"] = {}
    assert answer(rows)[0].reason == (
        "old has no validation loss, which would show whether it learned more than word frequencies (1 of 3 seeds): "
        "hold out more documents (`valid_fraction`)."
    )
    rows[4] = {"arm": "old", "seed": 1, "error": "the loss is nan"}
    (failed,) = answer(rows)
    assert failed.answer == "void" and failed.reason == "old, seed 1, failed: the loss is nan"
    rows += rows_of(other=(0.6, 0.61, 0.62))
    other = answer(rows, SST, ("new", "other", "sst-2", "higher"))[1]
    assert other.adjusted_p == other.p  # a void question is no test


def test_missing_rows_and_too_few_seeds():
    rows = rows_of(new=(0.8, 0.81), old=(0.7,))
    assert answer(rows, num_seeds=2)[0].reason == "1 of 2 seeds of old was measured by SST-2."
    assert answer(rows, ("new", "other", "sst-2", "higher"))[0].answer == "missing"
    (other,) = answer(rows, ("new", "new", "blimp", "higher"), num_seeds=2)
    assert "2 seeds of new were measured by BLiMP" in other.reason
    (single,) = answer(rows)
    assert single.answer == "undecided" and "One seed" in single.reason and single.interval is None
    (constant,) = answer(rows_of(new=(0.5, 0.5), old=(0.4, 0.4)))
    assert constant.answer == "undecided" and "vary" in constant.reason


def with_points(rng, arm, seed, share, difficulty):
    points = (0.7 * difficulty + 0.3 * rng.random(len(difficulty)) < share).astype(int).tolist()
    row = make_row(arm, seed, {"sst-2": float(np.mean(points))})
    row["metrics"]["sst-2"]["examples"] = {"points": points}
    return row


def test_examples_widen_intervals_and_models_can_be_shared(tmp_path):
    rng = np.random.default_rng(0)
    difficulty = rng.random(150)
    rows = [with_points(rng, arm, seed, 0.6, difficulty) for arm in ("new", "old", "other") for seed in range(3)]
    study = make_study([Arm("new", "bert-tiny"), Arm("old", "bert-tiny"), Arm("other", from_arm="old")], ["sst-2"],
                       [SST, ("other", "old", "sst-2", "higher")])  # fmt: skip
    write_study(tmp_path, study, rows)
    different, same = decide(study, rows, num_seeds=3, out=tmp_path)
    assert different.includes_examples and not different.is_paired and same.is_paired
    (seeds_only, _) = decide(study, rows)
    assert different.interval[0] <= seeds_only.interval[0] and different.interval[1] >= seeds_only.interval[1]
    low, high = different.bootstrap_interval
    assert low < different.difference < high
    (tmp_path / "arms/old/seed-1.sst-2.json").write_text(json.dumps({"points": [1.0] * 7}))
    with pytest.raises(DataError, match="sst-2 of new and old are of different examples"):
        decide(study, rows, num_seeds=3, out=tmp_path)


def test_deviations_give_the_covariance_over_examples(tmp_path):
    """Points, mean of groups, bits per character, and a metric of a task, each against a plain bootstrap."""
    rng, num_examples = np.random.default_rng(0), 300
    difficulty = rng.random(num_examples)
    gold = [("no", "yes")[i] for i in rng.integers(2, size=num_examples)]
    characters, groups = rng.integers(20, 200, size=num_examples), rng.choice(4, num_examples, p=[0.6, 0.2, 0.1, 0.1])
    task = ClassificationTask(labels=("no", "yes"))
    files, functions = {}, {}
    for number in range(2):
        right = difficulty * 0.6 + 0.4 * rng.random(num_examples) < 0.6
        bits = characters * (2 + 0.5 * difficulty + 0.3 * rng.random(num_examples))
        answers = [g if ok else {"no": "yes", "yes": "no"}[g] for g, ok in zip(gold, right)]
        files["points", number] = {"points": right.astype(int).tolist()}
        functions["points", number] = lambda i, x=right: x[i].mean()
        files["groups", number] = {"points": right.astype(int).tolist(), "groups": groups.tolist()}
        functions["groups", number] = lambda i, x=right: np.mean([x[i][groups[i] == g].mean() for g in range(4)])
        files["bits", number] = {"bits": bits.tolist(), "characters": characters.tolist()}
        functions["bits", number] = lambda i, x=bits: x[i].sum() / characters[i].sum()
        predicted = {"gold": gold, "predictions": [answers], "task": task.to_json(), "metric": "matthews"}
        files["metric", number] = predicted
        functions["metric", number] = lambda i, x=answers: task.score([gold[j] for j in i], [x[j] for j in i])[
            "matthews"
        ]
    draws = [rng.integers(num_examples, size=num_examples) for _ in range(400)]
    for kind in ("points", "groups", "bits", "metric"):
        paths = [tmp_path / f"{kind}-{number}.json" for number in range(2)]
        for number, path in enumerate(paths):
            path.write_text(json.dumps(files[kind, number]))
        u, v = map(example_deviations, paths)
        expected = np.cov([[functions[kind, number](draw) for draw in draws] for number in range(2)])
        assert u @ u == pytest.approx(expected[0, 0], rel=0.3), kind
        assert u @ v == pytest.approx(expected[0, 1], abs=0.25 * expected[0, 0]), kind
        assert expected[0, 1] > 0.25 * expected[0, 0]
        low, high = multi_bootstrap_interval(paths[:1], paths[1:])
        difference = functions[kind, 0](np.arange(num_examples)) - functions[kind, 1](np.arange(num_examples))
        assert low < difference < high, kind

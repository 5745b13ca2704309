"""Pages of fine-tuning runs: every section from plain results, next steps from what the results show."""

import json

import pytest

from polyseme.report.diagnostics import (
    Calibration,
    CalibrationBin,
    Confusion,
    Diagnostics,
    ErrorCase,
    GroupScore,
    LabelScore,
    RegressionFit,
)
from polyseme.report.pages.advice import suggest_next_steps
from polyseme.report.pages.diagnostics_page import diagnostics_sections, marked_words
from polyseme.report.pages.finetuning_page import dev_curves, finetuning_page, sampling_error

DIAGNOSTICS = Diagnostics(
    100,
    confusion=Confusion(("ham", "<spam>"), ((60, 2), (18, 20))),
    labels=(
        LabelScore("ham", 0.77, 0.97, 0.86, 62, 78, 400),
        LabelScore("<spam>", 0.91, 0.53, 0.67, 38, 22, 12),
    ),
    calibration=Calibration(0.12, 0.92, 0.80, (CalibrationBin(0.9, 1.0, 100, 0.92, 0.80),)),
    errors=tuple(
        ErrorCase(i, f"dev.csv:{i}", "buy <now>", "<spam>", "ham", 0.9, ("buy", "<now>"), (0.4, -0.2)) for i in range(8)
    ),
    num_errors=20,
    weights_meaning="Marked words raised the answer.",
)
LOG = [
    {"seed": seed, "step": step, "loss": {"classify": 1 / step}}
    | ({"dev": {"accuracy": 0.6 + step / 50}} if dev else {})
    for seed in (0, 1)
    for step, dev in zip(range(1, 11), (False, True) * 5)
]


def make_results(**changes):
    results = {
        "task": "classification", "primary_metric": "accuracy", "model": "base", "best_seed": 1,
        "seeds": [{"seed": 0, "accuracy": 0.78}, {"seed": 1, "accuracy": 0.82}],
        "mean": {"accuracy": 0.80}, "std": {"accuracy": 0.028}, "failed_seeds": [], "majority_score": 0.62,
        "baselines": {"majority": {"accuracy": 0.62}, "linear": {"accuracy": 0.85}},
        "chosen_on_dev": ["the epoch"], "num_truncated": {"train": 30, "dev": 0}, "train_examples": 100,
        "dev_examples": 100, "parameters": 1_500_000, "seconds": 30.0, "ms_per_text": 4.5,
        "examples_per_second": 900.0, "changed_settings": {"optimizer.lr": [5e-5, 1e-3]},
    }  # fmt: skip
    return results | changes


@pytest.fixture
def run(tmp_path):
    (tmp_path / "model").mkdir()
    metadata = {"settings": {"epochs": 3.0, "patience": 0, "optimizer": {"lr": 1e-3}}}
    (tmp_path / "model/polyseme.json").write_text(json.dumps({"metadata": metadata}))
    DIAGNOSTICS.write(tmp_path)
    return tmp_path


def write_grid(run, *rows):
    content = [
        {"settings": str(v), "values": v, "mean": {"accuracy": m}, "std": {"accuracy": None}, "failed_seeds": []}
        for v, m in rows
    ]
    (run / "grid.json").write_text(json.dumps({"best": "", "runs": content}))  # fmt: skip


def test_page_has_every_section_and_escapes(run):
    page = finetuning_page(run, make_results(), LOG)
    for heading in ("Results", "Confusion", "Scores by label", "Calibration", "Most confident errors", "Training"):
        assert f">{heading}</h2>" in page
    assert "<spam>" not in page and "&lt;spam&gt;" in page
    assert page.index("Scores are optimistic") < page.index(">Results</h2>")
    assert "train: 30 of 100 examples (30.0%) were truncated" in page
    assert "&#x27;&lt;spam&gt;&#x27; is taken for &#x27;ham&#x27; (18 times, 47% of it)" in page
    assert "the model is not better" in page and "2 more errors" in page
    assert ">optimizer.lr</td>" in page and str(run) not in page
    assert page.count("<figcaption>") == page.count("<figure>") >= 4


def test_one_seed_and_no_baselines(run):
    results = make_results(seeds=[{"seed": 0, "accuracy": 0.8}], std={"accuracy": None}, baselines={}, best_seed=0)
    page = finetuning_page(run, results, [])
    assert "one seed: no spread" in page and ">trivial baseline<" in page and ">Training</h2>" not in page


def test_grid_of_one_setting_is_a_line_and_of_two_a_heat_map(run):
    write_grid(run, ({"lr": "1e-5"}, 0.6), ({"lr": "1e-4"}, 0.7), ({"lr": "1e-3"}, 0.8))
    page = finetuning_page(run, make_results(), LOG)
    assert "The best setting is lr=1e-3 (0.8000). It is at the edge of lr: extend the grid there." in page
    points = [({"lr": lr, "batch_size": size}, lr * size) for lr in (0.1, 0.2) for size in (1, 2)]
    write_grid(run, *points)
    assert "heat map: lr by batch_size" in finetuning_page(run, make_results(), LOG)
    write_grid(run, *[({**values, "epochs": e}, m) for values, m in points for e in (1, 2)])
    page = finetuning_page(run, make_results(), LOG)
    assert ">Grid search</h2>" in page and "heat map: lr" not in page


def test_tasks_have_sections_of_their_own(run):
    (run / "diagnostics.json").unlink()
    (run / "tasks/spam").mkdir(parents=True)
    DIAGNOSTICS.write(run / "tasks/spam")
    results = make_results(task="multitask", primary_metric="mean", mean={"mean": 0.8}, std={"mean": None})
    results["seeds"] = [{"seed": 0, "mean": 0.8}]
    page = finetuning_page(run, results | {"tasks": {"spam": make_results()}, "baselines": {}}, LOG)
    assert ">spam</h2>" in page and "<summary>Confusion</summary>" in page


def test_regression_and_groups():
    fit = RegressionFit((1.0, 2.0, 3.0), (1.5, 2.5, 3.5), 0.5, 0.5)
    groups = {"length": (GroupScore("short", 2, {"f1": 0.5}),)}
    sections = dict(
        diagnostics_sections(Diagnostics(3, fit=fit, groups=groups, errors=(ErrorCase(0, "d:1", "text", "1", "1.5"),)))
    )
    assert "0.5 too high on average" in sections["Predicted and gold values"]
    assert "short" in sections["Scores by length"] and "Largest errors" in sections


def texts_of(steps):
    return " ".join(text for text, _ in steps)


def test_next_steps_follow_from_the_results():
    rising = {seed: [(1, 0.5), (2, 0.6), (3, 0.7)] for seed in (0, 1)}
    settings = {"epochs": 3.0, "optimizer": {"lr": 1e-3}}
    steps = suggest_next_steps(make_results(settings=settings), DIAGNOSTICS, rising)
    text = texts_of(steps)
    assert "The linear baseline is as good or better" in steps[0][0] and "lr=3e-4,1e-3,3e-3,1e-2" in steps[0][1]
    assert "Two seeds show no reliable spread" in text and "30% of the train examples were truncated" in text
    assert "still rose at the end" in text and any("epochs=6" in command for _, command in steps)
    assert "'<spam>' (12, F1 0.67)" in text and "overconfident by 12%" in text
    assert "predict RUN/model" in steps[-1][1]


def test_commands_quote_the_model():
    steps = suggest_next_steps(make_results(model="my runs/bert", settings={"epochs": 3.0}), None, {})
    assert any("polyseme finetune 'my runs/bert' … " in command for _, command in steps)


def test_good_results_need_little():
    results = make_results(mean={"accuracy": 0.95}, std={"accuracy": 0.004}, num_truncated={"train": 0, "dev": 1})
    results |= {"seeds": [{"seed": i, "accuracy": 0.95} for i in range(5)], "settings": {"epochs": 3.0}}
    flat = {0: [(1, 0.94), (2, 0.95), (3, 0.95)]}
    assert len(suggest_next_steps(results, Diagnostics(100), flat)) == 1
    falling = {0: [(1, 0.95), (2, 0.93), (3, 0.91)]}
    assert "early stopping" in suggest_next_steps(results, None, falling)[0][0]
    failed = suggest_next_steps(results | {"failed_seeds": [2]}, None, {})
    assert "1 of 5 seeds learned nothing" in failed[0][0]


def test_curves_and_intervals():
    assert dev_curves(LOG)["accuracy"][1][0] == (2, pytest.approx(0.64))
    assert sampling_error("accuracy", 0.5, 100) == pytest.approx(0.098)
    assert sampling_error("f1", 0.5, 100) is None


def test_weights_mark_words():
    marked = marked_words(("a", "b<", "c"), (0.5, -0.25, 0.001))
    assert marked.count("<mark") == 2 and 'class="minus"' in marked and "b&lt;" in marked and marked.endswith(" c")
    assert marked_words(("a",), (0.0,)) == "a"


def test_commands_write_diagnostics_and_dev_curves(project):
    for task in ("classification", "tagging", "regression"):
        run = project / f"run-{task}"
        diagnostics = Diagnostics.read(run)
        assert diagnostics.num_examples > 0
        rows = [json.loads(line) for line in (run / "log.jsonl").read_text().splitlines()]
        assert 1 <= sum("dev" in row for row in rows) <= 5 and "dev" in rows[-1]

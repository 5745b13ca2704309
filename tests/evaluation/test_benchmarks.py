"""Several runs: seeds, early stopping, grids, repeated fine-tuning, ensembles, the bootstrap, benchmarks."""

import dataclasses
import json
import random
import shutil
from functools import partial
from pathlib import Path

import numpy as np
import pytest
import torch

from polyseme.datasets.published import load_published_tables, published_table
from polyseme.errors import ConfigError, PolysemeError
from polyseme.evaluation import benchmarks as benchmark
from polyseme.evaluation.benchmarks import BENCHMARKS, benchmark_notes, benchmark_table, run_benchmark
from polyseme.evaluation.comparison.api import compare_finetuning
from polyseme.evaluation.comparison.finetuning_runs import (
    FinetuneRun,
    comparison_table,
    name_runs,
    plot_comparison,
    read_run,
    read_runs,
)
from polyseme.evaluation.comparison.significance import bootstrap_scores, percentile_interval, two_sided_p_value
from polyseme.evaluation.predict import predict_ensemble
from polyseme.evaluation.submission import write_submission
from polyseme.families import FAMILIES
from polyseme.finetuning.config import FinetuneConfig
from polyseme.finetuning.experiment import RunOptions, TaskData
from polyseme.finetuning.finetune import finetune
from polyseme.finetuning.grid import expand_grid, grid_search
from polyseme.finetuning.resume import UnfinishedRun
from polyseme.finetuning.training import EarlyStopping
from polyseme.inference.prediction import predict
from polyseme.tasks import TASKS
from polyseme.tasks.classification import ClassificationTask
from polyseme.tasks.multiple_choice import ChoiceExample
from polyseme.tasks.regression import Regression
from polyseme.tasks.sequence import TextExample
from polyseme.tasks.tagging import TaggingExample, TaggingTask
from polyseme.text.tokenizer import Tokenizer
from polyseme.train.optimizer import OptimizerConfig
from polyseme.weights.folder import load_model, save_model
from tests.support.runs import folder_bytes, freeze_times, run_with_kills

WORDS = ["cat", "dog", "fish", "bird", "wolf", "bear", "frog", "hare", "mole", "newt", "seal", "swan"]
QUICK = FinetuneConfig(epochs=2, batch_size=16, optimizer=OptimizerConfig(lr=3e-3), truncate=True)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    tokenizer = Tokenizer.train("wordpiece", iter([" ".join(WORDS), *WORDS] * 30), 300)
    spec = FAMILIES["bert"].model_config(num_layers=1, dim=24, num_heads=2, vocab_size=tokenizer.vocab_size, max_len=40)
    path = tmp_path_factory.mktemp("base") / "m"
    save_model(path, spec.build(0), tokenizer)
    return path


def texts(n, seed=0, kind="classification"):
    draw, examples = random.Random(seed), []
    for i in range(n):
        words = tuple(draw.choices(WORDS, k=5))
        if kind == "tagging":
            examples.append(
                TaggingExample(f"d:{i}", words=words, tags=tuple("B-X" if w == "wolf" else "O" for w in words))
            )
        elif kind == "multiple_choice":
            right = draw.randrange(3)
            choices = tuple("wolf" if j == right else draw.choice(WORDS[:4]) for j in range(3))
            examples.append(ChoiceExample(f"d:{i}", " ".join(words), choices=choices, label=str(right)))
        elif kind == "regression":
            examples.append(TextExample(f"d:{i}", " ".join(words), label=str(words.count("wolf"))))
        else:
            examples.append(TextExample(f"d:{i}", " ".join(words), label=str(int("wolf" in words))))
    return examples


@pytest.fixture(scope="module")
def runs(folder, tmp_path_factory):
    out = tmp_path_factory.mktemp("runs")
    data = texts(160)
    for name, epochs in (("good", 6.0), ("poor", 1.0)):
        finetune(
            folder,
            TaskData(ClassificationTask(), data[:120], data[120:]),
            out / name,
            QUICK.replace(epochs=epochs),
            RunOptions(seeds=2),
        )
    return out


def test_failed_seeds_are_reported(folder):
    data = texts(80)
    still = QUICK.replace(steps=1, optimizer=OptimizerConfig(lr=1e-60))
    results = finetune(folder, TaskData(ClassificationTask(), data[:60], data[60:]), None, still, RunOptions(seeds=2))
    most = max(np.mean([e.label == label for e in data[60:]]) for label in "01")
    assert results["majority_score"] == pytest.approx(most)
    assert results["failed_seeds"] == [run["seed"] for run in results["seeds"] if run["accuracy"] <= most]
    assert results["failed_seeds"]


def test_early_stopping_keeps_the_best_epoch(folder, tmp_path):
    best, model = EarlyStopping(2), torch.nn.Linear(1, 1)
    for step, value in enumerate([0.1, 0.5, 0.5, 0.4], 1):
        assert not best.should_stop
        with torch.no_grad():
            model.weight.fill_(step)
        best.update(step, value, model)
    assert best.should_stop and (best.best_step, best.best_score) == (2, 0.5)
    best.restore(model)
    assert model.weight.item() == 2
    data = texts(120)
    results = finetune(
        folder,
        TaskData(ClassificationTask(), data[:80], data[80:]),
        tmp_path / "r",
        QUICK.replace(epochs=40.0, patience=2),
    )
    steps = [json.loads(line)["step"] for line in (tmp_path / "r/log.jsonl").read_text().splitlines()]
    assert len(steps) < results["steps"] == 200 and len(steps) % 5 == 0 and len(steps) >= 15
    with pytest.raises(PolysemeError, match="patience is -1, expected 0 or more"):
        QUICK.replace(patience=-1).validate()


def test_grid_search_keeps_the_best_and_resumes(folder, tmp_path):
    data = texts(80)
    asked = []

    def run(spec, task_data, out):
        asked.append(spec.optimizer.lr)
        return finetune(folder, task_data[0], out, spec)

    task_data = TaskData(ClassificationTask(), data[:60], data[60:])
    grid = expand_grid(QUICK.replace(steps=6), [task_data], ["lr=1e-9,3e-3 batch_size=8"])
    assert [name for name, *_ in grid] == ["lr=1e-9_batch_size=8", "lr=3e-3_batch_size=8"]
    assert grid[1][1].optimizer.lr == 3e-3 and grid[1][1].batch_size == 8

    def stop(spec, task_data, out):
        return run(spec, task_data, out) if spec.optimizer.lr == 1e-9 else pytest.exit("killed")

    with pytest.raises(pytest.exit.Exception):
        grid_search(stop, UnfinishedRun(tmp_path / "r", {"grid": 1}), grid)
    results = grid_search(run, UnfinishedRun(tmp_path / "r", {"grid": 1}), grid)
    assert asked == [1e-9, 3e-3], "finished runs are not repeated"
    assert list(results["grid"]) == [name for name, *_ in grid]
    assert results["mean"]["accuracy"] == max(results["grid"].values())
    assert load_model(tmp_path / "r/model").metadata["task"]["kind"] == "ClassificationTask"
    assert json.loads((tmp_path / "r/results.json").read_text())["mean"] == results["mean"]
    assert not list((tmp_path / "r/grid").glob("*/model"))
    with pytest.raises(PolysemeError, match="already holds"):
        UnfinishedRun(tmp_path / "r", {"grid": 1})
    for bad, message in (("lr", "is not name=value"), ("lr=", "is not name=value"), ("ls=3", "unknown key 'ls'")):
        with pytest.raises(PolysemeError, match=message):
            expand_grid(QUICK, [task_data], [bad])


def test_repeated_finetuning_keeps_the_head_of_the_same_labels(folder, tmp_path):
    data = texts(60)
    still = QUICK.replace(steps=1, optimizer=OptimizerConfig(lr=1e-60))
    finetune(
        folder,
        TaskData(ClassificationTask(), data, data, dataset_name="first"),
        tmp_path / "a",
        QUICK,
        RunOptions(seeds=[1]),
    )
    finetune(
        tmp_path / "a/model",
        TaskData(ClassificationTask(), data, data),
        tmp_path / "b",
        still,
        RunOptions(seeds=[2]),
    )
    a, b = (load_model(tmp_path / name / "model") for name in "ab")
    assert torch.equal(a.model.heads["classify"].linear.weight, b.model.heads["classify"].linear.weight)
    assert b.metadata["finetuning_history"] == ["first"]
    other = [TextExample(e.location, e.text, label="yes" if e.label == "1" else "no") for e in data]
    finetune(tmp_path / "a/model", TaskData(ClassificationTask(), other, other), tmp_path / "c", still)
    c = load_model(tmp_path / "c/model").model
    assert not torch.equal(a.model.heads["classify"].linear.weight, c.heads["classify"].linear.weight)


@pytest.mark.parametrize("kind", ["classification", "tagging", "multiple_choice", "regression"])
def test_an_ensemble_is_the_mean_of_its_members(folder, kind, tmp_path):
    data = texts(60, kind=kind)
    for seed in (0, 1):
        finetune(
            folder,
            TaskData(TASKS[kind](), data[:40], data[40:]),
            tmp_path / str(seed),
            QUICK,
            RunOptions(seeds=[seed]),
        )
    members = [load_model(tmp_path / str(seed) / "model") for seed in (0, 1)]
    task, predictions = predict_ensemble(members, data[40:])
    alone = [predict(member, data[40:]) for member in members]
    for one, *each in zip(predictions, *alone):
        if kind == "regression":
            assert one.number == pytest.approx(np.mean([p.number for p in each]))
        elif kind == "tagging":
            assert len(one.tags) == 5
        else:
            for label, share in one.probabilities.items():
                assert share == pytest.approx(np.mean([p.probabilities[label] for p in each]))
    assert task.metrics(data[40:], predictions) and task.task_type == kind
    with pytest.raises(PolysemeError, match="two models or more"):
        predict_ensemble(members[:1], data)


def test_comparison_table_and_plot(runs, tmp_path):
    pytest.importorskip("matplotlib")
    good, poor = named = read_runs([runs / "good", runs / "poor"])
    header, rows = comparison_table(named)
    speeds = ["ms per text", "examples/s", "speedup", "training s"]
    assert header == ["run", "model", "parameters", "classification (accuracy)", *speeds]
    assert [row[0] for row in rows] == ["good", "poor"] and rows[0][1] == rows[1][1] == "m"
    assert rows[1][3].startswith(f"{100 * poor.mean:.1f} ± ") and float(rows[0][4]) > 0
    others = {"path": runs / "fast", "latency_ms": poor.latency_ms / 2, "examples_per_second": 4 * min(
        good.examples_per_second, poor.examples_per_second)}  # fmt: skip
    fast = dataclasses.replace(good, **others)
    frozen = dataclasses.replace(good, path=runs / "frozen", examples_per_second=None, latency_ms=None)
    rows = comparison_table(name_runs([good, poor, fast, frozen]))[1]
    assert rows[2][6] == "4.0×" and rows[3][6] == "" and rows[3][4] == ""
    plot_comparison([good, poor], tmp_path / "p.png")
    assert (tmp_path / "p.png").read_bytes().startswith(b"\x89PNG")
    assert [run.path.name for run in read_runs([runs])] == ["good", "poor"]
    with pytest.raises(PolysemeError, match=r"is not a finished run"):
        read_run(tmp_path)


def test_runs_never_merge_silently(runs):
    good = read_run(runs / "good")
    paths = [runs / "a/x", runs / "b/x", runs / "b/y"]
    named = name_runs([dataclasses.replace(good, path=path) for path in paths])
    assert [run.name for run in named] == ["a/x", "b/x", "y"] and len(comparison_table(named)[1]) == 3
    with pytest.raises(ConfigError, match=r"x is given twice"):
        name_runs([named[0], named[0]])
    # one model on two tasks is one row, until it has two runs of a task
    tasks = [dataclasses.replace(good, path=runs / task, task=task) for task in ("cola", "rte")]
    ((row, *_),) = comparison_table(name_runs(tasks))[1]
    assert row == "m"  # the end of the path of the model
    again = name_runs([*tasks, dataclasses.replace(tasks[0], path=runs / "cola2")])
    assert [row[0] for row in comparison_table(again)[1]] == ["cola", "rte", "cola2"]


def random_run(right, draw, gold, path):
    """A run of one seed whose predictions are right with this probability."""
    predictions = tuple(g if draw.random() < right else "ab".replace(g, "") for g in gold)
    score = sum(a == b for a, b in zip(gold, predictions)) / len(gold)
    files = (gold, (predictions,), ClassificationTask())
    return FinetuneRun(path, "m", "t", "accuracy", (score,), 1, 1.0, (), *files, name=path.name)


def test_bootstrap_agrees_with_scipy_and_with_its_interval(runs):
    bootstrap = pytest.importorskip("scipy.stats").bootstrap
    draw = random.Random(0)
    gold = tuple(draw.choice("ab") for _ in range(200))
    a, b, c = group = [random_run(right, draw, gold, Path(name)) for name, right in zip("abc", (0.9, 0.7, 0.88))]
    comparison = compare_finetuning(group, 1000)
    assert [(test.first, test.second) for test in comparison.tests] == [("a", "b"), ("a", "c")]
    is_correct = [[p == g for p, g in zip(run.predictions[0], gold)] for run in group]
    for test, other in zip(comparison.tests, is_correct[1:]):
        reference = bootstrap(
            (is_correct[0], other), lambda x, y, axis: np.mean(x, axis) - np.mean(y, axis), paired=True, rng=1,
            n_resamples=2000, method="percentile",
        )  # fmt: skip
        expected = reference.confidence_interval
        assert (test.low, test.high) == pytest.approx((expected.low, expected.high), abs=0.011)
        distribution = reference.bootstrap_distribution
        reference_p = min(2 * min((distribution <= 0).mean(), (distribution >= 0).mean()), 1)
        assert test.p == pytest.approx(reference_p, abs=0.05) and "two-sided" in test.method
        assert test.difference == pytest.approx(a.mean - (b if test.second == "b" else c).mean)
    assert comparison.tests[0].is_significant and not comparison.tests[1].is_significant
    low, high = comparison.intervals["a"]
    assert low < a.mean < high
    good = read_run(runs / "good")
    assert not compare_finetuning([good, a], 100).tests  # other examples
    with pytest.raises(PolysemeError, match="not measured on the same examples"):
        bootstrap_scores([a, good], 100)


@pytest.mark.parametrize("num_resamples", [100, 119, 120, 500, 999, 1000])
def test_p_value_is_below_5_percent_exactly_if_the_interval_excludes_zero(num_resamples):
    rng, is_significant = np.random.default_rng(num_resamples), set()
    for shift in np.linspace(1.5, 2.5, 41):
        for sign in (1, -1):
            differences = np.round(sign * rng.normal(shift, 1, num_resamples), 1)  # with zeros
            low, high = percentile_interval(differences)
            is_significant.add(low > 0 or high < 0)
            assert (two_sided_p_value(differences) < 0.05) == (low > 0 or high < 0)
    assert is_significant == {True, False}


GLUE = {  # small files of every data set in the table
    "MNLI": ("train dev_matched dev_mismatched test_matched test_mismatched",
             "index sentence1 sentence2 gold_label", ("neutral", "entailment", "contradiction")),
    "QQP": ("train dev test", "id question1 question2 is_duplicate", "01"),
    "QNLI": ("train dev test", "index question sentence label", ("entailment", "not_entailment")),
    "SST-2": ("train dev", "sentence label", "01"),
    "STS-B": ("train dev test", "index sentence1 sentence2 score", ("0.5", "2.0", "4.5")),
    "MRPC": ("train dev test", "Quality #1_String #2_String", "01"),
    "RTE": ("train dev test", "index sentence1 sentence2 label", ("entailment", "not_entailment")),
    "WNLI": ("train dev", "index sentence1 sentence2 label", "01"),
}  # fmt: skip


def write_glue(path):
    draw = random.Random(0)
    for folder, (parts, names, labels) in GLUE.items():
        for part in parts.split():
            bare = part.startswith("test")
            header = [n.replace("_String", " String") for n in names.split()]
            header = [n for n in header if not (bare and n in ("gold_label", "is_duplicate", "label", "score"))]
            rows = [header]
            for i in range(12):
                words = [" ".join(draw.choices(WORDS, k=4)) for _ in header]
                cells = dict(zip(header, words)) | {"index": str(i), "id": str(i)}
                cells |= {
                    n: labels[i % len(labels)] for n in ("gold_label", "is_duplicate", "label", "score", "Quality")
                }
                rows.append([cells[n] for n in header])
            target = path / folder / f"{part}.tsv"
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_text("".join("\t".join(row) + "\n" for row in rows))
    for part in ("train", "dev"):
        (path / "CoLA").mkdir(exist_ok=True)
        (path / "CoLA" / f"{part}.tsv").write_text("".join(f"s\t{i % 2}\t\tcat dog {WORDS[i]}\n" for i in range(12)))


def test_benchmark_resumes_and_shows_published_rows(folder, tmp_path, monkeypatch):
    write_glue(tmp_path / "glue")
    settings = QUICK.replace(steps=1, max_len=32)
    asked = []
    real = benchmark.finetune

    def interrupted_finetune(*args, **options):
        asked.append(args[1].dataset_name)
        if len(asked) == 3:
            raise KeyboardInterrupt
        return real(*args, **options)

    monkeypatch.setattr(benchmark, "finetune", interrupted_finetune)
    with pytest.raises(KeyboardInterrupt):
        run_benchmark("glue", folder, tmp_path / "glue", tmp_path / "out", settings)
    summary = run_benchmark("glue", folder, tmp_path / "glue", tmp_path / "out", settings)
    assert len(asked) == 10 and asked.count("glue/mnli") == 1 and "glue/mnli-mm" not in asked
    nine = BENCHMARKS["glue"].tasks
    assert summary["average"] == pytest.approx(np.mean([summary["mean"][column] for column in nine]))
    assert len(nine) == 9 and "wnli" in summary["mean"] and not summary["missing"]
    assert all(len(values) == 1 for values in summary["scores"].values())
    header, rows = benchmark_table("glue", summary)
    assert header[1:3] == ["mnli", "mm"] and rows[-1][0] == "this run (dev)" and rows[4][-2:] == ["82.1", "1"]
    widths = [max(len(row[i]) for row in (header, *rows)) for i in range(len(header))]
    assert sum(widths) + 2 * (len(widths) - 1) <= 80 and summary["examples_per_second"] > 0
    notes = benchmark_notes("glue", summary)
    assert notes[0].startswith("1: Devlin et al. 2019") and "ms per text; BERT-base 110M" in notes[-1]
    lines = (tmp_path / "out/submission/MNLI-mm.tsv").read_text().splitlines()
    assert lines[0] == "index\tprediction" and len(lines) == 13 and lines[1].split("\t")[1] in GLUE["MNLI"][2]
    assert (tmp_path / "out/submission/STS-B.tsv").is_file() and not (tmp_path / "out/submission/SST-2.tsv").exists()
    with pytest.raises(PolysemeError, match=r"with other settings: seeds was \[0\], now \[0, 1\]"):
        run_benchmark("glue", folder, tmp_path / "glue", tmp_path / "out", settings, 2)
    shutil.copytree(tmp_path / "glue", tmp_path / "changed")
    dev = tmp_path / "changed/CoLA/dev.tsv"
    dev.write_text(dev.read_text().replace("cat", "bird"))
    with pytest.raises(PolysemeError, match=r"with other settings: data.cola was"):
        run_benchmark("glue", folder, tmp_path / "changed", tmp_path / "out", settings)
    with pytest.raises(PolysemeError, match="glue already exists and holds no benchmark"):
        run_benchmark("glue", folder, tmp_path / "glue", tmp_path / "glue", settings)
    assert not (tmp_path / "glue/benchmark.json").exists()
    shutil.rmtree(tmp_path / "glue/RTE")
    shutil.rmtree(tmp_path / "out")
    for name in GLUE:
        if name not in ("SST-2", "RTE"):
            shutil.rmtree(tmp_path / "glue" / name)
    (tmp_path / "damaged").mkdir()
    (tmp_path / "damaged/benchmark.json").write_text("[]")
    with pytest.raises(PolysemeError, match="is not a JSON object"):
        run_benchmark("glue", folder, tmp_path / "glue", tmp_path / "damaged", settings)
    summary = run_benchmark("glue", folder, tmp_path / "glue", tmp_path / "out", settings, 1)
    assert summary["average"] is None and set(summary["mean"]) == {"sst-2", "cola"} and "rte" in summary["missing"]
    with pytest.raises(PolysemeError, match="holds none of the data sets"):
        run_benchmark("superglue", folder, tmp_path / "glue", tmp_path / "x", settings)
    with pytest.raises(PolysemeError, match="no benchmark 'glu'; did you mean 'glue'"):
        run_benchmark("glu", folder, tmp_path, tmp_path / "x")


def test_published_figures_keep_conflicting_sources():
    averages = {row.values["average"] for row in published_table("glue").rows if row.system == "BERT-large"}
    assert averages == {82.1, 81.9}
    for row in published_table(
        "glue"
    ).rows:  # the printed average is that of the nine, as far as the slides' rounding goes
        nine = [row.values[column] for column in BENCHMARKS["glue"].tasks]
        assert row.values["average"] == pytest.approx(np.mean(nine), abs=0.06), row
    assert len(published_table("conll-2003").rows) == 12 and {
        r.values["en-fr"] for r in published_table("bleu").rows[-2:]
    } == {41.0, 41.8}
    for row in published_table("albert").rows:
        v = row.values
        five = [(v["squad-1.1_f1"] + v["squad-1.1_exact"]) / 2, (v["squad-2.0_f1"] + v["squad-2.0_exact"]) / 2]
        assert v["average"] == pytest.approx(np.mean([*five, v["mnli"], v["sst-2"], v["race"]]), abs=0.11), row
    assert all(row.source for table in load_published_tables().values() for row in table.rows)
    with pytest.raises(PolysemeError, match="did you mean 'glue'"):
        published_table("glu")


def test_submissions(tmp_path):
    write_submission(tmp_path / "a.tsv", "glue/sts-b", [Regression(9.0), Regression(-1.0), Regression(2.5)])
    assert (tmp_path / "a.tsv").read_text() == "index\tprediction\n0\t5.000\n1\t0.000\n2\t2.500\n"
    with pytest.raises(PolysemeError, match="not scored by the servers of GLUE and SuperGLUE"):
        write_submission(tmp_path / "b.tsv", "swag", [])


def test_truncated_words_count_as_wrong(folder, tmp_path):
    data = [TaggingExample(f"d:{i}", words=("cat",) * 40, tags=("O",) * 39 + ("B-X",)) for i in range(8)]
    results = finetune(folder, TaskData(TaggingTask(), data, data), None, QUICK.replace(steps=1, max_len=12))
    assert results["num_truncated"] == {"train": 8, "dev": 8}
    assert results["mean"]["accuracy"] <= 10 / 40 and TaggingTask.from_examples(data).labels == ("O", "B-X")


def test_killed_benchmark_ends_with_the_same_bytes(folder, glue, tmp_path, monkeypatch):
    freeze_times(monkeypatch)
    for name in ("STS-B", "WNLI"):
        shutil.rmtree(glue / name)
    run = partial(run_benchmark, "glue", folder, glue, settings=QUICK.replace(steps=2), seeds=2)
    whole = run(out=tmp_path / "whole")
    assert run_with_kills(partial(run, out=tmp_path / "run"), growth=20) > 2
    assert folder_bytes(tmp_path / "whole") == folder_bytes(tmp_path / "run")
    assert run(out=tmp_path / "run") == whole

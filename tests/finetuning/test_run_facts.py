"""What a run reports besides its score: speed, size, truncation, and selection on the dev examples."""

import itertools
import json
import random
import tracemalloc

import numpy as np
import pytest

from polyseme.errors import PolysemeError
from polyseme.evaluation.predict import evaluate, predict_ensemble
from polyseme.families import FAMILIES
from polyseme.finetuning.config import FinetuneConfig
from polyseme.finetuning.diagnostics import sample_split
from polyseme.finetuning.experiment import RunOptions, Split, TaskData
from polyseme.finetuning.finetune import finetune
from polyseme.finetuning.frozen import FEATURE_DEFAULTS, FeatureInputs, train_on_features
from polyseme.finetuning.grid import expand_grid, grid_search
from polyseme.finetuning.resume import UnfinishedRun
from polyseme.inference import prediction as module
from polyseme.inference.prediction import LATENCY_SAMPLES, median_latency_ms
from polyseme.report.diagnostics import Diagnostics
from polyseme.report.pages.finetuning_page import dev_selection_note, truncation_note
from polyseme.tasks import TASKS
from polyseme.tasks.base import RowScores
from polyseme.tasks.classification import ClassificationTask
from polyseme.tasks.encoded import EncodedExample
from polyseme.tasks.extractive_qa import ExtractiveQATask, QuestionExample
from polyseme.tasks.sequence import TextExample
from polyseme.text.tokenizer import Tokenizer
from polyseme.train.loop import count_parameters
from polyseme.weights.folder import load_model, save_model

WORDS = ["cat", "dog", "fish", "bird", "wolf", "bear"]
SPAN = ExtractiveQATask()
QUICK = FinetuneConfig(steps=2, truncate=True)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    tokenizer = Tokenizer.train("wordpiece", iter([" ".join(WORDS), *WORDS] * 30), 300)
    spec = FAMILIES["bert"].model_config(num_layers=1, dim=16, num_heads=2, vocab_size=tokenizer.vocab_size, max_len=24)
    path = tmp_path_factory.mktemp("base") / "m"
    save_model(path, spec.build(0), tokenizer)
    return path


def texts(n=20, long=0):
    draw = random.Random(0)
    found = [draw.choices(WORDS, k=4) for _ in range(n)]
    return [
        TextExample(f"d:{i}", " ".join(words * (10 if i < long else 1)), label="ab"["wolf" in words])
        for i, words in enumerate(found)
    ]


def questions(none, size=1):
    return [
        QuestionExample(
            f"q:{i}", "cat dog fish", "wolf " * size, answers=() if none and i % 2 else (("dog", 4),), id=str(i)
        )
        for i in range(6)
    ]


def test_latency_predicts_single_examples_after_a_warmup(monkeypatch):
    asked, clock = [], itertools.count(step=0.002)
    monkeypatch.setattr("polyseme.inference.prediction.time.perf_counter", lambda: next(clock))
    assert median_latency_ms(asked.append, 100) == pytest.approx(2)
    assert (
        len(asked) == LATENCY_SAMPLES + 1
        and asked[:2] == [0, 0]
        and len(set(asked)) == LATENCY_SAMPLES
        and max(asked) < 100
    )
    asked.clear()
    median_latency_ms(asked.append, 3)
    assert asked == [0, 0, 1, 2]


@pytest.mark.parametrize("kind", ["classification", "extractive_qa"])
def test_results_include_size_and_speed(folder, tmp_path, kind, run_cli):
    data = questions(False) if kind == "extractive_qa" else texts()
    results = finetune(folder, TaskData(TASKS[kind](), data, data), tmp_path / "r", QUICK)
    assert results["parameters"] == count_parameters(load_model(tmp_path / "r/model").model)
    assert results["ms_per_text"] > 0 and results["examples_per_second"] > 0
    assert json.loads((tmp_path / "r/results.json").read_text())["ms_per_text"] == results["ms_per_text"]
    told = json.loads(run_cli("compare", tmp_path / "r", "--json"))["runs"][0]
    assert told["ms_per_text"] == results["ms_per_text"] and told["parameters"] == results["parameters"]
    if kind == "classification":
        (tmp_path / "d.tsv").write_text("text\tlabel\n" + "".join(f"{e.text}\t{e.label}\n" for e in data))
        found = json.loads(run_cli("evaluate", tmp_path / "r/model", "--data", tmp_path / "d.tsv", "--json"))
        assert found["parameters"] == results["parameters"] and found["ms_per_text"] > 0
        assert found["examples_per_second"] > 0 and found["accuracy"] == results["mean"]["accuracy"]
        said = run_cli("evaluate", tmp_path / "r/model", "--data", tmp_path / "d.tsv")
        assert (
            "20 examples, " in said and " ms for one alone" in said and f"{results['parameters']:,} parameters" in said
        )


def test_no_speed_over_features(folder, tmp_path, run_cli):
    data = texts()
    results = train_on_features(
        FeatureInputs([folder]),
        TaskData(ClassificationTask(), data, data),
        tmp_path / "r",
        FEATURE_DEFAULTS.replace(steps=1),
        RunOptions(keep_seeds=True),
    )
    assert "ms_per_text" not in results and (tmp_path / "r/seeds/0/polyseme.json").is_file()
    assert "(frozen)" in run_cli("compare", tmp_path / "r")
    (tmp_path / "d.tsv").write_text("text\tlabel\n" + "".join(f"{e.text}\t{e.label}\n" for e in data))
    found = json.loads(run_cli("evaluate", tmp_path / "r/model", "--data", tmp_path / "d.tsv", "--json"))
    assert found["parameters"] == results["parameters"] + count_parameters(load_model(folder, heads={}).model)


def test_truncation_is_reported(folder, tmp_path, capsys):
    results = finetune(folder, TaskData(ClassificationTask(), texts(20, 5), texts(10)), tmp_path / "r", QUICK)
    assert results["num_truncated"] == {"train": 5, "dev": 0}
    assert truncation_note(results, "train") == "train: 5 of 20 examples (25.0%) were truncated"
    assert not truncation_note(results, "dev")
    assert "5 of 20 examples (25.0%) were truncated" in (tmp_path / "r/report.html").read_text()
    evaluate(load_model(tmp_path / "r/model"), texts(20, 5))
    assert "5 of 20 examples (25.0%) are truncated (max_len 24)" in capsys.readouterr().err
    long = questions(False, 30)
    results = finetune(folder, TaskData(ExtractiveQATask(), long, long[:3]), tmp_path / "s", QUICK)
    assert results["num_truncated"] == {"train": 6, "dev": 3}, "an example of several windows counts once"
    evaluate(load_model(tmp_path / "s/model"), long)
    assert "6 of 6 examples (100.0%) are truncated" in capsys.readouterr().err


def test_selection_on_dev_is_reported(folder, tmp_path, run_cli):
    data = texts()
    plain = finetune(folder, TaskData(ClassificationTask(), data, data), tmp_path / "a", QUICK)
    assert plain["chosen_on_dev"] == [] and "optimistic" not in (tmp_path / "a/report.html").read_text()
    stopped = finetune(folder, TaskData(ClassificationTask(), data, data), tmp_path / "b", QUICK.replace(patience=1))
    assert stopped["chosen_on_dev"] == ["the epoch"]
    page = (tmp_path / "b/report.html").read_text()
    assert "Scores are optimistic: chosen on the same dev examples: the epoch." in page
    fitted = finetune(folder, TaskData(ExtractiveQATask(), questions(True), questions(True)), tmp_path / "c", QUICK)
    assert fitted["chosen_on_dev"] == ["the threshold of no answer"]
    fixed = TaskData(ExtractiveQATask(null_score_diff_threshold=0.5), questions(True), questions(True))
    assert finetune(folder, fixed, None, QUICK)["chosen_on_dev"] == []
    assert (
        finetune(folder, TaskData(ExtractiveQATask(), questions(False), questions(False)), None, QUICK)["chosen_on_dev"]
        == []
    )

    def run(spec, task_data, out):
        return finetune(folder, task_data[0], out, spec)

    points = expand_grid(QUICK, [TaskData(ClassificationTask(), data, data)], ["batch_size=8,16"])
    grid_search(run, UnfinishedRun(tmp_path / "g", {}), points)
    kept = json.loads((tmp_path / "g/results.json").read_text())
    assert kept["chosen_on_dev"] == ["the best of 2 settings"]
    assert dev_selection_note(kept["chosen_on_dev"]) in (tmp_path / "g/report.html").read_text()
    assert dev_selection_note(["the best of 2 settings"]) in run_cli(
        "compare", tmp_path / "g", tmp_path / "a", "--num-resamples", 100
    )


def test_dev_curves_change_no_weight(folder, tmp_path, monkeypatch):
    data, config = TaskData(ClassificationTask(), texts(40), texts(20)), QUICK.replace(steps=8)
    finetune(folder, data, tmp_path / "a", config)
    rows = [json.loads(line) for line in (tmp_path / "a/log.jsonl").read_text().splitlines()]
    assert {row["step"]: list(row["dev"]) for row in rows if "dev" in row} == {s: ["accuracy"] for s in (2, 4, 5, 7, 8)}
    monkeypatch.setattr("polyseme.finetuning.diagnostics.NUM_CURVE_POINTS", 1)
    finetune(folder, data, tmp_path / "b", config)
    a, b = ((tmp_path / name / "model/model.safetensors").read_bytes() for name in "ab")
    assert a == b


def test_early_stopping_scores_the_last_part_of_an_epoch(folder, tmp_path):
    data = TaskData(ClassificationTask(), texts(40), texts(20))
    finetune(folder, data, tmp_path / "a", QUICK.replace(steps=4, patience=9))
    rows = [json.loads(line) for line in (tmp_path / "a/log.jsonl").read_text().splitlines()]
    assert [row["step"] for row in rows if "dev" in row] == [3, 4]


def test_errors_of_the_best_seed_have_attributions(folder, tmp_path):
    data = TaskData(ClassificationTask(), texts(40), texts(20))
    results = finetune(folder, data, tmp_path / "r", QUICK, RunOptions(2))
    diagnostics = Diagnostics.read(tmp_path / "r")
    gold, best = (json.loads((tmp_path / "r/predictions.json").read_text())[key] for key in ("gold", "predictions"))
    wrong = [i for i, (a, b) in enumerate(zip(gold, best[str(results["best_seed"])])) if a != b]
    assert diagnostics.num_errors == len(wrong) and {error.index for error in diagnostics.errors} <= set(wrong)
    for error in diagnostics.errors:
        assert error.words == tuple(data.dev[error.index].text.split()) and len(error.weights) == 4
    features = train_on_features(FeatureInputs([folder]), data, tmp_path / "f", FEATURE_DEFAULTS.replace(steps=1))
    assert features["changed_settings"] == {"steps": [0, 1]}
    assert not any(error.words for error in Diagnostics.read(tmp_path / "f").errors), "features cost too much for that"


def test_a_sample_of_a_split_keeps_the_windows_of_its_examples(monkeypatch):
    monkeypatch.setattr("polyseme.finetuning.diagnostics.MIN_CURVE_EXAMPLES", 2)
    tokens = np.zeros(5, np.int64)
    encoded = [EncodedExample(tokens, tokens, tokens, None, example_index=i // 2) for i in range(20)]
    sample = sample_split(Split([f"example {i}" for i in range(10)], encoded), max_tokens=30)
    assert sample.examples == ["example 0", "example 4", "example 9"]
    assert [e.example_index for e in sample.encoded] == [0, 0, 1, 1, 2, 2]
    assert len(sample_split(sample, max_tokens=0).examples) == 2


def test_ensemble_over_seeds(folder, tmp_path, run_cli, glue):
    run_cli("finetune", folder, "--task", "glue/cola", "--data", glue, "--out", tmp_path / "r", "--seeds", 2,
         "--keep-seeds", "--set", "steps=1", "--set", "truncate=true")  # fmt: skip
    folders = [load_model(tmp_path / "r/seeds" / seed) for seed in "01"]
    assert [folder.metadata["seed"] for folder in folders] == [0, 1] and folders[0].metadata["task"][
        "kind"
    ] == "ClassificationTask"
    assert predict_ensemble(folders, texts(3))[0].labels == ("0", "1")
    asked = ("--task", "glue/cola", "--data", glue)
    assert "examples" in run_cli("evaluate", tmp_path / "r/seeds/0", tmp_path / "r/seeds/1", "--ensemble", *asked)


def test_selected_seed_is_reported_on_its_dev_set(folder, tmp_path, run_cli, cli, glue):
    run_cli("finetune", folder, "--task", "glue/cola", "--data", glue, "--out", tmp_path / "r", "--seeds", 2,
         "--set", "steps=1", "--set", "truncate=true")  # fmt: skip
    asked = ("evaluate", tmp_path / "r/model", "--data")
    assert (
        "Scores are optimistic: chosen on the same dev examples: the best of 2 seeds."
        in cli(*asked, glue, "--task", "glue/cola").err
    )
    (tmp_path / "d.tsv").write_text("text\tlabel\ncat\t1\ndog\t0\n")
    assert "optimistic" not in cli(*asked, tmp_path / "d.tsv").err


def test_min_steps():
    assert FinetuneConfig(epochs=3.0, batch_size=16, min_steps=100).total_steps(32) == 100
    assert FinetuneConfig(epochs=3.0, batch_size=16, min_steps=100).total_steps(1600) == 300
    assert FinetuneConfig(steps=7, min_steps=100).total_steps(32) == 7
    with pytest.raises(PolysemeError, match="min_steps is -1, expected 0 or more"):
        FinetuneConfig(min_steps=-1).validate()


def test_long_document_in_bounded_memory(folder, monkeypatch):
    """Windows are scored a few hundred at a time, and only their best spans are kept."""
    tokenizer, read = load_model(folder).tokenizer, []

    def scores(model, task, some):
        read.append(len(some))
        return [RowScores(np.zeros((len(window.ids), 2), dtype=np.float32), np.empty(0)) for window in some]

    monkeypatch.setattr(module, "score_encoded", scores)
    peaks = []
    for words in (10_000, 50_000):
        example = QuestionExample("e", "cat dog " * (words // 2), "wolf")
        tracemalloc.start()
        module.predict_encoded(None, SPAN, [example], SPAN.encode([example], tokenizer, 24, use_labels=False))
        peaks.append(tracemalloc.get_traced_memory()[1])
        tracemalloc.stop()
    assert max(read) == ExtractiveQATask.max_windows and len(read) > 8 and peaks[1] < 1.5 * peaks[0]

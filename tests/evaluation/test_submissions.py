"""Submission files for GLUE and SuperGLUE, and the diagnostic set by phenomenon."""

import json
import random

import pytest

from polyseme.datasets.catalog import DATASETS
from polyseme.datasets.published import published_table
from polyseme.errors import PolysemeError
from polyseme.evaluation.benchmarks import run_benchmark
from polyseme.evaluation.submission import SUBMISSION_FILES, write_submission
from polyseme.families import FAMILIES
from polyseme.finetuning.config import FinetuneConfig
from polyseme.finetuning.experiment import TaskData
from polyseme.finetuning.finetune import finetune
from polyseme.tasks.classification import Classification
from polyseme.tasks.metrics.standard import classification_metrics
from polyseme.tasks.multiple_choice import ChoiceExample, MultipleChoiceTask
from polyseme.tasks.sequence import TextExample
from polyseme.text.tokenizer import Tokenizer
from polyseme.weights.folder import save_model

WORDS = ["cat", "dog", "fish", "bird", "wolf", "bear"]
NLI = ("contradiction", "entailment", "neutral")
HEADER = ["Lexical Semantics", "Predicate-Argument Structure", "Logic", "Knowledge", "Domain"]
HEADER += ["Premise", "Hypothesis", "Label"]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    tokenizer = Tokenizer.train("wordpiece", iter([" ".join(WORDS), *WORDS] * 30), 300)
    spec = FAMILIES["bert"].model_config(num_layers=1, dim=16, num_heads=2, vocab_size=tokenizer.vocab_size, max_len=40)
    path = tmp_path_factory.mktemp("base") / "m"
    save_model(path, spec.build(0), tokenizer)
    return path


def predictions_of(*labels):
    return [Classification(label, {}) for label in labels]


@pytest.mark.parametrize(("name", "examples", "labels", "rows"), [
    ("boolq", [TextExample("", "p", "q", id="3"), TextExample("", "p", "q", id="4")], ["true", "false"],
     [{"idx": 3, "label": "true"}, {"idx": 4, "label": "false"}]),
    ("cb", [TextExample("", "p", "q", id="0")], ["neutral"], [{"idx": 0, "label": "neutral"}]),
    ("copa", [ChoiceExample("", "p", choices=("a", "b"), id="9")], ["1"], [{"idx": 9, "label": 1}]),
    ("record", [ChoiceExample("", "p", choices=("Ann", "Zoë"), id="7")], ["1"], [{"idx": 7, "label": "Zoë"}]),
    ("wsc", [TextExample("", "p", "q", id="1")], ["false"], [{"idx": 1, "label": "False"}]),
    ("multirc", [TextExample("", "p", "q", id=i) for i in ("2-0-0", "2-0-1", "2-1-2", "5-2-3")], ["1", "0", "0", "1"],
     [{"idx": 2, "passage": {"questions": [
         {"idx": 0, "answers": [{"idx": 0, "label": 1}, {"idx": 1, "label": 0}]},
         {"idx": 1, "answers": [{"idx": 2, "label": 0}]}]}},
      {"idx": 5, "passage": {"questions": [{"idx": 2, "answers": [{"idx": 3, "label": 1}]}]}}]),
])  # fmt: skip
def test_superglue_format(tmp_path, name, examples, labels, rows):
    write_submission(
        tmp_path / SUBMISSION_FILES[f"superglue/{name}"], f"superglue/{name}", predictions_of(*labels), examples
    )
    written = (tmp_path / SUBMISSION_FILES[f"superglue/{name}"]).read_text().splitlines()
    assert [json.loads(line) for line in written] == rows


def test_examples_without_an_index_are_rejected(tmp_path):
    for bad, name in (
        (TextExample("val.jsonl:1", "p", "q"), "rte"),
        (TextExample("val.jsonl:1", "p", id="1--2"), "multirc"),
    ):
        with pytest.raises(PolysemeError, match=r"val\.jsonl:1: there is no idx"):
            write_submission(tmp_path / "x.jsonl", f"superglue/{name}", predictions_of("entailment"), [bad])
    assert not list(tmp_path.iterdir())


def lines(rows):
    return "".join("\t".join(row) + "\n" for row in rows)


def test_diagnostic_scores_by_phenomenon(tmp_path):
    rows = [["Negation", "", "Double negation", "", "News"], ["", "", "x", "", ""], ["", "", "", "World", ""]]
    rows = [[*row, "A.", "B.", NLI[i]] for i, row in enumerate(rows)]
    (tmp_path / "diagnostic-full.tsv").write_text(lines([HEADER, *rows]))
    named = DATASETS["glue/diagnostic"]
    examples = named.read_split(tmp_path)
    assert [e.id for e in examples] == ["Lexical Semantics; Logic", "Logic", "Knowledge"]
    answers = ["contradiction", "neutral", "neutral"]
    expected = classification_metrics(["contradiction", "entailment"], ["contradiction", "neutral"])["matthews"]
    assert named.extra_metrics(examples, answers) == pytest.approx(
        {"lexical_semantics": 0.0, "logic": expected, "knowledge": 0.0}
    )
    (tmp_path / "diagnostic.tsv").write_text("index\tsentence1\tsentence2\n0\tA.\tB.\n")
    assert named.read_split(tmp_path, "test", needs_labels=False)[0].pair == "B."
    (tmp_path / "diagnostic-full.tsv").write_text(lines([HEADER, rows[0][:4]]))
    with pytest.raises(PolysemeError, match=r"diagnostic-full\.tsv:2: 4 columns, but the first line has 8"):
        named.read_split(tmp_path)


def test_the_mnli_model_is_evaluated_on_the_diagnostic_set(folder, tmp_path, run_cli):
    draw = random.Random(0)
    data = tmp_path / "glue"
    (data / "MNLI").mkdir(parents=True)
    (data / "diagnostic").mkdir()
    for part in ("train", "dev_matched"):
        rows = [[" ".join(draw.choices(WORDS, k=3)), draw.choice(WORDS), NLI[i % 3]] for i in range(12)]
        (data / "MNLI" / f"{part}.tsv").write_text(lines([["sentence1", "sentence2", "gold_label"], *rows]))
    rows = [["", "", "Negation", "", "", "cat dog", "fish", NLI[i % 3]] for i in range(6)]
    (data / "diagnostic/diagnostic-full.tsv").write_text(lines([HEADER, *rows]))
    (data / "diagnostic/diagnostic.tsv").write_text("index\tsentence1\tsentence2\n0\tcat\tdog\n1\tcat\tfish\n")
    settings = FinetuneConfig(steps=1, truncate=True, max_len=32, patience=1)
    summary = run_benchmark("glue", folder, data, tmp_path / "out", settings)
    assert set(summary["diagnostic_scores"]["diagnostic"]) > {"matthews", "logic"} and summary["chosen_on_dev"] == [
        "the epoch"
    ]
    assert len((tmp_path / "out/submission/AX.tsv").read_text().splitlines()) == 3
    output = run_cli(
        "benchmark",
        "glue",
        folder,
        "--data",
        data,
        "--out",
        tmp_path / "again",
        "--set",
        "steps=1",
        "--set",
        "patience=1",
    )
    header, *rows = output.splitlines()
    assert header.split()[-2:] == ["avg", "#"] and rows[4].split()[-1] == "1"
    assert all(len(line) <= 80 for line in output.splitlines()[: len(published_table("glue").rows) + 1])
    assert (
        "Scores are optimistic: chosen on the same dev examples: the epoch." in output
        and "diagnostic: accuracy" in output
    )
    measured = json.loads(
        run_cli("evaluate", tmp_path / "out/mnli/model", "--task", "glue/diagnostic", "--data", data, "--json")
    )
    assert (
        measured["logic"] == pytest.approx(summary["diagnostic_scores"]["diagnostic"]["logic"])
        and measured["examples"] == 6
    )


def test_a_superglue_score_is_the_mean_of_its_metrics(folder, tmp_path):
    rows = [{"premise": "cat dog", "hypothesis": w, "label": NLI[i % 3], "idx": i} for i, w in enumerate(WORDS * 2)]
    (tmp_path / "CB").mkdir()
    for part in ("train", "val", "test"):
        (tmp_path / "CB" / f"{part}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    summary = run_benchmark("superglue", folder, tmp_path, tmp_path / "out", FinetuneConfig(steps=2, max_len=32))
    mean = json.loads((tmp_path / "out/cb/results.json").read_text())["mean"]
    assert summary["mean"]["cb"] == pytest.approx(50 * (mean["macro_f1"] + mean["accuracy"]))
    sent = [json.loads(line) for line in (tmp_path / "out/submission/CB.jsonl").read_text().splitlines()]
    assert [row["idx"] for row in sent] == list(range(12)) and {row["label"] for row in sent} <= set(NLI)


def test_no_bootstrap_for_metrics_that_need_more_than_predictions(folder, tmp_path, run_cli):
    from polyseme.evaluation.compare import read_run
    from polyseme.evaluation.significance import bootstrap_scores

    data = [
        ChoiceExample(f"d:{i}", w, choices=("cat", "dog"), label=str(i % 2), accepted_answers=("cat",))
        for i, w in enumerate(WORDS)
    ]
    for run in "ab":
        named = DATASETS["superglue/record"]
        settings = FinetuneConfig(steps=1)
        finetune(
            folder,
            TaskData(MultipleChoiceTask(), data, data, primary_metric="f1", extra_metrics=named.extra_metrics),
            tmp_path / run,
            settings,
        )
    with pytest.raises(PolysemeError, match="f1 needs more than predictions"):
        bootstrap_scores([read_run(tmp_path / "a"), read_run(tmp_path / "b")])
    assert "two-sided" not in run_cli("compare", tmp_path / "a", tmp_path / "b")

"""Metrics computed by hand and by seqeval, and baselines on data that they can solve."""

import json
import random
import sys

import numpy as np
import pytest

from polyseme.errors import PolysemeError
from polyseme.nn.heads.tag_schemes import extract_entities
from polyseme.tasks.classification import ClassificationTask, PairClassificationTask
from polyseme.tasks.metrics.standard import classification_metrics, regression_metrics, tagging_metrics
from polyseme.tasks.metrics.translation import add_statistics, score_translations, translation_metrics
from polyseme.tasks.regression import RegressionTask
from polyseme.tasks.sequence import TextExample
from polyseme.tasks.tagging import TaggingExample, TaggingTask
from tests.support.tasks import baseline_metrics, compute_metrics


def test_classification_by_hand():
    gold, guess = list("aaaabbbc"), list("aaabbbac")
    metrics = classification_metrics(gold, guess)
    assert metrics["accuracy"] == 6 / 8
    f1 = [2 * 3 / (4 + 4), 2 * 2 / (3 + 3), 1.0]  # of a, b and c
    assert metrics["macro_f1"] == pytest.approx(sum(f1) / 3)
    assert classification_metrics(["0", "1"] * 5, ["1", "0"] * 5)["matthews"] == pytest.approx(-1)
    assert classification_metrics(["0", "1"], ["0", "0"]) == {
        "accuracy": 0.5,
        "macro_f1": pytest.approx(1 / 3),
        "matthews": 0,
        "f1": 0,
    }
    assert classification_metrics(["0", "1", "1", "1"], ["1", "1", "1", "0"])["f1"] == pytest.approx(2 / 3)
    assert "f1" not in metrics and "f1" not in classification_metrics(["1"], ["1"])
    assert classification_metrics(["1"], ["1"], ("0", "1"))["f1"] == 1  # two labels, though one occurs


def test_classification_of_no_examples():
    assert classification_metrics([], []) == {"accuracy": 0.0, "macro_f1": 0.0, "matthews": 0.0}


def test_regression_by_hand():
    metrics = regression_metrics(["1", "2", "3", "4"], [1.0, 3.0, 2.0, 9.0])
    assert metrics["spearman"] == pytest.approx(1 - 6 * 2 / (4 * 15))  # one pair of neighbors is swapped
    assert metrics["mse"] == pytest.approx((1 + 1 + 25) / 4)
    draw = np.random.default_rng(0)
    gold, guess = draw.normal(size=(2, 50))
    assert regression_metrics(gold, guess)["pearson"] == pytest.approx(np.corrcoef(gold, guess)[0, 1], abs=1e-12)
    for still in ([3.0, 3.0], [2.0]):
        assert regression_metrics([1.0, 2.0][: len(still)], still) | {"mse": 0} == {
            "pearson": 0,
            "spearman": 0,
            "mse": 0,
        }


def test_missing_scikit_learn_gives_a_one_line_error(monkeypatch):
    monkeypatch.setitem(sys.modules, "sklearn", None)
    assert classification_metrics(["a"], ["a"])["accuracy"] == 1
    with pytest.raises(PolysemeError, match=r"the baseline linear needs sklearn"):
        baseline_metrics(
            ClassificationTask, "linear", [TextExample("1", "x", label="a")], [TextExample("1", "x", label="a")]
        )


def test_extract_entities():
    assert extract_entities(["I-X", "I-X", "B-X", "O", "I-Y", "I-X"]) == {
        ("X", 0, 1),
        ("X", 2, 2),
        ("Y", 4, 4),
        ("X", 5, 5),
    }
    assert extract_entities(["S-X", "B-X", "E-X", "I-X", "U-Y", "B-Y", "L-Y", "I-Y"]) == {
        ("X", 0, 0), ("X", 1, 2), ("X", 3, 3), ("Y", 4, 4), ("Y", 5, 6), ("Y", 7, 7),
    }  # fmt: skip
    assert extract_entities(["B-X-Y", "I-X-Y"]) == {("X-Y", 0, 1)}
    assert extract_entities([]) == extract_entities(["O"]) == set()


@pytest.mark.parametrize("marks", ["BI", "I", "BIES"])
def test_entities_match_seqeval(marks):
    metrics = pytest.importorskip("seqeval.metrics")
    draw = random.Random(marks)
    names = ["O", *(f"{mark}-{kind}" for mark in marks for kind in ("PER", "LOC"))]
    for _ in range(200):
        lengths = [draw.randint(1, 9) for _ in range(draw.randint(1, 6))]
        gold, guess = ([draw.choices(names, k=n) for n in lengths] for _ in range(2))
        scores = tagging_metrics(gold, guess)
        for name in ("precision", "recall", "f1", "accuracy"):
            options = {} if name == "accuracy" else {"zero_division": 0}
            assert scores[name] == pytest.approx(getattr(metrics, f"{name}_score")(gold, guess, **options)), name


def test_other_tags_are_scored_by_word():
    metrics = tagging_metrics([["C", "O", "C"], ["O"]], [["C", "C", "O"], ["O"]])
    assert metrics == {"accuracy": 0.5, "precision": 0.5, "recall": 0.5, "f1": 0.5}
    assert tagging_metrics([["O"]], [["O"]]) == {"accuracy": 1.0, "precision": 0.0, "recall": 0.0, "f1": 0.0}


def test_every_task_reports_its_default_metric():
    assert TaggingTask.default_metric in compute_metrics(TaggingTask, [("O",)], [("O",)])
    assert PairClassificationTask.default_metric in compute_metrics(PairClassificationTask, ["a", "b"], ["a", "b"])
    assert RegressionTask.default_metric in compute_metrics(RegressionTask, ["1", "2.5"], [1.0, 2.0])


def test_majority():
    texts = [TextExample(str(i), text="x", label=label) for i, label in enumerate("aab")]
    assert baseline_metrics(ClassificationTask, "majority", texts, texts)["accuracy"] == pytest.approx(2 / 3)
    words = [TaggingExample("1", words=("a", "b", "c"), tags=("O", "O", "C"))]
    assert baseline_metrics(TaggingTask, "majority", words, words)["accuracy"] == pytest.approx(2 / 3)
    numbers = [TextExample(str(i), text="x", label=label) for i, label in enumerate(["1", "2", "6.0"])]
    assert baseline_metrics(RegressionTask, "majority", numbers, numbers) == {
        "pearson": 0,
        "spearman": 0,
        "mse": pytest.approx(14 / 3),
    }
    with pytest.raises(PolysemeError, match=r"2: there is no label"):
        baseline_metrics(ClassificationTask, "majority", texts, [TextExample("2", text="x")])


def test_linear_baselines_learn_surface_features():
    draw = random.Random(0)
    words = [f"word{i}" for i in range(40)]
    samples = [(draw.sample(words, 6), draw.sample(words, 6)) for _ in range(300)]
    texts = [TextExample("", " ".join(a), label=str("word7" in a or "word9" in a)) for a, _ in samples]
    assert baseline_metrics(ClassificationTask, "linear", texts[:200], texts[200:])["accuracy"] > 0.9
    seconds = [a[:5] + b[:1] if i % 2 else b for i, (a, b) in enumerate(samples)]
    pairs = [
        TextExample("", " ".join(a), " ".join(b), label=str(i % 2))
        for i, ((a, _), b) in enumerate(zip(samples, seconds))
    ]
    assert baseline_metrics(PairClassificationTask, "linear", pairs[:200], pairs[200:])["accuracy"] > 0.95
    shared = [TextExample("", e.text, e.pair, label=str(len({*e.text.split()} & {*e.pair.split()}))) for e in pairs]
    assert baseline_metrics(RegressionTask, "linear", shared[:200], shared[200:])["pearson"] > 0.95
    counts = [TextExample("", " ".join(a), label=str(sum(w < "word2" for w in a))) for a, _ in samples]
    assert baseline_metrics(RegressionTask, "linear", counts[:200], counts[200:])["spearman"] > 0.9
    tags = [
        TaggingExample("", words=tuple(a), tags=("O", *("C" if w < "word2" else "O" for w in a[:-1])))
        for a, _ in samples
    ]
    assert baseline_metrics(TaggingTask, "linear", tags[:200], tags[200:])["f1"] > 0.95


def test_translation_metrics_of_windows_are_those_of_sacrebleu():
    sacrebleu = pytest.importorskip("sacrebleu.metrics")
    draw = random.Random(3)
    sources, references, hypotheses = (
        [" ".join(draw.choices(["the", "old", "cat", "dog"], k=draw.randint(0, 50))) for _ in range(40)]
        for _ in range(3)
    )
    statistics = {}
    for a, b in ((0, 1), (1, 13), (13, 40)):
        add_statistics(statistics, hypotheses[a:b], references[a:b], sources[a:b])
    metrics = translation_metrics(json.loads(json.dumps(statistics)))
    assert metrics == score_translations(hypotheses, references, sources)
    for name, metric in (("bleu", sacrebleu.BLEU()), ("chrf", sacrebleu.CHRF())):
        assert metrics[name] == metric.corpus_score(hypotheses, [references]).score
        assert metrics[f"{name}_signature"] == str(metric.get_signature())
    index = [i for i, source in enumerate(sources) if 10 < len(source.split()) <= 15]
    expected = sacrebleu.BLEU().corpus_score([hypotheses[i] for i in index], [[references[i] for i in index]]).score
    assert metrics["by_length"][1] == {"words": "11 to 15", "texts": len(index), "bleu": expected}

"""Diagnostics of predictions: confusion, label scores, calibration, errors, occlusion; compared with scikit-learn."""

import random
from dataclasses import replace

import numpy as np
import pytest
from sklearn.metrics import confusion_matrix as sklearn_confusion
from sklearn.metrics import precision_recall_fscore_support

from polyseme.report.diagnostics import Diagnostics
from polyseme.tasks.classification import Classification, ClassificationTask
from polyseme.tasks.contrastive import ContrastiveTask, Similarity, TripletExample
from polyseme.tasks.coreference import CoreferenceClusters, CoreferenceTask
from polyseme.tasks.extractive_qa import ExtractiveQATask, SpanAnswer
from polyseme.tasks.metrics.diagnostics import (
    MAX_CONFUSION_LABELS,
    MAX_ERRORS,
    confusion_matrix,
    measure_calibration,
    shorten,
)
from polyseme.tasks.metrics.occlusion import MAX_UNITS, split_units
from polyseme.tasks.multiple_choice import ChoiceExample, ChoicePrediction, MultipleChoiceTask
from polyseme.tasks.readers.conll2012 import make_document
from polyseme.tasks.readers.squad import QuestionExample
from polyseme.tasks.regression import Regression, RegressionTask
from polyseme.tasks.sequence import TextExample
from polyseme.tasks.tagging import Tagging, TaggingExample, TaggingTask
from tests.support.toy_task import StarExample, Stars, StarTask

LABELS = ("ham", "spam", "maybe")


def text_examples(count, seed=0):
    draw = random.Random(seed)
    return [TextExample(f"d:{i}", f"text number {i}", label=draw.choice(LABELS)) for i in range(count)]


def classify(examples, seed=1):
    """Predictions that are right for about half of the examples."""
    draw, predictions = random.Random(seed), []
    for example in examples:
        label = example.label if draw.random() < 0.5 else draw.choice(LABELS)
        share = draw.uniform(0.4, 0.95)
        others = {name: (1 - share) / 2 for name in LABELS}
        predictions.append(Classification(label, others | {label: share}))
    return predictions


def test_labels_agree_with_scikit_learn():
    train, dev = text_examples(50), text_examples(200, 7)
    predictions = classify(dev)
    diagnostics = ClassificationTask(labels=LABELS).diagnose(train, dev, predictions)
    gold, predicted = [e.label for e in dev], [p.label for p in predictions]
    assert np.array_equal(diagnostics.confusion.counts, sklearn_confusion(gold, predicted, labels=list(LABELS)))
    expected = precision_recall_fscore_support(gold, predicted, labels=list(LABELS))
    columns = [[getattr(s, name) for s in diagnostics.labels] for name in ("precision", "recall", "f1", "support")]
    assert np.allclose(columns, expected)
    assert [s.num_train for s in diagnostics.labels] == [sum(e.label == name for e in train) for name in LABELS]
    assert Diagnostics.from_json(diagnostics.to_json()) == diagnostics


def test_most_confident_errors_come_first():
    dev = text_examples(300)
    predictions = classify(dev)
    diagnostics = ClassificationTask(labels=LABELS).diagnose([], dev, predictions)
    wrong = sorted((p.probabilities[p.label] for e, p in zip(dev, predictions) if e.label != p.label), reverse=True)
    assert diagnostics.num_errors == len(wrong) > MAX_ERRORS
    assert [error.probability for error in diagnostics.errors] == wrong[:MAX_ERRORS]
    first = diagnostics.errors[0]
    assert (first.gold, first.location, first.text) == (
        dev[first.index].label,
        f"d:{first.index}",
        dev[first.index].text,
    )


def test_calibration_error_of_known_bins():
    calibration = measure_calibration([0.95] * 10 + [0.65] * 10, [True] * 5 + [False] * 5 + [True] * 10)
    assert calibration.ece == pytest.approx(0.5 * 0.45 + 0.5 * 0.35)
    assert [(b.count, b.accuracy) for b in calibration.bins if b.count] == [(10, 1.0), (10, 0.5)]
    assert measure_calibration([], []) is None
    perfect = measure_calibration([1.0, 0.0], [True, False])
    assert perfect.ece == 0.0 and perfect.bins[0].count == perfect.bins[-1].count == 1


def test_many_labels_are_summarized():
    names = [f"label {i:02d}" for i in range(40)]
    gold = names * 2
    predicted = [names[1] if i == 0 else name for i, name in enumerate(gold)]
    confusion = confusion_matrix(gold, predicted, names)
    assert len(confusion.labels) == MAX_CONFUSION_LABELS
    assert {"label 00", "label 01"} <= set(confusion.labels)
    assert sum(map(sum, confusion.counts)) == 80


def test_tags_are_scored_by_type_of_entity():
    words = ("Ann", "saw", "New", "York")
    dev = [TaggingExample("t:1", words, ("B-PER", "O", "B-LOC", "I-LOC"))]
    predictions = [Tagging(("B-PER", "O", "B-LOC", "O"), (0.9, 0.8, 0.7, 0.6))]
    diagnostics = TaggingTask().diagnose(dev, dev, predictions)
    assert {s.label: s.f1 for s in diagnostics.labels} == {"LOC": 0.0, "PER": 1.0}
    assert diagnostics.unit == "entities" and diagnostics.confusion.labels == ("LOC", "PER", "O")
    (error,) = diagnostics.errors
    assert (error.gold, error.predicted, error.words, error.weights) == ("I-LOC", "O", words, (0.0, 0.0, 0.0, 1.0))
    cut = [Tagging(("B-PER", "O", "O", "O"), (0.9, 0.8, None, None))]
    assert TaggingTask().diagnose(dev, dev, cut).confusion.labels[-1] == "(cut off)"


def test_numbers_have_residuals():
    dev = [TextExample(f"d:{i}", f"text {i}", label=str(i)) for i in range(5)]
    diagnostics = RegressionTask().diagnose([], dev, [Regression(i + 0.5 + 2 * (i == 3)) for i in range(5)])
    assert diagnostics.fit.bias == pytest.approx(0.9) and diagnostics.errors[0].index == 3


def test_answers_are_grouped_by_length():
    context = "Ada wrote the first program in 1843 ."
    dev = [
        QuestionExample("q:1", context, "When was it?", (("1843", 31),)),
        QuestionExample("q:2", context, "Why?", ()),
    ]
    answers = [SpanAnswer("Ada", 0, 3, 0.8, -1.0), SpanAnswer("", 0, 3, 0.1, 2.0)]
    diagnostics = ExtractiveQATask().diagnose([], dev, answers)
    groups = {name: [(row.name, row.metrics["f1"]) for row in rows] for name, rows in diagnostics.groups.items()}
    assert groups["length of the answer"] == [("no answer", 1.0), ("1 word", 0.0)]
    assert groups["question word"] == [("when", 0.0), ("why", 1.0)]
    (error,) = diagnostics.errors
    assert (error.question, error.predicted, error.words[0], error.weights[0]) == ("When was it?", "Ada", "Ada", 1.0)


def test_choices_show_their_texts():
    dev = [ChoiceExample(f"c:{i}", "text", ("yes", "no"), label="0") for i in range(3)]
    diagnostics = MultipleChoiceTask().diagnose([], dev, [ChoicePrediction("1", {"0": 0.2, "1": 0.8})] * 3)
    assert diagnostics.confusion.counts == ((0, 3), (0, 0)) and diagnostics.errors[0].predicted == "no"


def test_documents_are_listed_from_the_worst():
    sentences = [["Ann", "saw", "her"], ["She", "ran"]]
    clusters = (((0, 0), (3, 3)),)
    dev = [replace(make_document(sentences, f"d:{i}"), clusters=clusters) for i in range(2)]
    predictions = [CoreferenceClusters(clusters), CoreferenceClusters(())]
    (rows,) = CoreferenceTask().diagnose([], dev, predictions).groups.values()
    assert [(row.name, row.metrics["f1"]) for row in rows] == [("d:1 (5 words)", 0.0), ("d:0 (5 words)", 1.0)]


def test_occlusion_finds_the_decisive_word():
    example = TextExample("d:1", "this film is awful really", label="pos")

    def predict(examples):
        shares = [0.9 if "awful" in e.text else 0.2 for e in examples]
        return [Classification("neg", {"neg": share, "pos": 1 - share}) for share in shares]

    words, weights = ClassificationTask(labels=("neg", "pos")).attribute(example, predict([example])[0], predict)
    assert dict(zip(words, weights)) == {"this": 0.0, "film": 0.0, "is": 0.0, "awful": 0.7, "really": 0.0}
    pair = TextExample("d:3", "awful", "film here")
    words, weights = ClassificationTask(labels=("neg", "pos")).attribute(pair, predict([pair])[0], predict)
    assert words == ("awful", "‖", "film", "here") and weights == (0.0,) * 4  # a text of one word cannot be empty
    one_word = TextExample("d:2", "x")
    assert ClassificationTask().attribute(one_word, predict([one_word])[0], predict) == ((), ())


def test_long_texts_are_occluded_in_runs_of_words():
    spans = split_units(" ".join(f"w{i}" for i in range(1000)))
    assert len(spans) <= MAX_UNITS and spans[0][0] == 0
    assert len(split_units("漢字かな")) == 4


def test_a_task_without_diagnostics_lists_its_errors():
    dev = [StarExample("d:1", "good", 3), StarExample("d:2", "bad", 1)]
    diagnostics = StarTask(max_stars=3).diagnose([], dev, [Stars(3, 2.9), Stars(2, 2.1)])
    assert [(e.text, e.gold, e.predicted) for e in diagnostics.errors] == [("bad", "1", "2")]


def test_similarities_and_ranks():
    vectors = np.eye(3)[[0, 1, 2]]
    scored = [TripletExample(f"d:{i}", f"text {i}", f"pair {i}", label=str(i)) for i in range(3)]
    predictions = [Similarity(s, np.stack([vectors[i], vectors[2 - i]])) for i, s in enumerate((0.9, 0.5, 0.1))]
    diagnostics = ContrastiveTask().diagnose([], scored, predictions)
    assert [row.metrics["similarity"] for row in diagnostics.groups["gold score"]] == [0.9, 0.5, 0.1]
    assert diagnostics.errors[0].index in (0, 2)
    pairs = [replace(e, label=None) for e in scored]
    diagnostics = ContrastiveTask().diagnose([], pairs, predictions)
    assert diagnostics.num_errors == 2 and {e.index for e in diagnostics.errors} == {0, 2}
    assert ContrastiveTask().attribute(scored[0], predictions[0], None) == ((), ())


def test_texts_are_shortened_at_a_space():
    assert shorten("a  b\nc") == "a b c"
    assert len(shorten("word " * 200)) <= 302 and shorten("word " * 200).endswith("word …")

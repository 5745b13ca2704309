"""Compare metrics with libraries and published definitions on random predictions, to 1e-9."""

import itertools
import random
import re
import string
from collections import Counter

import numpy as np
import pytest

from polyseme.nn.heads.tag_schemes import extract_entities
from polyseme.tasks.metrics.standard import (
    classification_metrics,
    regression_metrics,
    span_metrics,
    squad_scores,
    tagging_metrics,
)


@pytest.mark.filterwarnings("ignore")
def test_classification_matches_scikit_learn():
    metrics = pytest.importorskip("sklearn.metrics")
    draw = random.Random(0)
    for trial in range(75):
        names = [str(i) for i in range(draw.choice([1, 2, 2, 3, 7]))]
        size = draw.choice([1, 2, 5, 40])
        weights = [draw.random() ** 3 for _ in names]
        gold, guess = draw.choices(names, weights, k=size), draw.choices(names, k=size)
        scores = classification_metrics(gold, guess, names if trial % 2 else ())
        assert scores["accuracy"] == pytest.approx(metrics.accuracy_score(gold, guess), abs=1e-9)
        expected = metrics.f1_score(gold, guess, average="macro", zero_division=0)
        assert scores["macro_f1"] == pytest.approx(expected, abs=1e-9)
        assert scores["matthews"] == pytest.approx(metrics.matthews_corrcoef(gold, guess), abs=1e-9)
        if len(names) == 2 and trial % 2:
            expected = metrics.f1_score(gold, guess, labels=["1"], average="macro", zero_division=0)
            assert scores["f1"] == pytest.approx(expected, abs=1e-9)


def test_regression_matches_scipy():
    stats = pytest.importorskip("scipy.stats")
    draw = np.random.default_rng(0)
    for _ in range(300):
        size = int(draw.integers(2, 40))
        gold, guess = draw.normal(size=(2, size)).round(int(draw.integers(0, 3)))  # with ties
        metrics = regression_metrics([str(g) for g in gold], guess.tolist())
        if np.ptp(gold) and np.ptp(guess):
            assert metrics["pearson"] == pytest.approx(stats.pearsonr(gold, guess)[0], abs=1e-9)
            assert metrics["spearman"] == pytest.approx(stats.spearmanr(gold, guess)[0], abs=1e-9)
        assert metrics["mse"] == pytest.approx(np.mean((gold - guess) ** 2), abs=1e-9)


# --- conlleval, by its definition of where an entity ends and begins -------------------------------------------------


def chunk_ended(before, tag, before_type, type_):
    return before != "O" and (
        (before in "BI" and tag in "BO") or before in "ES" or (before in "BI" and tag == "S") or before_type != type_
    )


def chunk_started(before, tag, before_type, type_):
    return tag != "O" and (
        tag in "BS" or (tag == "E" and before in "EOS") or (tag == "I" and before in "EOS") or before_type != type_
    )


def conlleval(gold, guess):
    """Count as the Perl script does, tag by tag; a sentence ends with an empty line."""
    right = found_gold = found_guess = 0
    inside = False
    last = {"gold": ("O", ""), "guess": ("O", "")}
    for pair in [*zip(gold, guess), ("O", "O")]:
        now = {side: (tag.partition("-")[0], tag.partition("-")[2]) for side, tag in zip(("gold", "guess"), pair)}
        ends = {s: chunk_ended(last[s][0], now[s][0], last[s][1], now[s][1]) for s in now}
        starts = {s: chunk_started(last[s][0], now[s][0], last[s][1], now[s][1]) for s in now}
        if inside:
            if ends["gold"] and ends["guess"] and last["gold"][1] == last["guess"][1]:
                inside, right = False, right + 1
            elif ends["gold"] != ends["guess"] or now["gold"][1] != now["guess"][1]:
                inside = False
        if starts["gold"] and starts["guess"] and now["gold"][1] == now["guess"][1]:
            inside = True
        found_gold += starts["gold"]
        found_guess += starts["guess"]
        last = now
    return right, found_gold, found_guess


def test_entities_match_conlleval_on_every_pattern():
    """All pairs of sequences of up to three IOB tags of two types, valid or not; longer ones and IOBES at random."""
    tags = ["O", "B-X", "I-X", "B-Y", "I-Y"]
    for size in (1, 2, 3):
        every = list(itertools.product(tags, repeat=size))
        for gold, guess in itertools.product(every, every):
            a, b = extract_entities(gold), extract_entities(guess)
            assert (len(a & b), len(a), len(b)) == conlleval(gold, guess), (gold, guess)
    draw = random.Random(0)
    more = [*tags, "E-X", "S-X", "E-Y", "S-Y"]
    for names, size in [(tags, 4)] * 1500 + [(tags, 9)] * 500 + [(more, 6)] * 2000:
        gold, guess = draw.choices(names, k=size), draw.choices(names, k=size)
        a, b = extract_entities(gold), extract_entities(guess)
        assert (len(a & b), len(a), len(b)) == conlleval(gold, guess), (gold, guess)
        right, true, predicted = conlleval(gold, guess)
        metrics = tagging_metrics([gold], [guess])
        if {*gold, *guess} != {"O"}:
            assert metrics["f1"] == pytest.approx(2 * right / (true + predicted), abs=1e-9)
            assert metrics["precision"] == pytest.approx(right / predicted if predicted else 0, abs=1e-9)


# --- SQuAD's published rules ------------------------------------------------------------------------------------------


def normal(text):
    """Normalize to lower case, without punctuation and articles, with single spaces."""
    text = text.lower().translate(str.maketrans("", "", string.punctuation))
    return " ".join(re.sub(r"\b(a|an|the)\b", " ", text).split())


def squad_f1(gold, prediction, second):
    a, b = normal(gold).split(), normal(prediction).split()
    if second and (not a or not b):
        return int(a == b)
    same = sum((Counter(a) & Counter(b)).values())
    if not same:
        return 0
    precision, recall = same / len(b), same / len(a)
    return 2 * precision * recall / (precision + recall)


def test_spans_match_the_squad_scripts():
    draw = random.Random(0)
    words = ["The", "a", "an", "cat", "Cat!", "cat's", "—", "dog", "the-dog", "3,000", "theory", "...", "U.S.", "éA"]
    for _ in range(1500):
        second = draw.random() < 0.5
        golds = [
            [" ".join(draw.choices(words, k=draw.randint(1, 4))) for _ in range(draw.randint(1, 3))] for _ in range(6)
        ]
        if second:
            golds[0] = []
        predictions = [draw.choice([*draw.choice(golds[1:]), "", " ".join(draw.choices(words, k=3))]) for _ in golds]
        exact, f1 = [], []
        for answers, text in zip(golds, predictions):
            answers = ([g for g in answers if normal(g)] or [""]) if second else answers
            exact.append(max(normal(g) == normal(text) for g in answers))
            f1.append(max(squad_f1(g, text, second) for g in answers))
        metrics = span_metrics(golds, predictions)
        assert metrics["exact"] == pytest.approx(np.mean(exact), abs=1e-9)
        assert metrics["f1"] == pytest.approx(np.mean(f1), abs=1e-9)
        if second:
            assert metrics["no_answer_accuracy"] == exact[0]
            assert metrics["has_answer_f1"] == pytest.approx(np.mean(f1[1:]), abs=1e-9)


def test_spans_by_hand():
    exact, f1 = squad_scores([["Denver Broncos", "the Broncos"], ["10 February"]], ["Broncos!", "February 7"])
    assert exact.tolist() == [1, 0] and f1.tolist() == [1, 0.5]
    assert span_metrics([["the"]], ["a"]) == {"exact": 1.0, "f1": 0.0}, "as the script of SQuAD 1.1"
    assert span_metrics([["the"], []], ["a", ""])["f1"] == 1.0, "as the script of SQuAD 2.0"

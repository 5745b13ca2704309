"""Diagnostics of predictions: confusion, scores by label, calibration, and the most confident errors."""

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from polyseme.nn.heads.tag_schemes import TAG_PATTERN, extract_entities
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
from polyseme.tasks.metrics.occlusion import PAIR_SEPARATOR
from polyseme.tasks.metrics.standard import precision_recall_f1, squad_scores

MAX_ERRORS = 20
MAX_TEXT_CHARS = 300
MAX_POINTS = 500
MAX_CONFUSION_LABELS = 16
NUM_BINS = 10
CONTEXT_WORDS = 8  # shown on each side of a wrong word
OTHER_LABELS = "(other labels)"
CUT_OFF, NO_ANSWER = "(cut off)", "(no answer)"
QUESTION_WORDS = ("what", "who", "whom", "whose", "when", "where", "which", "why", "how")
MetricsFn = Callable[[Sequence[Any], Sequence[Any]], dict[str, float]]


def shorten(text: str, max_chars: int = MAX_TEXT_CHARS) -> str:
    """Return a text on one line, cut at a space if it is long."""
    line = " ".join(text.split())
    return line if len(line) <= max_chars else line[: max_chars - 1].rsplit(" ", 1)[0] + " …"


def confusion_matrix(gold: Sequence[str], predicted: Sequence[str], labels: Sequence[str]) -> Confusion:
    """Count pairs of gold and predicted labels; of many labels, keep those with the most errors."""
    pairs = Counter(zip(gold, predicted, strict=True))
    names = [*labels, *sorted({*gold, *predicted} - {*labels})]
    if len(names) > MAX_CONFUSION_LABELS:
        num_errors: Counter[str] = Counter()
        for (a, b), count in pairs.items():
            num_errors.update({a: count, b: count} if a != b else {})
        confused = sorted(names, key=lambda name: -num_errors[name])[: MAX_CONFUSION_LABELS - 1]
        names = [*(name for name in names if name in confused), OTHER_LABELS]
    ids = {name: i for i, name in enumerate(names)}
    counts = np.zeros((len(names), len(names)), dtype=np.int64)
    for (a, b), count in pairs.items():
        counts[ids.get(a, len(names) - 1), ids.get(b, len(names) - 1)] += count
    return Confusion(tuple(names), tuple(map(tuple, counts.tolist())))


def label_scores(
    gold: Sequence[str], predicted: Sequence[str], train: Sequence[str], labels: Sequence[str]
) -> tuple[LabelScore, ...]:
    """Return precision, recall and F1 of each label that occurs."""
    support, num_predicted, num_train = Counter(gold), Counter(predicted), Counter(train)
    num_correct = Counter(a for a, b in zip(gold, predicted, strict=True) if a == b)
    names = [*labels, *sorted({*gold, *predicted} - {*labels})]
    return tuple(_label_score(n, num_correct[n], support[n], num_predicted[n], num_train[n]) for n in names)


def _label_score(label: str, num_correct: int, support: int, num_predicted: int, num_train: int) -> LabelScore:
    precision, recall = num_correct / max(num_predicted, 1), num_correct / max(support, 1)
    f1 = 2 * num_correct / max(num_predicted + support, 1)
    return LabelScore(label, precision, recall, f1, support, num_predicted, num_train)


def measure_calibration(probabilities: Sequence[float], is_correct: Sequence[bool]) -> Calibration | None:
    """Return the expected calibration error over ten bins of equal width; None without predictions."""
    confidences, hits = np.nan_to_num(np.array(probabilities, np.float64)), np.array(is_correct, np.float64)
    if not len(confidences):
        return None
    bin_ids = np.clip(np.ceil(confidences * NUM_BINS).astype(np.int64) - 1, 0, NUM_BINS - 1)
    bins, ece = [], 0.0
    for i in range(NUM_BINS):
        inside = bin_ids == i
        count = int(inside.sum())
        confidence, accuracy = (float(v[inside].mean()) if count else 0.0 for v in (confidences, hits))
        bins.append(CalibrationBin(i / NUM_BINS, (i + 1) / NUM_BINS, count, confidence, accuracy))
        ece += count / len(hits) * abs(confidence - accuracy)
    return Calibration(ece, float(confidences.mean()), float(hits.mean()), tuple(bins))


def top_errors(errors: Iterable[ErrorCase]) -> tuple[ErrorCase, ...]:
    """Return the most confident errors, at most 20; equal ones in the order of the examples."""
    return tuple(sorted(errors, key=lambda error: -(error.probability or 0.0))[:MAX_ERRORS])


def diagnose_labels(
    train: Sequence[str], examples: Sequence[Any], predictions: Sequence[Any], labels: Sequence[str]
) -> Diagnostics:
    """Diagnose tasks with one label per text, whose predictions have `probabilities`."""
    gold, predicted = [e.label for e in examples], [p.label for p in predictions]
    confidences = [p.probabilities.get(p.label, 0.0) for p in predictions]
    is_correct = [a == b for a, b in zip(gold, predicted)]
    errors = (
        ErrorCase(i, e.location, shorten(join_texts(e)), e.label, p.label, confidences[i])
        for i, (e, p) in enumerate(zip(examples, predictions))
        if not is_correct[i]
    )
    return Diagnostics(
        len(examples),
        confusion=confusion_matrix(gold, predicted, labels),
        labels=label_scores(gold, predicted, train, labels),
        calibration=measure_calibration(confidences, is_correct),
        errors=top_errors(errors),
        num_errors=len(examples) - sum(is_correct),
    )


def diagnose_choices(examples: Sequence[Any], predictions: Sequence[Any]) -> Diagnostics:
    """Diagnose multiple choice: calibration, whether positions are preferred, and errors with the texts of choices."""
    is_correct = [e.label == p.label for e, p in zip(examples, predictions)]
    confidences = [p.probabilities[p.label] for p in predictions]
    errors = []
    for i, (e, p) in enumerate(zip(examples, predictions)):
        if not is_correct[i]:
            gold_text, text = (shorten(e.choices[int(number)], 100) for number in (e.label, p.label))
            errors.append(ErrorCase(i, e.location, shorten(e.text), gold_text, text, confidences[i]))
    gold, predicted = ([f"choice {int(v.label) + 1}" for v in part] for part in (examples, predictions))
    positions = sorted({*gold, *predicted}, key=lambda name: int(name.split()[1]))
    return Diagnostics(
        len(examples),
        confusion=confusion_matrix(gold, predicted, positions),
        calibration=measure_calibration(confidences, is_correct),
        errors=top_errors(errors),
        num_errors=len(examples) - sum(is_correct),
    )


def diagnose_spans(examples: Sequence[Any], predictions: Sequence[Any]) -> Diagnostics:
    """Diagnose answers to questions: by whether there is an answer, its length, and the question word."""
    gold = [e.gold or () for e in examples]
    exact, f1 = squad_scores(gold, [p.text for p in predictions])
    lengths = [len(answers[0].split()) if answers else 0 for answers in gold]
    names = ("no answer", "1 word", "2 to 4 words", "5 words or more")
    answer_lengths = [names[int(np.searchsorted([1, 2, 5], n, side="right"))] for n in lengths]
    question_words = [_question_word(e.question) for e in examples]
    errors = (_wrong_answer(i, *case) for i, case in enumerate(zip(examples, predictions, gold)) if f1[i] == 0)
    answered = [(p.probability, bool(is_exact)) for p, is_exact in zip(predictions, exact) if p.text]
    scores = {"exact": exact, "f1": f1}
    return Diagnostics(
        len(examples),
        unit="questions",
        calibration=measure_calibration(*zip(*answered)) if answered else None,
        groups={
            "length of the answer": group_scores(answer_lengths, scores, names),
            "question word": group_scores(question_words, scores),
        },
        errors=top_errors(errors),
        num_errors=int((f1 == 0).sum()),
        weights_meaning="The marked words are the predicted answer in its context.",
    )


def group_scores(
    groups: Sequence[str], scores: Mapping[str, np.ndarray], names: Sequence[str] = ()
) -> tuple[GroupScore, ...]:
    """Return the mean scores of each group of examples, in the order of `names` or the largest first; at most 12."""
    counts = Counter(groups)
    order = [name for name in names if counts[name]] or [name for name, _ in counts.most_common(12)]
    members = {name: np.array([group == name for group in groups]) for name in order}
    return tuple(
        GroupScore(name, counts[name], {metric: float(values[inside].mean()) for metric, values in scores.items()})
        for name, inside in members.items()
    )


def _question_word(question: str) -> str:
    words = [word.strip(".,?!¿¡\"'").lower() for word in question.split()]
    return next((word for word in words if word in QUESTION_WORDS), "other")


def _wrong_answer(index: int, example: Any, prediction: Any, gold: Sequence[str]) -> ErrorCase:
    """Return a wrong answer with the words around it, in which it is marked."""
    before = example.context[: prediction.start].split()[-CONTEXT_WORDS:]
    after = example.context[prediction.end :].split()[:CONTEXT_WORDS]
    words = (*before, *shorten(prediction.text, 100).split(), *after) if prediction.text else ()
    weights = tuple(float(len(before) <= i < len(words) - len(after)) for i in range(len(words)))
    gold_text = shorten(" | ".join(dict.fromkeys(gold)) or NO_ANSWER, 100)
    answer, text = shorten(prediction.text or NO_ANSWER, 100), " ".join(words) or shorten(example.context)
    question, location = shorten(example.question), example.location
    return ErrorCase(index, location, text, gold_text, answer, prediction.probability, words, weights, question)


def diagnose_similarities(examples: Sequence[Any], gold: np.ndarray, similarities: np.ndarray) -> Diagnostics:
    """Diagnose similarities of scored pairs: their mean by gold score, and the pairs that are most out of order."""
    borders = np.quantile(gold, [0.25, 0.5, 0.75])
    names = ("lowest quarter", "second quarter", "third quarter", "highest quarter")
    quarters = [names[i] for i in np.searchsorted(borders, gold, side="right").tolist()]
    gaps = np.argsort(np.argsort(similarities)) - np.argsort(np.argsort(gold))
    errors = []
    for i in np.argsort(-np.abs(gaps), kind="stable")[:MAX_ERRORS].tolist():
        e, score, cosine = examples[i], f"{gold[i]:g}", f"similarity {similarities[i]:.3f}"
        errors.append(ErrorCase(i, e.location, shorten(join_texts(e)), score, cosine))
    groups = {"gold score": group_scores(quarters, {"similarity": similarities}, names)}
    return Diagnostics(len(examples), groups=groups, errors=tuple(errors), num_errors=len(examples))


def diagnose_ranks(examples: Sequence[Any], ranks: np.ndarray, similarities: np.ndarray) -> Diagnostics:
    """Diagnose retrieval: how high the pair of each text ranks among all, and the texts whose pair ranks lowest."""
    names = ("1", "2 to 10", "11 to 100", "above 100")
    places = [names[i] for i in np.searchsorted([2, 11, 101], ranks, side="right").tolist()]
    errors = []
    for i in np.argsort(-ranks, kind="stable")[:MAX_ERRORS].tolist():
        if ranks[i] > 1:
            e, rank = examples[i], f"rank {ranks[i]:,} of its pair"
            errors.append(ErrorCase(i, e.location, shorten(e.text), shorten(e.pair or "", 100), rank))
    groups = {"rank of the pair": group_scores(places, {"similarity": similarities}, names)}
    return Diagnostics(len(examples), groups=groups, errors=tuple(errors), num_errors=int((ranks > 1).sum()))


def diagnose_documents(examples: Sequence[Any], predictions: Sequence[Any], metrics: MetricsFn) -> Diagnostics:
    """Diagnose coreference: the scores of each document, the worst first."""
    shown = ("f1", "mentions_recall", "mentions_precision")
    rows = []
    for example, prediction in zip(examples, predictions):
        values = metrics([example.gold or ()], [prediction.value])
        name = f"{example.id or example.location} ({len(example.words):,} words)"
        rows.append(GroupScore(name, len(example.gold or ()), {key: values[key] for key in shown}))
    worst = sorted(rows, key=lambda row: row.metrics["f1"])[:MAX_ERRORS]
    return Diagnostics(len(examples), unit="clusters", groups={"document, the worst first": tuple(worst)})


def diagnose_values(examples: Sequence[Any], values: Sequence[Any]) -> Diagnostics:
    """Diagnose answers of any kind: list the first wrong ones."""
    wrong = [i for i, (e, value) in enumerate(zip(examples, values)) if value != e.gold]
    errors = []
    for i in wrong[:MAX_ERRORS]:
        text = getattr(examples[i], "text", "") or examples[i].location
        gold_text, answer = (shorten(str(value), 100) for value in (examples[i].gold, values[i]))
        errors.append(ErrorCase(i, examples[i].location, shorten(str(text)), gold_text, answer))
    return Diagnostics(len(examples), errors=tuple(errors), num_errors=len(wrong))


def join_texts(example: Any) -> str:
    """Return the text of an example, or both of a pair."""
    pair = getattr(example, "pair", None)
    return example.text if pair is None else f"{example.text} {PAIR_SEPARATOR} {pair}"


def diagnose_numbers(examples: Sequence[Any], gold: Sequence[float], predicted: Sequence[float]) -> Diagnostics:
    """Diagnose predicted numbers: residuals, and the examples with the largest ones."""
    residuals = np.array(predicted, np.float64) - np.array(gold, np.float64)
    chosen = np.linspace(0, len(gold) - 1, min(len(gold), MAX_POINTS)).astype(np.int64).tolist()
    x, y = (tuple(round(float(values[i]), 4) for i in chosen) for values in (gold, predicted))
    fit = RegressionFit(x, y, float(residuals.mean()), float(np.abs(residuals).mean()))
    worst = np.argsort(-np.abs(residuals), kind="stable")[:MAX_ERRORS].tolist()
    errors = (
        ErrorCase(i, examples[i].location, shorten(join_texts(examples[i])), f"{gold[i]:g}", f"{predicted[i]:.3g}")
        for i in worst
    )
    return Diagnostics(len(examples), fit=fit, errors=tuple(errors), num_errors=len(examples))


def diagnose_tags(train: Sequence[Any], examples: Sequence[Any], predictions: Sequence[Any]) -> Diagnostics:
    """Diagnose tags: scores by type of entity (or by tag), confusion of the types of words, and wrong words."""
    gold = [e.tags for e in examples]
    predicted = [[t if q is not None else CUT_OFF for t, q in zip(p.tags, p.probabilities)] for p in predictions]
    tag_set = {tag for tags in (*gold, *(p.tags for p in predictions)) for tag in tags}
    has_entities = tag_set != {"O"} and all(map(TAG_PATTERN.fullmatch, tag_set))

    def word_type(tag: str) -> str:
        return tag[2:] if has_entities and tag[1:2] == "-" else tag

    gold_types, predicted_types = ([word_type(t) for tags in part for t in tags] for part in (gold, predicted))
    train_types = [word_type(t) for e in train for t in e.tags or ()]
    types = sorted({*gold_types, *predicted_types, *train_types} - {"O", CUT_OFF})
    outside = ["O"] if "O" in {*gold_types, *predicted_types} else []
    if has_entities:
        labels = _entity_scores(gold, predicted, [e.tags for e in train if e.tags is not None], types)
    else:
        labels = label_scores(gold_types, predicted_types, train_types, [*types, *outside])
    words = [(q, a == b) for tags, p in zip(gold, predictions) for a, b, q in zip(tags, p.tags, p.probabilities)]
    errors = list(_wrong_words(examples, predictions))
    return Diagnostics(
        len(examples),
        unit="entities" if has_entities else "words",
        confusion=confusion_matrix(gold_types, predicted_types, [*types, *outside]),
        labels=labels,
        calibration=measure_calibration(*zip(*scored)) if (scored := [w for w in words if w[0] is not None]) else None,
        errors=top_errors(errors),
        num_errors=len(errors),
        weights_meaning="The marked word has the wrong tag.",
    )


def _entity_scores(
    gold: Sequence[Any], predicted: Sequence[Any], train: Sequence[Any], types: Sequence[str]
) -> tuple[LabelScore, ...]:
    """Return the scores of each type of entity, counted as conlleval does."""
    gold_spans = [extract_entities(tags) for tags in gold]
    predicted_spans = [extract_entities(["O" if tag == CUT_OFF else tag for tag in tags]) for tags in predicted]
    num_train = Counter(span[0] for tags in train for span in extract_entities(tags))
    scores = []
    for name in types:
        pairs = [
            tuple({s for s in spans if s[0] == name} for spans in pair) for pair in zip(gold_spans, predicted_spans)
        ]
        support, num_predicted = (sum(len(pair[i]) for pair in pairs) for i in (0, 1))
        values = precision_recall_f1(pairs)  # type: ignore[arg-type]
        scores.append(
            LabelScore(name, **values, support=support, num_predicted=num_predicted, num_train=num_train[name])
        )
    return tuple(scores)


def _wrong_words(examples: Sequence[Any], predictions: Sequence[Any]) -> Iterable[ErrorCase]:
    """Yield each word with a wrong tag, between its neighbors."""
    for number, (example, prediction) in enumerate(zip(examples, predictions)):
        for i, (a, b) in enumerate(zip(example.tags, prediction.tags)):
            probability = prediction.probabilities[i]
            if a != b and probability is not None:
                first = max(i - CONTEXT_WORDS, 0)
                words = example.words[first : i + CONTEXT_WORDS + 1]
                weights = tuple(float(first + j == i) for j in range(len(words)))
                yield ErrorCase(number, example.location, shorten(" ".join(words)), a, b, probability, words, weights)

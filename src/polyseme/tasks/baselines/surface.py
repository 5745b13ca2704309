"""The rows a result must be compared with: the best blind guess, a linear model of the surface, and for tags the two
models that chose them together before networks did."""

from __future__ import annotations

import math
import re
import statistics
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any

from polyseme.errors import UserError, nearest
from polyseme.tasks.baselines.feature_taggers import Which, chain_tags, windows
from polyseme.tasks.examples import Example, Kind, as_number
from polyseme.tasks.metrics.standard import score

Extra = Callable[[Sequence[Example], Sequence[Any]], dict[str, float]]


def majority(
    train: Sequence[Example], dev: Sequence[Example], kind: Kind, extra: Extra | None = None
) -> dict[str, float]:
    """The metrics of always saying what is most frequent in training; of numbers, their mean; the first words of a
    context, or no answer if most questions have none; no mentions at all. As everywhere here, `extra` are further
    metrics."""
    labels, gold = _labels(train, kind), _gold(dev, kind)
    guess: list[Any]
    if kind == "regression":
        guess = [statistics.fmean(map(float, labels))] * len(gold)
    elif kind == "coreference":
        guess = [()] * len(gold)
    elif kind == "span":
        guess = [" ".join((e.text or "").split()[: _usual_length(train)]) for e in dev]
    else:
        best = min((-n, label) for label, n in Counter(labels).items())[1]
        guess = [(best,) * len(tags) for tags in gold] if kind == "tagging" else [best] * len(gold)
    return _worth(dev, kind, guess, labels, extra)


def linear(
    train: Sequence[Example], dev: Sequence[Example], kind: Kind, extra: Extra | None = None
) -> dict[str, float]:
    """The metrics of a linear model: TF-IDF of words and bigrams, or a window over each word for tagging.

    Labels and choices come of logistic regression, numbers of ridge regression, tags of a support vector machine. An
    answer in a text comes of no learning: it stands where most of the question's words are near. Stretches of a
    document that were mentions in training are one if their words are the same.
    """
    _need_sklearn()
    labels = _labels(train, kind)
    if kind == "span":
        return _worth(dev, kind, [_like_question(e, _usual_length(train)) for e in dev], labels, extra)
    if kind == "coreference":
        return _worth(dev, kind, _same_words(train, dev), labels, extra)
    if len(set(labels)) < 2 and kind != "choice":
        return majority(train, dev, kind, extra)
    by_kind: dict[str, Callable[..., list[Any]]] = {"tagging": _tags, "choice": _choices}
    guess = by_kind[kind](train, dev) if kind in by_kind else _answers(train, dev, kind)
    return _worth(dev, kind, guess, labels, extra)


def crf(train: Sequence[Example], dev: Sequence[Example], kind: Kind, extra: Extra | None = None) -> dict[str, float]:
    """The metrics of a conditional random field over features made by hand (`tasks/baselines/feature_taggers.py`)."""
    return _chain("crf", train, dev, kind, extra)


def memm(train: Sequence[Example], dev: Sequence[Example], kind: Kind, extra: Extra | None = None) -> dict[str, float]:
    """The metrics of a maximum entropy Markov model over the same features."""
    return _chain("memm", train, dev, kind, extra)


BASELINES = {"majority": majority, "linear": linear, "memm": memm, "crf": crf}


def check_baseline(name: str, kind: Kind) -> None:
    """Whether there is such a row for such a task."""
    if name not in BASELINES:
        raise UserError(f"there is no baseline {name!r}; {nearest(name, BASELINES)}")
    if name in ("memm", "crf") and kind != "tagging":
        raise UserError(f"the baseline {name} is for tagging, not for {kind}")
    if name != "majority":
        _need_sklearn()


def _chain(
    which: Which, train: Sequence[Example], dev: Sequence[Example], kind: Kind, extra: Extra | None
) -> dict[str, float]:
    check_baseline(which, kind)
    labels = _labels(train, kind)
    if len(set(labels)) < 2:
        return majority(train, dev, kind, extra)
    return _worth(dev, kind, chain_tags(which, train, dev), labels, extra)


def _worth(
    dev: Sequence[Example], kind: Kind, guess: list[Any], labels: Sequence[Any], extra: Extra | None
) -> dict[str, float]:
    named = kind not in ("regression", "span", "coreference")
    found = score(kind, _gold(dev, kind), guess, sorted(set(labels)) if named else ())
    return found | (extra(dev, guess) if extra else {})


def _need_sklearn() -> None:
    try:
        import sklearn  # noqa: F401
    except ImportError:
        raise UserError("scikit-learn is needed for this: pip install 'polyseme[tasks]'") from None


def _labels(examples: Sequence[Example], kind: Kind) -> list[Any]:
    gold = _gold(examples, kind)
    return [tag for tags in gold for tag in tags] if kind == "tagging" else gold


def _gold(examples: Sequence[Example], kind: Kind) -> list[Any]:
    for example in examples:
        if example.answer is None:
            raise UserError(f"{example.where}: there is no label to compare with")
    return [as_number(e.label, e.where) if kind == "regression" else e.answer for e in examples]


def _answers(train: Sequence[Example], dev: Sequence[Example], kind: Kind) -> list[Any]:
    from scipy import sparse
    from sklearn.feature_extraction.text import TfidfVectorizer
    from sklearn.linear_model import LogisticRegression, Ridge

    words = TfidfVectorizer(ngram_range=(1, 2), sublinear_tf=True, token_pattern=r"\w+|[^\w\s]")
    paired = kind == "pair" or any(e.pair for e in train)
    words.fit([text for e in train for text in (e.text, e.pair) if text])

    def features(examples: Sequence[Example]) -> Any:
        first = words.transform([e.text or "" for e in examples])
        if not paired:
            return first
        second = words.transform([e.pair or "" for e in examples])
        shared = first.multiply(second)
        overlap = sparse.csr_matrix([_overlap(e.text or "", e.pair or "") for e in examples])
        return sparse.hstack([first, second, abs(first - second), shared, shared.sum(1), overlap]).tocsr()

    model = Ridge() if kind == "regression" else LogisticRegression(C=10.0, max_iter=2000)
    fitted = model.fit(features(train), _gold(train, kind))
    if kind == "choice":
        return list(fitted.predict_proba(features(dev))[:, 1])
    found: list[Any] = fitted.predict(features(dev)).tolist()
    return found


def _choices(train: Sequence[Example], dev: Sequence[Example]) -> list[str]:
    """Of each question's choices the one whose pair with the text looks most like a right one."""
    asked = [(i, j) for i, e in enumerate(dev) for j in range(len(e.choices or ()))]
    shares = _answers(_as_pairs(train), _as_pairs(dev), "choice")
    best: dict[int, tuple[float, int]] = {}
    for (i, j), share in zip(asked, shares):
        best[i] = max(best.get(i, (-1.0, 0)), (share, -j))
    return [str(-best[i][1]) for i in range(len(dev))]


def _as_pairs(examples: Sequence[Example]) -> list[Example]:
    return [
        Example(e.where, e.text, choice, label=str(int(str(j) == e.label)))
        for e in examples
        for j, choice in enumerate(e.choices or ())
    ]


def _overlap(first: str, second: str) -> list[float]:
    """How much two texts share: of the first one's words, of the second's, of all; how alike in length."""
    a, b = set(first.lower().split()), set(second.lower().split())
    both = len(a & b)
    sizes = sorted((len(a), len(b)))
    parts = ((both, len(a)), (both, len(b)), (both, len(a | b)), (sizes[0], sizes[1]))
    return [part / max(whole, 1) for part, whole in parts]


def _usual_length(train: Sequence[Example]) -> int:
    """Words of the answer in the middle of all answers, 0 if most questions have none."""
    sizes = sorted(len(e.answer[0].split()) if e.answer else 0 for e in train)
    return sizes[len(sizes) // 2]


def _like_question(example: Example, length: int, near: int = 8) -> str:
    """The words around which most words of the question stand, rare ones counting for more (Richardson et al. 2013's
    sliding window, §5.1), but none of the question's own."""
    words = (example.text or "").split()
    plain = [re.sub(r"\W", "", word).lower() for word in words]
    counts, asked = Counter(plain), set(re.findall(r"\w+", (example.pair or "").lower()))
    worth = [math.log(1 + 1 / counts[word]) if word in asked else 0.0 for word in plain]

    def value(i: int) -> float:
        before, behind = worth[max(i - near, 0) : i], worth[i + length : i + length + near]
        around = sum(w / d for side in (before[::-1], behind) for d, w in enumerate(side, 1))
        return around - 3 * sum(worth[i : i + length])

    best = max(range(max(len(words) - length + 1, 1)), key=value)
    return " ".join(words[best : best + length])


def _same_words(train: Sequence[Example], dev: Sequence[Example]) -> list[list[list[tuple[int, int]]]]:
    known = {_stretch(e, a, b) for e in train for cluster in e.clusters or () for a, b in cluster}
    longest = max((len(words) for words in known), default=0)
    found = []
    for example in dev:
        number, chains = len(example.words or ()), dict[tuple[str, ...], list[tuple[int, int]]]()
        for a in range(number):
            for b in range(a, min(a + longest, number)):
                if (words := _stretch(example, a, b)) in known:
                    chains.setdefault(words, []).append((a, b))
        found.append([chain for chain in chains.values() if len(chain) > 1])
    return found


def _stretch(example: Example, first: int, last: int) -> tuple[str, ...]:
    return tuple(word.lower() for word in (example.words or ())[first : last + 1])


def _tags(train: Sequence[Example], dev: Sequence[Example]) -> list[tuple[str, ...]]:
    """A support vector machine: on tagged documentation as good as logistic regression, 100 times as fast."""
    from scipy import sparse
    from sklearn.feature_extraction import DictVectorizer
    from sklearn.svm import LinearSVC

    table = DictVectorizer().fit(f for e in train for f in windows(e))

    def features(examples: Sequence[Example]) -> Any:
        made = table.transform(f for e in examples for f in windows(e))
        return sparse.csr_matrix((made.data, made.indices, made.indptr), made.shape)  # 32-bit, as the solver needs

    model = LinearSVC(C=0.3, random_state=0).fit(features(train), _labels(train, "tagging"))
    found = iter(model.predict(features(dev)).tolist())
    return [tuple(next(found) for _ in e.words or ()) for e in dev]

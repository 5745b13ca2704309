"""Taggers of hand-made features: the CRF against all paths, the MEMM against scikit-learn, and both as baselines."""

import itertools

import numpy as np
import pytest
import torch

from polyseme.errors import PolysemeError
from polyseme.nn.heads.crf import FORBIDDEN_SCORE, ChainLayout, CRFConfig
from polyseme.tasks.baselines.taggers import (
    fit_tagger,
    negative_log_likelihood,
    predict_chain_tags,
    word_features,
)
from polyseme.tasks.classification import PairClassificationTask
from polyseme.tasks.semantic_roles import PredicateExample, SemanticRolesTask
from polyseme.tasks.tagging import TaggingExample, TaggingTask
from tests.support.tasks import baseline_metrics

pytest.importorskip("sklearn")
from scipy import optimize, sparse
from sklearn.linear_model import LogisticRegression

LABELS = ["B-X", "I-X", "O"]


def random_data(seed=0, lengths=(3, 1, 4, 2, 3), features=5, labels=3):
    draw = np.random.default_rng(seed)
    seen = sparse.random(sum(lengths), features, 0.6, "csr", random_state=seed, data_rvs=lambda n: draw.normal(size=n))
    return seen, draw.integers(0, labels, sum(lengths)), lengths


def paths(scores, steps, first, last):
    """Return the score of every path of a sentence, by definition."""
    scores_by_path = {}
    for path in itertools.product(range(scores.shape[1]), repeat=len(scores)):
        total = first[path[0]] + last[path[-1]] + sum(scores[i, tag] for i, tag in enumerate(path))
        scores_by_path[path] = total + sum(steps[a, b] for a, b in itertools.pairwise(path))
    return scores_by_path


@pytest.mark.parametrize("constrained", [False, True])
def test_crf_matches_enumeration_of_all_paths(constrained):
    """Compare the optimum with that of the likelihood as a sum over paths, minimized without our gradients."""
    seen, tags, lengths = random_data()
    if constrained:
        tags = np.array([0, 1, 2, 2, 0, 1, 1, 2, 0, 0, 2, 0, 1])
    barred = CRFConfig(constrained).build(LABELS).forbidden
    dense, cuts, penalty = seen.toarray(), np.cumsum(lengths)[:-1], 0.5

    def negative(point):
        weights, rest = point[:15].reshape(5, 3), point[15:]
        steps, first, last = (
            rest[:9].reshape(3, 3) + barred[:3, :3],
            rest[9:12] + barred[3, :3],
            rest[12:] + barred[:3, 3],
        )
        total = penalty / 2 * float(point @ point)
        for scores, truth in zip(np.split(dense @ weights, cuts), np.split(tags, cuts)):
            every = paths(scores, steps, first, last)
            total += np.logaddexp.reduce(list(every.values())) - every[tuple(truth.tolist())]
        return total

    best = optimize.minimize(negative, np.zeros(30), method="BFGS", options={"gtol": 1e-6})
    tagger = fit_tagger("crf", seen, tags, lengths, LABELS, penalty, constrained, max_iterations=500)
    np.testing.assert_allclose(tagger.weights, best.x[:15].reshape(5, 3), atol=1e-3)
    np.testing.assert_allclose(tagger.crf.transitions.detach(), best.x[15:24].reshape(3, 3), atol=1e-3)
    predicted = tagger.viterbi(seen, lengths)
    tables = [t.detach().numpy() for t in tagger.crf.constrained_transitions(torch.zeros(1, dtype=torch.float64))]
    for scores, path in zip(np.split(dense @ tagger.weights, cuts), np.split(predicted, cuts)):
        every = paths(scores, *tables)
        assert max(every, key=every.get) == tuple(path.tolist())


def with_previous(seen, tags, lengths, number):
    """Add the previous tag, or its absence, as a feature for scikit-learn."""
    before = np.full(len(tags), number)
    before[1:] = tags[:-1]
    before[np.cumsum([0, *lengths[:-1]])] = number
    return sparse.hstack([seen, sparse.csr_matrix(np.eye(number + 1)[before])]).tocsr()


@pytest.mark.parametrize("penalty", [0.3, 2.0])
def test_memm_is_logistic_regression_with_the_previous_tag(penalty):
    seen, tags, lengths = random_data(1, (5, 3, 7, 1, 9, 6, 4, 8), 6, 4)
    labels = ["a", "b", "c", "d"]
    tagger = fit_tagger("memm", seen, tags, lengths, labels, penalty, max_iterations=2000)
    table = with_previous(seen, tags, lengths, 4)
    theirs = LogisticRegression(C=1 / penalty, fit_intercept=False, tol=1e-10, max_iter=5000).fit(table, tags)
    ours = [
        tagger.weights,
        tagger.crf.transitions.detach().numpy(),
        tagger.crf.start_transitions.detach().numpy()[None],
    ]
    np.testing.assert_allclose(np.concatenate(ours), theirs.coef_.T, atol=1e-4)
    assert not tagger.crf.end_transitions.detach().any()
    spent = negative_log_likelihood(
        "memm",
        tagger.crf,
        torch.from_numpy(seen @ tagger.weights),
        ChainLayout.from_lengths(lengths),
        torch.from_numpy(tags),
    )
    assert float(spent.detach()) == pytest.approx(
        -theirs.predict_log_proba(table)[np.arange(len(tags)), tags].sum(), abs=1e-4
    )


def test_memm_viterbi_finds_the_best_path():
    """The best path maximizes the product of locally normalized transitions."""
    seen, tags, lengths = random_data(2, (4, 1, 3, 5), 6, 3)
    tagger = fit_tagger("memm", seen, tags, lengths, ["a", "b", "c"], 0.2)
    steps, first = tagger.crf.transitions.detach().numpy(), tagger.crf.start_transitions.detach().numpy()
    cuts = np.cumsum(lengths)[:-1]
    for scores, predicted in zip(np.split(seen @ tagger.weights, cuts), np.split(tagger.viterbi(seen, lengths), cuts)):

        def likely(path, scores=scores):
            total = 0.0
            for i, tag in enumerate(path):
                row = scores[i] + (first if i == 0 else steps[path[i - 1]])
                total += row[tag] - np.logaddexp.reduce(row)
            return total

        every = list(itertools.product(range(3), repeat=len(scores)))
        assert max(every, key=likely) == tuple(predicted.tolist())


def sentences(n, seed=0):
    """Sentences whose entities can only be told from the neighboring words."""
    draw = np.random.default_rng(seed)
    examples = []
    for i in range(n):
        words, tags = [], []
        for _ in range(draw.integers(1, 4)):
            size = int(draw.integers(1, 4))
            words += ["Mr", *draw.choice(["Ann", "Bob", "Cy", "of"], size), str(draw.choice(["runs", "sees"]))]
            tags += ["O", "B-X", *["I-X"] * (size - 1), "O"]
        examples.append(TaggingExample(f"d:{i}", words=tuple(words), tags=tuple(tags)))
    return examples


@pytest.mark.parametrize("name", ["memm", "crf"])
def test_tagger_baselines(name):
    data = sentences(60)
    metrics = baseline_metrics(
        TaggingTask, name, data[:50], data[50:], lambda examples, predicted: {"number": float(len(predicted))}
    )
    assert metrics["f1"] > 0.95 and metrics["number"] == 10
    predicted = predict_chain_tags(name, data[:50], data[50:])
    assert [len(tags) for tags in predicted] == [len(e.words) for e in data[50:]]
    one = [TaggingExample("a", words=("x",), tags=("O",))] * 3
    assert baseline_metrics(TaggingTask, name, one, one)["accuracy"] == 1


def test_invalid_transitions_are_never_predicted():
    data, odd = sentences(30, 1), TaggingExample("x", words=("Ann", "Bob", "runs"), tags=("O", "O", "O"))
    barred = CRFConfig().build(sorted(LABELS)).forbidden
    assert barred[2, 1] == FORBIDDEN_SCORE
    for name in ("memm", "crf"):
        for tags in predict_chain_tags(name, data, [*data[:5], odd]):
            assert all(b != "I-X" or a != "O" for a, b in itertools.pairwise(("O", *tags)))


def test_a_marked_word_is_a_feature():
    words = ("cat", "sees", "dog", "sees", "fish")
    data = []
    for place in (1, 3):
        tags = ["O"] * 5
        tags[place - 1 : place + 2] = ["B-A0", "B-V", "B-A1"]
        data.append(PredicateExample("d", words=words, tags=tuple(tags), predicate=(place, "see")))
    assert [f["far"] for f in word_features(data[0])] == ["-1", "0", "1", "2", "3"]
    for name in ("crf", "memm"):
        assert baseline_metrics(SemanticRolesTask, name, data * 5, data)["f1"] == 1
    assert baseline_metrics(SemanticRolesTask, "linear", data * 5, data)["perfect"] == 1


def test_commands(tmp_path, run_cli, rejects):
    rows = "\n\n".join("\n".join(f"{w}\t{t}" for w, t in zip(e.words, e.tags)) for e in sentences(12))
    (tmp_path / "t.conll").write_text(rows + "\n")
    command = ("finetune", "--features", "none", "--task", "tagging", "--train", tmp_path / "t.conll")
    command += ("--dev", tmp_path / "t.conll", "--set", "steps=1", "--set", "network.lstm_dim=4")
    output = run_cli(*command, "--out", tmp_path / "run", "--baselines", "--baseline", "memm", "--baseline", "crf")
    assert [line.split("  ")[0] for line in output.splitlines()[1:5]] == ["majority", "linear", "memm", "crf"]
    rejects(
        *command,
        "--out",
        tmp_path / "x",
        "--baseline",
        "cfr",
        match="tagging has no baseline 'cfr'; did you mean 'crf'",
    )
    with pytest.raises(PolysemeError, match="pair_classification has no baseline 'crf'"):
        PairClassificationTask().check_baseline("crf")

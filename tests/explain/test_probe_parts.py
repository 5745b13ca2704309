"""The parts of probes: the classifier against scikit-learn, codelengths, control labels, splits, intervals, trees."""

import math

import numpy as np
import pytest
import torch
from sklearn.linear_model import LogisticRegression

from polyseme.errors import ConfigError, DataError
from polyseme.explain.probing.dependencies import read_trees
from polyseme.explain.probing.estimates import Estimate, GroupScores, Resampler, center_of_gravity
from polyseme.explain.probing.experiment import DevScorer, control_labels
from polyseme.explain.probing.features import collect_spans, combine_vectors
from polyseme.explain.probing.items import read_probe_data, split_items
from polyseme.explain.probing.linear import L2_GRID, ProbeInputs, choose_l2, fit_probe, online_codelength
from polyseme.explain.probing.structural import (
    TreeInputs,
    fit_structural_probe,
    score_chains,
    score_trees,
    spanning_arcs,
    undirected_arcs,
)
from tests.support.treebank import write_treebank


@pytest.fixture(scope="module")
def points():
    """Features of very different scales that depend on each other, and labels that a linear model predicts partly."""
    rng = np.random.default_rng(0)
    features = rng.normal(size=(300, 8)) @ rng.normal(size=(8, 8)) * np.logspace(-2, 2, 8) + 5
    noisy = (features - features.mean(0)) / features.std(0) @ rng.normal(size=(8, 3)) + rng.gumbel(size=(300, 3))
    return features.astype(np.float32), noisy.argmax(1)


@pytest.mark.parametrize("l2", [0.1, 3.0, 100.0])
def test_probe_matches_scikit_learn(points, l2):
    features, labels = points
    inputs = ProbeInputs.from_features(features, np.arange(200))
    train = torch.arange(200)
    probe = fit_probe(inputs.features[:200], torch.from_numpy(labels)[:200], 3, inputs.variances, l2, tolerance=1e-9)
    standardized = (features - features[:200].mean(0)) / features[:200].std(0)
    reference = LogisticRegression(C=1 / l2, tol=1e-10, max_iter=10_000).fit(standardized[:200], labels[:200])
    expected = reference.predict_log_proba(standardized)
    assert np.abs(probe.log_probs(inputs.features).numpy() - expected).max() < 0.02
    bits = -expected[np.arange(200), labels[:200]].sum() / math.log(2)
    assert probe.count_bits(inputs.features[train], torch.from_numpy(labels)[train]) == pytest.approx(bits, rel=2e-3)


def test_l2_is_chosen_on_held_out_labels(points):
    features, labels = points
    inputs = ProbeInputs.from_features(features, np.arange(300))
    train, held_out = torch.arange(200), torch.arange(200, 300)

    def bits(ids, l2):
        probe = fit_probe(inputs.features[train], ids[train], 3, inputs.variances, l2)
        return probe.count_bits(inputs.features[held_out], ids[held_out])

    ids = torch.from_numpy(labels)
    chosen = choose_l2(inputs, ids, 3, train, held_out)
    assert bits(ids, chosen) <= min(bits(ids, l2) for l2 in L2_GRID) + 0.5
    random_ids = torch.from_numpy(np.random.default_rng(1).integers(3, size=300))
    assert choose_l2(inputs, random_ids, 3, train, held_out) > 10 * chosen


def test_codelength_of_noise_and_of_a_rule(points):
    """Labels without any relation to the features take the uniform code, and those of a rule much less."""
    features, _ = points
    inputs = ProbeInputs.from_features(features, np.arange(300))
    noise = torch.from_numpy(np.random.default_rng(1).integers(2, size=300))
    rule = (inputs.features[:, -1] > 0).long()
    uniform, order = 300.0, torch.arange(300)
    assert online_codelength(inputs, noise, 2, order, 1e4)[0] == pytest.approx(uniform, rel=0.1)
    assert online_codelength(inputs, rule, 2, order, 1.0)[0] < 0.35 * uniform


def test_a_constant_feature_changes_nothing(points):
    features, labels = points
    ids = torch.from_numpy(labels)
    plain, extended = (
        ProbeInputs.from_features(each, np.arange(300)) for each in (features, np.c_[features, np.full(300, 7.3)])
    )
    first, second = (fit_probe(i.features, ids, 3, i.variances, 1.0).log_probs(i.features) for i in (plain, extended))
    assert (first - second).abs().max() < 1e-2


def test_trees(tmp_path):
    trees = read_trees(write_treebank(tmp_path / "a.conllu", 3))
    assert len(trees) == 3 and trees[0].heads.tolist() == [2, 2, 3, -1, 5, 3, 8, 8, 3, 3]
    distances = trees[0].distances()
    assert distances[0, 8] == 3 and distances[6, 7] == 2 and distances[3, 3] == 0  # the … place; in the; itself
    assert (distances == distances.T).all()


@pytest.mark.parametrize(
    "change,message",
    [
        (lambda text: text.replace("\t0\troot", "\t10\troot"), "not one root"),
        (lambda text: text.replace("\t3\tdet", "\t2\tdet").replace("\t3\tamod", "\t1\tamod"), "cycle"),
        (lambda text: text.replace("\t3\tdet", "\t30\tdet"), "no word"),
        (lambda text: text.replace("\t3\tdet", "\t_\t_"), "a.conllu:2: 'the' has no part of speech, head"),
        (lambda text: text.replace("_\t_\n", "_\n", 1), "a.conllu:2: 9 columns"),
    ],
)
def test_a_damaged_tree_is_an_error(tmp_path, change, message):
    path = write_treebank(tmp_path / "a.conllu", 2)
    path.write_text(change(path.read_text()))
    with pytest.raises(DataError, match=message):
        read_trees(path)


def test_items_splits_and_control_labels(tmp_path):
    path = write_treebank(tmp_path / "a.conllu", 40)
    tags, relations = (read_probe_data(task, path, None, 10_000) for task in ("ud-pos", "ud-deprel"))
    assert len(tags.items) == 400 and len(relations.items) == 360  # no root
    assert relations.items[0].spans == ((0, 0, 1), (0, 2, 3)) and relations.items[0].label == "det"
    split = split_items(tags, 1)
    parts = [{tags.items[i].group for i in part} for part in (split.train, split.held_out, split.dev)]
    assert [len(part) for part in parts] == [29, 3, 8] and not (parts[0] & parts[2] or parts[1] & parts[2])
    assert split.dev.tolist() != split_items(tags, 2).dev.tolist()
    control = control_labels(tags, 0)
    of_type = {item.type: label for item, label in zip(tags.items, control)}
    assert all(of_type[item.type] == label for item, label in zip(tags.items, control))
    assert (control != control_labels(tags, 1)).any() and (control == control_labels(tags, 0)).all()


def test_a_dev_file_is_never_trained_on(tmp_path):
    train, dev = write_treebank(tmp_path / "t.conllu", 20), write_treebank(tmp_path / "d.conllu", 30, seed=1)
    data = read_probe_data("ud-pos", train, dev, 80)
    split = split_items(data, 0)
    assert len(split.fitted) == 80 and len(split.dev) == 20  # whole sentences, a quarter as many of dev
    assert max(data.items[i].group for i in split.fitted) < min(data.items[i].group for i in split.dev)


def test_features_of_spans(tmp_path):
    data = read_probe_data("ud-deprel", write_treebank(tmp_path / "a.conllu", 5), None, 100)
    spans, item_spans = collect_spans(data)
    assert spans.shape[1] == 3 and item_spans.shape == (45, 2) and len(spans) == len({tuple(s) for s in spans.tolist()})
    vectors = np.random.default_rng(0).normal(size=(len(spans), 4))
    joined = combine_vectors(vectors, item_spans, "concat")
    assert (joined[3, 4:] == vectors[item_spans[3, 1]]).all()
    compared, swapped = (combine_vectors(vectors, s, "compare") for s in (item_spans, item_spans[:, ::-1]))
    assert np.allclose(compared, swapped) and np.abs(compared[:, -1]).max() <= 1 + 1e-9
    assert combine_vectors(vectors, item_spans, "pair").shape == (45, 16)


def test_f1_does_not_count_words_outside():
    scorer = DevScorer(np.array([0, 0, 1, 1]), 2, outside_id=0)
    points, totals = scorer.score(np.arange(4), np.array([0, 1, 1, 2]), np.array([0, 1, 0, 1]))
    assert points.tolist() == [2, 0] and totals.tolist() == [2, 3]  # F1 2/5: one of three predictions, of two words
    points, totals = DevScorer(np.array([0, 0, 1, 1]), 2, None).score(
        np.arange(4), np.arange(4), np.array([0, 1, 0, 1])
    )
    assert points.tolist() == [2, 0] and totals.tolist() == [2, 2]


def test_intervals_cover_the_truth():
    """Of 60 samples from a known rate, the intervals should miss about three."""
    rng = np.random.default_rng(3)
    misses = 0
    for _ in range(60):
        points = rng.binomial(1, 0.7, size=(1, 1, 150)).astype(np.float32)
        scores = GroupScores(points, np.ones_like(points))
        samples = Resampler.draw(np.ones(150, dtype=bool), 1, 200).scores(scores)
        estimate = Estimate.from_samples(samples[:, 0])
        assert estimate.value == pytest.approx(points.mean()) and estimate.low < estimate.value < estimate.high
        misses += not estimate.low <= 0.7 <= estimate.high
    assert misses <= 9


def test_groups_of_other_seeds_do_not_count():
    points = np.zeros((2, 1, 4), dtype=np.float32)
    totals = np.zeros((2, 1, 4), dtype=np.float32)
    points[0, 0, :2], totals[0, 0, :2], totals[1, 0, 2:] = 1, 1, 1  # all right in seed 0, all wrong in seed 1
    samples = Resampler.draw(np.ones(4, dtype=bool), 2, 50).scores(GroupScores(points, totals))
    assert samples[0, 0] == 0.5 and set(np.round(samples[:, 0], 6)) <= {0.0, 0.5, 1.0}


def test_center_of_gravity():
    samples = np.array([[0.5, 0.6, 0.9, 0.8], [0.5, 0.5, 0.5, 0.7], [0.5, 0.4, 0.3, 0.2]])
    centers = center_of_gravity(samples, np.arange(4.0))
    assert centers[0] == pytest.approx((1 * 0.1 + 2 * 0.3) / 0.4) and centers[1] == pytest.approx(3)
    assert np.isnan(centers[2]) and Estimate.from_samples(centers[2:]).value is None


def test_structural_probe_finds_trees_that_are_linear_in_the_vectors(tmp_path):
    """Vectors with one axis for each arc from the root have the squared distances of the tree (Coenen et al. 2019)."""
    trees = read_trees(write_treebank(tmp_path / "a.conllu", 40))
    rng = np.random.default_rng(0)
    rotation = np.linalg.qr(rng.normal(size=(20, 20)))[0]
    vectors = []
    for tree in trees:
        for word in range(len(tree.words)):
            vector = np.zeros(20)
            while tree.heads[word] >= 0:
                vector[word], word = 1, int(tree.heads[word])
            vectors.append(vector)
    noise = [rng.normal(size=20) for _ in vectors]
    distances = [tree.distances() for tree in trees]
    scores = []
    for each in (np.array(vectors) @ rotation, np.array(noise)):
        inputs = TreeInputs.from_vectors(each, trees, distances)
        matrix = fit_structural_probe(inputs, range(28), range(28, 32), seed=0)
        result = score_trees(inputs, matrix, range(32, 40))
        scores.append((result.num_correct.sum() / result.num_arcs.sum(), result.spearman.mean()))
    assert scores[0][0] > 0.95 and scores[0][1] > 0.9
    assert scores[1][0] < 0.6 and scores[1][1] < 0.5


def test_spanning_tree_has_no_punctuation(tmp_path):
    (tree,) = read_trees(write_treebank(tmp_path / "a.conllu", 1))
    gold = undirected_arcs(tree)
    assert len(gold) == 8 and not [arc for arc in gold if 9 in arc]
    assert spanning_arcs(tree, tree.distances().astype(float)) == gold
    num_correct, num_arcs = score_chains([tree])
    assert (num_correct.tolist(), num_arcs.tolist()) == ([4.0], [8.0])


def test_bad_limits_and_files(tmp_path):
    path = write_treebank(tmp_path / "a.conllu", 1)
    with pytest.raises(ConfigError, match="`max_examples` is 3"):
        read_probe_data("ud-pos", path, None, 3)
    with pytest.raises(DataError, match="too few to split"):
        split_items(read_probe_data("ud-pos", path, None, 50), 0)

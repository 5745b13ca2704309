"""Multi-bootstrap and random effects: a reference written as loops, limits where one factor varies, coverage."""

from pathlib import Path

import numpy as np
import pytest
from scipy import stats

from polyseme.errors import ConfigError
from polyseme.evaluation.comparison.finetuning_runs import FinetuneRun
from polyseme.evaluation.comparison.multi_bootstrap import (
    SEED_COVERAGE,
    multi_bootstrap,
    resample_metric,
    resample_points,
)
from polyseme.evaluation.comparison.random_effects import DifferenceEstimate, StandardError, estimate_difference, holm
from polyseme.evaluation.comparison.significance import bootstrap_scores, percentile_interval
from polyseme.tasks.classification import ClassificationTask


def reference_bootstrap(points, num_resamples, rng, is_paired=False, groups=None):
    """The procedure as loops: arms of [pre-training seeds][fine-tuning seeds][examples]."""
    differences, num_examples = [], len(points[0][0][0])
    for _ in range(num_resamples):
        examples = rng.integers(num_examples, size=num_examples)
        scores, drawn = [], None
        for arm in points:
            if drawn is None or not is_paired:
                drawn = rng.integers(len(arm), size=len(arm))
            seeds = [arm[i] for i in drawn]
            if len(arm) == 1:
                seeds = [[arm[0][j]] for j in rng.integers(len(arm[0]), size=len(arm[0]))]
            scores.append(np.mean([np.mean([mean_points(run, examples, groups) for run in seed]) for seed in seeds]))
        differences.append(scores[0] - scores[1])
    return np.array(differences)


def mean_points(run, examples, groups):
    if groups is None:
        return run[examples].mean()
    return np.mean([run[examples][groups[examples] == g].mean() for g in np.unique(groups[examples])])


def random_points(rng, num_seeds, num_finetuning_seeds, num_examples, spread):
    """Points of 0 or 1 of two arms, with effects of seeds and of examples."""
    difficulty = rng.normal(size=num_examples)
    return [
        [
            [
                (rng.normal(size=num_examples) + difficulty + effect + 0.3 * rng.normal() > 0).astype(float)
                for _ in range(num_finetuning_seeds)
            ]
            for effect in spread * rng.normal(size=num_seeds)
        ]
        for _ in range(2)
    ]


@pytest.mark.parametrize("is_paired", [False, True])
@pytest.mark.parametrize("num_seeds,num_finetuning_seeds,num_groups", [(4, 2, 0), (1, 3, 0), (3, 1, 5)])
def test_agrees_with_loops(is_paired, num_seeds, num_finetuning_seeds, num_groups):
    rng = np.random.default_rng(1)
    points = random_points(rng, num_seeds, num_finetuning_seeds, 60, 0.5)
    groups = rng.integers(num_groups, size=60) if num_groups else None
    expected = reference_bootstrap(points, 1500, rng, is_paired, groups)
    scores = resample_points(np.reshape(points, (-1, 60)), 1500, rng, groups)
    arms = scores.reshape(2, num_seeds, num_finetuning_seeds, -1)
    first, second = multi_bootstrap(list(map(list, arms)), rng, "pp" if is_paired else ())
    assert (first - second).mean() == pytest.approx(expected.mean(), abs=0.1 * expected.std())
    assert (first - second).std() == pytest.approx(expected.std(), rel=0.1)
    assert percentile_interval(first - second) == pytest.approx(
        percentile_interval(expected), abs=0.25 * expected.std()
    )


def test_points_of_any_value_are_drawn_like_those_that_repeat():
    """Points with few values are drawn by their number, others one by one."""
    rng = np.random.default_rng(0)
    points = (rng.random((2, 900)) < 0.7).astype(float)
    noise = 1e-9 * rng.random((2, 900))  # makes every example different
    for groups in (None, np.repeat(np.arange(9), 100)):
        fast, slow = (resample_points(each, 2000, rng, groups) for each in (points, points + noise))
        assert fast.mean(axis=1) == pytest.approx(points.mean(axis=1), abs=0.002)
        assert slow.std(axis=1) == pytest.approx(fast.std(axis=1), rel=0.1)
        assert np.cov(slow)[0, 1] == pytest.approx(np.cov(fast)[0, 1], abs=2e-5)


def test_one_factor_at_a_time():
    rng, num_resamples = np.random.default_rng(0), 4000
    seeds = rng.normal(size=(2, 5))
    fixed = [[np.full((1, num_resamples), value) for value in arm] for arm in seeds]
    first, _ = multi_bootstrap(fixed, rng)
    assert first.var() == pytest.approx(seeds[0].var() / 5, rel=0.1)  # only seeds vary
    points = (rng.random((1, 500)) < 0.8).astype(float)
    (only,) = multi_bootstrap([[resample_points(points, num_resamples, rng)]], rng)
    assert only.var() == pytest.approx(points.var() / 500, rel=0.1)  # only examples vary
    with pytest.raises(ConfigError, match="4 and 5 pre-training seeds"):
        multi_bootstrap([fixed[0][:4], fixed[1]], rng, (0, 0))
    shared, same = multi_bootstrap([fixed[0], fixed[0]], rng, (0, 0))
    assert (shared == same).all()  # paired arms draw the same models


def test_equals_the_bootstrap_of_compare_where_only_examples_vary():
    rng = np.random.default_rng(3)
    gold = tuple("ab"[i] for i in rng.integers(2, size=80))
    answers = [tuple(g if rng.random() < share else "ab".replace(g, "") for g in gold) for share in (0.9, 0.7)]
    task = ClassificationTask()
    runs = [
        FinetuneRun(Path(n), "m", "t", "accuracy", (0.5,), 1, 1.0, (), gold, (a,), task) for n, a in zip("xy", answers)
    ]
    score_fns = [
        lambda indices, a=a: task.score([gold[i] for i in indices], [a[i] for i in indices])["accuracy"]
        for a in answers
    ]
    scores = resample_metric(score_fns, len(gold), 100, np.random.default_rng(0))
    arms = multi_bootstrap([[row[None]] for row in scores], np.random.default_rng(9))
    assert (arms == bootstrap_scores(runs, 100, seed=0)).all()


def test_coverage_of_few_seeds_is_as_documented():
    rng, num_covered = np.random.default_rng(0), 0
    for _ in range(400):
        fixed = [[np.full((1, 300), value) for value in arm] for arm in rng.normal(size=(2, 3))]
        first, second = multi_bootstrap(fixed, rng)
        low, high = percentile_interval(first - second)
        num_covered += low <= 0 <= high
    assert num_covered / 400 == pytest.approx(SEED_COVERAGE[3], abs=0.05)


@pytest.mark.parametrize("is_paired", [False, True])
@pytest.mark.parametrize("seed_noise", [0.0, 0.15, 0.8])
def test_intervals_of_three_seeds_cover_95_percent(is_paired, seed_noise):
    """Seed noise and example noise are normal, and the arms share examples, and models if they are paired."""
    rng, num_covered, num_rejected, num_trials, num_examples = np.random.default_rng(2), 0, 0, 500, 50
    for _ in range(num_trials):
        difficulty = rng.normal(size=num_examples)
        models = 2 * rng.normal(size=3) if is_paired else 0.0
        points = [
            (models + seed_noise * rng.normal(size=3))[:, None]
            + (difficulty + rng.normal(size=num_examples))
            + rng.normal(size=(3, num_examples))
            for _ in range(2)
        ]
        deviations = [(arm - arm.mean(axis=1, keepdims=True)) / num_examples for arm in points]
        estimate = estimate_difference(points[0].mean(axis=1), points[1].mean(axis=1), tuple(deviations), is_paired)
        low, high = estimate.interval()
        num_covered += low <= 0 <= high
        num_rejected += estimate.p_value < 0.05
    assert num_rejected == num_trials - num_covered
    assert 0.93 <= num_covered / num_trials <= 0.97


def test_without_noise_of_examples_it_is_the_t_test_of_scipy():
    rng = np.random.default_rng(0)
    a, b = rng.normal(1, 1, 3), rng.normal(0, 2, 4)
    estimate, welch = estimate_difference(a, b), stats.ttest_ind(a, b, equal_var=False)
    assert estimate.p_value == pytest.approx(welch.pvalue)
    assert estimate.interval() == pytest.approx(tuple(welch.confidence_interval()))
    paired = stats.ttest_rel(a, b[:3])
    assert estimate_difference(a, b[:3], is_paired=True).p_value == pytest.approx(paired.pvalue)
    constant = estimate_difference([1, 1, 1], [2, 2, 2])
    assert not constant.has_variation and constant.p_value == 1 and constant.interval() == (-1, -1)
    equal = [0.1] * 7  # whose variance is a rounding error
    assert np.var(equal) > 0 and not estimate_difference(equal, [0.3] * 7).has_variation
    first, second = [0.816, 0.812], [0.81, 0.806]  # whose differences are 0.006, up to rounding
    assert not estimate_difference(first, second, is_paired=True).has_variation
    same = np.random.default_rng(0).normal(size=50)  # both arms have the same predictions, up to rounding
    deviations = ([same] * 3, [same * (1 + 1e-15)] * 3)
    assert not estimate_difference([0.5] * 3, [0.5] * 3, deviations).has_variation
    with pytest.raises(ValueError, match="1 seed"):
        estimate_difference([1.0], [1.0, 2.0])


def test_detectable_effects_have_their_power():
    for df, alpha in ((3.0, 0.05), (8.0, 0.01)):
        error = StandardError(0.5, df)
        effect = DifferenceEstimate(0.0, error, error).detectable_effect(alpha, 0.8)
        assert stats.nct.sf(stats.t.isf(alpha / 2, df), df, effect / 0.5) == pytest.approx(0.8, abs=1e-3)


def test_holm():
    assert holm([0.01, 0.04, 0.03, 0.5]) == pytest.approx([0.04, 0.09, 0.09, 0.5])
    assert holm([]) == []

"""Answers to the questions of a study: does the difference that a paper reports show, and how sure is that.

The interval of a difference treats seeds and examples as random (`estimate_difference`). With three seeds, a percentile
bootstrap over seeds is too narrow (it covers in 80 % of cases instead of 95 %), and a paired t interval with two
degrees of freedom is wider than needed, since the seeds of different models have nothing in common. So the models of
two arms count as independent, as in Welch's test, unless both arms evaluate the same models (`from_arm`): those are
paired. The examples are the same for all. The p-values of all questions of a study are adjusted for their number (Holm
1979).
"""

from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, Literal

from polyseme.errors import DataError, PolysemeError
from polyseme.evaluation.comparison.random_effects import MIN_SEEDS, DifferenceEstimate, estimate_difference, holm
from polyseme.nn.layers.block import NoNormConfig
from polyseme.studies.analysis.examples import example_deviations, multi_bootstrap_interval
from polyseme.studies.analysis.results import Row, metric_values
from polyseme.studies.base import Question, Study
from polyseme.studies.metrics import METRICS
from polyseme.train.recipe import Recipe

LEVEL = 0.05
POWER = 0.8
Answer = Literal["agrees", "disagrees", "undecided", "void", "missing"]


@dataclass(frozen=True)
class Verdict:
    """The answer to a question, with the difference of `arm` and `reference` in units of the metric.

    `p` is two-sided and `adjusted_p` the same after Holm's correction, which decides. `detectable` is the smallest
    true difference that this run would have found in 80 % of cases. `reason` explains answers other than agrees and
    disagrees. `bootstrap_interval` is that of the multi-bootstrap, for comparison with papers that report it.
    """

    question: Question
    answer: Answer
    reason: str = ""
    difference: float | None = None
    interval: tuple[float, float] | None = None
    p: float | None = None
    adjusted_p: float | None = None
    detectable: float | None = None
    num_seeds: tuple[int, int] = (0, 0)
    is_paired: bool = False
    includes_examples: bool = False
    bootstrap_interval: tuple[float, float] | None = None

    def to_json(self) -> dict[str, Any]:
        """Return the content of an entry of `results.json`."""
        return asdict(self)


def decide(
    study: Study, rows: Sequence[Row], *, num_seeds: int | None = None, out: Path | None = None
) -> list[Verdict]:
    """Answer the questions of a study from its rows.

    A question with fewer than `num_seeds` rows of each arm is not answered yet. `out` is the folder with the files of
    examples; without it only seeds vary.
    """
    drafts = [_compare(study, question, rows, num_seeds or 1, out) for question in study.questions]
    tested = [i for i, (verdict, _) in enumerate(drafts) if verdict.answer != "void"]  # a missing one will be tested
    adjusted = dict(zip(tested, holm([1.0 if (p := drafts[i][0].p) is None else p for i in tested])))
    verdicts = []
    for number, (verdict, estimate) in enumerate(drafts):
        if estimate is not None:
            verdict = _conclude(verdict, estimate, adjusted[number], LEVEL / len(tested))
        verdicts.append(verdict)
    return verdicts


def compare_arms(
    study: Study, rows: Sequence[Row], arms: tuple[str, str], metric: str, out: Path | None = None
) -> DifferenceEstimate | None:
    """Estimate the difference of two arms in a metric; None if one of them has fewer than two seeds."""
    first, second = (_rows_with_metric(rows, arm, metric) for arm in arms)
    if min(len(first), len(second)) < MIN_SEEDS:
        return None
    is_paired = _is_paired(study, arms, first, second)
    values = [metric_values(each, metric) for each in (first, second)]
    paths = _example_paths((first, second), metric, out)
    deviations = None
    if paths is not None:
        deviations = tuple([example_deviations(path) for path in each] for each in paths)
        if len({len(each) for arm in deviations for each in arm}) > 1:
            raise DataError(f"{out}: the values of {metric} of {arms[0]} and {arms[1]} are of different examples")
    return estimate_difference(values[0], values[1], deviations, is_paired)  # type: ignore[arg-type]


def _compare(
    study: Study, question: Question, rows: Sequence[Row], num_seeds: int, out: Path | None
) -> tuple[Verdict, DifferenceEstimate | None]:
    """Return a verdict without a decision, and the estimate that decides, if there is one."""
    arms, metric = (question.arm, question.reference), question.metric
    by_arm = [_rows_with_metric(rows, arm, metric) for arm in arms]
    counts = (len(by_arm[0]), len(by_arm[1]))
    if reason := _void_reason(rows, arms):
        return Verdict(question, "void", reason, num_seeds=counts), None
    if reason := next((text for arm in arms if (text := _missing_reason(rows, arm, metric, num_seeds))), ""):
        return Verdict(question, "missing", reason, num_seeds=counts), None
    means = [sum(values) / len(values) for values in (metric_values(each, metric) for each in by_arm)]
    verdict = Verdict(question, "undecided", difference=means[0] - means[1], num_seeds=counts)
    estimate = compare_arms(study, rows, arms, metric, out)
    if estimate is None:
        return replace(verdict, reason="One seed shows no variation: run at least two, better three or more."), None
    if not estimate.has_variation:
        return replace(verdict, reason="Neither the seeds nor the examples vary."), None
    paths, is_paired = _example_paths(by_arm, metric, out), _is_paired(study, arms, *by_arm)
    bootstrap = None if paths is None else multi_bootstrap_interval(paths[0], paths[1], is_paired)
    facts: dict[str, Any] = {"is_paired": is_paired, "includes_examples": paths is not None}
    return replace(verdict, p=estimate.p_value, bootstrap_interval=bootstrap, **facts), estimate


def _conclude(verdict: Verdict, estimate: DifferenceEstimate, adjusted_p: float, level: float) -> Verdict:
    """Return a verdict with its interval and decision; `level` is that of the first of Holm's steps."""
    answer: Answer = "undecided"
    if adjusted_p < LEVEL:
        is_higher = estimate.difference > 0
        answer = "agrees" if is_higher == (verdict.question.predicted == "higher") else "disagrees"
    detectable = estimate.detectable_effect(level, POWER)
    return replace(
        verdict, answer=answer, interval=estimate.interval(), adjusted_p=adjusted_p, detectable=detectable
    )  # fmt: skip


def _rows_with_metric(rows: Sequence[Row], arm: str, metric: str) -> list[Row]:
    arm_rows = [row for row in rows if row["arm"] == arm and "error" not in row]
    return [row for row in arm_rows if metric_values([row], metric)]


def _is_paired(study: Study, arms: tuple[str, str], first: Sequence[Row], second: Sequence[Row]) -> bool:
    """Whether both arms evaluate the same models."""
    models = [study_arm.from_arm or study_arm.name for arm in arms for study_arm in study.arms if study_arm.name == arm]
    return models[0] == models[1] and [row["seed"] for row in first] == [row["seed"] for row in second]


def _example_paths(by_arm: Sequence[Sequence[Row]], metric: str, out: Path | None) -> list[list[Path]] | None:
    """Return the files of examples of each arm and seed; None unless all exist."""
    if out is None:
        return None
    names = [[(row["arm"], row["metrics"][metric].get("items")) for row in rows] for rows in by_arm]
    paths = [[out / "arms" / arm / name for arm, name in each if name] for each in names]
    is_complete = all(len(a) == len(b) for a, b in zip(names, paths)) and all(
        p.is_file() for each in paths for p in each
    )
    return paths if is_complete else None


def _void_reason(rows: Sequence[Row], arms: tuple[str, str]) -> str:
    """Return why an arm shows nothing: a run failed, or its model never left the plateau of word frequencies."""
    for arm in dict.fromkeys(arms):
        arm_rows = [row for row in rows if row["arm"] == arm]
        for row in arm_rows:
            if "error" in row:
                return f"{arm}, seed {row['seed']}, failed: {row['error']}"
        if void := [row for row in arm_rows if row.get("is_void")]:
            share = "all seeds" if len(void) == len(arm_rows) else f"{len(void)} of {len(arm_rows)} seeds"
            return f"{arm} {void_reason(void[0])} ({share}): {advise(void[0])}."
    return ""


def void_reason(row: Row) -> str:
    """Say why a model is void: its loss is that of word frequencies, or nothing was held out to measure it on."""
    if row.get("valid") == {}:
        return "has no validation loss, which would show whether it learned more than word frequencies"
    return "never left the word-frequency plateau"


def advise(row: Row) -> str:
    """Say what would help a void model."""
    if row.get("valid") == {}:
        return "hold out more documents (`valid_fraction`)"
    try:
        recipe = Recipe.from_json(row["recipe"])
        block = getattr(recipe.model_config(1000).trunk, "block", None)
    except (PolysemeError, LookupError, TypeError):
        return "it needs more steps or another learning rate"
    is_post_norm = block is not None and not isinstance(getattr(block, "post_norm", NoNormConfig()), NoNormConfig)
    if is_post_norm and recipe.optimizer.name != "muon":
        return f"post-norm {recipe.family} needs Muon or more steps"
    return f"{recipe.family} needs more steps or another learning rate"


def _missing_reason(rows: Sequence[Row], arm: str, metric: str, num_seeds: int) -> str:
    """Return why an arm has too few values; empty if it has enough."""
    num_values = len(_rows_with_metric(rows, arm, metric))
    if num_values >= num_seeds:
        return ""
    were = "was" if num_values == 1 else "were"
    return f"{num_values} of {num_seeds} seeds of {arm} {were} measured by {METRICS[metric].title}."

"""A model before and after pruning: its metric, that of random choices and of training from scratch, and a curve."""

import statistics
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from polyseme.compress.examples import QualityExamples
from polyseme.compress.pruning.config import PruningConfig
from polyseme.compress.pruning.curve import CURVE_SECONDS, NO_CURVE, Curve, measure_curve, model_size, size_unit
from polyseme.compress.pruning.retraining import Retraining
from polyseme.compress.pruning.select import prune_model, rank_parts
from polyseme.compress.result import CompressionRow, CurvePoint
from polyseme.inference.neural_lm import NeuralLM
from polyseme.nn.model import Model


@dataclass(frozen=True)
class ComparisonOptions:
    """What a pruned model is compared with.

    `random` adds a random choice of the same size, and `from_scratch` random weights in the same shape and with the
    same zeros, trained in the same way. A training is repeated for each of the `seeds`. `curve` measures more amounts.
    """

    random: bool = False
    from_scratch: bool = False
    seeds: int | Sequence[int] = 1
    curve: bool = True


@dataclass(frozen=True, eq=False)
class Outcome:
    """A pruned network, what was removed, the rows of its metric, and its curve."""

    network: NeuralLM
    record: dict[str, Any]
    rows: Sequence[CompressionRow] = ()
    curve: Curve = NO_CURVE
    metric: str = ""
    texts: Sequence[str] = ()


def with_model(network: NeuralLM, model: Model) -> NeuralLM:
    """Return a network with another model, the same tokenizer and task."""
    folder = replace(network.folder, model=model)
    return NeuralLM(folder, str(network.device), network.max_batch_tokens, network.tasks)


def prune_once(
    network: NeuralLM, config: PruningConfig, examples: QualityExamples | None, options: ComparisonOptions
) -> Outcome:
    """Prune a model without training, and compare its metric on examples, if there are any."""
    prune = rank_parts(network.model, config, examples)
    pruned, record = prune(config)
    if examples is None:
        return Outcome(with_model(network, pruned), record)
    metric, started = examples.metric, time.perf_counter()

    def score(model: Model) -> float:
        return examples.evaluate(with_model(network, model))

    before = score(network.model)
    seconds = time.perf_counter() - started
    rows = [CompressionRow.compare(metric, before, after := score(pruned))]
    if options.random:
        random_model, _ = prune_model(network.model, config.replace(strategy="random"), None)
        rows.append(CompressionRow.compare(f"{metric}, random {config.part}", before, score(random_model)))
    curve = NO_CURVE
    if options.curve:
        points = _end_points(network.model, pruned, config, record, before, after)
        if seconds > CURVE_SECONDS:
            note = f"There is no curve: one evaluation takes {seconds:.0f} s, so pass fewer examples for one."
            curve = Curve(tuple(points), size_unit(config), (note,))
        else:
            curve = measure_curve(network.model, config, prune, score, points)
    record = record | {"metric": metric, "examples": examples.num_examples}
    return Outcome(with_model(network, pruned), record, rows, curve, metric, examples.texts)


def prune_and_train(config: PruningConfig, retraining: Retraining, options: ComparisonOptions) -> Outcome:
    """Prune and train a model once per seed; the best seed is kept, and the rows are means over seeds."""
    scores: dict[str, list[float]] = {"dense": [], "pruned": []}
    models: list[tuple[Model, dict[str, Any]]] = []
    for seed in retraining.seeds:
        pruned, record = retraining.prune(config, seed)
        models.append((pruned, record))
        scores["pruned"].append(retraining.score(pruned))
        if options.random:
            random_model = retraining.prune_at_random(config, seed)
            scores.setdefault(f"random {config.part}", []).append(retraining.score(random_model))
        if options.from_scratch:
            scratch_model = retraining.train_from_scratch(pruned, seed)
            scores.setdefault("from scratch", []).append(retraining.score(scratch_model))
        dense = retraining.train(retraining.build(seed), seed)
        scores["dense"].append(retraining.score(dense))
    metric, before, after = retraining.metric, scores["dense"], scores["pruned"]
    best = (min if retraining.is_lower_better else max)(range(len(after)), key=after.__getitem__)
    pruned, record = models[best]
    names = {"pruned": metric} | {name: f"{metric}, {name}" for name in scores if name not in ("dense", "pruned")}
    rows = [CompressionRow.compare_seeds(label, before, scores[name]) for name, label in names.items()]
    curve = NO_CURVE
    if options.curve:
        points = _end_points(dense, pruned, config, record, statistics.fmean(before), statistics.fmean(after))
        curve = _untrained_curve(dense, config, retraining, points)
    record |= {"metric": metric, "scores": scores, "seeds": list(retraining.seeds), **retraining.describe()}
    return Outcome(retraining.network_of(pruned), record, rows, curve, metric, retraining.texts)


def _untrained_curve(dense: Model, config: PruningConfig, retraining: Retraining, points: list[CurvePoint]) -> Curve:
    """Measure other amounts of a trained model without training after pruning, beside the one that was trained."""
    config = config.replace(schedule="one-shot", rounds=0, rewind_step=0)
    if config.strategy == "gates":
        config = config.replace(strategy="importance")
    prune = rank_parts(dense, config, retraining.examples)
    curve = measure_curve(dense, config, prune, retraining.score, points)
    names = ["trained" if point.chosen else "not trained after pruning" for point in curve.points]
    return curve._replace(points=tuple(point._replace(series=name) for point, name in zip(curve.points, names)))


def _end_points(
    model: Model, pruned: Model, config: PruningConfig, record: dict[str, Any], before: float, after: float
) -> list[CurvePoint]:
    """Return the points of the original and of the model that is written."""
    size = model_size(pruned, config, record["removed"])
    label = f"{record['removed'] / record['total']:.0%}"
    return [CurvePoint("original", model_size(model, config, 0), before), CurvePoint(label, size, after, chosen=True)]

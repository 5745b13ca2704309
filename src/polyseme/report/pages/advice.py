"""Next steps after fine-tuning, computed from the results: what limits the score, and a command for it."""

import math
import shlex
import statistics
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from polyseme.report.diagnostics import Diagnostics
from polyseme.report.pages.diagnostics_page import top_confusion

Step = tuple[str, str]  # what to do and why, and a command or nothing
Curves = Mapping[int, Sequence[tuple[int, float]]]  # dev scores by seed: step and value
MAX_STEPS = 7
MIN_TRAIN_EXAMPLES = 50


def suggest_next_steps(results: Mapping[str, Any], diagnostics: Diagnostics | None, curves: Curves) -> list[Step]:
    """Return the most useful next steps, the most urgent first; the last one is to use the model.

    Commands call the folder of the run RUN: a page does not depend on where it is.
    """
    steps = [*_about_scores(results), *_about_training(results, curves)]
    if diagnostics is not None:
        steps += _about_predictions(diagnostics)
    use = "polyseme evaluate RUN/model --data TEST\npolyseme predict RUN/model --data NEW --out predictions.jsonl"
    return [*steps[:MAX_STEPS], ("Measure it once on examples that chose nothing, then use it.", use)]


def _about_scores(results: Mapping[str, Any]) -> Iterator[Step]:
    metric, model = results["primary_metric"], shlex.quote(results["model"])
    mean, std = results["mean"][metric], results["std"].get(metric)
    baselines = {name: values[metric] for name, values in results.get("baselines", {}).items() if metric in values}
    if results["failed_seeds"]:
        count, total = len(results["failed_seeds"]), len(results["seeds"])
        failed = f"{count} of {total} seeds learned nothing" if total > 1 else "The model learned nothing"
        advice = "try lower and higher learning rates, and a longer warm-up"
        yield f"{failed}: {advice}.", f'polyseme finetune {model} … --grid "{grid_around(results)}"'
    elif baselines and max(baselines.values()) >= mean:
        best = max(baselines, key=lambda name: baselines[name])
        lead = f"The {best} baseline is as good or better ({metric} {baselines[best]:.4f}, the model {mean:.4f})"
        advice = "pre-train longer or on text like yours, start from a stronger model, or raise the learning rate"
        yield f"{lead}: {advice}.", f'polyseme finetune {model} … --grid "{grid_around(results)}"'
    if not baselines and "tasks" not in results:
        yield "Add baselines: a score means little without them.", f"polyseme finetune {model} … --baselines"
    num_seeds = len(results["seeds"])
    if num_seeds < 3:
        opening = "One seed shows" if num_seeds == 1 else "Two seeds show"
        text = f"{opening} no reliable spread: run five before you compare models."
        yield text, f"polyseme finetune {model} … --seeds 5"
    elif std is not None and std > 0.015:
        needed = math.ceil((1.96 * std / 0.01) ** 2)
        text = f"The standard deviation over seeds is {std:.4f}: smaller differences between models are noise."
        if num_seeds < needed <= 20:
            yield f"{text} {needed} seeds give ±0.01.", f"polyseme finetune {model} … --seeds {needed}"
        elif needed > 20:
            advice = "A lower learning rate, a longer warm-up or more training examples make runs more alike."
            yield f"{text} {advice}", f'polyseme finetune {model} … --grid "{grid_around(results)}"'
    for split, num_truncated in results["num_truncated"].items():
        share = num_truncated / max(results[f"{split}_examples"], 1)
        if share > 0.05:
            text = f"{share:.0%} of the {split} examples were truncated"
            if results.get("settings", {}).get("max_len"):
                yield f"{text}: read as many tokens as the model can.", f"polyseme finetune {model} … --set max_len=0"
            else:
                yield f"{text}: split long texts, or use a model that reads more tokens.", ""
            break


def grid_around(results: Mapping[str, Any]) -> str:
    """Return a grid of learning rates around the one that was used."""
    lr = results.get("settings", {}).get("optimizer", {}).get("lr") or 5e-5
    return "lr=" + ",".join(f"{lr * factor:.0e}".replace("e-0", "e-") for factor in (0.3, 1, 3, 10))


def _about_training(results: Mapping[str, Any], curves: Curves) -> Iterator[Step]:
    ends = [[value for _, value in curve[-3:]] for curve in curves.values() if len(curve) >= 3]
    if not ends:
        return
    last = statistics.fmean(values[-1] for values in ends)
    gain = last - statistics.fmean(values[-2] for values in ends)
    peak = statistics.fmean(max(value for _, value in curve) for curve in curves.values())
    settings, model = results.get("settings", {}), shlex.quote(results["model"])
    longer = f"steps={2 * settings['steps']}" if settings.get("steps") else f"epochs={2 * settings.get('epochs', 3):g}"
    if gain > 0.005:
        text = f"The dev score still rose at the end (by {gain:.3f} in the last part): train longer."
        yield text, f"polyseme finetune {model} … --set {longer}"
    elif peak - last > 0.01 and not settings.get("patience"):
        text = f"The dev score fell by {peak - last:.3f} from its peak: keep the best epoch with early stopping."
        yield text, f"polyseme finetune {model} … --set patience=2"


def _about_predictions(diagnostics: Diagnostics) -> Iterator[Step]:
    rare = [s for s in diagnostics.labels if s.num_train < MIN_TRAIN_EXAMPLES and s.support and s.f1 < 0.8]
    if rare:
        names = ", ".join(f"{s.label!r} ({s.num_train:,}, F1 {s.f1:.2f})" for s in sorted(rare, key=lambda s: s.f1)[:4])
        yield f"Few training {diagnostics.unit} for {names}: collect more of these labels first.", ""
    if diagnostics.confusion and (top := top_confusion(diagnostics.confusion)) and top[2] >= 5:
        gold, predicted, count = top
        text = f"{gold!r} is taken for {predicted!r} {count:,} times: read these errors; would annotators agree?"
        yield text, ""
    calibration = diagnostics.calibration
    if calibration and calibration.ece > 0.05 and (gap := calibration.confidence - calibration.accuracy) > 0.03:
        advice = "choose thresholds on other examples, or average the seeds, which are better calibrated"
        command = "polyseme predict RUN --ensemble --data NEW --out predictions.jsonl"
        yield f"Probabilities are overconfident by {gap:.0%}: {advice}.", command

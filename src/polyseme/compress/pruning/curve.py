"""Quality against size: a model with several shares of the same part removed, so that a reader sees where it breaks."""

import time
from collections.abc import Callable
from typing import NamedTuple

from polyseme.compress.pruning.config import PruningConfig
from polyseme.compress.pruning.select import PruneFn
from polyseme.compress.pruning.structure import list_stacks
from polyseme.compress.result import CurvePoint
from polyseme.errors import ConfigError
from polyseme.nn.model import Model
from polyseme.train.loop import count_parameters

# in the order in which they are measured, so that a curve that is cut short still covers the range
SHARES = (0.5, 0.8, 0.2, 0.65, 0.35, 0.9, 0.1)
WEIGHT_SHARES = (0.5, 0.9, 0.7, 0.3, 0.8, 0.95, 0.6)
CURVE_SECONDS = 60.0


class Curve(NamedTuple):
    """The points of a curve by size, the unit of the size, and what a reader should know about it."""

    points: tuple[CurvePoint, ...]
    unit: str
    notes: tuple[str, ...] = ()


NO_CURVE = Curve((), "megabytes")


def model_size(model: Model, config: PruningConfig, removed: int) -> float:
    """Return the size of a pruned model: megabytes of float32, or millions of nonzero parameters."""
    num_parameters = count_parameters(model)
    return (num_parameters - removed) / 1e6 if config.part == "weights" else 4 * num_parameters / 1e6


def size_unit(config: PruningConfig) -> str:
    """Return the unit of `model_size`."""
    return "million nonzero parameters" if config.part == "weights" else "megabytes of float32"


def list_amounts(model: Model, config: PruningConfig) -> list[float]:
    """Return the amounts to measure besides the one that was chosen; numbers of layers rather than shares."""
    shares = WEIGHT_SHARES if config.part == "weights" else SHARES
    if config.part == "layers":
        num_layers = min(stack.num_layers for stack in list_stacks(model.config).values())
        amounts = [float(n) for n in dict.fromkeys(round(share * num_layers) for share in shares) if 0 < n < num_layers]
        return [n for n in amounts if n != config.num_removed(num_layers)]
    return [share for share in shares if share != config.amount]


def measure_curve(
    model: Model, config: PruningConfig, prune: PruneFn, score: Callable[[Model], float], points: list[CurvePoint]
) -> Curve:
    """Add points of other amounts to those of the original and the chosen model, for up to a minute."""
    unpadded, started, notes = config.replace(pad=False), time.perf_counter(), []
    amounts = list_amounts(model, config)
    for number, amount in enumerate(amounts):
        if time.perf_counter() - started > CURVE_SECONDS:
            notes.append(f"The curve has {number} of {len(amounts)} other amounts: it took over {CURVE_SECONDS:g} s.")
            break
        try:
            pruned, record = prune(unpadded.with_amount(amount))
        except ConfigError:  # none would stay in a layer
            continue
        size = model_size(pruned, config, record["removed"])
        points.append(CurvePoint(f"{record['removed'] / record['total']:.0%}", size, score(pruned)))
    first, *others = points
    ordered = (first, *sorted(others, key=lambda point: -point.size))
    return Curve(ordered, size_unit(config), tuple(notes))

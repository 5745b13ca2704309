"""`PruningConfig`: which part of a model is pruned, how much of it, by which criterion, and when."""

import math
from dataclasses import dataclass
from typing import Literal

from polyseme.config import Config
from polyseme.errors import ConfigError

Part = Literal["layers", "heads", "ffn", "weights"]
Strategy = Literal["auto", "top", "alternate", "loss", "importance", "gates", "norm", "magnitude", "random"]
Schedule = Literal["one-shot", "gradual", "iterative"]
# the strategies of each part; the first is used with data, the last but random without
STRATEGIES: dict[Part, tuple[Strategy, ...]] = {
    "layers": ("loss", "alternate", "top", "random"),
    "heads": ("importance", "gates", "random"),
    "ffn": ("importance", "norm", "random"),
    "weights": ("magnitude", "random"),
}
NEEDS_DATA: tuple[Strategy, ...] = ("loss", "importance", "gates")
GRADUAL_START, GRADUAL_END = 0.1, 0.7  # of the training steps: between them, weights are removed gradually
ITERATIVE_SHARE = 0.2  # of the weights that are left, which a round removes (Frankle and Carbin 2019)


@dataclass(frozen=True)
class PruningConfig(Config):
    """How much of one part is removed: a share below 1, or a count from 1 on (units: of each layer).

    `strategy` is what is removed. Layers: `top` (the last ones), `alternate` (every second one from the top; Sajjad et
    al. 2023), or `loss` (one by one, that whose removal raises the loss least). Heads and ffn units: those of the least
    `importance` (Michel et al. 2019); heads also by `gates`, which are trained with a penalty of `gate_penalty` for
    each open gate (Voita et al. 2019), and units by the smallest `norm`. Weights: those of the smallest `magnitude`.
    All of them: `random`, by `seed`. `auto` takes the one that uses the data, if there are data.

    Heads of all layers are ranked together, and every layer keeps one; with `uniform`, each layer loses the same
    number, and a count is one per layer. With `pad`, removed heads are set to zero instead, so that the folder keeps
    its shape and `transformers` opens it.

    `schedule` is when weights are removed: at once; in the course of a training, along the cubic curve of Zhu and Gupta
    2017 (`gradual`); or in rounds, after each of which the weights that are left return to step `rewind_step` of the
    first training (`iterative`; Frankle et al. 2020). 0 `rounds` are as many as remove 20 % at a time.
    """

    layers: float | None = None
    heads: float | None = None
    ffn: float | None = None
    weights: float | None = None
    strategy: Strategy = "auto"
    schedule: Schedule = "one-shot"
    rounds: int = 0
    rewind_step: int = 0
    gate_penalty: float = 0.02
    uniform: bool = False
    seed: int = 0
    pad: bool = False
    max_examples: int = 256  # evenly spaced ones that loss and importance are measured on

    def __post_init__(self) -> None:
        if len(chosen := [part for part in STRATEGIES if getattr(self, part) is not None]) != 1:
            named = " and ".join(f"`{part}`" for part in chosen) if chosen else "none of them is set"
            raise ConfigError(f"choose one of `layers`, `heads`, `ffn` and `weights` to prune ({named})")
        if not 0 <= self.amount < math.inf or (self.amount > 1 and self.amount != int(self.amount)):
            raise ConfigError(f"`{self.part}` is {self.amount:g}: a share from 0 to 1, or a count, is expected")
        if self.strategy not in ("auto", *STRATEGIES[self.part]):
            known = ", ".join(STRATEGIES[self.part])
            raise ConfigError(f"`strategy` is {self.strategy!r}, but {self.part} are pruned by {known}")
        if self.pad and self.part != "heads":
            raise ConfigError(f"`pad` has no effect: `transformers` opens a model with fewer {self.part} as it is")
        if self.uniform and self.part != "heads":
            raise ConfigError(f"`uniform` has no effect on {self.part}: it is for `heads`")
        if self.schedule != "one-shot" and self.part != "weights":
            raise ConfigError(f"`schedule` is {self.schedule!r}, but {self.part} are removed at once: use `weights`")
        if (self.rounds or self.rewind_step) and self.schedule != "iterative":
            raise ConfigError(f"`rounds` and `rewind_step` are for the `schedule` iterative, not {self.schedule}")
        self.check_range(1, math.inf, "max_examples")
        self.check_range(0, math.inf, "seed", "rounds", "rewind_step", "gate_penalty")

    @property
    def part(self) -> Part:
        """The part that is pruned."""
        return next(part for part in STRATEGIES if getattr(self, part) is not None)

    @property
    def amount(self) -> float:
        """How much of it is removed."""
        return float(getattr(self, self.part))

    @property
    def needs_training(self) -> bool:
        """Whether the choice is made by training a model."""
        return self.schedule != "one-shot" or self.strategy == "gates"

    def resolve(self, has_data: bool) -> "PruningConfig":
        """Return the config with its strategy chosen; raise if it lacks data, or has no use for an option."""
        strategies = STRATEGIES[self.part]
        strategy = self.strategy
        if strategy == "auto":
            strategy = strategies[0] if has_data or strategies[-2] in NEEDS_DATA else strategies[-2]
        if strategy in NEEDS_DATA and not has_data:
            others = " or ".join(repr(name) for name in strategies if name not in NEEDS_DATA)
            raise ConfigError(
                f"pruning {self.part} by {strategy} needs `data`: examples of the model's task, or texts; "
                f"or set `strategy` to {others}"
            )
        for name, users in {"max_examples": ("loss", "importance"), "gate_penalty": ("gates",)}.items():
            if getattr(self, name) != getattr(PruningConfig, name) and strategy not in users:
                raise ConfigError(f"`{name}` has no effect on the strategy {strategy}: it is for {' and '.join(users)}")
        return self.replace(strategy=strategy)

    def with_amount(self, amount: float) -> "PruningConfig":
        """Return the config with another amount of the same part."""
        return self.replace(**{self.part: amount})

    def num_removed(self, total: int, num_groups: int = 1) -> int:
        """Return how many of `total` are removed; raise if none would stay in one of so many groups."""
        count = round(self.amount * total) if self.amount < 1 else int(self.amount)
        if count > total - num_groups and total:
            per_layer = {"heads": "heads of a layer" if self.uniform else "heads", "ffn": "units of a layer"}
            keep = "keep one" if num_groups == 1 else f"keep one in each of {num_groups} layers"
            noun = per_layer.get(self.part, self.part)
            raise ConfigError(f"`{self.part}` is {self.amount:g}, which removes {count} of {total} {noun}: {keep}")
        return count

    def iterative_counts(self, total: int) -> list[int]:
        """Return how many of `total` weights are removed after each round: an equal share of those that are left."""
        count = self.num_removed(total)
        left = 1 - count / total
        rounds = self.rounds or max(math.ceil(math.log(left) / math.log(1 - ITERATIVE_SHARE) - 1e-9), 1)
        return [*(round(total * (1 - left ** (i / rounds))) for i in range(1, rounds)), count]

    def gradual_count(self, count: int, step: int, total_steps: int) -> int:
        """Return how many of `count` weights are removed after a step, by the cubic schedule of Zhu and Gupta 2017."""
        start, end = GRADUAL_START * total_steps, GRADUAL_END * total_steps
        progress = min(max((step - start) / max(end - start, 1), 0.0), 1.0)
        return count if step >= total_steps else round(count * (1 - (1 - progress) ** 3))

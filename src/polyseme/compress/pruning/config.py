"""`PruningConfig`: which part of a model is pruned, how much of it, and by which criterion."""

import math
from dataclasses import dataclass
from typing import Literal

from polyseme.config import Config
from polyseme.errors import ConfigError

Part = Literal["layers", "heads", "ffn", "weights"]
Strategy = Literal["auto", "top", "alternate", "loss", "importance", "norm", "magnitude", "random"]
# the strategies of each part; the first is used with data, the last but random without
STRATEGIES: dict[Part, tuple[Strategy, ...]] = {
    "layers": ("loss", "alternate", "top", "random"),
    "heads": ("importance", "random"),
    "ffn": ("importance", "norm", "random"),
    "weights": ("magnitude", "random"),
}
NEEDS_DATA: tuple[Strategy, ...] = ("loss", "importance")


@dataclass(frozen=True)
class PruningConfig(Config):
    """How much of one part is removed: a share below 1, or a count from 1 on; of each layer for heads and ffn units.

    `strategy` is what is removed. Layers: `top` (the last ones), `alternate` (every second one from the top; Sajjad et
    al. 2023), or `loss` (one by one, that whose removal raises the loss least). Heads and ffn units: those of the least
    `importance` (Michel et al. 2019), or units of the smallest `norm`. Weights: those of the smallest `magnitude`. All
    of them: `random`, by `seed`. `auto` takes the one that uses the data, if there are data.

    With `pad`, removed heads are set to zero instead, so that the folder keeps its shape and `transformers` opens it.
    """

    layers: float | None = None
    heads: float | None = None
    ffn: float | None = None
    weights: float | None = None
    strategy: Strategy = "auto"
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
        self.check_range(1, math.inf, "max_examples")
        self.check_range(0, math.inf, "seed")

    @property
    def part(self) -> Part:
        """The part that is pruned."""
        return next(part for part in STRATEGIES if getattr(self, part) is not None)

    @property
    def amount(self) -> float:
        """How much of it is removed."""
        return float(getattr(self, self.part))

    def resolve(self, has_data: bool) -> "PruningConfig":
        """Return the config with its strategy chosen; raise if it needs data and there are none."""
        strategies = STRATEGIES[self.part]
        strategy = self.strategy
        if strategy == "auto":
            strategy = strategies[0] if has_data else strategies[-2]
        if strategy in NEEDS_DATA and not has_data:
            others = " or ".join(repr(name) for name in strategies if name not in NEEDS_DATA)
            raise ConfigError(
                f"pruning {self.part} by {strategy} needs `data`: examples of the model's task, or texts; "
                f"or set `strategy` to {others}"
            )
        return self.replace(strategy=strategy)

    def num_removed(self, total: int) -> int:
        """Return how many of `total` are removed; raise if none would stay."""
        count = round(self.amount * total) if self.amount < 1 else int(self.amount)
        if count >= total and total:
            noun = {"heads": "heads of a layer", "ffn": "units of a layer"}.get(self.part, self.part)
            raise ConfigError(f"`{self.part}` is {self.amount:g}, which removes {count} of {total} {noun}: keep one")
        return count

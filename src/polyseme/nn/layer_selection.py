"""Which layers of a trunk make up a vector, and how they are combined.

The names are those of the feature-based experiments of Devlin et al. 2019 (§5.3, table 7) and Peters et al. 2018
(§3.2). Layer 0 is the embeddings, layer 1 the first layer above them.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, Self

import torch
from torch import Tensor

from polyseme.errors import ConfigError, suggest

Combination = Literal["sum", "concat", "mix", "stack"]

_LAST_4 = (-4, -3, -2, -1)
# Name: layers (negative: from the top; "layers": all but the embeddings; "all": all), and how they are combined.
_NAMED: dict[str, tuple[tuple[int, ...] | Literal["layers", "all"], Combination]] = {
    "embeddings": ((0,), "sum"),
    "last": ((-1,), "sum"),
    "second_to_last": ((-2,), "sum"),
    "sum_last_4": (_LAST_4, "sum"),
    "concat_last_4": (_LAST_4, "concat"),
    "sum_all": ("layers", "sum"),
    "scalar_mix": ("all", "mix"),
    "scalar_mix_last_4": (_LAST_4, "mix"),
    "all": ("all", "stack"),
}
LAYER_SELECTIONS = tuple(_NAMED)
FEATURE_SELECTIONS = tuple(name for name in _NAMED if name != "all")  # those that a network over features can use


@dataclass(frozen=True)
class LayerSelection:
    """A named choice of layers, or a single layer by its number.

    `sum` adds the layers (a single layer is a sum of one), `concat` joins them along the last axis, `mix` leaves them
    to a learned weighted sum (ELMo's scalar mix), and `stack` keeps them on an axis of their own.
    """

    name: str
    combination: Combination

    @classmethod
    def parse(cls, value: str | int) -> Self:
        """From a name such as `sum_last_4`, or a layer number (0 is the embeddings)."""
        name = str(value)
        if name in _NAMED:
            return cls(name, _NAMED[name][1])
        if name.isdigit():
            return cls(name, "sum")
        raise ConfigError(f"unknown layers {name!r}: a layer number or a name; {suggest(name, _NAMED)}")

    def indices(self, num_layers: int, has_embeddings: bool = True) -> list[int]:
        """The numbers of the selected layers in a trunk of `num_layers` layers.

        `has_embeddings` is False for models whose embeddings belong to no word, such as character language models.
        """
        layers = [int(self.name)] if self.name.isdigit() else _NAMED[self.name][0]
        if layers == "all":
            return list(range(not has_embeddings, num_layers + 1))
        if layers == "layers":
            layers = list(range(1, num_layers + 1)) or [-1]
        if self.name == "last" and not num_layers:
            layers = [0]  # a table of word vectors has nothing above it
        if max(layers) > num_layers or -min(layers) > num_layers:
            needed = max(max(layers), -min(layers))
            raise ConfigError(f"layers {self.name!r} needs {needed} layers, but the model has {num_layers}")
        if 0 in layers and not has_embeddings:
            reason = "the model reads characters, so words have no embeddings; use 'last'"
            raise ConfigError(f"layers {self.name!r}: {reason}")
        return [index + num_layers + 1 if index < 0 else index for index in layers]

    def combine(self, states: Sequence[Tensor]) -> Tensor:
        """Combine the states of the selected layers, [tokens, dim] each; a mix needs the weights of a task."""
        if self.combination == "concat":
            return torch.cat(list(states), dim=-1)
        self.check_dims([state.shape[-1] for state in states])
        if self.combination == "mix":
            raise ConfigError(f"layers {self.name!r} have weights that a task learns: use 'sum_all', or fine-tune")
        return torch.stack(list(states)).sum(0) if self.combination == "sum" else torch.stack(list(states), dim=1)

    def check_dims(self, dims: Sequence[int]) -> None:
        """Raise if layers to be added, mixed or stacked differ in size."""
        if len(set(dims)) > 1 and self.combination != "concat":
            raise ConfigError(f"layers {self.name!r} have {list(dims)} dimensions; use one layer, or 'concat_last_4'")

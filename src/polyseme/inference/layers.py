"""Which layers of a model make its vectors, and how the tokens of a word make one."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor

from polyseme.errors import ConfigError

LAYER_SELECTIONS = ("embeddings", "last", "second_to_last", "sum_last_4", "concat_last_4", "sum_all", "all")


def select_layers(layers: str | int, depth: int) -> tuple[list[int], Any]:
    """Which states of a model of this depth are asked for, and how they become one."""
    all_layers, selection = list(range(depth + 1)), str(layers)
    inner_layers = all_layers[1:] or all_layers  # of a table of word vectors there is nothing above it
    last_four = inner_layers[-4:]

    def check_same_size(states: list[Tensor]) -> list[Tensor]:
        sizes = [state.shape[-1] for state in states]
        if len(set(sizes)) > 1:
            raise ConfigError(f"layers is {selection!r}, but their sizes are {sizes}: choose one, or concat_last_4")
        return states

    def sum_layers(states: list[Tensor]) -> Tensor:
        return torch.stack(check_same_size(states)).sum(0)

    def stack_layers(states: list[Tensor]) -> Tensor:
        return torch.stack(check_same_size(states), dim=1)

    selections: dict[str, tuple[list[int], Any]] = {
        "embeddings": ([0], sum_layers),
        "last": ([depth], sum_layers),
        "second_to_last": ([max(depth - 1, 0)], sum_layers),
        "sum_last_4": (last_four, sum_layers),
        "concat_last_4": (last_four, lambda states: torch.cat(states, dim=-1)),
        "sum_all": (inner_layers, sum_layers),
        "all": (all_layers, stack_layers),
    }
    if selection in selections:
        return selections[selection]
    if selection.isdigit() and int(selection) <= depth:
        return [int(selection)], sum_layers
    raise ConfigError(f"layers is {selection!r}; expected {', '.join(LAYER_SELECTIONS)} or a number from 0 to {depth}")


def mean_per_word(vectors: np.ndarray, word_starts: np.ndarray) -> np.ndarray:
    """The mean over each word's pieces."""
    sizes = np.diff(np.append(word_starts, len(vectors)))
    return np.add.reduceat(vectors, word_starts, axis=0) / sizes.reshape(-1, *[1] * (vectors.ndim - 1))

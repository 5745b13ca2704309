"""The interface of all pre-training objectives."""

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor

from polyseme.config import Config
from polyseme.corpus.store import Corpus
from polyseme.errors import ConfigError
from polyseme.nn.model import Model, ModelConfig
from polyseme.objectives.losses import compute_losses, evaluate_batch, evaluate_sparse_batch
from polyseme.objectives.packing import BatchBuilder, SpecialIds


@dataclass(frozen=True, eq=False)
class ObjectiveLoss:
    """The loss of an objective: summed terms of a batch, and the models that run in it without being trained."""

    fn: Callable[[Model, Any], dict[str, Tensor]] = compute_losses
    frozen_models: tuple[Model, ...] = ()


class Objective(Config, ABC):
    """What a model is trained to predict. A subclass is a frozen dataclass, part of a recipe.

    `check` says which models it can train. `bind` returns the builder of its batches for a corpus, each a pure function
    of sample ids and epoch. `build_loss` returns the function from a model and a batch to summed loss terms.
    """

    needs_source: ClassVar[bool] = False  # batches have a source and a target
    needs_query_stream: ClassVar[bool] = False  # batches have a query stream
    needs_hybrid: ClassVar[bool] = False  # some batches are read left to right, others in both directions
    needs_bounded_memory: ClassVar[bool] = False  # a batch continues the one before it: each step has the same streams
    is_sparse: ClassVar[bool] = False  # heads compute gradients of table rows, for sparse updates
    has_static_shapes: ClassVar[bool] = False  # shapes recur without padding, so CUDA graphs can be captured

    @property
    def min_micro_batches(self) -> int:
        """The fewest micro-batches that a step can have."""
        return 1

    @property
    @abstractmethod
    def terms(self) -> tuple[str, ...]:
        """The heads that it trains; the first one predicts tokens."""

    @property
    def predicted_fraction(self) -> float:
        """The expected share of the tokens that are predicted."""
        return 1.0

    def max_input_len(self, max_len: int) -> int:
        """Return the length of the longest sequence in its batches."""
        return max_len

    def full_lengths(self, max_len: int) -> tuple[int, int]:
        """Return the lengths of target and source of a sample of the maximum length; without a source, that is 0."""
        return max_len, max_len if self.needs_source else 0

    def check(self, model: ModelConfig, max_len: int) -> None:
        """Raise if the objective cannot train this model with sequences of this length."""
        trunk, name, family = model.trunk, type(self).__name__, model.family
        if self.needs_hybrid and not trunk.is_hybrid:
            raise ConfigError(f"{name} needs a trunk that reads in one or both directions, as that of gpt-bert can")
        if trunk.is_hybrid and not self.needs_hybrid:
            advice = "its causal_fraction 0 is masked LM only, and 1 causal LM only"
            raise ConfigError(f"{family} is trained by HybridLM instead of {name}; {advice}")
        if missing := [term for term in self.terms if term not in model.heads]:
            raise ConfigError(f"{name} needs a head {missing[0]!r}, which {family} does not have")
        if self.needs_source and not trunk.has_source:
            raise ConfigError(f"{name} needs an encoder-decoder, and {family} is none")
        if trunk.has_source and not self.needs_source:
            raise ConfigError(f"{family} is an encoder-decoder, and {name} has no source for it")
        if self.needs_query_stream and not trunk.has_query_stream:
            raise ConfigError(f"{name} needs a query stream, which {family} does not have; xlnet has one")
        if trunk.has_query_stream and not self.needs_query_stream:
            raise ConfigError(f"{family} predicts tokens by its query stream, which {name} does not train")
        if self.needs_bounded_memory and not trunk.has_bounded_memory:
            raise ConfigError(f"{name} needs a memory of fixed size, which {family} does not have with this config")
        limit, longest = trunk.embeddings.max_len, self.max_input_len(max_len)
        if longest > limit:
            drawn = f" (segments have up to {longest} tokens)" if longest > max_len else ""
            raise ConfigError(f"max_len is {max_len}{drawn}, longer than the {limit} tokens that the model reads")

    @abstractmethod
    def bind(self, corpus: Corpus, special_ids: SpecialIds, max_len: int, seed: int = 0) -> BatchBuilder:
        """Return the builder of its batches for a corpus and a vocabulary."""

    def build_loss(self, device: torch.device, dtype: torch.dtype) -> ObjectiveLoss:
        """Return its loss, with everything that belongs to it on a device."""
        return ObjectiveLoss()

    def evaluate(self, model: Model, batch: Any) -> dict[str, tuple[float, int, int]]:
        """Return (summed loss, number of correct predictions, count) of each term of a batch."""
        return (evaluate_sparse_batch if self.is_sparse else evaluate_batch)(model, batch)


def check_probability(name: str, value: float) -> None:
    """Raise if a value is not a probability."""
    if not 0 <= value <= 1:
        raise ConfigError(f"{name} is {value}, expected a value from 0 to 1")


def text_capacity(max_len: int, num_special_tokens: int, min_tokens: int) -> int:
    """Return the number of tokens left for text beside the special tokens."""
    if max_len < (minimum := num_special_tokens + min_tokens):
        raise ConfigError(f"max_len is {max_len}, expected {minimum} or more: {num_special_tokens} are special tokens")
    return max_len - num_special_tokens

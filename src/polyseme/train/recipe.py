"""A Recipe says everything about one run; it is saved beside the run's result."""

from __future__ import annotations

import math
import re
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, Literal, get_type_hints

from polyseme.config import Config, parse_value
from polyseme.errors import ConfigError, suggest
from polyseme.families import FAMILIES
from polyseme.nn.model import ModelConfig, build_meta
from polyseme.nn.trunks.encoder_decoder import EncoderDecoderConfig
from polyseme.objectives.distillation import Distillation
from polyseme.objectives.glove import GloVe
from polyseme.objectives.permutation_lm import PermutationLM
from polyseme.objectives.span_corruption import SpanCorruption
from polyseme.objectives.specs import MaskedLM, Objective
from polyseme.objectives.streaming_lm import StreamingCausalLM
from polyseme.objectives.translation import Translation
from polyseme.objectives.word2vec import Word2Vec
from polyseme.train.optimizer import OptimizerConfig
from polyseme.train.schedule import ScheduleConfig


@dataclass(frozen=True)
class BudgetConfig(Config):
    """How long: the first of these that is not zero. Minutes become steps by a short calibration, and by the clock."""

    steps: int = 0
    tokens: int = 0
    minutes: float = 0.0

    def __post_init__(self) -> None:
        self.check_range(0, math.inf, "steps", "tokens", "minutes")

    @property
    def is_wall_clock(self) -> bool:
        return not (self.steps or self.tokens)

    @classmethod
    def parse(cls, text: str) -> BudgetConfig:
        """From `20m`, `1h30m`, `90s`, `500steps` or `1e9tokens`."""
        if match := re.fullmatch(r"([\d.e]+)(steps|tokens)", text):
            number, unit = match.groups()
            with suppress(ValueError, OverflowError):
                return cls(**{unit: int(float(number))})
        match = re.fullmatch(r"(?:([\d.]+)h)?(?:([\d.]+)m)?(?:([\d.]+)s)?", text)
        with suppress(ValueError):
            hours, minutes, seconds = (float(part or 0) for part in (match.groups() if match else (0, 0, 0)))
            if total_minutes := 60 * hours + minutes + seconds / 60:
                return cls(minutes=total_minutes)
        raise ConfigError(f"a budget is a time such as 20m, 1h30m or 90s, or 500steps or 1e9tokens, not {text!r}")


@dataclass(frozen=True)
class Recipe(Config):
    """One pre-training run. `model` holds arguments of the family's trunk; its vocabulary is the corpus's.

    A step reads `batch_tokens`, in micro-batches of `micro_batch_tokens`; over the first `batch_warmup_steps` steps it grows to that from one
    micro-batch. A share `valid_fraction` of the documents, spread evenly over the corpus, is kept for validation.
    """

    name: str
    family: str
    size: str = ""
    model: dict[str, int | float | str | bool] = field(default_factory=dict)
    objective: Objective | Distillation = field(default_factory=MaskedLM)
    max_len: int = 128
    batch_tokens: int = 16384
    micro_batch_tokens: int = 16384
    batch_warmup_steps: int = 0
    budget: BudgetConfig = field(default_factory=lambda: BudgetConfig(steps=1000))
    optimizer: OptimizerConfig = field(default_factory=OptimizerConfig)
    schedule: ScheduleConfig = field(default_factory=ScheduleConfig)
    seed: int = 0
    precision: Literal["auto", "float32", "bf16"] = "auto"
    compile: bool = False
    gradient_checkpointing: bool = False  # less memory, a third more work: blocks run again backwards
    valid_fraction: float = 0.01
    eval_every: int = 500
    eval_tokens: int = 65536
    save_every: int = 500
    keep_checkpoints: int = 2
    num_averaged: int = 0  # the model is the mean of so many last checkpoints; 0 is the last weights
    log_every: int = 10

    def model_config(self, vocab_size: int, target_vocab_size: int = 0) -> ModelConfig:
        """The model, its heads those that the objective trains; where the target side has a vocabulary, with that."""
        if self.family not in FAMILIES:
            raise ConfigError(f"unknown family {self.family!r}; {suggest(self.family, FAMILIES)}")
        family = FAMILIES[self.family]
        arguments = get_type_hints(family.trunk_config)
        del arguments["return"]
        changes: dict[str, Any] = {"vocab_size": vocab_size}
        if target_vocab_size:
            if "target_vocab_size" not in arguments:
                raise ConfigError(f"{self.family} has one vocabulary, and the corpus has two")
            changes["target_vocab_size"] = target_vocab_size
        for key, value in self.model.items():
            if key not in arguments:
                raise ConfigError(f"unknown key {key!r} in model; {suggest(key, arguments)}")
            changes.setdefault(key, parse_value(arguments[key], value, f"model.{key}"))
        config = family.model_config(self.size or None, **changes)
        ModelConfig.from_json(config.to_json(), "model")  # every value is of its type
        try:
            family.to_hf_config(config)
        except KeyError as error:
            raise ConfigError(
                f"{self.family} has no published name for {error}, so its folder could not be saved"
            ) from None
        build_meta(config)
        if missing_heads := [name for name in self.objective.terms if name not in config.heads]:
            raise ConfigError(
                f"{type(self.objective).__name__} needs a head {missing_heads[0]!r}, which {self.family} has not"
            )
        self._check_objective(config)
        if "pair" in self.objective.terms and config.trunk.num_segments == 1:
            raise ConfigError("num_segments is 1, but pairs have two segments: give 2, or 0 for none")
        max_positions, max_seqlen = config.trunk.embeddings.max_len, self.max_len
        if isinstance(self.objective, StreamingCausalLM):
            max_seqlen = self.objective.max_segment_len(self.max_len)
        if max_seqlen > max_positions:
            detail = f", of which segments have up to {max_seqlen} tokens," if max_seqlen > self.max_len else ""
            raise ConfigError(f"max_len {self.max_len}{detail} is longer than the model reads ({max_positions})")
        return config.replace(heads={name: config.heads[name] for name in self.objective.terms})

    def _check_objective(self, config: ModelConfig) -> None:
        """Whether the trunk can be read as the objective wants it."""
        name = type(self.objective).__name__
        is_seq2seq = isinstance(config.trunk, EncoderDecoderConfig)
        if is_seq2seq != isinstance(self.objective, SpanCorruption | Translation):
            expected_input = "a source and a target" if is_seq2seq else "one text"
            raise ConfigError(f"{self.family} reads {expected_input}, which is not what {name} gives it")
        if isinstance(self.objective, Word2Vec | GloVe) != self.optimizer.is_sparse:
            expected_optimizers = (
                "'sparse_sgd' or 'sparse_adagrad'" if not self.optimizer.is_sparse else "'adamw', 'muon' or 'nt_asgd'"
            )
            raise ConfigError(
                f"optimizer.name is {self.optimizer.name!r}, but {name} is trained by {expected_optimizers}"
            )
        if isinstance(self.objective, PermutationLM) and not config.trunk.has_query_stream:
            raise ConfigError(f"{name} needs a query stream, which {self.family} has not; {suggest('xlnet', FAMILIES)}")
        if isinstance(self.objective, StreamingCausalLM) and not config.trunk.has_bounded_memory:
            raise ConfigError(f"{name} needs a memory of a set length: {self.family} as it is given here has none")
        if isinstance(self.objective, StreamingCausalLM) and self.batch_warmup_steps:
            raise ConfigError(
                f"{name} reads the same lanes at every step: batch_warmup_steps is {self.batch_warmup_steps}, expected 0"
            )
        if self.compile and not config.trunk.supports_static_shape:
            raise ConfigError(f"compile is for models of one shape, and {self.family} works by lengths: leave it false")

    def check(self) -> Recipe:
        """Itself, if its numbers fit each other."""
        self.check_range(1, math.inf, "max_len", "batch_tokens", "micro_batch_tokens")
        self.check_range(1, math.inf, "eval_every", "save_every", "log_every", "keep_checkpoints")
        self.check_range(0, math.inf, "num_averaged", "batch_warmup_steps")
        self.check_range(0, 1, "valid_fraction")
        if self.micro_batch_tokens < self.max_len:
            raise ConfigError(f"micro_batch_tokens {self.micro_batch_tokens} is smaller than max_len {self.max_len}")
        if self.batch_tokens % self.micro_batch_tokens:
            raise ConfigError(
                f"batch_tokens {self.batch_tokens} is not a multiple of micro_batch_tokens {self.micro_batch_tokens}"
            )
        if self.optimizer.lr <= 0:
            raise ConfigError(f"optimizer.lr is {self.optimizer.lr}, which is not above 0")
        if self.optimizer.name == "nt_asgd" and not self.valid_fraction:
            raise ConfigError("nt_asgd is triggered by the loss on held-out text: valid_fraction is 0")
        if self.optimizer.name == "nt_asgd" and self.num_averaged:
            raise ConfigError(f"nt_asgd has a mean of its own: num_averaged is {self.num_averaged}, expected 0")
        if not any((self.budget.steps, self.budget.tokens, self.budget.minutes)):
            raise ConfigError("the budget is empty: set budget.steps, budget.tokens or budget.minutes")
        return self

"""A Recipe says everything about one run; it is saved beside the run's result."""

from __future__ import annotations

import math
import re
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, Literal, get_type_hints

from polyseme.config import Spec, read_value
from polyseme.errors import UserError, nearest
from polyseme.families import FAMILIES
from polyseme.nn.model import ModelSpec, outline
from polyseme.nn.trunks.encoder_decoder import EncoderDecoderSpec
from polyseme.objectives.distillation import Distilled
from polyseme.objectives.glove import Counts
from polyseme.objectives.permutation_lm import PermutationLM
from polyseme.objectives.span_corruption import SpanCorruption
from polyseme.objectives.specs import MaskedLM, Objective
from polyseme.objectives.streaming_lm import SegmentLM
from polyseme.objectives.translation import Translation
from polyseme.objectives.word2vec import Windows
from polyseme.train.optimizer import OptimSpec
from polyseme.train.schedule import ScheduleSpec


@dataclass(frozen=True)
class BudgetSpec(Spec):
    """How long: the first of these that is not zero. Minutes become steps by a short calibration, and by the clock."""

    steps: int = 0
    tokens: int = 0
    minutes: float = 0.0

    def __post_init__(self) -> None:
        self.within(0, math.inf, "steps", "tokens", "minutes")

    @property
    def timed(self) -> bool:
        return not (self.steps or self.tokens)

    @classmethod
    def parse(cls, text: str) -> BudgetSpec:
        """From `20m`, `1h30m`, `90s`, `500steps` or `1e9tokens`."""
        if found := re.fullmatch(r"([\d.e]+)(steps|tokens)", text):
            number, unit = found.groups()
            with suppress(ValueError, OverflowError):
                return cls(**{unit: int(float(number))})
        found = re.fullmatch(r"(?:([\d.]+)h)?(?:([\d.]+)m)?(?:([\d.]+)s)?", text)
        with suppress(ValueError):
            hours, minutes, seconds = (float(part or 0) for part in (found.groups() if found else (0, 0, 0)))
            if total := 60 * hours + minutes + seconds / 60:
                return cls(minutes=total)
        raise UserError(f"a budget is a time such as 20m, 1h30m or 90s, or 500steps or 1e9tokens, not {text!r}")


@dataclass(frozen=True)
class Recipe(Spec):
    """One pre-training run. `model` holds arguments of the family's trunk; its vocabulary is the corpus's.

    A step reads `batch_tokens`, in micro-batches of `bin_tokens`; over the first `ramp` steps it grows to that from one
    micro-batch. A share `holdout` of the documents, spread evenly over the corpus, is kept for validation.
    """

    name: str
    family: str
    size: str = ""
    model: dict[str, int | float | str | bool] = field(default_factory=dict)
    objective: Objective | Distilled = field(default_factory=MaskedLM)
    max_len: int = 128
    batch_tokens: int = 16384
    bin_tokens: int = 16384
    ramp: int = 0
    budget: BudgetSpec = field(default_factory=lambda: BudgetSpec(steps=1000))
    optim: OptimSpec = field(default_factory=OptimSpec)
    schedule: ScheduleSpec = field(default_factory=ScheduleSpec)
    seed: int = 0
    precision: Literal["auto", "float32", "bf16"] = "auto"
    compile: bool = False
    recompute: bool = False  # less memory, a third more work: blocks run again backwards
    holdout: float = 0.01
    eval_every: int = 500
    eval_tokens: int = 65536
    save_every: int = 500
    keep: int = 2
    average: int = 0  # the model is the mean of so many last checkpoints; 0 is the last weights
    log_every: int = 10

    def model_spec(self, vocab_size: int, target_vocab_size: int = 0) -> ModelSpec:
        """The model, its heads those that the objective trains; where the target side has a vocabulary, with that."""
        if self.family not in FAMILIES:
            raise UserError(f"unknown family {self.family!r}; {nearest(self.family, FAMILIES)}")
        family = FAMILIES[self.family]
        arguments = get_type_hints(family.trunk)
        del arguments["return"]
        changes: dict[str, Any] = {"vocab_size": vocab_size}
        if target_vocab_size:
            if "target_vocab_size" not in arguments:
                raise UserError(f"{self.family} has one vocabulary, and the corpus has two")
            changes["target_vocab_size"] = target_vocab_size
        for key, value in self.model.items():
            if key not in arguments:
                raise UserError(f"unknown key {key!r} in model; {nearest(key, arguments)}")
            changes.setdefault(key, read_value(arguments[key], value, f"model.{key}"))
        spec = family.spec(self.size or None, **changes)
        ModelSpec.from_json(spec.to_json(), "model")  # every value is of its type
        try:
            family.to_config(spec)
        except KeyError as error:
            raise UserError(
                f"{self.family} has no published name for {error}, so its folder could not be saved"
            ) from None
        outline(spec)
        if unfit := [name for name in self.objective.terms if name not in spec.heads]:
            raise UserError(f"{type(self.objective).__name__} needs a head {unfit[0]!r}, which {self.family} has not")
        self._check_reading(spec)
        if "pair" in self.objective.terms and spec.trunk.num_segments == 1:
            raise UserError("num_segments is 1, but pairs have two segments: give 2, or 0 for none")
        limit, most = spec.trunk.embeddings.max_len, self.max_len
        if isinstance(self.objective, SegmentLM):
            most = self.objective.most(self.max_len)
        if most > limit:
            drawn = f", of which segments have up to {most} tokens," if most > self.max_len else ""
            raise UserError(f"max_len {self.max_len}{drawn} is longer than the model reads ({limit})")
        return spec.replace(heads={name: spec.heads[name] for name in self.objective.terms})

    def _check_reading(self, spec: ModelSpec) -> None:
        """Whether the trunk can be read as the objective wants it."""
        name = type(self.objective).__name__
        paired = isinstance(spec.trunk, EncoderDecoderSpec)
        if paired != isinstance(self.objective, SpanCorruption | Translation):
            reads = "a source and a target" if paired else "one text"
            raise UserError(f"{self.family} reads {reads}, which is not what {name} gives it")
        if isinstance(self.objective, Windows | Counts) != self.optim.by_rows:
            methods = "'rows' or 'adagrad'" if not self.optim.by_rows else "'adamw', 'muon' or 'nt_asgd'"
            raise UserError(f"optim.method is {self.optim.method!r}, but {name} is trained by {methods}")
        if isinstance(self.objective, PermutationLM) and not spec.trunk.stream:
            raise UserError(f"{name} needs a query stream, which {self.family} has not; {nearest('xlnet', FAMILIES)}")
        if isinstance(self.objective, SegmentLM) and not spec.trunk.remembers:
            raise UserError(f"{name} needs a memory of a set length: {self.family} as it is given here has none")
        if isinstance(self.objective, SegmentLM) and self.ramp:
            raise UserError(f"{name} reads the same lanes at every step: ramp is {self.ramp}, expected 0")
        if self.compile and not spec.trunk.one_shape:
            raise UserError(f"compile is for models of one shape, and {self.family} works by lengths: leave it false")

    def check(self) -> Recipe:
        """Itself, if its numbers fit each other."""
        self.within(1, math.inf, "max_len", "batch_tokens", "bin_tokens")
        self.within(1, math.inf, "eval_every", "save_every", "log_every", "keep")
        self.within(0, math.inf, "average", "ramp")
        self.within(0, 1, "holdout")
        if self.bin_tokens < self.max_len:
            raise UserError(f"bin_tokens {self.bin_tokens} is smaller than max_len {self.max_len}")
        if self.batch_tokens % self.bin_tokens:
            raise UserError(f"batch_tokens {self.batch_tokens} is not a multiple of bin_tokens {self.bin_tokens}")
        if self.optim.rate <= 0:
            raise UserError(f"optim.rate is {self.optim.rate}, which is not above 0")
        if self.optim.method == "nt_asgd" and not self.holdout:
            raise UserError("nt_asgd is triggered by the loss on held-out text: holdout is 0")
        if self.optim.method == "nt_asgd" and self.average:
            raise UserError(f"nt_asgd has a mean of its own: average is {self.average}, expected 0")
        if not any((self.budget.steps, self.budget.tokens, self.budget.minutes)):
            raise UserError("the budget is empty: set budget.steps, budget.tokens or budget.minutes")
        return self

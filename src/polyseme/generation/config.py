"""How text is generated: greedy decoding, sampling, or beam search."""

import dataclasses
import math
from collections.abc import Mapping
from dataclasses import dataclass
from numbers import Integral, Real
from typing import Any, Self

from polyseme.config import Config
from polyseme.errors import ConfigError, suggest
from polyseme.io.limits import MAX_INTEGER, MAX_SEQUENCES, MIN_INTEGER

_SAMPLING = ("temperature", "top_k", "top_p")
_BEAM_OPTIONS = ("length_penalty", "length_offset", "patience")
_TYPES: dict[type, tuple[type, str]] = {  # of a default: the type of other values, those of numpy too, and its name
    bool: (bool, "True or False"),
    int: (Integral, "an integer"),
    float: (Real, "a number"),
}


def _check_types(config_type: type[Config], values: Mapping[str, Any]) -> None:
    """Raise `ConfigError` for the value of a field that is not of the type of its default."""
    default_types = {field.name: type(field.default) for field in dataclasses.fields(config_type)}
    for name, value in values.items():
        expected, description = _TYPES[default_types[name]]
        if not isinstance(value, expected) or isinstance(value, bool) != (expected is bool):
            raise ConfigError(f"{name} is {value!r}, expected {description}")


@dataclass(frozen=True)
class SamplingConfig(Config):
    """How the next token is chosen from the model's distribution; temperature 0 takes the most likely one.

    Applied in this order: `repetition_penalty` above 1 lowers the scores of tokens that occur in the text already
    (Keskar et al. 2019, §4.1); `temperature` divides the scores; `top_k` keeps the k most likely tokens (0: all);
    `top_p` keeps the smallest set with cumulative probability ≥ p (nucleus sampling, Holtzman et al. 2020, §3.1).
    """

    temperature: float = 1.0
    top_k: int = 0
    top_p: float = 1.0
    repetition_penalty: float = 1.0
    seed: int = 0

    def __post_init__(self) -> None:
        _check_types(type(self), vars(self))
        self.check_range(0, math.inf, "temperature", "top_k")
        self.check_range(MIN_INTEGER, MAX_INTEGER, "seed")
        if not 0 < self.top_p <= 1:
            raise ConfigError(f"top_p is {self.top_p}, expected a probability above 0 and at most 1")
        if not 0 < self.repetition_penalty < math.inf:
            raise ConfigError(f"repetition_penalty is {self.repetition_penalty}, expected a number above 0")


GREEDY = SamplingConfig(temperature=0.0)


@dataclass(frozen=True)
class GenerationConfig(Config):
    """The options of text generation, named as in `transformers`.

    Greedy decoding by default; `do_sample` draws tokens, with the options of `SamplingConfig`; `num_beams` searches a
    beam of that width, whose scores of n tokens are divided by ((c + n) / (c + 1)) to the power of `length_penalty`,
    where c is `length_offset`, and which stops when `num_beams × patience` texts are complete (0: when no better text
    can follow).
    """

    max_new_tokens: int = 100  # 0: twice the length of the source and 20
    do_sample: bool = False
    temperature: float = 1.0
    top_k: int = 0
    top_p: float = 1.0
    repetition_penalty: float = 1.0
    seed: int = 0
    num_return_sequences: int = 1
    num_beams: int = 0
    length_penalty: float = 1.0
    length_offset: float = 0.0
    patience: float = 0.0

    def __post_init__(self) -> None:
        _check_types(type(self), vars(self))
        self.check_range(1, math.inf, "num_return_sequences")
        self.check_range(0, math.inf, "max_new_tokens", "num_beams")
        self.check_range(0, MAX_SEQUENCES, "num_return_sequences", "num_beams")
        self.check_range(0, math.inf, "length_offset")
        _ = self.sampling  # checks its ranges
        if self.num_beams:
            self._check_unused(
                "num_beams is set: beam search does not sample", ("do_sample", "repetition_penalty", *_SAMPLING)
            )
            if self.num_return_sequences > self.num_beams:
                raise ConfigError(
                    f"num_return_sequences is {self.num_return_sequences}, more than num_beams {self.num_beams}"
                )
            return
        self._check_unused("num_beams is 0", _BEAM_OPTIONS)
        if not self.do_sample:
            self._check_unused("do_sample is false", (*_SAMPLING, "seed", "num_return_sequences"))

    def _check_unused(self, reason: str, names: tuple[str, ...]) -> None:
        defaults = {field.name: field.default for field in dataclasses.fields(self)}
        for name in names:
            if getattr(self, name) != defaults[name]:
                raise ConfigError(f"{name} is {getattr(self, name)!r}, which has no effect: {reason}")

    @property
    def sampling(self) -> SamplingConfig:
        """How each token is chosen."""
        temperature = self.temperature if self.do_sample else 0.0
        return SamplingConfig(temperature, self.top_k, self.top_p, self.repetition_penalty, self.seed)

    @classmethod
    def from_options(cls, base: Self | None, options: Mapping[str, Any]) -> Self:
        """The base config, or the default one, with options replaced.

        A temperature, `top_k`, `top_p`, or several sequences without beams imply `do_sample`.
        """
        if base is not None and not isinstance(base, cls):
            raise ConfigError(f"the config is {base!r}, expected a {cls.__name__}, or its fields as options")
        names = [field.name for field in dataclasses.fields(cls)]
        for name in options:
            if name not in names:
                raise ConfigError(f"unknown generation option {name!r}; {suggest(name, names)}")
        _check_types(cls, options)
        base = base or cls()
        num_beams = options.get("num_beams", base.num_beams)
        if base.num_beams and not num_beams:  # greedy decoding, which the defaults of a beam do not apply to
            base = dataclasses.replace(base, num_beams=0, **{name: getattr(cls(), name) for name in _BEAM_OPTIONS})
        is_sampled = any(name in options for name in _SAMPLING) or options.get("num_return_sequences", 1) > 1
        implied = {"do_sample": True} if is_sampled and not num_beams else {}
        return dataclasses.replace(base, **{**implied, **options})


# Vaswani et al. 2017, §6.1: a beam of 4 and Wu et al.'s length penalty (2016, §7) with α 0.6
TRANSLATION = GenerationConfig(max_new_tokens=0, num_beams=4, length_penalty=0.6, length_offset=5.0)

"""Templates that write tasks as text, for families that answer in text (Raffel et al. 2020, §2.4): data alone.

Prefixes, field names and label words are those of appendix D of the paper where it has them, so that published models
are asked in the form they were trained on. Texts that our examples join remain joined: COPA's question follows its
premise, MultiRC's answer its question, ReCoRD's query its passage, and WiC's word precedes its first sentence.
"""

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, Self

from polyseme.config import Config
from polyseme.errors import ConfigError

NUM_VALUE_STEPS = 25  # steps that the range of numbers is divided into


@dataclass(frozen=True)
class TextToTextTemplate(Config):
    """A template with {fields} of an example; `label_words` are what is written for labels, by default themselves.

    A choice is answered by its name (choice1, choice2 …, or its word) or by its text. Numbers are written to the
    nearest `step` from `low` to `high`. A target starts with `decoder_start_token`.
    """

    template: str
    label_words: dict[str, str] = field(default_factory=dict)
    answer_with: Literal["name", "text"] = "name"
    low: float = 0.0
    high: float = 0.0
    step: float = 0.0
    decoder_start_token: Literal["bos", "pad"] = "pad"

    def __post_init__(self) -> None:
        if not re.search(r"\{\w+\}$", self.template):
            raise ConfigError(f"the template {self.template!r} has to end in a field, for example {{text}}")

    @classmethod
    def find(cls, name: str, fields: str) -> "TextToTextTemplate":
        """Return the template of a data set; of another name, that name before the fields of the task."""
        return T5_TEMPLATES.get(name) or TextToTextTemplate(f"{name.rpartition('/')[2]} {fields}")

    @property
    def fields(self) -> list[tuple[str, str]]:
        """The words before each field, and the field's name."""
        return re.findall(r"(.*?)\{(\w+)\}", self.template)

    def render_parts(self, example: Any) -> list[tuple[str, str]]:
        """Return the example's texts, each with the words before it; one that is missing is left out with its words."""
        parts: list[tuple[str, str]] = []
        for before, name in self.fields:
            value = getattr(example, name)
            if isinstance(value, tuple):
                for i, choice in enumerate(value):
                    label = f"choice{i + 1}:" if self.answer_with == "name" else "," if i else ""
                    parts.append((label if i else before + label, choice))
            elif value is not None:
                parts.append((before, value))
        return [(before.strip(), text) for before, text in parts]

    def choice_answers(self, choices: Sequence[str]) -> list[str]:
        """Return what is written for each choice."""
        if self.answer_with == "text":
            return list(choices)
        return [self.label_words.get(str(i), f"choice{i + 1}") for i in range(len(choices))]

    @property
    def number_texts(self) -> list[str]:
        """Every number that can be written."""
        first, last = (round(value / self.step) for value in (self.low, self.high))
        digits = max(0, -math.floor(math.log10(self.step) + 1e-9))
        return [f"{i * self.step:.{digits}f}" for i in range(first, last + 1)]

    def nearest_number_index(self, number: float) -> int:
        """Return which of `number_texts` is the nearest."""
        first, last = (round(value / self.step) for value in (self.low, self.high))
        return min(max(round(number / self.step), first), last) - first

    def with_range(self, low: float, high: float) -> Self:
        """Return the template with a range of numbers, in about 25 steps of 1, 2 or 5 times a power of ten."""
        raw = (high - low) / NUM_VALUE_STEPS or 1.0
        power = 10.0 ** math.floor(math.log10(raw))
        step = min((n * power for n in (1, 2, 5, 10)), key=lambda size: abs(math.log(size / raw)))
        return self.replace(low=low, high=high, step=step)


_FOLLOWS = {"0": "not_entailment", "1": "entailment"}
_EQUIVALENT = {"0": "not_equivalent", "1": "equivalent"}
_TRUE = {"false": "False", "true": "True", "0": "False", "1": "True", "F": "False", "T": "True"}
_WIC = TextToTextTemplate("wic sentence1: {text} sentence2: {pair}", _TRUE)
T5_TEMPLATES: dict[str, TextToTextTemplate] = {
    "glue/cola": TextToTextTemplate("cola sentence: {text}", {"0": "unacceptable", "1": "acceptable"}),
    "glue/sst-2": TextToTextTemplate("sst2 sentence: {text}", {"0": "negative", "1": "positive"}),
    "glue/mrpc": TextToTextTemplate("mrpc sentence1: {text} sentence2: {pair}", _EQUIVALENT),
    "glue/qqp": TextToTextTemplate("qqp question1: {text} question2: {pair}", {"0": "not_duplicate", "1": "duplicate"}),
    "glue/sts-b": TextToTextTemplate("stsb sentence1: {text} sentence2: {pair}", low=0.0, high=5.0, step=0.2),
    "glue/mnli": TextToTextTemplate("mnli hypothesis: {pair} premise: {text}"),
    "glue/mnli-mm": TextToTextTemplate("mnli hypothesis: {pair} premise: {text}"),
    "glue/qnli": TextToTextTemplate("qnli question: {text} sentence: {pair}"),
    "glue/rte": TextToTextTemplate("rte sentence1: {text} sentence2: {pair}"),
    "glue/wnli": TextToTextTemplate("wnli sentence1: {text} sentence2: {pair}", _FOLLOWS),
    "snli": TextToTextTemplate("snli hypothesis: {pair} premise: {text}"),
    "superglue/boolq": TextToTextTemplate("boolq passage: {text} question: {pair}", _TRUE),
    "superglue/cb": TextToTextTemplate("cb hypothesis: {pair} premise: {text}"),
    "superglue/copa": TextToTextTemplate("copa {choices} premise: {text}", {"0": "False", "1": "True"}),
    "superglue/multirc": TextToTextTemplate("multirc question: {pair} paragraph: {text}", _TRUE),
    "superglue/record": TextToTextTemplate("record entities: {choices} passage: {text}", answer_with="text"),
    "superglue/rte": TextToTextTemplate("rte sentence1: {text} sentence2: {pair}"),
    "superglue/wic": _WIC,
    "wic": _WIC,
    "superglue/wsc": TextToTextTemplate("wsc text: {text} candidate: {pair}", _TRUE),
}

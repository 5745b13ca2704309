"""How a task reads as text, for families that answer in text (Raffel et al. 2020, §2.4): data alone.

Prefixes, names of fields and words for labels are those of the paper's appendix D where it has them, so that models
others have trained so are asked as they know it. What our examples hold in one text stays one: COPA's question behind
its premise, MultiRC's answer behind its question, ReCoRD's query behind its passage, WiC's word before its first
sentence.
"""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Literal

from polyseme.config import Config
from polyseme.errors import ConfigError
from polyseme.families.family import Family
from polyseme.nn.trunks.base import TrunkConfig
from polyseme.tasks.examples import Example, TaskType, parse_float

NUM_VALUE_STEPS = 25  # steps that the range of a number is cut into: 0.2 for numbers from 0 to 5


@dataclass(frozen=True)
class TextToTextTemplate(Config):
    """`template` says where {text}, {pair} and {choices} of an example stand, `label_words` what is written for a label
    that is not its own word. A choice is answered by its name (choice1, choice2 …, or its word), or by its text.
    Numbers are written to the nearest `step` from `low` to `high`. A target opens with the mark `decoder_start_token`.
    """

    template: str
    label_words: dict[str, str] = field(default_factory=dict)
    answer_with: Literal["name", "text"] = "name"
    low: float = 0.0
    high: float = 0.0
    step: float = 0.0
    decoder_start_token: Literal["bos", "pad"] = "pad"

    def __post_init__(self) -> None:
        if not re.search(r"\{(text|pair|choices)\}$", self.template):
            raise ConfigError(f"the template {self.template!r} has to end in {{text}}, {{pair}} or {{choices}}")

    def render_parts(self, example: Example) -> list[tuple[str, str]]:
        """The example's texts, each with the words before it; one that it has not is left out with its words."""
        parts: list[tuple[str, str]] = []
        for before, name in re.findall(r"(.*?)\{(text|pair|choices)\}", self.template):
            if name == "choices":
                for i, choice in enumerate(example.choices or ()):
                    choice_name = f"choice{i + 1}:" if self.answer_with == "name" else "," if i else ""
                    parts.append((choice_name if i else before + choice_name, choice))
            elif (value := getattr(example, name)) is not None:
                parts.append((before, value))
        return [(before.strip(), text) for before, text in parts]

    def label_word(self, label: str) -> str:
        return self.label_words.get(label, label)

    def choice_answers(self, choices: Sequence[str]) -> list[str]:
        """What is written for each choice."""
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
        """Which of `number_texts` is the nearest."""
        first, last = (round(value / self.step) for value in (self.low, self.high))
        return min(max(round(number / self.step), first), last) - first


def template_for(
    family: Family, trunk: TrunkConfig, task_type: TaskType, examples: Sequence[Example], name: str = ""
) -> TextToTextTemplate | None:
    """How a family writes a task of that name; None if it has a head for it. Numbers are fitted to the examples."""
    if task_type not in family.text_to_text_tasks or "next" not in family.pretraining_heads(trunk):
        return None
    task_prefix = "" if task_type == "span" else (name or task_type).rpartition("/")[2] + " "
    template = T5_TEMPLATES.get(name) or TextToTextTemplate(task_prefix + DEFAULT_TEMPLATES[task_type])
    if task_type == "regression" and not template.step:
        values = [parse_float(e.label, e.location) for e in examples if e.label is not None]
        template = template.replace(**_value_range(min(values, default=0.0), max(values, default=0.0)))
    return template.replace(decoder_start_token=family.decoder_start_token)


def _value_range(low: float, high: float) -> dict[str, float]:
    """About so many steps of 1, 2 or 5 times a power of ten."""
    raw = (high - low) / NUM_VALUE_STEPS or 1.0
    power = 10.0 ** math.floor(math.log10(raw))
    step = min((n * power for n in (1, 2, 5, 10)), key=lambda size: abs(math.log(size / raw)))
    return {"low": low, "high": high, "step": step}


DEFAULT_TEMPLATES: dict[TaskType, str] = {
    "classification": "text: {text}",
    "pair": "text1: {text} text2: {pair}",
    "regression": "text1: {text} text2: {pair}",
    "choice": "{choices} text: {text}",
    "span": "question: {pair} context: {text}",
}

_FOLLOWS = {"0": "not_entailment", "1": "entailment"}
_TRUE = {"false": "False", "true": "True", "0": "False", "1": "True", "F": "False", "T": "True"}
_WIC = TextToTextTemplate("wic sentence1: {text} sentence2: {pair}", _TRUE)
T5_TEMPLATES: dict[str, TextToTextTemplate] = {
    "glue/cola": TextToTextTemplate("cola sentence: {text}", {"0": "unacceptable", "1": "acceptable"}),
    "glue/sst-2": TextToTextTemplate("sst2 sentence: {text}", {"0": "negative", "1": "positive"}),
    "glue/mrpc": TextToTextTemplate(
        "mrpc sentence1: {text} sentence2: {pair}", {"0": "not_equivalent", "1": "equivalent"}
    ),
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

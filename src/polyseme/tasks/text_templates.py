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

from polyseme.config import Spec
from polyseme.errors import UserError
from polyseme.families.family import Family
from polyseme.nn.model import TrunkSpec
from polyseme.tasks.examples import Example, Kind, as_number

VALUES = 25  # steps that the range of a number is cut into: 0.2 for numbers from 0 to 5


@dataclass(frozen=True)
class TextSpec(Spec):
    """`template` says where {text}, {pair} and {choices} of an example stand, `words` what is written for a label that
    is not its own word. A choice is answered by its name (choice1, choice2 …, or its word), or by its text. Numbers are
    written to the nearest `step` from `low` to `high`. A target opens with the mark `start`.
    """

    template: str
    words: dict[str, str] = field(default_factory=dict)
    says: Literal["name", "text"] = "name"
    low: float = 0.0
    high: float = 0.0
    step: float = 0.0
    start: Literal["bos", "pad"] = "pad"

    def __post_init__(self) -> None:
        if not re.search(r"\{(text|pair|choices)\}$", self.template):
            raise UserError(f"the template {self.template!r} has to end in {{text}}, {{pair}} or {{choices}}")

    def parts(self, example: Example) -> list[tuple[str, str]]:
        """The example's texts, each with the words before it; one that it has not is left out with its words."""
        found: list[tuple[str, str]] = []
        for before, name in re.findall(r"(.*?)\{(text|pair|choices)\}", self.template):
            if name == "choices":
                for i, choice in enumerate(example.choices or ()):
                    called = f"choice{i + 1}:" if self.says == "name" else "," if i else ""
                    found.append((called if i else before + called, choice))
            elif (value := getattr(example, name)) is not None:
                found.append((before, value))
        return [(before.strip(), text) for before, text in found]

    def word(self, label: str) -> str:
        return self.words.get(label, label)

    def said(self, choices: Sequence[str]) -> list[str]:
        """What is written for each choice."""
        if self.says == "text":
            return list(choices)
        return [self.words.get(str(i), f"choice{i + 1}") for i in range(len(choices))]

    @property
    def numbers(self) -> list[str]:
        """Every number that can be written."""
        first, last = (round(value / self.step) for value in (self.low, self.high))
        digits = max(0, -math.floor(math.log10(self.step) + 1e-9))
        return [f"{i * self.step:.{digits}f}" for i in range(first, last + 1)]

    def place(self, number: float) -> int:
        """Which of `numbers` is the nearest."""
        first, last = (round(value / self.step) for value in (self.low, self.high))
        return min(max(round(number / self.step), first), last) - first


def form_of(
    family: Family, trunk: TrunkSpec, task: Kind, examples: Sequence[Example], name: str = ""
) -> TextSpec | None:
    """How a family writes a task of that name; None if it has a head for it. Numbers are fitted to the examples."""
    if task not in family.writes or "next" not in family.heads(trunk):
        return None
    own = "" if task == "span" else (name or task).rpartition("/")[2] + " "
    form = FORMS.get(name) or TextSpec(own + PLAIN[task])
    if task == "regression" and not form.step:
        values = [as_number(e.label, e.where) for e in examples if e.label is not None]
        form = form.replace(**_range(min(values, default=0.0), max(values, default=0.0)))
    return form.replace(start=family.start)


def _range(low: float, high: float) -> dict[str, float]:
    """About so many steps of 1, 2 or 5 times a power of ten."""
    raw = (high - low) / VALUES or 1.0
    power = 10.0 ** math.floor(math.log10(raw))
    step = min((n * power for n in (1, 2, 5, 10)), key=lambda size: abs(math.log(size / raw)))
    return {"low": low, "high": high, "step": step}


PLAIN: dict[Kind, str] = {
    "classification": "text: {text}",
    "pair": "text1: {text} text2: {pair}",
    "regression": "text1: {text} text2: {pair}",
    "choice": "{choices} text: {text}",
    "span": "question: {pair} context: {text}",
}

_FOLLOWS = {"0": "not_entailment", "1": "entailment"}
_TRUE = {"false": "False", "true": "True", "0": "False", "1": "True", "F": "False", "T": "True"}
_WIC = TextSpec("wic sentence1: {text} sentence2: {pair}", _TRUE)
FORMS: dict[str, TextSpec] = {
    "glue/cola": TextSpec("cola sentence: {text}", {"0": "unacceptable", "1": "acceptable"}),
    "glue/sst-2": TextSpec("sst2 sentence: {text}", {"0": "negative", "1": "positive"}),
    "glue/mrpc": TextSpec("mrpc sentence1: {text} sentence2: {pair}", {"0": "not_equivalent", "1": "equivalent"}),
    "glue/qqp": TextSpec("qqp question1: {text} question2: {pair}", {"0": "not_duplicate", "1": "duplicate"}),
    "glue/sts-b": TextSpec("stsb sentence1: {text} sentence2: {pair}", low=0.0, high=5.0, step=0.2),
    "glue/mnli": TextSpec("mnli hypothesis: {pair} premise: {text}"),
    "glue/mnli-mm": TextSpec("mnli hypothesis: {pair} premise: {text}"),
    "glue/qnli": TextSpec("qnli question: {text} sentence: {pair}"),
    "glue/rte": TextSpec("rte sentence1: {text} sentence2: {pair}"),
    "glue/wnli": TextSpec("wnli sentence1: {text} sentence2: {pair}", _FOLLOWS),
    "snli": TextSpec("snli hypothesis: {pair} premise: {text}"),
    "superglue/boolq": TextSpec("boolq passage: {text} question: {pair}", _TRUE),
    "superglue/cb": TextSpec("cb hypothesis: {pair} premise: {text}"),
    "superglue/copa": TextSpec("copa {choices} premise: {text}", {"0": "False", "1": "True"}),
    "superglue/multirc": TextSpec("multirc question: {pair} paragraph: {text}", _TRUE),
    "superglue/record": TextSpec("record entities: {choices} passage: {text}", says="text"),
    "superglue/rte": TextSpec("rte sentence1: {text} sentence2: {pair}"),
    "superglue/wic": _WIC,
    "wic": _WIC,
    "superglue/wsc": TextSpec("wsc text: {text} candidate: {pair}", _TRUE),
}

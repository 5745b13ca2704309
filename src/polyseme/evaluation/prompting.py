"""Tasks as prompts (Radford et al. 2019, §3; Brown et al. 2020, §2): a file says how a question is put to a model, with
no example or with a few, and what its answer is measured by.
"""

from __future__ import annotations

import math
import random
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from polyseme.config import Spec
from polyseme.errors import UserError, nearest
from polyseme.io.files import json_object, read_json
from polyseme.tasks.examples import read_lines
from polyseme.tasks.metrics.standard import bare, word_f1

FOLDER = Path(__file__).parent / "prompts"
ANSWER = "{answer}"


@dataclass(frozen=True)
class PromptSpec(Spec):
    """A template with {fields} of the data, {answer} at its end; an answer ends at `stop`, or at `most` tokens.

    `about` stands once before all. `metric` is the headline.
    """

    name: str
    template: str
    about: str = ""
    separator: str = "\n\n"
    stop: str = "\n"
    most: int = 32
    metric: Literal["match", "f1", "rouge", "bleu"] = "match"

    def __post_init__(self) -> None:
        if not self.template.endswith(ANSWER) or self.template.count(ANSWER) != 1:
            raise UserError(f"the template {self.template!r} has to end in {ANSWER}")
        self.within(1, math.inf, "most")

    @property
    def fields(self) -> list[str]:
        return re.findall(r"\{(\w+)\}", self.template.removesuffix(ANSWER))

    def put(self, question: Question, shots: Sequence[Question] = ()) -> str:
        """The prompt: what it is about, examples with their answers, the question."""
        asked = [self._filled(shot) + shot.answers[0] for shot in shots] + [self._filled(question)]
        return (self.about + self.separator if self.about else "") + self.separator.join(asked).rstrip(" ")

    def _filled(self, question: Question) -> str:
        return re.sub(r"\{(\w+)\}", lambda m: question.fields[m[1]], self.template.removesuffix(ANSWER))


@dataclass(frozen=True)
class Question:
    fields: dict[str, str]
    answers: tuple[str, ...]  # right ones


def find_prompt(name: str) -> PromptSpec:
    """One of those that come with the toolkit, by its name, or a JSON file."""
    there = {path.stem: path for path in FOLDER.glob("*.json")}
    path = there.get(name, Path(name))
    if not path.is_file():
        raise UserError(f"there is no prompt {name!r}; {nearest(name, there)}")
    return PromptSpec.from_json(read_json(path), path.name)


def read_questions(path: Path, prompt: PromptSpec) -> list[Question]:
    """JSON lines with the fields of the template and `answer`: a text, or a list of texts that are all right."""
    found = []
    for number, line in enumerate(read_lines(path), 1):
        if not line.strip():
            continue
        where = f"{path} line {number}"
        row = json_object(line, where)
        for name in (*prompt.fields, "answer"):
            if name not in row:
                raise UserError(f"{where}: no key {name!r}; {nearest(name, row)}")
        answers = row["answer"] if isinstance(row["answer"], list) else [row["answer"]]
        fields = {name: row[name] for name in prompt.fields}
        if not answers or not all(isinstance(text, str) for text in (*answers, *fields.values())):
            raise UserError(f"{where}: the fields of a question and its answers are texts")
        found.append(Question(fields, tuple(answers)))
    return found


def draw_shots(known: Sequence[Question], number: int, seed: int, asked: Sequence[Question]) -> list[Question]:
    """Examples to stand before every question, none of which is asked."""
    left = [question for question in known if question not in asked]
    if number > len(left):
        raise UserError(f"{number} shots are more than the {len(left)} examples that are not asked themselves")
    return random.Random(seed).sample(left, number)


def ask(
    write: Callable[[list[str], int], list[str]],
    prompt: PromptSpec,
    questions: Sequence[Question],
    shots: Sequence[Question] = (),
) -> list[str]:
    """The model's answers; `write` goes on with prompts by so many tokens."""
    written = write([prompt.put(question, shots) for question in questions], prompt.most)
    return [(text.lstrip().split(prompt.stop)[0] if prompt.stop else text).strip() for text in written]


def measure(prompt: PromptSpec, found: Sequence[str], questions: Sequence[Question]) -> dict[str, Any]:
    """Shares of exact answers, and the mean overlap of words and of the longest common row of words (ROUGE-L)."""
    if not questions:
        raise UserError("there is no question")
    results: dict[str, Any] = {"prompt": prompt.name, "questions": len(questions), "metric": prompt.metric}
    for name, one in (("match", match), ("f1", overlap), ("rouge", rouge)):
        best = [max(one(text, right) for right in q.answers) for text, q in zip(found, questions, strict=True)]
        results[name] = sum(best) / len(best)
    if prompt.metric == "bleu":
        from polyseme.tasks.metrics.translation import scores

        right = [q.answers[0] for q in questions]
        measured = scores(list(found), right, right)
        results |= {"bleu": measured["bleu"], "bleu_signature": measured["bleu_signature"]}
    return results


def match(found: str, right: str) -> float:
    """Whether two answers are the same as SQuAD compares them (Rajpurkar et al. 2016, §6.1)."""
    return float(bare(found) == bare(right))


def overlap(found: str, right: str) -> float:
    """F1 of their words, each as often as it stands."""
    return word_f1(bare(right), bare(found), second=True)


def rouge(found: str, right: str) -> float:
    """F1 of the longest common subsequence (Lin 2004, ROUGE-L), of lower-cased words."""
    a, b = (re.findall(r"\w+", text.lower()) for text in (found, right))
    lengths = [0] * (len(b) + 1)
    for word in a:
        before = 0
        for j, other in enumerate(b, 1):
            before, lengths[j] = lengths[j], before + 1 if word == other else max(lengths[j], lengths[j - 1])
    return 2 * lengths[-1] / (len(a) + len(b)) if lengths[-1] else float(a == b)

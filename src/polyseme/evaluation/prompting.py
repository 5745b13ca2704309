"""Tasks as prompts (Radford et al. 2019, §3; Brown et al. 2020, §2): templates, few-shot examples and metrics."""

import math
import random
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, Literal

from polyseme.config import Config
from polyseme.errors import ConfigError, DataError, require_package, suggest
from polyseme.io.json import read_json
from polyseme.tasks.metrics.standard import normalize_answer, word_f1
from polyseme.tasks.metrics.translation import score_translations
from polyseme.tasks.readers.columns import Columns
from polyseme.tasks.readers.records import detect_record_format, open_records, parse_input, unknown_format
from polyseme.tasks.readers.rows import JsonRow, iter_records, read_rows

PROMPTS_DIR = Path(__file__).parent / "prompts"
ANSWER_FIELD = "{answer}"


@dataclass(frozen=True)
class PromptQuestion:
    """The fields of a question, and the answers that are correct."""

    fields: dict[str, str]
    answers: tuple[str, ...]


@dataclass(frozen=True)
class PromptTemplate(Config):
    """A template with {fields} of a question that ends in {answer}.

    The `instruction` precedes all examples. An answer ends at `stop` or after `max_new_tokens`. `metric` is the main
    one.
    """

    name: str
    template: str
    instruction: str = ""
    separator: str = "\n\n"
    stop: str = "\n"
    max_new_tokens: int = 32
    metric: Literal["exact_match", "f1", "rouge_l", "bleu"] = "exact_match"

    def __post_init__(self) -> None:
        if not self.template.endswith(ANSWER_FIELD) or self.template.count(ANSWER_FIELD) != 1:
            raise ConfigError(f"the template {self.template!r} has to end in {ANSWER_FIELD}")
        self.check_range(1, math.inf, "max_new_tokens")

    @property
    def fields(self) -> list[str]:
        """The names of the fields of a question."""
        return re.findall(r"\{(\w+)\}", self.template.removesuffix(ANSWER_FIELD))

    def render(self, question: PromptQuestion, shots: Sequence[PromptQuestion] = ()) -> str:
        """Return the prompt: instruction, examples with their answers, question."""
        blocks = [self._fill_fields(shot) + shot.answers[0] for shot in shots] + [self._fill_fields(question)]
        return (self.instruction + self.separator if self.instruction else "") + self.separator.join(blocks).rstrip(" ")

    def _fill_fields(self, question: PromptQuestion) -> str:
        return re.sub(r"\{(\w+)\}", lambda m: question.fields[m[1]], self.template.removesuffix(ANSWER_FIELD))


def load_prompt_template(name: str) -> PromptTemplate:
    """Load a built-in template by its name, or a JSON file."""
    builtin_prompts = {path.stem: path for path in PROMPTS_DIR.glob("*.json")}
    path = builtin_prompts.get(name, Path(name))
    if not path.is_file():
        raise ConfigError(f"there is no prompt {name!r}; {suggest(name, builtin_prompts)}")
    return PromptTemplate.from_json(read_json(path), path.name)


def read_questions(source: Path | str, prompt: PromptTemplate) -> list[PromptQuestion]:
    """Read records with the fields of the template and `answer`: a text, or a list of correct texts."""
    path, columns = parse_input(source, Columns())
    columns.reject(path, "prompts, whose template names the columns", "text", "pair", "label", "id")
    format = detect_record_format(path, columns)
    if not format:
        raise unknown_format(path)

    def build(record: dict[str, Any], location: str) -> PromptQuestion:
        row = JsonRow(location, record)
        answer, fields = row.get("answer", object), {name: row.get(name, object) for name in prompt.fields}
        answers = answer if isinstance(answer, list) else [answer]
        if not answers or not all(isinstance(text, str) for text in (*answers, *fields.values())):
            raise DataError(f"{location}: the fields of a question and its answers are texts")
        return PromptQuestion(fields, tuple(answers))

    return read_rows(path, iter_records(open_records(path, columns, format).rows, build))


def sample_shots(
    pool: Sequence[PromptQuestion], num_shots: int, seed: int, questions: Sequence[PromptQuestion]
) -> list[PromptQuestion]:
    """Sample examples that precede every question, none of which is asked."""
    candidates = [question for question in pool if question not in questions]
    if num_shots > len(candidates):
        raise ConfigError(f"{num_shots} shots are more than the {len(candidates)} examples that are not asked")
    return random.Random(seed).sample(candidates, num_shots)


def answer_questions(
    generate: Callable[[list[str], int], list[str]],
    prompt: PromptTemplate,
    questions: Sequence[PromptQuestion],
    shots: Sequence[PromptQuestion] = (),
) -> list[str]:
    """Return the model's answers; `generate` continues prompts by a number of tokens."""
    completions = generate([prompt.render(question, shots) for question in questions], prompt.max_new_tokens)
    return [(text.lstrip().split(prompt.stop)[0] if prompt.stop else text).strip() for text in completions]


def evaluate_answers(
    prompt: PromptTemplate, answers: Sequence[str], questions: Sequence[PromptQuestion]
) -> dict[str, Any]:
    """Return the share of exact answers, the mean F1 of words and ROUGE-L, and BLEU if it is the main metric."""
    if not questions:
        raise DataError("there is no question")
    results: dict[str, Any] = {"prompt": prompt.name, "questions": len(questions), "metric": prompt.metric}
    for name, metric_fn in (("exact_match", exact_match), ("f1", token_f1), ("rouge_l", rouge_l)):
        pairs = zip(answers, questions, strict=True)
        results[name] = sum(max(metric_fn(text, gold) for gold in q.answers) for text, q in pairs) / len(questions)
    if prompt.metric == "bleu":
        gold = [q.answers[0] for q in questions]
        bleu_metrics = score_translations(list(answers), gold, gold)
        results |= {"bleu": bleu_metrics["bleu"], "bleu_signature": bleu_metrics["bleu_signature"]}
    return results


def exact_match(prediction: str, reference: str) -> float:
    """Return whether two answers are the same by SQuAD's rules (Rajpurkar et al. 2016, §6.1)."""
    return float(normalize_answer(prediction) == normalize_answer(reference))


def token_f1(prediction: str, reference: str) -> float:
    """Return the F1 of the bags of words."""
    return word_f1(normalize_answer(reference), normalize_answer(prediction), is_squad_v2=True)


def rouge_l(prediction: str, reference: str) -> float:
    """Return the F1 of the longest common subsequence (Lin 2004, ROUGE-L) of lower-cased words of any script."""
    if not (words := UnicodeTokenizer().tokenize(reference)):
        return float(words == UnicodeTokenizer().tokenize(prediction))
    return float(_rouge_scorer().score(reference, prediction)["rougeL"].fmeasure)


class UnicodeTokenizer:
    """Words of any script, for `rouge_score`, whose own tokenizer drops all but ASCII letters and digits."""

    def tokenize(self, text: str) -> list[str]:
        """Return the words of a text in lower case."""
        return re.findall(r"\w+", text.lower())


@cache
def _rouge_scorer() -> Any:
    rouge = require_package("rouge_score.rouge_scorer", "ROUGE", "'polyseme[tasks]'")
    return rouge.RougeScorer(["rougeL"], tokenizer=UnicodeTokenizer())

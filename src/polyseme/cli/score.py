"""`polyseme score`: score texts, last words, or the choices of questions."""

import json
import math
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple

from typer import Argument, Option

from polyseme.cli import options
from polyseme.errors import ConfigError, DataError, add_location
from polyseme.io.limits import MAX_INTEGER

if TYPE_CHECKING:
    from polyseme.evaluation.streaming import Source
    from polyseme.inference.base import LanguageModel
    from polyseme.inference.results import ChoiceResult, TextScore
    from polyseme.io.table_output import Row, TableOutput
    from polyseme.tasks.multiple_choice import ChoiceExample

CHOICES_HELP = (
    "Questions with text (or prompt), choices and, if known, label: JSON lines, CSV or Parquet. A gap in the "
)
CHOICES_HELP += "text (___, the mask token, @placeholder) makes it a cloze question, which masked models answer, too."
LAST_WORDS_HELP = (
    f"LAMBADA: texts, whose last word is scored, or rows with context and continuation: {options.INPUT_HELP}"
)
TEMPLATE_HELP = "Format of a question and its answer; \\n is a new line; default: {text} {answer}."
NORMALIZATION_HELP = "Score of a choice: none (default: log-probability), length (per token), or unconditional (minus "
NORMALIZATION_HELP += "that after --context)."
CONTEXT_HELP = "Text before an unconditional answer; default: 'Answer: '."
_SUMMED = ("log_prob", "num_tokens", "num_characters")


def score(
    model: Annotated[Path, Argument(help="Folder of a model with a language-model head.")],
    data: Annotated[Path | None, Option(help=f"Texts: {options.INPUT_HELP}")] = None,
    choices: Annotated[Path | None, Option(help=CHOICES_HELP)] = None,
    last_words: Annotated[Path | None, Option(help=LAST_WORDS_HELP)] = None,
    num_shots: Annotated[int, Option(help="Number of examples before each question (few-shot).", min=0)] = 0,
    examples: Annotated[Path | None, Option(help="Labeled questions to sample the shots from.")] = None,
    template: Annotated[str | None, Option(help=TEMPLATE_HELP)] = None,
    normalization: Annotated[str | None, Option(help=NORMALIZATION_HELP)] = None,
    context: Annotated[str | None, Option(help=CONTEXT_HELP)] = None,
    seed: Annotated[int | None, Option(help="Random seed of the shots; default: 0.", min=0, max=MAX_INTEGER)] = None,
    pll_metric: Annotated[str | None, Option(help=options.PLL_HELP)] = None,
    as_json: options.JsonLinesOption = False,
    out: Annotated[Path | None, Option(help=options.OUTPUT_HELP)] = None,
    resume: options.ResumeOutputOption = False,
) -> None:
    """Score texts, last words, or the choices of questions.

    Texts get their log-probability, perplexity and bits per character.

    A masked model, or a hybrid one with --pll-metric, gives a pseudo-log-likelihood. Every model counts the tokens of
    the text alone, without start and end.

    For a choice, a masked model fills the gap of the question (___, its mask, or @placeholder), or one at its end. It
    knows the number of tokens of a last word.
    """
    import polyseme
    from polyseme.evaluation.streaming import hash_path, hash_spec, reject_input
    from polyseme.io.table_output import TABLE_SUFFIXES, TableOutput, check_output_suffix

    if sum(option is not None for option in (data, choices, last_words)) != 1:
        raise ConfigError("give --data with texts to score, --choices with questions to answer, or --last-words")
    if data is None and pll_metric:
        raise ConfigError("--pll-metric goes with --data")
    template = None if template is None else template.replace("\\n", "\n")
    ranking = {"template": template, "normalization": normalization, "context": context}
    _check_choice_options(choices, {"num_shots": num_shots or None, "examples": examples, "seed": seed}, ranking)
    if out is not None:
        check_output_suffix(out, TABLE_SUFFIXES, "scores")
        if examples is not None:
            reject_input(out, examples)
    language_model = polyseme.load(model)
    if data is not None:
        mode = _text_mode(language_model, data, pll_metric, as_json, out is not None)
    elif last_words is not None:
        mode = _last_word_mode(language_model, last_words, as_json)
    else:
        assert choices is not None
        mode = _choice_mode(language_model, choices, (examples, num_shots, seed or 0), ranking, as_json)
    if not mode.source.total:
        raise DataError(f"{data or last_words or choices} holds no texts")

    def settings() -> dict[str, Any]:
        kind = "data" if data is not None else "last_words" if last_words is not None else "choices"
        shots = {"examples": examples and f"{examples} {hash_spec(examples)}", "num_shots": num_shots}
        facts = {"input": mode.source.hash, "model": hash_path(model), "seed": seed or 0, "pll": pll_metric}
        return {**facts, "mode": kind, kind: str(data or last_words or choices), **shots, **ranking}

    _run(mode, None if out is None else TableOutput(out, mode.names), settings, resume)
    if out is not None and not as_json:
        print(f"{out}: {mode.source.total} texts")


def _check_choice_options(choices: Path | None, shots: Mapping[str, Any], ranking: Mapping[str, Any]) -> None:
    """Raise `ConfigError` for options of questions that have no effect without others."""
    if choices is None:
        _reject_options("--choices", **ranking, **shots)
    if ranking["normalization"] != "unconditional":
        _reject_options("--normalization unconditional", context=ranking["context"])
    if shots["num_shots"] is None:
        _reject_options("--num-shots", seed=shots["seed"])
    if (shots["num_shots"] is None) != (shots["examples"] is None):
        raise ConfigError("--num-shots K and --examples FILE go together")


def _reject_options(requirement: str, **options: object) -> None:
    """Raise `ConfigError` for an option that was set, and that has an effect only with another."""
    for name, value in options.items():
        if value is not None:
            raise ConfigError(f"--{name.replace('_', '-')} has no effect without {requirement}")


class _Mode(NamedTuple):
    """What is scored, the names of its columns, and how.

    `score` returns a row for each of a window, its columns and ours, and adds to a summary. `format_row` and
    `format_footer`, which reads the summary, are for the console.
    """

    source: "Source[Any]"
    names: list[str]
    score: Callable[[list[Any], dict[str, Any]], list["Row"]]
    format_row: Callable[["Row"], str]
    format_footer: Callable[[dict[str, Any]], str]


def _run(mode: _Mode, table: "TableOutput | None", settings: Callable[[], dict[str, Any]], resume: bool) -> None:
    """Write the rows to a file, or print them; the summary is printed."""
    from polyseme.evaluation.streaming import open_row_output, run_windows

    def compute(window: list[Any], start: int, summary: dict[str, Any]) -> list[bytes]:
        rows = mode.score(window, summary)
        text = "".join(map(mode.format_row, rows)) if table is None else table.encode(rows, start)
        return [text.encode()]

    output = open_row_output(table, lambda text: print(text, end="", flush=True), settings, resume)
    summary = run_windows(mode.source, mode.source.windows(), output, compute, lambda _: [b""], "score")
    print(mode.format_footer(summary), end="")


def _text_mode(
    language_model: "LanguageModel", data: Path, pll_metric: str | None, as_json: bool, has_table: bool
) -> _Mode:
    """Score texts; with `as_json`, the total is printed if the rows are written to a table."""
    from polyseme.evaluation.text_rows import TextRow, open_texts
    from polyseme.inference.results import TextScore

    texts = open_texts(data, language_model.path)
    is_pseudo = pll_metric is not None or language_model.has_pll_metric or language_model.is_seq2seq

    def score(window: list[TextRow], summary: dict[str, Any]) -> "list[Row]":
        with add_location((row.text, row.location) for row in window):
            scores = language_model.score([row.text for row in window], pll_metric)
        add_to(summary, **{name: sum(getattr(s, name) for s in scores) for name in _SUMMED})
        return [(row.row, _score_columns(s, is_pseudo)) for row, s in zip(window, scores)]

    def format_row(row: "Row") -> str:
        text = row[0][texts.text_column]
        return to_json_line({**row[1], "text": text}) if as_json else _format_score(row[1], text)

    def format_footer(summary: dict[str, Any]) -> str:
        total = _score_columns(TextScore(*(summary[name] for name in _SUMMED)), is_pseudo)
        if as_json:
            return to_json_line({"texts": texts.source.total, **total}) if has_table else ""
        return _format_score(total, "(all)")

    return _Mode(texts.source, texts.names, score, format_row, format_footer)


def _score_columns(score: "TextScore", is_pseudo: bool) -> dict[str, Any]:
    from polyseme.inference.results import finite_or_none

    names = ("log_prob", "num_tokens", "num_characters", "perplexity", "bits_per_character")
    columns = {name: getattr(score, name) for name in names}
    return columns | {"perplexity": finite_or_none(columns["perplexity"]), "is_pseudo_likelihood": is_pseudo}


def _format_score(score: Mapping[str, Any], text: str) -> str:
    prefix = "pseudo-" if score["is_pseudo_likelihood"] else ""
    counts = f"{score['log_prob']:12.4f} {prefix}log-prob  {score['num_tokens']:5d} tokens"
    perplexity = math.inf if score["perplexity"] is None else score["perplexity"]
    rates = f"{perplexity:12.4f} {prefix}perplexity  {score['bits_per_character']:8.4f} {prefix}bits per character"
    return f"{counts}  {rates}  {text}\n"


def _last_word_mode(language_model: "LanguageModel", path: Path, as_json: bool) -> _Mode:
    """Score last words: accuracy, and perplexity, as in LAMBADA of a word over all its tokens."""
    from polyseme.datasets.lambada import LambadaFile, LastWord
    from polyseme.evaluation.streaming import Source
    from polyseme.inference.results import TextScore, finite_or_none

    file, names = LambadaFile.open(path), dict[str, None]()

    def read(is_first: bool) -> Iterator[LastWord]:
        for last_word in file:
            if is_first:
                names.update(dict.fromkeys(last_word.row))
            yield last_word

    def score(window: list[LastWord], summary: dict[str, Any]) -> "list[Row]":
        scores = language_model.score_last_words([(each.context, each.word) for each in window])
        log_prob, num_truncated = sum(s.score.log_prob for s in scores), sum(s.num_truncated > 0 for s in scores)
        num_correct = sum(s.is_correct for s in scores)
        add_to(summary, texts=len(scores), correct=num_correct, log_prob=log_prob, truncated=num_truncated)
        return [
            (each.row, {"log_prob": s.score.log_prob, "is_correct": s.is_correct, "word": each.word})
            for each, s in zip(window, scores)
        ]

    def format_footer(summary: dict[str, Any]) -> str:
        num_texts = summary["texts"]
        metrics = {
            "texts": num_texts,
            "accuracy": summary["correct"] / num_texts,
            "perplexity": TextScore(summary["log_prob"], num_texts).perplexity,
            "num_truncated": summary["truncated"],
        }
        if as_json:
            return to_json_line({name: finite_or_none(value) for name, value in metrics.items()})
        return "".join(f"{name}: {value:.4g}\n" for name, value in metrics.items())

    texts = Source(file.path, read)
    return _Mode(texts, list(names), score, lambda row: "", format_footer)


def _choice_mode(
    language_model: "LanguageModel",
    path: Path,
    shot_options: tuple[Path | None, int, int],
    ranking: dict[str, Any],
    as_json: bool,
) -> _Mode:
    from polyseme.evaluation.streaming import Source
    from polyseme.tasks.multiple_choice import MultipleChoiceTask
    from polyseme.tasks.readers.columns import Columns

    file, columns = MultipleChoiceTask.open_input(path, Columns(keep_rows=True))
    source: Source[ChoiceExample] = Source(file, lambda _: MultipleChoiceTask.iter_examples(file, columns))
    shots = _sample_shots(*shot_options, source)
    ranking = {name: value for name, value in ranking.items() if value is not None}
    names = list(dict.fromkeys(name for question in source for name in question.row or ()))

    def score(window: "list[ChoiceExample]", summary: dict[str, Any]) -> "list[Row]":
        prompts, choices = [question.text for question in window], [question.choices for question in window]
        results = language_model.rank_choices(prompts, choices, shots=shots, **ranking)
        is_correct = [str(r.best_index) == q.label for q, r in zip(window, results) if q.label is not None]
        add_to(summary, questions=len(is_correct), correct=sum(is_correct))
        return [(question.row or {}, _choice_columns(question, each)) for question, each in zip(window, results)]

    def format_row(row: "Row") -> str:
        return _format_choice(MultipleChoiceTask.from_record(dict(row[0]), "", columns, False), row[1], as_json)

    def format_footer(summary: dict[str, Any]) -> str:
        num_questions = summary["questions"]
        if not num_questions:
            return ""
        accuracy = summary["correct"] / num_questions
        if as_json:
            return to_json_line({"accuracy": accuracy, "questions": num_questions, "num_shots": len(shots)})
        questions, examples = (
            f"{n} {noun}{'s' * (n != 1)}" for n, noun in ((num_questions, "question"), (len(shots), "shot"))
        )
        return f"accuracy: {accuracy:.4f} ({questions}, {examples})\n"

    return _Mode(source, names, score, format_row, format_footer)


def _sample_shots(
    path: Path | None, num_shots: int, seed: int, questions: "Source[ChoiceExample]"
) -> list[tuple[str, str]]:
    """Sample questions with their answers, the same for every question, so that the model reads them once."""
    import random

    from polyseme.tasks.multiple_choice import MultipleChoiceTask

    if path is None:
        return []
    examples = MultipleChoiceTask.read(path)
    if num_shots > len(examples):
        raise ConfigError(f"{path} holds {len(examples)} examples, fewer than --num-shots {num_shots}")
    shots = random.Random(seed).sample(examples, num_shots)
    texts = {shot.text for shot in shots}
    if duplicate := next((question for question in questions if question.text in texts), None):
        raise ConfigError(f"{duplicate.location} is among the shots: use other examples, or another --seed")
    return [(shot.text, shot.choices[int(shot.label or 0)]) for shot in shots]


def _choice_columns(question: "ChoiceExample", choice: "ChoiceResult") -> dict[str, Any]:
    return {
        "best_index": choice.best_index, "answer": question.choices[choice.best_index],
        "normalized_scores": list(choice.normalized_scores), "log_probs": [s.log_prob for s in choice.scores],
        "num_tokens": [s.num_tokens for s in choice.scores],
    }  # fmt: skip


def _format_choice(question: "ChoiceExample", columns: Mapping[str, Any], as_json: bool) -> str:
    best = columns["best_index"]
    if as_json:
        row = {"text": question.text, "choices": question.choices, **columns}
        return to_json_line(row | ({} if question.label is None else {"label": int(question.label)}))
    verdict = "" if question.label is None else "right  " if str(best) == question.label else "wrong  "
    return f"{columns['normalized_scores'][best]:12.4f}  {verdict}{columns['answer']}\n"


def add_to(summary: dict[str, Any], **amounts: float) -> None:
    """Add amounts to the sums of a summary."""
    for name, amount in amounts.items():
        summary[name] = summary.get(name, 0) + amount


def to_json_line(value: dict[str, Any]) -> str:
    """Return a JSON object on one line."""
    return json.dumps(value, ensure_ascii=False) + "\n"

"""`polyseme score`: score texts, last words, or the choices of questions."""

import math
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from typer import Argument, Option

from polyseme.cli import options
from polyseme.cli.output import print_json, read_texts
from polyseme.errors import ConfigError

if TYPE_CHECKING:
    from polyseme.inference.base import LanguageModel
    from polyseme.inference.results import ChoiceResult, TextScore
    from polyseme.tasks.multiple_choice import ChoiceExample

CHOICES_HELP = "Questions as JSON lines with text (or prompt), choices and, if known, label."
LAST_WORDS_HELP = "LAMBADA: JSON lines with context and continuation (or text), or one text per line."
NORMALIZATION_HELP = "Score of a choice: none (log-probability), length (per token), or unconditional (minus that "
NORMALIZATION_HELP += "after --context)."


def score(
    model: Annotated[Path, Argument(help="Folder of a model with a language-model head.")],
    data: Annotated[Path | None, Option(help="Text file, one text per line.")] = None,
    choices: Annotated[Path | None, Option(help=CHOICES_HELP)] = None,
    last_words: Annotated[Path | None, Option(help=LAST_WORDS_HELP)] = None,
    num_shots: Annotated[int, Option(help="Number of examples before each question (few-shot).", min=0)] = 0,
    examples: Annotated[Path | None, Option(help="Labeled questions to sample the shots from.")] = None,
    template: Annotated[
        str, Option(help="Format of a question and its answer; \\n is a new line.")
    ] = "{text} {answer}",
    normalization: Annotated[str, Option(help=NORMALIZATION_HELP)] = "none",
    context: Annotated[str, Option(help="Text before an unconditional answer.")] = "Answer: ",
    seed: Annotated[int, Option(help="Random seed of the shots.")] = 0,
    as_json: options.JsonLinesOption = False,
) -> None:
    """Print log-probability, perplexity and bits per character of texts (pseudo- for a masked model), or answers.

    In every model the tokens of a text are counted; its start and end are not.

    For a choice, a masked model fills the gap of the question (its mask, _ or @placeholder), or one at its end. It
    knows the number of tokens of a last word.
    """
    import polyseme
    from polyseme.tasks.multiple_choice import MultipleChoiceTask

    if sum(option is not None for option in (data, choices, last_words)) != 1:
        raise ConfigError("give --data with texts to score, --choices with questions to answer, or --last-words")
    if choices is None and (num_shots or examples):
        raise ConfigError("--num-shots and --examples go with --choices")
    if (num_shots > 0) != (examples is not None):
        raise ConfigError("--num-shots K and --examples FILE go together")
    language_model = polyseme.load(model)
    if data is not None:
        _score_texts(language_model, data, as_json)
    elif last_words is not None:
        _score_last_words(language_model, last_words, as_json)
    elif choices is not None:
        questions = MultipleChoiceTask.read(choices, needs_labels=False)
        shots = _sample_shots(examples, num_shots, seed, questions) if examples else []
        results = language_model.rank_choices(
            [question.text for question in questions], [question.choices for question in questions], shots=shots,
            template=template.replace("\\n", "\n"), normalization=normalization, context=context,
        )  # fmt: skip
        _print_choices(questions, results, len(shots), as_json)


def _score_texts(language_model: "LanguageModel", data: Path, as_json: bool) -> None:
    from polyseme.inference.results import TextScore

    lines = read_texts(data)
    scores = language_model.score(lines)
    for line, s in zip(lines, scores):
        if as_json:
            row = {"log_prob": s.log_prob, "num_tokens": s.num_tokens, "perplexity": s.perplexity}
            print_json({**row, "bits_per_character": s.bits_per_character, "text": line}, indent=None)
        else:
            print(_format_score(s, line))
    if not as_json:
        counts = (sum(getattr(s, name) for s in scores) for name in ("num_tokens", "num_characters"))
        print(_format_score(TextScore(math.fsum(s.log_prob for s in scores), *counts), "(all)"))


def _format_score(score: "TextScore", text: str) -> str:
    columns = f"{score.log_prob:12.4f}  {score.num_tokens:5d} tokens  {score.perplexity:12.4f}"
    return f"{columns}  {score.bits_per_character:8.4f} bits per character  {text}"


def _score_last_words(language_model: "LanguageModel", path: Path, as_json: bool) -> None:
    """Print accuracy and perplexity of last words; as in LAMBADA, the perplexity of a word is over all its tokens."""
    from polyseme.datasets.lambada import read_lambada

    words = language_model.score_last_words(read_lambada(path))
    summary = {
        "texts": len(words),
        "accuracy": sum(word.is_correct for word in words) / len(words),
        "perplexity": math.exp(-sum(word.score.log_prob for word in words) / len(words)),
        "num_truncated": sum(word.num_truncated > 0 for word in words),
    }
    if as_json:
        print_json(summary, indent=None)
    else:
        print("\n".join(f"{name}: {value:.4g}" for name, value in summary.items()))


def _sample_shots(path: Path, num_shots: int, seed: int, questions: "list[ChoiceExample]") -> list[tuple[str, str]]:
    """Sample questions with their answers, the same for every question, so that the model reads them once."""
    import random

    from polyseme.tasks.multiple_choice import MultipleChoiceTask

    examples = MultipleChoiceTask.read(path)
    if num_shots > len(examples):
        raise ConfigError(f"{path} holds {len(examples)} examples, fewer than --num-shots {num_shots}")
    shots = random.Random(seed).sample(examples, num_shots)
    texts = {shot.text for shot in shots}
    if duplicate := next((question for question in questions if question.text in texts), None):
        raise ConfigError(f"{duplicate.location} is among the shots: use other examples, or another --seed")
    return [(shot.text, shot.choices[int(shot.label or 0)]) for shot in shots]


def _print_choices(
    questions: "list[ChoiceExample]", results: "list[ChoiceResult]", num_shots: int, as_json: bool
) -> None:
    correct = []
    for question, choice in zip(questions, results):
        best = choice.best_index
        if question.label is not None:
            correct.append(str(best) == question.label)
        if as_json:
            row = {
                "text": question.text, "choices": question.choices, "best_index": best,
                "normalized_scores": choice.normalized_scores, "log_probs": [s.log_prob for s in choice.scores],
                "num_tokens": [s.num_tokens for s in choice.scores],
            }  # fmt: skip
            print_json(row | ({} if question.label is None else {"label": int(question.label)}), indent=None)
        else:
            verdict = "" if question.label is None else "right  " if correct[-1] else "wrong  "
            print(f"{choice.normalized_scores[best]:12.4f}  {verdict}{question.choices[best]}")
    if not correct:
        return
    accuracy = sum(correct) / len(correct)
    if as_json:
        print_json({"accuracy": accuracy, "questions": len(correct), "num_shots": num_shots}, indent=None)
    else:
        print(f"accuracy: {accuracy:.4f} ({len(correct)} questions, {num_shots} shots)")

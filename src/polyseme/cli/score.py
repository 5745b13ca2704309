"""`polyseme score`: how likely is a text, or which of several answers?"""

from __future__ import annotations

import math
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from polyseme.inference.language_model import LanguageModel
    from polyseme.tasks.examples import Example


def score(
    model: Annotated[Path, typer.Argument(help="a model folder with a language-model head")],
    data: Annotated[Path | None, typer.Option(help="a text file, one text a line")] = None,
    choices: Annotated[
        Path | None, typer.Option(help="JSON lines with text (or prompt), choices and, if known, label")
    ] = None,
    last_words: Annotated[
        Path | None, typer.Option(help="LAMBADA: JSON lines with context and continuation (or text), or a text a line")
    ] = None,
    num_shots: Annotated[int, typer.Option(help="how many examples stand before each prompt", min=0)] = 0,
    examples: Annotated[Path | None, typer.Option(help="labelled choices to draw the shots from")] = None,
    template: Annotated[
        str, typer.Option(help="how a text and its answer are written; \\n is a new line")
    ] = "{text} {answer}",
    normalization: Annotated[str, typer.Option(help="none, length or unconditional")] = "none",
    context: Annotated[str, typer.Option(help="what stands before an unconditional answer")] = "Answer: ",
    seed: Annotated[int, typer.Option(help="of the draw of shots")] = 0,
    as_json: Annotated[bool, typer.Option("--json", help="print one JSON object a line")] = False,
) -> None:
    """Log-probability and perplexity of each line; pseudo-perplexity for a masked model. Or the likeliest choices.

    A masked model fills the gap of a question (its mask, _ or @placeholder), else one at its end; of last words it is
    told how many tokens they have.
    """
    import polyseme
    from polyseme.errors import ConfigError

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
        from polyseme.tasks.examples import read_examples

        questions = read_examples(choices, "choice", needs_labels=False)
        shot_examples = _sample_shots(examples, num_shots, seed, questions) if examples else []
        _rank_choices(
            language_model, questions, shot_examples, template.replace("\\n", "\n"), normalization, context, as_json
        )


def _score_texts(language_model: LanguageModel, data: Path, as_json: bool) -> None:
    import json

    from polyseme.cli.output import read_texts

    lines = read_texts(data)
    scores = language_model.score(lines)
    for line, s in zip(lines, scores):
        if as_json:
            row = {
                "log_prob": s.log_prob,
                "num_tokens": s.num_tokens,
                "perplexity": s.perplexity,
                "text": line,
            }
            print(json.dumps(row, ensure_ascii=False))
        else:
            print(f"{s.log_prob:12.4f}  {s.num_tokens:5d} tokens  {s.perplexity:12.4f}  {line}")
    total, tokens = sum(s.log_prob for s in scores), sum(s.num_tokens for s in scores)
    if not as_json:
        print(f"{total:12.4f}  {tokens:5d} tokens  {math.exp(-total / max(tokens, 1)):12.4f}  (all)")


def _score_last_words(language_model: LanguageModel, path: Path, as_json: bool) -> None:
    """Accuracy and perplexity of last words; a word's perplexity is over all of its tokens, as LAMBADA's is."""
    import json

    from polyseme.datasets.lambada import read_lambada

    word_scores = language_model.last_words(read_lambada(path))
    summary = {
        "texts": len(word_scores),
        "accuracy": sum(word_score.is_correct for word_score in word_scores) / len(word_scores),
        "perplexity": math.exp(-sum(word_score.score.log_prob for word_score in word_scores) / len(word_scores)),
        "num_truncated": sum(word_score.num_truncated > 0 for word_score in word_scores),
    }
    print(json.dumps(summary) if as_json else "\n".join(f"{name}: {value:.4g}" for name, value in summary.items()))


def _sample_shots(path: Path, num_shots: int, seed: int, questions: list[Example]) -> list[tuple[str, str]]:
    """Examples with their right answers, the same for every question: so they are read once."""
    import random

    from polyseme.errors import ConfigError, DataError
    from polyseme.tasks.examples import read_examples

    examples = read_examples(path, "choice")
    if num_shots > len(examples):
        raise ConfigError(f"{path} holds {len(examples)} examples, which is less than --num-shots {num_shots}")
    shot_examples = random.Random(seed).sample(examples, num_shots)
    texts = {e.text for e in shot_examples}
    if duplicates := [e for e in questions if e.text in texts]:
        raise DataError(
            f"{duplicates[0].location} is among the shots too: draw them from other examples, or with another --seed"
        )
    return [(e.text or "", (e.choices or ())[int(e.label or 0)]) for e in shot_examples]


def _rank_choices(
    language_model: LanguageModel,
    examples: list[Example],
    shots: list[tuple[str, str]],
    template: str,
    normalization: str,
    context: str,
    as_json: bool,
) -> None:
    import json

    questions = [(e.text or "", e.choices or ()) for e in examples]
    choice_results = language_model.rank_choices_batch(questions, shots, template, normalization, context)
    for example, choice in zip(examples, choice_results):
        best_text = (example.choices or ())[choice.best_index]
        if as_json:
            row = {
                "text": example.text,
                "choices": example.choices,
                "best_index": choice.best_index,
                "normalized_scores": choice.normalized_scores,
                "log_probs": [s.log_prob for s in choice.scores],
                "num_tokens": [s.num_tokens for s in choice.scores],
            }
            print(
                json.dumps(row | ({} if example.label is None else {"label": int(example.label)}), ensure_ascii=False)
            )
        else:
            verdict = (
                "" if example.label is None else "right  " if str(choice.best_index) == example.label else "wrong  "
            )
            print(f"{choice.normalized_scores[choice.best_index]:12.4f}  {verdict}{best_text}")
    labeled_results = [(e.label, str(c.best_index)) for e, c in zip(examples, choice_results) if e.label is not None]
    if labeled_results:
        accuracy = sum(a == b for a, b in labeled_results) / len(labeled_results)
        summary = {"accuracy": accuracy, "questions": len(labeled_results), "num_shots": len(shots)}
        print(
            json.dumps(summary)
            if as_json
            else f"accuracy: {accuracy:.4f} ({len(labeled_results)} questions, {len(shots)} shots)"
        )

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
    shots: Annotated[int, typer.Option(help="how many examples stand before each prompt", min=0)] = 0,
    examples: Annotated[Path | None, typer.Option(help="labelled choices to draw the shots from")] = None,
    template: Annotated[
        str, typer.Option(help="how a text and its answer are written; \\n is a new line")
    ] = "{text} {answer}",
    normalise: Annotated[str, typer.Option(help="none, length or unconditional")] = "none",
    context: Annotated[str, typer.Option(help="what stands before an unconditional answer")] = "Answer: ",
    seed: Annotated[int, typer.Option(help="of the draw of shots")] = 0,
    as_json: Annotated[bool, typer.Option("--json", help="print one JSON object a line")] = False,
) -> None:
    """Log-probability and perplexity of each line; pseudo-perplexity for a masked model. Or the likeliest choices.

    A masked model fills the gap of a question (its mask, _ or @placeholder), else one at its end; of last words it is
    told how many tokens they have.
    """
    import polyseme
    from polyseme.errors import UserError

    if sum(given is not None for given in (data, choices, last_words)) != 1:
        raise UserError("give --data with texts to score, --choices with questions to answer, or --last-words")
    if choices is None and (shots or examples):
        raise UserError("--shots and --examples go with --choices")
    if (shots > 0) != (examples is not None):
        raise UserError("--shots K and --examples FILE go together")
    opened = polyseme.load(model)
    if data is not None:
        _score_texts(opened, data, as_json)
    elif last_words is not None:
        _last_words(opened, last_words, as_json)
    elif choices is not None:
        from polyseme.tasks.examples import read_examples

        asked = read_examples(choices, "choice", need_labels=False)
        drawn = _draw(examples, shots, seed, asked) if examples else []
        _choose(opened, asked, drawn, template.replace("\\n", "\n"), normalise, context, as_json)


def _score_texts(opened: LanguageModel, data: Path, as_json: bool) -> None:
    import json

    from polyseme.cli.output import read_texts

    lines = read_texts(data)
    found = opened.score(lines)
    for line, s in zip(lines, found):
        if as_json:
            row = {
                "log_probability": s.log_probability,
                "tokens": s.tokens,
                "perplexity": s.perplexity,
                "text": line,
            }
            print(json.dumps(row, ensure_ascii=False))
        else:
            print(f"{s.log_probability:12.4f}  {s.tokens:5d} tokens  {s.perplexity:12.4f}  {line}")
    total, tokens = sum(s.log_probability for s in found), sum(s.tokens for s in found)
    if not as_json:
        print(f"{total:12.4f}  {tokens:5d} tokens  {math.exp(-total / max(tokens, 1)):12.4f}  (all)")


def _last_words(opened: LanguageModel, path: Path, as_json: bool) -> None:
    """Accuracy and perplexity of last words; a word's perplexity is over all of its tokens, as LAMBADA's is."""
    import json

    from polyseme.datasets.lambada import read_last_words

    found = opened.last_words(read_last_words(path))
    total = {
        "texts": len(found),
        "accuracy": sum(one.right for one in found) / len(found),
        "perplexity": math.exp(-sum(one.score.log_probability for one in found) / len(found)),
        "cut": sum(one.cut > 0 for one in found),
    }
    print(json.dumps(total) if as_json else "\n".join(f"{name}: {value:.4g}" for name, value in total.items()))


def _draw(path: Path, shots: int, seed: int, asked: list[Example]) -> list[tuple[str, str]]:
    """Examples with their right answers, the same for every question: so they are read once."""
    import random

    from polyseme.errors import UserError
    from polyseme.tasks.examples import read_examples

    known = read_examples(path, "choice")
    if shots > len(known):
        raise UserError(f"{path} holds {len(known)} examples, which is less than --shots {shots}")
    drawn = random.Random(seed).sample(known, shots)
    texts = {e.text for e in drawn}
    if twice := [e for e in asked if e.text in texts]:
        raise UserError(
            f"{twice[0].where} is among the shots too: draw them from other examples, or with another --seed"
        )
    return [(e.text or "", (e.choices or ())[int(e.label or 0)]) for e in drawn]


def _choose(
    opened: LanguageModel,
    asked: list[Example],
    shots: list[tuple[str, str]],
    template: str,
    normalise: str,
    context: str,
    as_json: bool,
) -> None:
    import json

    questions = [(e.text or "", e.choices or ()) for e in asked]
    found = opened.choose_each(questions, shots, template, normalise, context)
    for example, choice in zip(asked, found):
        best = (example.choices or ())[choice.best]
        if as_json:
            row = {
                "text": example.text,
                "choices": example.choices,
                "best": choice.best,
                "values": choice.values,
                "log_probabilities": [s.log_probability for s in choice.scores],
                "tokens": [s.tokens for s in choice.scores],
            }
            print(
                json.dumps(row | ({} if example.label is None else {"label": int(example.label)}), ensure_ascii=False)
            )
        else:
            mark = "" if example.label is None else "right  " if str(choice.best) == example.label else "wrong  "
            print(f"{choice.values[choice.best]:12.4f}  {mark}{best}")
    known = [(e.label, str(c.best)) for e, c in zip(asked, found) if e.label is not None]
    if known:
        accuracy = sum(a == b for a, b in known) / len(known)
        total = {"accuracy": accuracy, "questions": len(known), "shots": len(shots)}
        print(
            json.dumps(total) if as_json else f"accuracy: {accuracy:.4f} ({len(known)} questions, {len(shots)} shots)"
        )

"""`polyseme prompt`: tasks as prompts, with no example or a few."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer


def prompt(
    model: Annotated[Path, typer.Argument(help="a model folder that can write")],
    prompt_: Annotated[str, typer.Option("--prompt", help="question, cloze, summary, translation, or a JSON file")],
    data: Annotated[Path, typer.Option(help="JSON lines with the fields of the prompt, and answer")],
    shots: Annotated[int, typer.Option(help="how many examples stand before each question", min=0)] = 0,
    examples: Annotated[Path | None, typer.Option(help="JSON lines to draw the shots from")] = None,
    seed: Annotated[int, typer.Option(help="of the draw of shots")] = 0,
    as_json: Annotated[bool, typer.Option("--json", help="print one JSON object a line")] = False,
) -> None:
    """Put questions to a model as a prompt file says, and measure its answers."""
    import json

    import polyseme
    from polyseme.errors import UserError
    from polyseme.evaluation.prompting import ask as put
    from polyseme.evaluation.prompting import draw_shots, find_prompt, measure, read_questions
    from polyseme.generation.text import Search

    if (shots > 0) != (examples is not None):
        raise UserError("--shots K and --examples FILE go together")
    spec = find_prompt(prompt_)
    asked = read_questions(data, spec)
    drawn = draw_shots(read_questions(examples, spec), shots, seed, asked) if examples else []
    opened = polyseme.load(model)

    def write(prompts: list[str], most: int) -> list[str]:
        return [texts[0].text for texts in opened.generate(prompts, Search(most))]

    found = put(write, spec, asked, drawn)
    for question, answer in zip(asked, found):
        row = {**question.fields, "answers": question.answers, "found": answer}
        print(json.dumps(row, ensure_ascii=False) if as_json else f"{answer!r}  (right: {question.answers[0]!r})")
    measured = measure(spec, found, asked) | {"shots": shots}
    if as_json:
        print(json.dumps(measured))
    else:
        head = measured[spec.metric]
        print(f"{spec.metric}: {head:.4f} ({len(asked)} questions, {shots} shots)")

"""`polyseme ask`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer


def ask(
    model: Annotated[Path, typer.Argument(help="a model folder that was fine-tuned to find answers (--task span)")],
    question: Annotated[str, typer.Argument(help="what is asked")],
    context: Annotated[Path, typer.Option(help="the text that holds the answer: a file; plain, .gz or .xz")],
    as_json: Annotated[bool, typer.Option("--json", help="print JSON")] = False,
) -> None:
    """Find the answer to a question in a text, of any length."""
    from dataclasses import asdict

    import polyseme
    from polyseme.cli.output import print_json
    from polyseme.finetuning.frozen import answer_over, is_feature_model
    from polyseme.tasks.readers.rows import read_lines

    text = "\n".join(read_lines(context))
    answer = (
        answer_over(model, text, question) if is_feature_model(model) else polyseme.load(model).answer(text, question)
    )
    if as_json:
        print_json(asdict(answer))
    elif answer.text:
        location = f"characters {answer.start} to {answer.end} of {context}"
        print(f"{answer.text}\nprobability {answer.probability:.4f}, {location}")
    else:
        print(f"no answer (null score difference: {answer.null_score_diff:.3f})")

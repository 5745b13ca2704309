"""`polyseme prompt`: tasks as prompts, with no example or a few."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer


def prompt(
    model: Annotated[Path, typer.Argument(help="a model folder that can write")],
    prompt_name: Annotated[str, typer.Option("--prompt", help="question, cloze, summary, translation, or a JSON file")],
    data: Annotated[Path, typer.Option(help="JSON lines with the fields of the prompt, and answer")],
    num_shots: Annotated[int, typer.Option(help="how many examples stand before each question", min=0)] = 0,
    examples: Annotated[Path | None, typer.Option(help="JSON lines to draw the shots from")] = None,
    seed: Annotated[int, typer.Option(help="of the draw of shots")] = 0,
    as_json: Annotated[bool, typer.Option("--json", help="print one JSON object a line")] = False,
) -> None:
    """Put questions to a model as a prompt file says, and measure its answers."""
    import json

    import polyseme
    from polyseme.errors import ConfigError
    from polyseme.evaluation.prompting import (
        answer_questions,
        evaluate_answers,
        load_prompt_template,
        read_questions,
        sample_shots,
    )
    from polyseme.generation.text import GenerationConfig

    if (num_shots > 0) != (examples is not None):
        raise ConfigError("--num-shots K and --examples FILE go together")
    template = load_prompt_template(prompt_name)
    questions = read_questions(data, template)
    shot_examples = sample_shots(read_questions(examples, template), num_shots, seed, questions) if examples else []
    language_model = polyseme.load(model)

    def generate(prompts: list[str], max_new_tokens: int) -> list[str]:
        return [texts[0].text for texts in language_model.generate(prompts, GenerationConfig(max_new_tokens))]

    answers = answer_questions(generate, template, questions, shot_examples)
    for question, answer in zip(questions, answers):
        row = {**question.fields, "answers": question.answers, "prediction": answer}
        print(json.dumps(row, ensure_ascii=False) if as_json else f"{answer!r}  (right: {question.answers[0]!r})")
    metrics = evaluate_answers(template, answers, questions) | {"num_shots": num_shots}
    if as_json:
        print(json.dumps(metrics))
    else:
        headline = metrics[template.metric]
        print(f"{template.metric}: {headline:.4f} ({len(questions)} questions, {num_shots} shots)")

"""`polyseme prompt`: tasks as prompts, zero-shot or few-shot."""

from pathlib import Path
from typing import Annotated

from typer import Argument, Option

from polyseme.cli import options
from polyseme.cli.output import print_json
from polyseme.errors import ConfigError, require_packages
from polyseme.io.limits import MAX_INTEGER


def prompt(
    model: Annotated[Path, Argument(help="Folder of a model that generates text.")],
    prompt_name: Annotated[str, Option("--prompt", help="question, cloze, summary, translation, or a JSON file.")],
    data: Annotated[Path, Option(help="Fields of the prompt and `answer`: JSON lines, CSV, TSV or Parquet.")],
    num_shots: Annotated[int, Option(help="Number of examples before each question (few-shot).", min=0)] = 0,
    examples: Annotated[Path | None, Option(help="Records to sample the shots from.")] = None,
    seed: Annotated[int, Option(help="Random seed of the shots.", min=0, max=MAX_INTEGER)] = 0,
    as_json: options.JsonLinesOption = False,
) -> None:
    """Answer questions written as prompts, and evaluate the answers."""
    import polyseme
    from polyseme.evaluation import prompting

    if (num_shots > 0) != (examples is not None):
        raise ConfigError("--num-shots K and --examples FILE go together")
    template = prompting.load_prompt_template(prompt_name)
    require_packages({"rouge_score": "ROUGE"} | ({"sacrebleu": "BLEU"} if template.metric == "bleu" else {}))
    questions = prompting.read_questions(data, template)
    shots = []
    if examples:
        shots = prompting.sample_shots(prompting.read_questions(examples, template), num_shots, seed, questions)
    language_model = polyseme.load(model)

    def generate(prompts: list[str], max_new_tokens: int) -> list[str]:
        return [texts[0].text for texts in language_model.generate(prompts, max_new_tokens=max_new_tokens)]

    answers = prompting.answer_questions(generate, template, questions, shots)
    for question, answer in zip(questions, answers):
        if as_json:
            print_json({**question.fields, "answers": question.answers, "prediction": answer}, indent=None)
        else:
            print(f"{answer!r}  (expected: {question.answers[0]!r})")
    metrics = prompting.evaluate_answers(template, answers, questions) | {"num_shots": num_shots}
    if as_json:
        print_json(metrics, indent=None)
    else:
        print(f"{template.metric}: {metrics[template.metric]:.4f} ({len(questions)} questions, {num_shots} shots)")

"""`polyseme distill`."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from typer import Argument, Option

from polyseme.cli import options
from polyseme.cli.completion import RECIPE_NAMES, complete
from polyseme.cli.output import parse_settings, print_json, print_table

if TYPE_CHECKING:
    from polyseme.compress.result import CompressionResult

STUDENT_HELP = (
    "The student: a recipe, a recipe.json, or a size of its family; default: half of the teacher's layers and, if the "
    "teacher was trained here, half of its steps. For --task also the folder of a smaller pre-trained model."
)


def distill(
    out: options.RunOption,
    teacher: Annotated[Path | None, Argument(help="Folder of the teacher, a model or its run.")] = None,
    corpus: Annotated[Path | None, Option(help="Corpus folder that was prepared with the teacher's tokenizer.")] = None,
    student: Annotated[str, Option(help=STUDENT_HELP, autocompletion=complete(RECIPE_NAMES))] = "",
    overrides: options.SetOption = [],
    budget: options.BudgetOption = "",
    seed: options.SeedOption = None,
    resume: options.ResumeOption = False,
    from_scratch: Annotated[bool, Option("--from-scratch", help="Start the student from random weights.")] = False,
    as_json: options.JsonOption = False,
) -> None:
    """Distill a teacher into a smaller model. Ctrl-C and SIGTERM save and stop; --resume continues exactly."""
    from polyseme.compress import distill as run
    from polyseme.train import distributed

    settings = parse_settings(overrides, seed=seed, budget=budget)
    if from_scratch:
        settings["objective.init_from_teacher"] = False
    compressed = run(teacher, corpus, out=out, student=student, resume=resume, **settings)
    if distributed.init_process_group()[0] == 0:
        print_compression(compressed, as_json)
    distributed.shutdown()


def print_compression(compressed: "CompressionResult", as_json: bool) -> None:
    """Print the comparison of a model with the smaller one as a table or as JSON."""
    if as_json:
        print_json(compressed.to_json())
        return
    print_table(*compressed.table)
    print(f"{compressed.out}/model; see {compressed.out}/report.html")
    for warning in compressed.record["results"].get("warnings", []):
        print(f"warning: {warning}")

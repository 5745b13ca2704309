"""`polyseme distill`."""

from pathlib import Path
from typing import Annotated

from typer import Argument, Option

from polyseme.cli import options
from polyseme.cli.completion import DATASET_NAMES, RECIPE_NAMES, TASK_NAMES, complete
from polyseme.cli.output import parse_seeds, parse_settings, print_compression
from polyseme.errors import ConfigError

TASK_HELP = "Distill a model that was fine-tuned for this task: classification, tagging, extractive_qa, a data set, …"
STUDENT_HELP = (
    "The student: a recipe, a recipe.json, or a size of its family; default: half of the teacher's layers and, if the "
    "teacher was trained here, half of its steps. With --task also the folder of a smaller pre-trained model."
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
    task: Annotated[str, Option(help=TASK_HELP, autocompletion=complete(TASK_NAMES, DATASET_NAMES))] = "",
    data: Annotated[Path | None, Option(help="For --task: labeled examples, or the folder of a data set.")] = None,
    dev: Annotated[Path | None, Option(help="Dev examples; default: one in ten of --data.")] = None,
    text: Annotated[Path | None, Option(help="For --task: unlabeled texts, in a file like --data.")] = None,
    seeds: Annotated[str, Option(help="For --task: number of random seeds, or the seeds themselves.")] = "",
    as_json: options.JsonOption = False,
) -> None:
    """Distill a teacher into a smaller model, and compare the two.

    A language model is distilled on a --corpus. Ctrl-C and SIGTERM save the run and stop it; --resume continues it
    exactly. With --task, a fine-tuned model is distilled on labeled --data and unlabeled --text; the same command
    resumes the run.
    """
    from polyseme.compress import distill as run
    from polyseme.train import distributed

    settings = parse_settings(overrides, seed=seed, budget=budget)
    if from_scratch:
        settings["from_scratch" if task else "objective.init_from_teacher"] = bool(task)
    files = {"data": data, "dev": dev, "text": text, "seeds": parse_seeds(seeds) if seeds else None}
    for name, advice in {"budget": "--set epochs=3 says how long to train", "seed": "pass --seeds"}.items():
        if task and name in settings:
            raise ConfigError(f"--{name} is for a language model: with --task, {advice}")
    for name, value in files.items():
        if value is not None and not task:
            raise ConfigError(f"--{name} is for a fine-tuned model: pass --task too")
        settings |= {name: value} if value is not None else {}
    compressed = run(teacher, corpus, out=out, student=student, task=task or None, resume=resume, **settings)
    if distributed.init_process_group()[0] == 0:
        print_compression(compressed, as_json, f"model: {out / 'model'}; training: {out / 'report.html'}")
    distributed.shutdown()

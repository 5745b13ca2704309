"""Distillation of a fine-tuned model into a smaller one, on labeled examples and on unlabeled texts."""

import logging
import tempfile
from collections.abc import Iterator, Mapping
from dataclasses import fields
from pathlib import Path
from typing import Any

import numpy as np

from polyseme.compress.distillation import compare_folders, format_layers, save_result
from polyseme.compress.result import CompressionResult, CompressionRow
from polyseme.compress.student import (
    halve_layers,
    init_from_teacher,
    student_model_config,
    trunk_arguments,
    warn_if_larger,
)
from polyseme.datasets.catalog import DATASETS
from polyseme.errors import ConfigError, ModelError
from polyseme.families import FAMILIES
from polyseme.finetuning.api import ReadOptions, find_task_type, finetune
from polyseme.finetuning.distillation import TaskDistillation, TaskTeacher, check_task_type
from polyseme.finetuning.finetune import finetuning_history
from polyseme.io.json import read_json
from polyseme.tasks import task_from_json
from polyseme.tasks.base import TaskConfig
from polyseme.train.recipe import Recipe
from polyseme.weights.folder import load_model, read_model_config, save_model

logger = logging.getLogger(__name__)
HELD_OUT_EVERY = 10  # one labeled example of so many is held out at random if there are no dev examples


def distill_task(
    teacher: Path, task: str, out: Path, student: str | Recipe, options: dict[str, Any]
) -> CompressionResult:
    """Distill a model that was fine-tuned for a task, in a run folder as that of `finetune`, and compare the two.

    The student has half of the teacher's layers, with their weights. `student` is a size of its family, a recipe, or
    the folder of a smaller pre-trained model with the same vocabulary. `options` are those of `polyseme.finetune`, the
    fields of `TaskDistillation`, and `text`: a file of unlabeled texts, or a list, for which only the teacher's scores
    are learned. For a task that is not a data set, `data` are labeled examples, of which one in ten is held out unless
    there are `dev` examples. The same call resumes a run.
    """
    distillation = TaskDistillation(
        **{f.name: options.pop(f.name) for f in fields(TaskDistillation) if f.name in options}
    )
    files = {name: options.pop(name, None) for name in ("train", "dev", "data")}
    text, seeds = options.pop("text", None), options.pop("seeds", 1)
    reading = ReadOptions(**{f.name: options[f.name] for f in fields(ReadOptions) if options.get(f.name) is not None})
    task_type = find_task_type(task)
    check_task_type(task_type)
    unlabeled = [] if text is None else reading.read(task_type, text, reading.columns, needs_labels=False)
    if task not in DATASETS:
        files = _read_labeled(task_type, files, reading)
    for name, value in inherited_settings(teacher, task_type).items():
        options.setdefault(name, value)
    with tempfile.TemporaryDirectory(prefix="polyseme-student-") as scratch:
        if isinstance(student, str) and student and Path(student).is_dir():
            path, name = Path(student), student
        else:
            path = Path(scratch) / "student"
            name = save_student(teacher, student, path)
        options["teacher"] = TaskTeacher(teacher, distillation, unlabeled, name)
        run = finetune(path, task, out, files, seeds, (), options)
    results = read_json(out / "results.json")
    rows, device = compare_folders(teacher, run.model)
    metrics = sorted(results["teacher"]["metrics"].items(), key=lambda metric: metric[0] != run.primary_metric)
    for metric, value in metrics:
        if metric in run.mean:
            row = CompressionRow.compare(f"dev {metric}", value, run.mean[metric])
            rows.append(row._replace(after_std=run.std[metric]))
    record = {"teacher": str(teacher), "device": device, "results": results}
    notes = _describe_run(results, format_layers(run.model), teacher, len(run.seeds))
    return save_result(rows, out, record, tuple(notes))


def _describe_run(results: Mapping[str, Any], layers: str, teacher: Path, num_seeds: int) -> Iterator[str]:
    """Yield sentences about a distillation for its page."""
    facts = results["teacher"]
    yield f"A student with {layers} for {results['task']}, distilled from {teacher}; it started as {results['model']}."
    examples = f"{results['train_examples']:,} labeled examples and {facts['num_unlabeled']:,} unlabeled ones"
    scores = f"{facts['soft_weight']:g} × the teacher's scores at temperature {facts['temperature']:g}"
    yield f"It learned from {examples}: {facts['hard_weight']:g} × the labels, {scores}."
    if num_seeds > 1:
        yield f"Its scores are means over {num_seeds} seeds; the model in the folder is that of the best one."


def _read_labeled(task_type: Any, files: dict[str, Any], reading: ReadOptions) -> dict[str, Any]:
    """Return training and dev examples of a task that is not a data set; `data` is another word for `train`."""
    train, dev = files["train"] if files["data"] is None else files["data"], files["dev"]
    if train is None:
        raise ConfigError("`data` is missing: pass a file of labeled examples")
    if files["train"] is not None and files["data"] is not None:
        raise ConfigError("`train` and `data` are both labeled examples: pass one of them")
    if dev is None:
        examples = reading.read(task_type, train, reading.columns)
        if len(examples) < 2 * HELD_OUT_EVERY:
            raise ConfigError(f"{train} has {len(examples)} examples, too few to hold some out: pass `dev` examples")
        order = np.random.default_rng(0).permutation(len(examples))
        held_out = set(order[: len(examples) // HELD_OUT_EVERY].tolist())
        train = [example for i, example in enumerate(examples) if i not in held_out]
        dev = [examples[i] for i in sorted(held_out)]
    return {"train": train, "dev": dev, "data": None}


def inherited_settings(teacher: Path, task_type: type[TaskConfig]) -> dict[str, Any]:
    """Return the settings of the teacher's task that differ from the defaults, such as the decoder of tags.

    What belongs to the training examples, such as labels, is fitted again.
    """
    metadata = read_model_config(teacher)[1]
    if "task" not in metadata:
        return {}
    task, default = task_from_json(metadata["task"], (task_type,)), task_type()
    if not isinstance(task, task_type):
        return {}
    names = [f.name for f in fields(task_type) if f.name not in ("labels", "name", "text_template")]
    return {name: getattr(task, name) for name in names if getattr(task, name) != getattr(default, name)}


def save_student(teacher: Path, student: str | Recipe, out: Path) -> str:
    """Write the initial student of a teacher, and return what results call it.

    It has half of the layers of the teacher, or the size of a `student`: a size of its family, or a recipe. It starts
    with layers of the teacher, or with random weights where the shapes differ.
    """
    folder = load_model(teacher)
    config, heads = folder.model.config, dict(folder.model.config.heads)
    if student:
        trunk_config = student_model_config(config, student)
        is_alike = (trunk_config.family, trunk_config.trunk.dim) == (config.family, config.trunk.dim)
        student_config = trunk_config.replace(heads=heads if is_alike else {})
        name = f"{student.name if isinstance(student, Recipe) else student}, from {teacher}"
    else:
        arguments = halve_layers(trunk_arguments(config, config.family))
        trunk = FAMILIES[config.family].trunk_config(**arguments, vocab_size=config.trunk.embeddings.vocab_size)
        student_config, name = config.replace(trunk=trunk), f"half of the layers of {teacher}"
    model = student_config.build(0)
    warn_if_larger(model, folder.model)
    try:
        init_from_teacher(model, folder.model)
    except ModelError as error:
        logger.warning("%s; it starts from random weights: pass the folder of a pre-trained `student` instead", error)
    save_model(out, model, folder.tokenizer, finetuning_history(folder.metadata))
    return name

"""`polyseme evaluate` and `polyseme predict`."""

from __future__ import annotations

import contextlib
import io
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

if TYPE_CHECKING:
    from polyseme.tasks.examples import TaskType
    from polyseme.tasks.task import Prediction

ModelsArgument = Annotated[
    list[Path], typer.Argument(help="a fine-tuned model folder; with --ensemble several, or a run with what it kept")
]
EnsembleOption = Annotated[bool, typer.Option(help="several models as one: their probabilities are averaged")]
TextColumnOption = Annotated[str, typer.Option(help="the column or key of the text")]
PairColumnOption = Annotated[str, typer.Option(help="the column or key of the second text")]
LabelColumnOption = Annotated[str, typer.Option(help="the column or key of the label")]
HeaderOption = Annotated[bool, typer.Option(help="TSV has a header; without, columns are numbers from 1")]
TruncateOption = Annotated[
    bool | None, typer.Option(help="cut what is longer than the model reads; default: as fine-tuned")
]

TaskOption = Annotated[
    str,
    typer.Option(
        "--task",
        help="how to read the data if the folder does not say; or a named data set, for its dev; of a model of several "
        "tasks, which",
    ),
]
SkipBadOption = Annotated[bool, typer.Option(help="go on past bad rows and count them")]


def evaluate(
    models: ModelsArgument,
    data: Annotated[
        Path, typer.Option(help="labelled examples: TSV, JSON lines, CoNLL columns, SQuAD's JSON; a data set's folder")
    ],
    text_column: TextColumnOption = "text",
    pair_column: PairColumnOption = "pair",
    label_column: LabelColumnOption = "label",
    header: HeaderOption = True,
    truncate: TruncateOption = None,
    task: TaskOption = "",
    skip_bad: SkipBadOption = False,
    as_json: Annotated[bool, typer.Option("--json", help="print JSON")] = False,
    ensemble: EnsembleOption = False,
) -> None:
    """Measure a fine-tuned model, or several as one, on labelled examples: how good, how large, how fast."""
    from polyseme.cli.output import print_json, task_type_of
    from polyseme.datasets.catalog import DATASETS
    from polyseme.evaluation.latency import median_latency_ms
    from polyseme.report.html import dev_selection_note
    from polyseme.tasks.examples import read_examples

    predictor = _load_predictor(models, ensemble, truncate, task)
    task = task or predictor.reader_dataset
    task_type = task_type_of(task) if task and not predictor.is_multitask else predictor.task_type
    if task in DATASETS:
        examples = DATASETS[task].read_split(data, "dev", skip_bad)
    else:
        examples = read_examples(
            data, task_type, text=text_column, pair=pair_column, label=label_column, header=header, skip_bad=skip_bad
        )
    start = time.perf_counter()
    metrics = predictor.evaluate(examples, extra_metrics=DATASETS[task].extra_metrics if task in DATASETS else None)
    seconds = time.perf_counter() - start
    with contextlib.redirect_stderr(io.StringIO()):  # what is to say of cut texts was said
        latency_ms = median_latency_ms(lambda i: predictor.predict([examples[i]]), len(examples))
    if task and predictor.dev_choices and task == predictor.dataset:
        print(dev_selection_note(predictor.dev_choices), file=sys.stderr)
    if as_json:
        speed = {"examples_per_second": len(examples) / seconds, "ms_per_text": latency_ms}
        print_json({"examples": len(examples), "parameters": predictor.num_parameters, **speed, **metrics})
        return
    print(f"{len(examples)} examples, {len(examples) / seconds:,.1f} a second, {latency_ms:.1f} ms for one alone")
    print(f"{predictor.num_parameters:,} parameters")
    for name, value in metrics.items():
        print(f"{name}: {value:.4f}")


def predict(
    models: ModelsArgument,
    data: Annotated[Path, typer.Option(help="examples, labelled or not")],
    out: Annotated[
        Path,
        typer.Option(help="the file to write: .jsonl, .tsv, .conll, .json for SQuAD's script, .props for srl-eval"),
    ],
    text_column: TextColumnOption = "text",
    pair_column: PairColumnOption = "pair",
    label_column: LabelColumnOption = "label",
    header: HeaderOption = True,
    truncate: TruncateOption = None,
    task: Annotated[
        str,
        typer.Option(
            "--task",
            help="how to read the data if the folder does not say; or a named data set, whose "
            "test examples are answered, for GLUE and SuperGLUE as their servers want them; "
            "of a model of several tasks, which",
        ),
    ] = "",
    skip_bad: SkipBadOption = False,
    ensemble: EnsembleOption = False,
) -> None:
    """Write a label and its probability, or a number, for each example, in the order of the input."""
    from polyseme.cli.output import task_type_of
    from polyseme.datasets.catalog import DATASETS
    from polyseme.evaluation.predict import write_predictions
    from polyseme.evaluation.submission import SUBMISSION_FILES, write_submission
    from polyseme.tasks.examples import read_examples

    predictor = _load_predictor(models, ensemble, truncate, task)
    task = task or predictor.reader_dataset
    task_type = task_type_of(task) if task and not predictor.is_multitask else predictor.task_type
    if task in DATASETS:
        examples = DATASETS[task].read_split(data, "test", skip_bad, needs_labels=False)
    else:
        examples = read_examples(
            data,
            task_type,
            text=text_column,
            pair=pair_column,
            label=label_column,
            header=header,
            needs_labels=False,
            skip_bad=skip_bad,
        )
    predictions = predictor.predict(examples)
    if task in SUBMISSION_FILES:
        write_submission(out, task, predictions, examples)
    else:
        write_predictions(out, examples, predictions)
    print(f"{out}: {len(examples)} predictions")


@dataclass(frozen=True)
class TaskPredictor:
    """One model or several as one: what they answer, and how they are asked. `dev_choices` is what was chosen on the
    dev examples of `dataset`."""

    task_type: TaskType
    num_parameters: int
    evaluate: Callable[..., dict[str, float]]
    predict: Callable[[Any], list[Prediction]]
    dataset: str = ""
    dev_choices: tuple[str, ...] = ()
    is_multitask: bool = False  # whether the model has other tasks too, so that --task said which

    @property
    def reader_dataset(self) -> str:
        """The data set as which a file has to be read, where its columns alone say what is asked: semantic roles."""
        return "srl" if self.dataset.startswith("srl") else ""


def _load_predictor(models: list[Path], ensemble: bool, truncate: bool | None, task: str = "") -> TaskPredictor:
    import polyseme
    from polyseme.errors import ConfigError, UnsupportedError
    from polyseme.evaluation import predict as single_model
    from polyseme.evaluation.ensemble import evaluate_ensemble, find_models, predict_ensemble
    from polyseme.finetuning.frozen import is_feature_model, load_feature_model
    from polyseme.finetuning.multitask import select_task
    from polyseme.tasks.task import Task
    from polyseme.train.flops import count_parameters

    models = [model_path for path in models for model_path in find_models(path)] if ensemble else models
    if ensemble != (len(models) > 1):
        message = f"--ensemble is for several models, or a run that kept some (--keep-seeds): {models[0]} is one"
        raise ConfigError(message if ensemble else "several models: say --ensemble")
    if feature_models := [model for model in models if is_feature_model(model)]:
        if ensemble:
            raise UnsupportedError(f"{feature_models[0]} is laid over features: --ensemble is for fine-tuned models")
        feature_model = load_feature_model(feature_models[0])
        num_params = count_parameters(feature_model.model) + sum(
            count_parameters(e.model.trunk) for e in feature_model.reader.encoders
        )
        return TaskPredictor(
            feature_model.task.task_type,
            num_params,
            feature_model.evaluate,
            feature_model.predict,
            *_dev_choices([feature_model.metadata]),
        )
    loaded_folders = [polyseme.load(model).folder for model in models]
    folders, is_multitask = (
        [select_task(folder, task) for folder in loaded_folders],
        "tasks" in loaded_folders[0].metadata,
    )
    task_type = Task.from_model(folders[0].model, folders[0].metadata).task_type
    num_params, metadata = (
        sum(count_parameters(folder.model) for folder in folders),
        [folder.metadata for folder in folders],
    )
    if ensemble:
        evaluate = partial(evaluate_ensemble, folders, truncate=truncate)
        return TaskPredictor(
            task_type,
            num_params,
            evaluate,
            lambda examples: predict_ensemble(folders, examples, truncate=truncate)[1],
            *_dev_choices(metadata),
            is_multitask,
        )
    predict_fn = partial(single_model.predict, folders[0], truncate=truncate)
    evaluate = partial(single_model.evaluate, folders[0], truncate=truncate)
    return TaskPredictor(task_type, num_params, evaluate, predict_fn, *_dev_choices(metadata), is_multitask)


def _dev_choices(metadata: list[dict[str, Any]]) -> tuple[str, tuple[str, ...]]:
    """The data set, and what was chosen on its dev examples: settings, epochs, the best of several seeds."""
    choices: list[str] = []
    for results in [entry.get("results", {}) for entry in metadata]:
        choices += results.get("chosen_on_dev", [])
        choices += [f"the best of {len(results['seeds'])} seeds"] if len(results.get("seeds", ())) > 1 else []
    return metadata[0].get("data", ""), tuple(dict.fromkeys(choices))

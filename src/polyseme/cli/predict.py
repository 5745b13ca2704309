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
    from polyseme.tasks.base import TaskConfig

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
    from polyseme.cli.output import print_json
    from polyseme.datasets.catalog import DATASETS
    from polyseme.inference.prediction import median_latency_ms
    from polyseme.report.run_page import dev_selection_note
    from polyseme.tasks.readers.rows import Columns

    predictor = _load_predictor(models, ensemble, truncate, task)
    if task in DATASETS:
        examples = DATASETS[task].read_split(data, "dev", skip_bad)
    else:
        columns = Columns(text_column, pair_column, label_column, header)
        examples = predictor.reading_task(task).read(data, columns, skip_bad=skip_bad)
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
    from polyseme.datasets.catalog import DATASETS
    from polyseme.evaluation.submission import SUBMISSION_FILES, write_submission
    from polyseme.tasks.readers.rows import Columns

    predictor = _load_predictor(models, ensemble, truncate, task)
    if task in DATASETS:
        examples = DATASETS[task].read_split(data, "test", skip_bad, needs_labels=False)
    else:
        columns = Columns(text_column, pair_column, label_column, header)
        examples = predictor.reading_task(task).read(data, columns, needs_labels=False, skip_bad=skip_bad)
    predictions = predictor.predict(examples)
    if task in SUBMISSION_FILES:
        write_submission(out, task, predictions, examples)
    else:
        predictor.task.write(out, examples, predictions)
    print(f"{out}: {len(examples)} predictions")


@dataclass(frozen=True)
class TaskPredictor:
    """One model, or several as one: their task, and how they predict. `dev_choices` is what was chosen on the dev
    examples of `dataset`."""

    task: TaskConfig
    num_parameters: int
    evaluate: Callable[..., dict[str, float]]
    predict: Callable[[Any], list[Any]]
    dataset: str = ""
    dev_choices: tuple[str, ...] = ()
    is_multitask: bool = False  # whether the model has other tasks too, so that --task chose one

    def reading_task(self, name: str) -> type[TaskConfig]:
        """Return the task that reads the data: the model's, unless --task names another."""
        from polyseme.cli.output import find_task

        return find_task(name) if name and not self.is_multitask else type(self.task)


def _load_predictor(models: list[Path], ensemble: bool, truncate: bool | None, task: str = "") -> TaskPredictor:
    from polyseme.errors import ConfigError
    from polyseme.evaluation.ensemble import evaluate_ensemble, find_models, predict_ensemble
    from polyseme.evaluation.predict import evaluate as evaluate_one
    from polyseme.inference.feature_model import FeatureModel
    from polyseme.inference.load import load_neural
    from polyseme.inference.prediction import predict as predict_one
    from polyseme.inference.prediction import select_task
    from polyseme.tasks import load_task
    from polyseme.train.loop import count_parameters

    models = [model_path for path in models for model_path in find_models(path)] if ensemble else models
    if ensemble != (len(models) > 1):
        message = f"--ensemble is for several models, or a run that kept some (--keep-seeds): {models[0]} is one"
        raise ConfigError(message if ensemble else "several models: say --ensemble")
    if feature_models := [model for model in models if FeatureModel.is_folder(model)]:
        if ensemble:
            raise ConfigError(f"{feature_models[0]} is trained over features: --ensemble is for fine-tuned models")
        return _load_feature_predictor(feature_models[0])
    loaded_folders = [load_neural(model).folder for model in models]
    folders = [select_task(folder, task) for folder in loaded_folders]
    num_params = sum(count_parameters(folder.model) for folder in folders)
    if ensemble:
        evaluate_fn: Any = partial(evaluate_ensemble, folders, truncate=truncate)
        predict_fn: Any = lambda examples: predict_ensemble(folders, examples, truncate=truncate)[1]  # noqa: E731
    else:
        evaluate_fn = partial(evaluate_one, folders[0], truncate=truncate)
        predict_fn = partial(predict_one, folders[0], truncate=truncate)
    return TaskPredictor(
        load_task(folders[0].metadata, folders[0].model.config),
        num_params,
        evaluate_fn,
        predict_fn,
        *_dev_choices([folder.metadata for folder in folders]),
        is_multitask="tasks" in loaded_folders[0].metadata,
    )


def _load_feature_predictor(path: Path) -> TaskPredictor:
    from polyseme.inference.feature_model import FeatureModel
    from polyseme.train.loop import count_parameters

    model = FeatureModel.load(path)
    encoder_params = sum(count_parameters(encoder.model.trunk) for encoder in model.reader.encoders)
    num_params = count_parameters(model.model) + encoder_params
    return TaskPredictor(
        model.task, num_params, model.evaluate, model.predict_examples, *_dev_choices([model.metadata])
    )


def _dev_choices(metadata: list[dict[str, Any]]) -> tuple[str, tuple[str, ...]]:
    """The data set, and what was chosen on its dev examples: settings, epochs, the best of several seeds."""
    choices: list[str] = []
    for results in [entry.get("results", {}) for entry in metadata]:
        choices += results.get("chosen_on_dev", [])
        choices += [f"the best of {len(results['seeds'])} seeds"] if len(results.get("seeds", ())) > 1 else []
    return metadata[0].get("data", ""), tuple(dict.fromkeys(choices))

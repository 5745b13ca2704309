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
    from polyseme.tasks.examples import Kind
    from polyseme.tasks.task import Prediction

Models = Annotated[
    list[Path], typer.Argument(help="a fine-tuned model folder; with --ensemble several, or a run with what it kept")
]
Ensemble = Annotated[bool, typer.Option(help="several models as one: their probabilities are averaged")]
Text = Annotated[str, typer.Option(help="the column or key of the text")]
Pair = Annotated[str, typer.Option(help="the column or key of the second text")]
Label = Annotated[str, typer.Option(help="the column or key of the label")]
Header = Annotated[bool, typer.Option(help="TSV has a header; without, columns are numbers from 1")]
Truncate = Annotated[bool | None, typer.Option(help="cut what is longer than the model reads; default: as fine-tuned")]

KindOrData = Annotated[
    str,
    typer.Option(
        "--task",
        help="how to read the data if the folder does not say; or a named data set, for its dev; of a model of several "
        "tasks, which",
    ),
]
SkipBad = Annotated[bool, typer.Option(help="go on past bad rows and count them")]


def evaluate(
    models: Models,
    data: Annotated[
        Path, typer.Option(help="labelled examples: TSV, JSON lines, CoNLL columns, SQuAD's JSON; a data set's folder")
    ],
    text: Text = "text",
    pair: Pair = "pair",
    label: Label = "label",
    header: Header = True,
    truncate: Truncate = None,
    task: KindOrData = "",
    skip_bad: SkipBad = False,
    as_json: Annotated[bool, typer.Option("--json", help="print JSON")] = False,
    ensemble: Ensemble = False,
) -> None:
    """Measure a fine-tuned model, or several as one, on labelled examples: how good, how large, how fast."""
    from polyseme.cli.output import kind_of, print_json
    from polyseme.datasets.catalog import DATA_SETS
    from polyseme.evaluation.latency import ms_alone
    from polyseme.report.html import flatter
    from polyseme.tasks.examples import read_examples

    opened = _open(models, ensemble, truncate, task)
    task = task or opened.columns
    kind = kind_of(task) if task and not opened.several else opened.kind
    if task in DATA_SETS:
        given = DATA_SETS[task].part(data, "dev", skip_bad)
    else:
        given = read_examples(data, kind, text=text, pair=pair, label=label, header=header, skip_bad=skip_bad)
    began = time.perf_counter()
    found = opened.evaluate(given, extra=DATA_SETS[task].extra if task in DATA_SETS else None)
    seconds = time.perf_counter() - began
    with contextlib.redirect_stderr(io.StringIO()):  # what is to say of cut texts was said
        alone = ms_alone(lambda i: opened.predict([given[i]]), len(given))
    if task and opened.chosen and task == opened.data:
        print(flatter(opened.chosen), file=sys.stderr)
    if as_json:
        speed = {"examples_per_second": len(given) / seconds, "ms_per_text": alone}
        print_json({"examples": len(given), "parameters": opened.parameters, **speed, **found})
        return
    print(f"{len(given)} examples, {len(given) / seconds:,.1f} a second, {alone:.1f} ms for one alone")
    print(f"{opened.parameters:,} parameters")
    for name, value in found.items():
        print(f"{name}: {value:.4f}")


def predict(
    models: Models,
    data: Annotated[Path, typer.Option(help="examples, labelled or not")],
    out: Annotated[
        Path,
        typer.Option(help="the file to write: .jsonl, .tsv, .conll, .json for SQuAD's script, .props for srl-eval"),
    ],
    text: Text = "text",
    pair: Pair = "pair",
    label: Label = "label",
    header: Header = True,
    truncate: Truncate = None,
    task: Annotated[
        str,
        typer.Option(
            "--task",
            help="how to read the data if the folder does not say; or a named data set, whose "
            "test examples are answered, for GLUE and SuperGLUE as their servers want them; "
            "of a model of several tasks, which",
        ),
    ] = "",
    skip_bad: SkipBad = False,
    ensemble: Ensemble = False,
) -> None:
    """Write a label and its probability, or a number, for each example, in the order of the input."""
    from polyseme.cli.output import kind_of
    from polyseme.datasets.catalog import DATA_SETS
    from polyseme.evaluation.predict import write_predictions
    from polyseme.evaluation.submission import FILES, write_submission
    from polyseme.tasks.examples import read_examples

    opened = _open(models, ensemble, truncate, task)
    task = task or opened.columns
    kind = kind_of(task) if task and not opened.several else opened.kind
    if task in DATA_SETS:
        given = DATA_SETS[task].part(data, "test", skip_bad, need_labels=False)
    else:
        given = read_examples(
            data, kind, text=text, pair=pair, label=label, header=header, need_labels=False, skip_bad=skip_bad
        )
    found = opened.predict(given)
    if task in FILES:
        write_submission(out, task, found, given)
    else:
        write_predictions(out, given, found)
    print(f"{out}: {len(given)} predictions")


@dataclass(frozen=True)
class Opened:
    """One model or several as one: what they answer, and how they are asked. `chosen` is what was chosen on the dev
    examples of `data`."""

    kind: Kind
    parameters: int
    evaluate: Callable[..., dict[str, float]]
    predict: Callable[[Any], list[Prediction]]
    data: str = ""
    chosen: tuple[str, ...] = ()
    several: bool = False  # whether the model has other tasks too, so that --task said which

    @property
    def columns(self) -> str:
        """The data set as which a file has to be read, where its columns alone say what is asked: semantic roles."""
        return "srl" if self.data.startswith("srl") else ""


def _open(models: list[Path], ensemble: bool, truncate: bool | None, task: str = "") -> Opened:
    import polyseme
    from polyseme.errors import UserError
    from polyseme.evaluation import predict as alone
    from polyseme.evaluation.ensemble import ensemble as together
    from polyseme.evaluation.ensemble import evaluate_ensemble, models_in
    from polyseme.finetuning.frozen import is_over, open_over
    from polyseme.finetuning.multitask import one_task
    from polyseme.tasks.task import Task
    from polyseme.train.flops import num_parameters

    models = [found for path in models for found in models_in(path)] if ensemble else models
    if ensemble != (len(models) > 1):
        one = f"--ensemble is for several models, or a run that kept some (--keep-seeds): {models[0]} is one"
        raise UserError(one if ensemble else "several models: say --ensemble")
    if laid := [model for model in models if is_over(model)]:
        if ensemble:
            raise UserError(f"{laid[0]} is laid over features: --ensemble is for fine-tuned models")
        over = open_over(laid[0])
        size = num_parameters(over.model) + sum(num_parameters(e.model.trunk) for e in over.reader.encoders)
        return Opened(over.task.kind, size, over.evaluate, over.predict, *_chosen([over.notes]))
    loaded = [polyseme.load(model).folder for model in models]
    folders, several = [one_task(folder, task) for folder in loaded], "tasks" in loaded[0].notes
    kind = Task.from_model(folders[0].model, folders[0].notes).kind
    size, notes = sum(num_parameters(folder.model) for folder in folders), [folder.notes for folder in folders]
    if ensemble:
        evaluate = partial(evaluate_ensemble, folders, truncate=truncate)
        return Opened(
            kind,
            size,
            evaluate,
            lambda given: together(folders, given, truncate=truncate)[1],
            *_chosen(notes),
            several,
        )
    asked = partial(alone.predict, folders[0], truncate=truncate)
    evaluate = partial(alone.evaluate, folders[0], truncate=truncate)
    return Opened(kind, size, evaluate, asked, *_chosen(notes), several)


def _chosen(notes: list[dict[str, Any]]) -> tuple[str, tuple[str, ...]]:
    """The data set, and what was chosen on its dev examples: settings, epochs, the best of several seeds."""
    found: list[str] = []
    for results in [note.get("results", {}) for note in notes]:
        found += results.get("chosen_on_dev", [])
        found += [f"the best of {len(results['seeds'])} seeds"] if len(results.get("seeds", ())) > 1 else []
    return notes[0].get("data", ""), tuple(dict.fromkeys(found))

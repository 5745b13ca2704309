"""`polyseme evaluate` and `polyseme predict`."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Annotated

import typer

Model = Annotated[Path, typer.Argument(help="a fine-tuned model folder")]
Text = Annotated[str, typer.Option(help="the column or key of the text")]
Pair = Annotated[str, typer.Option(help="the column or key of the second text")]
Label = Annotated[str, typer.Option(help="the column or key of the label")]
Header = Annotated[bool, typer.Option(help="TSV has a header; without, columns are numbers from 1")]
Truncate = Annotated[bool | None, typer.Option(help="cut what is longer than the model reads; default: as fine-tuned")]

KindOrData = Annotated[
    str,
    typer.Option("--task", help="how to read the data if the folder does not say; or a named data set, for its dev"),
]
SkipBad = Annotated[bool, typer.Option(help="go on past bad rows and count them")]


def evaluate(
    models: Annotated[list[Path], typer.Argument(help="a fine-tuned model folder; several with --ensemble")],
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
    ensemble: Annotated[bool, typer.Option(help="several models as one: their probabilities are averaged")] = False,
) -> None:
    """Measure a fine-tuned model, or several as one, on labelled examples."""
    import polyseme
    from polyseme.cli.output import kind_of, print_json
    from polyseme.errors import UserError
    from polyseme.tasks.catalogue import DATA_SETS
    from polyseme.tasks.ensemble import evaluate_ensemble
    from polyseme.tasks.examples import read_examples
    from polyseme.tasks.predict import evaluate as run
    from polyseme.tasks.task import Task

    if ensemble != (len(models) > 1):
        raise UserError("--ensemble is for several models" if ensemble else "several models: say --ensemble")
    folders = [polyseme.load(model).folder for model in models]
    folder = folders[0]
    kind = kind_of(task) if task else Task.from_model(folder.model, folder.notes).kind
    if task in DATA_SETS:
        given = DATA_SETS[task].read(data, skip_bad)[1]
    else:
        given = read_examples(data, kind, text=text, pair=pair, label=label, header=header, skip_bad=skip_bad)
    extra = DATA_SETS[task].extra if task in DATA_SETS else None
    if ensemble:
        found = evaluate_ensemble(folders, given, truncate=truncate, extra=extra)
    else:
        found = run(folder, given, truncate=truncate, extra=extra)
    if as_json:
        print_json({"examples": len(given), **found})
        return
    print(f"{len(given)} examples")
    for name, value in found.items():
        print(f"{name}: {value:.4f}")


def predict(
    model: Model,
    data: Annotated[Path, typer.Option(help="examples, labelled or not")],
    out: Annotated[Path, typer.Option(help="the file to write: .jsonl, .tsv, .conll, or .json for SQuAD's script")],
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
            "test examples are answered, for GLUE as its server wants them",
        ),
    ] = "",
    skip_bad: SkipBad = False,
) -> None:
    """Write a label and its probability, or a number, for each example, in the order of the input."""
    import polyseme
    from polyseme.cli.output import kind_of
    from polyseme.tasks.catalogue import DATA_SETS
    from polyseme.tasks.examples import read_examples
    from polyseme.tasks.predict import predict as run
    from polyseme.tasks.predict import write_predictions
    from polyseme.tasks.submission import GLUE_FILES, write_submission
    from polyseme.tasks.task import Task

    folder = polyseme.load(model).folder
    kind = kind_of(task) if task else Task.from_model(folder.model, folder.notes).kind
    if task in DATA_SETS:
        given = DATA_SETS[task].part(data, "test", skip_bad, need_labels=False)
        write = partial(write_submission, out, task) if task in GLUE_FILES else partial(write_predictions, out, given)
        write(run(folder, given, truncate=truncate))
        print(f"{out}: {len(given)} predictions")
        return
    given = read_examples(
        data, kind, text=text, pair=pair, label=label, header=header, need_labels=False, skip_bad=skip_bad
    )
    write_predictions(out, given, run(folder, given, truncate=truncate))
    print(f"{out}: {len(given)} predictions")

"""`polyseme evaluate` and `polyseme predict`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

Model = Annotated[Path, typer.Argument(help="a fine-tuned model folder")]
Text = Annotated[str, typer.Option(help="the column or key of the text")]
Pair = Annotated[str, typer.Option(help="the column or key of the second text")]
Label = Annotated[str, typer.Option(help="the column or key of the label")]
Header = Annotated[bool, typer.Option(help="TSV has a header; without, columns are numbers from 1")]
Truncate = Annotated[bool | None, typer.Option(help="cut what is longer than the model reads; default: as fine-tuned")]

TaskKind = Annotated[str, typer.Option("--task", help="how to read the data if the folder does not say: pair, …")]
KindOrData = Annotated[
    str, typer.Option("--task", help="the same; or a named data set, to measure on its dev examples")
]
SkipBad = Annotated[bool, typer.Option(help="go on past bad rows and count them")]


def evaluate(
    model: Model,
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
) -> None:
    """Measure a fine-tuned model on labelled examples."""
    import polyseme
    from polyseme.cli.output import kind_of, print_json
    from polyseme.tasks.catalogue import DATA_SETS
    from polyseme.tasks.examples import read_examples
    from polyseme.tasks.predict import evaluate as run
    from polyseme.tasks.task import Task

    folder = polyseme.load(model).folder
    kind = kind_of(task) if task else Task.from_model(folder.model, folder.notes).kind
    if task in DATA_SETS:
        given = DATA_SETS[task].read(data, skip_bad)[1]
    else:
        given = read_examples(data, kind, text=text, pair=pair, label=label, header=header, skip_bad=skip_bad)
    extra = DATA_SETS[task].extra if task in DATA_SETS else None
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
    task: TaskKind = "",
    skip_bad: SkipBad = False,
) -> None:
    """Write a label and its probability, or a number, for each example, in the order of the input."""
    import polyseme
    from polyseme.cli.output import kind_of
    from polyseme.tasks.examples import read_examples
    from polyseme.tasks.predict import predict as run
    from polyseme.tasks.predict import write_predictions
    from polyseme.tasks.task import Task

    folder = polyseme.load(model).folder
    kind = kind_of(task) if task else Task.from_model(folder.model, folder.notes).kind
    given = read_examples(
        data, kind, text=text, pair=pair, label=label, header=header, need_labels=False, skip_bad=skip_bad
    )
    write_predictions(out, given, run(folder, given, truncate=truncate))
    print(f"{out}: {len(given)} predictions")

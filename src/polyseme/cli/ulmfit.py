"""`polyseme ulmfit`: three stages to a classifier, or the curve of how few examples they need."""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Annotated, Any

import typer

from polyseme.cli.output import SOURCES


def ulmfit(
    train: Annotated[Path, typer.Option(help="labelled texts: TSV or JSON lines; plain, .gz or .xz")],
    dev: Annotated[Path, typer.Option(help="the examples to measure on")],
    out: Annotated[Path, typer.Option(help="the folder to write, or to go on with")],
    text: Annotated[list[str], typer.Option(help=f"general text for the first stage: {SOURCES}")] = [],  # noqa: B006
    corpus: Annotated[Path | None, typer.Option(help="or general text as a corpus folder")] = None,
    general: Annotated[list[Path], typer.Option(help="or language models of ulmfit, one for each direction")] = [],  # noqa: B006
    unlabelled: Annotated[
        list[str], typer.Option(help="more texts of the task, one a line, for the second stage")
    ] = [],  # noqa: B006
    preset: Annotated[str, typer.Option(help="tiny, lecture (300 wide) or paper (400 wide)")] = "paper",
    direction: Annotated[str, typer.Option(help="forward, backward, or both averaged")] = "forward",
    budget: Annotated[str, typer.Option(help="how long the first stage takes: 20m, 500steps or 1e9tokens")] = "",
    seeds: Annotated[int, typer.Option(help="how many runs of the last stage", min=1)] = 1,
    train_sizes: Annotated[str, typer.Option(help="draw the low-shot curve for these: 100,500,2000")] = "",
    set_: Annotated[list[str], typer.Option("--set", help="path=value, e.g. classifier.epochs=20")] = [],  # noqa: B006
    text_column: Annotated[str, typer.Option(help="the column or key of the text")] = "text",
    label_column: Annotated[str, typer.Option(help="the column or key of the label")] = "label",
    header: Annotated[bool, typer.Option(help="TSV has a header; without, columns are numbers from 1")] = True,
    skip_bad: Annotated[bool, typer.Option(help="go on past bad rows and count them")] = False,
) -> None:
    """A general language model, the same on the task's text, then a classifier; killed, the same command goes on."""
    from polyseme.cli.output import print_table, set_values
    from polyseme.corpus.sources.sources import open_sources
    from polyseme.errors import UserError
    from polyseme.io.files import read_json, sha256, taken, write_json, write_text
    from polyseme.pipelines import ulmfit as stages
    from polyseme.tasks.examples import read_examples

    try:
        sizes = [int(size) for size in train_sizes.split(",")] if train_sizes else []
    except ValueError:
        raise UserError(f"--train-sizes is {train_sizes!r}: whole numbers with commas between are needed") from None
    given: dict[str, Any] = {"preset": preset, "direction": direction, "budget": budget}
    plan = set_values(stages.Plan.from_json(given), set_)
    plan.general("forward").check()
    plan.classifier.check()
    columns: dict[str, Any] = {"text": text_column, "label": label_column, "header": header, "skip_bad": skip_bad}
    to_learn, to_measure = (read_examples(path, "classification", **columns) for path in (train, dev))
    more = [document.text for document in open_sources(unlabelled, "text", "line", skip_bad)] if unlabelled else []
    asked = {
        "plan": plan.to_json(),
        "begun_from": [*text, *map(str, [corpus] if corpus else []), *map(str, general)],
        **{name: sha256(path) for name, path in (("train", train), ("dev", dev))},
        "unlabelled": hashlib.sha256("\0".join(more).encode("utf-8", "surrogatepass")).hexdigest(),
    }
    begun_with = out / "plan.json"
    if begun_with.exists() and read_json(begun_with) != asked:
        raise UserError(f"{out} was begun with another plan or other examples: choose another --out")
    if not begun_with.exists() and taken(out):
        raise UserError(f"{out} is already there and holds no run of ulmfit: choose another --out")
    if (out / "results.json").exists() and not sizes:
        raise UserError(f"{out} already holds a finished run: choose another --out")
    stages.check(plan, text, corpus, general)
    stages.check_sizes(sizes, to_learn)
    write_json(begun_with, asked)
    begun = stages.begin(plan, out, text, corpus, general)
    if sizes:
        done = stages.curve(plan, out, begun, to_learn, to_measure, sizes, more, seeds)
        whole = read_json(out / "results.json") if (out / "results.json").exists() else None
        write_text(out / "report.html", stages.page(whole, done))
        found = stages.lines(done)
        rows = [[row, *(stages.shown(line[s]) for s in sizes)] for row, line in found.items()]
        print_table([f"error, {seeds} seed(s)", *map(str, sizes)], rows)
    else:
        results = stages.run(plan, out, begun, to_learn, to_measure, more, seeds)
        names = list(next(iter(results["rows"].values())))
        rows = [[row, *(stages.shown(cells[n]) for n in names)] for row, cells in results["rows"].items()]
        print_table([f"{seeds} seed(s)", *names], rows)
    print(f"see {out}/report.html")

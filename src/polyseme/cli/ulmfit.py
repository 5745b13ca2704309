"""`polyseme ulmfit`: three stages to a classifier, or the curve of how few examples they need."""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Annotated, Any

import typer

from polyseme.cli.output import SOURCES_HELP


def ulmfit(
    train: Annotated[Path, typer.Option(help="labelled texts: TSV or JSON lines; plain, .gz or .xz")],
    dev: Annotated[Path, typer.Option(help="the examples to measure on")],
    out: Annotated[Path, typer.Option(help="the folder to write, or to go on with")],
    text: Annotated[list[str], typer.Option(help=f"general text for the first stage: {SOURCES_HELP}")] = [],  # noqa: B006
    corpus: Annotated[Path | None, typer.Option(help="or general text as a corpus folder")] = None,
    general_models: Annotated[
        list[Path], typer.Option(help="or language models of ulmfit, one for each direction")
    ] = [],  # noqa: B006
    unlabeled: Annotated[list[str], typer.Option(help="more texts of the task, one a line, for the second stage")] = [],  # noqa: B006
    preset: Annotated[str, typer.Option(help="tiny, lecture (300 wide) or paper (400 wide)")] = "paper",
    direction: Annotated[str, typer.Option(help="forward, backward, or both averaged")] = "forward",
    budget: Annotated[str, typer.Option(help="how long the first stage takes: 20m, 500steps or 1e9tokens")] = "",
    seeds: Annotated[int, typer.Option(help="how many runs of the last stage", min=1)] = 1,
    train_sizes: Annotated[str, typer.Option(help="draw the low-shot curve for these: 100,500,2000")] = "",
    overrides: Annotated[list[str], typer.Option("--set", help="path=value, e.g. classifier.epochs=20")] = [],  # noqa: B006
    text_column: Annotated[str, typer.Option(help="the column or key of the text")] = "text",
    label_column: Annotated[str, typer.Option(help="the column or key of the label")] = "label",
    header: Annotated[bool, typer.Option(help="TSV has a header; without, columns are numbers from 1")] = True,
    skip_bad: Annotated[bool, typer.Option(help="go on past bad rows and count them")] = False,
) -> None:
    """A general language model, the same on the task's text, then a classifier; killed, the same command goes on."""
    from polyseme.cli.output import apply_overrides, print_table
    from polyseme.corpus.sources.sources import open_sources
    from polyseme.errors import ConfigError
    from polyseme.io.atomic import is_occupied, sha256, write_text
    from polyseme.io.json import read_json, write_json
    from polyseme.pipelines import ulmfit as stages
    from polyseme.tasks.examples import read_examples

    try:
        sizes = [int(size) for size in train_sizes.split(",")] if train_sizes else []
    except ValueError:
        raise ConfigError(f"--train-sizes is {train_sizes!r}: whole numbers with commas between are needed") from None
    settings: dict[str, Any] = {"preset": preset, "direction": direction, "budget": budget}
    config = apply_overrides(stages.UlmfitConfig.from_json(settings), overrides)
    config.general_recipe("forward").check()
    config.classifier.validate()
    reader_options: dict[str, Any] = {
        "text": text_column,
        "label": label_column,
        "header": header,
        "skip_bad": skip_bad,
    }
    train_examples, dev_examples = (read_examples(path, "classification", **reader_options) for path in (train, dev))
    unlabeled_texts = (
        [document.text for document in open_sources(unlabeled, "text", "line", skip_bad)] if unlabeled else []
    )
    run_inputs = {
        "config": config.to_json(),
        "init_from": [*text, *map(str, [corpus] if corpus else []), *map(str, general_models)],
        **{name: sha256(path) for name, path in (("train", train), ("dev", dev))},
        "unlabeled": hashlib.sha256("\0".join(unlabeled_texts).encode("utf-8", "surrogatepass")).hexdigest(),
    }
    inputs_path = out / "ulmfit.json"
    if inputs_path.exists() and read_json(inputs_path) != run_inputs:
        raise ConfigError(f"{out} was begun with another config or other examples: choose another --out")
    if not inputs_path.exists() and is_occupied(out):
        raise ConfigError(f"{out} is already there and holds no run of ulmfit: choose another --out")
    if (out / "results.json").exists() and not sizes:
        raise ConfigError(f"{out} already holds a finished run: choose another --out")
    stages.validate_sources(config, text, corpus, general_models)
    stages.check_train_sizes(sizes, train_examples)
    write_json(inputs_path, run_inputs)
    pretrained_lms = stages.pretrain_general_lm(config, out, text, corpus, general_models)
    if sizes:
        curve_results = stages.low_shot_curve(
            config, out, pretrained_lms, train_examples, dev_examples, sizes, unlabeled_texts, seeds
        )
        full_results = read_json(out / "results.json") if (out / "results.json").exists() else None
        write_text(out / "report.html", stages.build_page(full_results, curve_results))
        error_curves = stages.error_curves(curve_results)
        rows = [[row, *(stages.format_mean_std(line[s]) for s in sizes)] for row, line in error_curves.items()]
        print_table([f"error, {seeds} seed(s)", *map(str, sizes)], rows)
    else:
        results = stages.run_ulmfit(config, out, pretrained_lms, train_examples, dev_examples, unlabeled_texts, seeds)
        metric_names = list(next(iter(results["rows"].values())))
        rows = [
            [row, *(stages.format_mean_std(cells[n]) for n in metric_names)] for row, cells in results["rows"].items()
        ]
        print_table([f"{seeds} seed(s)", *metric_names], rows)
    print(f"see {out}/report.html")

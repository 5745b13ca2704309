"""`polyseme finetune`."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated, Any

import typer


def finetune(
    model: Annotated[
        Path | None, typer.Argument(help="a pre-trained model folder; none with --features or --words")
    ] = None,
    *,
    tasks: Annotated[
        list[str],
        typer.Option(
            "--task",
            help="classification, pair, regression, choice, tagging, span or coreference; "
            "or a data set of `polyseme tasks`. Several share one trunk: [NAME=]KIND for each, with its --train and "
            "--dev, or its --data, in the same order",
        ),
    ],
    out: Annotated[Path, typer.Option(help="the run folder to write")],
    trains: Annotated[
        list[Path], typer.Option("--train", help="TSV, JSON lines, CoNLL columns or SQuAD's JSON; plain, .gz or .xz")
    ] = [],  # noqa: B006
    devs: Annotated[list[Path], typer.Option("--dev", help="the examples to measure on")] = [],  # noqa: B006
    datas: Annotated[
        list[Path], typer.Option("--data", help="the folder of a named data set, as it is distributed")
    ] = [],  # noqa: B006
    seeds: Annotated[int, typer.Option(help="how many runs; mean and standard deviation are reported", min=1)] = 1,
    set_: Annotated[list[str], typer.Option("--set", help="path=value, e.g. epochs=4, optim.rate=3e-5")] = [],  # noqa: B006
    layer_decay: Annotated[
        float | None, typer.Option(help="the rate of each layer is that of the one above it times this; ULMFiT: 0.385")
    ] = None,
    unfreeze: Annotated[
        float | None, typer.Option(help="train the head alone; after so many epochs each, the layers join from the top")
    ] = None,
    grid: Annotated[
        list[str],
        typer.Option(help="name=value,value… (lr, epochs, batch, any path of --set); the best on dev is kept"),
    ] = [],  # noqa: B006
    scratch: Annotated[bool, typer.Option(help="fresh weights: what is pre-training worth?")] = False,
    keep_seeds: Annotated[bool, typer.Option(help="keep the model of every seed, in seeds/N: for an ensemble")] = False,
    keep_checkpoints: Annotated[
        int,
        typer.Option(help="keep the models of the last N epochs, in checkpoints/seed-S/step-N: for an ensemble", min=0),
    ] = 0,
    baselines: Annotated[bool, typer.Option(help="majority (or mean) and linear rows beside the result")] = False,
    baseline: Annotated[
        list[str], typer.Option(help="one such row: majority, linear; for tags memm and crf, which take minutes")
    ] = [],  # noqa: B006
    text: Annotated[str, typer.Option(help="the column or key of the text")] = "text",
    pair: Annotated[str, typer.Option(help="the column or key of the second text")] = "pair",
    label: Annotated[str, typer.Option(help="the column or key of the label")] = "label",
    header: Annotated[bool, typer.Option(help="TSV has a header; without, columns are numbers from 1")] = True,
    skip_bad: Annotated[bool, typer.Option(help="go on past bad rows and count them")] = False,
    decoder: Annotated[
        str, typer.Option(help="how tags are chosen: softmax (each alone) or crf (together); over features, crf")
    ] = "",
    features: Annotated[
        list[str],
        typer.Option(
            help="a model to freeze: a small network learns from its vectors of words; several stand side by side; "
            "none for none"
        ),
    ] = [],  # noqa: B006
    layers: Annotated[
        list[str],
        typer.Option(
            help="of that model: embeddings, last, second-to-last, sum, scalar-mix (default; its λ is --set "
            "network.penalty), scalar-mix-last-four, concat-last-four; once, or once for each --features"
        ),
    ] = [],  # noqa: B006
    where: Annotated[
        str,
        typer.Option(help="features enter at the network's input (default), output, both, or between its two layers"),
    ] = "",
    words: Annotated[
        Path | None,
        typer.Option(help="where the network's own word vectors begin: a model folder, or word2vec's or GloVe's file"),
    ] = None,
    freeze_words: Annotated[bool, typer.Option(help="leave the vectors of --words as they are")] = False,
    network: Annotated[
        str, typer.Option(help="over features: auto, linear, bilstm, biattentive, esim or bidaf")
    ] = "auto",
    cache: Annotated[Path | None, typer.Option(help="where vectors are kept; default: features beside --out")] = None,
    strict: Annotated[bool, typer.Option(help="refuse broken IOB tags, which are mended otherwise")] = False,
) -> None:
    """Fine-tune a model on labelled examples, or train a network over its frozen features, and measure it."""
    from polyseme.cli import together
    from polyseme.cli.output import kind_of, print_table, set_values
    from polyseme.datasets.catalog import DATA_SETS
    from polyseme.errors import UserError
    from polyseme.finetuning.finetune import FinetuneSpec
    from polyseme.finetuning.finetune import finetune as run
    from polyseme.finetuning.frozen import USUAL, finetune_over
    from polyseme.finetuning.grid import points, search
    from polyseme.report.html import cut_line, flatter
    from polyseme.tasks.baselines.surface import BASELINES, check_baseline
    from polyseme.tasks.examples import read_examples

    task, alone = tasks[0], len(tasks) == 1 and "=" not in tasks[0]
    kind = kind_of(task) if alone else None
    compared = list(dict.fromkeys([*(("majority", "linear") if baselines else ()), *baseline]))
    if kind is None and (baseline or keep_seeds or keep_checkpoints):
        raise UserError("--baseline, --keep-seeds and --keep-checkpoints are for one task")
    for name in compared if kind else ():
        check_baseline(name, kind)  # type: ignore[arg-type]
    over = bool(features or words or network != "auto")  # a network is laid over something
    if (model is None) != over:
        raise UserError("give a model folder to fine-tune, or --features with one to freeze, --words or --network")
    frozen = [path for path in features if path != "none"]
    if not frozen and (layers or where or cache):
        raise UserError("--layers, --where and --cache go with --features")
    if freeze_words and words is None:
        raise UserError("--freeze-words goes with --words")
    if over and (scratch or layer_decay or unfreeze or keep_checkpoints):
        these = "--scratch, --layer-decay, --unfreeze and --keep-checkpoints"
        raise UserError(f"{these} are for fine-tuning: features stay as they are")
    chosen: dict[str, Any] = {"optim.layer_decay": layer_decay, "unfreeze": unfreeze}
    if over:
        chosen |= {"network.name": network, "network.layers": ",".join(layers) or None, "network.where": where or None}
        chosen |= {"network.num_layers": 2 if where == "between" else None}
        chosen |= {"network.freeze_words": "true" if freeze_words else None}
    chosen["decoder"] = decoder or ("crf" if over and kind == "tagging" else "softmax")
    fixed = [f"{name}={value}" for name, value in chosen.items() if value is not None]
    settings = set_values(USUAL if over else FinetuneSpec(), [*fixed, *set_])
    columns: dict[str, Any] = {"text": text, "pair": pair, "label": label, "header": header, "skip_bad": skip_bad}
    columns |= {"strict": strict}
    if kind is None:
        jobs = together.read_jobs(tasks, datas, trains, devs, columns)
        together.several(model, jobs, out, settings, grid, seeds, scratch, baselines)
        return
    given = (("--train", trains), ("--dev", devs), ("--data", datas))
    train, dev, data = (together.single(option, values) for option, values in given)
    named = DATA_SETS.get(task)
    if named:
        if train or dev or (text, pair, label, header) != ("text", "pair", "label", True):
            raise UserError(f"{task} has its own files and columns: give --data FOLDER alone")
        if data is None:
            raise UserError(f"--data is missing: the folder that holds {named.folder}, or that folder itself")
        to_learn, to_measure = named.read(data, skip_bad, strict)
    else:
        if train is None or dev is None or data is not None:
            wrong = "--data is for named data sets" if data else f"--{'dev' if train else 'train'} is missing"
            raise UserError(f"{wrong}: {kind} reads two files, --train and --dev")
        to_learn, to_measure = (read_examples(path, kind, **columns) for path in (train, dev))
    measured: dict[str, Any] = {"seeds": seeds, "keep": keep_seeds}
    if named:
        measured |= {"primary": named.metric, "data_set": task, "extra": named.extra}

    def once(chosen: FinetuneSpec, folder: Path) -> dict[str, Any]:
        if model is not None:
            own: dict[str, Any] = {"scratch": scratch, "checkpoints": keep_checkpoints}
            return run(model, kind, to_learn, to_measure, folder, chosen, **own, **measured)
        laid = {"cache": cache or out.parent / "features", "words": words, **measured}
        return finetune_over([Path(path) for path in frozen], kind, to_learn, to_measure, folder, chosen, **laid)

    if grid:
        results, searched = search(once, out, points(settings, grid))
        first = results["primary"]
        print_table([first, "settings"], [[f"{r['mean'][first]:.4f}", name] for name, r in searched])
    else:
        results = once(settings, out)
    if results["failed"]:
        said = f"no better than a blind guess ({results['blind']:.4f})"
        print(f"failed seeds, {said}: {', '.join(map(str, results['failed']))}; try another rate", file=sys.stderr)
    if named and named.warn:
        for line in named.warn(to_learn, to_measure, results["mean"]["accuracy"]):
            print(f"{task}: {line}", file=sys.stderr)
    names = list(results["mean"])
    for part, (wrong, lost) in results.get("wrong_offsets", {}).items():
        if wrong:
            left = f", so {lost} questions were not trained on" if part == "train" else ""
            print(f"{part}: {wrong} answers do not stand where they are said to stand{left}", file=sys.stderr)
    for part, (lost, total) in results.get("out_of_reach", {}).items():
        if lost:
            print(f"{part}: {lost} of {total} mentions are too wide or cross sentences: never found", file=sys.stderr)
    for part in results["cut"]:
        if line := cut_line(results, part):
            print(line, file=sys.stderr)
    rows = []
    for name in compared:
        found = BASELINES[name](to_learn, to_measure, kind, named.extra if named else None)
        said = "mean" if (name, kind) == ("majority", "regression") else name
        rows.append([said, *(f"{found[n]:.4f}" for n in names)])
    deviation = results["deviation"]
    cells = [
        f"{results['mean'][n]:.4f}" + (f" ± {deviation[n]:.4f}" if deviation[n] is not None else "") for n in names
    ]
    what = "over features" if frozen else "words alone"
    rows.append([what if over else "from scratch" if scratch else "fine-tuned", *cells])
    print_table([f"{len(results['seeds'])} seed(s)", *names], rows)
    if results["chosen_on_dev"]:
        print(flatter(results["chosen_on_dev"]))
    print(f"{out}/model: seed {results['best_seed']}; see {out}/report.html")

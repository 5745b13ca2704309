"""`polyseme finetune`."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated, Any

import typer


def finetune(
    model: Annotated[
        Path | None, typer.Argument(help="a pre-trained model folder; none with --features or --word-vectors")
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
    train_paths: Annotated[
        list[Path], typer.Option("--train", help="TSV, JSON lines, CoNLL columns or SQuAD's JSON; plain, .gz or .xz")
    ] = [],  # noqa: B006
    dev_paths: Annotated[list[Path], typer.Option("--dev", help="the examples to measure on")] = [],  # noqa: B006
    data_paths: Annotated[
        list[Path], typer.Option("--data", help="the folder of a named data set, as it is distributed")
    ] = [],  # noqa: B006
    seeds: Annotated[int, typer.Option(help="how many runs; mean and standard deviation are reported", min=1)] = 1,
    overrides: Annotated[list[str], typer.Option("--set", help="path=value, e.g. epochs=4, optimizer.lr=3e-5")] = [],  # noqa: B006
    layer_decay: Annotated[
        float | None, typer.Option(help="the rate of each layer is that of the one above it times this; ULMFiT: 0.385")
    ] = None,
    unfreeze_every: Annotated[
        float | None, typer.Option(help="train the head alone; after so many epochs each, the layers join from the top")
    ] = None,
    grid: Annotated[
        list[str],
        typer.Option(help="name=value,value… (lr, epochs, batch_size, any path of --set); the best on dev is kept"),
    ] = [],  # noqa: B006
    from_scratch: Annotated[bool, typer.Option(help="fresh weights: what is pre-training worth?")] = False,
    keep_seeds: Annotated[bool, typer.Option(help="keep the model of every seed, in seeds/N: for an ensemble")] = False,
    keep_checkpoints: Annotated[
        int,
        typer.Option(help="keep the models of the last N epochs, in checkpoints/seed-S/step-N: for an ensemble", min=0),
    ] = 0,
    baselines: Annotated[bool, typer.Option(help="majority (or mean) and linear rows beside the result")] = False,
    baseline: Annotated[
        list[str], typer.Option(help="one such row: majority, linear; for tags memm and crf, which take minutes")
    ] = [],  # noqa: B006
    text_column: Annotated[str, typer.Option(help="the column or key of the text")] = "text",
    pair_column: Annotated[str, typer.Option(help="the column or key of the second text")] = "pair",
    label_column: Annotated[str, typer.Option(help="the column or key of the label")] = "label",
    header: Annotated[bool, typer.Option(help="TSV has a header; without, columns are numbers from 1")] = True,
    skip_bad: Annotated[bool, typer.Option(help="go on past bad rows and count them")] = False,
    tag_decoder: Annotated[
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
            help="of that model: embeddings, last, second_to_last, sum_all, scalar_mix (default; its λ is "
            "--set network.mix_penalty), scalar_mix_last_4, concat_last_4; once, or once for each --features"
        ),
    ] = [],  # noqa: B006
    join_at: Annotated[
        str,
        typer.Option(help="features enter at the network's input (default), output, both, or between its two layers"),
    ] = "",
    word_vectors: Annotated[
        Path | None,
        typer.Option(help="where the network's own word vectors begin: a model folder, or word2vec's or GloVe's file"),
    ] = None,
    freeze_word_embeddings: Annotated[
        bool, typer.Option(help="leave the vectors of --word-vectors as they are")
    ] = False,
    network: Annotated[
        str, typer.Option(help="over features: auto, linear, bilstm, biattentive, esim or bidaf")
    ] = "auto",
    cache_dir: Annotated[
        Path | None, typer.Option(help="where vectors are kept; default: features beside --out")
    ] = None,
    strict: Annotated[bool, typer.Option(help="refuse broken IOB tags, which are mended otherwise")] = False,
) -> None:
    """Fine-tune a model on labelled examples, or train a network over its frozen features, and measure it."""
    from polyseme.cli import together
    from polyseme.cli.output import apply_overrides, print_table, task_type_of
    from polyseme.datasets.catalog import DATASETS
    from polyseme.errors import ConfigError
    from polyseme.finetuning.finetune import FinetuneConfig
    from polyseme.finetuning.finetune import finetune as run
    from polyseme.finetuning.frozen import FEATURE_DEFAULTS, train_on_features
    from polyseme.finetuning.grid import expand_grid, grid_search
    from polyseme.report.html import dev_selection_note, truncation_note
    from polyseme.tasks.baselines.surface import BASELINES, check_baseline
    from polyseme.tasks.examples import read_examples

    task, is_single_task = tasks[0], len(tasks) == 1 and "=" not in tasks[0]
    task_type = task_type_of(task) if is_single_task else None
    baseline_names = list(dict.fromkeys([*(("majority", "linear") if baselines else ()), *baseline]))
    if task_type is None and (baseline or keep_seeds or keep_checkpoints):
        raise ConfigError("--baseline, --keep-seeds and --keep-checkpoints are for one task")
    for name in baseline_names if task_type else ():
        check_baseline(name, task_type)  # type: ignore[arg-type]
    has_feature_network = bool(features or word_vectors or network != "auto")  # a network is laid over something
    if (model is None) != has_feature_network:
        alternatives = "--features with one to freeze, --word-vectors or --network"
        raise ConfigError(f"give a model folder to fine-tune, or {alternatives}")
    feature_paths = [path for path in features if path != "none"]
    if not feature_paths and (layers or join_at or cache_dir):
        raise ConfigError("--layers, --join-at and --cache-dir go with --features")
    if freeze_word_embeddings and word_vectors is None:
        raise ConfigError("--freeze-word-embeddings goes with --word-vectors")
    if has_feature_network and (from_scratch or layer_decay or unfreeze_every or keep_checkpoints):
        flags = "--from-scratch, --layer-decay, --unfreeze-every and --keep-checkpoints"
        raise ConfigError(f"{flags} are for fine-tuning: features stay as they are")
    flag_values: dict[str, Any] = {"optimizer.layer_decay": layer_decay, "unfreeze_every": unfreeze_every}
    if has_feature_network:
        flag_values |= {
            "network.name": network,
            "network.layers": ",".join(layers) or None,
            "network.join_at": join_at or None,
        }
        flag_values |= {"network.num_layers": 2 if join_at == "between" else None}
        flag_values |= {"network.freeze_word_embeddings": "true" if freeze_word_embeddings else None}
    flag_values["tag_decoder"] = tag_decoder or ("crf" if has_feature_network and task_type == "tagging" else "softmax")
    flag_overrides = [f"{name}={value}" for name, value in flag_values.items() if value is not None]
    settings = apply_overrides(
        FEATURE_DEFAULTS if has_feature_network else FinetuneConfig(), [*flag_overrides, *overrides]
    )
    reader_options: dict[str, Any] = {
        "text": text_column,
        "pair": pair_column,
        "label": label_column,
        "header": header,
        "skip_bad": skip_bad,
    }
    reader_options |= {"strict": strict}
    if task_type is None:
        jobs = together.read_task_data(tasks, data_paths, train_paths, dev_paths, reader_options)
        together.run_multitask(model, jobs, out, settings, grid, seeds, from_scratch, baselines)
        return
    options = (("--train", train_paths), ("--dev", dev_paths), ("--data", data_paths))
    train, dev, data = (together.at_most_one(option, values) for option, values in options)
    dataset = DATASETS.get(task)
    if dataset:
        if train or dev or (text_column, pair_column, label_column, header) != ("text", "pair", "label", True):
            raise ConfigError(f"{task} has its own files and columns: give --data FOLDER alone")
        if data is None:
            raise ConfigError(f"--data is missing: the folder that holds {dataset.folder}, or that folder itself")
        train_examples, dev_examples = dataset.read(data, skip_bad, strict)
    else:
        if train is None or dev is None or data is not None:
            wrong = "--data is for named data sets" if data else f"--{'dev' if train else 'train'} is missing"
            raise ConfigError(f"{wrong}: {task_type} reads two files, --train and --dev")
        train_examples, dev_examples = (read_examples(path, task_type, **reader_options) for path in (train, dev))
    shared_options: dict[str, Any] = {"seeds": seeds, "keep_seeds": keep_seeds}
    if dataset:
        shared_options |= {
            "primary_metric": dataset.metric,
            "dataset_name": task,
            "extra_metrics": dataset.extra_metrics,
        }

    def run_config(config: FinetuneConfig, folder: Path) -> dict[str, Any]:
        if model is not None:
            run_options: dict[str, Any] = {"from_scratch": from_scratch, "keep_checkpoints": keep_checkpoints}
            return run(model, task_type, train_examples, dev_examples, folder, config, **run_options, **shared_options)
        feature_options = {
            "cache_dir": cache_dir or out.parent / "features",
            "word_vectors": word_vectors,
            **shared_options,
        }
        return train_on_features(
            [Path(path) for path in feature_paths],
            task_type,
            train_examples,
            dev_examples,
            folder,
            config,
            **feature_options,
        )

    if grid:
        results, grid_results = grid_search(run_config, out, expand_grid(settings, grid))
        primary_metric = results["primary_metric"]
        print_table(
            [primary_metric, "settings"], [[f"{r['mean'][primary_metric]:.4f}", name] for name, r in grid_results]
        )
    else:
        results = run_config(settings, out)
    if results["failed_seeds"]:
        description = f"no better than a blind guess ({results['majority_score']:.4f})"
        print(
            f"failed seeds, {description}: {', '.join(map(str, results['failed_seeds']))}; try another lr",
            file=sys.stderr,
        )
    if dataset and dataset.get_warnings:
        for line in dataset.get_warnings(train_examples, dev_examples, results["mean"]["accuracy"]):
            print(f"{task}: {line}", file=sys.stderr)
    metric_names = list(results["mean"])
    for split, (wrong, num_lost) in results.get("bad_offsets", {}).items():
        if wrong:
            consequence = f", so {num_lost} questions were not trained on" if split == "train" else ""
            print(f"{split}: {wrong} answers do not stand where they are said to stand{consequence}", file=sys.stderr)
    for split, (num_lost, total) in results.get("unreachable_mentions", {}).items():
        if num_lost:
            print(
                f"{split}: {num_lost} of {total} mentions are too wide or cross sentences: never found", file=sys.stderr
            )
    for split in results["num_truncated"]:
        if line := truncation_note(results, split):
            print(line, file=sys.stderr)
    rows = []
    for name in baseline_names:
        baseline_metrics = BASELINES[name](
            train_examples, dev_examples, task_type, dataset.extra_metrics if dataset else None
        )
        description = "mean" if (name, task_type) == ("majority", "regression") else name
        rows.append([description, *(f"{baseline_metrics[n]:.4f}" for n in metric_names)])
    deviation = results["std"]
    cells = [
        f"{results['mean'][n]:.4f}" + (f" ± {deviation[n]:.4f}" if deviation[n] is not None else "")
        for n in metric_names
    ]
    row_name = "over features" if feature_paths else "words alone"
    rows.append([row_name if has_feature_network else "from scratch" if from_scratch else "fine-tuned", *cells])
    print_table([f"{len(results['seeds'])} seed(s)", *metric_names], rows)
    if results["chosen_on_dev"]:
        print(dev_selection_note(results["chosen_on_dev"]))
    print(f"{out}/model: seed {results['best_seed']}; see {out}/report.html")

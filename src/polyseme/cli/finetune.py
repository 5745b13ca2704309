"""`polyseme finetune`."""

from __future__ import annotations

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
            help="classification, pair_classification, regression, multiple_choice, tagging, semantic_roles, "
            "extractive_qa or coreference; "
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
    from polyseme.errors import ConfigError
    from polyseme.finetuning.config import FinetuneConfig
    from polyseme.finetuning.experiment import RunOptions
    from polyseme.finetuning.finetune import finetune as run
    from polyseme.finetuning.frozen import FEATURE_DEFAULTS, FeatureInputs, train_on_features
    from polyseme.tasks.readers.rows import Columns

    is_single_task = len(tasks) == 1 and "=" not in tasks[0]
    if not is_single_task and (baseline or keep_seeds or keep_checkpoints):
        raise ConfigError("--baseline, --keep-seeds and --keep-checkpoints are for one task")
    has_feature_network = bool(features or word_vectors or network != "auto")  # a network is laid over something
    if (model is None) != has_feature_network:
        raise ConfigError(
            "give a model folder to fine-tune, or --features with one to freeze, --word-vectors or --network"
        )
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
            "network.num_layers": 2 if join_at == "between" else None,
            "network.freeze_word_embeddings": "true" if freeze_word_embeddings else None,
        }
    flag_values["task.decoder"] = tag_decoder or None
    flag_overrides = [f"{name}={value}" for name, value in flag_values.items() if value is not None]
    defaults = FEATURE_DEFAULTS if has_feature_network else FinetuneConfig()
    files = together.TaskFiles(data_paths, train_paths, dev_paths, skip_bad, strict)
    columns = Columns(text_column, pair_column, label_column, header)
    data = together.list_tasks(tasks, is_single_task, has_feature_network)
    config, data = together.apply_overrides(defaults, data, [*flag_overrides, *overrides])
    if is_single_task:
        baseline_names = together.baseline_names(data[0].task, baselines, baseline)
        data = [together.read_single(tasks[0], data[0], files, columns)]
    else:
        data = together.read_several(tasks, data, files, columns)
        if model is None:
            raise ConfigError("several tasks share a trunk that learns: give a model folder, not --features")
    options = RunOptions(seeds, from_scratch=from_scratch, keep_seeds=keep_seeds, keep_checkpoints=keep_checkpoints)

    def run_point(config: FinetuneConfig, data: Any, folder: Path) -> dict[str, Any]:
        if model is not None:
            return run(model, data[0] if is_single_task else data, folder, config, options)
        inputs = FeatureInputs(list(map(Path, feature_paths)), word_vectors, cache_dir or out.parent / "features")
        return train_on_features(inputs, data[0], folder, config, options)

    results = together.run_or_search(run_point, config, data, out, grid)
    if not is_single_task:
        together.print_tasks(results, data, out, seeds, baselines)
        return
    row_name = "over features" if feature_paths else "words alone"
    row_name = row_name if has_feature_network else "from scratch" if from_scratch else "fine-tuned"
    together.print_single(results, data[0], out, baseline_names, row_name)

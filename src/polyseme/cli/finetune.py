"""`polyseme finetune` and `polyseme tasks`."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from typer import Argument, Option

from polyseme.cli import options
from polyseme.cli.completion import DATASET_NAMES, TASK_NAMES, complete
from polyseme.cli.output import parse_overrides, parse_seeds, print_table, print_wrapped_table
from polyseme.errors import ConfigError, suggest

if TYPE_CHECKING:
    from polyseme.report.results import FinetuneResult

TASK_HELP = (
    "classification, pair_classification, regression, multiple_choice, tagging, semantic_roles, extractive_qa, "
    "coreference, contrastive (vectors for search), or a data set of `polyseme tasks`. Repeat it as [NAME=]TASK to "
    "train several tasks over one trunk, with --train and --dev, or --data, in the same order."
)
FEATURES_HELP = "Folder of a model to freeze; a small network is trained on its word vectors. Repeat it to concatenate "
FEATURES_HELP += "several models; none: words alone."
LAYERS_HELP = (
    "Layers of --features: embeddings, last, second_to_last, sum_all, scalar_mix (default), scalar_mix_last_4, "
    "concat_last_4; once, or once for each --features."
)
TaskOption = Annotated[list[str], Option("--task", help=TASK_HELP, autocompletion=complete(TASK_NAMES, DATASET_NAMES))]
TrainOption = Annotated[list[Path], Option(help=options.EXAMPLES_HELP)]
LayerDecayOption = Annotated[float | None, Option(help="Factor of the learning rate from each layer to the next.")]
UnfreezeOption = Annotated[
    float | None,
    Option(help="Gradual unfreezing (ULMFiT): train the head first, then one more layer after this many epochs."),
]
LM_LOSS_HELP = "Weight λ of an auxiliary language-model loss on the same texts; default: 0.5 for GPT, as in its paper."
ORDERS_HELP = "Read each pair in both orders and add the states; default: only for GPT, if pairs have no order."
LMLossOption = Annotated[float | None, Option(help=LM_LOSS_HELP, min=0)]
OrdersOption = Annotated[bool | None, Option("--symmetric-pairs/--no-symmetric-pairs", help=ORDERS_HELP)]
GridOption = Annotated[list[str], Option(help="Grid search: name=value,value…; the best on the dev examples is kept.")]
KeepOption = Annotated[int, Option(help="Keep the models of the last N epochs, for an ensemble.", min=0)]
BaselineOption = Annotated[
    list[str], Option(help="Add one baseline: majority, linear; for tags also memm, crf (slow).")
]
TagOption = Annotated[str | None, Option(help="How tags are decoded: softmax, or crf (the default over features).")]
PositiveOption = Annotated[str | None, Option(help="Label whose F1 is reported; default: the second of two labels.")]
JoinOption = Annotated[str, Option(help="Where features enter the network: input (default), output, both, between.")]
VectorsOption = Annotated[Path | None, Option(help="Word vectors that initialize the word embeddings of the network.")]
NetworkOption = Annotated[
    str, Option(help="Network over features: auto, linear, bilstm, bilstm_max, biattentive, esim or bidaf.")
]

CROSS_VIEW_HELP = "Unlabeled text for cross-view training of a BiLSTM over words: files or folders, as in prepare."
CrossViewOption = Annotated[list[str], Option(help=CROSS_VIEW_HELP)]


def finetune(
    model: Annotated[Path | None, Argument(help="Pre-trained model or its run; none with frozen features.")] = None,
    *,
    task: TaskOption,
    out: Annotated[Path, Option(help="Run folder to write, or of an interrupted run to resume.")],
    train: TrainOption = [],
    dev: Annotated[list[Path], Option(help="Dev examples for evaluation.")] = [],
    data: Annotated[list[Path], Option(help="Folder of a named data set, as distributed.")] = [],
    seeds: options.SeedsOption = "1",
    overrides: options.SetOption = [],
    layer_decay: LayerDecayOption = None,
    unfreeze_every: UnfreezeOption = None,
    lm_loss_weight: LMLossOption = None,
    symmetric_pairs: OrdersOption = None,
    grid: GridOption = [],
    from_scratch: Annotated[bool, Option(help="Start from random weights, to measure the pre-training.")] = False,
    keep_seeds: Annotated[bool, Option(help="Keep the model of every seed, for an ensemble.")] = False,
    keep_checkpoints: KeepOption = 0,
    baselines: Annotated[bool, Option(help="Add a majority (or mean) baseline and a linear one.")] = False,
    baseline: BaselineOption = [],
    text_column: options.TextColumnOption = "",
    pair_column: options.PairColumnOption = "",
    label_column: options.LabelColumnOption = "",
    header: options.HeaderOption = True,
    skip_bad: options.SkipBadOption = False,
    strict: Annotated[bool, Option(help="Reject malformed IOB tags instead of repairing them.")] = False,
    tag_decoder: TagOption = None,
    positive_label: PositiveOption = None,
    features: Annotated[list[str], Option(help=FEATURES_HELP)] = [],
    layers: Annotated[list[str], Option(help=LAYERS_HELP)] = [],
    join_at: JoinOption = "",
    word_vectors: VectorsOption = None,
    freeze_word_embeddings: Annotated[bool, Option(help="Do not train the vectors of --word-vectors.")] = False,
    network: NetworkOption = "auto",
    cache_dir: Annotated[Path | None, Option(help="Cache of features; default: features next to --out.")] = None,
    cross_view: CrossViewOption = [],
) -> None:
    """Fine-tune a model on labeled examples, and evaluate it.

    With --features, train a network over frozen features instead. The same command resumes an interrupted run.
    """
    import polyseme

    folders = [path for path in features if path != "none"]
    run = polyseme.finetune(
        model, **_assign_files(task, train, dev, data), out=out, seeds=parse_seeds(seeds), grid=grid,
        from_scratch=from_scratch, keep_seeds=keep_seeds, keep_checkpoints=keep_checkpoints,
        baselines=["default"] * baselines + baseline, positive_label=positive_label,
        text_column=text_column, pair_column=pair_column, label_column=label_column, header=header, skip_bad=skip_bad,
        strict=strict, layer_decay=layer_decay, unfreeze_every=unfreeze_every, tag_decoder=tag_decoder,
        lm_loss_weight=lm_loss_weight, symmetric_pairs=symmetric_pairs, cross_view=cross_view or None,
        features=folders if features else None, layers=layers, join_at=join_at, word_vectors=word_vectors,
        freeze_word_embeddings=freeze_word_embeddings, network=network, cache_dir=cache_dir,
        overrides=parse_overrides(overrides),
    )  # fmt: skip
    if run.grid:
        print_table([run.primary_metric, "settings"], [[f"{score:.4f}", name] for name, score in run.grid.items()])
    frozen = "over features" if folders else "over word vectors" if word_vectors else "words alone"
    kind = frozen if model is None else "from scratch" if from_scratch else "fine-tuned"
    _print_tasks(run) if run.tasks else _print_task(run, kind)


def tasks(
    name: Annotated[
        str, Argument(help="A data set, to list its folder and files.", autocompletion=complete(DATASET_NAMES))
    ] = "",
) -> None:
    """List the named data sets, or the files of one.

    Usage: `polyseme finetune MODEL --task NAME --data FOLDER --out RUN`.
    """
    from polyseme.datasets.catalog import DATASETS

    if not name:
        rows = [[name, d.task.task_type, d.metric, d.description] for name, d in DATASETS.items()]
        print_wrapped_table(["dataset", "task", "metric", "description"], rows)
        print("\npolyseme tasks NAME lists the folder and the files of a data set.")
        return
    if name not in DATASETS:
        raise ConfigError(f"there is no data set {name!r}; {suggest(name, DATASETS)}")
    dataset = DATASETS[name]
    rows = [
        ["task", dataset.task.task_type],
        ["metric", dataset.metric],
        ["folder", f"{dataset.folder}, or another that holds these files"],
        *([split, " or ".join(dict.fromkeys(dataset.file_names(split)))] for split in dataset.splits),
    ]
    print_wrapped_table([name, dataset.description], rows)


def _assign_files(tasks: list[str], train: list[Path], dev: list[Path], data: list[Path]) -> dict[str, Any]:
    """Assign files to tasks in their order: data sets take --data, or all the same one; others --train and --dev."""
    from polyseme.datasets.catalog import DATASETS
    from polyseme.finetuning.api import find_task_type

    if len(tasks) == 1 and "=" not in tasks[0]:
        for flag, paths in (("--train", train), ("--dev", dev), ("--data", data)):
            if len(paths) > 1:
                raise ConfigError(f"{len(paths)} {flag} for one task; to train several tasks, repeat --task")
        files = {"train": train, "dev": dev, "data": data}
        return {"task": tasks[0], **{name: paths[0] if paths else None for name, paths in files.items()}}
    pairs = [(name, source or name) for name, _, source in (text.partition("=") for text in tasks)]
    for _, source in pairs:
        find_task_type(source)  # a wrong name is reported before a wrong number of files
    named = dict(pairs)
    if len(named) < len(pairs):
        raise ConfigError(f"two tasks are called {pairs[-1][0]!r}: give each a name, NAME=TASK")
    datasets = [name for name, source in pairs if source in DATASETS]
    others = [name for name, source in pairs if source not in DATASETS]
    if (datasets and len(data) not in (1, len(datasets))) or (data and not datasets):
        raise ConfigError(f"{len(data)} --data for {len(datasets)} named data sets: give one for each, or one for all")
    if len(train) != len(others) or len(dev) != len(others):
        counts = f"{len(train)} --train and {len(dev)} --dev"
        raise ConfigError(f"{counts} for {len(others)} tasks that read files: give one for each")
    folders = dict(zip(datasets, data * len(datasets) if len(data) == 1 else data))
    return {"task": named, "train": dict(zip(others, train)), "dev": dict(zip(others, dev)), "data": folders}


def _print_task(run: "FinetuneResult", row_name: str) -> None:
    from polyseme.report.pages.finetuning_page import dev_selection_note
    from polyseme.report.results import metric_title

    titles = [metric_title(name, run.details.get("positive_label", "")) for name in run.mean]
    rows = [[name, *(f"{metrics[n]:.4f}" for n in run.mean)] for name, metrics in run.baselines.items()]
    if before := run.details.get("before"):
        rows.append(["before training", *(f"{before[n]:.4f}" for n in run.mean)])
    rows.append([row_name, *(_format_mean(run, name) for name in run.mean)])
    print_table([f"{len(run.seeds)} seed(s)", *titles], rows)
    if choices := run.details["chosen_on_dev"]:
        print(dev_selection_note(choices))
    print(f"{run.model}: seed {run.best_seed}; see {run.report}")


def _print_tasks(run: "FinetuneResult") -> None:
    rows = []
    for name, each in run.tasks.items():
        scores = [f"{metrics[each.primary_metric]:.4f}" for metrics in each.baselines.values()]
        mean = _format_mean(each, each.primary_metric)
        rows.append([name, each.details["task"], each.primary_metric, *scores, mean])
    baselines = ["majority", "linear"] if next(iter(run.tasks.values())).baselines else []
    print_table(["task", "type", "metric", *baselines, f"{len(run.seeds)} seed(s)"], rows)
    print(f"mean: {run.mean['mean']:.4f}")
    print(f"{run.model}: seed {run.best_seed}; select a task with --task NAME; see {run.report}")


def _format_mean(run: "FinetuneResult", metric: str) -> str:
    std = run.std[metric]
    return f"{run.mean[metric]:.4f}" + (f" ± {std:.4f}" if std is not None else "")

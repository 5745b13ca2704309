"""`polyseme prune`."""

from pathlib import Path
from typing import Annotated

from typer import Option

from polyseme.cli import options
from polyseme.cli.completion import complete
from polyseme.cli.output import parse_seeds, parse_settings, print_json, print_table

STRATEGIES = ("top", "alternate", "loss", "importance", "gates", "norm", "magnitude", "random")
SCHEDULES = ("one-shot", "gradual", "iterative")
PARTS = {"ffn": "feed-forward units"}
DATA_HELP = (
    "Labeled examples of a task model, texts of a language model or an encoder, or scored pairs of an encoder (with "
    f"--task); with --dev, training examples: {options.INPUT_HELP}"
)
STRATEGY_HELP = (
    "Layers: top, alternate, or loss (one by one, where the loss rises least; default with --data); heads and ffn: "
    "importance (Michel et al. 2019); heads also gates, trained with a penalty (Voita et al. 2019); ffn also norm; "
    "weights: magnitude; all: random."
)
SCHEDULE_HELP = (
    "When weights are removed: one-shot; gradual, in the course of a training (Zhu and Gupta 2017); iterative, in "
    "rounds, with the rest rewound to an early step after each (Frankle et al. 2020)."
)
TASK_HELP = (
    "Data set of --data, such as glue/sts-b; regression for scored pairs; with --dev, the task to fine-tune for."
)


def prune(
    model: options.ModelArgument,
    out: Annotated[Path, Option(help="Model folder to write.")],
    layers: Annotated[float | None, Option(help="Layers to remove: a share such as 0.5, or a count.")] = None,
    heads: Annotated[float | None, Option(help="Attention heads to remove: a share, or a count.")] = None,
    ffn: Annotated[float | None, Option(help="Feed-forward units to remove: a share, or a count per layer.")] = None,
    weights: Annotated[float | None, Option(help="Weights to set to zero: a share, or a count.")] = None,
    data: Annotated[str | None, Option(help=DATA_HELP)] = None,
    task: Annotated[str, Option(help=TASK_HELP)] = "",
    strategy: Annotated[str, Option(help=STRATEGY_HELP, autocompletion=complete(STRATEGIES))] = "auto",
    random: Annotated[bool, Option("--random", help="Also measure a random choice of the same size.")] = False,
    uniform: Annotated[
        bool, Option("--uniform", help="Remove as many heads from each layer; a count is then one per layer.")
    ] = False,
    pad: Annotated[
        bool, Option("--pad", help="Write removed heads as zeros: not smaller, but transformers opens the folder.")
    ] = False,
    curve: Annotated[bool, Option(help="Measure other amounts too, for the chart of quality against size.")] = True,
    seed: Annotated[int, Option(help="Seed of random choices.")] = 0,
    max_examples: Annotated[int, Option(help="Largest number of examples to measure loss or importance on.")] = 256,
    dev: Annotated[str | None, Option(help="Dev examples: what stays is fine-tuned on --data.")] = None,
    schedule: Annotated[str, Option(help=SCHEDULE_HELP, autocompletion=complete(SCHEDULES))] = "one-shot",
    rounds: Annotated[
        int,
        Option(help="Rounds of the iterative schedule; 0: each removes 20 % of the rest."),
    ] = 0,
    rewind_step: Annotated[int, Option(help="Step to which the iterative schedule rewinds weights.")] = 0,
    seeds: options.SeedsOption = "1",
    from_scratch: Annotated[
        bool,
        Option("--from-scratch", help="Also train the pruned shape from random weights."),
    ] = False,
    epochs: Annotated[float | None, Option(help="Epochs of each training on --data.")] = None,
    corpus: Annotated[
        Path | None, Option(help="Prepared corpus on which a language model is trained further, instead of --dev.")
    ] = None,
    budget: Annotated[str, Option(help="Length of each training on --corpus: 500steps or 1e7tokens.")] = "",
    overrides: options.SetOption = [],
    as_json: options.JsonOption = False,
) -> None:
    """Remove layers, attention heads, feed-forward units or single weights of a model.

    Layers, heads and units are removed physically: the folder is smaller and the model faster. The table compares
    size, speed and, with --data, quality. With --dev, what stays is fine-tuned on --data; with --corpus, a
    language model is trained further.
    """
    from polyseme.compress import prune as run

    settings = parse_settings(
        overrides,
        **{"layers": layers, "heads": heads, "ffn": ffn, "weights": weights, "strategy": strategy, "pad": pad},
        **{"uniform": uniform, "seed": seed, "max_examples": max_examples, "schedule": schedule, "rounds": rounds},
        **{"rewind_step": rewind_step, "epochs": epochs, "budget": budget, "random": random, "curve": curve},
        **{"from_scratch": from_scratch, "seeds": parse_seeds(seeds)},
    )
    pruned = run(model, out=out, data=data, dev=dev, task=task, corpus=corpus, **settings)
    if as_json:
        print_json(pruned.to_json())
        return
    print_table(*pruned.table)
    record = pruned.record
    part = PARTS.get(record["part"], record["part"])
    print(f"removed {record['removed']:,} of {record['total']:,} {part} by {record['strategy']}; ", end="")
    print(f"time: median of single texts, {record['device']}")
    print(pruned.out)

"""`polyseme prune`."""

from pathlib import Path
from typing import Annotated

from typer import Option

from polyseme.cli import options
from polyseme.cli.completion import complete
from polyseme.cli.output import parse_seeds, parse_settings, print_compression

STRATEGIES = ("top", "alternate", "loss", "importance", "gates", "norm", "magnitude", "random")
SCHEDULES = ("one-shot", "gradual", "iterative")
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


LayersOption = Annotated[float | None, Option(help="Layers to remove: a share such as 0.5, or a count.")]
HeadsOption = Annotated[float | None, Option(help="Attention heads to remove: a share, or a count.")]
UnitsOption = Annotated[float | None, Option(help="Feed-forward units to remove: a share, or a count per layer.")]
WeightsOption = Annotated[float | None, Option(help="Weights to set to zero: a share, or a count.")]
StrategyOption = Annotated[str, Option(help=STRATEGY_HELP, autocompletion=complete(STRATEGIES))]
ScheduleOption = Annotated[str, Option(help=SCHEDULE_HELP, autocompletion=complete(SCHEDULES))]
RandomOption = Annotated[bool, Option("--random", help="Also measure a random choice of the same size.")]
UniformOption = Annotated[bool, Option("--uniform", help="Remove as many heads from each layer; a count is per layer.")]
PadOption = Annotated[
    bool, Option("--pad", help="Write removed heads as zeros: not smaller, but transformers opens the folder.")
]
CurveOption = Annotated[bool, Option(help="Measure other amounts too, for the chart of quality against size.")]
MaxExamplesOption = Annotated[int, Option(help="Largest number of examples to measure loss or importance on.")]
DevOption = Annotated[str | None, Option(help="Dev examples: what stays is fine-tuned on --data.")]
RoundsOption = Annotated[int, Option(help="Rounds of the iterative schedule; 0: each removes 20 % of the rest.")]
RewindOption = Annotated[int, Option(help="Step to which the iterative schedule rewinds weights.")]
ScratchOption = Annotated[bool, Option("--from-scratch", help="Also train the pruned shape from random weights.")]
CorpusOption = Annotated[
    Path | None, Option(help="Prepared corpus on which a language model is trained further, instead of --dev.")
]
BudgetOption = Annotated[str, Option(help="Length of each training on --corpus: 500steps or 1e7tokens.")]


def prune(
    model: options.ModelArgument,
    out: Annotated[Path, Option(help="Model folder to write.")],
    layers: LayersOption = None,
    heads: HeadsOption = None,
    ffn: UnitsOption = None,
    weights: WeightsOption = None,
    data: Annotated[str | None, Option(help=DATA_HELP)] = None,
    task: Annotated[str, Option(help=TASK_HELP)] = "",
    strategy: StrategyOption = "auto",
    random: RandomOption = False,
    uniform: UniformOption = False,
    pad: PadOption = False,
    curve: CurveOption = True,
    seed: Annotated[int, Option(help="Seed of random choices.")] = 0,
    max_examples: MaxExamplesOption = 256,
    dev: DevOption = None,
    schedule: ScheduleOption = "one-shot",
    rounds: RoundsOption = 0,
    rewind_step: RewindOption = 0,
    seeds: options.SeedsOption = "1",
    from_scratch: ScratchOption = False,
    epochs: Annotated[float | None, Option(help="Epochs of each training on --data.")] = None,
    corpus: CorpusOption = None,
    budget: BudgetOption = "",
    overrides: options.SetOption = [],
    as_json: options.JsonOption = False,
) -> None:
    """Remove layers, attention heads, feed-forward units or weights.

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
    print_compression(pruned, as_json, pruned.notes[0])

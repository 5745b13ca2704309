"""`polyseme prune`."""

from pathlib import Path
from typing import Annotated

from typer import Option

from polyseme.cli import options
from polyseme.cli.completion import complete
from polyseme.cli.output import print_json, print_table

STRATEGIES = ("top", "alternate", "loss", "importance", "norm", "magnitude", "random")
PARTS = {"ffn": "feed-forward units"}
DATA_HELP = (
    "Labeled examples of a task model, texts of a language model or an encoder, or scored pairs of an encoder (with "
    f"--task): {options.INPUT_HELP}"
)
STRATEGY_HELP = (
    "Layers: top, alternate, or loss (one by one, where the loss rises least; default with --data); heads and ffn: "
    "importance (Michel et al. 2019), ffn also norm; weights: magnitude; all: random."
)


def prune(
    model: options.ModelArgument,
    out: Annotated[Path, Option(help="Model folder to write.")],
    layers: Annotated[float | None, Option(help="Layers to remove: a share such as 0.5, or a count.")] = None,
    heads: Annotated[float | None, Option(help="Attention heads to remove: a share, or a count per layer.")] = None,
    ffn: Annotated[float | None, Option(help="Feed-forward units to remove: a share, or a count per layer.")] = None,
    weights: Annotated[float | None, Option(help="Weights to set to zero: a share, or a count.")] = None,
    data: Annotated[str | None, Option(help=DATA_HELP)] = None,
    task: Annotated[str, Option(help="Data set of --data, such as glue/sts-b; regression for scored pairs.")] = "",
    strategy: Annotated[str, Option(help=STRATEGY_HELP, autocompletion=complete(STRATEGIES))] = "auto",
    random: Annotated[bool, Option("--random", help="Also measure a random choice of the same size.")] = False,
    pad: Annotated[
        bool, Option("--pad", help="Write removed heads as zeros: not smaller, but transformers opens the folder.")
    ] = False,
    seed: Annotated[int, Option(help="Seed of random choices.")] = 0,
    max_examples: Annotated[int, Option(help="Largest number of examples to measure loss or importance on.")] = 256,
    as_json: options.JsonOption = False,
) -> None:
    """Remove layers, attention heads, feed-forward units or single weights of a model.

    Layers, heads and units are removed physically: the folder is smaller and the model faster. The table compares
    size, speed and, with --data, quality.
    """
    from polyseme.compress import prune as run

    pruned = run(
        model,
        out=out,
        data=data,
        task=task,
        random=random,
        **{"layers": layers, "heads": heads, "ffn": ffn, "weights": weights},
        **{"strategy": strategy, "pad": pad, "seed": seed, "max_examples": max_examples},
    )
    if as_json:
        print_json(pruned.to_json())
        return
    print_table(*pruned.table)
    record = pruned.record
    part = PARTS.get(record["part"], record["part"])
    print(f"removed {record['removed']:,} of {record['total']:,} {part} by {record['strategy']}; ", end="")
    print(f"time: median of single texts, {record['device']}")
    print(pruned.out)

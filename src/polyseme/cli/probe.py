"""`polyseme probe`."""

import re
from pathlib import Path
from typing import Annotated

from typer import Argument, Option

from polyseme.cli import options
from polyseme.cli.output import parse_seeds, print_json, print_table
from polyseme.errors import ConfigError


def probe(
    models: Annotated[list[Path], Argument(help="Model folders, whose layers are compared.")],
    task: Annotated[
        str,
        Option(
            help="ud-pos, ud-deprel, ud-tree (structural probe), ud-heads (attention heads by relation), ner, wic, or "
            "a task or data set of `polyseme tasks` with one label per word, text or pair; separate several by commas."
        ),
    ],
    data: Annotated[
        list[Path],
        Option(help="A file, or a folder with a train and a dev file; once for all tasks, or once per task in order."),
    ],
    dev: Annotated[
        list[Path] | None, Option(help="Dev file of each --data file; default: a fifth of the sentences.")
    ] = None,
    out: Annotated[
        Path | None, Option(help="Output page (.html); the numbers (.json) and figures (.svg) go next to it.")
    ] = None,
    layers: Annotated[str, Option(help="Layers to probe: 0,3,6 or 0-6 (0: the embeddings); default: all.")] = "",
    seeds: options.SeedsOption = "3",
    max_examples: Annotated[int, Option(help="Largest number of labels to train on; of dev, a quarter.")] = 20_000,
    as_json: options.JsonOption = False,
) -> None:
    """Measure what each layer of a model encodes, by linear probes.

    Each probe is compared with a control task (random labels by word type) and an untrained copy of the model. The
    description length of the labels is measured by online coding.
    """
    from polyseme.explain.explanation import check_page_path
    from polyseme.explain.probing.api import probe as run_probes

    if out is not None:
        check_page_path(out)
    explanation = run_probes(
        models,
        task,
        data,
        dev=dev,
        layers=parse_layers(layers),
        seeds=parse_seeds(seeds),
        max_examples=max_examples,
    )
    paths = explanation.save(out) if out is not None else []
    if as_json:
        print_json(explanation.record)
        return
    if out is None:
        for header, rows in explanation.tables:
            print_table(header, rows)
            print()
    print(explanation.summary)
    for path in paths:
        print(path)


def parse_layers(text: str) -> list[int] | None:
    """Parse `0,3,6` or `0-6`; None if empty."""
    layers: list[int] = []
    for part in filter(None, (part.strip() for part in text.split(","))):
        match = re.fullmatch(r"([0-9]{1,4})(?:-([0-9]{1,4}))?", part)
        if match is None or int(match[2] or match[1]) < int(match[1]):
            raise ConfigError(f"--layers {text!r} is not a list of layers such as 0,3,6 or 0-6")
        layers += range(int(match[1]), int(match[2] or match[1]) + 1)
    return layers or None

"""`polyseme embed`: vectors of texts, words or tokens."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer


def embed(
    model: Annotated[Path, typer.Argument(help="model folder")],
    data: Annotated[Path, typer.Option(help="text file, one text per line")],
    out: Annotated[Path, typer.Option(help="output .npz file")],
    layers: Annotated[
        str,
        typer.Option(
            help="layers: embeddings, last, second_to_last, sum_last_4, concat_last_4, sum_all, all, or a number"
        ),
    ] = "last",
    granularity: Annotated[str, typer.Option(help="one vector per token, word, or text (mean pooling)")] = "text",
    precision: Annotated[str, typer.Option(help="float32, or bf16 on a GPU")] = "float32",
    truncate: Annotated[bool, typer.Option(help="truncate texts that are longer than the model reads")] = False,
) -> None:
    """Write vectors to an .npz file: `vectors`, and for tokens or words `starts`, the first row of each text."""
    import numpy as np

    import polyseme
    from polyseme.cli.output import read_texts
    from polyseme.errors import ConfigError
    from polyseme.io.atomic import atomic_write

    if out.suffix != ".npz":
        raise ConfigError(f"--out {out} does not end in .npz")
    vectors = polyseme.load(model, precision=precision).embed(read_texts(data), layers, granularity, truncate)  # type: ignore[arg-type]
    arrays = {"vectors": vectors}
    if isinstance(vectors, list):
        arrays = {"vectors": np.concatenate(vectors), "starts": np.cumsum([0, *map(len, vectors)])}

    def write(path: Path) -> None:
        with open(path, "wb") as f:
            np.savez(f, **arrays)

    atomic_write(out, write)
    print(f"{out}: " + ", ".join(f"{name} {np.shape(value)}" for name, value in arrays.items()))

"""`polyseme embed`: vectors of texts, words or tokens."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer


def embed(
    model: Annotated[Path, typer.Argument(help="a model folder")],
    data: Annotated[Path, typer.Option(help="a text file, one text a line")],
    out: Annotated[Path, typer.Option(help="the .npz file to write")],
    layers: Annotated[
        str,
        typer.Option(help="embeddings, last, second_to_last, sum_last_4, concat_last_4, sum_all, all, or a depth"),
    ] = "last",
    granularity: Annotated[str, typer.Option(help="token, word or text (the mean over its tokens)")] = "text",
    precision: Annotated[str, typer.Option(help="float32, or bf16 on a GPU")] = "float32",
    truncate: Annotated[bool, typer.Option(help="cut texts that are longer than the model reads")] = False,
) -> None:
    """Write vectors to an .npz file: `vectors`, and for tokens or words `starts`, where each text begins."""
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
            np.savez(f, **arrays)  # type: ignore[arg-type]

    atomic_write(out, write)
    print(f"{out}: " + ", ".join(f"{name} {np.shape(value)}" for name, value in arrays.items()))

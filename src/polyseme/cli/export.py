"""`polyseme export`: write a model in the format of another program."""

import re
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

from typer import Option

from polyseme.cli import options
from polyseme.cli.completion import complete
from polyseme.cli.output import print_compression
from polyseme.io.lock import locks_folder

FORMATS = ("onnx", "torch", "static")
TO_HELP = "onnx (a graph for onnxruntime), torch (a torch.export program), or static (one vector per token)."
CACHE_HELP = "ONNX graph that continues texts: keys and values, or recurrent states, are inputs and outputs."
DATA_HELP = (
    "Measure the metric before and after: labeled examples of a task model, texts of a language model, or scored pairs "
    f"of an encoder (with --task): {options.INPUT_HELP}"
)
HEAD_HELP = "Head in the graph, or `vectors` (states and text vectors); default: all, and without any the vectors."


def list_names(names: Sequence[str]) -> str:
    """List names, those of all layers once."""
    return ", ".join(dict.fromkeys(re.sub(r"\.\d+", ".N", name) for name in names))


@locks_folder("export")
def export(
    model: options.ModelArgument,
    to: Annotated[str, Option(help=TO_HELP, autocompletion=complete(FORMATS))],
    out: Annotated[Path, Option(help="Folder to write.")],
    head: Annotated[str, Option(help=HEAD_HELP)] = "",
    cache: Annotated[bool, Option("--cache", help=CACHE_HELP)] = False,
    data: Annotated[str | None, Option(help=DATA_HELP)] = None,
    task: Annotated[str, Option(help="Data set of --data, such as glue/sts-b; regression for scored pairs.")] = "",
    opset: Annotated[int | None, Option(help="Operator set of ONNX; default: 18.")] = None,
    dim: Annotated[
        int | None, Option(help="Dimensions of static vectors; 0: all; default: 256 at most.", min=0)
    ] = None,
    as_json: options.JsonOption = False,
) -> None:
    """Write a model in a format that runs without Polyseme.

    Its heads and its tokenizer are written, too. The outputs are compared with those of the model. Prints sizes, times
    and, with --data, quality before and after.
    """
    from polyseme.compress import export as run

    settings = {"head": head, "cache": cache, "opset": opset, "dim": dim}
    exported = run(model, to, out, data=data, task=task, **settings)  # type: ignore[arg-type]
    record, lines = exported.record, []
    if "outputs" in record:
        for name, (inputs, outputs) in record["graphs"].items():
            lines.append(f"{out / name}: inputs {list_names(inputs)}; outputs {list_names(outputs)}")
        difference = f"{record['max_difference']:.1e} at {record['num_shapes']} shapes"
        lines.append(f"largest difference from the outputs of the model: {difference}")
    else:
        vectors = f"{record['num_tokens']:,} vectors of dimension {record['dim']}"
        lines.append(f"{vectors}, for `polyseme embed` and `search`")
    print_compression(exported, as_json, *lines)

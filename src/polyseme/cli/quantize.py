"""`polyseme quantize`: write a model with numbers of 8 or 16 bits."""

from pathlib import Path
from typing import Annotated

from typer import Option

from polyseme.cli import options
from polyseme.cli.completion import complete
from polyseme.cli.output import print_compression

NUMBER_TYPES = ("int8", "bfloat16")
MODES = ("dynamic", "static", "weights")
MODE_HELP = (
    "Of int8: dynamic (an ONNX graph that computes in int8; the default), static (the same with scales from "
    "--calibration), or weights (a model folder stored in int8, computed in float32)."
)
DATA_HELP = (
    "Labeled examples of a task model, texts of a language model or an encoder, or scored pairs of an encoder (with "
    f"--task), to compare the quality on: {options.INPUT_HELP}"
)


def quantize(
    model: options.ModelArgument,
    to: Annotated[str, Option(help="int8 or bfloat16.", autocompletion=complete(NUMBER_TYPES))],
    out: Annotated[Path, Option(help="Folder to write.")],
    data: Annotated[str | None, Option(help=DATA_HELP)] = None,
    task: Annotated[str, Option(help="Data set of --data, such as glue/sts-b; regression for scored pairs.")] = "",
    mode: Annotated[str | None, Option(help=MODE_HELP, autocompletion=complete(MODES))] = None,
    calibration: Annotated[str | None, Option(help="Texts for the scales of static quantization.")] = None,
    max_drop: Annotated[
        float | None, Option(help="Largest loss of the metric in points, 100 times the metric; default: 0.5.")
    ] = None,
    head: Annotated[str | None, Option(help="Head in the graph, or `vectors`; default: all.")] = None,
    opset: Annotated[int | None, Option(help="Operator set of the graph; default: 18.")] = None,
    as_json: options.JsonOption = False,
) -> None:
    """Write a model with weights of 8 or 16 bits.

    It is smaller, and in int8 faster on a CPU. The table compares size, speed and, with --data, quality; if the
    metric drops by more than --max-drop points, the command fails and writes nothing.
    """
    from polyseme.compress import quantize as run

    quantized = run(
        model,
        out=out,
        data=data,
        task=task,
        calibration=calibration,
        **{"to": to, "mode": mode, "max_drop": max_drop, "head": head, "opset": opset},
    )
    print_compression(quantized, as_json)

"""`polyseme models` and `polyseme convert`: bundled models, and how the weights of a model are stored."""

from pathlib import Path
from typing import Annotated

from typer import Option

from polyseme.cli import options
from polyseme.cli.completion import complete
from polyseme.cli.output import print_json, print_wrapped_table
from polyseme.io.lock import locks_folder

DTYPES = ("float32", "bf16", "int8")
DTYPE_HELP = "Storage of the weights: float32, bf16 or int8 (a quarter of the size; transformers cannot read it)."


def models(as_json: options.JsonOption = False) -> None:
    """List the models that come with the package.

    Their names can be used wherever a model is expected.
    """
    import polyseme
    from polyseme.io.model_path import list_bundled

    descriptions, paths = polyseme.list_models(), {path.name: path for path in list_bundled()}
    sizes = {name: _count_bytes(path) for name, path in paths.items()}
    if as_json:
        facts = {name: {"bytes": sizes[name], "path": str(path)} for name, path in paths.items()}
        print_json([{"name": name, **facts[name], "description": descriptions[name]} for name in paths])
        return
    print_wrapped_table(
        ["model", "size", "what it is"], [(name, _format_size(sizes[name]), descriptions[name]) for name in paths]
    )
    for name, path in paths.items():
        print(f"{name} is in {path}; its card is README.md")


@locks_folder("convert")
def convert(
    model: options.ModelArgument,
    out: Annotated[Path, Option(help="Model folder to write.")],
    dtype: Annotated[str, Option(help=DTYPE_HELP, autocompletion=complete(DTYPES))] = "float32",
) -> None:
    """Write a model folder again with its weights in another type.

    With the default, float32, transformers opens the folder. The error of the weights is printed.
    """
    from polyseme.inference.load import load_neural
    from polyseme.weights.int8_storage import measure_error

    loaded = load_neural(model)
    path = loaded.save(out, dtype)
    sizes = f"{_format_size(_count_bytes(path))}, {dtype}; the source has {_format_size(_count_bytes(loaded.path))}"
    print(f"{path}: {sizes}")
    if dtype != "float32":
        error = measure_error(loaded.model.state_dict(), load_neural(path).model.state_dict())
        print(f"error of the weights: {error.relative_error:.2%} of their norm, at most {error.max_error:.2g}")


def _count_bytes(folder: Path) -> int:
    return sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())


def _format_size(num_bytes: int) -> str:
    return f"{num_bytes / 1e6:.1f} MB"

"""`polyseme demo`: the whole pipeline on text that comes with Python."""

from pathlib import Path
from typing import Annotated

from typer import Option

from polyseme.errors import ConfigError
from polyseme.io.lock import locks_folder


@locks_folder("demo")
def demo(
    out: Annotated[Path, Option(help="Output folder.")] = Path("runs/demo"),
    minutes: Annotated[float, Option(help="Minutes of pre-training.", min=0.01)] = 3.0,
    seeds: Annotated[int, Option(help="Number of fine-tuning runs per row.", min=1)] = 3,
) -> None:
    """Run the whole pipeline on text of this machine.

    It pre-trains a small BERT on Python's documentation, fine-tunes it and the bundled model, and writes a report, in
    about eight minutes on two cores.
    """
    import shutil

    from polyseme.io.atomic import is_occupied
    from polyseme.pipelines.demo import MARKER_FILE, run_demo

    if is_occupied(out):
        if not (out / MARKER_FILE).is_file():
            raise ConfigError(f"{out} contains something other than a demo: choose another --out")
        shutil.rmtree(out)
    print(f"see {run_demo(out, minutes, seeds)}")
    print(f"to serve its models at http://127.0.0.1:8000: polyseme serve {out / 'task'} {out / 'pretrain'}")

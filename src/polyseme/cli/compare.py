"""`polyseme compare` and `polyseme benchmark`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer


def compare(
    runs: Annotated[list[Path], typer.Argument(help="folders of fine-tuning runs, or of benchmarks")],
    out: Annotated[Path | None, typer.Option(help="a picture to write: .png, .svg or .pdf")] = None,
    samples: Annotated[
        int, typer.Option(help="how often the bootstrap draws, for two runs of one task", min=10)
    ] = 1000,
    as_json: Annotated[bool, typer.Option("--json", help="print JSON")] = False,
) -> None:
    """Models × tasks with deviations over seeds; for two runs of one task, whether one is really better."""
    from polyseme.cli.output import print_json, print_table
    from polyseme.errors import UserError
    from polyseme.evaluation.compare import bootstrap, cells, picture, read_runs
    from polyseme.report.html import flatter

    if out is not None and out.suffix not in (".png", ".svg", ".pdf"):
        raise UserError(f"{out}: a picture is written as .png, .svg or .pdf")
    found = read_runs(runs)
    pair = len(found) == 2 and found[0].task == found[1].task and all(run.testable for run in found)
    tested = bootstrap(found[0], found[1], samples) if pair else None
    if out is not None:
        picture(found, out)
    if as_json:
        rows = [
            {
                "run": str(run.path),
                "model": run.model,
                "task": run.task,
                "metric": run.metric,
                "mean": run.mean,
                "deviation": run.deviation,
                "seeds": len(run.values),
                "failed": run.failed,
                "parameters": run.parameters,
                "examples_per_second": run.speed,
                "ms_per_text": run.ms,
                "seconds": run.seconds,
                "chosen_on_dev": run.chosen,
            }
            for run in found
        ]
        print_json({"runs": rows, **({"bootstrap": tested} if tested else {})})
        return
    print_table(*cells(found))
    for run in found:
        if run.chosen:
            print(f"{run.path}: {flatter(run.chosen)}")
    if tested:
        better = found[0] if tested["difference"] >= 0 else found[1]
        low, high = 100 * tested["low"], 100 * tested["high"]
        print(f"{better.path} is better by {100 * abs(tested['difference']):.2f}; p = {tested['p']:.3f}")
        print(f"the first less the second: 95 % of {samples} draws lie from {low:.2f} to {high:.2f}")


def benchmark(
    name: Annotated[str, typer.Argument(help="glue or superglue")],
    model: Annotated[Path, typer.Argument(help="a pre-trained model folder")],
    data: Annotated[Path, typer.Option(help="the folder that holds the data sets")],
    out: Annotated[Path, typer.Option(help="the folder to write; what is done there is not done again")],
    seeds: Annotated[int, typer.Option(help="how many runs of each", min=1)] = 1,
    set_: Annotated[list[str], typer.Option("--set", help="path=value, e.g. epochs=4, optim.rate=3e-5")] = [],  # noqa: B006
    skip_bad: Annotated[bool, typer.Option(help="go on past bad rows and count them")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="print JSON")] = False,
) -> None:
    """Fine-tune and measure on every data set of a benchmark; published rows stand beside the result."""
    from polyseme.cli.output import print_json, print_table, set_values
    from polyseme.evaluation.benchmarks import rows_of, run_benchmark
    from polyseme.finetuning.finetune import FinetuneSpec
    from polyseme.report.html import flatter
    from polyseme.weights.folder import read_spec

    limit = read_spec(model)[0].trunk.embeddings.max_len
    settings = set_values(FinetuneSpec(max_len=min(128, limit), truncate=True), set_)
    found = run_benchmark(name, model, data, out, settings, seeds, skip_bad)
    if as_json:
        print_json(found)
        return
    print_table(*rows_of(name, str(model), found))
    print("Published figures are of the test sets; ours are of dev, in percent.")
    if found["chosen_on_dev"]:
        print(flatter(found["chosen_on_dev"]))
    for column, failed in found["failed"].items():
        print(f"{column}: {len(failed)} of {seeds} seeds are no better than a blind guess")
    for beside, values in found["beside"].items():
        print(f"{beside}: {', '.join(f'{name} {value:.4f}' for name, value in values.items())}")
    if found["missing"]:
        print(f"not in {data}: {', '.join(found['missing'])}; there is no average without them")

"""`polyseme compare` and `polyseme benchmark`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer


def compare(
    runs: Annotated[list[Path], typer.Argument(help="folders of fine-tuning runs, or of benchmarks")],
    out: Annotated[Path | None, typer.Option(help="a picture to write: .png, .svg or .pdf")] = None,
    num_resamples: Annotated[
        int, typer.Option(help="how often the bootstrap draws, for two runs of one task", min=10)
    ] = 1000,
    as_json: Annotated[bool, typer.Option("--json", help="print JSON")] = False,
) -> None:
    """Models × tasks with deviations over seeds; for two runs of one task, whether one is really better."""
    from polyseme.cli.output import print_json, print_table
    from polyseme.errors import ConfigError
    from polyseme.evaluation.compare import comparison_table, paired_bootstrap, plot_comparison, read_runs
    from polyseme.report.run_page import dev_selection_note

    if out is not None and out.suffix not in (".png", ".svg", ".pdf"):
        raise ConfigError(f"{out}: a picture is written as .png, .svg or .pdf")
    loaded_runs = read_runs(runs)
    is_comparable_pair = (
        len(loaded_runs) == 2
        and loaded_runs[0].task == loaded_runs[1].task
        and all(run.supports_bootstrap for run in loaded_runs)
    )
    bootstrap_result = paired_bootstrap(loaded_runs[0], loaded_runs[1], num_resamples) if is_comparable_pair else None
    if out is not None:
        plot_comparison(loaded_runs, out)
    if as_json:
        rows = [
            {
                "run": str(run.path),
                "model": run.model,
                "task": run.task,
                "metric": run.metric,
                "mean": run.mean,
                "std": run.std,
                "seeds": len(run.seed_scores),
                "failed_seeds": run.failed_seeds,
                "parameters": run.num_parameters,
                "examples_per_second": run.examples_per_second,
                "ms_per_text": run.latency_ms,
                "seconds": run.train_seconds,
                "chosen_on_dev": run.dev_choices,
            }
            for run in loaded_runs
        ]
        print_json({"runs": rows, **({"bootstrap": bootstrap_result} if bootstrap_result else {})})
        return
    print_table(*comparison_table(loaded_runs))
    for run in loaded_runs:
        if run.dev_choices:
            print(f"{run.path}: {dev_selection_note(run.dev_choices)}")
    if bootstrap_result:
        better_run = loaded_runs[0] if bootstrap_result["difference"] >= 0 else loaded_runs[1]
        low, high = 100 * bootstrap_result["low"], 100 * bootstrap_result["high"]
        difference = 100 * abs(bootstrap_result["difference"])
        print(f"{better_run.path} is better by {difference:.2f}; p = {bootstrap_result['p']:.3f}")
        print(f"the first less the second: 95 % of {num_resamples} draws lie from {low:.2f} to {high:.2f}")


def benchmark(
    name: Annotated[str, typer.Argument(help="glue or superglue")],
    model: Annotated[Path, typer.Argument(help="a pre-trained model folder")],
    data: Annotated[Path, typer.Option(help="the folder that holds the data sets")],
    out: Annotated[Path, typer.Option(help="the folder to write; what is done there is not done again")],
    seeds: Annotated[int, typer.Option(help="how many runs of each", min=1)] = 1,
    overrides: Annotated[list[str], typer.Option("--set", help="path=value, e.g. epochs=4, optimizer.lr=3e-5")] = [],  # noqa: B006
    skip_bad: Annotated[bool, typer.Option(help="go on past bad rows and count them")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="print JSON")] = False,
) -> None:
    """Fine-tune and measure on every data set of a benchmark; published rows stand beside the result."""
    from polyseme.cli.output import apply_overrides, print_json, print_table
    from polyseme.evaluation.benchmarks import benchmark_table, run_benchmark
    from polyseme.finetuning.config import FinetuneConfig
    from polyseme.report.run_page import dev_selection_note
    from polyseme.weights.folder import read_model_config

    max_len = read_model_config(model)[0].trunk.embeddings.max_len
    settings = apply_overrides(FinetuneConfig(max_len=min(128, max_len), truncate=True), overrides)
    summary = run_benchmark(name, model, data, out, settings, seeds, skip_bad)
    if as_json:
        print_json(summary)
        return
    print_table(*benchmark_table(name, str(model), summary))
    print("Published figures are of the test sets; ours are of dev, in percent.")
    if summary["chosen_on_dev"]:
        print(dev_selection_note(summary["chosen_on_dev"]))
    for task, failed_seeds in summary["failed_seeds"].items():
        print(f"{task}: {len(failed_seeds)} of {seeds} seeds are no better than a blind guess")
    for diagnostic, values in summary["diagnostic_scores"].items():
        print(f"{diagnostic}: {', '.join(f'{name} {value:.4f}' for name, value in values.items())}")
    if summary["missing"]:
        print(f"not in {data}: {', '.join(summary['missing'])}; there is no average without them")

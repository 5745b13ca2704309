"""`polyseme evaluate`, `predict`, `compare` and `benchmark`."""

import sys
from pathlib import Path
from typing import Annotated

from typer import Argument, Option

from polyseme.cli import options
from polyseme.cli.output import print_json, print_table

ModelsArgument = Annotated[
    list[Path], Argument(help="Folder of a fine-tuned model; with --ensemble several, or a run that kept several.")
]
EnsembleOption = Annotated[bool, Option(help="Average the probabilities of several models.")]
TruncateOption = Annotated[bool | None, Option(help="Truncate long texts; default: as in fine-tuning.")]
PLL_HELP = "Score of a sentence by a masked model: original, or within_word_l2r (mask the rest of a word too)."
TASK_HELP = "One task of a model for several; or the format of --data, if the model does not record its task; "


def evaluate(
    models: ModelsArgument,
    data: Annotated[Path, Option(help="Labeled examples: a file, or the folder of a named data set.")],
    text_column: options.TextColumnOption = "text",
    pair_column: options.PairColumnOption = "pair",
    label_column: options.LabelColumnOption = "label",
    header: options.HeaderOption = True,
    truncate: TruncateOption = None,
    task: Annotated[str, Option(help=TASK_HELP + "or a named data set, whose dev examples are read.")] = "",
    skip_bad: options.SkipBadOption = False,
    as_json: options.JsonOption = False,
    ensemble: EnsembleOption = False,
    pll_metric: Annotated[str | None, Option(help=PLL_HELP)] = None,
    normalization: Annotated[
        str | None, Option(help="Score of a minimal pair's sentence: none (default), or length (per token).")
    ] = None,
) -> None:
    """Evaluate a fine-tuned model, or an ensemble, on labeled examples: metrics, size and speed.

    With the task blimp or minimal-pairs, evaluate language models of any kind on pairs of sentences.
    """
    from dataclasses import asdict

    import polyseme
    from polyseme.evaluation.minimal_pairs import MINIMAL_PAIR_TASKS, minimal_pairs_table
    from polyseme.finetuning.api import ReadOptions
    from polyseme.report.finetuning_page import dev_selection_note

    reading = asdict(ReadOptions(text_column, pair_column, label_column, header, skip_bad))
    changed = {name: value for name, value in reading.items() if value != getattr(ReadOptions(), name)}
    evaluation = polyseme.evaluate(
        models, data, task=task, ensemble=ensemble, truncate=truncate, pll_metric=pll_metric,
        normalization=normalization, **changed,
    )  # fmt: skip
    if task in MINIMAL_PAIR_TASKS:
        if as_json:
            print_json([asdict(each) for each in evaluation])
        else:
            print_table(*minimal_pairs_table(task, evaluation))
        return
    if evaluation.chosen_on_dev:
        print(dev_selection_note(evaluation.chosen_on_dev), file=sys.stderr)
    if as_json:
        sizes = {"examples": evaluation.num_examples, "parameters": evaluation.num_parameters}
        speed = {"examples_per_second": evaluation.examples_per_second, "ms_per_text": evaluation.ms_per_text}
        print_json({**sizes, **speed, **evaluation.metrics})
        return
    speed_text = f"{evaluation.examples_per_second:,.1f} per second, {evaluation.ms_per_text:.1f} ms for one alone"
    print(f"{evaluation.num_examples} examples, {speed_text}")
    print(f"{evaluation.num_parameters:,} parameters")
    for name, value in evaluation.metrics.items():
        print(f"{name}: {value:.4f}")


def predict(
    models: ModelsArgument,
    data: Annotated[Path, Option(help="Examples, labeled or not: a file, or the folder of a named data set.")],
    out: Annotated[Path, Option(help="Output file: .jsonl, .tsv, .conll, .json (SQuAD) or .props (srl-eval).")],
    text_column: options.TextColumnOption = "text",
    pair_column: options.PairColumnOption = "pair",
    label_column: options.LabelColumnOption = "label",
    header: options.HeaderOption = True,
    truncate: TruncateOption = None,
    task: Annotated[
        str, Option(help=TASK_HELP + "or a named data set, for a submission of its test examples to GLUE or SuperGLUE.")
    ] = "",
    skip_bad: options.SkipBadOption = False,
    ensemble: EnsembleOption = False,
    resume: options.ResumeOutputOption = False,
) -> None:
    """Predict each example, with probabilities where the task has them, in the order of the input."""
    from polyseme.evaluation.api import load_predictor, predict_file
    from polyseme.finetuning.api import ReadOptions

    reading = ReadOptions(text_column, pair_column, label_column, header, skip_bad)
    num_predictions = predict_file(load_predictor(models, task, ensemble, truncate), data, out, task, reading, resume)
    print(f"{out}: {num_predictions} predictions")


def compare(
    runs: Annotated[list[Path], Argument(help="Folders of fine-tuning runs or benchmarks.")],
    out: Annotated[Path | None, Option(help="Plot to write: .png, .svg or .pdf.")] = None,
    num_resamples: Annotated[int, Option(help="Number of bootstrap samples, for two runs of one task.", min=10)] = 1000,
    as_json: options.JsonOption = False,
) -> None:
    """Compare models by task, with standard deviations over seeds; two runs of one task by the paired bootstrap."""
    import polyseme
    from polyseme.evaluation.compare import comparison_table
    from polyseme.report.finetuning_page import dev_selection_note

    comparison = polyseme.compare(runs, out=out, num_resamples=num_resamples)
    bootstrap = comparison.bootstrap
    if as_json:
        rows = [
            {
                "run": str(run.path), "model": run.model, "task": run.task, "metric": run.metric, "mean": run.mean,
                "std": run.std, "seeds": len(run.seed_scores), "failed_seeds": run.failed_seeds,
                "parameters": run.num_parameters, "examples_per_second": run.examples_per_second,
                "ms_per_text": run.latency_ms, "seconds": run.train_seconds, "chosen_on_dev": run.dev_choices,
            }
            for run in comparison.runs
        ]  # fmt: skip
        print_json({"runs": rows, **({"bootstrap": bootstrap} if bootstrap else {})})
        return
    print_table(*comparison_table(comparison.runs))
    for run in comparison.runs:
        if run.dev_choices:
            print(f"{run.path}: {dev_selection_note(run.dev_choices)}")
    if bootstrap:
        better = comparison.runs[0 if bootstrap["difference"] >= 0 else 1]
        print(f"{better.path} is better by {100 * abs(bootstrap['difference']):.2f}; p = {bootstrap['p']:.3f}")
        low, high = 100 * bootstrap["low"], 100 * bootstrap["high"]
        print(f"difference of the first and the second: 95 % interval from {low:.2f} to {high:.2f}")


def benchmark(
    name: Annotated[str, Argument(help="glue or superglue.")],
    model: Annotated[Path, Argument(help="Folder of a pre-trained model.")],
    data: Annotated[Path, Option(help="Folder that contains the data sets.")],
    out: Annotated[Path, Option(help="Output folder; finished data sets in it are not run again.")],
    seeds: options.NumSeedsOption = 1,
    overrides: options.SetOption = [],
    skip_bad: options.SkipBadOption = False,
    as_json: options.JsonOption = False,
) -> None:
    """Fine-tune and evaluate on every data set of a benchmark, next to published results.

    The same command resumes a run that was interrupted.
    """
    from polyseme.cli.output import apply_overrides
    from polyseme.evaluation.benchmarks import benchmark_table, run_benchmark
    from polyseme.finetuning.config import FinetuneConfig
    from polyseme.report.finetuning_page import dev_selection_note
    from polyseme.weights.folder import read_model_config

    max_len = read_model_config(model)[0].trunk.embeddings.max_len
    config = apply_overrides(FinetuneConfig(max_len=min(128, max_len), truncate=True), overrides)
    summary = run_benchmark(name, model, data, out, config, seeds, skip_bad)
    if as_json:
        print_json(summary)
        return
    print_table(*benchmark_table(name, str(model), summary))
    print("Published results are on the test sets; ours are on the dev sets, in percent.")
    if summary["chosen_on_dev"]:
        print(dev_selection_note(summary["chosen_on_dev"]))
    for task, failed_seeds in summary["failed_seeds"].items():
        print(f"{task}: {len(failed_seeds)} of {seeds} seeds are no better than the majority baseline")
    for diagnostic, values in summary["diagnostic_scores"].items():
        print(f"{diagnostic}: {', '.join(f'{name} {value:.4f}' for name, value in values.items())}")
    if summary["missing"]:
        print(f"not in {data}: {', '.join(summary['missing'])}; without them there is no average")

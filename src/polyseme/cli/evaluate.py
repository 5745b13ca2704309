"""`polyseme evaluate`, `predict`, `compare` and `benchmark`."""

import sys
import textwrap
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from typer import Argument, Option

from polyseme.cli import options
from polyseme.cli.output import print_json, print_table

if TYPE_CHECKING:
    from polyseme.evaluation.comparison.significance import PairedTest

MODELS_HELP = "Fine-tuned model or its run; with --ensemble several, or a run that kept several."
ModelsArgument = Annotated[list[Path], Argument(help=MODELS_HELP)]
LANGUAGE_MODELS_HELP = f"{MODELS_HELP} For minimal pairs, one or several language models of any kind."
EnsembleOption = Annotated[bool, Option(help="Average the probabilities of several models.")]
TruncateOption = Annotated[bool | None, Option(help="Truncate long texts; default: as in fine-tuning.")]
RUNS_HELP = (
    "Folders of fine-tuning runs and benchmarks, or of pre-training runs; or groups of fine-tuning runs, one for each "
    "pre-training seed: 'bert=runs/bert-*/cola'."
)
TASK_HELP = "One task of a model for several; or the format of --data, if the model does not record its task; "


def evaluate(
    models: Annotated[list[Path], Argument(help=LANGUAGE_MODELS_HELP)],
    data: Annotated[Path, Option(help=f"The folder of a named data set, or labeled examples. {options.EXAMPLES_HELP}")],
    text_column: options.TextColumnOption = "",
    pair_column: options.PairColumnOption = "",
    label_column: options.LabelColumnOption = "",
    header: options.HeaderOption = True,
    truncate: TruncateOption = None,
    task: Annotated[
        str, Option(help=TASK_HELP + "a named data set, whose dev examples are read; blimp; or minimal-pairs.")
    ] = "",
    skip_bad: options.SkipBadOption = False,
    as_json: options.JsonOption = False,
    ensemble: EnsembleOption = False,
    pll_metric: Annotated[str | None, Option(help=options.PLL_HELP)] = None,
    normalization: Annotated[
        str | None, Option(help="Score of a minimal pair's sentence: none (default), or length (per token).")
    ] = None,
) -> None:
    """Evaluate a model, or an ensemble, on labeled examples.

    Prints metrics, size and speed.

    With the task blimp or minimal-pairs, evaluate language models of any kind on pairs of sentences.
    """
    from dataclasses import asdict

    import polyseme
    from polyseme.evaluation.minimal_pairs import MINIMAL_PAIR_TASKS, minimal_pairs_table
    from polyseme.finetuning.api import ReadOptions
    from polyseme.report.pages.finetuning_page import dev_selection_note
    from polyseme.report.results import metric_title

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
        label = {"positive_label": evaluation.positive_label} if evaluation.positive_label else {}
        dataset = {"dataset": task} if task in polyseme.list_datasets() else {}
        print_json({**dataset, **sizes, **speed, **evaluation.metrics, **label})
        return
    speed_text = f"{evaluation.examples_per_second:,.1f} per second, {evaluation.ms_per_text:.1f} ms for one alone"
    print(f"{evaluation.num_examples} examples, {speed_text}")
    print(f"{evaluation.num_parameters:,} parameters")
    for name, value in evaluation.metrics.items():
        print(f"{metric_title(name, evaluation.positive_label)}: {value:.4f}")


def predict(
    models: ModelsArgument,
    data: Annotated[Path, Option(help=f"The folder of a named data set, or examples. {options.EXAMPLES_HELP}")],
    out: Annotated[Path, Option(help=f"{options.OUTPUT_HELP} Also .conll, .json (SQuAD) and .props (srl-eval).")],
    text_column: options.TextColumnOption = "",
    pair_column: options.PairColumnOption = "",
    label_column: options.LabelColumnOption = "",
    header: options.HeaderOption = True,
    truncate: TruncateOption = None,
    task: Annotated[
        str, Option(help=TASK_HELP + "or a named data set, for a submission of its test examples to GLUE or SuperGLUE.")
    ] = "",
    skip_bad: options.SkipBadOption = False,
    ensemble: EnsembleOption = False,
    resume: options.ResumeOutputOption = False,
) -> None:
    """Predict each example of a file, in the order of the input.

    Predictions have probabilities where the task has them.
    """
    from polyseme.evaluation.api import load_predictor, predict_file
    from polyseme.finetuning.api import ReadOptions

    reading = ReadOptions(text_column, pair_column, label_column, header, skip_bad)
    num_predictions = predict_file(load_predictor(models, task, ensemble, truncate), data, out, task, reading, resume)
    print(f"{out}: {num_predictions} predictions")


def compare(
    runs: Annotated[list[str], Argument(help=RUNS_HELP)],
    out: Annotated[
        Path | None,
        Option(help="Folder to write: a page, LaTeX, CSV and JSON; or a plot of fine-tuning runs: .png, .svg or .pdf."),
    ] = None,
    num_resamples: Annotated[int, Option(help="Number of bootstrap samples for intervals and tests.", min=100)] = 1000,
    as_json: options.JsonOption = False,
) -> None:
    """Compare runs of one kind, each named by its folder.

    Fine-tuning runs by task: means and standard deviations over seeds, and two-sided paired tests against the best.
    Groups of fine-tuning runs, whose models differ in their pre-training seed: the same over pre-training seeds, by the
    multi-bootstrap. Pre-training runs: loss, perplexity, bits per character, and costs.
    """
    import polyseme
    from polyseme.evaluation.comparison.api import MASKED_NOTE
    from polyseme.evaluation.comparison.finetuning_runs import comparison_table
    from polyseme.evaluation.comparison.pretraining_runs import pretraining_table
    from polyseme.report.pages.finetuning_page import dev_selection_note

    comparison = polyseme.compare(runs, out=out, num_resamples=num_resamples)
    if as_json:
        print_json(comparison.to_json())
        return
    if isinstance(comparison, polyseme.PretrainComparison):
        print_table(*pretraining_table(comparison.runs))
        if len({run.is_masked for run in comparison.runs}) > 1:
            print(MASKED_NOTE)
    else:
        print_table(*comparison_table(comparison.runs))
        for run in comparison.runs:
            if run.dev_choices:
                print(f"{run.name}: {dev_selection_note(run.dev_choices)}")
        for test in comparison.tests:
            print(_format_test(test))
    if out is not None:
        print(f"see {out / 'report.html' if out.is_dir() else out}")


def _format_test(test: "PairedTest") -> str:
    """State which run is better, the difference in points with its interval, and the p-value with its kind."""
    verdict = "is better than" if test.is_significant else "is not significantly better than"
    p_value = "p < 0.001" if test.p < 0.001 else f"p = {test.p:.3f}"
    interval = f"95 % interval {100 * test.low:.2f} to {100 * test.high:.2f}"
    difference = f"{test.first} {verdict} {test.second} on {test.task}: {100 * test.difference:+.2f}"
    return f"{difference} ({interval}; {p_value}, {test.method})"


def benchmark(
    name: Annotated[str, Argument(help="glue or superglue.")],
    model: Annotated[Path, Argument(help="Folder of a pre-trained model or its run.")],
    data: Annotated[Path, Option(help="Folder that contains the data sets.")],
    out: Annotated[Path, Option(help="Output folder; finished data sets in it are not run again.")],
    seeds: options.SeedsOption = "1",
    overrides: options.SetOption = [],
    skip_bad: options.SkipBadOption = False,
    as_json: options.JsonOption = False,
) -> None:
    """Fine-tune and evaluate on every data set of a benchmark.

    The results are shown next to published ones.

    The same command resumes a run that was interrupted.
    """
    from polyseme.cli.output import apply_overrides, parse_seeds
    from polyseme.evaluation.benchmarks import benchmark_notes, benchmark_table, run_benchmark
    from polyseme.finetuning.config import FinetuneConfig
    from polyseme.report.pages.finetuning_page import dev_selection_note
    from polyseme.weights.folder import read_model_config

    max_len = read_model_config(model)[0].trunk.embeddings.max_len
    config = apply_overrides(FinetuneConfig(max_len=min(128, max_len), truncate=True), overrides)
    summary = run_benchmark(name, model, data, out, config, parse_seeds(seeds), skip_bad)
    if as_json:
        print_json(summary)
        return
    print_table(*benchmark_table(name, summary))
    for line in benchmark_notes(name, summary):
        print(textwrap.fill(line, 80, subsequent_indent="   "))
    print("Published results are on the test sets; ours are on the dev sets, in percent.")
    if summary["chosen_on_dev"]:
        print(dev_selection_note(summary["chosen_on_dev"]))
    for task, failed_seeds in summary["failed_seeds"].items():
        num_seeds = len(summary["scores"][task])
        print(f"{task}: {len(failed_seeds)} of {num_seeds} seeds are no better than the majority baseline")
    for diagnostic, values in summary["diagnostic_scores"].items():
        print(f"{diagnostic}: {', '.join(f'{name} {value:.4f}' for name, value in values.items())}")
    if summary["missing"]:
        print(f"not in {data}: {', '.join(summary['missing'])}; without them there is no average")

"""`polyseme ulmfit`: the three stages of ULMFiT, or the low-shot curve."""

import hashlib
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from typer import Option

from polyseme.cli import options
from polyseme.cli.output import parse_seeds, parse_settings, print_table
from polyseme.errors import ConfigError
from polyseme.io.lock import locks_folder

if TYPE_CHECKING:
    from polyseme.pipelines.ulmfit import UlmfitConfig

PRESET_HELP = "Model size: tiny, lecture (300 wide) or paper (400 wide); default: paper with a GPU, otherwise tiny."
UnlabeledOption = Annotated[list[str], Option(help="More texts of the task, one per line, for the second stage.")]
TextOption = Annotated[list[str], Option(help=f"General text for the first stage. {options.SOURCES_HELP}")]
ModelsOption = Annotated[list[Path], Option(help="Or trained general language models, one for each direction.")]


@locks_folder("ulmfit")
def ulmfit(
    train: Annotated[Path, Option(help=f"Training examples: {options.INPUT_HELP}")],
    dev: Annotated[Path, Option(help="Dev examples for evaluation.")],
    out: options.RunOption,
    text: TextOption = [],
    corpus: Annotated[Path | None, Option(help="Or general text as a corpus folder.")] = None,
    general_models: ModelsOption = [],
    unlabeled: UnlabeledOption = [],
    preset: Annotated[str, Option(help=PRESET_HELP)] = "",
    direction: Annotated[str, Option(help="forward, backward, or both (averaged).")] = "forward",
    budget: Annotated[str, Option(help="Budget of the first stage: 20m, 500steps or 1e9tokens.")] = "",
    seeds: options.SeedsOption = "1",
    train_sizes: Annotated[str, Option(help="Plot the low-shot curve for these sizes: 100,500,2000.")] = "",
    overrides: options.SetOption = [],
    text_column: options.TextColumnOption = "",
    label_column: options.LabelColumnOption = "",
    header: options.HeaderOption = True,
    skip_bad: options.SkipBadOption = False,
) -> None:
    """Train a classifier in the three stages of ULMFiT.

    Pre-train a general language model, fine-tune it on the task's text, and train the classifier. The same command
    resumes an interrupted run.
    """
    from polyseme.finetuning.experiment import list_seeds
    from polyseme.io.atomic import sha256
    from polyseme.io.json import write_json
    from polyseme.pipelines import ulmfit as stages
    from polyseme.tasks.classification import ClassificationTask
    from polyseme.tasks.readers.rows import Columns

    sizes, seed_list = _parse_sizes(train_sizes), list_seeds(parse_seeds(seeds))
    config = _build_config(out, direction, parse_settings(overrides, preset=preset, budget=budget))
    config.general_recipe("forward").check()
    config.classifier.validate()
    train, columns = ClassificationTask.open_input(train, Columns(text_column, label=label_column, has_header=header))
    dev, dev_columns = ClassificationTask.open_input(dev, Columns(has_header=header, remembered=columns))
    train_examples = ClassificationTask.read(train, columns, skip_bad=skip_bad)
    dev_examples = ClassificationTask.read(dev, dev_columns, skip_bad=skip_bad)
    texts = _read_unlabeled(unlabeled, skip_bad)
    stages.validate_sources(config, text, corpus, general_models)
    inputs = {
        "config": config.to_json(),
        "init_from": [*text, *map(str, [corpus] if corpus else []), *map(str, general_models)],
        "init_from_hashes": stages.hash_sources(corpus, general_models),
        "train": sha256(train),
        "dev": sha256(dev),
        "unlabeled": hashlib.sha256("\0".join(texts).encode("utf-8", "surrogatepass")).hexdigest(),
    }
    _check_folder(out, inputs, is_curve=bool(sizes))
    stages.check_train_sizes(sizes, train_examples)
    stages.check_examples(config, train_examples, dev_examples, sizes, general_models)
    write_json(out / "ulmfit.json", inputs)
    pretrained = stages.pretrain_general_lm(config, out, text, corpus, general_models)
    if sizes:
        points = stages.low_shot_curve(config, out, pretrained, train_examples, dev_examples, sizes, texts, seed_list)
        _print_curve(out, points, sizes, len(seed_list))
    else:
        results = stages.run_ulmfit(config, out, pretrained, train_examples, dev_examples, texts, seed_list)
        _print_scores(results["rows"], len(seed_list))
    print(f"see {out}/report.html")


def _build_config(out: Path, direction: str, settings: dict[str, Any]) -> "UlmfitConfig":
    """Return the config with its settings; the default preset is that of the run in `out`, or suits the machine."""
    from polyseme.config import override_config
    from polyseme.pipelines.ulmfit import UlmfitConfig, choose_preset

    preset = settings.get("preset") or choose_preset(out)
    return override_config(UlmfitConfig.from_json({"preset": preset, "direction": direction}), settings)


def _read_unlabeled(sources: list[str], skip_bad: bool) -> list[str]:
    from polyseme.corpus.sources.sources import open_sources

    return [each.text for each in open_sources(sources, default_split="line", skip_bad=skip_bad)] if sources else []


def _parse_sizes(train_sizes: str) -> list[int]:
    try:
        return [int(size) for size in train_sizes.split(",")] if train_sizes else []
    except ValueError:
        raise ConfigError(f"--train-sizes is {train_sizes!r}: whole numbers separated by commas are expected") from None


def _check_folder(out: Path, inputs: dict[str, Any], is_curve: bool) -> None:
    """Check that the folder is new, or holds a run with the same inputs that is not finished."""
    from polyseme.finetuning.resume import first_difference
    from polyseme.io.atomic import is_occupied
    from polyseme.io.hashes import HASHES_FILE
    from polyseme.io.json import read_json

    path = out / "ulmfit.json"
    if path.exists() and (difference := first_difference(read_json(path), inputs)):
        raise ConfigError(
            f"{out} holds a run with another config or other examples ({difference}): choose another --out"
        )
    if not path.exists() and is_occupied(out):
        raise ConfigError(f"{out} exists and holds no run of ulmfit: choose another --out")
    if (out / "results.json").exists() and (out / HASHES_FILE).exists() and not is_curve:
        raise ConfigError(f"{out} already holds a finished run: choose another --out")


def _print_curve(out: Path, points: list[dict[str, Any]], sizes: list[int], num_seeds: int) -> None:
    """Print the low-shot curve and add it to the report."""
    from polyseme.io.atomic import write_text
    from polyseme.io.hashes import write_hashes
    from polyseme.io.json import read_json
    from polyseme.pipelines import ulmfit as stages
    from polyseme.report.cards.run_card import write_run_card

    full_results = read_json(out / "results.json") if (out / "results.json").exists() else None
    write_text(out / "report.html", stages.build_page(full_results, points))
    write_run_card(out, "ULMFiT: low-shot curve")
    write_hashes(out)
    curves = stages.error_curves(points)
    rows = [[row, *(stages.format_mean_std(line[size]) for size in sizes)] for row, line in curves.items()]
    print_table([f"error, {num_seeds} seed(s)", *map(str, sizes)], rows)


def _print_scores(scores: dict[str, dict[str, Any]], num_seeds: int) -> None:
    """Print mean and standard deviation of each metric by row."""
    from polyseme.pipelines.ulmfit import format_mean_std

    names = list(next(iter(scores.values())))
    rows = [[row, *(format_mean_std(cells[name]) for name in names)] for row, cells in scores.items()]
    print_table([f"{num_seeds} seed(s)", *names], rows)

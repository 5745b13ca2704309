"""ULMFiT (Howard and Ruder 2018): pre-train a language model, fine-tune it on the task's text, train a classifier.

Each stage has a subfolder of the run folder. Running again continues with the stage that was interrupted.
"""

from __future__ import annotations

import json
import random
import shutil
import statistics
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import numpy as np

from polyseme.config import Config
from polyseme.corpus.build.prepare import PrepareConfig, prepare
from polyseme.corpus.sources.sources import open_sources
from polyseme.corpus.store import Corpus
from polyseme.errors import ConfigError, DataError, ModelError
from polyseme.families.ulmfit import to_hf_config
from polyseme.finetuning.config import FinetuneConfig
from polyseme.finetuning.experiment import RunOptions, TaskData
from polyseme.finetuning.finetune import finetune
from polyseme.io.atomic import write_text
from polyseme.io.json import read_json, write_json
from polyseme.recipes import ulmfit as recipes
from polyseme.report.charts import mean_std_chart
from polyseme.report.html import code, html_page, html_table
from polyseme.tasks.classification import Classification, ClassificationTask
from polyseme.tasks.sequence import TextExample
from polyseme.text.tokenizer import Tokenizer
from polyseme.train.pretrain import pretrain
from polyseme.train.recipe import BudgetConfig, Recipe
from polyseme.train.schedule import ScheduleConfig
from polyseme.train.warm_start import init_from_model
from polyseme.weights.folder import read_model_config

PRESETS = {"tiny": recipes.tiny, "lecture": recipes.lecture, "paper": recipes.paper}
VOCAB_SIZES = {"tiny": 4_000, "lecture": 60_003, "paper": 30_000}
SCRATCH, SUPERVISED, UNLABELED = "from scratch", "supervised", "with unlabeled text"  # rows of the low-shot curve
CURVE_ROWS = (SCRATCH, SUPERVISED, UNLABELED)


def _default_classifier() -> FinetuneConfig:
    """§4.1: Adam at 0.01, discriminative rates, slanted triangular schedule, gradual unfreezing, chunks of 70."""
    return FinetuneConfig(
        epochs=12,
        batch_size=64,
        optimizer=recipes.ADAM.replace(lr=0.01, layer_decay=1 / 2.6),
        schedule=ScheduleConfig("slanted", 0.1),
        unfreeze_every=1.0,
        chunk_size=70,
        grad_tokens=1400,
    )


@dataclass(frozen=True)
class UlmfitConfig(Config):
    """Settings of the three stages. An empty `budget` or a `vocab_size` of 0 is that of the preset."""

    preset: Literal["tiny", "lecture", "paper"] = "paper"
    direction: Literal["forward", "backward", "both"] = "forward"
    vocab_size: int = 0
    budget: str = ""  # of the general model: 20m, 500steps or 1e9tokens
    target_epochs: float = 10.0
    target_lr: float = 4e-3
    classifier: FinetuneConfig = field(default_factory=_default_classifier)

    def __post_init__(self) -> None:
        self.check_range(0, 1e6, "target_epochs")
        self.check_range(0, 1e9, "vocab_size")

    @property
    def directions(self) -> tuple[str, ...]:
        """The directions to train."""
        return ("forward", "backward") if self.direction == "both" else (self.direction,)

    def general_recipe(self, direction: str) -> Recipe:
        """Return the recipe of the first stage."""
        recipe = PRESETS[self.preset]()
        if self.budget:
            recipe = recipe.replace(budget=BudgetConfig.parse(self.budget))
        return recipes.to_backward(recipe) if direction == "backward" else recipe

    def classifier_settings(self, num_examples: int) -> FinetuneConfig:
        """Return the settings of the classifier, with smaller batches for few examples, so that an epoch has steps."""
        batch_size = max(min(self.classifier.batch_size, num_examples // 8), 2)
        return self.classifier.replace(batch_size=batch_size)


@dataclass(frozen=True)
class PretrainedLMs:
    """Folder and recipe of the general language model, by direction."""

    folders: dict[str, Path]
    recipes: dict[str, Recipe]

    @property
    def tokenizer(self) -> Tokenizer:
        """The tokenizer, which all directions share."""
        return Tokenizer.load(next(iter(self.folders.values())))


def validate_sources(
    config: UlmfitConfig, text: Sequence[str], corpus: Path | None, general_models: Sequence[Path]
) -> None:
    """Check the inputs of the first stage before anything is written."""
    if bool(text) + bool(corpus) + bool(general_models) != 1:
        raise ConfigError("pass one of text (files), corpus (a corpus folder) and general_models (model folders)")
    if general_models:
        _load_pretrained(config, general_models)
    elif corpus:
        Corpus.open(corpus)
    else:
        open_sources(text, "text", "file", False)


def check_train_sizes(sizes: Sequence[int], train: Sequence[TextExample]) -> None:
    """Raise `ConfigError` for training set sizes that cannot be sampled."""
    for size in sizes:
        if not 2 <= size <= len(train):
            raise ConfigError(f"a training set size is {size}, expected 2 to {len(train)}, the number of examples")
        stratified_sample(train, size, seed=0)


def pretrain_general_lm(
    config: UlmfitConfig, out: Path, text: Sequence[str], corpus: Path | None, general_models: Sequence[Path]
) -> PretrainedLMs:
    """Run the first stage: pre-train on text or on a prepared corpus, or use existing models."""
    validate_sources(config, text, corpus, general_models)
    if general_models:
        return _load_pretrained(config, general_models)
    if corpus is None:
        corpus = out / "corpus"
        if not (corpus / "manifest.json").exists():
            sources = open_sources(text, "text", "file", False)
            vocab_size = config.vocab_size or VOCAB_SIZES[config.preset]
            prepare(text, Tokenizer.train("bpe", (d.text for d in sources), vocab_size), corpus)
    folders = {}
    for direction in config.directions:
        run_folder = out / f"general-{direction}"
        _pretrain_stage(run_folder, config.general_recipe(direction), corpus)
        folders[direction] = run_folder / "model"
    return PretrainedLMs(folders, {direction: config.general_recipe(direction) for direction in folders})


def _load_pretrained(config: UlmfitConfig, folders: Sequence[Path]) -> PretrainedLMs:
    folder_by_direction, recipe_by_direction = {}, {}
    for path in folders:
        spec = read_model_config(path)[0]
        if spec.family != "ulmfit" or not {"next", "previous"} & spec.heads.keys():
            raise ModelError(
                f"{path} is not a ulmfit language model: family {spec.family}, heads: {', '.join(spec.heads) or 'none'}"
            )
        model_settings = {n: value for n, value in to_hf_config(spec).items() if n not in ("model_type", "vocab_size")}
        direction = model_settings["direction"]
        folder_by_direction[direction], recipe_by_direction[direction] = (
            path,
            config.general_recipe(direction).replace(model=model_settings, size=""),
        )
    if missing := [d for d in config.directions if d not in folder_by_direction]:
        raise ConfigError(f"general_models has no {missing[0]} model: add one, or change direction")
    return PretrainedLMs(
        {d: folder_by_direction[d] for d in config.directions}, {d: recipe_by_direction[d] for d in config.directions}
    )


def finetune_lm(
    config: UlmfitConfig, out: Path, pretrained: PretrainedLMs, texts: Iterable[str], from_general: bool = True
) -> dict[str, Path]:
    """Run the second stage: train each general model, or a fresh one without `from_general`, on these texts."""
    corpus = prepare_target_corpus(out / "target-corpus", pretrained.tokenizer, texts)
    num_tokens = Corpus.open(corpus).num_tokens
    folders = {}
    for direction, folder in pretrained.folders.items():
        recipe = recipes.build_target_recipe(
            pretrained.recipes[direction], num_tokens, config.target_epochs, config.target_lr
        )
        if not from_general:
            recipe = recipe.replace(optimizer=recipe.optimizer.replace(layer_decay=1.0))
        run_folder = out / f"target-{direction}"
        _pretrain_stage(run_folder, recipe, corpus, folder if from_general else None)
        shutil.rmtree(run_folder / "checkpoints", ignore_errors=True)  # three times the size of the model
        folders[direction] = run_folder / "model"
    return folders


def prepare_target_corpus(out: Path, tokenizer: Tokenizer, texts: Iterable[str]) -> Path:
    """Prepare a corpus with one document per text, unless it exists; return its folder."""
    if not (out / "manifest.json").exists():
        text_path = out.with_name(f"{out.name}.jsonl")
        write_text(text_path, "".join(json.dumps({"text": text}) + "\n" for text in texts))
        prepare([text_path], tokenizer, out, PrepareConfig(clean="none", dedup="none", num_workers=1))
        text_path.unlink()
    return out


def _pretrain_stage(run_folder: Path, recipe: Recipe, corpus: Path, init_from: Path | None = None) -> None:
    if not (run_folder / "results.json").exists():
        initial_model = init_from_model(init_from, recipe, corpus) if init_from else None
        resume = (run_folder / "recipe.json").exists()
        pretrain(recipe, corpus, run_folder, resume=resume, initial_model=initial_model)


def finetune_classifier(
    folders: dict[str, Path],
    train: Sequence[TextExample],
    dev: Sequence[TextExample],
    settings: FinetuneConfig,
    out: Path | None = None,
    seeds: Sequence[int] = (0,),
    from_scratch: bool = False,
) -> dict[str, list[dict[str, float]]]:
    """Run the third stage; return the metrics per seed by direction, and of the ensemble `both` if there are two."""
    predictions: dict[str, dict[int, list[Classification]]] = {}
    metrics: dict[str, list[dict[str, float]]] = {}
    for direction, folder in folders.items():
        seed_predictions = predictions[direction] = {}
        options = RunOptions(len(seeds), seeds[0], from_scratch, on_predictions=seed_predictions.__setitem__)
        run = out / f"classifier-{direction}" if out else None
        results = finetune(folder, TaskData(ClassificationTask(), train, dev), run, settings, options)
        metrics[direction] = results["seeds"]
    if len(folders) > 1:
        task, gold = ClassificationTask.from_examples(train), [e.gold for e in dev]
        for seed in seeds:
            probabilities = [
                [np.array([[*p.probabilities.values()]]) for p in seed_predictions[seed]]
                for seed_predictions in predictions.values()
            ]
            answers = [p.value for p in task.average_predictions(probabilities, dev)]
            averaged = {"seed": seed, **task.score(gold, answers)}
            metrics.setdefault("both", []).append(averaged)
    return metrics


def run_ulmfit(
    config: UlmfitConfig,
    out: Path,
    pretrained: PretrainedLMs,
    train: Sequence[TextExample],
    dev: Sequence[TextExample],
    unlabeled: Sequence[str] = (),
    num_seeds: int = 1,
) -> dict[str, Any]:
    """Run the second and third stage on all examples; write the models, `results.json` and a report to `out`."""
    settings = config.classifier_settings(len(train))
    folders = finetune_lm(config, out, pretrained, [*(e.text for e in train), *unlabeled])
    for direction in folders:
        shutil.rmtree(out / f"classifier-{direction}", ignore_errors=True)
    metrics = finetune_classifier(folders, train, dev, settings, out, range(num_seeds))
    results = {
        "config": config.to_json(),
        "train_examples": len(train),
        "dev_examples": len(dev),
        "rows": {name: summarize_seeds(seed_metrics) for name, seed_metrics in metrics.items()},
        "seeds": metrics,
    }
    write_json(out / "results.json", results)
    write_text(out / "report.html", build_page(results, []))
    return results


def low_shot_curve(
    config: UlmfitConfig,
    out: Path,
    pretrained: PretrainedLMs,
    train: Sequence[TextExample],
    dev: Sequence[TextExample],
    sizes: Sequence[int],
    unlabeled: Sequence[str] = (),
    num_seeds: int = 1,
) -> list[dict[str, Any]]:
    """Compute the low-shot curve (§5, figure 3): three methods for each training set size and seed.

    The methods are: from scratch; all three stages, with the second on the sampled examples only; and with the second
    on all texts. Finished points are in `curve.json`, so that an interrupted run continues after them.
    """
    check_train_sizes(sizes, train)
    path = out / "curve.json"
    points: list[dict[str, Any]] = read_json(path) if path.exists() else []
    full_text_folders = finetune_lm(config, out, pretrained, [*(e.text for e in train), *unlabeled])
    for size in sizes:
        for seed in range(num_seeds):
            train_sample, point_folder = stratified_sample(train, size, seed), out / f"few-{size}-{seed}"
            for row in CURVE_ROWS:
                if any((d["size"], d["seed"], d["row"]) == (size, seed, row) for d in points):
                    continue
                folders = full_text_folders
                if row == SUPERVISED:
                    folders = finetune_lm(config, point_folder, pretrained, [e.text for e in train_sample])
                metrics = finetune_classifier(
                    folders,
                    train_sample,
                    dev,
                    config.classifier_settings(size),
                    None,
                    [seed],
                    from_scratch=row == SCRATCH,
                )
                direction = list(metrics)[-1]  # `both` if there are two
                points.append({"size": size, "seed": seed, "row": row, "direction": direction, **metrics[direction][0]})
                write_json(path, points)
            shutil.rmtree(point_folder, ignore_errors=True)  # the models are not needed again
    return points


def stratified_sample(examples: Sequence[TextExample], size: int, seed: int) -> list[TextExample]:
    """Sample examples at random, at least one of every label."""
    shuffled = random.Random(seed).sample(list(examples), len(examples))
    first_by_label: dict[str | None, TextExample] = {}
    for example in shuffled:
        first_by_label.setdefault(example.label, example)
    if len(first_by_label) > size:
        raise DataError(f"{size} examples cannot contain all {len(first_by_label)} labels: use a larger size")
    used_ids = set(map(id, first_by_label.values()))
    return [*first_by_label.values(), *(e for e in shuffled if id(e) not in used_ids)][:size]


def summarize_seeds(seed_metrics: Sequence[dict[str, float]]) -> dict[str, tuple[float, float | None]]:
    """Return mean and sample standard deviation (None for one seed) of each metric."""
    names = [name for name in seed_metrics[0] if name != "seed"]
    values = {name: [seed_metric[name] for seed_metric in seed_metrics] for name in names}
    return {n: (statistics.fmean(v), statistics.stdev(v) if len(v) > 1 else None) for n, v in values.items()}


def error_curves(
    points: Sequence[dict[str, Any]], metric: str = ClassificationTask.default_metric
) -> dict[str, dict[int, Any]]:
    """Return mean and standard deviation of the error by method and training set size."""
    curves: dict[str, dict[int, Any]] = {row: {} for row in CURVE_ROWS if any(d["row"] == row for d in points)}
    for row, curve_points in curves.items():
        for size in sorted({d["size"] for d in points}):
            errors = [1 - d[metric] for d in points if (d["row"], d["size"]) == (row, size)]
            if errors:
                curve_points[size] = statistics.fmean(errors), statistics.stdev(errors) if len(errors) > 1 else 0.0
    return curves


def build_page(results: dict[str, Any] | None, points: Sequence[dict[str, Any]]) -> str:
    """Render the report: results by direction, and the low-shot curve with its table."""
    sections = []
    if results:
        names = list(next(iter(results["rows"].values())))
        table_rows = [[row, *(format_mean_std(stats[n]) for n in names)] for row, stats in results["rows"].items()]
        sections += [
            ("Results", html_table(["", *names], table_rows)),
            ("Config", code(results["config"])),
        ]
    if points:
        stats = error_curves(points)
        sizes = sorted({d["size"] for d in points})
        table_rows = [
            [row, *(format_mean_std(curve_points[size]) if size in curve_points else "" for size in sizes)]
            for row, curve_points in stats.items()
        ]
        chart = mean_std_chart(stats, "labeled examples", "error")
        sections.append(("Error by number of examples", chart + html_table(["", *map(str, sizes)], table_rows)))
    return html_page("ULMFiT", "a general language model, fine-tuned on the task's text, then a classifier", sections)


def format_mean_std(mean_and_std: Sequence[float | None]) -> str:
    """Format mean and standard deviation as `0.1234 ± 0.0056`."""
    mean, std = mean_and_std
    return f"{mean:.4f}" + (f" ± {std:.4f}" if std else "")

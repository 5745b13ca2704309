"""ULMFiT in one run: a general language model, the same on the task's text, then a classifier (Howard and Ruder 2018).

Every stage has a folder of its own in the run's. A run that is called again goes on with the stage it was in.
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
from polyseme.corpus.build.prepare import prepare
from polyseme.corpus.sources.sources import open_sources
from polyseme.corpus.store import Corpus
from polyseme.errors import ConfigError, DataError, ModelError
from polyseme.evaluation.ensemble import average_probabilities
from polyseme.families.ulmfit import to_hf_config
from polyseme.finetuning.finetune import FinetuneConfig, finetune
from polyseme.io.atomic import write_text
from polyseme.io.json import read_json, write_json
from polyseme.recipes import ulmfit as recipes
from polyseme.report import html as report
from polyseme.tasks.examples import Example
from polyseme.tasks.metrics.standard import DEFAULT_METRIC, compute_metrics
from polyseme.tasks.task import Prediction, Task
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
    """§4.1: Adam at 0.01, rates by depth, a slanted triangle, an epoch between two unfreezings, chunks of 70."""
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
    """What the three stages do. A `budget` or a vocabulary that is empty is that of the preset."""

    preset: Literal["tiny", "lecture", "paper"] = "paper"
    direction: Literal["forward", "backward", "both"] = "forward"
    vocab_size: int = 0
    budget: str = ""  # of the general model, as `polyseme pretrain --budget` has it
    target_epochs: float = 10.0
    target_lr: float = 4e-3
    classifier: FinetuneConfig = field(default_factory=_default_classifier)

    def __post_init__(self) -> None:
        self.check_range(0, 1e6, "target_epochs")
        self.check_range(0, 1e9, "vocab_size")

    @property
    def directions(self) -> tuple[str, ...]:
        return ("forward", "backward") if self.direction == "both" else (self.direction,)

    def general_recipe(self, direction: str) -> Recipe:
        recipe = PRESETS[self.preset]()
        if self.budget:
            recipe = recipe.replace(budget=BudgetConfig.parse(self.budget))
        return recipes.to_backward(recipe) if direction == "backward" else recipe

    def classifier_settings(self, num_examples: int) -> FinetuneConfig:
        """Those of the classifier; few examples come in smaller batches, so that an epoch has steps."""
        batch_size = max(min(self.classifier.batch_size, num_examples // 8), 2)
        return self.classifier.replace(batch_size=batch_size)


@dataclass(frozen=True)
class PretrainedLMs:
    """The general language model of each direction: its folder, and the recipe that has its sizes."""

    folders: dict[str, Path]
    recipes: dict[str, Recipe]

    @property
    def tokenizer(self) -> Tokenizer:
        return Tokenizer.load(next(iter(self.folders.values())))


def validate_sources(
    config: UlmfitConfig, text: Sequence[str], corpus: Path | None, general_models: Sequence[Path]
) -> None:
    """A mistake in where the first stage begins is told before anything is written."""
    if bool(text) + bool(corpus) + bool(general_models) != 1:
        raise ConfigError("give one of text (files), corpus (a corpus folder) and general_models (model folders)")
    if general_models:
        _load_pretrained(config, general_models)
    elif corpus:
        Corpus.open(corpus)
    else:
        open_sources(text, "text", "file", False)


def check_train_sizes(sizes: Sequence[int], train: Sequence[Example]) -> None:
    for size in sizes:
        if not 2 <= size <= len(train):
            raise ConfigError(f"train sizes are from 2 to the {len(train)} examples there are, not {size}")
        stratified_sample(train, size, seed=0)


def pretrain_general_lm(
    config: UlmfitConfig, out: Path, text: Sequence[str], corpus: Path | None, general_models: Sequence[Path]
) -> PretrainedLMs:
    """The first stage: from text, from a corpus that is prepared, or from models that were trained before."""
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
                f"{path} is no language model of ulmfit: {spec.family} with {', '.join(spec.heads) or 'no head'}"
            )
        model_settings = {n: value for n, value in to_hf_config(spec).items() if n not in ("model_type", "vocab_size")}
        direction = model_settings["direction"]
        folder_by_direction[direction], recipe_by_direction[direction] = (
            path,
            config.general_recipe(direction).replace(model=model_settings, size=""),
        )
    if missing := [d for d in config.directions if d not in folder_by_direction]:
        raise ConfigError(f"none of general_models reads {missing[0]}: give one more, or another direction")
    return PretrainedLMs(
        {d: folder_by_direction[d] for d in config.directions}, {d: recipe_by_direction[d] for d in config.directions}
    )


def finetune_lm(
    config: UlmfitConfig, out: Path, pretrained: PretrainedLMs, texts: Iterable[str], from_general: bool = True
) -> dict[str, Path]:
    """The second stage: each general model, or without `from_general` a fresh one, goes on with these texts."""
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
        shutil.rmtree(run_folder / "checkpoints", ignore_errors=True)  # it is done: they would be three times the model
        folders[direction] = run_folder / "model"
    return folders


def prepare_target_corpus(out: Path, tokenizer: Tokenizer, texts: Iterable[str]) -> Path:
    """A corpus of these texts, each a document; one that is there already stays as it is."""
    if not (out / "manifest.json").exists():
        text_path = out.with_name(f"{out.name}.jsonl")
        write_text(text_path, "".join(json.dumps({"text": text}) + "\n" for text in texts))
        prepare([text_path], tokenizer, out, clean="none", dedup="none", num_workers=1)
        text_path.unlink()
    return out


def _pretrain_stage(run_folder: Path, recipe: Recipe, corpus: Path, init_from: Path | None = None) -> None:
    if not (run_folder / "results.json").exists():
        lesson = init_from_model(init_from, recipe, corpus) if init_from else None
        pretrain(recipe, corpus, run_folder, resume=(run_folder / "recipe.json").exists(), initial_model=lesson)


def finetune_classifier(
    folders: dict[str, Path],
    train: Sequence[Example],
    dev: Sequence[Example],
    settings: FinetuneConfig,
    out: Path | None = None,
    seeds: Sequence[int] = (0,),
    scratch: bool = False,
) -> dict[str, list[dict[str, float]]]:
    """The third stage: the metrics of every seed by direction, and of both averaged where there are two."""
    predictions: dict[str, dict[int, list[Prediction]]] = {}
    metrics: dict[str, list[dict[str, float]]] = {}
    for direction, folder in folders.items():
        seed_predictions = predictions[direction] = {}
        results = finetune(
            folder,
            "classification",
            train,
            dev,
            out / f"classifier-{direction}" if out else None,
            settings,
            seeds=len(seeds),
            first_seed=seeds[0],
            from_scratch=scratch,
            on_predictions=seed_predictions.__setitem__,
        )
        metrics[direction] = results["seeds"]
    if len(folders) > 1:
        task, gold = Task.from_examples("classification", train), [e.gold for e in dev]
        for seed in seeds:
            probabilities = [
                [np.array([[*(p.probabilities or {}).values()]]) for p in seed_predictions[seed]]
                for seed_predictions in predictions.values()
            ]
            answers = [p.value for p in average_probabilities(task, probabilities, dev)]
            averaged = {"seed": seed, **compute_metrics("classification", gold, answers, task.labels)}
            metrics.setdefault("both", []).append(averaged)
    return metrics


def run_ulmfit(
    config: UlmfitConfig,
    out: Path,
    pretrained: PretrainedLMs,
    train: Sequence[Example],
    dev: Sequence[Example],
    unlabeled: Sequence[str] = (),
    num_seeds: int = 1,
) -> dict[str, Any]:
    """The second and the third stage on all examples; `out` gets the models, `results.json` and a page."""
    settings = config.classifier_settings(len(train))
    folders = finetune_lm(config, out, pretrained, [*(e.text or "" for e in train), *unlabeled])
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
    train: Sequence[Example],
    dev: Sequence[Example],
    sizes: Sequence[int],
    unlabeled: Sequence[str] = (),
    num_seeds: int = 1,
) -> list[dict[str, Any]]:
    """The low-shot curve (§5, figure 3): for each number of examples and seed, three ways to learn from them.

    From fresh weights; by three stages of which the second sees the drawn examples alone; with a second stage on all
    texts there are. What is done is in `curve.json`; the same call goes on from there.
    """
    check_train_sizes(sizes, train)
    path = out / "curve.json"
    points: list[dict[str, Any]] = read_json(path) if path.exists() else []
    full_text_folders = finetune_lm(config, out, pretrained, [*(e.text or "" for e in train), *unlabeled])
    for size in sizes:
        for seed in range(num_seeds):
            train_sample, point_folder = stratified_sample(train, size, seed), out / f"few-{size}-{seed}"
            for row in CURVE_ROWS:
                if any((d["size"], d["seed"], d["row"]) == (size, seed, row) for d in points):
                    continue
                folders = full_text_folders
                if row == SUPERVISED:
                    folders = finetune_lm(config, point_folder, pretrained, [e.text or "" for e in train_sample])
                metrics = finetune_classifier(
                    folders, train_sample, dev, config.classifier_settings(size), None, [seed], scratch=row == SCRATCH
                )
                direction = list(metrics)[-1]  # both directions, if there are two
                points.append({"size": size, "seed": seed, "row": row, "direction": direction, **metrics[direction][0]})
                write_json(path, points)
            shutil.rmtree(point_folder, ignore_errors=True)  # the models of a point are not kept
    return points


def stratified_sample(examples: Sequence[Example], size: int, seed: int) -> list[Example]:
    """Some examples at random, of every label one at least: what is never seen could not be predicted."""
    shuffled = random.Random(seed).sample(list(examples), len(examples))
    first_by_label: dict[str | None, Example] = {}
    for example in shuffled:
        first_by_label.setdefault(example.label, example)
    if len(first_by_label) > size:
        raise DataError(f"{size} examples cannot have all of the {len(first_by_label)} labels: draw more")
    used_ids = set(map(id, first_by_label.values()))
    return [*first_by_label.values(), *(e for e in shuffled if id(e) not in used_ids)][:size]


def summarize_seeds(seed_metrics: Sequence[dict[str, float]]) -> dict[str, tuple[float, float | None]]:
    """Mean and sample deviation of each metric; of one seed the deviation is unknown."""
    names = [name for name in seed_metrics[0] if name != "seed"]
    values = {name: [seed_metric[name] for seed_metric in seed_metrics] for name in names}
    return {n: (statistics.fmean(v), statistics.stdev(v) if len(v) > 1 else None) for n, v in values.items()}


def error_curves(
    points: Sequence[dict[str, Any]], metric: str = DEFAULT_METRIC["classification"]
) -> dict[str, dict[int, Any]]:
    """The error of each row of the curve by size: mean and deviation."""
    curves: dict[str, dict[int, Any]] = {row: {} for row in CURVE_ROWS if any(d["row"] == row for d in points)}
    for row, curve_points in curves.items():
        for size in sorted({d["size"] for d in points}):
            errors = [1 - d[metric] for d in points if (d["row"], d["size"]) == (row, size)]
            if errors:
                curve_points[size] = statistics.fmean(errors), statistics.stdev(errors) if len(errors) > 1 else 0.0
    return curves


def build_page(results: dict[str, Any] | None, points: Sequence[dict[str, Any]]) -> str:
    """What came of it: the table of directions, the curve and its table."""
    sections = []
    if results:
        names = list(next(iter(results["rows"].values())))
        table_rows = [[row, *(format_mean_std(stats[n]) for n in names)] for row, stats in results["rows"].items()]
        sections += [
            ("Results", report.html_table(["", *names], table_rows)),
            ("Config", report.code(results["config"])),
        ]
    if points:
        stats = error_curves(points)
        sizes = sorted({d["size"] for d in points})
        table_rows = [
            [row, *(format_mean_std(curve_points[size]) if size in curve_points else "" for size in sizes)]
            for row, curve_points in stats.items()
        ]
        chart = report.mean_std_chart(stats, "labeled examples", "error")
        sections.append(("Error by number of examples", chart + report.html_table(["", *map(str, sizes)], table_rows)))
    return report.html_page(
        "ULMFiT", "a general language model, the same on the task's text, then a classifier", sections
    )


def format_mean_std(pair: Sequence[float | None]) -> str:
    mean, std = pair
    return f"{mean:.4f}" + (f" ± {std:.4f}" if std else "")

"""ULMFiT (Howard and Ruder 2018): pre-train a language model, fine-tune it on the task's text, train a classifier.

Each stage has a subfolder of the run folder. Running again continues with the stage that was interrupted.
"""

import itertools
import json
import logging
import os
import random
import shutil
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, NamedTuple

import numpy as np
import torch

from polyseme.config import Config
from polyseme.corpus.build.prepare import PrepareConfig, prepare
from polyseme.corpus.sources.sources import open_sources
from polyseme.corpus.store import Corpus
from polyseme.errors import ConfigError, DataError, ModelError
from polyseme.families.ulmfit import ULMFIT
from polyseme.finetuning.config import FinetuneConfig
from polyseme.finetuning.experiment import RunOptions, TaskData
from polyseme.finetuning.finetune import finetune
from polyseme.finetuning.results import mean_std
from polyseme.finetuning.resume import read_finished_results
from polyseme.inference.feature_extraction import hash_model_files
from polyseme.inference.prediction import predict
from polyseme.io.atomic import write_text
from polyseme.io.hashes import HASHES_FILE, write_hashes
from polyseme.io.json import read_json, read_json_object, write_json
from polyseme.nn.model import build_meta
from polyseme.recipes import ulmfit as recipes
from polyseme.report.cards.run_card import write_run_card
from polyseme.report.charts import mean_std_chart
from polyseme.report.html import code, collapsed, figure, html_page, html_table
from polyseme.report.svg import Axis
from polyseme.tasks.base import require_gold
from polyseme.tasks.classification import Classification, ClassificationTask
from polyseme.tasks.sequence import TextExample
from polyseme.text.tokenizer import Tokenizer
from polyseme.train.loop import setup_device
from polyseme.train.optimizer import ScheduleConfig
from polyseme.train.pretrain import pretrain
from polyseme.train.recipe import BudgetConfig, Recipe
from polyseme.train.warm_start import init_from_model
from polyseme.weights.folder import load_model, read_model_config

logger = logging.getLogger(__name__)

PRESETS = {"tiny": recipes.tiny, "lecture": recipes.lecture, "paper": recipes.paper}
VOCAB_SIZES = {"tiny": 4_000, "lecture": 60_003, "paper": 30_000}
SCRATCH, SUPERVISED, UNLABELED = "from scratch", "supervised", "with unlabeled text"  # rows of the low-shot curve
CURVE_ROWS = (SCRATCH, SUPERVISED, UNLABELED)


def default_preset() -> Literal["tiny", "paper"]:
    """Return the preset that suits this machine: the paper's sizes on a GPU, where a CPU would train for days."""
    return "paper" if torch.cuda.is_available() else "tiny"


def choose_preset(out: Path) -> str:
    """Return the preset of the run in a folder, or else the default one, and log which it is."""
    path = out / "ulmfit.json"
    if path.is_file() and isinstance(config := read_json_object(path).get("config"), dict) and "preset" in config:
        return str(config["preset"])
    preset = default_preset()
    device = "this machine has a GPU" if preset == "paper" else "this machine has no GPU"
    logger.info("the preset is %s, because %s; `preset` chooses another", preset, device)
    return preset


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
    """Settings of the three stages. An empty `budget` or a `vocab_size` of 0 is that of the preset.

    The default preset suits the machine: `paper` with a GPU, otherwise `tiny`.
    """

    preset: Literal["tiny", "lecture", "paper"] = field(default_factory=default_preset)
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


class PretrainedLM(NamedTuple):
    """Folder of a general language model, and the recipe of its architecture."""

    folder: Path
    recipe: Recipe


Pretrained = dict[str, PretrainedLM]  # by direction


def validate_sources(
    config: UlmfitConfig, text: Sequence[str], corpus: Path | None, general_models: Sequence[Path]
) -> None:
    """Check the inputs of the first stage before anything is written."""
    if bool(text) + bool(corpus) + bool(general_models) != 1:
        raise ConfigError("pass one of text (files), corpus (a corpus folder) and general_models (model folders)")
    if general_models:
        load_pretrained(config, general_models)
    elif corpus:
        Corpus.open(corpus)
    else:
        open_sources(text)


def hash_sources(corpus: Path | None, general_models: Sequence[Path]) -> list[str]:
    """Return the hashes of the corpus or the models that the first stage starts from."""
    return [Corpus.open(corpus).manifest_hash] if corpus else [hash_model_files(path) for path in general_models]


def check_train_sizes(sizes: Sequence[int], train: Sequence[TextExample]) -> None:
    """Raise `ConfigError` for training set sizes that cannot be sampled."""
    for size in sizes:
        if not 2 <= size <= len(train):
            raise ConfigError(f"a training set size is {size}, expected 2 to {len(train)}, the number of examples")
        stratified_sample(train, size, seed=0)


def check_examples(
    config: UlmfitConfig,
    train: Sequence[TextExample],
    dev: Sequence[TextExample],
    sizes: Sequence[int],
    general_models: Sequence[Path],
) -> None:
    """Raise what the last stage would raise for the examples and its settings, before the first one takes its time."""
    task = ClassificationTask.from_examples(train)
    require_gold(dev)
    for example in dev:
        task.target(example)
    recipe = config.general_recipe("forward")
    if general_models:
        recipe = next(iter(load_pretrained(config, general_models).values())).recipe
    model_config = recipe.model_config(config.vocab_size or VOCAB_SIZES[config.preset])
    num_groups = len(build_meta(model_config).trunk.layer_groups())
    for size in sizes or [len(train)]:
        config.classifier_settings(size).unfreezing_phases(size, num_groups)


def pretrain_general_lm(
    config: UlmfitConfig, out: Path, text: Sequence[str], corpus: Path | None, general_models: Sequence[Path]
) -> Pretrained:
    """Run the first stage: pre-train on text or on a prepared corpus, or use existing models; return them by direction.

    All directions share one tokenizer.
    """
    validate_sources(config, text, corpus, general_models)
    if general_models:
        return load_pretrained(config, general_models)
    if corpus is None:
        corpus = out / "corpus"
        if not (corpus / "manifest.json").exists():
            sources = open_sources(text)
            vocab_size = config.vocab_size or VOCAB_SIZES[config.preset]
            prepare(text, Tokenizer.train("bpe", (d.text for d in sources), vocab_size), corpus)
    pretrained = {}
    for direction in config.directions:
        run_folder, recipe = out / f"general-{direction}", config.general_recipe(direction)
        _pretrain_stage(run_folder, recipe, corpus)
        pretrained[direction] = PretrainedLM(run_folder / "model", recipe)
    return pretrained


def load_pretrained(config: UlmfitConfig, folders: Sequence[Path]) -> Pretrained:
    """Return existing general language models by direction, with the recipes of their architectures."""
    pretrained = {}
    for path in folders:
        spec = read_model_config(path)[0]
        if spec.family != "ulmfit" or not {"next", "previous"} & spec.heads.keys():
            heads = ", ".join(spec.heads) or "none"
            raise ModelError(f"{path} is not a ulmfit language model: family {spec.family}, heads: {heads}")
        hf_config = ULMFIT.to_hf_config(spec)
        settings = {n: value for n, value in hf_config.items() if n not in ("model_type", "vocab_size")}
        direction = settings["direction"]
        recipe = config.general_recipe(direction).replace(model=settings, size="")
        pretrained[direction] = PretrainedLM(path, recipe)
    if missing := [d for d in config.directions if d not in pretrained]:
        raise ConfigError(f"general_models has no {missing[0]} model: add one, or change direction")
    return {direction: pretrained[direction] for direction in config.directions}


def finetune_lm(
    config: UlmfitConfig, out: Path, pretrained: Pretrained, texts: Iterable[str], from_general: bool = True
) -> dict[str, Path]:
    """Run the second stage: train each general model, or a fresh one without `from_general`, on these texts."""
    tokenizer = Tokenizer.load(next(iter(pretrained.values())).folder)
    corpus = prepare_target_corpus(out / "target-corpus", tokenizer, texts)
    num_tokens = Corpus.open(corpus).num_tokens
    folders = {}
    for direction, (folder, general_recipe) in pretrained.items():
        recipe = recipes.build_target_recipe(general_recipe, num_tokens, config.target_epochs, config.target_lr)
        if not from_general:
            recipe = recipe.replace(optimizer=recipe.optimizer.replace(layer_decay=1.0))
        run_folder = out / f"target-{direction}"
        _pretrain_stage(run_folder, recipe, corpus, folder if from_general else None)
        shutil.rmtree(run_folder / "checkpoints", ignore_errors=True)  # three times the size of the model
        folders[direction] = run_folder / "model"
    return folders


def prepare_target_corpus(out: Path, tokenizer: Tokenizer, texts: Iterable[str]) -> Path:
    """Prepare a corpus with one document per text, unless it exists; return its folder."""
    text_path = out.with_name(f"{out.name}.jsonl")
    if not (out / "manifest.json").exists():
        write_text(text_path, "".join(json.dumps({"text": text}) + "\n" for text in texts))
        prepare([text_path], tokenizer, out, PrepareConfig(clean="none", dedup="none", num_workers=1))
    text_path.unlink(missing_ok=True)
    return out


def _pretrain_stage(run_folder: Path, recipe: Recipe, corpus: Path, init_from: Path | None = None) -> None:
    if not all((run_folder / name).exists() for name in ("results.json", "report.html", HASHES_FILE)):
        initial_model = init_from_model(init_from, recipe, corpus) if init_from else None
        resume = (run_folder / "recipe.json").exists()
        pretrain(recipe, corpus, run_folder, resume=resume, initial_model=initial_model)


def finetune_classifier(
    folders: dict[str, Path],
    train: Sequence[TextExample],
    dev: Sequence[TextExample],
    settings: FinetuneConfig,
    out: Path,
    seeds: Sequence[int] = (0,),
    from_scratch: bool = False,
) -> dict[str, list[dict[str, float]]]:
    """Run the third stage; return the metrics per seed by direction, and of the ensemble `both` if there are two.

    A finished classifier is not trained again. For the ensemble, the models of all seeds are kept.
    """
    metrics: dict[str, list[dict[str, float]]] = {}
    data, is_ensemble = TaskData(ClassificationTask(), train, dev), len(folders) > 1
    options = RunOptions(seeds, from_scratch, keep_seeds=is_ensemble)
    for direction, folder in folders.items():
        run_folder = out / f"classifier-{direction}"
        results = read_finished_results(run_folder)
        if results is None or [row["seed"] for row in results["seeds"]] != list(seeds):
            results = finetune(folder, data, run_folder, settings, options)
        metrics[direction] = results["seeds"]
    if is_ensemble:
        task, gold = ClassificationTask.from_examples(train), [e.gold for e in dev]
        metrics["both"] = []
        for seed in seeds:
            by_direction = [_predict_dev(out / f"classifier-{name}" / "seeds" / str(seed), dev) for name in folders]
            means = np.mean([[[*p.probabilities.values()] for p in each] for each in by_direction], axis=0)
            answers = [task.labels[i] for i in means.argmax(-1)]
            metrics["both"].append({"seed": seed, **task.score(gold, answers)})
    return metrics


def _predict_dev(folder: Path, dev: Sequence[TextExample]) -> list[Classification]:
    loaded = load_model(folder)
    loaded.model.to(setup_device())
    return predict(loaded, dev)


def run_ulmfit(
    config: UlmfitConfig,
    out: Path,
    pretrained: Pretrained,
    train: Sequence[TextExample],
    dev: Sequence[TextExample],
    unlabeled: Sequence[str] = (),
    seeds: Sequence[int] = (0,),
) -> dict[str, Any]:
    """Run the second and third stage on all examples; write the models, `results.json` and a report to `out`."""
    unfinished = out / "unfinished.json"  # the results, until the models that only the ensemble needs are removed
    if not unfinished.exists() and not (out / "results.json").exists():
        folders = finetune_lm(config, out, pretrained, [*(e.text for e in train), *unlabeled])
        settings = config.classifier_settings(len(train))
        metrics = finetune_classifier(folders, train, dev, settings, out, seeds)
        results = {
            "config": config.to_json(),
            "train_examples": len(train),
            "dev_examples": len(dev),
            "rows": {
                name: {metric: mean_std([row[metric] for row in rows]) for metric in rows[0] if metric != "seed"}
                for name, rows in metrics.items()
            },
            "seeds": metrics,
        }
        write_json(unfinished, results)
    if unfinished.exists():
        for classifier in out.glob("classifier-*"):
            shutil.rmtree(classifier / "seeds", ignore_errors=True)
            write_hashes(classifier)
        write_text(out / "report.html", build_page(read_json(unfinished), []))
        os.replace(unfinished, out / "results.json")
    write_run_card(out, "ULMFiT")
    write_hashes(out)
    return dict(read_json(out / "results.json"))


def low_shot_curve(
    config: UlmfitConfig,
    out: Path,
    pretrained: Pretrained,
    train: Sequence[TextExample],
    dev: Sequence[TextExample],
    sizes: Sequence[int],
    unlabeled: Sequence[str] = (),
    seeds: Sequence[int] = (0,),
) -> list[dict[str, Any]]:
    """Compute the low-shot curve (§5, figure 3): three methods for each training set size and seed.

    The methods are: from scratch; all three stages, with the second on the sampled examples only; and with the second
    on all texts. Finished points are in `curve.json`, so that an interrupted run continues after them.
    """
    check_train_sizes(sizes, train)
    path = out / "curve.json"
    points: list[dict[str, Any]] = read_json(path) if path.exists() else []
    full_text_folders = finetune_lm(config, out, pretrained, [*(e.text for e in train), *unlabeled])
    for size, seed in itertools.product(sizes, seeds):
        sample, sample_folder = stratified_sample(train, size, seed), out / f"few-{size}-{seed}"
        settings = config.classifier_settings(size)
        for row in CURVE_ROWS:
            if any((d["size"], d["seed"], d["row"]) == (size, seed, row) for d in points):
                continue
            folders = full_text_folders
            if row == SUPERVISED:
                folders = finetune_lm(config, sample_folder, pretrained, [e.text for e in sample])
            run_folder = sample_folder / row.replace(" ", "-")
            metrics = finetune_classifier(folders, sample, dev, settings, run_folder, [seed], row == SCRATCH)
            direction = list(metrics)[-1]  # `both` if there are two
            points.append({"size": size, "seed": seed, "row": row, "direction": direction, **metrics[direction][0]})
            write_json(path, points)
        shutil.rmtree(sample_folder, ignore_errors=True)  # the models are not needed again
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


def error_curves(points: Sequence[dict[str, Any]]) -> dict[str, dict[int, Any]]:
    """Return mean and standard deviation (0 for one seed) of the error by method and training set size."""
    errors: dict[str, dict[int, list[float]]] = {row: {} for row in CURVE_ROWS}
    for point in sorted(points, key=lambda point: point["size"]):
        errors[point["row"]].setdefault(point["size"], []).append(1 - point[ClassificationTask.default_metric])
    return {row: {size: mean_std(e, 0.0) for size, e in curve.items()} for row, curve in errors.items() if curve}


def build_page(results: dict[str, Any] | None, points: Sequence[dict[str, Any]]) -> str:
    """Render the report: results by direction, and the low-shot curve with its table."""
    sections = []
    if results:
        names = list(next(iter(results["rows"].values())))
        rows = [[row, *(format_mean_std(stats[n]) for n in names)] for row, stats in results["rows"].items()]
        sections.append(("Results", html_table(["", *names], rows)))
    if points:
        curves, sizes = error_curves(points), sorted({d["size"] for d in points})
        rows = [
            [size, *(format_mean_std(curve[size]) if size in curve else "" for curve in curves.values())]
            for size in sizes
        ]
        chart = figure(
            mean_std_chart(curves, Axis("labeled examples", log=True), "error"),
            "Lower is better. The distance between the curves is what pre-training saves in labeled examples; "
            "bands are one standard deviation over the seeds.",
        )
        sections.append(("Error by number of examples", chart + html_table(["examples", *curves], rows)))
    if results:
        sections.append(("Config", collapsed("All settings of the three stages", code(results["config"]))))
    return html_page("ULMFiT", "A general language model, fine-tuned on the task's text, then a classifier", sections)


def format_mean_std(mean_and_std: Sequence[float | None]) -> str:
    """Format mean and standard deviation as `0.1234 ± 0.0056`."""
    mean, std = mean_and_std
    return f"{mean:.4f}" + (f" ± {std:.4f}" if std else "")

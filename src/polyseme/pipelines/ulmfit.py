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

from polyseme.config import Spec
from polyseme.corpus.build.prepare import prepare
from polyseme.corpus.sources.sources import open_sources
from polyseme.corpus.store import Corpus
from polyseme.errors import UserError
from polyseme.evaluation.ensemble import joined
from polyseme.families.ulmfit import to_config
from polyseme.finetuning.finetune import FinetuneSpec, finetune
from polyseme.io.files import read_json, write_json, write_text
from polyseme.recipes import ulmfit as recipes
from polyseme.report import html as report
from polyseme.tasks.examples import Example
from polyseme.tasks.metrics.standard import PRIMARY, score
from polyseme.tasks.task import Prediction, Task
from polyseme.text.tokenizer import Tokenizer
from polyseme.train.pretrain import pretrain
from polyseme.train.recipe import BudgetSpec, Recipe
from polyseme.train.schedule import ScheduleSpec
from polyseme.train.warm_start import begin_from
from polyseme.weights.folder import read_spec

PRESETS = {"tiny": recipes.tiny, "lecture": recipes.lecture, "paper": recipes.paper}
VOCABULARY = {"tiny": 4_000, "lecture": 60_003, "paper": 30_000}
SCRATCH, SUPERVISED, UNLABELLED = "from scratch", "supervised", "with unlabelled text"  # rows of the low-shot curve
ROWS = (SCRATCH, SUPERVISED, UNLABELLED)


def _classifier() -> FinetuneSpec:
    """§4.1: Adam at 0.01, rates by depth, a slanted triangle, an epoch between two unfreezings, chunks of 70."""
    return FinetuneSpec(
        epochs=12,
        batch_size=64,
        optim=recipes.ADAM.replace(rate=0.01, layer_decay=1 / 2.6),
        schedule=ScheduleSpec("slanted", 0.1),
        unfreeze=1.0,
        chunk=70,
        learnt=1400,
    )


@dataclass(frozen=True)
class Plan(Spec):
    """What the three stages do. A `budget` or a vocabulary that is empty is that of the preset."""

    preset: Literal["tiny", "lecture", "paper"] = "paper"
    direction: Literal["forward", "backward", "both"] = "forward"
    vocab_size: int = 0
    budget: str = ""  # of the general model, as `polyseme pretrain --budget` has it
    target_epochs: float = 10.0
    target_rate: float = 4e-3
    classifier: FinetuneSpec = field(default_factory=_classifier)

    def __post_init__(self) -> None:
        self.within(0, 1e6, "target_epochs")
        self.within(0, 1e9, "vocab_size")

    @property
    def directions(self) -> tuple[str, ...]:
        return ("forward", "backward") if self.direction == "both" else (self.direction,)

    def general(self, direction: str) -> Recipe:
        recipe = PRESETS[self.preset]()
        if self.budget:
            recipe = recipe.replace(budget=BudgetSpec.parse(self.budget))
        return recipes.backward(recipe) if direction == "backward" else recipe

    def settings(self, num_examples: int) -> FinetuneSpec:
        """Those of the classifier; few examples come in smaller batches, so that an epoch has steps."""
        size = max(min(self.classifier.batch_size, num_examples // 8), 2)
        return self.classifier.replace(batch_size=size)


@dataclass(frozen=True)
class Begun:
    """The general language model of each direction: its folder, and the recipe that has its sizes."""

    folders: dict[str, Path]
    recipes: dict[str, Recipe]

    @property
    def tokenizer(self) -> Tokenizer:
        return Tokenizer.load(next(iter(self.folders.values())))


def check(plan: Plan, text: Sequence[str], corpus: Path | None, general: Sequence[Path]) -> None:
    """A mistake in where the first stage begins is told before anything is written."""
    if bool(text) + bool(corpus) + bool(general) != 1:
        raise UserError("give one of --text (files), --corpus (a corpus folder) and --general (model folders)")
    if general:
        _given(plan, general)
    elif corpus:
        Corpus.open(corpus)
    else:
        open_sources(text, "text", "file", False)


def check_sizes(sizes: Sequence[int], train: Sequence[Example]) -> None:
    for size in sizes:
        if not 2 <= size <= len(train):
            raise UserError(f"train sizes are from 2 to the {len(train)} examples there are, not {size}")
        draw(train, size, seed=0)


def begin(plan: Plan, out: Path, text: Sequence[str], corpus: Path | None, general: Sequence[Path]) -> Begun:
    """The first stage: from text, from a corpus that is prepared, or from models that were trained before."""
    check(plan, text, corpus, general)
    if general:
        return _given(plan, general)
    if corpus is None:
        corpus = out / "corpus"
        if not (corpus / "manifest.json").exists():
            sources = open_sources(text, "text", "file", False)
            size = plan.vocab_size or VOCABULARY[plan.preset]
            prepare(text, Tokenizer.train("bpe", (d.text for d in sources), size), corpus)
    folders = {}
    for direction in plan.directions:
        run = out / f"general-{direction}"
        _stage(run, plan.general(direction), corpus)
        folders[direction] = run / "model"
    return Begun(folders, {direction: plan.general(direction) for direction in folders})


def _given(plan: Plan, folders: Sequence[Path]) -> Begun:
    found, made = {}, {}
    for path in folders:
        spec = read_spec(path)[0]
        if spec.family != "ulmfit" or not {"next", "previous"} & spec.heads.keys():
            raise UserError(
                f"{path} is no language model of ulmfit: {spec.family} with {', '.join(spec.heads) or 'no head'}"
            )
        sizes = {n: value for n, value in to_config(spec).items() if n not in ("model_type", "vocab_size")}
        direction = sizes["direction"]
        found[direction], made[direction] = path, plan.general(direction).replace(model=sizes, size="")
    if absent := [d for d in plan.directions if d not in found]:
        raise UserError(f"none of the models in --general reads {absent[0]}: give one more, or another --direction")
    return Begun({d: found[d] for d in plan.directions}, {d: made[d] for d in plan.directions})


def target(plan: Plan, out: Path, begun: Begun, texts: Iterable[str], general: bool = True) -> dict[str, Path]:
    """The second stage: each general model, or without `general` a fresh one, goes on with these texts."""
    corpus = target_corpus(out / "target-corpus", begun.tokenizer, texts)
    tokens = Corpus.open(corpus).num_tokens
    folders = {}
    for direction, folder in begun.folders.items():
        recipe = recipes.target(begun.recipes[direction], tokens, plan.target_epochs, plan.target_rate)
        if not general:
            recipe = recipe.replace(optim=recipe.optim.replace(layer_decay=1.0))
        run = out / f"target-{direction}"
        _stage(run, recipe, corpus, folder if general else None)
        shutil.rmtree(run / "checkpoints", ignore_errors=True)  # it is done: they would be three times the model
        folders[direction] = run / "model"
    return folders


def target_corpus(out: Path, tokenizer: Tokenizer, texts: Iterable[str]) -> Path:
    """A corpus of these texts, each a document; one that is there already stays as it is."""
    if not (out / "manifest.json").exists():
        source = out.with_name(f"{out.name}.jsonl")
        write_text(source, "".join(json.dumps({"text": text}) + "\n" for text in texts))
        prepare([source], tokenizer, out, clean="none", duplicates="none", workers=1)
        source.unlink()
    return out


def _stage(run: Path, recipe: Recipe, corpus: Path, begin_at: Path | None = None) -> None:
    if not (run / "results.json").exists():
        lesson = begin_from(begin_at, recipe, corpus) if begin_at else None
        pretrain(recipe, corpus, run, resume=(run / "recipe.json").exists(), lesson=lesson)


def classify(
    folders: dict[str, Path],
    train: Sequence[Example],
    dev: Sequence[Example],
    settings: FinetuneSpec,
    out: Path | None = None,
    seeds: Sequence[int] = (0,),
    scratch: bool = False,
) -> dict[str, list[dict[str, float]]]:
    """The third stage: the metrics of every seed by direction, and of both averaged where there are two."""
    said: dict[str, dict[int, list[Prediction]]] = {}
    found: dict[str, list[dict[str, float]]] = {}
    for direction, folder in folders.items():
        own = said[direction] = {}
        results = finetune(
            folder,
            "classification",
            train,
            dev,
            out / f"classifier-{direction}" if out else None,
            settings,
            seeds=len(seeds),
            first_seed=seeds[0],
            scratch=scratch,
            tell=own.__setitem__,
        )
        found[direction] = results["seeds"]
    if len(folders) > 1:
        task, gold = Task.of("classification", train), [e.answer for e in dev]
        for seed in seeds:
            parts = [[np.array([[*(p.probabilities or {}).values()]]) for p in own[seed]] for own in said.values()]
            answers = [p.answer for p in joined(task, parts, dev)]
            both = {"seed": seed, **score("classification", gold, answers, task.labels)}
            found.setdefault("both", []).append(both)
    return found


def run(
    plan: Plan,
    out: Path,
    begun: Begun,
    train: Sequence[Example],
    dev: Sequence[Example],
    unlabelled: Sequence[str] = (),
    seeds: int = 1,
) -> dict[str, Any]:
    """The second and the third stage on all examples; `out` gets the models, `results.json` and a page."""
    settings = plan.settings(len(train))
    folders = target(plan, out, begun, [*(e.text or "" for e in train), *unlabelled])
    for direction in folders:
        shutil.rmtree(out / f"classifier-{direction}", ignore_errors=True)
    rows = classify(folders, train, dev, settings, out, range(seeds))
    results = {
        "plan": plan.to_json(),
        "train_examples": len(train),
        "dev_examples": len(dev),
        "rows": {name: summary(found) for name, found in rows.items()},
        "seeds": rows,
    }
    write_json(out / "results.json", results)
    write_text(out / "report.html", page(results, []))
    return results


def curve(
    plan: Plan,
    out: Path,
    begun: Begun,
    train: Sequence[Example],
    dev: Sequence[Example],
    sizes: Sequence[int],
    unlabelled: Sequence[str] = (),
    seeds: int = 1,
) -> list[dict[str, Any]]:
    """The low-shot curve (§5, figure 3): for each number of examples and seed, three ways to learn from them.

    From fresh weights; by three stages of which the second sees the drawn examples alone; with a second stage on all
    texts there are. What is done is in `curve.json`; the same call goes on from there.
    """
    check_sizes(sizes, train)
    path = out / "curve.json"
    done: list[dict[str, Any]] = read_json(path) if path.exists() else []
    everything = target(plan, out, begun, [*(e.text or "" for e in train), *unlabelled])
    for size in sizes:
        for seed in range(seeds):
            drawn, place = draw(train, size, seed), out / f"few-{size}-{seed}"
            for row in ROWS:
                if any((d["size"], d["seed"], d["row"]) == (size, seed, row) for d in done):
                    continue
                folders = everything
                if row == SUPERVISED:
                    folders = target(plan, place, begun, [e.text or "" for e in drawn])
                found = classify(folders, drawn, dev, plan.settings(size), None, [seed], scratch=row == SCRATCH)
                last = list(found)[-1]  # both directions, if there are two
                done.append({"size": size, "seed": seed, "row": row, "direction": last, **found[last][0]})
                write_json(path, done)
            shutil.rmtree(place, ignore_errors=True)  # the models of a point are not kept
    return done


def draw(examples: Sequence[Example], size: int, seed: int) -> list[Example]:
    """Some examples at random, of every label one at least: what is never seen could not be predicted."""
    order = random.Random(seed).sample(list(examples), len(examples))
    firsts: dict[str | None, Example] = {}
    for example in order:
        firsts.setdefault(example.label, example)
    if len(firsts) > size:
        raise UserError(f"{size} examples cannot have all of the {len(firsts)} labels: draw more")
    held = set(map(id, firsts.values()))
    return [*firsts.values(), *(e for e in order if id(e) not in held)][:size]


def summary(found: Sequence[dict[str, float]]) -> dict[str, tuple[float, float | None]]:
    """Mean and sample deviation of each metric; of one seed the deviation is unknown."""
    names = [name for name in found[0] if name != "seed"]
    values = {name: [each[name] for each in found] for name in names}
    return {n: (statistics.fmean(v), statistics.stdev(v) if len(v) > 1 else None) for n, v in values.items()}


def lines(done: Sequence[dict[str, Any]], metric: str = PRIMARY["classification"]) -> dict[str, dict[int, Any]]:
    """The error of each row of the curve by size: mean and deviation."""
    found: dict[str, dict[int, Any]] = {row: {} for row in ROWS if any(d["row"] == row for d in done)}
    for row, line in found.items():
        for size in sorted({d["size"] for d in done}):
            errors = [1 - d[metric] for d in done if (d["row"], d["size"]) == (row, size)]
            if errors:
                line[size] = statistics.fmean(errors), statistics.stdev(errors) if len(errors) > 1 else 0.0
    return found


def page(results: dict[str, Any] | None, done: Sequence[dict[str, Any]]) -> str:
    """What came of it: the table of directions, the curve and its table."""
    sections = []
    if results:
        names = list(next(iter(results["rows"].values())))
        cells = [[row, *(shown(found[n]) for n in names)] for row, found in results["rows"].items()]
        sections += [("Results", report.table(["", *names], cells)), ("The plan", report.code(results["plan"]))]
    if done:
        found = lines(done)
        sizes = sorted({d["size"] for d in done})
        cells = [[row, *(shown(line[size]) if size in line else "" for size in sizes)] for row, line in found.items()]
        picture = report.bands(found, "labelled examples", "error")
        sections.append(("Error by number of examples", picture + report.table(["", *map(str, sizes)], cells)))
    return report.page("ULMFiT", "a general language model, the same on the task's text, then a classifier", sections)


def shown(pair: Sequence[float | None]) -> str:
    mean, deviation = pair
    return f"{mean:.4f}" + (f" ± {deviation:.4f}" if deviation else "")

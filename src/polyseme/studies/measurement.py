"""Measurement of a trained model: one value per metric, and the values of examples that a bootstrap needs."""

import json
import logging
import math
import shutil
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from statistics import fmean
from typing import Any, NamedTuple

import torch

from polyseme.corpus.clean.sentences import split_sentences
from polyseme.corpus.sources.sources import open_sources
from polyseme.datasets.minimal_pairs import MinimalPair, read_minimal_pairs
from polyseme.errors import PolysemeError, UnsupportedError
from polyseme.evaluation.minimal_pairs import score_pairs
from polyseme.evaluation.streaming import hash_path
from polyseme.finetuning.results import SeedResult
from polyseme.inference.base import LanguageModel
from polyseme.inference.load import load
from polyseme.io.atomic import write_text
from polyseme.io.json import read_json_object, write_json
from polyseme.ngram.model import is_ngram
from polyseme.studies.arms import resolve_recipe
from polyseme.studies.base import Arm
from polyseme.studies.calibration import hold_lock
from polyseme.studies.metrics import METRICS, SENTENCE_CHARACTERS, Metric, read_task_data, sample_evenly
from polyseme.studies.plan import BASELINES_FILE, StudyPlan
from polyseme.studies.transfer import TaskTransfer, open_transfer
from polyseme.tasks.metrics.standard import squad_scores
from polyseme.text.tokenizer import Tokenizer
from polyseme.train.recipe import Recipe

logger = logging.getLogger(__name__)
TOKEN_TERMS = ("masked", "next", "previous")
MAX_UNKNOWN = 0.001  # share of unknown tokens, above which a model reads another text than the others
SPECIAL_TOKENS, MAX_PASSAGE_TOKENS = 4, 128  # at most, around a text and in it


@dataclass(frozen=True)
class Measurement:
    """The value of a metric, facts for the row, the values of examples, and what limits its meaning."""

    value: float
    num_examples: int
    facts: dict[str, Any] = field(default_factory=dict)
    examples: dict[str, Any] = field(default_factory=dict)
    warning: str = ""


@dataclass
class ArmModel:
    """The trained model of a seed and what is known about it, for the measurement of one arm."""

    plan: StudyPlan
    arm: Arm
    seed: int
    folder: Path  # of the model
    results: Mapping[str, Any]  # of its training
    max_len: int  # of the sequences that it was trained on
    _loaded: LanguageModel | None = None

    def load(self) -> LanguageModel:
        """Load the model once; on a GPU in bfloat16."""
        if self._loaded is None:
            use_bf16 = torch.cuda.is_available() and not is_ngram(self.folder)
            self._loaded = load(self.folder, precision="bf16" if use_bf16 else "float32")
        return self._loaded

    def measure(self, metric: Metric) -> Measurement | None:
        """Return a measurement; None if the model cannot be measured by this metric."""
        measure = {
            "validation": self._read_validation,
            "likelihood": self._score_text,
            "pairs": self._score_pairs,
            "task": self._score_task,
        }[metric.kind]
        return measure(metric)

    def _read_validation(self, metric: Metric) -> Measurement | None:
        if self.arm.from_arm:
            return None
        value = validation_loss(self.results) if metric.score == "loss" else validation_accuracy(self.results)
        return None if value is None else Measurement(value, 1)

    def _score_text(self, metric: Metric) -> Measurement | None:
        if self.arm.from_arm or "score" not in (model := self.load()).capabilities:
            return None
        is_pseudo = model.has_pll_metric or model.is_seq2seq
        assert self.plan.options.held_out is not None
        if is_pseudo != metric.name.startswith("pseudo"):
            return None
        limit = min(metric.max_dev, self.plan.options.max_examples or metric.max_dev)
        passages = read_passages(self.plan, limit)
        texts = [passage.text for passage in passages]
        if warning := self._describe_unknown(texts):
            raise UnsupportedError(warning)  # the probability of one token for all unknown words is no measure of text
        scores = model.score(texts, spans=[passage.span for passage in passages])
        bits = [-score.log_prob / math.log(2) for score in scores]
        characters = [score.num_characters for score in scores]
        examples = {"bits": [round(value, 4) for value in bits], "characters": characters}
        return Measurement(math.fsum(bits) / sum(characters), len(bits), {}, examples)

    def _score_pairs(self, metric: Metric) -> Measurement | None:
        if self.arm.from_arm or "score" not in (model := self.load()).capabilities:
            return None
        pairs = limit_pairs(read_minimal_pairs(self.plan.minimal_pairs), self.plan.options.max_examples)
        warning = self._describe_unknown([text for pair in pairs for text in (pair.good, pair.bad)])
        points = score_pairs(model, pairs)
        paradigms = sorted({pair.paradigm for pair in pairs})
        index = {name: i for i, name in enumerate(paradigms)}
        groups = [index[pair.paradigm] for pair in pairs]
        means = [fmean(p for p, g in zip(points, groups) if g == i) for i in range(len(paradigms))]
        by_paradigm = dict(zip(paradigms, (round(mean, 6) for mean in means)))
        facts = {"ties": points.count(0.5), "paradigms": by_paradigm}
        whole = [int(p) if p in (0, 1) else p for p in points]
        return Measurement(fmean(means), len(points), facts, {"points": whole, "groups": groups}, warning)

    def _score_task(self, metric: Metric) -> Measurement | None:
        with self._open_transfer(metric) as (transfer, work):
            if transfer is None:
                return None
            seed_result = transfer.run(self.seed, work)
        data, lr = transfer.data, transfer.config.optimizer.lr
        value = seed_result.scores[data.name][metric.score]
        finetuning = {"lr": lr, "seeds": [self.seed], "values": [value], "train_examples": len(data.train)}
        return Measurement(
            value, len(data.dev), {"finetune": finetuning}, example_values(metric, transfer, seed_result)
        )

    @contextmanager
    def _open_transfer(self, metric: Metric) -> Iterator[tuple[TaskTransfer | None, Path]]:
        """Yield how the model is transferred to a task, if it is, and a folder, which is deleted at the end."""
        self._loaded = None  # frees its memory
        options, work = self.plan.options, self.folder.parent / "transfer" / f"{self.arm.name}-{metric.name}"
        if is_ngram(self.folder) or self.arm.transfer == "none":
            yield None, work
            return
        data = read_task_data(metric, self.plan.data, options.max_examples)
        try:
            yield open_transfer(self.arm, self.folder, data, options.finetune, self.max_len, work), work
        finally:
            shutil.rmtree(work, ignore_errors=True)  # features of all tasks at once may fill a disk

    def _describe_unknown(self, texts: list[str]) -> str:
        """Return a warning if the model knows fewer words of texts that all arms read; empty if it knows them."""
        unknown = fmean(count_unknown(self.load().tokenizer, texts))
        return f"{100 * unknown:.1f} % of the tokens are unknown to the model" if unknown > MAX_UNKNOWN else ""


def measure_arm(model: ArmModel, names: Sequence[str], row: dict[str, Any]) -> None:
    """Measure an arm by those metrics that its row does not have yet; `row` describes its training.

    The row is written after each, as an unfinished one. It stays if the machine is lost: the model is then trained
    again, with the same seed, for what is missing. The entry of a metric that does not apply is empty.
    """
    for name in names:
        if name in model.plan.read_partial_row(model.arm, model.seed).get("metrics", ()):
            continue
        started, facts, problems = time.perf_counter(), dict[str, Any](), list[str]()
        try:
            measurement = model.measure(METRICS[name])
        except UnsupportedError as error:
            measurement = None
            problems.append(f"{name}: {error}")
        if measurement is not None and not math.isfinite(measurement.value):
            problems.append(f"{name}: the {METRICS[name].score} is not defined ({measurement.value})")
        elif measurement is not None:
            facts = {"value": measurement.value, "metric": METRICS[name].score}
            facts |= {"num_examples": measurement.num_examples, **measurement.facts}
            facts["seconds"] = round(time.perf_counter() - started, 2)
            if measurement.warning:
                problems.append(f"{name}: {measurement.warning}")
            if measurement.examples:
                facts["items"] = f"seed-{model.seed}.{name}.json"
                text = json.dumps(measurement.examples, separators=(",", ":")) + "\n"
                write_text(model.plan.arm_folder(model.arm) / facts["items"], text)
        record_metric(model, row, name, facts, problems)


def record_metric(
    model: ArmModel, row: Mapping[str, Any], name: str, facts: Mapping[str, Any], problems: Sequence[str]
) -> None:
    """Add a metric to the unfinished row of a model, which other jobs may add to at the same time."""
    with hold_lock(model.plan.out / "cache" / "rows.lock"):
        known = model.plan.read_partial_row(model.arm, model.seed)
        metrics = {**known.get("metrics", {}), name: facts}
        warnings = list(dict.fromkeys([*row["warnings"], *known.get("warnings", []), *problems]))
        path = model.plan.partial_row_path(model.arm, model.seed)
        write_json(path, {**row, "metrics": metrics, "warnings": warnings, "is_unfinished": True})


def measure_baselines(plan: StudyPlan) -> None:
    """Write `baselines.json`: for each task the scores of simple models, which an arm should beat.

    These are the trivial one (majority class or mean) and the linear one, over words. A task whose baselines fail is
    tried again by the next run of the study.
    """
    path = plan.out / BASELINES_FILE
    scores: dict[str, Any] = read_json_object(path) if path.is_file() else {}
    for name in plan.study.metrics:
        metric = METRICS[name]
        if metric.kind != "task" or name in scores:
            continue
        data = read_task_data(metric, plan.data, plan.options.max_examples)
        task = data.task.fit(data.train)
        trivial, *others = task.baselines()
        labels = {trivial: "trivial"} | {each: each for each in others if each == "linear"}
        try:
            values = {
                label: task.baseline_metrics(baseline, data.train, data.dev).get(metric.score, math.nan)
                for baseline, label in labels.items()
            }
        except PolysemeError as error:  # such as a missing library
            logger.warning("%s: no baselines: %s", name, error)
            continue
        scores[name] = {label: value for label, value in values.items() if math.isfinite(value)}
        write_json(path, scores)


def validation_loss(results: Mapping[str, Any]) -> float | None:
    """Return the mean loss of the terms that predict tokens, or that of the first term."""
    valid = results.get("valid", {})
    losses = [valid[term] for term in TOKEN_TERMS if term in valid]
    losses = losses or [value for name, value in valid.items() if not name.endswith("_accuracy")][:1]
    return fmean(losses) if losses and all(map(math.isfinite, losses)) else None


def validation_accuracy(results: Mapping[str, Any]) -> float | None:
    """Return the mean accuracy of the terms that predict tokens."""
    valid = results.get("valid", {})
    values = [valid[name] for term in TOKEN_TERMS if (name := f"{term}_accuracy") in valid]
    return fmean(values) if values else None


class Passage(NamedTuple):
    """A sentence of held-out text between its neighbors, and its place with the space before it."""

    text: str
    span: tuple[int, int]


def describe_inputs(plan: StudyPlan) -> dict[str, Any]:
    """Return what the rows of a study are measured on: hashes of its data, and the size of passages of text."""
    metrics, facts = [METRICS[name] for name in plan.study.metrics], dict[str, Any]()
    if any(metric.kind == "likelihood" for metric in metrics):
        assert plan.options.held_out is not None
        facts = {"held_out": hash_path(plan.options.held_out), "passage_tokens": max_passage_tokens(plan)}
    files = {metric.name: metric.find_files(plan.data) for metric in metrics if metric.files}
    return facts | {"data": {name: [hash_path(path) for path in paths] for name, paths in files.items()}}


def max_passage_tokens(plan: StudyPlan) -> int:
    """Return the number of tokens of a passage that the arms with the tokenizer of the study read at once."""
    arms = [arm for arm in plan.study.arms if arm.recipe and not arm.tokenizer]
    recipes = [resolve_recipe(arm, plan.options.overrides, plan.corpus) for arm in arms]
    lengths = [recipe.max_len for recipe in recipes if isinstance(recipe, Recipe)]
    return min(lengths, default=MAX_PASSAGE_TOKENS) - SPECIAL_TOKENS


def read_passages(plan: StudyPlan, limit: int) -> list[Passage]:
    """Return sentences of held-out text between their neighbors, evenly spaced, the same for every arm.

    Models are trained on text of several sentences, and one alone would start where they rarely start. All lengths are
    within `SENTENCE_CHARACTERS`. A passage fits into the sequences of the arms that share the tokenizer of the study,
    which knows all of its tokens.
    """
    tokenizer, (low, high) = Tokenizer.load(plan.corpus / "tokenizer"), SENTENCE_CHARACTERS
    max_tokens = max_passage_tokens(plan)
    assert plan.options.held_out is not None
    passages = []
    for document in open_sources([plan.options.held_out]):
        sentences = [text.strip() for text in split_sentences(document.text)]
        for before, text, after in zip(sentences, sentences[1:], sentences[2:]):
            if all(low <= len(each) <= high and "\n" not in each for each in (before, text, after)):
                span = (len(before), len(before) + 1 + len(text))
                passages.append(Passage(f"{before} {text} {after}", span))
    encoded = tokenizer.encode_batch([passage.text for passage in passages])
    fitting = [passage for passage, ids in zip(passages, encoded) if len(ids) <= max_tokens]
    unknown = count_unknown(tokenizer, [passage.text for passage in fitting])
    if not (known := [passage for passage, share in zip(fitting, unknown) if not share]):
        held_out = plan.options.held_out
        raise UnsupportedError(f"{held_out} has no three sentences in a row that fit into {max_tokens} known tokens")
    return sample_evenly(known, limit)


def count_unknown(tokenizer: Tokenizer, texts: list[str]) -> list[float]:
    """Return the share of unknown tokens in each text."""
    unknown_id = tokenizer.special_token_ids.unk
    if unknown_id is None or tokenizer.is_byte_level:
        return [0.0] * len(texts)
    return [float((ids == unknown_id).mean()) if len(ids) else 1.0 for ids in tokenizer.encode_batch(texts)]


def limit_pairs(pairs: list[MinimalPair], limit: int) -> list[MinimalPair]:
    """Return at most this many pairs of each paradigm; 0 for all."""
    if not limit:
        return pairs
    groups: dict[str, list[MinimalPair]] = {}
    for pair in pairs:
        groups.setdefault(pair.paradigm, []).append(pair)
    return [pair for group in groups.values() for pair in sample_evenly(group, limit)]


def example_values(metric: Metric, transfer: TaskTransfer, seed_result: SeedResult) -> dict[str, Any]:
    """Return the score of each example if the metric is their mean, else answers and predictions."""
    data = transfer.data
    gold, predictions = [example.gold for example in data.dev], seed_result.predictions[data.name]
    if metric.score == "f1" and data.task.answers_questions:
        return {"points": [round(float(value), 6) for value in squad_scores(gold, predictions)[1]]}
    if metric.score == "accuracy" and all(isinstance(value, str) for value in gold):
        return {"points": [int(a == b) for a, b in zip(gold, predictions, strict=True)]}
    task = data.task.fit(data.train).to_json()
    return {"gold": gold, "predictions": [predictions], "task": task, "metric": metric.score}

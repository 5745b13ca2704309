"""One training for each seed, all measured on the same examples: what fine-tuning and networks over features share."""

from __future__ import annotations

import dataclasses
import json
import math
import shutil
import statistics
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from polyseme.errors import UserError, nearest
from polyseme.evaluation.latency import model_ms
from polyseme.evaluation.predict import Extra, measure, predictions
from polyseme.io.files import write_json, write_text
from polyseme.nn.model import Model
from polyseme.nn.packing import bins
from polyseme.nn.trunks.encoder_decoder import EncoderDecoder
from polyseme.objectives.batch import Batch, Targets
from polyseme.objectives.packing import rounded
from polyseme.progress import progress
from polyseme.report.html import write_report
from polyseme.tasks.baselines.surface import majority
from polyseme.tasks.coreference import lost_mentions
from polyseme.tasks.encoded import Encoded
from polyseme.tasks.examples import Example
from polyseme.tasks.metrics.standard import PRIMARY, score
from polyseme.tasks.spans import best_threshold, decided
from polyseme.tasks.task import Prediction, Task
from polyseme.train.flops import num_parameters
from polyseme.train.loop import CHECKED, Report, Training, choose_device, train

if TYPE_CHECKING:
    from polyseme.finetuning.finetune import FinetuneSpec

Steps = Iterator[tuple[list[Batch], Any]]  # micro-batches of each step, and where it stands
Save = Callable[[Path, Model, dict[str, Any]], None]  # a model, and what its folder says of it
Tell = Callable[[int, list[Prediction]], object]  # hears of each seed what it predicts for the dev examples


@dataclass(frozen=True, eq=False)
class Part:
    """Examples, and how the model reads them."""

    examples: Sequence[Example]
    encoded: Sequence[Encoded]

    def num_cut(self, task: Task) -> int:
        """How many examples lost tokens; one read in windows counts once."""
        return len({e.of if task.kind == "span" else i for i, e in enumerate(self.encoded) if e.cut})


@dataclass(frozen=True, eq=False)
class Work:
    """What every seed learns, is measured on, and is measured by.

    `primary` is the metric that counts, if it is not the one the kind has; `extra` are further metrics, and `others`
    further examples. `terms` are the losses, if not the usual ones, and `further` what else they have targets of.
    `timed` says whether the speed of the model is that of its answers: over features, most of it was spent before.
    """

    task: Task
    train: Part
    dev: Part
    settings: FinetuneSpec
    primary: str = ""
    extra: Extra | None = None
    others: Mapping[str, Part] = field(default_factory=dict)
    terms: Callable[[Model, Batch], dict[str, Tensor]] | None = None
    further: Mapping[str, Targets] = field(default_factory=dict)
    timed: bool = True

    def metric(self) -> str:
        """The metric that counts, which must be among those there are."""
        kind, gold = self.task.kind, [e.answer for e in self.dev.examples]
        right: Sequence[Any] = [answer[0] if answer else "" for answer in gold] if kind == "span" else gold
        known = score(kind, gold, right, self.task.labels)
        known |= self.extra(self.dev.examples, right) if self.extra else {}
        primary = self.primary or PRIMARY[kind]
        if primary not in known:
            raise UserError(f"there is no metric {primary!r} here; {nearest(primary, known)}")
        return primary

    def answers(self, model: Model) -> tuple[Task, list[Prediction], dict[str, float]]:
        """What a model says of the dev examples and what that is worth; and the task with the threshold it needs."""
        return self.judged(predictions(model, self.task, self.dev.examples, self.dev.encoded))

    def judged(self, said: list[Prediction]) -> tuple[Task, list[Prediction], dict[str, float]]:
        fitted, said = fit_threshold(self.task, self.settings, self.dev.examples, said)
        return fitted, said, measure(fitted, self.dev.examples, said, self.extra)

    @property
    def chosen(self) -> list[str]:
        """What is chosen on the dev examples that a score is reported on, so that it flatters."""
        found = ["the epoch"] if self.settings.patience else []
        fits = self.task.span.threshold is not None and self.settings.span.threshold is None
        return [*found, "the threshold of no answer"] if self.task.kind == "span" and fits else found

    def notes(self, fitted: Task, **more: Any) -> dict[str, Any]:
        """What the folder of a model says of its task."""
        settings = self.settings.replace(span=fitted.span).to_json()
        found = {"task": fitted.kind, "labels": list(fitted.labels), "settings": settings, **more}
        return found | ({"text": fitted.text.to_json()} if fitted.text else {})


def run_seeds(
    work: Work,
    build: Callable[[int], Model],
    save: Save,
    out: Path | None,
    seeds: Sequence[int],
    about: dict[str, Any],
    tell: Tell | None = None,
    keep: bool = False,
    checkpoints: int = 0,
) -> dict[str, Any]:
    """Train once for each seed the model that `build` makes for it, measure, and write the run folder.

    For ensembles: with `keep` the model of every seed stays, in `seeds/N`; of each seed the last so many `checkpoints`,
    one an epoch, in `checkpoints/seed-N/step-N`, as model folders.
    """
    task, settings, dev, primary = work.task, work.settings, work.dev, work.metric()
    size = len(work.train.encoded)
    blind = majority(work.train.examples, dev.examples, task.kind).get(primary, -math.inf)
    rows: list[dict[str, Any]] = []
    runs: list[dict[str, Any]] = []
    kept: dict[int, list[Any]] = {}
    besides: dict[str, list[float]] = {name: [] for name in work.others}
    best: tuple[float, int, Model, Task] | None = None
    spent = {"tokens": 0, "flops": 0, "seconds": 0.0}
    answering = 0.0
    for seed in seeds:
        run = training(build(seed), settings, size, seed)
        run.terms = work.terms or run.terms
        began = time.perf_counter()
        about_seed = {"data": about.get("data", ""), "seed": seed}
        steps_kept = Kept(work, save, out / "checkpoints" / f"seed-{seed}", checkpoints, about_seed) if out else None
        done = _learn(work, run, seed, primary, steps_kept)
        rows += _rows(seed, done)
        spent["tokens"] += sum(report.tokens for report in done)
        spent["flops"] += sum(report.flops for report in done)
        spent["seconds"] += time.perf_counter() - began
        began = time.perf_counter()
        said = predictions(run.model, task, dev.examples, dev.encoded)
        answering += time.perf_counter() - began
        fitted, said, found = work.judged(said)
        if out is not None and keep:
            save(out / "seeds" / str(seed), run.model, work.notes(fitted, **about_seed))
        if tell is not None:
            tell(seed, said)
        kept[seed] = [p.answer for p in said]
        for name, part in work.others.items():
            seen = predictions(run.model, fitted, part.examples, part.encoded)
            besides[name].append(measure(fitted, part.examples, seen, work.extra)[primary])
        runs.append({"seed": seed, primary: found[primary], **found})
        if best is None or found[primary] > best[0]:
            best = (found[primary], seed, run.model, fitted)
    assert best is not None
    results = {
        "task": task.kind,
        **about,
        "primary": primary,
        **_summary(runs),
        **({"others": besides} if besides else {}),
        "best_seed": best[1],
        "blind": blind if math.isfinite(blind) else None,
        "failed": [run["seed"] for run in runs if run[primary] <= blind],
        "steps": settings.total(size),
        "train_examples": len(work.train.examples),
        "dev_examples": len(dev.examples),
        "cut": {name: part.num_cut(task) for name, part in (("train", work.train), ("dev", dev))},
        **lost_mentions(task, work.train.examples, dev.examples),
        "chosen_on_dev": work.chosen,
        "parameters": num_parameters(best[2]),
        **spent,
    }
    if work.timed:
        results["examples_per_second"] = len(seeds) * len(dev.examples) / answering
    if out is not None:
        if work.timed:
            results["ms_per_text"] = model_ms(best[2], task, dev)
        chosen = f"seed {best[1]}: the best {primary} on the dev examples of {len(seeds)} seed(s)"
        notes = work.notes(best[3], data=about.get("data", ""), results=results, chosen=chosen)
        write_text(out / "log.jsonl", "".join(json.dumps(row) + "\n" for row in rows))
        save(out / "model", best[2], notes)
        gold = [e.answer for e in dev.examples]
        write_json(out / "predictions.json", {"gold": gold, "said": kept, "labels": task.labels})
        write_json(out / "results.json", results)
        write_report(out)
    return results


def _learn(work: Work, run: Training, seed: int, primary: str, kept: Kept | None = None) -> list[Report]:
    """Train one seed's model; with patience, to the best of its epochs."""
    best, done = Best(work.settings.patience), []
    epoch = math.ceil(len(work.train.encoded) / work.settings.batch_size)
    with progress(f"finetune, seed {seed}", run.total, "steps") as bar:
        for report in phased(run, work.task, work.train.encoded, work.settings, seed, work.further):
            shown = run.device.type == "cpu" or report.step % CHECKED == 0  # when the loop has asked the GPU
            bar.advance(1, f"loss {report.loss[work.task.head_name]:.3f}" if shown else "")
            done.append(report)
            if kept and (report.step % epoch == 0 or report.step == run.total):
                kept.add(report.step, run.model)
            if best.patience and report.step % epoch == 0:
                best.note(report.step, work.answers(run.model)[2][primary], run.model)
                if best.over:
                    break
    best.restore(run.model)
    return done


class Kept:
    """The last `most` states of a model, as whole model folders; each says what it was worth on the dev examples."""

    def __init__(self, work: Work, save: Save, folder: Path, most: int, about: dict[str, Any]):
        self.work, self.save, self.folder, self.most, self.about = work, save, folder, most, about
        self.there: list[Path] = []

    def add(self, step: int, model: Model) -> None:
        if not self.most:
            return
        fitted, _, found = self.work.answers(model)
        self.there.append(self.folder / f"step-{step}")
        self.save(self.there[-1], model, self.work.notes(fitted, **self.about, step=step, dev=found))
        while len(self.there) > self.most:
            shutil.rmtree(self.there.pop(0))


class Best:
    """The best of several states of a model; without patience there is but the last."""

    def __init__(self, patience: int):
        self.patience, self.value, self.step, self.worse = patience, -math.inf, 0, 0
        self.state: dict[str, torch.Tensor] = {}

    def note(self, step: int, value: float, model: Model) -> None:
        self.worse += 1
        if value > self.value:
            self.value, self.step, self.worse = value, step, 0
            self.state = {name: t.detach().to("cpu", copy=True) for name, t in model.state_dict().items()}

    @property
    def over(self) -> bool:
        return self.worse >= self.patience > 0

    def restore(self, model: Model) -> None:
        if self.state:
            model.load_state_dict(self.state)


def fit_threshold(
    task: Task, settings: FinetuneSpec, examples: Sequence[Example], found: list[Prediction]
) -> tuple[Task, list[Prediction]]:
    """Where questions may have no answer and nobody gave a threshold: the task with the best one, and its answers."""
    if task.kind != "span" or task.span.threshold is None or settings.span.threshold is not None:
        return task, found
    spans = [p.span for p in found if p.span]
    threshold = best_threshold(examples, spans)
    chosen = [Prediction(span=decided(span, e.text or "", threshold)) for e, span in zip(examples, spans)]
    return dataclasses.replace(task, span=task.span.replace(threshold=threshold)), chosen


def training(model: Model, settings: FinetuneSpec, num_examples: int, seed: int) -> Training:
    """A run of the one loop, its optimiser with a rate for each group of parameters."""
    device = choose_device()
    model = model.to(device)
    parts = groups(model)
    if settings.freeze > len(parts):
        raise UserError(f"cannot freeze {settings.freeze} groups: the model has {len(parts)}")
    for group in parts[: settings.freeze]:
        for parameter in group:
            parameter.requires_grad_(False)
    trunk = model.spec.trunk
    if settings.chunk and not (trunk.remembers or (trunk.causal and trunk.num_layers)):
        raise UserError(f"chunk is {settings.chunk}, but {model.spec.family} has no memory to read on with")
    precision = settings.precision
    if precision == "auto":
        precision = "bf16" if device.type == "cuda" else "float32"
    return Training(
        model,
        settings.optim.build(model, parts),
        settings.optim,
        settings.schedule,
        settings.total(num_examples),
        device,
        precision,
        seed,
        record=device.type == "cuda"
        and precision == "bf16"
        and not writes(model)
        and not model.spec.trunk.by_lengths
        and not any(head.crf or head.asks for head in model.heads.values()),
    )


def writes(model: Model) -> bool:
    """Whether it answers in text: then its decoder has something to read."""
    return isinstance(model.trunk, EncoderDecoder) and "next" in model.heads


def groups(model: Model) -> list[list[torch.nn.Parameter]]:
    """Parameters from input to output; of two stacks those of the encoder, unless there is a target to decode."""
    trunk = model.trunk
    return trunk.encoder.groups() if isinstance(trunk, EncoderDecoder) and not writes(model) else trunk.groups()


def phased(
    run: Training,
    task: Task,
    data: Sequence[Encoded],
    settings: FinetuneSpec,
    seed: int,
    further: Mapping[str, Targets] | None = None,
) -> Iterator[Report]:
    """The one loop, once for each phase of unfreezing."""
    return in_phases(run, settings, len(data), lambda first: steps(task, data, settings, seed, run, first, further))


def in_phases(run: Training, settings: FinetuneSpec, size: int, stream: Callable[[int], Steps]) -> Iterator[Report]:
    """The same for any steps: `stream` gives those after the first so many."""
    parts = groups(run.model)
    if not any(True for _ in run.model.heads.parameters()):
        parts = parts[:-1]  # no head is new: the last layer learns from the beginning
    for first, end, frozen in settings.phases(size, len(parts)):
        for number, group in enumerate(parts):
            for parameter in group:
                parameter.requires_grad_(number >= frozen)
        part = dataclasses.replace(run, start=first, origin=first, total=end)
        yield from train(part, stream(first))


def steps(
    task: Task,
    data: Sequence[Encoded],
    settings: FinetuneSpec,
    seed: int,
    run: Training | None = None,
    done: int = 0,
    further: Mapping[str, Targets] | None = None,
) -> Iterator[tuple[list[Batch], tuple[int, int]]]:
    """Micro-batches of each step after the `done` ones, without end: each epoch is a permutation of (seed, epoch).

    Those of a `run` that records its kernels are filled up to few shapes.
    """
    size = settings.batch_size
    epoch, skipped = divmod(done, math.ceil(len(data) / size))
    while True:
        order = np.random.default_rng((seed, epoch)).permutation(len(data))
        for start in range(skipped * size, len(order), size):
            chosen = [data[i] for i in order[start : start + size]]
            parts = bins([len(e.ids) for e in chosen], settings.bin_tokens)
            batches = [task.batch([chosen[i] for i in part])[0] for part in parts]
            batches = [dataclasses.replace(b, chunk=settings.chunk, learnt=settings.learnt) for b in batches]
            if further:
                batches = [dataclasses.replace(b, targets={**b.targets, **further}) for b in batches]
            if settings.auxiliary:
                batches = [_with_next(batch, settings.auxiliary) for batch in batches]
            if run is not None and run.record:
                batches = [rounded(batch, run.model.spec.trunk.embeddings.max_len) for batch in batches]
            yield batches, (epoch, start + size)
        epoch, skipped = epoch + 1, 0


def _with_next(batch: Batch, weight: float) -> Batch:
    """The batch with one more term: each token but a sequence's first, from those before it."""
    rows = torch.ones(batch.layout.total, dtype=torch.bool).index_fill(0, batch.layout.last, False).nonzero()[:, 0]
    targets = Targets(rows, batch.tokens.index_select(0, rows + 1), len(rows), weight)
    return dataclasses.replace(batch, targets={**batch.targets, "next": targets})


def _summary(runs: list[dict[str, Any]]) -> dict[str, Any]:
    """Every run, and of each metric the mean and the sample deviation (None for one seed: it is unknown)."""
    names = [name for name in runs[0] if name != "seed"]
    values = {name: [run[name] for run in runs] for name in names}
    return {
        "seeds": runs,
        "mean": {name: statistics.fmean(v) for name, v in values.items()},
        "deviation": {name: statistics.stdev(v) if len(v) > 1 else None for name, v in values.items()},
    }


def _rows(seed: int, done: Sequence[Report]) -> list[dict[str, Any]]:
    """The log of a run. What lies on a GPU comes in one transfer: thousands would each wait for their turn."""
    found = []
    for report, values in zip(done, torch.stack([report.values for report in done]).tolist()):
        *losses, gradient, broken = values
        if broken:
            report.numbers  # noqa: B018  # raises, and says which step
        loss = dict(zip(report.names, losses))
        row = {"step": report.step, "loss": loss, "rate": report.rate, "gradient": gradient, "tokens": report.tokens}
        found.append({"seed": seed, **row})
    return found

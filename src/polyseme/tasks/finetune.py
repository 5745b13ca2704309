"""Fine-tuning: a pre-trained folder and labelled examples to a measured task model."""

from __future__ import annotations

import dataclasses
import json
import math
import statistics
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch

from polyseme.errors import UserError, nearest
from polyseme.families import FAMILIES
from polyseme.files import write_json, write_text
from polyseme.objectives.batch import Batch, Targets
from polyseme.objectives.packing import rounded
from polyseme.parts.layout import bins
from polyseme.parts.model import Model
from polyseme.parts.spec import Spec
from polyseme.progress import progress
from polyseme.report import write_report
from polyseme.tasks.baselines import majority
from polyseme.tasks.encoded import Encoded
from polyseme.tasks.examples import Example, Kind
from polyseme.tasks.metrics import PRIMARY, require, score
from polyseme.tasks.predict import Extra, measure, predictions
from polyseme.tasks.spans import SpanSpec, best_threshold, decided
from polyseme.tasks.squad import trainable, wrong_offsets
from polyseme.tasks.task import HEADS, Prediction, Task
from polyseme.train.cost import num_parameters
from polyseme.train.loop import CHECKED, Report, Training, choose_device, train
from polyseme.train.optim import OptimSpec
from polyseme.train.schedule import ScheduleSpec
from polyseme.weights.folder import ModelFolder, load_model, read_spec, save_model


@dataclass(frozen=True)
class FinetuneSpec(Spec):
    """One fine-tuning run. The defaults are those of BERT (§A.3), which has 5e-5, 16 and 3 among its best.

    `steps` overrides `epochs`; with `patience` the dev examples are measured after every epoch, a run ends when that
    many in a row were no better than the best before, and the best is what is kept. `max_len` 0 is the model's;
    `freeze` parameter groups, counted from the input (the embeddings are the first), stay as they are. A step is read
    in micro-batches of at most `bin_tokens`.

    `auxiliary` is the weight of the language model's own loss on the same texts, and `both_orders` reads a pair twice,
    as GPT does (Radford et al. 2018, §3.2 and 3.3; its settings: auxiliary 0.5, rate 6.25e-5, batches of 32).
    """

    epochs: float = 3.0
    steps: int = 0
    batch_size: int = 16
    max_len: int = 0
    truncate: bool = False
    freeze: int = 0
    optim: OptimSpec = field(default_factory=lambda: OptimSpec(rate=5e-5))
    schedule: ScheduleSpec = field(default_factory=ScheduleSpec)
    precision: Literal["auto", "float32", "bf16"] = "auto"
    bin_tokens: int = 16384
    auxiliary: float = 0.0
    both_orders: bool = False
    span: SpanSpec = field(default_factory=SpanSpec)
    patience: int = 0

    def check(self) -> FinetuneSpec:
        for name in ("batch_size", "bin_tokens"):
            if getattr(self, name) < 1:
                raise UserError(f"{name} is {getattr(self, name)}, which is less than 1")
        if self.steps < 0 or (not self.steps and self.epochs <= 0):
            raise UserError(f"there is nothing to do in {self.steps} steps or {self.epochs:g} epochs")
        if min(self.freeze, self.max_len, self.auxiliary, self.patience) < 0:
            raise UserError("freeze, max_len, auxiliary and patience cannot be negative")
        return self

    def total(self, num_examples: int) -> int:
        return self.steps or max(math.ceil(self.epochs * math.ceil(num_examples / self.batch_size)), 1)


def finetune(
    model_folder: Path,
    kind: Kind,
    train_examples: Sequence[Example],
    dev_examples: Sequence[Example],
    out: Path | None,
    settings: FinetuneSpec | None = None,
    *,
    seeds: int = 1,
    first_seed: int = 0,
    scratch: bool = False,
    primary: str = "",
    data_set: str = "",
    extra: Extra | None = None,
    others: Mapping[str, Sequence[Example]] | None = None,
) -> dict[str, Any]:
    """Fine-tune once for each seed, measure on the dev examples; report all seeds, mean and deviation.

    `primary` is the metric that counts, if it is not the one the kind has; it stands first. `data_set` is the name
    that is noted, `extra` its own metrics; `others` are more examples to measure every seed on. A seed has failed if it
    is no better than a blind guess (as runs on small sets may be; Mosbach et al. 2021, §3).

    The seed draws the new head, the order of the examples and the dropout. `out` gets `results.json`,
    `log.jsonl`, `predictions.json` and the model of the seed that did best on the dev examples (that choice flatters
    its own number, but not the mean). With `scratch` the same model starts from fresh weights: the row that says what
    pre-training was worth.
    """
    settings = (settings or FinetuneSpec()).check()
    if seeds < 1:
        raise UserError(f"{seeds} seeds is no run: at least 1 is needed")
    if out is not None:
        _check_empty(out)
    require(kind)
    primary = primary or PRIMARY[kind]
    task = Task.of(kind, train_examples, settings.both_orders, settings.span)
    wrong = {"train": wrong_offsets(train_examples), "dev": wrong_offsets(dev_examples)}
    train_examples = trainable(train_examples)
    loaded = _open(Path(model_folder), task, settings, first_seed, scratch)
    data, dev = (_encode(task, examples, loaded, settings) for examples in (train_examples, dev_examples))
    gold = [e.answer for e in dev_examples]
    right: Sequence[Any] = [answer[0] if answer else "" for answer in gold] if kind == "span" else gold
    known = score(kind, gold, right, task.labels) | (extra(dev_examples, right) if extra else {})
    blind = majority(train_examples, dev_examples, kind).get(primary, -math.inf)
    if primary not in known:
        raise UserError(f"there is no metric {primary!r} here; {nearest(primary, known)}")

    rows: list[dict[str, Any]] = []
    runs: list[dict[str, Any]] = []
    best: tuple[float, int, Model, Task] | None = None
    spent = {"tokens": 0, "flops": 0, "seconds": 0.0}
    kept: dict[int, list[Any]] = {}
    more = {name: (examples, _encode(task, examples, loaded, settings)) for name, examples in (others or {}).items()}
    besides: dict[str, list[float]] = {name: [] for name in more}
    for seed in range(first_seed, first_seed + seeds):
        folder = loaded if seed == first_seed else _open(Path(model_folder), task, settings, seed, scratch)
        run = _training(folder.model, settings, len(data), seed)
        began = time.perf_counter()
        best_epoch = Best(settings.patience)
        epoch = math.ceil(len(data) / settings.batch_size)

        def answers(model: Model = run.model) -> tuple[Task, list[Prediction], dict[str, float]]:
            fitted, said = fit_threshold(task, settings, dev_examples, predictions(model, task, dev_examples, dev))
            return fitted, said, measure(task, dev_examples, said, extra)

        with progress(f"finetune, seed {seed}", run.total, "steps") as bar:
            done: list[Report] = []
            for report in train(run, steps(task, data, settings, seed, run)):
                shown = run.device.type == "cpu" or report.step % CHECKED == 0  # when the loop has asked the GPU
                bar.advance(1, f"loss {report.loss[task.head_name]:.3f}" if shown else "")
                done.append(report)
                if settings.patience and report.step % epoch == 0:
                    best_epoch.note(report.step, answers()[2][primary], run.model)
                    if best_epoch.over:
                        break
            best_epoch.restore(run.model)
            rows += _rows(seed, done)
        spent["tokens"] += sum(report.tokens for report in done)
        spent["flops"] += sum(report.flops for report in done)
        spent["seconds"] += time.perf_counter() - began
        fitted, said, found = answers()
        kept[seed] = [p.answer for p in said]
        for name, (examples, encoded) in more.items():
            seen = measure(fitted, examples, predictions(run.model, fitted, examples, encoded), extra)
            besides[name].append(seen[primary])
        runs.append({"seed": seed, primary: found[primary], **found})
        if best is None or runs[-1][primary] > best[0]:
            best = (runs[-1][primary], seed, run.model, fitted)
    assert best is not None
    results = {
        "task": kind,
        **({"data": data_set} if data_set else {}),
        "model": str(model_folder),
        "from_scratch": scratch,
        "primary": primary,
        **_summary(runs),
        **({"others": besides} if besides else {}),
        "best_seed": best[1],
        "blind": blind if math.isfinite(blind) else None,
        "failed": [run["seed"] for run in runs if run[primary] <= blind],
        "steps": settings.total(len(data)),
        "train_examples": len(train_examples),
        "dev_examples": len(dev_examples),
        "cut": {"train": sum(e.cut for e in data), "dev": sum(e.cut for e in dev)},
        **({"wrong_offsets": wrong} if kind == "span" else {}),
        "parameters": num_parameters(best[2]),
        **spent,
    }
    if out is not None:
        notes = {
            "task": kind,
            "data": data_set,
            "labels": list(task.labels),
            "settings": settings.replace(span=best[3].span).to_json(),
            "results": results,
            "chosen": f"seed {best[1]}: the best {primary} on the dev examples of {seeds} seed(s)",
        }
        if loaded.notes.get("task"):
            notes["chain"] = [*loaded.notes.get("chain", []), loaded.notes.get("data") or loaded.notes["task"]]
        write_text(out / "log.jsonl", "".join(json.dumps(row) + "\n" for row in rows))
        save_model(out / "model", best[2], loaded.tokenizer, notes)
        write_json(out / "predictions.json", {"gold": gold, "said": kept, "labels": task.labels})
        write_json(out / "results.json", results)
        write_report(out)
    return results


def _encode(task: Task, examples: Sequence[Example], folder: ModelFolder, settings: FinetuneSpec) -> list[Encoded]:
    """Labelled examples as the model reads them."""
    folder.tokenizer.check()
    limit = folder.model.spec.trunk.embeddings.max_len
    if settings.max_len > limit:
        raise UserError(f"max_len {settings.max_len} is longer than the model reads ({limit})")
    found = task.encode(examples, folder.tokenizer, settings.max_len or limit, settings.truncate)
    for example in examples:
        if example.answer is None:
            raise UserError(f"{example.where}: there is no label")
    return found


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
    return replace(task, span=task.span.replace(threshold=threshold)), chosen


def steps(
    task: Task, data: Sequence[Encoded], settings: FinetuneSpec, seed: int, run: Training | None = None
) -> Iterator[tuple[list[Batch], tuple[int, int]]]:
    """Micro-batches of each step, without end: every epoch is a permutation drawn from (seed, epoch).

    Those of a `run` that records its kernels are filled up to few shapes.
    """
    size = settings.batch_size
    epoch = 0
    while True:
        order = np.random.default_rng((seed, epoch)).permutation(len(data))
        for start in range(0, len(order), size):
            chosen = [data[i] for i in order[start : start + size]]
            parts = bins([len(e.ids) for e in chosen], settings.bin_tokens)
            batches = [task.batch([chosen[i] for i in part])[0] for part in parts]
            if settings.auxiliary:
                batches = [_with_next(batch, settings.auxiliary) for batch in batches]
            if run is not None and run.record:
                batches = [rounded(batch, run.model.spec.trunk.embeddings.max_len) for batch in batches]
            yield batches, (epoch, start + size)
        epoch += 1


def _with_next(batch: Batch, weight: float) -> Batch:
    """The batch with one more term: each token but a sequence's first, from those before it."""
    rows = torch.ones(batch.layout.total, dtype=torch.bool).index_fill(0, batch.layout.last, False).nonzero()[:, 0]
    targets = Targets(rows, batch.tokens.index_select(0, rows + 1), len(rows), weight)
    return dataclasses.replace(batch, targets={**batch.targets, "next": targets})


def _open(path: Path, task: Task, settings: FinetuneSpec, seed: int, scratch: bool) -> ModelFolder:
    """The folder with the task's head in place of its own, on pre-trained or on fresh weights.

    The heads are those of the published class that has the task's, so that other tools can open what is saved. Marks
    that the family puts around texts get ids behind the vocabulary.
    """
    if not path.is_dir():
        raise UserError(f"there is no model folder at {path}")
    spec = read_spec(path)[0]
    family, name = FAMILIES[spec.family], HEADS[task.kind]
    known = family.heads(spec.trunk)
    names = next((heads for heads in family.architectures.values() if name in heads), (name,))
    if settings.auxiliary and "next" not in known:
        raise UserError(f"auxiliary is the loss of a causal language model, which {family.name} is not")
    heads = {n: known[n] if n in known else family.label_head(n, task.labels, spec.trunk) for n in names}
    if settings.auxiliary:
        heads |= {"next": known["next"]}
    folder = load_model(path, heads=heads, seed=seed)
    if family.frame and not folder.tokenizer.num_added():
        tokenizer = folder.tokenizer.framed(*family.frame)
        model = folder.model.grown(max(tokenizer.vocab_size, spec.trunk.embeddings.vocab_size), seed)
        folder = dataclasses.replace(folder, tokenizer=tokenizer, model=model)
    return dataclasses.replace(folder, model=folder.model.spec.build(seed)) if scratch else folder


def _training(model: Model, settings: FinetuneSpec, num_examples: int, seed: int) -> Training:
    device = choose_device()
    model = model.to(device)
    groups = model.trunk.groups()
    if settings.freeze > len(groups):
        raise UserError(f"cannot freeze {settings.freeze} groups: the model has {len(groups)}")
    for group in groups[: settings.freeze]:
        for parameter in group:
            parameter.requires_grad_(False)
    precision = settings.precision
    if precision == "auto":
        precision = "bf16" if device.type == "cuda" else "float32"
    return Training(
        model,
        settings.optim.build(model, groups),
        settings.optim,
        settings.schedule,
        settings.total(num_examples),
        device,
        precision,
        seed,
        record=device.type == "cuda" and precision == "bf16" and not model.spec.trunk.by_lengths,
    )


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


def _check_empty(out: Path) -> None:
    if out.exists() and not out.is_dir():
        raise UserError(f"{out} is a file: give a folder for the run")
    if out.is_dir() and (found := sorted(p.name for p in out.iterdir())):
        raise UserError(f"{out} already holds {found[0]}: give another folder for the run")

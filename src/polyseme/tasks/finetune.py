"""Fine-tuning: a pre-trained folder and labelled examples to a measured task model."""

from __future__ import annotations

import dataclasses
import json
import math
import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor

from polyseme.errors import UserError, nearest
from polyseme.families import FAMILIES
from polyseme.files import write_json, write_text
from polyseme.objectives.batch import Batch, Targets
from polyseme.objectives.packing import rounded
from polyseme.parts.crf import CrfSpec
from polyseme.parts.encoder_decoder import EncoderDecoder
from polyseme.parts.heads import LabelHeadSpec
from polyseme.parts.layout import bins
from polyseme.parts.model import Model
from polyseme.parts.spec import Spec
from polyseme.parts.tags import broken
from polyseme.progress import progress
from polyseme.report import write_report
from polyseme.tasks.examples import Example, Kind
from polyseme.tasks.features import NetworkSpec
from polyseme.tasks.metrics import PRIMARY, require, score
from polyseme.tasks.predict import measure, predictions
from polyseme.tasks.task import HEADS, Encoded, Prediction, Task
from polyseme.train.cost import num_parameters
from polyseme.train.loop import CHECKED, Report, Training, choose_device, train
from polyseme.train.optim import OptimSpec
from polyseme.train.schedule import ScheduleSpec
from polyseme.weights.folder import ModelFolder, load_model, read_spec, save_model


@dataclass(frozen=True)
class FinetuneSpec(Spec):
    """One fine-tuning run. The defaults are those of BERT (§A.3), which has 5e-5, 16 and 3 among its best.

    `steps` overrides `epochs`; `max_len` 0 is the model's; `freeze` parameter groups, counted from the input
    (the embeddings are the first), stay as they are. A step is read in micro-batches of at most `bin_tokens`.

    With `unfreeze` the new head is trained alone at first, and after every so many epochs the next group below joins;
    the schedule begins anew each time, and the last phase has what is left of `epochs` (Howard and Ruder 2018, §3.3,
    and their code). With `chunk` long texts are read so many tokens at a time with memory, the gradient reaching into
    the last `learnt` tokens alone (0 is all): their BPT3C.

    `auxiliary` is the weight of the language model's own loss on the same texts, and `both_orders` reads a pair twice,
    as GPT does (Radford et al. 2018, §3.2 and 3.3; its settings: auxiliary 0.5, rate 6.25e-5, batches of 32).

    With the `decoder` "crf" the tags of a sentence are chosen together (Lample et al. 2016, §2.2). A `network` is laid
    over frozen features (`tasks/over.py`).
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
    unfreeze: float = 0.0
    chunk: int = 0
    learnt: int = 0
    decoder: Literal["softmax", "crf"] = "softmax"
    network: NetworkSpec | None = None

    def check(self) -> FinetuneSpec:
        for name in ("batch_size", "bin_tokens"):
            if getattr(self, name) < 1:
                raise UserError(f"{name} is {getattr(self, name)}, which is less than 1")
        if self.steps < 0 or (not self.steps and self.epochs <= 0):
            raise UserError(f"there is nothing to do in {self.steps} steps or {self.epochs:g} epochs")
        for name in ("freeze", "max_len", "auxiliary", "unfreeze", "chunk", "learnt"):
            if getattr(self, name) < 0:
                raise UserError(f"{name} is {getattr(self, name)}, which is negative")
        if self.optim.method == "nt_asgd":
            raise UserError("nt_asgd waits for measures on held-out text, which fine-tuning has not: adamw or muon")
        return self

    def total(self, num_examples: int) -> int:
        return self.steps or max(math.ceil(self.epochs * math.ceil(num_examples / self.batch_size)), 1)

    def phases(self, num_examples: int, num_groups: int) -> list[tuple[int, int, int]]:
        """Runs of steps and how many groups are frozen in each: (first step, behind the last, frozen)."""
        total, each = self.total(num_examples), self.unfreeze * math.ceil(num_examples / self.batch_size)
        if not self.unfreeze:
            return [(0, total, self.freeze)]
        borders = [round(i * each) for i in range(num_groups - self.freeze + 1)]
        if borders[-1] >= total:
            raise UserError(
                f"{total} steps end before all {num_groups} groups are unfrozen, at step {borders[-1]}: "
                "more epochs, a smaller unfreeze, or freeze some for good"
            )
        return [(a, b, num_groups - i) for i, (a, b) in enumerate(pairwise([*borders, total])) if a < b]


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
    tell: Callable[[int, list[Prediction]], None] | None = None,
) -> dict[str, Any]:
    """Fine-tune once for each seed, measure on the dev examples; report all seeds, mean and deviation.

    `primary` is the metric that counts, if it is not the one the kind has; it stands first. `data_set` is the name
    that is noted. `tell` hears of each seed what it predicts for the dev examples.

    The seed draws the new head, the order of the examples and the dropout. `out` gets `results.json`,
    `log.jsonl` and the model of the seed that did best on the dev examples (that choice flatters its own
    number, but not the mean). With `scratch` the same model starts from fresh weights: the row that says what
    pre-training was worth.
    """
    settings = (settings or FinetuneSpec()).check()
    check_run(kind, out, settings, seeds)
    task = Task.of(kind, train_examples, settings.both_orders)
    crf = crf_of(settings, train_examples)
    loaded = _open(Path(model_folder), task, settings, first_seed, scratch, crf)
    data, dev = (_encode(task, examples, loaded, settings) for examples in (train_examples, dev_examples))

    def build(seed: int) -> Model:
        fresh = seed != first_seed
        return (_open(Path(model_folder), task, settings, seed, scratch, crf) if fresh else loaded).model

    def save(path: Path, model: Model, notes: dict[str, Any]) -> None:
        save_model(path, model, loaded.tokenizer, notes)

    about: dict[str, Any] = {"data": data_set} if data_set else {}
    about |= {"model": str(model_folder), "from_scratch": scratch}
    chosen = range(first_seed, first_seed + seeds)
    return run_seeds(task, data, dev, dev_examples, build, save, out, settings, chosen, primary, about, tell=tell)


def crf_of(settings: FinetuneSpec, examples: Sequence[Example]) -> CrfSpec | None:
    """The CRF of a run, if it has one; where the tags of its examples break the rules, nothing is barred."""
    return CrfSpec(all(broken(e.tags or ()) is None for e in examples)) if settings.decoder == "crf" else None


def check_run(kind: Kind, out: Path | None, settings: FinetuneSpec, seeds: int) -> None:
    """What can be wrong before anything is opened."""
    if seeds < 1:
        raise UserError(f"{seeds} seeds is no run: at least 1 is needed")
    if out is not None:
        _check_empty(out)
    require(kind)
    if settings.decoder == "crf" and kind != "tagging":
        raise UserError(f"the decoder crf is for tagging, not for {kind}")


def run_seeds(
    task: Task,
    data: Sequence[Encoded],
    dev: Sequence[Encoded],
    dev_examples: Sequence[Example],
    build: Callable[[int], Model],
    save: Callable[[Path, Model, dict[str, Any]], None],
    out: Path | None,
    settings: FinetuneSpec,
    seeds: Sequence[int],
    primary: str,
    about: dict[str, Any],
    terms: Callable[[Model, Batch], dict[str, Tensor]] | None = None,
    further: dict[str, Targets] | None = None,
    tell: Callable[[int, list[Prediction]], object] | None = None,
) -> dict[str, Any]:
    """Train once for each seed the model that `build` makes for it, measure, and write the run folder.

    `terms` are the losses, if not the usual ones, and `further` what else they have targets of.
    """
    kind, gold = task.kind, [e.answer for e in dev_examples]
    primary, known = primary or PRIMARY[kind], score(kind, gold, gold, task.labels)
    if primary not in known:
        raise UserError(f"there is no metric {primary!r} here; {nearest(primary, known)}")
    rows: list[dict[str, Any]] = []
    runs: list[dict[str, Any]] = []
    best: tuple[float, int, Model] | None = None
    spent = {"tokens": 0, "flops": 0, "seconds": 0.0}
    for seed in seeds:
        run = _training(build(seed), settings, len(data), seed)
        run.terms = terms or run.terms
        began = time.perf_counter()
        with progress(f"finetune, seed {seed}", run.total, "steps") as bar:
            done: list[Report] = []
            for report in _phased(run, task, data, settings, seed, further):
                shown = run.device.type == "cpu" or report.step % CHECKED == 0  # when the loop has asked the GPU
                bar.advance(1, f"loss {report.loss[task.head_name]:.3f}" if shown else "")
                done.append(report)
            rows += _rows(seed, done)
        spent["tokens"] += sum(report.tokens for report in done)
        spent["flops"] += sum(report.flops for report in done)
        spent["seconds"] += time.perf_counter() - began
        said = predictions(run.model, task, dev_examples, dev)
        if tell is not None:
            tell(seed, said)
        found = measure(task, dev_examples, said)
        runs.append({"seed": seed, primary: found[primary], **found})
        if best is None or runs[-1][primary] > best[0]:
            best = (runs[-1][primary], seed, run.model)
    assert best is not None
    results = {
        "task": kind,
        **about,
        "primary": primary,
        **_summary(runs),
        "best_seed": best[1],
        "steps": settings.total(len(data)),
        "train_examples": len(data),
        "dev_examples": len(dev),
        "parameters": num_parameters(best[2]),
        **spent,
    }
    if out is not None:
        notes = {
            "task": kind,
            "labels": list(task.labels),
            "settings": settings.to_json(),
            "results": results,
            "chosen": f"seed {best[1]}: the best {primary} on the dev examples of {len(seeds)} seed(s)",
        }
        write_text(out / "log.jsonl", "".join(json.dumps(row) + "\n" for row in rows))
        save(out / "model", best[2], notes)
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
    for example, encoded in zip(examples, found):
        if encoded.target is None:
            raise UserError(f"{example.where}: there is no label")
    return found


def _phased(
    run: Training,
    task: Task,
    data: Sequence[Encoded],
    settings: FinetuneSpec,
    seed: int,
    further: dict[str, Targets] | None = None,
) -> Iterator[Report]:
    """The one loop, once for each phase of unfreezing."""
    groups = _groups(run.model)
    for first, end, frozen in settings.phases(len(data), len(groups)):
        for number, group in enumerate(groups):
            for parameter in group:
                parameter.requires_grad_(number >= frozen)
        part = dataclasses.replace(run, start=first, origin=first, total=end)
        yield from train(part, steps(task, data, settings, seed, run, first, further))


def steps(
    task: Task,
    data: Sequence[Encoded],
    settings: FinetuneSpec,
    seed: int,
    run: Training | None = None,
    done: int = 0,
    further: dict[str, Targets] | None = None,
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


def _open(
    path: Path, task: Task, settings: FinetuneSpec, seed: int, scratch: bool, crf: CrfSpec | None = None
) -> ModelFolder:
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
    heads = {n: h.replace(crf=crf) if isinstance(h, LabelHeadSpec) and n == name else h for n, h in heads.items()}
    if settings.auxiliary:
        heads |= {"next": known["next"]}
    folder = load_model(path, heads=heads, seed=seed)
    if family.frame and not folder.tokenizer.num_added():
        tokenizer = folder.tokenizer.framed(*family.frame)
        model = folder.model.grown(max(tokenizer.vocab_size, spec.trunk.embeddings.vocab_size), seed)
        folder = dataclasses.replace(folder, tokenizer=tokenizer, model=model)
    return dataclasses.replace(folder, model=_fresh(folder.model, seed)) if scratch else folder


def _fresh(model: Model, seed: int) -> Model:
    """The same model before it has learnt anything; what is not learnt stays."""
    found = model.spec.build(seed)
    for name, buffer in model.named_buffers():
        found.get_buffer(name).copy_(buffer)
    return found


def _training(model: Model, settings: FinetuneSpec, num_examples: int, seed: int) -> Training:
    device = choose_device()
    model = model.to(device)
    groups = _groups(model)
    if settings.freeze > len(groups):
        raise UserError(f"cannot freeze {settings.freeze} groups: the model has {len(groups)}")
    for group in groups[: settings.freeze]:
        for parameter in group:
            parameter.requires_grad_(False)
    if settings.chunk and not (model.spec.trunk.causal or model.spec.trunk.remembers):
        raise UserError(f"chunk is {settings.chunk}, but {model.spec.family} has no memory to read on with")
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
        record=device.type == "cuda"
        and precision == "bf16"
        and not model.spec.trunk.by_lengths
        and not any(head.crf for head in model.heads.values()),
    )


def _groups(model: Model) -> list[list[torch.nn.Parameter]]:
    """Parameters from input to output; of two stacks those of the encoder, since tasks have no target to decode."""
    trunk = model.trunk
    return trunk.encoder.groups() if isinstance(trunk, EncoderDecoder) else trunk.groups()


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

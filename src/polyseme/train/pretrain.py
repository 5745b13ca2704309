"""Pre-training: a recipe and a corpus to a run folder with a model in it."""

from __future__ import annotations

import dataclasses
import math
import platform
import signal
import statistics
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from polyseme.corpus.sampling import WINDOW, Bin, Cursor, Lanes, Order
from polyseme.corpus.store import Corpus, verify
from polyseme.errors import Stopped, UserError
from polyseme.families import FAMILIES
from polyseme.io.files import read_json, taken, write_json
from polyseme.nn.compile import step_out
from polyseme.nn.memory import Memory
from polyseme.nn.model import Model, ModelSpec
from polyseme.objectives.batch import Batch, Carry
from polyseme.objectives.distillation import Distilled
from polyseme.objectives.losses import losses, scores
from polyseme.objectives.packing import Bound, Shape, Streamed, Vocabulary
from polyseme.objectives.permutation_lm import PermutationLM
from polyseme.objectives.streaming_lm import SegmentLM
from polyseme.progress import progress
from polyseme.report.html import write_report
from polyseme.text.tokenizer import Tokenizer
from polyseme.train import distributed
from polyseme.train.asgd import TriggeredASGD, averaged
from polyseme.train.budget import Cost, Deadline, settle
from polyseme.train.char_vocabulary import learn_spellings
from polyseme.train.checkpoint import Checkpoint, load_checkpoint, mean_weights, save_checkpoint
from polyseme.train.flops import num_parameters, training_flops
from polyseme.train.loop import Report, Training, choose_device, train
from polyseme.train.optimizer import load_optimiser_state, optimiser_state
from polyseme.train.recipe import Recipe
from polyseme.train.run_logger import Log
from polyseme.weights.folder import check_fit, save_model


@dataclass
class Data:
    """A corpus read by an objective in the order of a recipe, for one rank.

    Where batches go on from step to step, `carries` holds what the model remembers, one for each bin of a step.
    """

    bound: Bound
    order: Order | Lanes
    shape: Shape | None
    rank: int = 0
    world: int = 1
    carries: dict[int, Carry] = field(default_factory=dict)

    def steps(self, cursor: Cursor, done: int = 0) -> Iterator[tuple[list[Batch], Cursor]]:
        for bins, after in self.order.steps(cursor, self.rank, self.world, done):
            yield [self._batch(number, found) for number, found in enumerate(bins)], after

    def _batch(self, number: int, found: Bin) -> Batch:
        if not isinstance(self.bound, Streamed):
            return self.bound.batch(found.ids, found.epoch, self.shape)
        carry = self.carries.setdefault(self.rank + number * self.world, Carry())
        batch = self.bound.stretch(found.ids, found.length)
        return dataclasses.replace(batch, carry=carry, opens=found.opens)

    def remembered(self) -> dict[str, Tensor]:
        """What is carried from step to step, on every rank: every rank has to ask."""
        carried = {number: carry.memory for number, carry in self.carries.items() if carry.memory is not None}
        tensors = {f"{n}/{name}": t.cpu() for n, memory in carried.items() for name, t in memory.tensors().items()}
        return distributed.collect(tensors) if isinstance(self.bound, Streamed) else {}

    def recall(self, tensors: dict[str, Tensor], device: torch.device) -> None:
        """The inverse of `remembered`."""
        for number in {int(name.partition("/")[0]) for name in tensors}:
            own = {name.partition("/")[2]: t for name, t in tensors.items() if name.startswith(f"{number}/")}
            self.carries.setdefault(number, Carry()).memory = Memory.of(own, device)


@dataclass(frozen=True)
class Lesson:
    """What a run does not begin from nothing with: the model as it starts, of distillation the teacher, and what
    `recipe.json` says of them."""

    student: Model
    teacher: Model | None
    about: dict[str, str]  # the path and the hash of a folder


def pretrain(
    recipe: Recipe,
    corpus_path: Path,
    out: Path,
    resume: bool = False,
    lesson: Lesson | None = None,
    began: float | None = None,
) -> dict[str, Any]:
    """Run the recipe and return its results: losses, perplexity, cost. A budget in minutes counts since it `began`.

    The run folder holds the recipe, the log, checkpoints, the model and a report. Under `torchrun` every rank calls
    this; only the first writes.
    """
    if isinstance(recipe.objective, Distilled) and (lesson is None or lesson.teacher is None):
        raise UserError(f"the objective of {recipe.name} has a teacher: name it with `polyseme distil TEACHER`")
    began = time.perf_counter() if began is None else began
    rank, world = distributed.start()
    device = choose_device()
    recipe = recipe.check()
    distributed.on_first(lambda: verify(corpus_path))
    corpus, tokenizer = Corpus.open(corpus_path), Tokenizer.load(corpus_path / "tokenizer")
    separate = corpus.manifest.get("pairs", {}).get("separate")
    target = Tokenizer.load(corpus_path / "target") if separate else None
    sizes = tokenizer.vocab_size, target.vocab_size if target else 0
    spec = recipe.model_spec(*sizes) if lesson is None else lesson.student.spec
    tokenizer = tokenizer.marked(FAMILIES[spec.family].marks)
    check_fit(spec, tokenizer)
    about = {} if lesson is None else lesson.about
    begun = distributed.on_first(lambda: _open_run(out, recipe, corpus, resume, about))
    data, valid = open_data(recipe, corpus, tokenizer, rank, world, target)
    run = training(recipe, spec, device, rank, lesson)
    run.model.know(tokenizer.vocabulary, tokenizer.special_ids, data.bound.counts)
    learn_spellings(run.model, tokenizer)
    environment = _environment(run, world)
    if "total" not in begun:
        settled = settle(recipe, run, data, lambda trial: valid and evaluate(trial, valid, recipe), began)
        begun = distributed.on_first(partial(_store_total, out, begun, *settled))
    run.total = begun["total"]
    checkpoint = load_checkpoint(out / "checkpoints")
    cursor, spent = Cursor(), {"tokens": 0, "flops": 0, "seconds": 0.0}
    if checkpoint is not None:
        cursor, spent = _restore(run, checkpoint, environment)
        data.recall(checkpoint.tensors.get("memory", {}), device)
    end = began + recipe.budget.minutes * 60 - spent["seconds"] if recipe.budget.timed else math.inf
    deadline = Deadline(end, max(run.start, recipe.ramp), run.total, begun.get("others", ()))
    found = _steps(recipe, out, run, data, valid, cursor, spent, environment, deadline)
    joined = distributed.on_first(lambda: mean_weights(run.model, out / "checkpoints", recipe.average))
    if joined:
        distributed.send_weights(run.model)
    if valid is not None and (joined or not found):  # or every step was done before this call
        found = evaluate(run, valid, recipe)
    results = {
        "valid": found,
        "steps": run.total,
        "parameters": num_parameters(run.model),
        "tokens": spent["tokens"],
        "flops": spent["flops"],
        "device_hours": spent["seconds"] * world / 3600,
        **({"averaged": joined} if joined else {}),
        "environment": environment,
    }
    if rank == 0:
        notes = {"recipe": recipe.to_json(), "results": results, "corpus": corpus.manifest_hash, **about}
        with averaged(run.optimiser):
            save_model(out / "model", run.model.settled(), tokenizer, notes, target)
        write_json(out / "results.json", results)
        write_report(out)
    return results


def _steps(
    recipe: Recipe,
    out: Path,
    run: Training,
    data: Data,
    valid: Bound | None,
    cursor: Cursor,
    spent: dict[str, Any],
    environment: dict[str, Any],
    deadline: Deadline,
) -> dict[str, float]:
    """Take the steps behind the cursor, with measuring, logging and saving; what they cost is added to `spent`.

    Returns what was measured last. A signal ends it with a checkpoint, and with `Stopped`.
    """
    log = Log(out, run.start) if run.rank == 0 else None
    found: dict[str, float] = {}
    clock = time.perf_counter()
    with (
        _signals() as caught,
        progress("pretrain", run.total * recipe.batch_tokens, "tokens", show=run.rank == 0) as bar,
    ):
        bar.skip(run.start * recipe.batch_tokens)
        for report in train(run, data.steps(cursor, run.start)):
            now = time.perf_counter()
            spent["tokens"] += report.tokens
            spent["flops"] += report.flops * data.world
            spent["seconds"] += now - clock  # with the measuring and saving after the step before
            clock = now
            if deadline.due(report.step) and report.step < run.total:
                _look(deadline, run, report, out)
                bar.expect(run.total * recipe.batch_tokens)
            done = report.step == run.total
            if log is not None:
                log.add(report, every=recipe.log_every, last=done)
            shown = run.device.type == "cpu" or report.step % recipe.log_every == 0  # on a GPU asking costs a wait
            bar.advance(recipe.batch_tokens, ", ".join(f"{n} {v:.3f}" for n, v in report.loss.items()) if shown else "")
            if valid is not None and (done or report.step % recipe.eval_every == 0) and report.numbers:
                with deadline.aside():
                    found = evaluate(run, valid, recipe)
                if isinstance(run.optimiser, TriggeredASGD):
                    run.optimiser.observe(found[recipe.objective.terms[0]])
                if log is not None:
                    log.write({"step": report.step, "valid": found})
            stop = distributed.agree(bool(caught), run.device)
            if done or stop or report.step % recipe.save_every == 0:
                memory = data.remembered()
                if run.rank == 0 and report.numbers:
                    keep = max(recipe.keep, recipe.average)
                    with deadline.aside():
                        _save(out, run, report, spent, environment, keep, memory)
            if stop and not done:
                raise Stopped(caught[0] if caught else signal.SIGTERM, report.step)
    return found


def training(
    recipe: Recipe, spec: ModelSpec, device: torch.device, rank: int = 0, lesson: Lesson | None = None
) -> Training:
    """The model at its start, and all that a step needs but the number of steps."""
    precision = ("bf16" if device.type == "cuda" else "float32") if recipe.precision == "auto" else recipe.precision
    model = (spec.build(recipe.seed) if lesson is None else lesson.student).to(device)
    model.trunk.recompute = recipe.recompute
    run = Training(
        model,
        recipe.optim.build(model, model.trunk.groups()),
        recipe.optim,
        recipe.schedule,
        total=0,
        device=device,
        precision=precision,
        seed=recipe.seed,
        rank=rank,
        terms=losses,
        record=_recordable(recipe, model),
    )
    if lesson is not None and lesson.teacher is not None and isinstance(recipe.objective, Distilled):
        half = precision == "bf16" and device.type == "cuda"  # as the loop has the student
        teacher = lesson.teacher.to(device, torch.bfloat16 if half else torch.float32)
        run.terms = recipe.objective.losses(teacher)
        run.flops = lambda model, batch: training_flops(model, batch) + training_flops(teacher, batch) // 3
    plain = run.terms
    if recipe.compile:
        run.terms = compiled(plain, device)
    run.compiled = run.terms is not plain
    return run


def _recordable(recipe: Recipe, model: Model) -> bool:
    """Whether a GPU can replay steps: of one shape, as compiled ones are, by rows, or over sequences of one length."""
    if recipe.optim.by_rows or isinstance(recipe.objective, SegmentLM | PermutationLM):
        return not any(getattr(part, "asks", False) for part in model.modules())
    return recipe.compile and not model.spec.trunk.by_lengths


def _environment(run: Training, world: int) -> dict[str, Any]:
    """What has to stay the same for a resumed run to give the same bits."""
    return {
        "torch": torch.__version__,
        "machine": platform.machine(),
        "device": torch.cuda.get_device_name() if run.device.type == "cuda" else "cpu",
        "threads": torch.get_num_threads(),
        "world": world,
        "compile": run.compiled,
        "precision": run.precision,
    }


def vocabulary_of(tokenizer: Tokenizer, target: Tokenizer | None = None) -> Vocabulary:
    ids = tokenizer.specials
    marks = ids.cls, ids.sep, ids.mask, ids.bos, ids.eos, ids.pad
    other = vocabulary_of(target) if target else None
    return Vocabulary(tokenizer.vocab_size, tokenizer.special_ids, *marks, tokenizer.sentinels, other)


def open_data(
    recipe: Recipe, corpus: Corpus, tokenizer: Tokenizer, rank: int, world: int, target: Tokenizer | None = None
) -> tuple[Data, Bound | None]:
    """What is trained on, in the recipe's order, and what is held out."""
    vocabulary = vocabulary_of(tokenizer, target)
    kept, held = corpus.split(recipe.holdout)
    kept = kept.weighted()  # after the split, so that what is read twice is never held out
    bound = recipe.objective.bind(kept, vocabulary, recipe.max_len, recipe.seed)
    shape = bound.shape(recipe.bin_tokens) if recipe.compile else None
    bins = recipe.batch_tokens // recipe.bin_tokens
    usual = recipe.bin_tokens / float(np.mean(bound.samples.lengths + bound.overhead))
    order: Order | Lanes = Order(
        bound,
        recipe.bin_tokens,
        bins,
        recipe.seed,
        window=max(WINDOW, 1 << int(32 * usual).bit_length()),  # the last bin of a window is half empty, as a rule
        bin_sequences=shape.samples if shape else 0,
        ramp=recipe.ramp,
    )
    if isinstance(bound, Streamed):
        order = Lanes(bound, recipe.bin_tokens, bins)
    valid = None
    if held is not None:
        try:
            valid = recipe.objective.bind(held, vocabulary, recipe.max_len, recipe.seed)
        except UserError as error:
            print(f"note: nothing is held out for validation: {error}", file=sys.stderr)
            return open_data(recipe.replace(holdout=0.0), corpus, tokenizer, rank, world, target)
    return Data(bound, order, shape, rank, world), valid


@torch.no_grad()
def evaluate(run: Training, bound: Bound, recipe: Recipe) -> dict[str, float]:
    """Mean loss and accuracy of each term on held-out text, always on the same damage; perplexity of the words."""
    order = Lanes(bound, recipe.bin_tokens) if isinstance(bound, Streamed) else Order(bound, recipe.bin_tokens)
    data = Data(bound, order, None)
    sums: dict[str, list[float]] = {}
    tokens = 0
    run.model.eval()
    with averaged(run.optimiser), nullcontext() if recipe.optim.by_rows else run.autocast():
        for (first,), after in data.steps(Cursor()):
            batch = first.to(run.device)
            for name, parts in scores(run.model, batch).items():
                sums[name] = [a + b for a, b in zip(sums.get(name, [0, 0, 0]), parts)]
            tokens += batch.num_tokens
            if tokens >= recipe.eval_tokens or after.epoch > 0:
                break
    run.model.train()
    found = {}
    for name, (loss, right, count) in sums.items():
        found[name] = loss / max(count, 1)
        if not recipe.optim.by_rows:
            found[f"{name}_accuracy"] = right / max(count, 1)
    words = [found[name] for name in ("masked", "next", "previous") if name in found]
    if words:
        found["perplexity"] = math.exp(min(statistics.fmean(words), 50.0))
    return found


Terms = Callable[[Model, Batch], dict[str, Tensor]]


def compiled(function: Terms, device: torch.device) -> Terms:
    """The function compiled, or, on a machine without a compiler, one line and the function itself."""
    step_out()
    try:
        torch.compile(lambda x: x * 2 + 1)(torch.ones(3, device=device))
    except Exception as error:
        reason = str(error).strip().split("\n")[0][:120]
        print(f"torch.compile does not work here ({reason}); going on without it", file=sys.stderr)
        return function
    return torch.compile(function)


def _open_run(out: Path, recipe: Recipe, corpus: Corpus, resume: bool, about: dict[str, str]) -> dict[str, Any]:
    """What `recipe.json` holds or will hold, once it is sure that a run may begin or go on in this folder."""
    saved = {"recipe": recipe.to_json(), "corpus": str(corpus.path), "corpus_hash": corpus.manifest_hash, **about}
    path = out / "recipe.json"
    if not path.exists():
        if taken(out):
            raise UserError(f"{out} is already there and holds no run: choose another --out")
        return saved
    if not resume:
        raise UserError(f"{out} already holds a run: give --resume to go on with it, or another --out")
    before = read_json(path)
    if not isinstance(before, dict) or not saved.keys() <= before.keys():
        raise UserError(f"{path} is not a run's recipe")
    if before["corpus_hash"] != saved["corpus_hash"]:
        raise UserError(f"{out} was begun on another corpus ({before['corpus']})")
    was = Recipe.from_json(before["recipe"]).to_json()  # with the fields that it did not have yet
    before = before | {"recipe": was}
    if was != saved["recipe"]:
        key = next(k for k in recipe.to_json() if before["recipe"].get(k) != recipe.to_json()[k])
        old, new = before["recipe"].get(key), recipe.to_json()[key]
        raise UserError(f"{out} was begun with another recipe: {key} was {old!r}, now {new!r}")
    for what, said in (("teacher", "with another teacher"), ("begun_from", "from another model")):
        if before.get(f"{what}_hash") != saved.get(f"{what}_hash"):
            raise UserError(f"{out} was begun {said} ({before.get(what)})")
    return dict(before)


def _store_total(out: Path, begun: dict[str, Any], total: int, others: list[Cost]) -> dict[str, Any]:
    """Begin the run folder with the length of the run, which a resumed one keeps, and what else takes its time."""
    begun = begun | {"total": total} | ({"others": others} if others else {})
    write_json(out / "recipe.json", begun)
    return begun


def _look(deadline: Deadline, run: Training, report: Report, out: Path) -> None:
    """At the clock: the run gets the number of steps that fit, by that of the first rank."""
    report.numbers  # noqa: B018  # on a GPU the clock says nothing before the step has ended
    total = deadline.total(report.step, run.total)
    total = distributed.on_first(lambda: total)
    if total != run.total and run.rank == 0:
        write_json(out / "recipe.json", read_json(out / "recipe.json") | {"total": total})
    run.total = total


def _save(
    out: Path,
    run: Training,
    report: Report,
    spent: dict[str, Any],
    environment: dict[str, Any],
    keep: int,
    memory: dict[str, Tensor],
) -> None:
    tensors = {"model": run.model.state_dict(), "optimiser": optimiser_state(run.optimiser, run.model)}
    tensors |= {"memory": memory} if memory else {}
    state = {"cursor": dataclasses.asdict(report.cursor), "spent": spent, "environment": environment}
    save_checkpoint(out / "checkpoints", Checkpoint(report.step, tensors, state), keep)


def _restore(run: Training, checkpoint: Checkpoint, environment: dict[str, Any]) -> tuple[Cursor, dict[str, Any]]:
    state = checkpoint.state
    for key, was in state["environment"].items():
        if environment.get(key) != was and run.rank == 0:
            print(f"note: {key} was {was}, now {environment.get(key)}: bits may differ", file=sys.stderr)
    run.model.load_state_dict(checkpoint.tensors["model"])
    load_optimiser_state(run.optimiser, run.model, checkpoint.tensors["optimiser"])
    run.start = checkpoint.step
    return Cursor(**state["cursor"]), state["spent"]


@contextmanager
def _signals() -> Iterator[list[int]]:
    """Collects SIGINT and SIGTERM instead of dying; a second Ctrl-C interrupts at once."""
    caught: list[int] = []

    def note(signum: int, frame: Any) -> None:
        if caught and signum == signal.SIGINT:
            raise KeyboardInterrupt
        caught.append(signum)

    try:
        before = {s: signal.signal(s, note) for s in (signal.SIGINT, signal.SIGTERM)}
    except ValueError:  # not the main thread: signals stay with whoever runs it
        yield caught
        return
    try:
        yield caught
    finally:
        for s, handler in before.items():
            signal.signal(s, handler)

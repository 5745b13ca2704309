"""Pre-training: a recipe and a corpus to a run folder with a model in it."""

from __future__ import annotations

import dataclasses
import math
import platform
import signal
import statistics
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from polyseme.corpus.sampling import WINDOW_SAMPLES, DataPosition, SampleBin, ShuffledSampler, StreamSampler
from polyseme.corpus.store import Corpus, verify_corpus
from polyseme.errors import ConfigError, DataError, Interrupted, PolysemeError
from polyseme.families import Family, get_family
from polyseme.io.atomic import is_occupied
from polyseme.io.json import read_json, write_json
from polyseme.nn.compile import exclude_from_compile
from polyseme.nn.memory import Memory
from polyseme.nn.model import Model, ModelConfig
from polyseme.objectives.batch import Batch, SegmentExtra, SegmentState, SparseUpdateBatch
from polyseme.objectives.packing import BatchBuilder, SpecialIds, StaticShape, StreamingBatchBuilder
from polyseme.progress import progress
from polyseme.report.run_page import write_report
from polyseme.text.tokenizer import Tokenizer
from polyseme.train import distributed
from polyseme.train.asgd import NTASGD, swap_averaged_weights
from polyseme.train.budget import Deadline, Overhead, plan_steps
from polyseme.train.char_vocabulary import set_char_vocabulary
from polyseme.train.checkpoint import Checkpoint, average_checkpoints, load_checkpoint, save_checkpoint
from polyseme.train.cuda_graph import can_capture
from polyseme.train.flops import count_parameters, count_training_flops
from polyseme.train.loop import StepReport, TrainState, setup_device, train
from polyseme.train.optimizer import load_optimizer_state_dict, optimizer_state_dict
from polyseme.train.recipe import Recipe
from polyseme.train.run_logger import RunLogger
from polyseme.weights.folder import check_tokenizer_compatible, save_model


@dataclass
class BatchStream:
    """A corpus read by an objective in the order of a recipe, for one rank.

    Where batches go on from step to step, `segment_states` holds what the model remembers, one for each bin of a step.
    """

    builder: BatchBuilder
    sampler: ShuffledSampler | StreamSampler
    shape: StaticShape | None
    rank: int = 0
    world_size: int = 1
    segment_states: dict[int, SegmentState] = field(default_factory=dict)

    def steps(self, position: DataPosition, start_step: int = 0) -> Iterator[tuple[list[Any], DataPosition]]:
        for sample_bins, next_position in self.sampler.steps(position, self.rank, self.world_size, start_step):
            yield [self._batch(index, sample_bin) for index, sample_bin in enumerate(sample_bins)], next_position

    def _batch(self, index: int, sample_bin: SampleBin) -> Batch | SparseUpdateBatch:
        if not isinstance(self.builder, StreamingBatchBuilder):
            return self.builder.batch(sample_bin.sample_ids, sample_bin.epoch, self.shape)
        segment_state = self.segment_states.setdefault(self.rank + index * self.world_size, SegmentState())
        batch = self.builder.segment_batch(sample_bin.sample_ids, sample_bin.segment_length)
        return dataclasses.replace(batch, extra=SegmentExtra(segment_state, sample_bin.starts_epoch))

    def state_dict(self) -> dict[str, Tensor]:
        """What is carried from step to step, on every rank: every rank has to ask."""
        memories = {
            number: segment_state.memory
            for number, segment_state in self.segment_states.items()
            if segment_state.memory is not None
        }
        tensors = {f"{n}/{name}": t.cpu() for n, memory in memories.items() for name, t in memory.to_tensors().items()}
        return distributed.all_gather_tensors(tensors) if isinstance(self.builder, StreamingBatchBuilder) else {}

    def load_state_dict(self, tensors: dict[str, Tensor], device: torch.device) -> None:
        """The inverse of `state_dict`."""
        for number in {int(name.partition("/")[0]) for name in tensors}:
            memory_tensors = {name.partition("/")[2]: t for name, t in tensors.items() if name.startswith(f"{number}/")}
            self.segment_states.setdefault(number, SegmentState()).memory = Memory.from_tensors(memory_tensors, device)


@dataclass(frozen=True)
class InitialModel:
    """The model that a run starts from, and what `recipe.json` says about it: path and hash of its folder."""

    model: Model
    provenance: dict[str, str]


def pretrain(
    recipe: Recipe,
    corpus_path: Path,
    out: Path,
    resume: bool = False,
    initial_model: InitialModel | None = None,
    start_time: float | None = None,
    families: Sequence[Family] = (),
) -> dict[str, Any]:
    """Run the recipe and return its results: losses, perplexity, cost. Minutes count from `start_time`.

    The run folder holds the recipe, the log, checkpoints, the model and a report. Under `torchrun` every rank calls
    this; only the first writes.
    """
    start_time = time.perf_counter() if start_time is None else start_time
    rank, world_size = distributed.init_process_group()
    device = setup_device()
    recipe = recipe.check()
    distributed.on_rank_zero(lambda: verify_corpus(corpus_path))
    corpus, tokenizer = Corpus.open(corpus_path), Tokenizer.load(corpus_path / "tokenizer")
    has_target_vocab = corpus.manifest.get("pairs", {}).get("has_target_tokenizer")
    target_tokenizer = Tokenizer.load(corpus_path / "target") if has_target_vocab else None
    vocab_sizes = tokenizer.vocab_size, target_tokenizer.vocab_size if target_tokenizer else 0
    config = recipe.model_config(*vocab_sizes, families) if initial_model is None else initial_model.model.config
    family = get_family(config.family, families)
    tokenizer = tokenizer.with_cls_position(family.cls_position)
    check_tokenizer_compatible(config, tokenizer, family)
    provenance = {} if initial_model is None else initial_model.provenance
    run_record = distributed.on_rank_zero(lambda: _open_run(out, recipe, corpus, resume, provenance))
    stream, valid = open_streams(recipe, corpus, tokenizer, rank, world_size, target_tokenizer)
    state = build_train_state(recipe, config, device, rank, initial_model)
    state.model.set_vocabulary(tokenizer.vocabulary, tokenizer.all_special_ids, stream.builder.token_counts)
    set_char_vocabulary(state.model, tokenizer)
    environment = _environment(state, world_size)
    if "total_steps" not in run_record:
        step_plan = plan_steps(
            recipe, state, stream, lambda trial: valid and evaluate(trial, valid, recipe), start_time
        )
        run_record = distributed.on_rank_zero(partial(_store_total_steps, out, run_record, *step_plan))
    state.total_steps = run_record["total_steps"]
    checkpoint = load_checkpoint(out / "checkpoints")
    position, spent = DataPosition(), {"tokens": 0, "flops": 0, "seconds": 0.0}
    if checkpoint is not None:
        position, spent = _restore(state, checkpoint, environment)
        stream.load_state_dict(checkpoint.tensors.get("memory", {}), device)
    end_time = start_time + recipe.budget.minutes * 60 - spent["seconds"] if recipe.budget.is_wall_clock else math.inf
    deadline = Deadline(
        end_time, max(state.start_step, recipe.batch_warmup_steps), state.total_steps, run_record.get("overheads", ())
    )
    valid_metrics = _run_steps(recipe, out, state, stream, valid, position, spent, environment, deadline)
    averaged_steps = distributed.on_rank_zero(
        lambda: average_checkpoints(state.model, out / "checkpoints", recipe.num_averaged)
    )
    if averaged_steps:
        distributed.broadcast_weights(state.model)
    if valid is not None and (averaged_steps or not valid_metrics):  # or every step was done before this call
        valid_metrics = evaluate(state, valid, recipe)
    results = {
        "valid": valid_metrics,
        "steps": state.total_steps,
        "parameters": count_parameters(state.model),
        "tokens": spent["tokens"],
        "flops": spent["flops"],
        "device_hours": spent["seconds"] * world_size / 3600,
        **({"averaged_steps": averaged_steps} if averaged_steps else {}),
        "environment": environment,
    }
    if rank == 0:
        metadata = {"recipe": recipe.to_json(), "results": results, "corpus": corpus.manifest_hash, **provenance}
        with swap_averaged_weights(state.optimizer):
            save_model(out / "model", state.model.finalize(), tokenizer, metadata, target_tokenizer, families)
        write_json(out / "results.json", results)
        write_report(out)
    return results


def _run_steps(
    recipe: Recipe,
    out: Path,
    state: TrainState,
    stream: BatchStream,
    valid: BatchBuilder | None,
    position: DataPosition,
    spent: dict[str, Any],
    environment: dict[str, Any],
    deadline: Deadline,
) -> dict[str, float]:
    """Take the steps behind the cursor, with measuring, logging and saving; what they cost is added to `spent`.

    Returns what was measured last. A signal ends it with a checkpoint, and with `Interrupted`.
    """
    log = RunLogger(out, state.start_step) if state.rank == 0 else None
    valid_metrics: dict[str, float] = {}
    last_time = time.perf_counter()
    with (
        _catch_signals() as caught,
        progress("pretrain", state.total_steps * recipe.batch_tokens, "tokens", show=state.rank == 0) as bar,
    ):
        bar.add_completed(state.start_step * recipe.batch_tokens)
        for report in train(state, stream.steps(position, state.start_step)):
            now = time.perf_counter()
            spent["tokens"] += report.tokens
            spent["flops"] += report.flops * stream.world_size
            spent["seconds"] += now - last_time  # with the measuring and saving after the step before
            last_time = now
            if deadline.should_check(report.step) and report.step < state.total_steps:
                _adjust_total_steps(deadline, state, report, out)
                bar.set_total(state.total_steps * recipe.batch_tokens)
            done = report.step == state.total_steps
            if log is not None:
                log.log_step(report, log_every=recipe.log_every, is_last=done)
            shows_loss = (
                state.device.type == "cpu" or report.step % recipe.log_every == 0
            )  # on a GPU asking costs a wait
            bar.advance(
                recipe.batch_tokens, ", ".join(f"{n} {v:.3f}" for n, v in report.loss.items()) if shows_loss else ""
            )
            if valid is not None and (done or report.step % recipe.eval_every == 0) and report.metrics:
                with deadline.pause():
                    valid_metrics = evaluate(state, valid, recipe)
                if isinstance(state.optimizer, NTASGD):
                    state.optimizer.report_validation_loss(valid_metrics[recipe.objective.terms[0]])
                if log is not None:
                    log.write_row({"step": report.step, "valid": valid_metrics})
            stop = distributed.any_rank(bool(caught), state.device)
            if done or stop or report.step % recipe.save_every == 0:
                memory = stream.state_dict()
                if state.rank == 0 and report.metrics:
                    keep_checkpoints = max(recipe.keep_checkpoints, recipe.num_averaged)
                    with deadline.pause():
                        _save(out, state, report, spent, environment, keep_checkpoints, memory)
            if stop and not done:
                raise Interrupted(caught[0] if caught else signal.SIGTERM, report.step)
    return valid_metrics


def build_train_state(
    recipe: Recipe, config: ModelConfig, device: torch.device, rank: int = 0, initial_model: InitialModel | None = None
) -> TrainState:
    """The model at its start, and all that a step needs but the number of steps."""
    precision = ("bf16" if device.type == "cuda" else "float32") if recipe.precision == "auto" else recipe.precision
    model = (config.build(recipe.seed) if initial_model is None else initial_model.model).to(device)
    model.trunk.gradient_checkpointing = recipe.gradient_checkpointing
    state = TrainState(
        model,
        recipe.optimizer.build(model, model.trunk.layer_groups()),
        recipe.optimizer,
        recipe.schedule,
        total_steps=0,
        device=device,
        precision=precision,
        seed=recipe.seed,
        rank=rank,
        use_cuda_graphs=can_capture(model, recipe.objective.has_static_shapes, recipe.compile),
    )
    dtype = torch.bfloat16 if precision == "bf16" and device.type == "cuda" else torch.float32  # of the working copy
    loss = recipe.objective.build_loss(device, dtype)
    state.loss_fn = loss.fn
    if loss.frozen_models:
        state.flops_fn = lambda model, batch: (
            count_training_flops(model, batch)
            + sum(count_training_flops(frozen, batch) // 3 for frozen in loss.frozen_models)
        )
    eager_loss_fn = state.loss_fn
    if recipe.compile:
        state.loss_fn = try_compile(eager_loss_fn, device)
    state.is_compiled = state.loss_fn is not eager_loss_fn
    return state


def _environment(state: TrainState, world_size: int) -> dict[str, Any]:
    """What has to stay the same for a resumed run to give the same bits."""
    return {
        "torch": torch.__version__,
        "machine": platform.machine(),
        "device": torch.cuda.get_device_name() if state.device.type == "cuda" else "cpu",
        "threads": torch.get_num_threads(),
        "world": world_size,
        "compile": state.is_compiled,
        "precision": state.precision,
    }


def get_special_ids(tokenizer: Tokenizer, target_tokenizer: Tokenizer | None = None) -> SpecialIds:
    ids = tokenizer.special_token_ids
    special_ids = ids.cls, ids.sep, ids.mask, ids.bos, ids.eos, ids.pad
    target_special_ids = get_special_ids(target_tokenizer) if target_tokenizer else None
    return SpecialIds(
        tokenizer.vocab_size, tokenizer.all_special_ids, *special_ids, tokenizer.sentinel_ids, target_special_ids
    )


def open_streams(
    recipe: Recipe,
    corpus: Corpus,
    tokenizer: Tokenizer,
    rank: int,
    world_size: int,
    target_tokenizer: Tokenizer | None = None,
) -> tuple[BatchStream, BatchBuilder | None]:
    """What is trained on, in the recipe's order, and what is held out."""
    special_ids = get_special_ids(tokenizer, target_tokenizer)
    train_corpus, valid_corpus = corpus.split(recipe.valid_fraction)
    train_corpus = train_corpus.resample_by_weight()  # after the split, so that what is read twice is never held out
    builder = recipe.objective.bind(train_corpus, special_ids, recipe.max_len, recipe.seed)
    shape = builder.static_shape(recipe.micro_batch_tokens) if recipe.compile else None
    micro_batches_per_step = recipe.batch_tokens // recipe.micro_batch_tokens
    samples_per_bin = recipe.micro_batch_tokens / float(np.mean(builder.samples.lengths + builder.num_special_tokens))
    sampler: ShuffledSampler | StreamSampler = ShuffledSampler(
        builder,
        recipe.micro_batch_tokens,
        micro_batches_per_step,
        recipe.seed,
        window_samples=max(
            WINDOW_SAMPLES, 1 << int(32 * samples_per_bin).bit_length()
        ),  # the last bin of a window is half empty, as a rule
        max_samples=shape.max_samples if shape else 0,
        batch_warmup_steps=recipe.batch_warmup_steps,
    )
    if isinstance(builder, StreamingBatchBuilder):
        sampler = StreamSampler(builder, recipe.micro_batch_tokens, micro_batches_per_step)
    valid = None
    if valid_corpus is not None:
        try:
            valid = recipe.objective.bind(valid_corpus, special_ids, recipe.max_len, recipe.seed)
        except PolysemeError as error:
            print(f"note: nothing is held out for validation: {error}", file=sys.stderr)
            return open_streams(
                recipe.replace(valid_fraction=0.0), corpus, tokenizer, rank, world_size, target_tokenizer
            )
    return BatchStream(builder, sampler, shape, rank, world_size), valid


@torch.no_grad()
def evaluate(state: TrainState, builder: BatchBuilder, recipe: Recipe) -> dict[str, float]:
    """Mean loss and accuracy of each term on held-out text, always on the same damage; perplexity of the words."""
    sampler = (
        StreamSampler(builder, recipe.micro_batch_tokens)
        if isinstance(builder, StreamingBatchBuilder)
        else ShuffledSampler(builder, recipe.micro_batch_tokens)
    )
    stream = BatchStream(builder, sampler, None)
    sums: dict[str, list[float]] = {}
    tokens = 0
    state.model.eval()
    with swap_averaged_weights(state.optimizer), nullcontext() if recipe.optimizer.is_sparse else state.autocast():
        for (micro_batch,), next_position in stream.steps(DataPosition()):
            batch = micro_batch.to(state.device)
            for name, term_scores in recipe.objective.evaluate(state.model, batch).items():
                sums[name] = [a + b for a, b in zip(sums.get(name, [0, 0, 0]), term_scores)]
            tokens += batch.num_tokens
            if tokens >= recipe.eval_tokens or next_position.epoch > 0:
                break
    state.model.train()
    metrics = {}
    for name, (loss, num_correct, count) in sums.items():
        metrics[name] = loss / max(count, 1)
        if not recipe.optimizer.is_sparse:
            metrics[f"{name}_accuracy"] = num_correct / max(count, 1)
    token_losses = [metrics[name] for name in ("masked", "next", "previous") if name in metrics]
    if token_losses:
        metrics["perplexity"] = math.exp(min(statistics.fmean(token_losses), 50.0))
    return metrics


LossFn = Callable[[Model, Batch], dict[str, Tensor]]


def try_compile(loss_fn: LossFn, device: torch.device) -> LossFn:
    """The function compiled, or, on a machine without a compiler, one line and the function itself."""
    exclude_from_compile()
    try:
        torch.compile(lambda x: x * 2 + 1)(torch.ones(3, device=device))
    except Exception as error:
        reason = str(error).strip().split("\n")[0][:120]
        print(f"torch.compile does not work here ({reason}); going on without it", file=sys.stderr)
        return loss_fn
    return torch.compile(loss_fn)


def _open_run(out: Path, recipe: Recipe, corpus: Corpus, resume: bool, provenance: dict[str, str]) -> dict[str, Any]:
    """What `recipe.json` holds or will hold, once it is sure that a run may begin or go on in this folder."""
    saved = {"recipe": recipe.to_json(), "corpus": str(corpus.path), "corpus_hash": corpus.manifest_hash, **provenance}
    path = out / "recipe.json"
    if not path.exists():
        if is_occupied(out):
            raise ConfigError(f"{out} is already there and holds no run: choose another --out")
        return saved
    if not resume:
        raise ConfigError(f"{out} already holds a run: give --resume to go on with it, or another --out")
    existing = read_json(path)
    if not isinstance(existing, dict) or not saved.keys() <= existing.keys():
        raise DataError(f"{path} is not a run's recipe")
    if existing["corpus_hash"] != saved["corpus_hash"]:
        raise ConfigError(f"{out} was begun on another corpus ({existing['corpus']})")
    saved_recipe = Recipe.from_json(
        existing["recipe"], config_types=(type(recipe.objective),)
    ).to_json()  # with the fields that it did not have yet
    existing = existing | {"recipe": saved_recipe}
    if saved_recipe != saved["recipe"]:
        key = next(k for k in recipe.to_json() if existing["recipe"].get(k) != recipe.to_json()[k])
        old, new = existing["recipe"].get(key), recipe.to_json()[key]
        raise ConfigError(f"{out} was begun with another recipe: {key} was {old!r}, now {new!r}")
    if existing.get("initialized_from_hash") != saved.get("initialized_from_hash"):
        raise ConfigError(f"{out} was started from another model ({existing.get('initialized_from')})")
    return dict(existing)


def _store_total_steps(
    out: Path, run_record: dict[str, Any], total_steps: int, overheads: list[Overhead]
) -> dict[str, Any]:
    """Begin the run folder with the length of the run, which a resumed one keeps, and what else takes its time."""
    run_record = run_record | {"total_steps": total_steps} | ({"overheads": overheads} if overheads else {})
    write_json(out / "recipe.json", run_record)
    return run_record


def _adjust_total_steps(deadline: Deadline, state: TrainState, report: StepReport, out: Path) -> None:
    """At the clock: the run gets the number of steps that fit, by that of the first rank."""
    report.metrics  # noqa: B018  # on a GPU the clock says nothing before the step has ended
    total_steps = deadline.replan_steps(report.step, state.total_steps)
    total_steps = distributed.on_rank_zero(lambda: total_steps)
    if total_steps != state.total_steps and state.rank == 0:
        write_json(out / "recipe.json", read_json(out / "recipe.json") | {"total_steps": total_steps})
    state.total_steps = total_steps


def _save(
    out: Path,
    state: TrainState,
    report: StepReport,
    spent: dict[str, Any],
    environment: dict[str, Any],
    keep_checkpoints: int,
    memory: dict[str, Tensor],
) -> None:
    tensors = {"model": state.model.state_dict(), "optimizer": optimizer_state_dict(state.optimizer, state.model)}
    tensors |= {"memory": memory} if memory else {}
    metadata = {"position": dataclasses.asdict(report.position), "spent": spent, "environment": environment}
    save_checkpoint(out / "checkpoints", Checkpoint(report.step, tensors, metadata), keep_checkpoints)


def _restore(
    state: TrainState, checkpoint: Checkpoint, environment: dict[str, Any]
) -> tuple[DataPosition, dict[str, Any]]:
    metadata = checkpoint.state
    for key, saved_value in metadata["environment"].items():
        if environment.get(key) != saved_value and state.rank == 0:
            print(f"note: {key} was {saved_value}, now {environment.get(key)}: bits may differ", file=sys.stderr)
    state.model.load_state_dict(checkpoint.tensors["model"])
    load_optimizer_state_dict(state.optimizer, state.model, checkpoint.tensors["optimizer"])
    state.start_step = checkpoint.step
    return DataPosition(**metadata["position"]), metadata["spent"]


@contextmanager
def _catch_signals() -> Iterator[list[int]]:
    """Collects SIGINT and SIGTERM instead of dying; a second Ctrl-C interrupts at once."""
    caught: list[int] = []

    def note(signum: int, frame: Any) -> None:
        if caught and signum == signal.SIGINT:
            raise KeyboardInterrupt
        caught.append(signum)

    try:
        previous_handlers = {s: signal.signal(s, note) for s in (signal.SIGINT, signal.SIGTERM)}
    except ValueError:  # not the main thread: signals stay with whoever runs it
        yield caught
        return
    try:
        yield caught
    finally:
        for s, handler in previous_handlers.items():
            signal.signal(s, handler)

"""Pre-training: from a recipe and a corpus to a run folder with a model in it."""

import logging
import math
import platform
import signal
import statistics
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack, nullcontext
from dataclasses import asdict, dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from polyseme.config import Config
from polyseme.corpus.captions import region_format
from polyseme.corpus.card import corpus_facts
from polyseme.corpus.inspect.characters import characters_per_token
from polyseme.corpus.sampling import DataPosition
from polyseme.corpus.store import Corpus, verify_corpus
from polyseme.errors import ConfigError, Interrupted, ModelError, convert_out_of_memory
from polyseme.families import Family, get_family
from polyseme.io.hashes import HASHES_FILE, write_hashes
from polyseme.io.json import read_json, write_json
from polyseme.io.lock import lock_folder
from polyseme.nn.attention.relative import exclude_from_compile
from polyseme.nn.layers.char_cnn import BOS_CHARACTER, EOS_CHARACTER, CharCNN
from polyseme.nn.model import Model, ModelConfig
from polyseme.objectives.batch import Batch
from polyseme.objectives.packing import BatchBuilder, SpecialIds
from polyseme.progress import progress
from polyseme.report.cards.run_card import write_run_card
from polyseme.report.run_page import write_report
from polyseme.text.tokenizer import Tokenizer
from polyseme.train import distributed
from polyseme.train.budget import PROVISIONAL_STEPS, Deadline, Segment, StepPlan, plan_steps
from polyseme.train.checkpoint import (
    Checkpoint,
    average_checkpoints,
    load_checkpoint,
    publish_checkpoint,
    save_checkpoint,
)
from polyseme.train.loop import StepReport, TrainState, count_parameters, count_training_flops, setup_device, train
from polyseme.train.memory import check_fits
from polyseme.train.monitoring.diagnostics import RunDiagnostics, describe_tokenizer_mismatch
from polyseme.train.monitoring.samples import NEIGHBORS_FILE, HeldOutSamples, nearest_tokens
from polyseme.train.optimizer import NTASGD, load_optimizer_state_dict, optimizer_state_dict, swap_averaged_weights
from polyseme.train.ranks import broadcast_checkpoint, require_same_run, require_same_state
from polyseme.train.recipe import BudgetConfig, Recipe
from polyseme.train.run_folder import RunLogger, last_logged_step, open_run, read_losses, update_run_record
from polyseme.train.signals import catch_signals
from polyseme.train.step import can_capture
from polyseme.train.streams import BatchStream, open_streams
from polyseme.weights.folder import check_tokenizer_compatible, save_model

logger = logging.getLogger(__name__)
LossFn = Callable[[Model, Batch], dict[str, Tensor]]


@dataclass(frozen=True)
class InitialModel:
    """The model that a run starts from, and its provenance for `recipe.json`: path and hash of its folder.

    `after_step` may change the weights after each step, as pruning does.
    """

    model: Model
    provenance: dict[str, str]
    after_step: Callable[[Model, int], None] | None = None


def pretrain(
    recipe: Recipe,
    corpus_path: Path,
    out: Path,
    resume: bool = False,
    initial_model: InitialModel | None = None,
    start_time: float | None = None,
    families: Sequence[Family] = (),
    named_recipe: Config | None = None,
) -> dict[str, Any]:
    """Run the recipe and return its results: losses, perplexity, cost. Minutes count from `start_time`.

    The run folder holds the recipe, the log, checkpoints, the model and a report, which shows how the recipe differs
    from `named_recipe`. Under `torchrun` every rank calls this; only the first writes.
    """
    start_time = time.perf_counter() if start_time is None else start_time
    distributed.init_process_group()
    with ExitStack() as stack:
        stack.enter_context(distributed.share_failure())
        recipe, provenance = recipe.check(), initial_model.provenance if initial_model else {}
        stack.enter_context(convert_out_of_memory(partial(_memory_advice, recipe)))
        require_same_run(recipe, corpus_path, out, provenance, resume)
        distributed.on_rank_zero(lambda: stack.enter_context(lock_folder(out, "pretrain")))
        return _pretrain(recipe, corpus_path, out, resume, initial_model, start_time, families, named_recipe)


def _pretrain(
    recipe: Recipe,
    corpus_path: Path,
    out: Path,
    resume: bool,
    initial_model: InitialModel | None,
    start_time: float,
    families: Sequence[Family],
    named_recipe: Config | None,
) -> dict[str, Any]:
    (rank, world_size), device = distributed.init_process_group(), setup_device()
    distributed.on_rank_zero(lambda: verify_corpus(corpus_path))
    corpus, tokenizer = Corpus.open(corpus_path), Tokenizer.load(corpus_path / "tokenizer")
    has_target_tokenizer = corpus.manifest.get("pairs", {}).get("has_target_tokenizer")
    target_tokenizer = Tokenizer.load(corpus_path / "target") if has_target_tokenizer else None
    vocab_sizes = tokenizer.vocab_size, target_tokenizer.vocab_size if target_tokenizer else 0
    config = (
        initial_model.model.config
        if initial_model
        else recipe.model_config(*vocab_sizes, families, region_format(corpus))
    )
    provenance = initial_model.provenance if initial_model else {}
    check_fits(recipe, config)
    family = get_family(config.family, families)
    tokenizer = tokenizer.with_cls_position(family.cls_position)
    check_tokenizer_compatible(config, tokenizer, family)
    mismatch = describe_tokenizer_mismatch(family, tokenizer)
    record = distributed.on_rank_zero(lambda: open_run(out, recipe, corpus, provenance, resume))
    special_ids = SpecialIds.from_tokenizer(tokenizer, target_tokenizer)
    stream, valid = open_streams(recipe, corpus, special_ids, rank, world_size)
    state = build_train_state(recipe, config, device, rank, initial_model)
    set_vocabulary(state.model, tokenizer, stream.builder.token_counts)
    run = _Run(recipe, out, state, stream, valid, RunDiagnostics.from_run(recipe, config, corpus))
    if rank == 0:
        run.samples = HeldOutSamples.open(out, config, tokenizer, valid, recipe.max_len)
    if mismatch and rank == 0:
        run.diagnostics.add_note(mismatch)
    run.train(run.prepare(record, start_time))
    results = run.finish()
    if rank == 0:
        results |= _heldout_characters(corpus, recipe, tokenizer)
        metadata = {"recipe": recipe.to_json(), "results": results, "corpus": corpus.manifest_hash, **provenance}
        metadata["corpus_facts"] = corpus_facts(corpus.manifest, corpus_path)
        with swap_averaged_weights(state.optimizer):
            model = state.model.finalize()
            save_model(out / "model", model, tokenizer, metadata, target_tokenizer, families)
            if neighbors := nearest_tokens(model, tokenizer, corpus):
                write_json(out / NEIGHBORS_FILE, neighbors)
        write_json(out / "results.json", results)
        write_report(out, named_recipe=named_recipe)
        write_run_card(out)
        write_hashes(out)
    return results


@dataclass
class _Run:
    """A run in progress; `spent` is summed over all calls that resumed it."""

    recipe: Recipe
    out: Path
    state: TrainState
    stream: BatchStream
    valid: BatchBuilder | None
    diagnostics: RunDiagnostics
    plan: StepPlan = field(default_factory=lambda: StepPlan((Segment(0, PROVISIONAL_STEPS),)))
    samples: HeldOutSamples | None = None
    position: DataPosition = field(default_factory=DataPosition)
    spent: dict[str, Any] = field(default_factory=lambda: {"tokens": 0, "flops": 0, "seconds": 0.0})
    valid_metrics: dict[str, float] = field(default_factory=dict)
    extensions: list[dict[str, Any]] = field(default_factory=list)
    training_losses: dict[str, float] = field(default_factory=dict)  # of the last step that was logged

    def __post_init__(self) -> None:
        is_cuda = self.state.device.type == "cuda"
        self.environment = {  # what a resumed run needs to give the same bits
            "torch": torch.__version__,
            "machine": platform.machine(),
            "device": torch.cuda.get_device_name() if is_cuda else "cpu",
            "threads": torch.get_num_threads(),
            "world": self.stream.world_size,
            "compile": self.state.is_compiled,
            "precision": self.state.precision,
        }

    def prepare(self, record: dict[str, Any], start_time: float) -> Deadline:
        """Determine the number of steps, or take that of the run to resume, and load its last checkpoint."""
        recipe, state = self.recipe, self.state
        distributed.broadcast_weights(state.model)
        if (checkpoint := broadcast_checkpoint(self._load_checkpoint, state.device)) is not None:
            self._restore(checkpoint)
        self.extensions = list(record.get("extensions", ()))
        if "total_steps" in record:
            rows = record.get("plan", [{"step": 0, "total_steps": record["total_steps"]}])
            self.plan = StepPlan.from_json(rows, str(self.out / "recipe.json"))
            if (saved_budget := BudgetConfig.from_json(record["recipe"]["budget"])) != recipe.budget:
                self._extend(record, saved_budget)
        else:
            for sentence in recipe.derivation if state.rank == 0 else ():
                logger.info("%s: %s", recipe.name, sentence)
            self.plan = StepPlan((Segment(0, plan_steps(recipe, self.stream)),))
            self._update_record(record)
        self.stream.num_first_steps = recipe.short_sequences.count_steps(self.plan.segments[0].total_steps)
        self.plan.apply(state, recipe.schedule, state.start_step)
        require_same_state(state, self.position)
        losses = read_losses(self.out, recipe.objective.terms, state.start_step)
        self.diagnostics.best_losses, self.training_losses = losses
        end_time = start_time + recipe.budget.minutes * 60 - self.spent["seconds"]
        valid_tokens = int(self.valid.samples.lengths.sum()) if self.valid else 0
        return Deadline.from_recipe(recipe, end_time, self.plan, state, self.stream, valid_tokens)

    def _extend(self, record: dict[str, Any], saved_budget: BudgetConfig) -> None:
        """Give the run the longer budget of the recipe, and record that."""
        state, budget = self.state, self.recipe.budget
        if budget.is_wall_clock and state.start_step:
            seconds_per_step = self.spent["seconds"] / state.start_step
            seconds_left = 60 * budget.minutes - self.spent["seconds"]
            total_steps = state.start_step + int(seconds_left / max(seconds_per_step, 1e-9))
        else:
            total_steps = plan_steps(self.recipe, self.stream)
        is_longer = total_steps > state.start_step and not (
            budget.is_wall_clock and saved_budget.is_wall_clock and budget.minutes < saved_budget.minutes
        )
        if not is_longer or (not budget.is_wall_clock and total_steps < self.plan.total_steps):
            length = f"{state.start_step:,} steps in {self.spent['seconds'] / 60:.3g} minutes"
            raise ConfigError(
                f"{self.out} has a budget of {saved_budget} and was trained for {length}, so a budget of {budget} does "
                "not extend it: the budget of a resumed run is its whole length; choose a larger one, or none"
            )
        self.plan = self.plan.extend(state.start_step, total_steps, self.recipe.schedule)
        self.extensions.append({"step": state.start_step, "from": str(saved_budget), "to": str(budget)})
        if state.rank == 0:
            logger.info("extended from %s to %s, after step %s", saved_budget, budget, f"{state.start_step:,}")
            (self.out / HASHES_FILE).unlink(missing_ok=True)  # the folder is that of an unfinished run again
        self._update_record(record | {"recipe": self.recipe.to_json(), "extensions": self.extensions})

    def _update_record(self, record: dict[str, Any]) -> None:
        """Write `recipe.json` with the plan."""
        changes = {"total_steps": self.plan.total_steps, "plan": self.plan.to_json()}
        distributed.on_rank_zero(lambda: update_run_record(self.out, record, **changes))

    def train(self, deadline: Deadline) -> None:
        """Run the remaining steps, with validation, logging and checkpoints.

        A signal ends the run with a checkpoint and `Interrupted`.
        """
        recipe, state = self.recipe, self.state
        log, last_time = RunLogger(self.out, state.start_step, state.rank), time.perf_counter()
        if self.samples is not None:
            self.samples.truncate(state.start_step)
        total_tokens = self._count_full_tokens(self.plan.total_steps)
        with catch_signals() as caught, progress("pretrain", total_tokens, "tokens", show=state.rank == 0) as bar:
            bar.add_completed(self._count_full_tokens(state.start_step))
            if state.is_compiled or (state.use_cuda_graphs and state.device.type == "cuda"):
                bar.show_note("compiling kernels in the first step")
            for report in train(state, self.stream.steps(self.position, state.start_step)):
                now = time.perf_counter()
                self.spent["tokens"] += report.tokens
                self.spent["flops"] += report.flops * self.stream.world_size
                self.spent["seconds"] += now - last_time  # with validation and saving after the step before
                last_time = now
                self._update_plan(deadline, report, log)
                bar.set_total(self._count_full_tokens(self.plan.total_steps))
                is_end = report.step in self.plan.end_steps
                if is_end or report.step == 1 or report.step % recipe.log_every == 0:
                    log.log_step(report)
                    self.training_losses = report.loss
                step_tokens = self._count_full_tokens(report.step) - self._count_full_tokens(report.step - 1)
                bar.advance(step_tokens, self._format_loss(report))
                if self.valid is not None and (is_end or report.step % recipe.eval_every == 0) and report.metrics:
                    with deadline.measure("validate"):
                        self.valid_metrics = self._validate(state)
                        if self.samples is not None:
                            self.samples.write(state, report.step)
                    if isinstance(state.optimizer, NTASGD):
                        state.optimizer.report_validation_loss(self.valid_metrics[recipe.objective.terms[0]])
                    log.write_row({"step": report.step, "valid": self.valid_metrics, "spent": dict(self.spent)})
                    if state.rank == 0:
                        self.diagnostics.record(report.step, self.valid_metrics)
                stop = distributed.any_rank(bool(caught), state.device)
                if is_end or stop or report.step % recipe.save_every == 0:
                    self._save(report, deadline)
                if stop and report.step != self.plan.total_steps:
                    raise Interrupted(caught[0] if caught else signal.SIGTERM, report.step)

    def finish(self) -> dict[str, Any]:
        """Average checkpoints, if the recipe says so, and return the results."""
        state, folder = self.state, self.out / "checkpoints"
        averaged_steps = distributed.on_rank_zero(
            lambda: average_checkpoints(state.model, folder, self.recipe.num_averaged)
        )
        if averaged_steps:
            distributed.broadcast_weights(state.model)
        if averaged_steps or not self.valid_metrics:  # or every step was done before this call
            self.valid_metrics = self._validate(state)
        warnings = []
        if state.rank == 0:
            self.diagnostics.check_length(self.plan.total_steps)
            warnings = self.diagnostics.finish(self.valid_metrics, self.training_losses)
        return {
            "valid": self.valid_metrics,
            "steps": self.plan.total_steps,
            "parameters": count_parameters(state.model),
            "tokens": self.spent["tokens"],
            "flops": self.spent["flops"],
            "device_hours": self.spent["seconds"] * self.stream.world_size / 3600,
            **({"averaged_steps": averaged_steps} if averaged_steps else {}),
            **({"extensions": self.extensions} if self.extensions else {}),
            **({"derivation": list(self.recipe.derivation)} if self.recipe.derivation else {}),
            "environment": self.environment,
            "warnings": warnings,
        }

    def _validate(self, state: TrainState) -> dict[str, float]:
        return {} if self.valid is None else evaluate(state, self.valid, self.recipe)

    def _count_full_tokens(self, num_steps: int) -> int:
        """Return the tokens of the first steps of the run, if all batches were full."""
        num_first = min(num_steps, self.stream.num_first_steps)
        return num_first * self.recipe.first_recipe.batch_tokens + (num_steps - num_first) * self.recipe.batch_tokens

    def _format_loss(self, report: StepReport) -> str:
        if self.state.device.type == "cuda" and report.step % self.recipe.log_every:
            return ""  # reading the loss would wait for the GPU
        return ", ".join(f"{name} {value:.3f}" for name, value in report.loss.items())

    def _update_plan(self, deadline: Deadline, report: StepReport, log: RunLogger) -> None:
        """Set the number of steps to what fits before the deadline, by the clock of the first rank.

        A resumed run first repeats the plans that were made after its checkpoint.
        """
        state, step = self.state, report.step
        if step > self.plan.last_change and step < self.plan.total_steps and deadline.should_check(step):
            report.metrics  # noqa: B018  # waits for the end of the step on a GPU
            replanned_steps = deadline.replan_steps(step, self.plan.total_steps)
            total_steps = deadline.total_steps = distributed.on_rank_zero(lambda: replanned_steps)
            if state.rank == 0:
                deadline.log_plan(step, str(self.recipe.budget))
            if total_steps != self.plan.total_steps:
                self.plan = self.plan.with_total(step, total_steps)
                self._update_record(distributed.on_rank_zero(lambda: read_json(self.out / "recipe.json")))
                steps_per_second = deadline.steps_per_second
                log.write_row({"step": step, "plan": {"steps": total_steps, "steps_per_second": steps_per_second}})
        self.plan.apply(state, self.recipe.schedule, step)

    def _save(self, report: StepReport, deadline: Deadline) -> None:
        """Write a checkpoint on rank 0; every rank has to call this."""
        state, memory = self.state, self.stream.state_dict()
        if state.rank == 0 and report.metrics:
            with deadline.measure("save"):
                optimizer_state = optimizer_state_dict(state.optimizer, state.model)
                tensors = {"model": state.model.state_dict(), "optimizer": optimizer_state}
                tensors |= {"memory": memory} if memory else {}
                position = asdict(report.position)
                values = {"position": position, "spent": self.spent, "environment": self.environment}
                checkpoint = Checkpoint(report.step, tensors, values)
                save_checkpoint(self.out / "checkpoints", checkpoint, self.recipe.num_kept_checkpoints)

    def _load_checkpoint(self) -> Checkpoint | None:
        """Return the newest checkpoint; raise if there has been one, by what else is in the folder, but is no more."""
        checkpoint, last_step = load_checkpoint(self.out / "checkpoints"), last_logged_step(self.out)
        if checkpoint is None and (last_step > self.recipe.save_every or (self.out / "results.json").exists()):
            problem = f"{self.out} was trained up to step {last_step} or further, but its checkpoints are missing"
            raise ModelError(f"{problem}: restore the folder `checkpoints`, or start in another folder")
        if checkpoint is not None:
            publish_checkpoint(self.out / "checkpoints", checkpoint.step, self.recipe.num_kept_checkpoints)
        return checkpoint

    def _restore(self, checkpoint: Checkpoint) -> None:
        state, values = self.state, checkpoint.state
        for key, saved_value in values["environment"].items():
            if self.environment.get(key) != saved_value and state.rank == 0:
                logger.warning("%s was %s, now %s: bits may differ", key, saved_value, self.environment.get(key))
        try:
            state.model.load_state_dict(checkpoint.tensors["model"])
            load_optimizer_state_dict(state.optimizer, state.model, checkpoint.tensors["optimizer"])
        except (RuntimeError, KeyError) as error:
            reason = " ".join(str(error).split())[:200]
            raise ModelError(f"the checkpoint of step {checkpoint.step} is of another model: {reason}") from None
        state.start_step = checkpoint.step
        self.position, self.spent = DataPosition(**values["position"]), values["spent"]
        self.stream.load_state_dict(checkpoint.tensors.get("memory", {}), state.device)


def build_train_state(
    recipe: Recipe, config: ModelConfig, device: torch.device, rank: int = 0, initial_model: InitialModel | None = None
) -> TrainState:
    """Return the model at the start, and everything a step needs except the number of steps."""
    precision = ("bf16" if device.type == "cuda" else "float32") if recipe.precision == "auto" else recipe.precision
    model = (initial_model.model if initial_model else config.build(recipe.seed)).to(device)
    model.trunk.set_gradient_checkpointing(recipe.gradient_checkpointing)
    dtype = torch.bfloat16 if precision == "bf16" and device.type == "cuda" else torch.float32  # of the working copy
    loss = recipe.objective.build_loss(device, dtype)
    has_two_shapes = bool(recipe.short_sequences.max_len) or recipe.objective.min_micro_batches > 1  # of hybrid models
    loss_fn = try_compile(loss.fn, device, has_two_shapes) if recipe.compile else loss.fn

    def count_flops(model: Model, batch: Any) -> int:
        frozen_flops = sum(count_training_flops(frozen, batch) // 3 for frozen in loss.frozen_models)
        return count_training_flops(model, batch) + frozen_flops

    optimizer = recipe.optimizer.build(model, model.trunk.layer_groups())
    state = TrainState(model, optimizer, recipe.optimizer, recipe.schedule, 0, device, precision, recipe.seed, rank)
    state.loss_fn, state.is_compiled, state.flops_fn = loss_fn, loss_fn is not loss.fn, count_flops
    state.use_cuda_graphs = can_capture(model, recipe.objective.has_static_shapes, recipe.compile)
    state.after_step = initial_model.after_step if initial_model else None
    return state


@torch.no_grad()
def evaluate(state: TrainState, builder: BatchBuilder, recipe: Recipe) -> dict[str, float]:
    """Return mean loss and accuracy of each term on held-out text, always masked alike, and the token perplexity."""
    stream = BatchStream(builder, builder.build_sampler(recipe.micro_batch_tokens))
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
    token_terms = ("next", "previous") if "next" in metrics else ("masked", "previous")
    if token_losses := [metrics[name] for name in token_terms if name in metrics]:
        metrics["perplexity"] = math.exp(min(statistics.fmean(token_losses), 50.0))
    return metrics


def try_compile(loss_fn: LossFn, device: torch.device, has_several_shapes: bool = False) -> LossFn:
    """Compile the function; on a machine without a compiler, log a warning and return it unchanged.

    With several shapes, each has a graph of its own, instead of one of symbolic sizes.
    """
    exclude_from_compile()
    try:
        torch.compile(lambda x: x * 2 + 1)(torch.ones(3, device=device))
    except Exception as error:
        reason = str(error).strip().split("\n")[0][:120]
        logger.warning("torch.compile does not work here (%s); continuing without it", reason)
        return loss_fn
    return torch.compile(loss_fn, dynamic=False if has_several_shapes else None)


def _heldout_characters(corpus: Corpus, recipe: Recipe, tokenizer: Tokenizer) -> dict[str, float]:
    """Return the characters for each token of the held-out text, which bits per character are computed with."""
    _, valid_corpus = corpus.split(recipe.valid_fraction)
    ratio = None if valid_corpus is None else characters_per_token(corpus, valid_corpus, tokenizer)
    return {} if ratio is None else {"characters_per_token": ratio}


def set_vocabulary(model: Model, tokenizer: Tokenizer, token_counts: Any) -> None:
    """Set what a new model knows of its vocabulary: frequencies, and the characters of each token for a character CNN.

    The tokens bos and eos are single characters.
    """
    model.set_vocabulary(tokenizer.vocabulary, tokenizer.all_special_ids, token_counts)
    embeddings = getattr(model.trunk, "embeddings", None)
    if not isinstance(embeddings, CharCNN):
        return
    specials, words = tokenizer.special_token_ids, list[str | int](tokenizer.vocabulary)
    if tokenizer.is_byte_level:
        words = [tokenizer.decode([i], skip_special_tokens=False).strip() or word for i, word in enumerate(words)]
    boundaries = (specials.cls, BOS_CHARACTER), (specials.bos, BOS_CHARACTER)
    for token_id, character in (*boundaries, (specials.sep, EOS_CHARACTER), (specials.eos, EOS_CHARACTER)):
        if token_id is not None:
            words[token_id] = character
    embeddings.set_spellings(words)


def _memory_advice(recipe: Recipe) -> str:
    """Say what to change in a recipe that does not fit into memory."""
    smaller = recipe.micro_batch_tokens // 2
    advice = []
    if smaller >= recipe.max_len and recipe.batch_tokens % smaller == 0:
        advice.append(f"lower `micro_batch_tokens` from {recipe.micro_batch_tokens} to {smaller}")
    if not recipe.gradient_checkpointing:
        advice.append("set `gradient_checkpointing` to true")
    advice.append(f"lower `max_len` from {recipe.max_len} to {recipe.max_len // 2}, or choose a smaller model")
    return f"{advice[0]}{', or ' + advice[1] if len(advice) > 1 else ''}, and start in another folder"

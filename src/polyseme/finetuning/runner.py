"""The experiment runner: seeds, the best of them, checkpoints; a run that was stopped continues.

It drives single tasks, several tasks over one trunk, networks over frozen features, and text-to-text models.
"""

import logging
import shutil
import time
from contextlib import AbstractContextManager, closing, nullcontext
from typing import Any

from polyseme.errors import Interrupted, ModelError, convert_out_of_memory
from polyseme.finetuning.experiment import Experiment, RunOptions
from polyseme.finetuning.results import ExperimentResults, SeedResult, evaluate_seed
from polyseme.finetuning.resume import UnfinishedRun
from polyseme.finetuning.training import SeedTraining
from polyseme.io.json import read_json
from polyseme.nn.model import Model
from polyseme.train.checkpoint import Checkpoint
from polyseme.train.loop import setup_device
from polyseme.train.signals import catch_signals

logger = logging.getLogger(__name__)
SAVE_SECONDS = 60.0  # at least, between checkpoints of a seed
MAX_SAVE_SHARE = 0.02  # of the time, that checkpoints of a large model may take


def run_experiment(experiment: Experiment, run: UnfinishedRun, options: RunOptions = RunOptions()) -> dict[str, Any]:
    """Train once per seed, evaluate on the dev examples, and write the run folder; return the results.

    The folder gets `results.json`, `log.jsonl`, `predictions.json` and the model of the seed that did best on the dev
    examples (that choice makes its own score optimistic, but not the mean). A run that was stopped continues with the
    seed that was interrupted, from its last checkpoint, and ends with the same bytes on a CPU, except measured times.
    """
    if run.is_complete:
        run.finish()
        return dict(read_json(run.folder / "results.json"))
    for task_run in experiment.runs:
        task_run.primary_metric  # noqa: B018  # raises before training
    results: list[SeedResult] = []
    best, best_model = None, None
    for seed in options.seed_list:
        started, model = time.perf_counter(), None
        if (saved := run.load(f"seed-{seed}/result")) is not None:
            logger.info("seed %d is finished", seed)
            try:
                seed_result = SeedResult(**saved.state)
            except TypeError:
                unfinished = f"{run.folder} was started by another version of polyseme"
                raise ModelError(f"{unfinished}: choose another folder, or remove it") from None
        else:
            with convert_out_of_memory(experiment.config.memory_advice):
                seed_result, model = _run_seed(experiment, run, seed, options)
        results.append(seed_result)
        if options.on_seed is not None:
            options.on_seed(seed_result)
        is_best = best is None or seed_result.selection_score(experiment) > best.selection_score(experiment)
        if model is not None and (seed != options.seed_list[-1] or time.perf_counter() - started > SAVE_SECONDS):
            _save_seed(run, seed_result, model if is_best else None, best)
        if is_best:
            best, best_model = seed_result, model
    assert best is not None
    best_model = best_model or _load_model(experiment, run, best.seed)
    run_results = ExperimentResults(experiment, results)
    summary = run_results.summarize(best.seed, best_model, has_folder=run.out is not None)
    if run.out is not None:
        run.start()
        run_results.write(run.out, summary, best_model, best.metadata)
        run.finish()
    return summary


def _run_seed(experiment: Experiment, run: UnfinishedRun, seed: int, options: RunOptions) -> tuple[SeedResult, Model]:
    """Train and evaluate a seed."""
    training = _train_seed(experiment, run, seed, options)
    seed_result = evaluate_seed(experiment, seed, training.model, training.log, training.cost)
    if run.out is not None and options.keep_seeds:
        run.start()
        metadata = seed_result.metadata | _seed_info(experiment, seed)
        experiment.save(run.out / "seeds" / str(seed), training.model, metadata)
    return seed_result, training.model


def _save_seed(
    run: UnfinishedRun, seed_result: SeedResult, model: Model | None, previous_best: SeedResult | None
) -> None:
    """Save a finished seed and, if it is the best so far, its model instead of that of the previous best."""
    seed = seed_result.seed
    if model is not None:
        run.save(f"seed-{seed}/model", Checkpoint(seed, {"model": model.state_dict()}, {}))
    run.save(f"seed-{seed}/result", Checkpoint(seed, {}, seed_result.to_json()))
    run.remove(f"seed-{seed}/training")
    if model is not None and previous_best is not None:
        run.remove(f"seed-{previous_best.seed}/model")


def _train_seed(experiment: Experiment, run: UnfinishedRun, seed: int, options: RunOptions) -> SeedTraining:
    """Train a seed from its last checkpoint; save one now and then, and at a signal before `Interrupted`."""
    training, name = SeedTraining(experiment, seed), f"seed-{seed}/training"
    if (checkpoint := run.load(name)) is not None:
        logger.info("seed %d continues after step %d", seed, checkpoint.step)
        training.restore(checkpoint)
    keeper = CheckpointKeeper(experiment, run, seed, options.keep_checkpoints, training.step)
    if seed == options.seed_list[0]:
        _log_start(experiment)
    next_save = time.perf_counter() + SAVE_SECONDS
    signals: AbstractContextManager[list[int]] = nullcontext([]) if run.out is None else catch_signals()
    with signals as caught, closing(training.steps()) as steps:
        for report in steps:
            if training.is_epoch_end or report.step == training.state.total_steps:
                keeper.add(report.step, training.model)
            if caught:
                break
            if (started := time.perf_counter()) > next_save:
                run.save(name, training.checkpoint())
                now = time.perf_counter()
                next_save = now + max(SAVE_SECONDS, (now - started) / MAX_SAVE_SHARE)
    if caught:
        run.save(name, training.checkpoint())
        raise Interrupted(caught[0], training.step)
    return training


def _log_start(experiment: Experiment) -> None:
    """Log the settings that were chosen for the model, and its metrics before training."""
    for name, choice in experiment.run_info.get("chosen", {}).items():
        logger.info("%s %g, %s; set `%s` for another one", name, choice["value"], choice["reason"], name)
    for task_run in experiment.runs:
        if task_run.before:
            metrics = (f"{name} {value:.4f}" for name, value in task_run.before.items())
            logger.info("before training: %s", ", ".join(metrics))


def _load_model(experiment: Experiment, run: UnfinishedRun, seed: int) -> Model:
    """Return the trained model of a finished seed."""
    checkpoint = run.load(f"seed-{seed}/model")
    if checkpoint is None:
        raise ModelError(f"{run.folder}/unfinished/seed-{seed} has no model: remove it to run the seed again")
    model = experiment.build(seed).to(setup_device())
    model.load_state_dict(checkpoint.tensors["model"])
    return model


class CheckpointKeeper:
    """Keeps the last epochs of a seed as whole model folders; each records its metrics on the dev examples."""

    def __init__(self, experiment: Experiment, run: UnfinishedRun, seed: int, max_checkpoints: int, num_done: int):
        self.experiment, self.run, self.seed = experiment, run, seed
        self.max_checkpoints = max_checkpoints if run.out is not None else 0
        self.steps: list[int] = []
        if self.max_checkpoints:
            self.folder = run.folder / "checkpoints" / f"seed-{seed}"
            self.steps = sorted(int(path.name.removeprefix("step-")) for path in self.folder.glob("step-*"))
            while self.steps and self.steps[-1] > num_done:
                self._remove(self.steps.pop())  # a resumed run writes it again

    def add(self, step: int, model: Model) -> None:
        """Save the model after a step, and remove the oldest checkpoint if there are too many."""
        if not self.max_checkpoints:
            return
        self.run.start()
        evaluations = [run.evaluate(run.predict(model)) for run in self.experiment.runs]
        info = {**_seed_info(self.experiment, self.seed), "step": step, "dev": evaluations[0].metrics}
        metadata = self.experiment.metadata([e.task for e in evaluations], **info)
        self.experiment.save(self.folder / f"step-{step}", model, metadata)
        self.steps.append(step)
        while len(self.steps) > self.max_checkpoints:
            self._remove(self.steps.pop(0))

    def _remove(self, step: int) -> None:
        shutil.rmtree(self.folder / f"step-{step}")


def _seed_info(experiment: Experiment, seed: int) -> dict[str, Any]:
    return {"data": experiment.run_info.get("data", ""), "seed": seed}

"""Calibration: the seconds per step of an arm alone on the device, and the steps that fit into a time budget."""

import datetime
import fcntl
import statistics
import time
from collections.abc import Callable, Generator, Iterator
from contextlib import closing, contextmanager
from itertools import pairwise
from pathlib import Path
from typing import Any

import torch

from polyseme.corpus.sampling import DataPosition
from polyseme.corpus.store import Corpus
from polyseme.families import get_family
from polyseme.objectives.packing import SpecialIds
from polyseme.text.tokenizer import Tokenizer
from polyseme.train.loop import StepReport, setup_device, train
from polyseme.train.pretrain import build_train_state, set_vocabulary
from polyseme.train.recipe import BudgetConfig, Recipe
from polyseme.train.streams import open_streams

COMPILE_STEPS, WARMUP_STEPS, TIMED_STEPS, CHUNK_STEPS = 5, 10, 40, 5
MAX_SECONDS = 15.0  # of timed steps, of an arm with slow ones


def device_name(on_cpu: bool = False) -> str:
    """Return the name of the device that an arm is trained on."""
    return torch.cuda.get_device_name() if torch.cuda.is_available() and not on_cpu else "cpu"


@contextmanager
def hold_lock(path: Path, is_shared: bool = False) -> Iterator[None]:
    """Wait for the lock of a file, which several processes may share, and hold it."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("w") as handle:
        fcntl.flock(handle, fcntl.LOCK_SH if is_shared else fcntl.LOCK_EX)
        yield


def measure_step_seconds(recipe: Recipe, corpus_path: Path, lock: Path) -> float:
    """Return the median time of a step.

    Several processes may compile at the same time, but steps are timed while no other process does anything, except
    that it may open a corpus, which takes minutes where co-occurrences are counted.
    """
    start_training = _open_corpus(recipe, corpus_path)
    with hold_lock(lock, is_shared=True):
        reports = start_training()
        for _ in range(COMPILE_STEPS):
            next(reports).metrics  # noqa: B018  # waits for the end of the step
    times: list[float] = []
    with hold_lock(lock), closing(reports):
        for report in reports:
            if report.step >= WARMUP_STEPS and report.step % CHUNK_STEPS == 0:
                report.metrics  # noqa: B018
                times.append(time.perf_counter())
                if times[-1] - times[0] > MAX_SECONDS:
                    break
    return statistics.median(end - start for start, end in pairwise(times)) / CHUNK_STEPS


def _open_corpus(recipe: Recipe, corpus_path: Path) -> Callable[[], Generator[StepReport]]:
    """Open the corpus of a run; return a function that starts to train and returns the steps."""
    corpus, tokenizer = Corpus.open(corpus_path), Tokenizer.load(corpus_path / "tokenizer")
    tokenizer = tokenizer.with_cls_position(get_family(recipe.family).cls_position)
    recipe = recipe.replace(batch_warmup_steps=0, seed=0)
    stream, _ = open_streams(recipe, corpus, SpecialIds.from_tokenizer(tokenizer))

    def start() -> Generator[StepReport]:
        state = build_train_state(recipe, recipe.model_config(tokenizer.vocab_size), setup_device())
        set_vocabulary(state.model, tokenizer, stream.builder.token_counts)
        state.total_steps = WARMUP_STEPS + TIMED_STEPS
        yield from train(state, stream.steps(DataPosition(), 0))

    return start


def calibrate(recipe: Recipe, corpus: Path, budget: BudgetConfig, lock: Path, on_cpu: bool) -> dict[str, Any]:
    """Measure the time of a step and return it with the number of steps of a time budget."""
    seconds = measure_step_seconds(recipe, corpus, lock)
    steps = max(int(60 * budget.minutes / seconds), 1)
    date = datetime.datetime.now(datetime.UTC).strftime("%Y-%m-%d %H:%M")
    return {"seconds_per_step": seconds, "steps": steps, "device": device_name(on_cpu), "date": date}

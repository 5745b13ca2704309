"""The recipe `best`: the settings that the speedrun ledger has for a time budget, a corpus and a device."""

import math
from dataclasses import dataclass
from functools import cache
from typing import Self

import torch

from polyseme.errors import ConfigError
from polyseme.recipes.ledger import THREAD_EXPONENT, DeviceKind, LedgerEntry, read_measurements
from polyseme.train.recipe import BudgetConfig, Recipe

NAME = "best"
MAX_EPOCHS = 40  # of the corpus, as many as BERT had: beyond, a smaller model, then dropout
REPEATED_TEXT_DROPOUT = 0.1
EVAL_SHARE, MIN_EVAL_TOKENS, MAX_EVAL_TOKENS = 0.008, 8_192, 65_536  # five validations take two percent of the time
MICRO_BATCHES = ((40, 65_536), (20, 32_768), (10, 16_384), (0, 8_192))  # GB of a GPU from which on, and tokens
# Dense bf16 operations per clock of a multiprocessor, by data sheets, relative to compute capability 9.0 (H200)
MULTIPROCESSOR_SPEEDS = {(8, 0): 1 / 2, (9, 0): 1.0, (10, 0): 2.0}
OTHER_MULTIPROCESSOR_SPEED, H200_MULTIPROCESSORS = 1 / 8, 132


@dataclass(frozen=True)
class ComputeDevice:
    """The device of a run; its speed is relative to that in the ledger: one CPU thread, or one H200."""

    kind: DeviceKind
    name: str
    speed: float
    memory_gb: float = 0.0  # of a GPU
    num_ranks: int = 1

    @classmethod
    def detect(cls, num_ranks: int = 1) -> Self:
        """Return the GPU if there is one, or else the CPU, of each of so many ranks."""
        if not torch.cuda.is_available():
            threads = torch.get_num_threads()
            name = f"{threads} CPU thread{'s' if threads > 1 else ''}"
            return cls("cpu", name, num_ranks * threads**THREAD_EXPONENT, num_ranks=num_ranks)
        properties = torch.cuda.get_device_properties(torch.cuda.current_device())
        per_multiprocessor = MULTIPROCESSOR_SPEEDS.get((properties.major, properties.minor), OTHER_MULTIPROCESSOR_SPEED)
        speed = num_ranks * per_multiprocessor * properties.multi_processor_count / H200_MULTIPROCESSORS
        return cls("gpu", properties.name, speed, properties.total_memory / (1 << 30), num_ranks)

    def divide_batch(self, batch_tokens: int, max_len: int, min_micro_batches: int = 1) -> tuple[int, int]:
        """Return the tokens of a step and of a micro-batch, which fits into memory; all ranks have as many of them."""
        largest = next(tokens for gigabytes, tokens in MICRO_BATCHES if self.memory_gb >= gigabytes)
        micro_batch_tokens = batch_tokens if self.kind == "cpu" else min(batch_tokens, largest)
        num_micro_batches = max(self.num_ranks, min_micro_batches)
        while micro_batch_tokens * num_micro_batches > batch_tokens and micro_batch_tokens >= 2 * max_len:
            micro_batch_tokens //= 2
        fewest_per_rank = math.ceil(min_micro_batches / self.num_ranks)
        per_rank = max(round(batch_tokens / (micro_batch_tokens * self.num_ranks)), fewest_per_rank)
        return per_rank * micro_batch_tokens * self.num_ranks, micro_batch_tokens


def best() -> Recipe:
    """The best model for a time budget, such as 10m, derived from measurements, the corpus and the device.

    Without these, it is that of ten minutes on an H200.
    """
    return derive_recipe(BudgetConfig(minutes=10.0), 10**9, ComputeDevice("gpu", "NVIDIA H200", 1.0, 140.0))


def derive_recipe(budget: BudgetConfig, corpus_tokens: int, device: ComputeDevice) -> Recipe:
    """Return the recipe for a budget in minutes; its field `derivation` says what was chosen and why."""
    if not budget.minutes:
        problem = "is missing" if budget == BudgetConfig() else f"is {budget}"
        raise ConfigError(f"`budget` {problem}: the recipe {NAME} is derived from a time of 1m to 60m, such as 10m")
    minutes = budget.minutes * device.speed
    measurement = select_measurement(device.kind, minutes, corpus_tokens)
    num_tokens = measurement.tokens * minutes / measurement.minutes
    num_epochs, settings = num_tokens / max(corpus_tokens, 1), measurement.settings
    if num_epochs > MAX_EPOCHS:
        settings = settings.replace(dropout=max(settings.dropout, REPEATED_TEXT_DROPOUT))
    batch_tokens, micro_batch_tokens = device.divide_batch(
        settings.batch, settings.max_len, settings.objective.min_micro_batches
    )
    num_steps = num_tokens / batch_tokens
    reading = f"{device.speed:.2g} times as fast, reads about {num_tokens / 1e6:,.1f} M tokens"
    derivation = (
        str(settings.replace(batch=batch_tokens)),
        f"{measurement}{_compare_time(measurement, minutes)}",
        f"{budget} on {device.name}, {reading}: {num_epochs:.2g} epochs of the corpus",
    )
    return settings.build_recipe(
        NAME, device.kind == "gpu", budget=budget, batch_tokens=batch_tokens, micro_batch_tokens=micro_batch_tokens,
        eval_every=max(round(num_steps / 5), 20), save_every=max(round(num_steps / 3), 20),
        eval_tokens=min(max(round(EVAL_SHARE * num_tokens), MIN_EVAL_TOKENS), MAX_EVAL_TOKENS),
        log_every=max(round(num_steps / 200), 1), derivation=derivation,
    )  # fmt: skip


def _compare_time(measurement: LedgerEntry, minutes: float) -> str:
    """Say why another measured time than `minutes` was taken; empty if it is the same."""
    if measurement.minutes > minutes:
        return "; no shorter time was measured"
    if select_measurement(measurement.kind, minutes).minutes > measurement.minutes:
        return f"; models of longer times would read the corpus more than {MAX_EPOCHS} times"
    return "" if measurement.minutes == minutes else f"; no longer time up to {minutes:.3g} min was measured"


def select_measurement(kind: DeviceKind, minutes: float, corpus_tokens: float = math.inf) -> LedgerEntry:
    """Return the best measurement of the longest measured time that is not longer than `minutes`, or the shortest one.

    Times in which the measured model read more text than `MAX_EPOCHS` epochs of the corpus are too long as well.
    """
    bests = [candidates[0] for candidates in _cached_measurements(kind).values()]
    fitting = [m for m in bests if m.minutes <= minutes and m.tokens <= MAX_EPOCHS * corpus_tokens]
    return fitting[-1] if fitting else bests[0]


_cached_measurements = cache(read_measurements)

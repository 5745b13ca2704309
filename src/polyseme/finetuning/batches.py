"""The batches of fine-tuning: epochs of each task's examples, and the task of each step.

They depend only on the seed and the number of finished steps, so that a run can continue anywhere.
"""

import math
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import torch

from polyseme.finetuning.config import FinetuneConfig
from polyseme.nn.packing import token_budget_batches
from polyseme.objectives.batch import Batch, ChunkedExtra, Targets
from polyseme.tasks.base import TaskConfig
from polyseme.tasks.encoded import EncodedExample

StepBatches = Iterator[tuple[list[Batch], Any]]  # the micro-batches of each step, and its position


def epoch_batches(
    task: TaskConfig, encoded: Sequence[EncodedExample], config: FinetuneConfig, seed: int, num_done: int = 0
) -> Iterator[tuple[list[Batch], tuple[int, int]]]:
    """Yield the micro-batches of each step after `num_done`, endlessly; (seed, epoch) determines the order."""
    size, codec = config.batch_size, task.codec
    epoch, skipped = divmod(num_done, math.ceil(len(encoded) / size))
    while True:
        order = np.random.default_rng((seed, epoch)).permutation(len(encoded))
        for start in range(skipped * size, len(order), size):
            chosen = [encoded[i] for i in order[start : start + size]]
            parts = token_budget_batches([len(e.ids) for e in chosen], config.micro_batch_tokens)
            batches = [with_settings(codec.collate([chosen[i] for i in part])[0], config) for part in parts]
            yield batches, (epoch, start + size)
        epoch, skipped = epoch + 1, 0


def sample_tasks(sizes: Sequence[int], alpha: float, total_steps: int, seed: int) -> np.ndarray:
    """Draw the task of each step, in proportion to size^α (Stickland and Murray 2019, §3.4)."""
    weights = np.array(sizes, dtype=np.float64) ** alpha
    generator = np.random.default_rng((seed, len(sizes)))
    tasks: np.ndarray = generator.choice(len(sizes), total_steps, p=weights / weights.sum())
    return tasks


def with_settings(batch: Batch, config: FinetuneConfig) -> Batch:
    """Add to a batch what the config asks for: reading in chunks, and the language-model loss."""
    if config.chunk_size:
        batch = replace(batch, extra=ChunkedExtra(config.chunk_size, config.grad_tokens))
    return with_lm_targets(batch, config.lm_loss_weight) if config.lm_loss_weight else batch


def with_lm_targets(batch: Batch, weight: float) -> Batch:
    """Add the language-model loss: every token except the first of a sequence is predicted from those before it."""
    layout = batch.inputs.layout
    rows = torch.ones(layout.num_tokens, dtype=torch.bool).index_fill(0, layout.last_indices, False).nonzero()[:, 0]
    targets = Targets(rows, batch.inputs.tokens.index_select(0, rows + 1), len(rows), weight)
    return replace(batch, targets={**batch.targets, "next": targets})

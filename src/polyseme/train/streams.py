"""The data of a run: micro-batches of an objective in the order of a recipe."""

import logging
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import islice
from typing import Any, Self

import numpy as np
import torch
from torch import Tensor

from polyseme.corpus.sampling import WINDOW_SAMPLES, DataPosition
from polyseme.corpus.store import Corpus
from polyseme.errors import ConfigError, PolysemeError
from polyseme.nn.memory import Memory
from polyseme.objectives.batch import SegmentState
from polyseme.objectives.packing import BatchBuilder, Sampler, SpecialIds, StaticShape
from polyseme.train import distributed
from polyseme.train.recipe import Recipe

logger = logging.getLogger(__name__)


@dataclass
class BatchStream:
    """Micro-batches of a corpus in the order of a sampler, for one rank.

    If batches continue from step to step, `segment_states` holds the memory of each bin of a step. The first
    `num_first_steps` steps are those of another stream, `first`, whose sequences are shorter.
    """

    builder: BatchBuilder
    sampler: Sampler
    shape: StaticShape | None = None
    rank: int = 0
    world_size: int = 1
    segment_states: defaultdict[int, SegmentState] = field(default_factory=lambda: defaultdict(SegmentState))
    first: Self | None = None
    num_first_steps: int = 0

    def steps(self, position: DataPosition, start_step: int = 0) -> Iterator[tuple[list[Any], DataPosition]]:
        """Yield the micro-batches of each step from a position on, endlessly, and the position after the step.

        The steps after those of `first` start at the beginning of their own samples, also if a run is resumed there.
        """
        if self.first is not None and start_step <= self.num_first_steps:
            yield from islice(self.first.steps(position, start_step), self.num_first_steps - start_step)
            position, start_step = DataPosition(), self.num_first_steps
        for sample_bins, next_position in self.sampler.steps(position, self.rank, self.world_size, start_step):
            states = [self.segment_states[self.rank + i * self.world_size] for i in range(len(sample_bins))]
            batches = [self.builder.batch_of_bin(b, self.shape, state) for b, state in zip(sample_bins, states)]
            yield batches, next_position

    def state_dict(self) -> dict[str, Tensor]:
        """Return what is carried from step to step, of all ranks; every rank has to call this."""
        tensors = {
            f"{number}/{name}": tensor.cpu()
            for number, state in list(self.segment_states.items())  # the prefetching thread may add more
            if state.memory is not None
            for name, tensor in state.memory.to_tensors().items()
        }
        return distributed.all_gather_tensors(tensors)

    def load_state_dict(self, tensors: dict[str, Tensor], device: torch.device) -> None:
        """Load what `state_dict` returns, except for the bins of other ranks."""
        tensors_by_number: defaultdict[int, dict[str, Tensor]] = defaultdict(dict)
        for key, tensor in tensors.items():
            prefix, _, name = key.partition("/")
            if int(prefix) % self.world_size == self.rank:
                tensors_by_number[int(prefix)][name] = tensor
        for number, memory_tensors in tensors_by_number.items():
            self.segment_states[number].memory = Memory.from_tensors(memory_tensors, device)


def open_streams(
    recipe: Recipe, corpus: Corpus, special_ids: SpecialIds, rank: int = 0, world_size: int = 1
) -> tuple[BatchStream, BatchBuilder | None]:
    """Return the training data of a recipe, and the builder of validation batches, if documents are held out."""
    train_corpus, valid_corpus = corpus.split(recipe.valid_fraction)
    train_corpus = train_corpus.resample_by_weight()  # after the split, so that no repeated document is held out
    stream = _open_stream(recipe, train_corpus, special_ids, rank, world_size)
    if recipe.short_sequences.max_len:
        stream.first = _open_stream(recipe.first_recipe, train_corpus, special_ids, rank, world_size)
    valid = None
    if valid_corpus is not None:
        try:
            valid = recipe.objective.bind(valid_corpus, special_ids, recipe.max_len, recipe.seed)
        except PolysemeError as error:
            logger.warning("no documents are held out for validation: %s", error)
            return open_streams(recipe.replace(valid_fraction=0.0), corpus, special_ids, rank, world_size)
    elif recipe.optimizer.name == "nt_asgd":
        problem = "nt_asgd depends on the loss on held-out text, and the corpus is too small to hold out any"
        raise ConfigError(f"{problem}: use more documents, or another optimizer")
    return stream, valid


def _open_stream(
    recipe: Recipe, train_corpus: Corpus, special_ids: SpecialIds, rank: int, world_size: int
) -> BatchStream:
    """Return the training data of a recipe whose sequences have one maximum length."""
    builder = recipe.objective.bind(train_corpus, special_ids, recipe.max_len, recipe.seed)
    shape = builder.static_shape(recipe.micro_batch_tokens) if recipe.compile else None
    samples_per_bin = recipe.micro_batch_tokens / float(np.mean(builder.samples.lengths + builder.num_special_tokens))
    sampler = builder.build_sampler(
        recipe.micro_batch_tokens,
        recipe.batch_tokens // recipe.micro_batch_tokens,
        seed=recipe.seed,
        # many bins per window, since the last one is half empty on average
        window_samples=max(WINDOW_SAMPLES, 1 << int(32 * samples_per_bin).bit_length()),
        max_samples=shape.max_samples if shape else 0,
        batch_warmup_steps=recipe.batch_warmup_steps,
    )
    return BatchStream(builder, sampler, shape, rank, world_size)

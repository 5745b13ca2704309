"""The training state of fine-tuning: a learning rate per layer group, frozen groups, gradual unfreezing."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from typing import TYPE_CHECKING

import torch

from polyseme.errors import ConfigError
from polyseme.nn.model import Model
from polyseme.nn.trunks.encoder_decoder import EncoderDecoder
from polyseme.train.loop import StepReport, TrainState, setup_device, train
from polyseme.train.step import can_capture

if TYPE_CHECKING:
    from polyseme.finetuning.config import FinetuneConfig
    from polyseme.finetuning.experiment import Experiment


def build_train_state(experiment: Experiment, seed: int) -> TrainState:
    """Build the model of a seed and its training state."""
    state = train_state(experiment.build(seed), experiment.config, experiment.num_examples, seed)
    state.loss_fn = experiment.loss_fn or state.loss_fn
    if experiment.is_multitask:
        state.use_cuda_graphs = False  # a graph gives unused heads zero gradients instead of none
    return state


def train_state(model: Model, config: FinetuneConfig, num_examples: int, seed: int) -> TrainState:
    """Return a training state whose optimizer has a learning rate for each group of parameters."""
    device = setup_device()
    model = model.to(device)
    groups = layer_groups(model)
    if config.num_frozen_groups > len(groups):
        raise ConfigError(f"cannot freeze {config.num_frozen_groups} groups: the model has {len(groups)}")
    for group in groups[: config.num_frozen_groups]:
        for parameter in group:
            parameter.requires_grad_(False)
    trunk = model.config.trunk
    if config.chunk_size and not (trunk.has_bounded_memory or (trunk.causal and trunk.num_layers)):
        family = model.config.family
        raise ConfigError(f"chunk_size is {config.chunk_size}, but {family} has no memory to continue from")
    precision = config.precision
    if precision == "auto":
        precision = "bf16" if device.type == "cuda" else "float32"
    use_cuda_graphs = (
        device.type == "cuda"
        and precision == "bf16"
        and not has_decoder(model)
        and not any(head.crf for head in model.heads.values())
        and can_capture(model, has_static_shapes=False, is_padded=True)
    )
    optimizer, total_steps = config.optimizer.build(model, groups), config.total_steps(num_examples)
    return TrainState(
        model, optimizer, config.optimizer, config.schedule, total_steps, device, precision, seed,
        use_cuda_graphs=use_cuda_graphs,
    )  # fmt: skip


def has_decoder(model: Model) -> bool:
    """Whether the model answers in text, so that its decoder is used."""
    return isinstance(model.trunk, EncoderDecoder) and "next" in model.heads


def layer_groups(model: Model) -> list[list[torch.nn.Parameter]]:
    """Return the parameters from input to output; only those of the encoder if the decoder is not used."""
    trunk = model.trunk
    if isinstance(trunk, EncoderDecoder) and not has_decoder(model):
        return trunk.encoder.layer_groups()
    return trunk.layer_groups()


def run_phases(experiment: Experiment, state: TrainState, seed: int, num_done: int = 0) -> Iterator[StepReport]:
    """Run the training loop for each phase of unfreezing, from step `num_done` on."""
    groups = layer_groups(state.model)
    if not any(True for _ in state.model.heads.parameters()):
        groups = groups[:-1]  # there is no new head, so the last layer is trained from the start
    bucket_len = state.model.config.trunk.embeddings.max_len if state.use_cuda_graphs else 0
    total = state.total_steps
    for first, end, num_frozen in experiment.config.unfreezing_phases(experiment.num_examples, len(groups)):
        if end <= num_done:
            continue
        for number, group in enumerate(groups):
            for parameter in group:
                parameter.requires_grad_(number >= num_frozen)
        start = max(first, num_done)
        phase = dataclasses.replace(state, start_step=start, schedule_start=first, total_steps=end)
        yield from train(phase, experiment.batches(seed, total, start, state.model.config.trunk, bucket_len))

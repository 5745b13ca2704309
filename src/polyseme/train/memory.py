"""The memory that training needs, computed from shapes: nothing is allocated."""

from __future__ import annotations

import logging
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.autograd.graph import saved_tensors_hooks
from torch.overrides import TorchFunctionMode

from polyseme.errors import ConfigError
from polyseme.machine import read_memory_gb
from polyseme.nn.attention.multihead import NoPositionBiasConfig
from polyseme.nn.layers.adaptive import AdaptiveEmbeddings
from polyseme.nn.layers.char_cnn import CharCNN
from polyseme.nn.losses import MAX_CHUNK_LOGITS
from polyseme.nn.model import Model, ModelConfig, build_meta
from polyseme.nn.packing import EncoderInput, Inputs, PackedLayout
from polyseme.nn.sizes import available_memory
from polyseme.nn.trunks.encoder_decoder import EncoderDecoderConfig
from polyseme.nn.trunks.transformer import TransformerConfig
from polyseme.train.recipe import Recipe

logger = logging.getLogger(__name__)
LARGE_MICRO_BATCH = 16_384  # tokens; the memory of smaller ones is not estimated, which takes a second of imports
MAX_RECURRENT_STEPS = 16
BACKWARD_BUFFERS = 2


@dataclass(frozen=True)
class TrainingMemory:
    """Bytes that training needs on each device; all but `activations` are exact."""

    weights: int
    gradients: int
    optimizer_state: int
    activations: int = 0

    @property
    def total(self) -> int:
        """The sum of all parts."""
        return self.weights + self.gradients + self.optimizer_state + self.activations


@dataclass(frozen=True)
class DeviceMemory:
    """The memory of the device that training runs on: a GPU if there is one."""

    name: str
    num_bytes: int
    is_gpu: bool

    @classmethod
    def detect(cls) -> DeviceMemory:
        """Return the memory of the GPU, or what the machine has available, within the limit of a container."""
        if torch.cuda.is_available():
            properties = torch.cuda.get_device_properties(torch.cuda.current_device())
            return cls(properties.name, properties.total_memory, True)
        limits = [number for number in (available_memory(), int(read_memory_gb() * 2**30)) if number]
        return cls("this machine", min(limits, default=1 << 62), False)


def compute_fixed_memory(recipe: Recipe, model: Model, is_gpu: bool) -> TrainingMemory:
    """Return what weights, gradients and the optimizer take; `model` may be on the meta device.

    On a GPU in bfloat16, there is a working copy of the weights, and gradients of both.
    """
    has_copy = is_gpu and recipe.precision != "float32" and not recipe.objective.is_sparse
    num_params = sum(p.numel() for p in model.parameters())
    num_bytes = num_params * (6 if has_copy else 4)
    state = 4 * recipe.optimizer.count_state(model)
    return TrainingMemory(num_bytes, 0 if recipe.objective.is_sparse else num_bytes, state)


def estimate_memory(recipe: Recipe, model: Model, is_gpu: bool) -> TrainingMemory:
    """Return what training a model on the meta device takes, with an estimate of the activations of a full micro-batch.

    Those are the tensors that autograd keeps for the backward pass of the trunk: a forward pass on the meta device
    counts them, in full-length sequences. On a GPU they are in bfloat16, and attention keeps no scores.
    """
    fixed, activations = compute_fixed_memory(recipe, model, is_gpu), 0
    if not recipe.objective.is_sparse:
        activations = _estimate_activations(recipe, model, is_gpu and recipe.precision != "float32")
    return TrainingMemory(fixed.weights, fixed.gradients, fixed.optimizer_state, activations)


def check_fits(recipe: Recipe, config: ModelConfig) -> None:
    """Raise `ConfigError` if weights, gradients and optimizer state alone exceed the memory of the device.

    Without a GPU, log a warning if the estimate for a large micro-batch exceeds it: a system that runs out of memory
    ends a process without a word.
    """
    device, model = DeviceMemory.detect(), build_meta(config)
    memory = compute_fixed_memory(recipe, model, device.is_gpu)
    if memory.total > device.num_bytes:
        parts = f"weights, gradients and optimizer state take {format_gib(memory.total)}"
        has = f"{device.name} has {format_gib(device.num_bytes)}"
        raise ConfigError(
            f"{recipe.name} does not fit into memory: {parts}, and {has}; choose a smaller model or another device"
        )
    if not device.is_gpu and recipe.micro_batch_tokens >= LARGE_MICRO_BATCH:
        _warn_of_large_batches(recipe, model, device)


def _warn_of_large_batches(recipe: Recipe, model: Model, device: DeviceMemory) -> None:
    """Log a warning if the memory of micro-batches exceeds that of the device, with a size that should fit."""
    estimate, size = estimate_memory(recipe, model, device.is_gpu), recipe.micro_batch_tokens
    if estimate.total <= device.num_bytes:
        return
    available = 0.8 * device.num_bytes - estimate.total + estimate.activations
    largest = available / max(estimate.activations, 1) * size
    while size > largest and size % 2 == 0 and size // 2 >= recipe.max_len:
        size //= 2
    needed = f"{recipe.micro_batch_tokens:,} tokens take about {format_gib(estimate.total)}"
    has = f"{device.name} has {format_gib(device.num_bytes)}"
    logger.warning(
        f"micro-batches of {needed}, and {has}: the system may end the run; set `micro_batch_tokens` to {size}"
    )


def format_gib(num_bytes: float) -> str:
    """Format bytes in GiB, or MiB if there are few."""
    return f"{num_bytes / 2**30:,.1f} GiB" if num_bytes >= 2**30 else f"{num_bytes / 2**20:,.0f} MiB"


def _estimate_activations(recipe: Recipe, model: Model, is_bf16: bool) -> int:
    """Return the bytes of the trunk's saved tensors, and those of the head that predicts tokens."""
    objective, dtype = recipe.objective, torch.bfloat16 if is_bf16 else torch.float32
    config = _without_bias(model.config) if is_bf16 else model.config
    trunk = (model if config is model.config else build_meta(config)).trunk.to(dtype).train()
    # without attention the length does not matter, and a recurrent network has fewer steps
    max_len = recipe.max_len if config.trunk.has_attention else min(recipe.max_len, MAX_RECURRENT_STEPS)
    target_len, source_len = objective.full_lengths(max_len)
    num_sequences = max(recipe.micro_batch_tokens // max(target_len, source_len), 1)
    inputs, has_memory = _build_meta_inputs(num_sequences, target_len, source_len), objective.needs_bounded_memory
    num_bytes = _count_saved_bytes(trunk, inputs, has_memory, is_bf16)
    if objective.needs_query_stream:  # a second stream of the predicted tokens
        num_bytes = int(num_bytes * (1 + objective.predicted_fraction))
    if recipe.gradient_checkpointing:  # the inputs of all layers, and one layer that is recomputed
        one_layer = num_bytes // max(config.trunk.num_layers, 1)
        trunk.set_gradient_checkpointing(True)
        num_bytes = _count_saved_bytes(trunk, inputs, has_memory, is_bf16) + one_layer
    num_rows = int(num_sequences * target_len * objective.predicted_fraction)
    vocab_size = getattr(config.heads[objective.terms[0]], "vocab_size", 0)
    dim, num_logits = config.trunk.dim, min(num_rows * vocab_size, MAX_CHUNK_LOGITS)
    # states and their gradients, the logits of a chunk of rows, the gradient of the output matrix
    return num_bytes + (4 * num_rows * dim + num_logits + vocab_size * dim) * dtype.itemsize


def _without_bias(config: ModelConfig) -> ModelConfig:
    """Return the config without bias on attention scores, which makes a CPU keep them, but no GPU."""

    trunk = config.trunk
    if not isinstance(trunk, EncoderDecoderConfig) or not isinstance(trunk.encoder, TransformerConfig):
        return config
    encoder, decoder = (
        stack.replace(position_bias=NoPositionBiasConfig()) if isinstance(stack, TransformerConfig) else stack
        for stack in (trunk.encoder, trunk.decoder)
    )
    return config.replace(trunk=trunk.replace(encoder=encoder, decoder=decoder))


def _build_meta_inputs(num_sequences: int, target_len: int, source_len: int) -> Inputs:
    layouts = [PackedLayout.from_lengths([n] * num_sequences, device="meta") for n in (target_len, source_len)]
    tokens, source = (torch.zeros(layout.num_tokens, dtype=torch.long, device="meta") for layout in layouts)
    return Inputs(tokens, layouts[0], source=EncoderInput(source, layouts[1]) if source_len else None)


def _count_saved_bytes(trunk: Any, inputs: Inputs, has_memory: bool, is_gpu: bool) -> int:
    """Return the bytes that autograd keeps of a forward pass, without weights; with memory, of a second segment.

    The gradients that the backward pass holds at once are as large as a few of the largest tensors.
    """
    storages: dict[int, Any] = {}

    def save(tensor: Tensor) -> Tensor:
        storage = tensor.untyped_storage()
        if storage._cdata not in weights:
            storages[storage._cdata] = storage  # kept, so that no other gets its address
        return tensor

    if isinstance(getattr(trunk, "embeddings", None), AdaptiveEmbeddings | CharCNN):
        trunk.embeddings = _EmbeddingStub(trunk.embeddings)
    weights = {p.untyped_storage()._cdata for p in trunk.parameters()}
    memory = trunk(inputs, return_memory=True).memory.detach() if has_memory else None
    with saved_tensors_hooks(save, lambda tensor: tensor), _FusedAttention(is_gpu):
        trunk(inputs, memory=memory, return_memory=has_memory)
    sizes = [storage.nbytes() for storage in storages.values()]
    return sum(sizes) + BACKWARD_BUFFERS * max(sizes, default=0)


class _EmbeddingStub(nn.Module):
    """Embeddings whose cost depends on the tokens, which the meta device does not have: their output alone counts."""

    def __init__(self, embeddings: Any):
        super().__init__()
        self.config = embeddings.config
        self.weight = nn.Parameter(torch.empty(1, self.config.dim, device="meta"))

    def forward(self, inputs: Inputs, *_: Any) -> Tensor:
        return self.weight.expand(len(inputs.tokens), -1).clone()  # [T, dim]


class _FusedAttention(TorchFunctionMode):
    """Replaces attention by what its fused kernel keeps: inputs and outputs, no scores.

    On a CPU there is no such kernel with dropout.
    """

    def __init__(self, is_gpu: bool):
        super().__init__()
        self.is_gpu = is_gpu

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is F.scaled_dot_product_attention and (self.is_gpu or not args[4]):
            return _KeepInputs.apply(*args[:3])
        return func(*args, **(kwargs or {}))


class _KeepInputs(torch.autograd.Function):
    """Returns a tensor of the shape of the queries and keeps it, with queries, keys and values."""

    @staticmethod
    def forward(ctx: Any, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        """Keep the inputs and the output."""
        output = torch.empty_like(q)
        ctx.save_for_backward(q, k, v, output)
        return output

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[None, ...]:
        """Not needed: nothing is run backward."""
        raise NotImplementedError

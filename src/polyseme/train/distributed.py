"""The collective operations of the training loop; with one process they do nothing."""

import os
from collections.abc import Callable
from typing import Any, TypeVar

import torch
import torch.distributed as dist
from torch import nn

from polyseme.errors import PolysemeError

ResultT = TypeVar("ResultT")


def init_process_group() -> tuple[int, int]:
    """Join the process group of `torchrun`, if there is one, and return (rank, world size)."""
    world_size = int(os.environ.get("WORLD_SIZE", "1"))
    if world_size == 1:
        return 0, 1
    if not dist.is_initialized():
        if torch.cuda.is_available():
            torch.cuda.set_device(int(os.environ.get("LOCAL_RANK", "0")))
        dist.init_process_group("nccl" if torch.cuda.is_available() else "gloo")
    return dist.get_rank(), world_size


def is_distributed() -> bool:
    """Return whether there are other processes."""
    return dist.is_initialized()


def shutdown() -> None:
    """Wait for the other processes and leave the group."""
    if dist.is_initialized():
        dist.barrier()
        dist.destroy_process_group()


def on_rank_zero(fn: Callable[[], ResultT]) -> ResultT:
    """Call a function on rank 0 only; every rank returns its result or raises its `PolysemeError`."""
    if not dist.is_initialized():
        return fn()
    payload: list[Any] = [None, None]  # value, error
    if dist.get_rank() == 0:
        try:
            payload[0] = fn()
        except PolysemeError as error:
            payload[1] = error
    dist.broadcast_object_list(payload)
    if payload[1] is not None:
        raise payload[1]
    return payload[0]


def all_reduce_counts(counts: dict[str, int], device: torch.device) -> dict[str, int]:
    """Sum counts over all ranks, in one small all-reduce per step."""
    if not dist.is_initialized():
        return counts
    names = sorted(counts)
    totals = all_reduce_sum(torch.tensor([counts[name] for name in names], device=device))
    return dict(zip(names, totals.tolist()))


def all_reduce_grads(model: nn.Module) -> None:
    """Sum gradients over all ranks: losses are already divided by the counts of the step, so this is the mean."""
    if not dist.is_initialized():
        return
    grads = [p.grad for p in model.parameters() if p.grad is not None]  # the same ones on every rank
    flat = torch.cat([grad.flatten() for grad in grads])
    dist.all_reduce(flat)
    for grad, part in zip(grads, flat.split([grad.numel() for grad in grads])):
        grad.copy_(part.view_as(grad))


def broadcast_weights(model: nn.Module) -> None:
    """Copy the weights of rank 0 to every rank."""
    if dist.is_initialized():
        for p in model.parameters():
            dist.broadcast(p.data, 0)


def all_reduce_sum(values: torch.Tensor) -> torch.Tensor:
    """Sum a tensor over all ranks, in place."""
    if dist.is_initialized():
        dist.all_reduce(values)
    return values


def all_gather_tensors(tensors: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """Merge the named tensors of all ranks, whose names differ."""
    if not dist.is_initialized():
        return tensors
    gathered: list[Any] = [None] * dist.get_world_size()
    dist.all_gather_object(gathered, tensors)
    return {name: t for rank_tensors in gathered for name, t in rank_tensors.items()}


def any_rank(flag: bool, device: torch.device) -> bool:
    """Return whether a flag is set on any rank, so that a signal to one process stops all at the same step."""
    return bool(all_reduce_sum(torch.tensor(int(flag), device=device))) if dist.is_initialized() else flag

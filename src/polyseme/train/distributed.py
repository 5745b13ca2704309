"""The few collective operations the loop needs; all do nothing when there is one process."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any, TypeVar

import torch
import torch.distributed as dist
from torch import nn

from polyseme.errors import PolysemeError

ResultT = TypeVar("ResultT")


def init_process_group() -> tuple[int, int]:
    """(rank, world size), joining the group `torchrun` described, if any."""
    world_size = int(os.environ.get("WORLD_SIZE", "1"))
    if world_size == 1:
        return 0, 1
    if not dist.is_initialized():
        if torch.cuda.is_available():
            torch.cuda.set_device(int(os.environ.get("LOCAL_RANK", "0")))
        dist.init_process_group("nccl" if torch.cuda.is_available() else "gloo")
    return dist.get_rank(), world_size


def is_distributed() -> bool:
    """Whether there are other processes."""
    return dist.is_initialized()


def shutdown() -> None:
    """Wait for the others and leave the group."""
    if dist.is_initialized():
        dist.barrier()
        dist.destroy_process_group()


def on_rank_zero(fn: Callable[[], ResultT]) -> ResultT:
    """Let rank 0 do what must be done once, and tell every rank the answer, or the user's mistake."""
    if not dist.is_initialized():
        return fn()
    payload: list[Any] = [None]
    if dist.get_rank() == 0:
        try:
            payload = [("answer", fn())]
        except PolysemeError as error:
            payload = [("error", error)]
    dist.broadcast_object_list(payload)
    kind, value = payload[0]
    if kind == "error":
        raise value
    return value


def all_reduce_counts(counts: dict[str, int], device: torch.device) -> dict[str, int]:
    """Counts over every rank: one small all-reduce a step."""
    if not dist.is_initialized():
        return counts
    names = sorted(counts)
    total = torch.tensor([counts[n] for n in names], device=device)
    dist.all_reduce(total)
    return dict(zip(names, total.tolist()))


def all_reduce_grads(model: nn.Module) -> None:
    """Add every rank's gradients: losses are already divided by the step's counts, so a sum is the mean."""
    if not dist.is_initialized():
        return
    grads = [p.grad for p in model.parameters() if p.grad is not None]  # the same ones on every rank
    flat = torch.cat([grad.flatten() for grad in grads])
    dist.all_reduce(flat)
    for grad, part in zip(grads, flat.split([grad.numel() for grad in grads])):
        grad.copy_(part.view_as(grad))


def broadcast_weights(model: nn.Module) -> None:
    """Give every rank the weights of the first."""
    if dist.is_initialized():
        for p in model.parameters():
            dist.broadcast(p.data, 0)


def all_reduce_sum(values: torch.Tensor) -> torch.Tensor:
    if dist.is_initialized():
        dist.all_reduce(values)
    return values


def all_gather_tensors(tensors: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """The tensors of every rank, which have names of their own."""
    if not dist.is_initialized():
        return tensors
    gathered: list[Any] = [None] * dist.get_world_size()
    dist.all_gather_object(gathered, tensors)
    return {name: t for rank_tensors in gathered for name, t in rank_tensors.items()}


def any_rank(flag: bool, device: torch.device) -> bool:
    """True on every rank if it is on any: a signal that reached one process stops all at the same step."""
    if not dist.is_initialized():
        return flag
    value = torch.tensor(int(flag), device=device)
    dist.all_reduce(value, op=dist.ReduceOp.MAX)
    return bool(value.item())

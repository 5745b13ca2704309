"""The collective operations of the training loop; with one process they do nothing.

A rank that fails leaves the reason in the store of the process group (`share_failure`). A collective operation that
fails because another rank has gone raises a `PolysemeError` with that reason.
"""

import itertools
import json
import os
import re
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from datetime import timedelta
from typing import Any, TypeVar

import torch
import torch.distributed as dist
from torch import Tensor, nn

from polyseme.errors import ConfigError, Interrupted, PolysemeError

ResultT = TypeVar("ResultT")
TIMEOUT_VARIABLE = "POLYSEME_RANK_TIMEOUT"  # environment variable: seconds that a rank waits for the others
DEFAULT_TIMEOUT = 600.0  # compilation, and rank 0 while it verifies the corpus, may take minutes
AGREEMENT_SECONDS = 60.0  # in which every rank has to start
REASON_SECONDS = 3.0  # in which a rank that fails says why, and the others read it
_FAILURE_KEY, _LEAVERS_KEY = "polyseme/failure", "polyseme/leavers"
_agreement_numbers = itertools.count()


class LostRankError(PolysemeError):
    """Another rank has failed, or does not answer."""


def init_process_group() -> tuple[int, int]:
    """Join the process group of `torchrun`, if there is one, and return (rank, world size)."""
    world_size = int(_read_number("WORLD_SIZE", 1))
    if world_size == 1:
        return 0, 1
    if not dist.is_initialized():
        timeout = timedelta(seconds=_read_number(TIMEOUT_VARIABLE, DEFAULT_TIMEOUT))
        if torch.cuda.is_available():
            torch.cuda.set_device(int(_read_number("LOCAL_RANK", 0)))
        try:
            dist.init_process_group("nccl" if torch.cuda.is_available() else "gloo", timeout=timeout)
        except (RuntimeError, ValueError) as error:
            raise LostRankError(f"cannot join a group of {world_size} processes: {_shorten(error)}") from None
    return dist.get_rank(), world_size


def is_distributed() -> bool:
    """Return whether there are other processes."""
    return dist.is_initialized()


def shutdown() -> None:
    """Wait for the other processes and leave the group."""
    if dist.is_initialized():
        with _collective():
            dist.barrier()
        dist.destroy_process_group()


# ------------------------------------------------------------------------------------------------ failures


@contextmanager
def share_failure() -> Iterator[None]:
    """Tell the other ranks why this one failed, if the block fails."""
    try:
        yield
    except Interrupted:  # which all ranks raise
        raise
    except BaseException as error:
        if dist.is_initialized():
            with suppress(RuntimeError):  # the store may be gone too
                if not isinstance(error, LostRankError):
                    _store().compare_set(_FAILURE_KEY, "", _describe_failure(error, dist.get_rank()))
                _leave()
        raise


def _leave() -> None:
    """Note that this rank has failed. If it hosts the store, wait until the others have read why."""
    store, num_others = _store(), dist.get_world_size() - 1
    if dist.get_rank():
        store.add(_LEAVERS_KEY, 1)
    elif os.environ.get("TORCHELASTIC_USE_AGENT_STORE") != "True":
        if dist.get_backend() == "gloo":
            dist.destroy_process_group()  # which ends the operations in which the others wait
        end_time = time.monotonic() + REASON_SECONDS
        while store.add(_LEAVERS_KEY, 0) < num_others and time.monotonic() < end_time:
            time.sleep(0.05)


@contextmanager
def _collective() -> Iterator[None]:
    """Convert the failure of a collective operation to one line, with the reason if another rank gave one."""
    try:
        yield
    except RuntimeError as error:  # of gloo, NCCL or the store
        reason = ""
        with suppress(RuntimeError):
            reason = _wait_for_failure()
        lost = f"lost contact with another rank ({_shorten(error)}): see what it printed, and resume the run"
        raise LostRankError(reason or lost) from None


def _wait_for_failure() -> str:
    """Return the reason that another rank gave, for which it may need a moment; empty if there is none."""
    end_time = time.monotonic() + REASON_SECONDS
    while not _store().check([_FAILURE_KEY]):
        if time.monotonic() > end_time:
            return ""
        time.sleep(0.05)
    return str(_store().get(_FAILURE_KEY).decode())


def _describe_failure(error: BaseException, rank: int) -> str:
    reason = str(error) if isinstance(error, PolysemeError) else f"{type(error).__name__}: {_shorten(error)}"
    return f"rank {rank} failed: {reason}"


def _shorten(error: BaseException) -> str:
    """Return the first sentence of a message, without the line of code that some start with."""
    return re.sub(r"^\[\S+:\d+\] ", "", " ".join(str(error).split())).split(". ")[0][:200]


def _store() -> Any:
    return dist.distributed_c10d._get_default_store()


def _read_number(variable: str, default: float) -> float:
    try:
        number = float(os.environ.get(variable, default))
    except ValueError:
        number = -1.0
    if not 0 <= number <= 1e9:
        raise ConfigError(f"the environment variable {variable} is {os.environ[variable]!r}: it must be a number")
    return number


# ------------------------------------------------------------------------------------------------ agreement


def require_agreement(facts: Mapping[str, Any], seconds: float = AGREEMENT_SECONDS) -> None:
    """Raise a `ConfigError` on every rank unless all have the same facts, and report them within `seconds`."""
    if not dist.is_initialized():
        return
    prefix, rank, problem = f"polyseme/agreement/{next(_agreement_numbers)}", dist.get_rank(), ""
    try:
        store = _store()
        store.set(f"{prefix}/{rank}", json.dumps(facts, sort_keys=True))
        if rank == 0:
            ranks = range(dist.get_world_size())
            problem = _wait_for_keys([f"{prefix}/{r}" for r in ranks], ranks, seconds)
            problem = problem or _compare_facts([json.loads(store.get(f"{prefix}/{r}")) for r in ranks])
            store.set(f"{prefix}/verdict", json.dumps(problem))
        else:
            problem = _wait_for_keys([f"{prefix}/verdict"], [0], seconds + 10)
            problem = problem or json.loads(store.get(f"{prefix}/verdict"))
    except RuntimeError as error:
        raise LostRankError(f"lost contact with rank 0: {_shorten(error)}") from None
    if problem:
        raise ConfigError(problem)


def _wait_for_keys(keys: Sequence[str], ranks: Sequence[int], seconds: float) -> str:
    """Wait for keys that these ranks set; return which does not answer. Raise at once if a rank fails meanwhile."""
    store, end_time = _store(), time.monotonic() + seconds
    while not store.check(list(keys)):
        if store.check([_FAILURE_KEY]) and not store.check(list(keys)):  # a verdict is set before the failure
            raise LostRankError(store.get(_FAILURE_KEY).decode())
        if time.monotonic() > end_time:
            silent_rank = next((rank for key, rank in zip(keys, ranks) if not store.check([key])), ranks[-1])
            return f"rank {silent_rank} did not report within {seconds:.0f} s: is it running, with the same command?"
        time.sleep(0.05)
    return ""


def _compare_facts(facts: Sequence[Mapping[str, Any]]) -> str:
    """Describe the first difference between the facts of rank 0 and those of another."""
    for rank, others in enumerate(facts[1:], start=1):
        for name in {**facts[0], **others}:
            expected, value = facts[0].get(name), others.get(name)
            if value != expected:
                advice = "start all with the same command and code, on storage that they share"
                return f"rank {rank} has {name} {value!r:.80}, rank 0 has {expected!r:.80}: {advice}"
    return ""


# ------------------------------------------------------------------------------------------------ collectives


def on_rank_zero(fn: Callable[[], ResultT]) -> ResultT:
    """Call a function on rank 0 only; every rank returns its result or raises its error."""
    if not dist.is_initialized():
        return fn()
    payload: list[Any] = [None, None]  # value, error
    failure: Exception | None = None
    if dist.get_rank() == 0:
        try:
            payload[0] = fn()
        except PolysemeError as error:
            payload[1] = error
        except Exception as error:
            failure, payload[1] = error, LostRankError(_describe_failure(error, 0))
    with _collective():
        dist.broadcast_object_list(payload)
    if failure is not None:
        raise failure
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
    all_reduce_sum(flat)
    for grad, part in zip(grads, flat.split([grad.numel() for grad in grads])):
        grad.copy_(part.view_as(grad))


def broadcast_weights(model: nn.Module) -> None:
    """Copy the weights and buffers of rank 0 to every rank."""
    if dist.is_initialized():
        for tensor in model.state_dict().values():
            tensor.copy_(_broadcast(tensor, tensor.device))


def broadcast_tensors(tensors: dict[str, Tensor], device: torch.device) -> dict[str, Tensor]:
    """Return the named tensors of rank 0 on every rank; `device` is that of the process group."""
    if not dist.is_initialized():
        return tensors
    sizes = on_rank_zero(lambda: [(name, tensor.shape, tensor.dtype) for name, tensor in tensors.items()])
    is_first = dist.get_rank() == 0
    return {
        name: _broadcast(tensors[name] if is_first else torch.empty(shape, dtype=dtype), device)
        for name, shape, dtype in sizes
    }


def _broadcast(tensor: Tensor, device: torch.device) -> Tensor:
    """Return the tensor of rank 0, where this rank's is. It is sent as bytes: backends support few types."""
    flat = tensor.detach().contiguous().flatten().view(torch.uint8).to(device)
    if flat.numel():
        with _collective():
            dist.broadcast(flat, 0)
    return flat.to(tensor.device).view(tensor.dtype).view(tensor.shape)


def all_reduce_sum(values: Tensor) -> Tensor:
    """Sum a tensor over all ranks, in place."""
    if dist.is_initialized():
        with _collective():
            dist.all_reduce(values)
    return values


def all_gather_tensors(tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    """Merge the named tensors of all ranks, whose names differ."""
    if not dist.is_initialized():
        return tensors
    gathered: list[Any] = [None] * dist.get_world_size()
    with _collective():
        dist.all_gather_object(gathered, tensors)
    return {name: t for rank_tensors in gathered for name, t in rank_tensors.items()}


def any_rank(flag: bool, device: torch.device) -> bool:
    """Return whether a flag is set on any rank, so that a signal to one process stops all at the same step."""
    return bool(all_reduce_sum(torch.tensor(int(flag), device=device))) if dist.is_initialized() else flag

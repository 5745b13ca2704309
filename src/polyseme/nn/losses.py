"""Cross entropy over a large vocabulary: in chunks, with the targets of a teacher, or sampled.

Chunked cross entropy is the CPU counterpart of the kernel `linear_cross_entropy`: the logits of a chunk of rows are
turned into gradients in place, so the logits of all rows, by far the largest tensor, never exist at once. So are those
of student and teacher in distillation.
"""

import math
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

MAX_CHUNK_LOGITS = 1 << 25  # with smaller chunks, accumulating the gradient of the table costs more than is saved
# of student and teacher, by device: 3 times as fast as all at once on a CPU (4,096 rows of 128 over 16,000 tokens)
MAX_SOFT_LOGITS = {"cpu": 1 << 23, "cuda": 1 << 26}


@torch.library.custom_op("polyseme::chunked_cross_entropy", mutates_args=())
def _chunked_cross_entropy(
    hidden: Tensor, weight: Tensor, bias: Tensor | None, targets: Tensor, ignore_index: int, label_smoothing: float
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Return the summed loss and its gradients with respect to hidden states, weight and bias."""
    vocab_size, loss = len(weight), hidden.new_zeros(())
    grad_hidden, grad_weight, grad_bias = (
        torch.empty_like(hidden),
        torch.zeros_like(weight),
        weight.new_zeros(vocab_size),
    )
    chunk_rows = max(MAX_CHUNK_LOGITS // vocab_size, 16)
    buffer = hidden.new_empty(min(chunk_rows, len(hidden)), vocab_size)
    for start in range(0, len(hidden), chunk_rows):
        chunk = hidden[start : start + chunk_rows]
        logits = torch.mm(chunk, weight.T, out=buffer[: len(chunk)])
        if bias is not None:
            logits += bias
        chunk_targets = targets[start : start + chunk_rows]
        is_valid, target_index = chunk_targets != ignore_index, chunk_targets.clamp(min=0)[:, None]
        target_logits, (max_logits, argmax) = logits.gather(1, target_index), logits.max(1, keepdim=True)
        mean_logits = logits.mean(1, keepdim=True) if label_smoothing else 0.0
        torch.softmax(logits, 1, out=logits)
        log_sum_exp = max_logits - logits.gather(1, argmax).log()  # the largest probability cannot be 0
        losses = log_sum_exp - (1 - label_smoothing) * target_logits - label_smoothing * mean_logits
        loss += (losses[:, 0] * is_valid).sum()
        logits.scatter_add_(1, target_index, logits.new_full(target_index.shape, label_smoothing - 1))
        if label_smoothing:
            logits -= label_smoothing / vocab_size
        if not is_valid.all():
            logits *= is_valid[:, None]
        torch.mm(logits, weight, out=grad_hidden[start : start + chunk_rows])
        grad_weight.addmm_(logits.T, chunk)
        if bias is not None:
            grad_bias += logits.sum(0)
    return loss, grad_hidden, grad_weight, grad_bias


@_chunked_cross_entropy.register_fake
def _(hidden: Tensor, weight: Tensor, *_: Any) -> tuple[Tensor, ...]:
    return hidden.new_empty(()), torch.empty_like(hidden), torch.empty_like(weight), weight.new_empty(len(weight))


def _setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
    ctx.save_for_backward(*output[1:])


def _backward(ctx: Any, grad_output: Tensor, *_: Tensor) -> tuple[Tensor | None, ...]:
    grad_hidden, grad_weight, grad_bias = (grad_output * t for t in ctx.saved_tensors)
    return grad_hidden, grad_weight, grad_bias if ctx.needs_input_grad[2] else None, None, None, None


_chunked_cross_entropy.register_autograd(_backward, setup_context=_setup_context)


def is_applicable(x: Tensor) -> bool:
    """Whether `chunked_cross_entropy` supports a tensor: on a CPU, in full precision, with gradients enabled."""
    is_full_precision = x.dtype in (torch.float32, torch.float64) and not torch.is_autocast_enabled("cpu")
    return x.device.type == "cpu" and is_full_precision and torch.is_grad_enabled()


def chunked_cross_entropy(
    hidden: Tensor, weight: Tensor, bias: Tensor | None, targets: Tensor, ignore_index: int, label_smoothing: float = 0
) -> Tensor:
    """Return the summed cross entropy of `hidden @ weight.T + bias` and `targets`, except where `ignore_index`."""
    return _chunked_cross_entropy(hidden, weight, bias, targets, ignore_index, label_smoothing)[0]


@torch.library.custom_op("polyseme::chunked_soft_divergence", mutates_args=())
def _chunked_soft_divergence(
    hidden: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    teacher_hidden: Tensor,
    teacher_weight: Tensor,
    teacher_bias: Tensor | None,
    is_valid: Tensor,
    temperature: float,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Return the summed divergence and its gradients with respect to the student's states, weight and bias."""
    vocab_size, dtype = len(weight), torch.promote_types(hidden.dtype, torch.float32)
    weight, teacher_weight = weight.to(hidden.dtype), teacher_weight.to(teacher_hidden.dtype)
    loss = hidden.new_zeros((), dtype=dtype)
    grad_hidden, grad_weight = torch.empty_like(hidden), torch.zeros_like(weight, dtype=dtype)
    grad_bias = weight.new_zeros(vocab_size, dtype=dtype)
    chunk_rows = soft_chunk_rows(vocab_size, hidden.device)
    for start in range(0, len(hidden), chunk_rows):
        rows = slice(start, start + chunk_rows)
        log_probs, teacher_log_probs = (
            _scaled_log_probs(F.linear(states[rows], table).to(dtype), vector, temperature)
            for states, table, vector in (
                (hidden, weight, bias),
                (teacher_hidden, teacher_weight, teacher_bias),
            )
        )
        difference = teacher_log_probs - log_probs
        teacher_probs = teacher_log_probs.exp_()
        valid = is_valid[rows].to(dtype)
        loss += (difference.mul_(teacher_probs).sum(1) * valid).sum() * temperature**2
        grad_logits = log_probs.exp_().sub_(teacher_probs).mul_(temperature * valid[:, None])
        grad_bias += grad_logits.sum(0)
        grad_logits = grad_logits.to(hidden.dtype)
        grad_hidden[rows] = grad_logits @ weight
        if grad_weight.dtype == hidden.dtype:
            grad_weight.addmm_(grad_logits.T, hidden[rows])
        else:
            grad_weight += grad_logits.T @ hidden[rows]
    return loss, grad_hidden, grad_weight, grad_bias


def soft_chunk_rows(vocab_size: int, device: torch.device) -> int:
    """Return the number of rows whose logits of student and teacher are in memory at once."""
    return max(MAX_SOFT_LOGITS.get(device.type, MAX_SOFT_LOGITS["cpu"]) // vocab_size, 16)


def _scaled_log_probs(logits: Tensor, bias: Tensor | None, temperature: float) -> Tensor:
    """Return log-probabilities at a temperature, in place."""
    if bias is not None:
        logits += bias
    logits /= temperature
    logits -= logits.logsumexp(1, keepdim=True)
    return logits


@_chunked_soft_divergence.register_fake
def _(hidden: Tensor, weight: Tensor, *_: Any) -> tuple[Tensor, ...]:
    dtype = torch.promote_types(hidden.dtype, torch.float32)
    gradients = (
        torch.empty_like(hidden),
        torch.empty_like(weight, dtype=dtype),
        weight.new_empty(len(weight), dtype=dtype),
    )
    return hidden.new_empty((), dtype=dtype), *gradients


def _soft_setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
    ctx.save_for_backward(*output[1:])
    ctx.dtypes = inputs[0].dtype, inputs[1].dtype, inputs[2].dtype if inputs[2] is not None else None


def _soft_backward(ctx: Any, grad_output: Tensor, *_: Tensor) -> tuple[Tensor | None, ...]:
    gradients = [
        (grad_output * gradient).to(dtype) if dtype is not None else None
        for gradient, dtype in zip(ctx.saved_tensors, ctx.dtypes)
    ]
    return *gradients, None, None, None, None, None


_chunked_soft_divergence.register_autograd(_soft_backward, setup_context=_soft_setup_context)
LinearInputs = tuple[Tensor, Tensor, Tensor | None]  # states, output matrix, bias


def chunked_soft_divergence(
    student: LinearInputs, teacher: LinearInputs, is_valid: Tensor, temperature: float
) -> Tensor:
    """Return the summed KL divergence of the student's predictions from the teacher's, over valid rows.

    Both are at a temperature, and the sum is multiplied by its square (Hinton et al. 2015, §2).
    """
    return _chunked_soft_divergence(*student, *teacher, is_valid, temperature)[0]


def sampled_softmax_loss(
    hidden: Tensor, weight: Tensor, bias: Tensor | None, targets: Tensor, ignore_index: int, num_sampled: int
) -> Tensor:
    """Return the summed cross entropy over each target and `num_sampled` other tokens, drawn once for all rows.

    Sampled softmax (Jean et al. 2015, §3.2). Ids are assumed to be sorted from frequent to rare and drawn with
    probability proportional to log(1 + 1 / (id + 1)). The logits are corrected by the expected counts, so that the sum
    is unbiased.
    """
    vocab_size = len(weight)
    is_valid = targets != ignore_index
    targets = targets.masked_fill(~is_valid, 0)
    uniform = torch.rand(num_sampled, device=hidden.device, dtype=torch.float64)
    sampled_ids = ((vocab_size + 1) ** uniform - 1).long().clamp(max=vocab_size - 1)

    expected_counts = num_sampled * torch.log1p(1 / (sampled_ids + 1.0)) / math.log(vocab_size + 1)
    vocab_bias = torch.zeros(vocab_size, device=weight.device, dtype=weight.dtype) if bias is None else bias
    offset = vocab_bias.index_select(0, sampled_ids) - expected_counts.log().to(hidden.dtype)
    sampled_logits = F.linear(hidden, weight.index_select(0, sampled_ids), offset)
    sampled_logits = sampled_logits.masked_fill(sampled_ids[None] == targets[:, None], -1e9)  # accidental hits
    true_logits = (hidden * weight.index_select(0, targets)).sum(-1) + vocab_bias.index_select(0, targets)
    logits = torch.cat([true_logits[:, None], sampled_logits], dim=-1).float()
    return ((logits.logsumexp(-1) - logits[:, 0]) * is_valid).sum()

"""Sampled softmax: a target against a few sampled tokens instead of the whole vocabulary (Jean et al. 2015, §3.2)."""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import Tensor


def sampled_softmax_loss(
    hidden: Tensor, weight: Tensor, bias: Tensor | None, targets: Tensor, ignore_index: int, num_sampled: int
) -> Tensor:
    """Return the summed cross entropy over each target and `num_sampled` other tokens, drawn once for all rows.

    Ids are assumed to be sorted from frequent to rare and drawn with probability proportional to
    log(1 + 1 / (id + 1)). The logits are corrected by the expected counts, so that the sum is unbiased.
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

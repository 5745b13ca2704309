"""Sampled softmax: a token against a few others instead of the whole vocabulary (Jean et al. 2015, §3.2)."""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import Tensor


def sampled_loss(
    states: Tensor, matrix: Tensor, bias: Tensor | None, values: Tensor, ignored: int, number: int
) -> Tensor:
    """The summed cross entropy among the truth and `number` others, drawn once for all rows.

    An id is drawn with a probability that falls as log(1 + 1 / (id + 1)): ids are taken to go from frequent to rare.
    What is drawn often counts less for it, so that the sum over the others is right on average.
    """
    size = len(matrix)
    known = values != ignored
    values = values.masked_fill(~known, 0)
    chance = torch.rand(number, device=states.device, dtype=torch.float64)
    drawn = ((size + 1) ** chance - 1).long().clamp(max=size - 1)

    often = number * torch.log1p(1 / (drawn + 1.0)) / math.log(size + 1)  # how often each is drawn on average
    own = torch.zeros(size, device=matrix.device, dtype=matrix.dtype) if bias is None else bias
    offset = own.index_select(0, drawn) - often.log().to(states.dtype)
    others = F.linear(states, matrix.index_select(0, drawn), offset)
    others = others.masked_fill(drawn[None] == values[:, None], -1e9)  # the truth is not among the others
    true = (states * matrix.index_select(0, values)).sum(-1) + own.index_select(0, values)
    scores = torch.cat([true[:, None], others], dim=-1).float()
    return ((scores.logsumexp(-1) - scores[:, 0]) * known).sum()

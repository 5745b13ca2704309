"""Linear probes: multinomial logistic regression with L2, and its description length by online coding.

The objective is Σ −log p(label) + λ/2 ‖W‖², with a bias that is not penalized, as in scikit-learn with C = 1/λ. It is
convex, so a probe depends on its data alone, not on a random start.
"""

import math
from dataclasses import dataclass
from itertools import pairwise
from typing import Self

import numpy as np
import torch
from torch import Tensor

L2_GRID = tuple(10.0 ** (k / 2) for k in range(-2, 11))  # strengths of L2, 0.1 to 100,000
MAX_SEARCH_ITEMS = 8000  # the objective is a sum, so the best strength hardly depends on their number
FIRST_L2 = 6  # index of the strength that the search starts from
MAX_ITERATIONS = 60
TOLERANCE = 1e-5  # change of the loss per item, in nats, at which a fit ends
HISTORY_SIZE = 10
# Ends of the blocks of online coding, in percent of the items (Voita and Titov 2020, §3.2).
BLOCK_ENDS = (0.1, 0.2, 0.4, 0.8, 1.6, 3.2, 6.25, 12.5, 25.0, 50.0, 100.0)


@dataclass(frozen=True, eq=False)
class ProbeInputs:
    """Standardized features of items, rotated to their principal axes, and the variance along each axis.

    The rotation changes neither the objective nor its penalty. It makes the Hessian nearly diagonal, so that L-BFGS
    takes tens of steps rather than hundreds.
    """

    features: Tensor  # float32 [items, dim]
    variances: Tensor  # float32 [dim]

    @classmethod
    def from_features(cls, features: np.ndarray, fitted: np.ndarray) -> Self:
        """Standardize with the mean and deviation of the `fitted` items; a constant feature becomes 0."""
        matrix = torch.from_numpy(np.ascontiguousarray(features, dtype=np.float32))
        sample = matrix[torch.from_numpy(fitted)]
        mean, std = sample.mean(0), sample.std(0, correction=0)
        scale = torch.where(std > 1e-6 * (1 + mean.abs()), 1 / std.clamp_min(1e-30), 0.0)
        sample = (sample - mean) * scale
        variances, axes = torch.linalg.eigh(sample.T @ sample / len(sample))
        return cls(((matrix - mean) * scale) @ axes, variances.clamp_min(0))


@dataclass(frozen=True, eq=False)
class LinearProbe:
    """The weights [dim, labels] and bias [labels] of a probe over `ProbeInputs`."""

    weights: Tensor
    bias: Tensor

    def log_probs(self, features: Tensor) -> Tensor:
        """Return the log-probability of each label, [items, labels]."""
        return torch.addmm(self.bias, features, self.weights).log_softmax(-1)

    def count_bits(self, features: Tensor, labels: Tensor) -> float:
        """Return the number of bits of a code for the labels."""
        chosen = self.log_probs(features).gather(1, labels[:, None])
        return -float(chosen.double().sum()) / math.log(2)


def fit_probe(
    features: Tensor,
    labels: Tensor,
    num_labels: int,
    variances: Tensor,
    l2: float,
    start: LinearProbe | None = None,
    tolerance: float = TOLERANCE,
) -> LinearProbe:
    """Minimize the objective by L-BFGS on the full batch, with variables scaled by a bound of the curvature."""
    num_items, dim = features.shape
    scale = (0.25 * num_items * variances + l2).rsqrt()[:, None] * math.sqrt(num_items)
    bias_scale = 2.0
    parameters = torch.zeros(dim + 1, num_labels)
    if start is not None:
        parameters[:-1], parameters[-1] = start.weights / scale, start.bias / bias_scale
    parameters.requires_grad_()
    optimizer = torch.optim.LBFGS(
        [parameters],
        max_iter=MAX_ITERATIONS,
        tolerance_grad=0,
        tolerance_change=tolerance,
        history_size=HISTORY_SIZE,
        line_search_fn="strong_wolfe",
    )
    rows = torch.arange(num_items)

    def compute_loss() -> Tensor:
        with torch.no_grad():
            weights = parameters[:-1] * scale
            log_probs = torch.addmm(parameters[-1] * bias_scale, features, weights).log_softmax(-1)
            loss = -log_probs[rows, labels].mean() + l2 / (2 * num_items) * weights.square().sum()
            errors = log_probs.exp_()
            errors[rows, labels] -= 1
            gradient = torch.empty_like(parameters)
            gradient[:-1] = scale / num_items * torch.addmm(l2 * weights, features.T, errors)
            gradient[-1] = bias_scale / num_items * errors.sum(0)
            parameters.grad = gradient
        return loss

    optimizer.step(compute_loss)
    solution = parameters.detach()
    return LinearProbe(solution[:-1] * scale, solution[-1] * bias_scale)


def choose_l2(inputs: ProbeInputs, labels: Tensor, num_labels: int, train: Tensor, held_out: Tensor) -> float:
    """Return the strength of L2 with which a probe trained on `train` codes the held-out labels best.

    The search goes along the grid, first to weaker strengths, as long as the code gets shorter.
    """
    train = train[:MAX_SEARCH_ITEMS]
    features, held_out_features = inputs.features[train], inputs.features[held_out]

    def try_strength(index: int, start: LinearProbe | None) -> tuple[float, LinearProbe]:
        probe = fit_probe(features, labels[train], num_labels, inputs.variances, L2_GRID[index], start)
        return probe.count_bits(held_out_features, labels[held_out]), probe

    best_index = FIRST_L2
    best_bits, first_probe = try_strength(FIRST_L2, None)
    for step in (-1, 1):
        index, probe = FIRST_L2 + step, first_probe
        while 0 <= index < len(L2_GRID) and best_index == index - step:
            bits, probe = try_strength(index, probe)
            if bits < best_bits:
                best_bits, best_index = bits, index
            index += step
        if best_index != FIRST_L2:
            break
    return L2_GRID[best_index]


def online_codelength(
    inputs: ProbeInputs, labels: Tensor, num_labels: int, order: Tensor, l2: float
) -> tuple[float, LinearProbe | None]:
    """Return the bits of the labels in `order` by online coding (Voita and Titov 2020, §2.2), and the last probe.

    The strength of L2 is sent first, as its index in the grid. The first block is sent by the uniform code, each later
    one by the probe trained on all blocks before it. The receiver knows the features.
    """
    num_items = len(order)
    ends = sorted({max(round(num_items * percent / 100), 1) for percent in BLOCK_ENDS})
    bits, probe = math.log2(len(L2_GRID)) + ends[0] * math.log2(num_labels), None
    for end, next_end in pairwise(ends):
        known, block = order[:end], order[end:next_end]
        probe = fit_probe(inputs.features[known], labels[known], num_labels, inputs.variances, l2, probe)
        bits += probe.count_bits(inputs.features[block], labels[block])
    return bits, probe

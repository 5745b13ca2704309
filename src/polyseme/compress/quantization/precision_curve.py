"""Quality against bits per weight: matrices rounded to the nearest of 2ⁿ - 1 values, with a scale per row."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from dataclasses import replace

import torch
from torch import Tensor, nn

from polyseme.compress.examples import QualityExamples
from polyseme.compress.result import CurvePoint
from polyseme.inference.neural_lm import NeuralLM
from polyseme.nn.model import Model

SIMULATED_BITS = (8, 6, 5, 4, 3, 2)
SCALE_BYTES, VECTOR_BYTES = 2, 2  # bfloat16 scales, biases and norms


def round_matrix(matrix: Tensor, num_bits: int) -> Tensor:
    """Round each row to a symmetric grid of 2ⁿ - 1 values up to its largest number."""
    max_level = 2 ** (num_bits - 1) - 1
    scale = matrix.abs().amax(1, keepdim=True) / max_level
    scale = torch.where(scale > 0, scale, 1.0)
    return (matrix / scale).round().clamp(-max_level, max_level) * scale


def round_model(model: Model, num_bits: int) -> Model:
    """Return a copy of a model whose matrices have few bits per weight; 16 is bfloat16, also for vectors."""
    rounded = copy.deepcopy(model)
    with torch.no_grad():
        for parameter in _unique_parameters(rounded):
            if num_bits == 16:
                parameter.copy_(parameter.bfloat16())
            elif parameter.ndim == 2:
                parameter.copy_(round_matrix(parameter.float(), num_bits))
    return rounded


def count_weight_megabytes(model: Model, num_bits: int) -> float:
    """Return the size of the weights if matrices have some bits per weight; 32 and 16 also for vectors."""
    num_bytes = 0.0
    for parameter in _unique_parameters(model):
        if num_bits in (16, 32):
            num_bytes += parameter.numel() * num_bits / 8
        elif parameter.ndim == 2:
            num_bytes += parameter.numel() * num_bits / 8 + SCALE_BYTES * len(parameter)
        else:
            num_bytes += VECTOR_BYTES * parameter.numel()
    return num_bytes / 1e6


def precision_curve(
    network: NeuralLM, examples: QualityExamples, before: float, chosen: str, score: float
) -> Iterator[CurvePoint]:
    """Yield the metric at 32, 16, 8 and fewer bits per weight, computed in float32, and that of the chosen model."""
    model = network.model
    yield CurvePoint("float32", count_weight_megabytes(model, 32), before, series="rounded weights")
    for num_bits in (16, *SIMULATED_BITS):
        label = {16: "bfloat16", 8: "int8"}.get(num_bits, f"{num_bits} bits")
        size = count_weight_megabytes(model, num_bits)
        if label == chosen:
            yield CurvePoint(label, size, score, chosen=True, series="rounded weights")
            continue
        folder = replace(network.folder, model=round_model(model, num_bits))
        rounded = NeuralLM(folder, str(network.device), network.max_batch_tokens, network.tasks)
        yield CurvePoint(label, size, examples.evaluate(rounded), series="rounded weights")


def _unique_parameters(model: Model) -> list[nn.Parameter]:
    return list({id(parameter): parameter for parameter in model.parameters()}.values())

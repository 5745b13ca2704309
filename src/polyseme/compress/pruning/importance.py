"""Importance of attention heads and feed-forward units, by gradients or by the norms of weights."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import ExitStack
from typing import Any

import torch
from torch import Tensor

from polyseme.nn.model import Model

Importance = dict[str, Tensor]  # name of a sublayer's module -> the importance of its parts
LossFn = Callable[[Model, Sequence[int]], Tensor]  # summed loss of some examples


def gradient_importance(
    model: Model, sizes: Mapping[str, int], output: str, loss_fn: LossFn, indices: Iterable[int]
) -> Importance:
    """Return the mean over examples of |∂loss / ∂gate|, where a gate of 1 multiplies each part of a sublayer.

    This is the importance of Michel et al. 2019 (§4.1). By the chain rule the derivative is the sum of activation ×
    gradient over the tokens of an example, and over the layers that share the sublayer. `sizes` has the number of parts
    of each sublayer, whose activations are the inputs of its layer `output`.
    """
    activations: dict[str, list[Tensor]] = {}

    def record(name: str) -> Callable[[Any, tuple[Tensor, ...]], None]:
        return lambda _, inputs: activations[name].append(inputs[0])

    totals = {name: torch.zeros(size, dtype=torch.float64) for name, size in sizes.items()}
    num_examples = 0
    with ExitStack() as stack:
        for name in sizes:
            hook = model.get_submodule(f"{name}.{output}").register_forward_pre_hook(record(name))
            stack.callback(hook.remove)
        for i in indices:
            activations |= {name: [] for name in sizes}
            with torch.enable_grad():
                loss = loss_fn(model, [i])
            inputs = [(name, tensor) for name, tensors in activations.items() for tensor in tensors]
            grads = torch.autograd.grad(loss, [tensor for _, tensor in inputs], allow_unused=True)
            gates = {name: torch.zeros_like(total) for name, total in totals.items()}
            for (name, tensor), grad in zip(inputs, grads):
                if grad is not None:
                    products = (tensor.detach() * grad).sum(0).double().cpu()  # [parts · size of a part]
                    gates[name] += products.view(sizes[name], -1).sum(1)
            for name, gate in gates.items():
                totals[name] += gate.abs()
            num_examples += 1
    return {name: total / num_examples for name, total in totals.items()}


def norm_importance(model: Model, sizes: Mapping[str, int]) -> Importance:
    """Return the product of the norms of a feed-forward unit's weights before and after the activation."""
    importance = {}
    for name, size in sizes.items():
        ffn: Any = model.get_submodule(name)
        rows = ffn.up.weight.detach().double().view(-1, size, ffn.up.in_features)
        importance[name] = (rows.square().sum((0, 2)).sqrt() * ffn.down.weight.detach().double().norm(dim=0)).cpu()
    return importance


def random_importance(sizes: Mapping[str, int], seed: int) -> Importance:
    """Return random numbers, for a comparison with chance."""
    generator = torch.Generator().manual_seed(seed)
    return {name: torch.rand(size, generator=generator, dtype=torch.float64) for name, size in sizes.items()}


def keep_most_important(importance: Importance, num_removed: Callable[[int], int]) -> dict[str, list[int]]:
    """Return the parts of each sublayer that stay, in order; `num_removed` maps a number of parts to that of removed.

    Of equally important parts, the first ones stay.
    """
    choice = {}
    for name, scores in importance.items():
        order = torch.argsort(scores, descending=True, stable=True).tolist()
        choice[name] = sorted(order[: len(order) - num_removed(len(order))])
    return choice


def keep_most_important_of_all(importance: Importance, num_removed: int) -> dict[str, list[int]]:
    """Return the parts of each sublayer that stay if those of all sublayers are ranked together.

    Each sublayer keeps its most important part. Of equally important parts, the first ones stay.
    """
    choice = {name: set(range(len(scores))) for name, scores in importance.items()}
    scored = [(score, name, i) for name, scores in importance.items() for i, score in enumerate(scores.tolist())]
    for _, name, i in sorted(reversed(scored), key=lambda row: row[0]):
        if not num_removed:
            break
        if len(choice[name]) > 1:
            choice[name].remove(i)
            num_removed -= 1
    return {name: sorted(parts) for name, parts in choice.items()}

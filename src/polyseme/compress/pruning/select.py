"""What is removed: layers, heads, feed-forward units or weights, by the strategy of a config."""

import copy
from collections.abc import Sequence
from typing import Any

import torch

from polyseme.compress.pruning.config import PruningConfig
from polyseme.compress.pruning.examples import PruningExamples
from polyseme.compress.pruning.importance import (
    Importance,
    gradient_importance,
    keep_most_important,
    norm_importance,
    random_importance,
)
from polyseme.compress.pruning.structure import (
    ATTENTION_SUBLAYERS,
    Choice,
    check_heads,
    list_stacks,
    select_heads,
    select_layers,
    select_units,
    sublayer_names,
    zero_heads,
)
from polyseme.errors import UnsupportedError
from polyseme.nn.model import Model


def prune_model(model: Model, config: PruningConfig, examples: PruningExamples | None) -> tuple[Model, dict[str, Any]]:
    """Return a smaller copy of a model, and what was removed as plain values."""
    if config.part == "layers":
        return _prune_layers(model, config, examples)
    if config.part == "weights":
        return _prune_weights(model, config)
    if config.part == "heads":
        check_heads(model.config)
    sublayers = ATTENTION_SUBLAYERS if config.part == "heads" else ("ffn",)
    groups = sublayer_names(model.config, sublayers)
    size_field = "num_heads" if config.part == "heads" else "ffn_dim"
    sizes = {name: getattr(model.get_submodule(name).config, size_field) for name in groups}
    importance = _measure(model, config, examples, sizes)
    choice = {
        name: parts
        for first, parts in keep_most_important(importance, config.num_removed).items()
        for name in groups[first]
    }
    removed = {name: sorted(set(range(sizes[name])) - set(choice[name])) for name in groups}
    counts = {"removed": sum(map(len, removed.values())), "total": sum(sizes.values())}
    record = {**counts, "by_sublayer": removed} if config.part == "heads" else counts
    if config.part == "heads":
        record["importance"] = {name: [round(v, 8) for v in scores.tolist()] for name, scores in importance.items()}
        return (zero_heads if config.pad else select_heads)(model, choice), record
    return select_units(model, choice), record


def _measure(
    model: Model, config: PruningConfig, examples: PruningExamples | None, sizes: dict[str, int]
) -> Importance:
    if config.strategy == "random":
        return random_importance(sizes, config.seed)
    if config.strategy == "norm":
        return norm_importance(model, sizes)
    assert examples is not None, "importance needs examples"
    output = "out" if config.part == "heads" else "down"
    return gradient_importance(model, sizes, output, examples.loss, spread(examples.num_examples, config.max_examples))


def spread(total: int, max_count: int) -> list[int]:
    """Return up to `max_count` evenly spaced indices."""
    count = min(total, max_count)
    return [i * total // count for i in range(count)]


def _prune_layers(
    model: Model, config: PruningConfig, examples: PruningExamples | None
) -> tuple[Model, dict[str, Any]]:
    """Remove layers of each stack; the first one stays if it lacks the norm that the others have (ModernBERT)."""
    stacks = list_stacks(model.config)
    choice: dict[str, Sequence[int]] = {prefix: range(stack.num_layers) for prefix, stack in stacks.items()}
    losses: list[float] = []
    for prefix, stack in stacks.items():
        count, first = config.num_removed(stack.num_layers), stack.block_configs[0].skip_attention_pre_norm
        candidates = range(int(first), stack.num_layers)
        if config.strategy == "loss" and examples is not None:
            choice[prefix] = _remove_by_loss(model, choice, prefix, candidates, count, examples, config, losses)
            continue
        order = _removal_order(config, candidates)
        choice[prefix] = [i for i in choice[prefix] if i not in order[:count]]
    removed = {
        prefix: [i for i in range(stack.num_layers) if i not in choice[prefix]] for prefix, stack in stacks.items()
    }
    record = {
        "removed": sum(map(len, removed.values())),
        "total": sum(stack.num_layers for stack in stacks.values()),
        "removed_layers": {prefix.removesuffix("."): [i + 1 for i in layers] for prefix, layers in removed.items()},
    }
    return select_layers(model, choice), record | ({"losses": losses} if losses else {})


def _removal_order(config: PruningConfig, candidates: range) -> list[int]:
    """Return layers in the order in which they are removed."""
    top_first = list(reversed(candidates))
    if config.strategy == "alternate":
        return top_first[::2] + top_first[1::2]
    if config.strategy == "random":
        generator = torch.Generator().manual_seed(config.seed)
        return [candidates[i] for i in torch.randperm(len(candidates), generator=generator).tolist()]
    return top_first


def _remove_by_loss(
    model: Model,
    choice: Choice,
    prefix: str,
    candidates: range,
    count: int,
    examples: PruningExamples,
    config: PruningConfig,
    losses: list[float],
) -> list[int]:
    """Remove layers one by one, each time that without which the loss is lowest; append these losses."""
    indices = spread(examples.num_examples, config.max_examples)
    layers = list(choice[prefix])
    for _ in range(count):
        options = {
            layer: examples.mean_loss(
                select_layers(model, {**choice, prefix: [i for i in layers if i != layer]}), indices
            )
            for layer in layers
            if layer in candidates
        }
        worst = min(options, key=lambda layer: options[layer])
        layers.remove(worst)
        losses.append(options[worst])
    return layers


def _prune_weights(model: Model, config: PruningConfig) -> tuple[Model, dict[str, Any]]:
    """Set the smallest weights of the hidden layers to zero, all matrices together."""
    pruned = copy.deepcopy(model)
    weights = [weight.data for weight in {id(weight): weight for weight, _ in pruned.trunk.hidden_matrices()}.values()]
    if not weights:
        raise UnsupportedError(f"weights of {model.config.family} models cannot be pruned: there are no hidden layers")
    sizes = [weight.numel() for weight in weights]
    count = config.num_removed(sum(sizes))
    if config.strategy == "random":
        generator = torch.Generator().manual_seed(config.seed)
        scores = torch.rand(sum(sizes), generator=generator).to(weights[0].device)
    else:
        scores = torch.cat([weight.abs().flatten() for weight in weights])
    is_removed = torch.zeros_like(scores, dtype=torch.bool)
    is_removed[torch.topk(scores, count, largest=False).indices] = True
    for weight, mask in zip(weights, is_removed.split(sizes)):
        weight.masked_fill_(mask.view_as(weight), 0)
    return pruned, {"removed": count, "total": sum(sizes)}

"""What is removed: layers, heads or feed-forward units, by the strategy of a config."""

from collections.abc import Callable, Sequence
from typing import Any

import torch

from polyseme.compress.examples import QualityExamples
from polyseme.compress.pruning.config import PruningConfig
from polyseme.compress.pruning.importance import (
    Importance,
    gradient_importance,
    keep_most_important,
    keep_most_important_of_all,
    norm_importance,
    random_importance,
)
from polyseme.compress.pruning.masks import WeightMasks
from polyseme.compress.pruning.structure import (
    Choice,
    Parts,
    list_heads,
    list_stacks,
    list_units,
    select_heads,
    select_layers,
    select_units,
    zero_heads,
)
from polyseme.nn.model import Model

Pruned = tuple[Model, dict[str, Any]]  # a smaller copy of a model, and what was removed as plain values
PruneFn = Callable[[PruningConfig], Pruned]  # the config may have another amount than that of the ranking


def prune_model(model: Model, config: PruningConfig, examples: QualityExamples | None) -> Pruned:
    """Return a smaller copy of a model, and what was removed as plain values."""
    return rank_parts(model, config, examples)(config)


def rank_parts(model: Model, config: PruningConfig, examples: QualityExamples | None) -> PruneFn:
    """Measure once what a part of a model is worth, and return a function that removes any amount of it."""
    if config.part == "layers":
        return LayerRanking(model, config, examples).prune
    if config.part == "weights":
        return lambda each: _prune_weights(model, each)
    parts = list_heads(model) if config.part == "heads" else list_units(model)
    importance = _measure(model, config, examples, parts)
    return lambda each: prune_by_importance(model, each, parts, importance)


def prune_by_importance(model: Model, config: PruningConfig, parts: Parts, importance: Importance) -> Pruned:
    """Remove the least important heads or units; `importance` is that of each group of sublayers."""
    if parts.is_uniform or config.uniform:
        chosen = keep_most_important(importance, config.num_removed)
    else:
        count = config.num_removed(sum(parts.sizes.values()), len(parts.sizes))
        chosen = keep_most_important_of_all(importance, count)
    stays = {sublayer: chosen[group] for group, sublayers in parts.groups.items() for sublayer in sublayers}
    choice = {name: stays[sublayer] for sublayer, names in parts.names.items() for name in names}
    removed = {name: sorted(set(range(size)) - set(stays[name])) for name, size in parts.sizes.items()}
    record: dict[str, Any] = {"removed": sum(map(len, removed.values())), "total": sum(parts.sizes.values())}
    if config.part == "ffn":
        return select_units(model, choice), record
    record["by_sublayer"] = removed
    record["importance"] = {name: [round(v, 8) for v in scores.tolist()] for name, scores in importance.items()}
    return (zero_heads if config.pad else select_heads)(model, choice), record


def _measure(model: Model, config: PruningConfig, examples: QualityExamples | None, parts: Parts) -> Importance:
    """Return the importance of the parts of each group, summed over its sublayers."""
    if config.strategy == "random":
        return random_importance(parts.group_sizes, config.seed)
    if config.strategy == "norm":
        importance = norm_importance(model, parts.sizes)
    else:
        assert examples is not None, "importance needs examples"
        output = "out" if config.part == "heads" else "down"
        indices = spread(examples.num_examples, config.max_examples)
        importance = gradient_importance(model, parts.sizes, output, examples.loss, indices)
    return {name: torch.stack([importance[each] for each in group]).sum(0) for name, group in parts.groups.items()}


def spread(total: int, max_count: int) -> list[int]:
    """Return up to `max_count` evenly spaced indices."""
    count = min(total, max_count)
    return [i * total // count for i in range(count)]


class LayerRanking:
    """The order in which the layers of each stack are removed.

    The first layer stays if it lacks the norm that the others have (ModernBERT).
    """

    def __init__(self, model: Model, config: PruningConfig, examples: QualityExamples | None):
        self.model, self.config, self.examples = model, config, examples
        self.stacks = list_stacks(model.config)
        self._orders: dict[Any, tuple[list[int], list[float]]] = {}  # found by loss, as far as they were needed

    def prune(self, config: PruningConfig) -> Pruned:
        """Remove layers of each stack."""
        choice: dict[str, Sequence[int]] = {prefix: range(stack.num_layers) for prefix, stack in self.stacks.items()}
        losses: list[float] = []
        for prefix, stack in self.stacks.items():
            count, first = config.num_removed(stack.num_layers), stack.block_configs[0].skip_attention_pre_norm
            candidates = range(int(first), stack.num_layers)
            if config.strategy == "loss":
                order, order_losses = self._order_by_loss(choice, prefix, candidates, count)
                losses += order_losses[:count]
            else:
                order = _removal_order(config, candidates)
            choice[prefix] = [i for i in choice[prefix] if i not in order[:count]]
        removed = {
            prefix: [i for i in range(stack.num_layers) if i not in choice[prefix]]
            for prefix, stack in self.stacks.items()
        }
        record = {
            "removed": sum(map(len, removed.values())),
            "total": sum(stack.num_layers for stack in self.stacks.values()),
            "removed_layers": {prefix.removesuffix("."): [i + 1 for i in layers] for prefix, layers in removed.items()},
        }
        return select_layers(self.model, choice), record | ({"losses": losses} if losses else {})

    def _order_by_loss(
        self, choice: Choice, prefix: str, candidates: range, count: int
    ) -> tuple[list[int], list[float]]:
        """Return at least `count` layers, each that without which the loss is lowest, and these losses."""
        assert self.examples is not None, "the loss needs examples"
        key = prefix, tuple(tuple(layers) for layers in choice.values())
        order, losses = self._orders.setdefault(key, ([], []))
        indices = spread(self.examples.num_examples, self.config.max_examples)
        while len(order) < count:
            left = [i for i in choice[prefix] if i not in order]
            options = {
                layer: self.examples.mean_loss(
                    select_layers(self.model, {**choice, prefix: [i for i in left if i != layer]}), indices
                )
                for layer in left
                if layer in candidates
            }
            order.append(min(options, key=lambda layer: options[layer]))
            losses.append(options[order[-1]])
        return order, losses


def _removal_order(config: PruningConfig, candidates: range) -> list[int]:
    """Return layers in the order in which they are removed."""
    top_first = list(reversed(candidates))
    if config.strategy == "alternate":
        return top_first[::2] + top_first[1::2]
    if config.strategy == "random":
        generator = torch.Generator().manual_seed(config.seed)
        return [candidates[i] for i in torch.randperm(len(candidates), generator=generator).tolist()]
    return top_first


def _prune_weights(model: Model, config: PruningConfig) -> Pruned:
    """Set weights of the hidden layers to zero, all matrices together."""
    masks = WeightMasks.copy_of(model)
    count = config.num_removed(masks.total)
    masks.prune(count, config.seed if config.strategy == "random" else None)
    return masks.model, {"removed": count, "total": masks.total}

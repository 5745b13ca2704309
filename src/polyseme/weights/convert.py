"""Conversion between our tensor names and published ones, by a family's weight maps."""

from collections.abc import Iterator, Mapping
from dataclasses import replace
from itertools import chain

import torch
from torch import Tensor

from polyseme.errors import ModelError
from polyseme.families import Family
from polyseme.families.hf import WeightMap
from polyseme.nn.model import ModelConfig


def expand_weight_maps(family: Family, config: ModelConfig) -> Iterator[WeightMap]:
    """Yield the weight maps of a config, with layer indices filled in."""
    for weight_map in family.weight_maps(config) if callable(family.weight_maps) else family.weight_maps:
        if "{}" not in weight_map.name:
            yield weight_map
            continue
        for i in range(config.trunk.num_blocks):
            published_names = tuple(name.replace("{}", str(i)) for name in weight_map.published_names)
            yield replace(weight_map, name=weight_map.name.replace("{}", str(i)), published_names=published_names)
    for head in config.heads:
        yield from family.head_maps(head, config)


def to_published(
    family: Family, config: ModelConfig, state: Mapping[str, Tensor]
) -> tuple[dict[str, Tensor], set[str]]:
    """Return tensors under their published names, and our names that have none."""
    published: dict[str, Tensor] = {}
    unpublished = set(state)
    for weight_map in expand_weight_maps(family, config):
        names = weight_map.published_names
        # if two heads share a published name, the first one gets it
        if weight_map.name not in state or not published.keys().isdisjoint(names):
            continue
        unpublished.discard(weight_map.name)
        for name, part in zip(names, state[weight_map.name].chunk(len(names))):
            published[name] = _export_tensor(part, weight_map.op, config).contiguous()
    return published, unpublished


def from_published(
    family: Family,
    config: ModelConfig,
    shapes: Mapping[str, torch.Size],
    published: Mapping[str, Tensor],
    source_name: str,
) -> dict[str, Tensor]:
    """Return published tensors under our names; raise if one is missing, unexpected or has the wrong shape.

    `shapes` are those of our tensors that are needed. The base model prefix, tied tensors and the family's
    `optional_weights` may be absent.
    """
    present = _normalize_names(family, published)
    state: dict[str, Tensor] = {}
    used: set[str] = set()
    for weight_map in expand_weight_maps(family, config):
        names = weight_map.published_names
        missing = [name for name in names if name not in present]
        if weight_map.name not in shapes or (missing and weight_map.name.startswith(family.optional_weights)):
            continue
        if missing:
            raise ModelError(f"{source_name} has no tensor {missing[0]!r}: the weights do not match the config")
        ours = torch.empty(shapes[weight_map.name], device="meta")
        expected = _export_tensor(ours[: len(ours) // len(names)] if ours.ndim else ours, weight_map.op, config)
        for name in names:
            if present[name].shape != expected.shape:
                shape = tuple(present[name].shape)
                raise ModelError(f"{source_name}: {name!r} has shape {shape}, which does not match its config")
        used.update(names)
        parts = [_import_tensor(present[name], weight_map.op) for name in names]
        state[weight_map.name] = torch.cat(parts) if len(parts) > 1 else parts[0]
    for name, tied_to in family.tied_weights.items():
        if name in present and name not in used and tied_to in present:
            if not torch.equal(present[name], present[tied_to]):
                raise ModelError(f"{source_name}: {name!r} and {tied_to!r} differ, but are tied in {family.name}")
            used.add(name)
    if extra := sorted(set(present) - used):
        raise ModelError(
            f"{source_name} has an unexpected tensor {extra[0]!r}: {family.name} with these heads lacks it"
        )
    return state


def _normalize_names(family: Family, published: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Return tensors under their current published names, with the base model prefix."""
    present = {
        family.upgrade_name(name): t for name, t in published.items() if not name.endswith(family.ignored_weights)
    }
    if not any(name.startswith(family.base_model_prefix) for name in present):
        head_maps = chain.from_iterable(family.head_weight_maps.values())
        head_names = {*family.tied_weights, *(name for weight_map in head_maps for name in weight_map.published_names)}
        present = {name if name in head_names else family.base_model_prefix + name: t for name, t in present.items()}
    for name, tied_to in family.tied_weights.items():
        if name in present:
            present.setdefault(tied_to, present[name])  # a file may contain either of two tied names
    return present


def _export_tensor(tensor: Tensor, op: str, config: ModelConfig) -> Tensor:
    """Convert one of our tensors, or a chunk of one, to its published form."""
    if op in ("transpose", "merge_heads"):
        tensor = tensor.t()
    if op not in ("merge_heads", "flatten_heads"):
        return tensor
    return tensor.reshape(len(tensor), config.trunk.num_heads, -1)


def _import_tensor(tensor: Tensor, op: str) -> Tensor:
    """Invert `_export_tensor`."""
    tensor = tensor.flatten(1) if op in ("merge_heads", "flatten_heads") else tensor
    return tensor.t() if op in ("transpose", "merge_heads") else tensor

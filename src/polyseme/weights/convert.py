"""The two-way weight table at work: our tensors to published names and back."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import torch
from torch import Tensor

from polyseme.errors import UserError, nearest
from polyseme.families.family import Family, Rule
from polyseme.nn.model import ModelSpec


def expand(family: Family, spec: ModelSpec) -> Iterator[Rule]:
    """The rules that hold for this spec, layer numbers filled in."""
    num_blocks = spec.trunk.num_blocks
    for rule in family.rules(spec) if callable(family.rules) else family.rules:
        if "{}" not in rule.ours:
            yield rule
            continue
        for i in range(num_blocks):
            yield Rule(rule.ours.replace("{}", str(i)), tuple(t.replace("{}", str(i)) for t in rule.theirs), rule.how)
    for head in spec.heads:
        yield from family.head_rules.get(head, ())


def to_theirs(family: Family, spec: ModelSpec, state: Mapping[str, Tensor]) -> tuple[dict[str, Tensor], set[str]]:
    """Tensors under their published names, and the names of ours that have none."""
    found: dict[str, Tensor] = {}
    left = set(state)
    for rule in expand(family, spec):
        if rule.ours not in state:
            continue
        if any(name in found for name in rule.theirs):
            continue  # two heads of ours share one published name: the first keeps it
        left.discard(rule.ours)
        tensor = state[rule.ours]
        parts = tensor.chunk(len(rule.theirs))
        found.update((name, _outwards(part, rule.how, spec)) for name, part in zip(rule.theirs, parts))
    return {name: t.contiguous() for name, t in found.items()}, left


def to_ours(
    family: Family,
    spec: ModelSpec,
    shapes: Mapping[str, torch.Size],
    theirs: Mapping[str, Tensor],
    where: str,
) -> dict[str, Tensor]:
    """Published tensors under our names. Strict: a missing, extra or misshapen tensor is an error that names it.

    `shapes` are the tensors of ours that are wanted. The base prefix may be there or not, tied tensors may be absent,
    and `optional` parts may be absent whole.
    """
    present = {family.modern(name): t for name, t in theirs.items() if not name.endswith(family.ignored)}
    if not any(name.startswith(family.prefix) for name in present):
        heads = {name for rules in family.head_rules.values() for rule in rules for name in rule.theirs}
        heads |= set(family.tied)
        present = {name if name in heads else family.prefix + name: t for name, t in present.items()}
    for name, source in family.tied.items():
        if name in present:
            present.setdefault(source, present[name])  # of two tied names a file may keep either
    found: dict[str, Tensor] = {}
    used: set[str] = set()
    for rule in (rule for rule in expand(family, spec) if rule.ours in shapes):
        missing = [name for name in rule.theirs if name not in present]
        if missing and rule.ours.startswith(family.optional):
            continue
        if missing:
            raise UserError(f"{where} lacks the tensor {missing[0]!r}; {nearest(missing[0], set(present) - used)}")
        ours = tuple(shapes[rule.ours])
        each = torch.empty(ours[0] // len(rule.theirs), *ours[1:], device="meta") if ours else torch.empty(())
        parts = [present[name] for name in rule.theirs]
        for name, part in zip(rule.theirs, parts):
            if part.shape != _outwards(each, rule.how, spec).shape:
                raise UserError(f"{where}: {name!r} has shape {tuple(part.shape)}, which does not fit its config")
        used.update(rule.theirs)
        parts = [_inwards(part, rule.how) for part in parts]
        found[rule.ours] = torch.cat(parts) if len(parts) > 1 else parts[0]
    for name, source in family.tied.items():
        if name in present and name not in used and source in present:
            if not torch.equal(present[name], present[source]):
                raise UserError(f"{where}: {name!r} differs from {source!r}, but the two are tied in {family.name}")
            used.add(name)
    if extra := sorted(set(present) - used):
        raise UserError(f"{where} has a tensor {extra[0]!r} that {family.name} with these heads does not have")
    return found


def _outwards(tensor: Tensor, how: str, spec: ModelSpec) -> Tensor:
    """One of our tensors, or a part of a stack, in its published form."""
    if how in ("transpose", "fold"):
        tensor = tensor.t()
    if how not in ("fold", "flat"):
        return tensor
    return tensor.reshape(len(tensor), spec.trunk.num_heads, -1)


def _inwards(tensor: Tensor, how: str) -> Tensor:
    """The inverse of `_outwards`."""
    tensor = tensor.flatten(1) if how in ("fold", "flat") else tensor
    return tensor.t() if how in ("transpose", "fold") else tensor

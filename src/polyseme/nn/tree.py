"""Map a function over the tensors of nested dataclasses, dictionaries and tuples."""

from collections.abc import Callable
from dataclasses import fields, is_dataclass, replace
from typing import TypeVar

from torch import Tensor

Tree = TypeVar("Tree")


def tree_map(tree: Tree, fn: Callable[[Tensor], Tensor]) -> Tree:
    """Return a copy with `fn` applied to every tensor; everything that is no container of tensors stays as it is.

    A tuple of ints (the lengths of a layout) is returned unread.
    """
    if isinstance(tree, Tensor):
        return fn(tree)  # type: ignore[return-value]
    if is_dataclass(tree) and not isinstance(tree, type):
        return replace(tree, **{f.name: tree_map(getattr(tree, f.name), fn) for f in fields(tree)})
    if isinstance(tree, dict):
        return {key: tree_map(value, fn) for key, value in tree.items()}  # type: ignore[return-value]
    if isinstance(tree, tuple) and not (tree and isinstance(tree[0], int)):
        return tuple(tree_map(value, fn) for value in tree)  # type: ignore[return-value]
    return tree


def tree_leaves(tree: object) -> list[Tensor]:
    """Return the tensors of a tree in the order of `tree_map`."""
    leaves: list[Tensor] = []
    tree_map(tree, lambda tensor: leaves.append(tensor) or tensor)  # type: ignore[func-returns-value]
    return leaves

"""Sparse gradients of embedding tables."""

from __future__ import annotations

from typing import NamedTuple

from torch import Tensor


class SparseRowGrad(NamedTuple):
    """Gradient of some rows of a table; ids may repeat."""

    table: Tensor  # the parameter
    ids: Tensor  # int64 [n]
    rows: Tensor  # [n, …], summed over loss terms, not averaged; may be modified in place
    counts: Tensor  # float [n], number of loss terms summed in each row

"""Gradients of tables of which a batch touches few rows."""

from __future__ import annotations

from typing import NamedTuple

from torch import Tensor


class SparseRowGrad(NamedTuple):
    """What is to be added up in some rows of a table; an id may stand there many times."""

    table: Tensor  # a parameter
    ids: Tensor  # int64 [n]
    rows: Tensor  # [n, …]: summed over the terms of the loss, not their mean; its own, to be changed in place
    counts: Tensor  # float [n]: how many terms each row is the sum of

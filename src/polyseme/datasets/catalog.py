"""Catalog of the named data sets."""

from __future__ import annotations

from polyseme.datasets import glue, superglue
from polyseme.datasets import multiple_choice as choices
from polyseme.datasets import srl as roles
from polyseme.datasets import text_classification as texts
from polyseme.datasets.base import NamedDataset

DATASETS: dict[str, NamedDataset] = {
    **glue.DATASETS,
    **superglue.DATASETS,
    **choices.DATASETS,
    **texts.DATASETS,
    **roles.DATASETS,
}

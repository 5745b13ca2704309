"""Catalog of the named data sets."""

from polyseme.datasets import easy_vqa, glue, multiple_choice, srl, superglue, text_classification
from polyseme.datasets.base import NamedDataset

_MODULES = (glue, superglue, multiple_choice, text_classification, srl, easy_vqa)
DATASETS: dict[str, NamedDataset] = {name: value for module in _MODULES for name, value in module.DATASETS.items()}

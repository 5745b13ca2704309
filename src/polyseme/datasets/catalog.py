"""Every named data set: `polyseme finetune MODEL --task NAME --data FOLDER --out RUN`."""

from __future__ import annotations

from polyseme.datasets import glue, superglue
from polyseme.datasets import multiple_choice as choices
from polyseme.datasets import srl as roles
from polyseme.datasets import text_classification as texts
from polyseme.datasets.base import DataSet

DATA_SETS: dict[str, DataSet] = {**glue.SETS, **superglue.SETS, **choices.SETS, **texts.SETS, **roles.SETS}

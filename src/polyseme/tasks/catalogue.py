"""Every named data set: `polyseme finetune MODEL --task NAME --data FOLDER --out RUN`."""

from __future__ import annotations

from polyseme.tasks.named import choices, glue, roles, superglue, texts
from polyseme.tasks.named.data_set import DataSet

DATA_SETS: dict[str, DataSet] = {**glue.SETS, **superglue.SETS, **choices.SETS, **texts.SETS, **roles.SETS}

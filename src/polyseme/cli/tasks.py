"""`polyseme tasks`."""

from __future__ import annotations


def tasks() -> None:
    """List the named data sets: `polyseme finetune MODEL --task NAME --data FOLDER --out RUN`."""
    from polyseme.cli.output import print_table
    from polyseme.datasets.catalog import DATASETS

    rows = [
        [name, dataset.task.task_type, dataset.metric, dataset.folder, dataset.description]
        for name, dataset in DATASETS.items()
    ]
    print_table(["dataset", "task", "metric", "folder", "description"], rows)

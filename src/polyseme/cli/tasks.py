"""`polyseme tasks`."""

from __future__ import annotations


def tasks() -> None:
    """List the named data sets: `polyseme finetune MODEL --task NAME --data FOLDER --out RUN`."""
    from polyseme.cli.output import print_table
    from polyseme.datasets.catalog import DATA_SETS

    rows = [[name, data.kind, data.metric, data.folder, data.about] for name, data in DATA_SETS.items()]
    print_table(["data set", "kind", "metric", "folder", "what"], rows)

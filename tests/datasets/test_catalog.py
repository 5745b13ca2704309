"""Data sets of GLUE: rows, labels and characters as distributed; also real files, if available."""

from pathlib import Path

import pytest

from polyseme.datasets.catalog import DATASETS
from polyseme.errors import PolysemeError
from polyseme.tasks.classification import ClassificationTask
from polyseme.tasks.regression import RegressionTask
from tests.support.tasks import compute_metrics

REAL = Path(__file__).parents[2].parent / "shared/data/glue"
ROWS = {  # from the README beside the files
    "glue/cola": (8551, 1043),
    "glue/sst-2": (67349, 872),
    "glue/mrpc": (3668, 408),
    "glue/sts-b": (5749, 1500),
    "glue/wnli": (635, 71),
}


@pytest.mark.parametrize("name", ROWS)
def test_real_files(name):
    if not REAL.is_dir():
        pytest.skip("the real files are not here")
    data = DATASETS[name]
    train, dev = data.read(REAL)
    assert (len(train), len(dev)) == ROWS[name]
    for example in (train[0], train[-1], dev[0], dev[-1]):
        path, _, line = example.location.rpartition(":")
        cells = Path(path).read_text(encoding="utf-8-sig").split("\n")[int(line) - 1].split("\t")
        assert {example.text, example.pair or example.text, example.label} <= set(cells)
    labels = sorted({e.label for e in train})
    assert labels == ["0", "1"] or name == "glue/sts-b"
    assert {len({e.pair is None for e in part}) for part in (train, dev)} == {1}


@pytest.mark.parametrize("name", ROWS)
def test_formats(name, glue):
    data = DATASETS[name]
    train, dev = data.read(glue)
    assert (len(train), len(dev)) == ((19, 5) if name == "glue/mrpc" else (12, 12))
    assert all((e.pair is not None) == (data.task is not ClassificationTask) for e in train + dev)
    assert data.read(glue / data.folder) == (train, dev)
    gold = [e.gold for e in dev]
    assert data.metric in compute_metrics(
        data.task, gold, [float(g) if data.task is RegressionTask else g for g in gold]
    )
    assert all("\r" not in (e.pair or e.text) for e in train)


def test_quotes_are_characters(glue):
    assert all(e.text.startswith('" ') for e in DATASETS["glue/sst-2"].read(glue)[0])
    assert all(e.pair.startswith('" ') for e in DATASETS["glue/mrpc"].read(glue)[1])


def test_mrpc_dev_ids(glue):
    train, dev = DATASETS["glue/mrpc"].read(glue)
    assert [e.location.rpartition(":")[2] for e in dev] == ["2", "3", "4", "5", "6"]
    assert not {e.location for e in train} & {e.location for e in dev}
    file = glue / "MRPC/msr_paraphrase_train.txt"
    file.write_text(file.read_text().replace("0\t2\t102", "0\t2"))  # a row that lost a column
    with pytest.raises(PolysemeError, match=r"msr_paraphrase_train\.txt:4: 4 columns"):
        DATASETS["glue/mrpc"].read(glue)
    (glue / "MRPC/dev_ids.tsv").write_text("3\t103\n7\t7\n")
    with pytest.raises(
        PolysemeError, match=r"dev_ids\.tsv names the pair '7 7', which is not in msr_paraphrase_train\.txt$"
    ):
        DATASETS["glue/mrpc"].read(glue, skip_bad=True)
    (glue / "MRPC/dev_ids.tsv").write_text("3\t103\n4\t104\n")
    train, dev = DATASETS["glue/mrpc"].read(glue, skip_bad=True)
    assert (len(train), [e.location.rpartition(":")[2] for e in dev]) == (21, ["5", "6"])


def test_mrpc_in_glue_format(glue):
    rows = (glue / "MRPC/msr_paraphrase_train.txt").read_text(encoding="utf-8-sig").split("\n")
    (glue / "MRPC/train.tsv").write_text("\n".join(rows[:9]))
    (glue / "MRPC/dev.tsv").write_text("\n".join([rows[0], *rows[9:]]))
    assert [len(part) for part in DATASETS["glue/mrpc"].read(glue)] == [8, 16]


def test_missing_files(glue):
    with pytest.raises(PolysemeError, match=r"there is no folder .*none$"):
        DATASETS["glue/cola"].read(glue / "none")
    (glue / "CoLA/dev.tsv").unlink()
    with pytest.raises(PolysemeError, match=r"CoLA has no dev examples: none of dev\.tsv, in_domain_dev\.tsv, "):
        DATASETS["glue/cola"].read(glue)
    (glue / "MRPC/dev_ids.tsv").unlink()
    with pytest.raises(PolysemeError, match=r"MRPC/dev_ids\.tsv is missing$"):
        DATASETS["glue/mrpc"].read(glue)

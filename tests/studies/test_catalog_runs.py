"""One tiny run of every study, with every arm and its own transfer."""

import json

import pytest

from polyseme.studies.catalog import STUDIES
from polyseme.studies.catalog.tiny import tiny_overrides
from polyseme.studies.metrics import METRICS
from polyseme.studies.plan import StudyOptions
from polyseme.studies.runner import run_study
from tests.support.study_data import write_study_data

FAST = "albert-sop-nsp"
# of studies with many arms: one metric of each kind
SELECTED = {
    FAST: ("valid_loss", "blimp"),
    "lineage": ("bits_per_character", "pseudo_bits_per_character", "blimp", "mrpc", "wnut-17", "squad-shifts"),
    "muon-layout": ("pseudo_bits_per_character", "mrpc"),
}
NO_TASKS = ("n-gram",)


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    folder = tmp_path_factory.mktemp("data")
    write_study_data(folder)
    return folder


@pytest.mark.parametrize("name", [pytest.param(n, marks=[pytest.mark.slow] if n != FAST else []) for n in STUDIES])
def test_a_study_runs_tiny(name, project, data, tmp_path, monkeypatch):
    study, metrics = STUDIES[name].replace(lr_factors=(1.0,)), SELECTED.get(name, STUDIES[name].metrics)
    overrides = {**tiny_overrides(study), "valid_fraction": 0.1}
    finetune = {"steps": 16, "batch_size": 4} if any(METRICS[metric].kind == "task" for metric in metrics) else {}
    held_out = data / "held-out.txt" if any(METRICS[metric].kind == "likelihood" for metric in metrics) else None
    options = StudyOptions(overrides, finetune, metrics, held_out, max_examples=8)
    status = run_study(study, project / "corpus-bert", data, tmp_path / "out", "3steps", 1, options)
    assert status.errors == {} and status.is_complete
    rows = [json.loads(path.read_text()) for path in (tmp_path / "out").glob("arms/*/seed-0.json")]
    assert {row["arm"] for row in rows} == {arm.name for arm in study.arms}
    tasks = {metric for metric in metrics if METRICS[metric].kind == "task"}
    for row in rows:
        assert row["arm"] in NO_TASKS or tasks <= row["metrics"].keys(), row["warnings"]
    assert set(metrics) == {metric for row in rows for metric in row["metrics"]}, "each is that of an arm"

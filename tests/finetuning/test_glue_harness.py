"""The GLUE benchmark: its list of runs and its summary. The runs themselves are those of `finetune`."""

import argparse
import dataclasses
import importlib
from pathlib import Path

import pytest


@pytest.fixture
def harness(monkeypatch):
    monkeypatch.syspath_prepend(str(Path(__file__).parents[2] / "benchmarks"))
    return importlib.import_module("glue")


def test_all_combinations_longest_first(harness):
    asked = argparse.Namespace(
        models=["a", "b"], tasks=["mrpc", "sst-2"], seeds=3, rates=[1e-5, 2e-5], epochs=0.0, scratch=True, limit=0
    )
    jobs = harness.jobs_of(asked)
    assert len(jobs) == len(set(jobs)) == 2 * 2 * 3 * 2 * 2
    assert [job.task for job in jobs] == ["sst-2"] * 24 + ["mrpc"] * 24
    assert {job.epochs for job in jobs[:24]} == {3.0} and {job.epochs for job in jobs[24:]} == {5.0}
    asked.scratch, asked.epochs = False, 1.0
    assert {(job.scratch, job.epochs) for job in harness.jobs_of(asked)} == {(False, 1.0)}


def test_best_learning_rate_by_mean(harness):
    def ran(rate, seed, value, **more):
        job = harness.Job("m", "cola", seed, rate, 5.0)
        return {**dataclasses.asdict(job), "primary_metric": "matthews", "mean": {"matthews": value}, **more}

    done = [ran(1e-5, 0, 0.5), ran(1e-5, 1, 0.1), ran(5e-5, 0, 0.4), ran(5e-5, 1, 0.3), {**ran(9, 0, 1), "error": "x"}]
    (found,) = harness.summary(done)
    assert [(one["rate"], round(one["mean"], 6)) for one in found["rates"]] == [(5e-5, 35.0), (1e-5, 30.0)]
    assert found["rates"][0]["std"] == pytest.approx(50**0.5)
    shown = harness.markdown([found], ["cola", "mrpc"]).splitlines()
    assert shown[0] == "| model | cola (matthews) | mrpc | mean |"
    assert shown[2] == "| m | 35.0 ± 7.1 (rate 5e-05, n=2) |  |  |"


def test_small_run_and_failed_run(harness, tiny_folders, glue):
    job = harness.Job(str(tiny_folders["bert"]), "sts-b", 1, 1e-3, 1.0, limit=8)
    found = harness.run(job, str(glue))
    assert found["primary_metric"] == "spearman" and found["steps"] == 1 and "spearman" in found["mean"]
    assert "has no config.json" in harness.run(dataclasses.replace(job, model=str(glue)), str(glue))["error"]

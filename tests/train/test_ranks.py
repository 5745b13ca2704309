"""Two ranks: they agree before the first step, load one state, and report in one line why another rank failed."""

import json
import os
import signal
import time
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from polyseme.errors import PolysemeError
from polyseme.objectives.streaming_lm import StreamingCausalLM
from polyseme.train import distributed
from polyseme.train import pretrain as module
from polyseme.train.pretrain import pretrain
from polyseme.train.ranks import hash_tensors
from tests.support.ranks import run_ranks
from tests.support.runs import STEPS, Killed, checkpoint_tensors, tiny_recipe


@pytest.fixture(autouse=True)
def _short_waits(monkeypatch):
    monkeypatch.setattr(distributed, "REASON_SECONDS", 0.5)


@pytest.fixture(scope="module")
def whole(project, tmp_path_factory):
    """Run two ranks to the end."""
    out = tmp_path_factory.mktemp("ranks") / "run"
    assert run_ranks(lambda rank: start(project, out))[0] == [0, 0]
    return out


def start(project, out, recipe=None, **options):
    pretrain(recipe or tiny_recipe("bert"), project / "corpus-bert", out, **options)


def fail_at_step(step, fail):
    """Let the training loop call a function after a step."""
    real = module.train

    def train(state, batches):
        for report in real(state, batches):
            if report.step == step:
                fail()
            yield report

    module.train = train


# ------------------------------------------------------------------------------------------------ agreement


@pytest.mark.parametrize("name", ["recipe", "corpus", "run folder"])
def test_ranks_that_disagree_stop_before_the_first_step(name, project, whole, tmp_path):
    def run(rank):
        recipe, corpus, out = tiny_recipe("bert"), project / "corpus-bert", tmp_path / "run"
        if name == "recipe":
            recipe = recipe.replace(seed=5 * rank)
        elif name == "corpus":
            corpus = project / ("corpus-gpt2" if rank else "corpus-bert")
        else:
            out = tmp_path / "empty" if rank else whole
        pretrain(recipe, corpus, out, resume=name == "run folder")

    before = {path: path.stat().st_mtime_ns for path in whole.rglob("*")}
    start_time = time.monotonic()
    statuses, errors = run_ranks(run)
    assert statuses == [2, 2] and time.monotonic() - start_time < 20
    expected = {"recipe": "rank 1 has recipe.seed 5, rank 0 has 0", "corpus": "rank 1 has corpus '",
                "run folder": "rank 1 has run folder 'without a run', rank 0 has '"}  # fmt: skip
    for error in errors:
        assert error.startswith(f"ConfigError: {expected[name]}") and "storage that they share" in error
    assert {path: path.stat().st_mtime_ns for path in whole.rglob("*")} == before
    assert not list(tmp_path.iterdir())


def test_different_weights_are_noticed(project, tmp_path):
    def run(rank):
        real = distributed.broadcast_weights
        distributed.broadcast_weights = lambda model: (real(model), model.trunk.layers and change(model, rank))
        start(project, tmp_path / "run")

    def change(model, rank):
        with torch.no_grad():
            next(model.parameters()).view(-1)[0] += rank

    statuses, errors = run_ranks(run)
    assert statuses == [2, 2] and all("rank 1 has state '" in error for error in errors)


def test_a_hash_depends_on_names_types_and_every_byte():
    tensors = {"a": torch.zeros(3), "b": torch.zeros(3, dtype=torch.int32), "c": torch.zeros(()), "d": torch.zeros(0)}
    changes = [{"a": torch.zeros(3, 1)}, {"b": torch.zeros(3)}, {"c": torch.tensor(-0.0)}, {"d": torch.zeros(0, 1)}]
    hashes = {hash_tensors(({**tensors, **change}).items()) for change in ({}, *changes)}
    assert len(hashes) == 5 and hash_tensors(tensors.items()) in hashes


# ------------------------------------------------------------------------------------------------ failures


@pytest.mark.parametrize("failing_rank", [0, 1])
def test_the_failure_of_a_rank_is_reported_by_the_other(failing_rank, project, tmp_path):
    def run(rank):
        def fail():
            raise {0: PolysemeError("the disk is full"), 1: TypeError("a bug")}[rank]

        if rank == failing_rank:
            fail_at_step(3, fail)
        start(project, tmp_path / "run")

    statuses, errors = run_ranks(run)
    reason = {0: "rank 0 failed: the disk is full", 1: "rank 1 failed: TypeError: a bug"}[failing_rank]
    assert statuses[1 - failing_rank] == 2 and errors[1 - failing_rank] == f"LostRankError: {reason}"
    assert statuses[failing_rank] == (1 if failing_rank else 2)


@pytest.mark.parametrize("killed_rank", [0, 1])
def test_a_killed_rank_is_noticed_and_the_run_resumes(killed_rank, project, whole, tmp_path):
    def run(rank):
        if rank == killed_rank:
            fail_at_step(5, lambda: os.kill(os.getpid(), signal.SIGKILL))
        start(project, tmp_path / "run")

    statuses, errors = run_ranks(run)
    assert statuses[killed_rank] == -signal.SIGKILL and statuses[1 - killed_rank] == 2
    assert errors[1 - killed_rank].startswith("LostRankError: lost contact with another rank")
    assert run_ranks(lambda rank: start(project, tmp_path / "run", resume=True))[0] == [0, 0]
    assert_same_weights(whole, tmp_path / "run")


@pytest.mark.parametrize("how", ["error", "bug", "exit"])
def test_on_rank_zero_never_leaves_the_others_waiting(how):
    def fail():
        if how == "exit":
            os._exit(9)
        raise PolysemeError("no room") if how == "error" else ZeroDivisionError("a bug")

    def run(rank):
        distributed.init_process_group()
        distributed.any_rank(False, torch.device("cpu"))  # both have joined: else the exit may interrupt the connection
        distributed.on_rank_zero(fail)

    statuses, errors = run_ranks(run)
    assert statuses == [{"error": 2, "bug": 1, "exit": 9}[how], 2]
    expected = {"error": "PolysemeError: no room", "bug": "LostRankError: rank 0 failed: ZeroDivisionError: a bug",
                "exit": "LostRankError: lost contact with another rank"}  # fmt: skip
    assert errors[1].startswith(expected[how])


def test_a_rank_that_fails_early_or_never_starts_is_named(project, tmp_path):
    def run(rank):
        start(project, tmp_path / "run") if not rank else pretrain(tiny_recipe("bert"), tmp_path, tmp_path / "run")

    statuses, errors = run_ranks(run)
    assert statuses == [2, 2] and errors[1].startswith(f"DataError: {tmp_path} is not a corpus")
    assert errors[0] == f"LostRankError: rank 1 failed: {errors[1].removeprefix('DataError: ')}"

    def agree(rank):
        distributed.init_process_group()
        if rank == 0:
            distributed.require_agreement({"a": 1}, seconds=0.5)
        time.sleep(1)

    assert run_ranks(agree)[1][0].startswith("ConfigError: rank 1 did not report within 0 s")
    os.environ[distributed.TIMEOUT_VARIABLE] = "1"
    try:
        statuses, errors = run_ranks(lambda rank: distributed.init_process_group(), num_started=1)
    finally:
        del os.environ[distributed.TIMEOUT_VARIABLE]
    assert statuses == [2] and errors[0].startswith("LostRankError: cannot join a group of 2 processes")


# ------------------------------------------------------------------------------------------------ resuming


def assert_same_weights(first: Path, second: Path) -> None:
    tensors = [checkpoint_tensors(run) for run in (first, second)]
    assert tensors[0].keys() == tensors[1].keys()
    assert [name for name, t in tensors[0].items() if not torch.equal(t, tensors[1][name])] == []


def test_the_memory_of_each_rank_is_resumed(project, tmp_path):
    """Streams with a memory: each rank continues with its own, also after a part of the run with one process."""
    plain = tiny_recipe("rnn_lm")
    recipe = plain.replace(
        model=plain.model | {"cell": "gru", "hidden_dim": 24, "dropout": 0.0}, objective=StreamingCausalLM()
    )

    def run(out, resume=False, stop_at=STEPS + 1):
        def stop():
            raise Killed

        fail_at_step(stop_at, stop)
        pretrain(recipe, project / "corpus-gpt2", tmp_path / out, resume=resume)

    assert run_ranks(lambda rank: run("whole"))[0] == [0, 0]
    assert run_ranks(lambda rank: run("killed", stop_at=5))[0] == [1, 1]
    assert run_ranks(lambda rank: run("killed", resume=True))[0] == [0, 0]
    assert_same_weights(tmp_path / "whole", tmp_path / "killed")
    memory = {name for name in checkpoint_tensors(tmp_path / "whole") if name.startswith("memory/")}
    assert {name.split("/")[1] for name in memory} == {"0", "1"}

    assert run_ranks(lambda rank: run("mixed", stop_at=3))[0] == [1, 1]
    with pytest.MonkeyPatch.context() as patch, pytest.raises(Killed):
        patch.setattr(module, "train", module.train)  # restored afterwards
        run("mixed", resume=True, stop_at=7)
    assert run_ranks(lambda rank: run("mixed", resume=True))[0] == [0, 0]
    rows = [[json.loads(row) for row in (tmp_path / out / "log.jsonl").read_text().splitlines()]
            for out in ("whole", "mixed")]  # fmt: skip
    assert [row["tokens"] for row in rows[0] if "loss" in row] == [row["tokens"] for row in rows[1] if "loss" in row]
    models = [load_file(tmp_path / out / "model" / "model.safetensors") for out in ("whole", "mixed")]
    for name, tensor in models[0].items():
        torch.testing.assert_close(models[1][name], tensor, atol=1e-5, rtol=1e-4)

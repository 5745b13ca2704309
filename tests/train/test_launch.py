"""Runs by name, with overrides, resumed without arguments, and extended."""

import json
import re
from functools import partial

import pytest
import torch
from safetensors.torch import load_file

import polyseme
from polyseme.errors import ConfigError, DataError
from polyseme.recipes import get_recipe
from polyseme.recipes.launch import resolve_arguments
from polyseme.train import pretrain as module
from tests.support.runs import Killed, folder_bytes, run_with_kills

TINY = {
    "model": {"num_layers": 1, "dim": 16, "num_heads": 2, "max_len": 32},
    "objective": "MaskedLM",
    "max_len": 32,
    "batch_tokens": 512,
    "micro_batch_tokens": 256,
    "valid_fraction": 0.1,
    "eval_every": 3,
    "eval_tokens": 256,
    "save_every": 2,
    "log_every": 1,
}


@pytest.fixture
def run_tiny(project, tmp_path):
    """Start a tiny run of bert-tiny in `tmp_path/NAME` with overrides."""

    def run(name="run", **settings):
        return polyseme.pretrain("bert-tiny", project / "corpus-bert", tmp_path / name, **TINY | settings)

    return run


def weights(run):
    return load_file(run / "model" / "model.safetensors")


def assert_same_weights(first, second):
    expected = weights(second)
    assert all(torch.equal(tensor, expected[name]) for name, tensor in weights(first).items())


# --- overrides -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["CausalLM", "causal_lm", "causal-lm"])
def test_an_objective_by_name(name):
    recipe = get_recipe("bert-tiny").with_override("objective", name)
    assert recipe.objective == get_recipe("gpt2-tiny").objective
    assert recipe.with_override("objective.direction", "both").objective.terms == ("next", "previous")


@pytest.mark.parametrize(
    "path,value,message",
    [
        ("objective", "CausalML", r"objective is 'CausalML'; did you mean 'CausalLM'\?"),
        ("objective", "x", "objective is 'x'; valid: Captioning, CausalLM, Distillation"),
        ("schedule", "cosin", "schedule.shape is 'cosin', expected one of 'constant', 'linear', 'cosine'"),
        ("optimizer", "adam", "optimizer.name is 'adam', expected one of 'adamw'"),
        ("budget", "20", "budget is 20, expected BudgetConfig"),
        ("objective.mask_prob", "0", "mask_prob is 0, so nothing would be predicted"),
    ],
)
def test_a_name_that_means_nothing(path, value, message):
    with pytest.raises(ConfigError, match=f"^(objective\\.)?{message}"):
        get_recipe("bert-tiny").with_override(path, value)


def test_parts_of_a_recipe_by_name():
    recipe = get_recipe("bert-tiny")
    assert recipe.with_override("schedule", "cosine").schedule == recipe.schedule.replace(shape="cosine")
    assert recipe.with_override("optimizer", "muon").optimizer == recipe.optimizer.replace(name="muon")
    for setting, field in {"optimizer": "optimizer.name", "schedule": "schedule.shape"}.items():
        with pytest.raises(ConfigError, match=f"^{field} is 'lin', expected one of"):
            recipe.with_override(setting, "lin")
    assert recipe.with_override("budget", "20m").budget.minutes == 20


def test_two_budgets_are_an_error(project, rejects, tmp_path):
    command = ("pretrain", "bert-tiny", "--corpus", project / "corpus-bert", "--out", tmp_path / "run")
    both = "both set the length of the run: pass one of them"
    rejects(
        *command, "--budget", "3steps", "--set", "budget.minutes=1", match=f"budget.minutes=1 and budget=3steps {both}"
    )
    rejects(*command, "--set", "budget.minutes=1", "--set", "budget.steps=4", match=both)
    rejects(*command, "--set", "seed=1", "--seed", 2, match="seed is set twice, to 1 and to 2")
    rejects(*command, "--set", "seed=1", "--set", "seed=3", match="seed is set twice, to 1 and to 3")
    rejects("pretrain", "bert-tiny", "--out", tmp_path / "run", match="--corpus is missing")
    rejects("pretrain", "--out", tmp_path / "run", match="the recipe is missing")
    for budget in ({"steps": 3, "minutes": 1}, {"steps": 3, "tokens": 4}):
        with pytest.raises(ConfigError, match=both):
            polyseme.pretrain("bert-tiny", project / "corpus-bert", tmp_path / "run", budget=budget)
    with pytest.raises(ConfigError, match="`out` is missing"):
        polyseme.pretrain("bert-tiny", project / "corpus-bert")


# --- resuming --------------------------------------------------------------------------------------------------------


def kill_after(monkeypatch, step):
    real = module.train

    def killed(run, data):
        for report in real(run, data):
            if report.step == step:
                raise Killed
            yield report

    monkeypatch.setattr(module, "train", killed)


def test_resuming_needs_no_arguments(run_tiny, project, tmp_path, monkeypatch, run_cli, rejects):
    run, settings = tmp_path / "run", {"seed": 3, "budget": "5steps", "optimizer": {"lr": 1e-3}}
    run_tiny("whole", **settings)
    with monkeypatch.context() as patch, pytest.raises(Killed):
        kill_after(patch, 3)
        run_tiny(**settings)
    resume = ("pretrain", "--resume", "--out", run)
    rejects(*resume, "--set", "optimizer.lr=1e-4", match=r"another recipe: optimizer\.lr was 0\.001, now 0\.0001")
    rejects(*resume, "--seed", 4, match="seed was 3, now 4")
    rejects(*resume[:1], "gpt2-tiny", *resume[1:], match="started with the recipe 'bert-tiny', not 'gpt2-tiny'")
    rejects(*resume, "--corpus", project / "corpus-gpt2", match="started on another corpus")
    rejects("pretrain", "--resume", "--out", tmp_path / "other", match="there is no run to resume in")
    run_cli("pretrain", "bert-tiny", "--corpus", project / "corpus-bert", "--resume", "--out", run)  # without --set
    assert_same_weights(run, tmp_path / "whole")


def test_a_moved_corpus_is_passed_again(run_tiny, tmp_path):
    run_tiny(budget="2steps")
    record = json.loads((tmp_path / "run/recipe.json").read_text())
    (tmp_path / "run/recipe.json").write_text(json.dumps(record | {"corpus": "nowhere"}))
    with pytest.raises(DataError, match=r"there is no corpus at nowhere, where the run in .* pass its `corpus`"):
        resolve_arguments(None, None, tmp_path / "run", {}, resume=True)


# --- extending -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("schedule", ["linear", "constant"])
def test_an_extended_run_is_exact_and_survives_kills(schedule, run_tiny, tmp_path, monkeypatch):
    """A linear schedule warms up again; a constant one gives the weights of a run of that length."""
    for name in ("once", "killed"):
        run_tiny(name, budget="4steps", schedule=schedule)
    extend = {"resume": True, "budget": "9steps"}
    extended = polyseme.pretrain(out=tmp_path / "once", **extend)
    assert extended.num_steps == 9
    for step in (5, 8):
        with monkeypatch.context() as patch, pytest.raises(Killed):
            kill_after(patch, step)
            polyseme.pretrain(out=tmp_path / "killed", **extend if step == 5 else {"resume": True})
    assert not (tmp_path / "killed/SHA256SUMS").exists(), "the folder is unfinished"
    polyseme.pretrain(out=tmp_path / "killed", resume=True)
    assert_same_weights(tmp_path / "once", tmp_path / "killed")
    polyseme.verify(tmp_path / "killed")
    record, results = (json.loads((tmp_path / "killed" / f"{n}.json").read_text()) for n in ("recipe", "results"))
    assert record["recipe"]["budget"]["steps"] == 9 == record["total_steps"] == results["steps"]
    assert results["extensions"] == record["extensions"] == [{"step": 4, "from": "4steps", "to": "9steps"}]
    rows = [json.loads(line) for line in (tmp_path / "killed/log.jsonl").read_text().splitlines()]
    rates = [row["lr"] for row in rows if "lr" in row]
    assert len(rates) == 9
    if schedule == "constant":
        run_tiny("whole", budget="9steps", schedule={"shape": "constant", "warmup": 1})
        run_tiny("start", budget="4steps", schedule={"shape": "constant", "warmup": 1})
        polyseme.pretrain(out=tmp_path / "start", **extend)
        assert_same_weights(tmp_path / "start", tmp_path / "whole")
    else:
        assert rates[4] > 2 * rates[3] and rates[8] < rates[4]


def test_an_extension_survives_a_kill_before_any_change_of_a_file(run_tiny, tmp_path):
    for name in ("once", "killed"):
        run_tiny(name, budget="2steps")
    polyseme.pretrain(out=tmp_path / "once", resume=True, budget="5steps")
    extend = partial(polyseme.pretrain, out=tmp_path / "killed", resume=True, budget="5steps")
    assert run_with_kills(extend, growth=4) > 3
    assert_same_weights(tmp_path / "once", tmp_path / "killed")
    records = [json.loads((tmp_path / name / "recipe.json").read_text()) for name in ("once", "killed")]
    assert records[0] == records[1] and len(records[0]["extensions"]) == 1
    polyseme.verify(tmp_path / "killed")


def test_a_budget_that_does_not_extend_a_run(run_tiny, tmp_path, rejects):
    run_tiny(budget="4steps")
    before = folder_bytes(tmp_path / "run")
    for budget in ("3steps", "100tokens", "0.001s"):
        rejects(
            "pretrain", "--resume", "--out", tmp_path / "run", "--budget", budget,
            match="has a budget of 4steps and was trained for 4 steps .* does not extend it",
        )  # fmt: skip
    assert folder_bytes(tmp_path / "run") == before
    recipe = get_recipe(str(tmp_path / "run/recipe.json")).with_override("budget", "9steps")
    with pytest.raises(ConfigError, match="budget was 4steps, now 9steps; pass a larger `budget` to extend it"):
        polyseme.pretrain(recipe, out=tmp_path / "run", resume=True)
    assert polyseme.pretrain(out=tmp_path / "run", resume=True, budget="4steps").num_steps == 4
    assert polyseme.pretrain(out=tmp_path / "run", resume=True, budget="2s").num_steps > 4


# --- warnings --------------------------------------------------------------------------------------------------------


def test_a_diverged_run_says_so_last(project, tmp_path, cli):
    overrides = [f"--set={path}={value}" for path, value in TINY.items() if path != "model"]
    command = cli(
        "pretrain", "bert-tiny", "--corpus", project / "corpus-bert", "--out", tmp_path / "run", *overrides,
        "--set", "model.dim=16", "--set", "model.num_heads=2", "--set", "optimizer.lr=50", "--budget", "6steps",
    )  # fmt: skip
    assert command.status == 0, command.err
    pattern = "the held-out masked loss is .* nats, worse than a uniform guess .*: the run diverged"
    last = command.out.splitlines()[-1]
    assert last.startswith("warning: ") and re.search(pattern, last)
    assert "step 3: the held-out masked loss is" in command.err
    warnings = json.loads((tmp_path / "run/results.json").read_text())["warnings"]
    assert last == f"warning: {warnings[-1]}"


def test_a_resumed_run_has_the_same_warnings(run_tiny, tmp_path):
    result = run_tiny(budget="2steps", valid_fraction=0.0)
    assert "the training masked loss is" in result.warnings[0]
    assert polyseme.pretrain(out=tmp_path / "run", resume=True).warnings == result.warnings


def test_a_run_without_problems_has_no_warnings(run_tiny):
    result = run_tiny(budget="60steps", optimizer={"lr": 5e-3}, eval_every=20, save_every=100)
    assert result.warnings == ()

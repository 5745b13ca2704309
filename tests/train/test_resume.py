"""Law 5: a run that is killed and resumed ends with the same weights, bit for bit, as an uninterrupted one."""

import functools
import json
import multiprocessing
import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

from polyseme.corpus.build.prepare import PrepareConfig, prepare
from polyseme.corpus.sources.midi import EVENTS
from polyseme.errors import Interrupted, PolysemeError
from polyseme.families import FAMILIES
from polyseme.objectives.base import Objective, ObjectiveLoss
from polyseme.objectives.causal_lm import CausalLM
from polyseme.objectives.losses import compute_losses
from polyseme.objectives.streaming_lm import StreamingCausalLM
from polyseme.recipes import RECIPES
from polyseme.text.tokenizer import Tokenizer
from polyseme.train import pretrain as module
from polyseme.train.budget import Deadline
from polyseme.train.checkpoint import load_checkpoint
from polyseme.train.pretrain import pretrain
from polyseme.train.recipe import BudgetConfig
from tests.support.commands import run_cli
from tests.support.ranks import run_ranks
from tests.support.runs import STEPS, Killed, assert_same, checkpoint_tensors, tiny_recipe

PAIRED = ("transformer", "seq2seq")  # which read pairs: test_translation.py and test_seq2seq_runs.py
TRAINED = [name for name in FAMILIES if f"{name}-tiny" in RECIPES and name not in PAIRED]
VARIANTS = {"causal-bert": ("bert", {"causal": True}, CausalLM())}  # family, arguments of its trunk, objective
EAGER = [
    name for name in TRAINED if not FAMILIES[name].model_config().trunk.supports_static_shape
]  # which are not compiled
ALIKE = ("roberta", "spanbert", "distilbert", "gpt")  # whose graph is that of bert or gpt2
KILLED_TWICE = ("bert", "rnn_lm", "word2vec")  # samples, streams with a memory, sparse updates
CASES = [
    pytest.param(name, compile, id=f"{'compiled' if compile else 'eager'}-{name}", marks=[pytest.mark.slow] * is_slow)
    for name in TRAINED
    for compile in (False, True)
    for is_slow in (name not in (*ALIKE, *EAGER) if compile else name in ALIKE and name != "spanbert",)
]


@pytest.fixture(scope="module")
def corpora(tmp_path_factory) -> dict[str, Path]:
    """Prepare a small corpus for each kind of tokenizer."""
    folder = tmp_path_factory.mktemp("resume")
    rng = np.random.default_rng(0)
    words = ["".join(rng.choice(list("abcdefgh"), rng.integers(2, 6))) for _ in range(60)]
    sentences = [[" ".join(rng.choice(words, rng.integers(3, 9))) + "." for _ in range(12)] for _ in range(40)]
    text = folder / "text.txt"
    text.write_text("\n\n".join(" ".join(s).capitalize() for s in sentences))
    found = {}
    pieces = folder / "pieces.txt"
    pieces.write_text("\n\n".join(" ".join(rng.choice(EVENTS, 60)) for _ in range(40)))
    prepare([pieces], Tokenizer.load("events"), folder / "events", PrepareConfig(split="blank"))
    found["events"] = folder / "events"
    for kind in sorted(set(map(kind_of, FAMILIES)) - {"events"}):
        size, sentinels = 330 if "unigram" not in kind else 100, 20 * kind.endswith("+")
        tokenizer = Tokenizer.train(
            kind.rstrip("+"), iter([text.read_text()]), size + sentinels, num_sentinels=sentinels
        )
        prepare([text], tokenizer, folder / kind, PrepareConfig(split="blank"))
        found[kind] = folder / kind
    return found


def kind_of(family: str) -> str:
    """Return the kind of tokenizer of a family, with `+` if it has sentinels."""
    return FAMILIES[family].tokenizer + "+" * bool(FAMILIES[family].num_sentinels)


@pytest.fixture(scope="module")
def whole(corpora, tmp_path_factory) -> Path:
    """Run BERT without interruption."""
    run = tmp_path_factory.mktemp("whole") / "run"
    pretrain(tiny_recipe("bert"), corpora["wordpiece"], run)
    return run


@pytest.mark.parametrize("family,compile", CASES)
def test_killed_and_resumed(family, compile, corpora, tmp_path, monkeypatch):
    if compile and family in ALIKE:
        pytest.skip("compiled as another family")
    if compile and family in EAGER:
        with pytest.raises(PolysemeError, match=f"compile is true, which {family} does not support: set it to false$"):
            pretrain(tiny_recipe(family, compile), corpora[kind_of(family)], tmp_path / "whole")
        return
    check_resume(tiny_recipe(family, compile), corpora[kind_of(family)], tmp_path, monkeypatch)


def test_a_traced_run_resumes(corpora, tmp_path, monkeypatch):
    """With the graphs of `torch.compile`; generating code for them takes half a minute, which is left to `-m slow`."""
    from torch._dynamo.backends.registry import lookup_backend

    graphs = []

    def trace(graph, inputs):
        graphs.append(graph)
        return lookup_backend("aot_eager")(graph, inputs)

    monkeypatch.setattr(torch, "compile", functools.partial(torch.compile, backend=trace))
    check_resume(tiny_recipe("bert", compile=True), corpora["wordpiece"], tmp_path, monkeypatch)
    assert max(len(graph.graph.nodes) for graph in graphs) > 20, "the model was not traced"


@pytest.mark.parametrize("variant", VARIANTS)
def test_a_variant_resumes(variant, corpora, tmp_path, monkeypatch):
    family, model, objective = VARIANTS[variant]
    recipe = tiny_recipe(family)
    recipe = recipe.replace(model=recipe.model | model, objective=objective)
    check_resume(recipe, corpora[kind_of(family)], tmp_path, monkeypatch)


def check_resume(recipe, corpus, tmp_path, monkeypatch):
    """Compare a run that is killed once or twice at random steps with an uninterrupted one."""
    pretrain(recipe, corpus, tmp_path / "whole")

    steps_taken = []
    real = module.train

    def counted(run, data):
        """Run the real loop and die after a random step."""
        limit = kills.pop() if kills else STEPS + 1
        for report in real(run, data):
            steps_taken.append(report.step)
            if report.step >= limit:
                raise Killed
            yield report

    monkeypatch.setattr(module, "train", counted)
    rng = random.Random(recipe.family)
    num_kills = 2 if recipe.family in KILLED_TWICE else 1
    kills = sorted((rng.randint(1, STEPS - 1) for _ in range(num_kills)), reverse=True)
    for attempt in range(len(kills) + 1):
        try:
            pretrain(recipe, corpus, tmp_path / "killed", resume=attempt > 0)
        except Killed:
            continue
    assert_same(tmp_path / "whole", tmp_path / "killed")
    assert sorted(set(steps_taken)) == list(range(1, STEPS + 1))
    state = checkpoint_tensors(tmp_path / "killed")
    counts = {int(t) for name, t in state.items() if name.endswith("/step")}
    assert counts == (set() if recipe.optimizer.is_sparse else {STEPS})


def test_a_growing_batch_and_muon_resume(corpora, tmp_path, monkeypatch):
    """During batch warm-up and after it; Muon's momentum is part of the state."""
    plain = tiny_recipe("bert")
    grown = plain.replace(batch_tokens=1024, batch_warmup_steps=6, optimizer=plain.optimizer.replace(name="muon"))
    pretrain(grown, corpora["wordpiece"], tmp_path / "whole")
    real, sizes = module.train, []

    def killed(run, data):
        for report in real(run, data):
            sizes.append((report.step, report.tokens))
            if report.step == run.start_step + 4:
                raise Killed
            yield report

    monkeypatch.setattr(module, "train", killed)
    for resume in (False, True):
        with pytest.raises(Killed):
            pretrain(grown, corpora["wordpiece"], tmp_path / "killed", resume=resume)
    monkeypatch.setattr(module, "train", real)
    pretrain(grown, corpora["wordpiece"], tmp_path / "killed", resume=True)
    assert_same(tmp_path / "whole", tmp_path / "killed")
    assert any(name.endswith("/momentum") for name in checkpoint_tensors(tmp_path / "whole"))
    tokens = dict(sizes)
    assert tokens[1] <= 256 < tokens[5] <= 1024


@pytest.mark.parametrize("direction", [pytest.param("forward", marks=pytest.mark.slow), "backward"])
def test_segments_of_drawn_length_resume_in_mid_stream(direction, corpora, tmp_path, monkeypatch):
    """Position, next segment length and memory are restored, also past the end of an epoch."""
    plain = tiny_recipe("rnn_lm")
    given = {"cell": "gru", "direction": direction, "weight_dropout": 0.3, "variational_dropout": True,
             "hidden_dim": 24, "max_len": 256}  # fmt: skip
    drawn = plain.replace(
        model=plain.model | given,
        objective=StreamingCausalLM(bptt_std=5.0, direction=direction),
        max_len=64,
        batch_tokens=2048,
        micro_batch_tokens=1024,
    )
    pretrain(drawn, corpora["bpe"], tmp_path / "whole")
    rows = [json.loads(line) for line in (tmp_path / "whole/log.jsonl").read_text().splitlines()]
    rows = [row for row in rows if "loss" in row]
    assert len({row["tokens"] for row in rows}) > 3
    shares = [row["lr"] / (drawn.optimizer.lr * drawn.schedule.lr_factor(row["step"] - 1, STEPS)) for row in rows]
    assert shares == pytest.approx([row["tokens"] / 2048 for row in rows])
    real = module.train

    def killed(run, data):
        for report in real(run, data):
            if report.step == run.start_step + 3:
                raise Killed
            yield report

    monkeypatch.setattr(module, "train", killed)
    for resume in (False, True):
        with pytest.raises(Killed):
            pretrain(drawn, corpora["bpe"], tmp_path / "killed", resume=resume)
    monkeypatch.setattr(module, "train", real)
    pretrain(drawn, corpora["bpe"], tmp_path / "killed", resume=True)
    assert_same(tmp_path / "whole", tmp_path / "killed")
    assert any(name.startswith("memory/") for name in checkpoint_tensors(tmp_path / "whole"))


def test_a_real_kill(corpora, whole, tmp_path):
    """SIGKILL from outside at any moment, even while saving; another process resumes."""
    (tmp_path / "recipe.json").write_text(json.dumps(tiny_recipe("bert").to_json()))
    command = ["pretrain", tmp_path / "recipe.json", "--corpus", corpora["wordpiece"], "--out", tmp_path / "killed"]
    process = multiprocessing.get_context("fork").Process(target=run_cli, args=command)
    process.start()
    deadline = time.monotonic() + 60
    while not list((tmp_path / "killed").glob("checkpoints/*")) and time.monotonic() < deadline:
        time.sleep(0.002)
    process.kill()
    process.join()
    run_cli(*command, "--resume")
    assert_same(whole, tmp_path / "killed")


def test_sigterm_saves_and_leaves(corpora, whole, tmp_path, monkeypatch):
    real = module.train

    def signalled(run, data):
        for report in real(run, data):
            if report.step == 3:
                os.kill(os.getpid(), signal.SIGTERM)
            yield report

    monkeypatch.setattr(module, "train", signalled)
    with pytest.raises(Interrupted, match="step 3"):
        pretrain(tiny_recipe("bert"), corpora["wordpiece"], tmp_path / "run")
    assert load_checkpoint(tmp_path / "run" / "checkpoints").step == 3
    monkeypatch.setattr(module, "train", real)
    pretrain(tiny_recipe("bert"), corpora["wordpiece"], tmp_path / "run", resume=True)
    assert_same(whole, tmp_path / "run")


def test_a_damaged_checkpoint_is_walked_past(corpora, whole, tmp_path, monkeypatch):
    real = module.train

    def short(run, data):
        for report in real(run, data):
            if report.step == 6:
                raise Killed
            yield report

    monkeypatch.setattr(module, "train", short)
    with pytest.raises(Killed):
        pretrain(tiny_recipe("bert"), corpora["wordpiece"], tmp_path / "run")
    newest = tmp_path / "run" / "checkpoints" / "step-4" / "model.safetensors"
    data = bytearray(newest.read_bytes())
    data[-1] ^= 1
    newest.write_bytes(bytes(data))
    assert load_checkpoint(tmp_path / "run" / "checkpoints").step == 2
    monkeypatch.setattr(module, "train", real)
    pretrain(tiny_recipe("bert"), corpora["wordpiece"], tmp_path / "run", resume=True)
    assert_same(whole, tmp_path / "run")


def test_nan_stops_with_the_last_good_checkpoint(corpora, tmp_path, monkeypatch):
    def poisoned(model, batch):
        losses = compute_losses(model, batch)
        calls.append(1)
        return {name: loss * float("nan") for name, loss in losses.items()} if len(calls) > 10 else losses

    calls = []
    monkeypatch.setattr(Objective, "build_loss", lambda self, device, dtype: ObjectiveLoss(poisoned))
    with pytest.raises(PolysemeError, match="step 6 is not finite"):
        pretrain(tiny_recipe("bert"), corpora["wordpiece"], tmp_path / "run")
    last = load_checkpoint(tmp_path / "run" / "checkpoints")
    assert last.step == 4
    assert all(torch.isfinite(t).all() for t in last.tensors["model"].values())


def test_disk_full_while_saving(corpora, tmp_path, monkeypatch):
    from polyseme.train import checkpoint

    real = checkpoint.write_tensors

    def full(path, tensors):
        if "step-4" in str(path) and "optimizer" in str(path):
            raise OSError(28, "No space left on device")
        return real(path, tensors)

    monkeypatch.setattr(checkpoint, "write_tensors", full)
    with pytest.raises(PolysemeError, match="No space left on device"):
        pretrain(tiny_recipe("bert"), corpora["wordpiece"], tmp_path / "run")
    assert load_checkpoint(tmp_path / "run" / "checkpoints").step == 2
    assert sorted(p.name for p in (tmp_path / "run" / "checkpoints").iterdir()) == ["LATEST", "step-2"]


def test_a_resumed_run_repeats_the_plans_of_a_budget_in_minutes(corpora, tmp_path, monkeypatch):
    """Killed after the number of steps changed twice, it continues from a checkpoint before that, at the same rates."""
    real, replans = module.train, {2: 40, 4: 12, 8: 14}
    monkeypatch.setattr(Deadline, "replan_steps", lambda self, step, total: replans.get(step, total))

    def killed(run, data):
        for report in real(run, data):
            if report.step == 5:
                raise Killed
            yield report

    timed = tiny_recipe("bert").replace(budget=BudgetConfig(minutes=1.0), save_every=100)
    pretrain(timed, corpora["wordpiece"], tmp_path / "whole")
    timed_run = tmp_path / "killed"
    monkeypatch.setattr(module, "train", killed)
    with pytest.raises(Killed):
        pretrain(timed, corpora["wordpiece"], timed_run)
    monkeypatch.setattr(module, "train", real)
    replans.update({2: 99, 4: 99})
    assert pretrain(timed, corpora["wordpiece"], timed_run, resume=True)["steps"] == 14
    plans = [json.loads((run / "recipe.json").read_text())["plan"] for run in (tmp_path / "whole", timed_run)]
    assert plans[0] == plans[1] and [row["total_steps"] for row in plans[0]] == [200, 40, 12, 14]
    models = [load_file(run / "model" / "model.safetensors") for run in (tmp_path / "whole", timed_run)]
    assert all(torch.equal(models[0][name], models[1][name]) for name in models[0])


def test_a_run_out_of_time_ends_after_the_step_with_its_model(corpora, tmp_path, monkeypatch):
    """The plans are in the log; the schedule ends where the run does; the result says that it was short."""
    monkeypatch.setattr(Deadline, "replan_steps", lambda self, step, total: 5 if step == 2 else total)
    run = tmp_path / "run"
    timed = tiny_recipe("bert").replace(budget=BudgetConfig(minutes=1.0), log_every=1)
    results = pretrain(timed, corpora["wordpiece"], run)
    assert results["steps"] == 5 == json.loads((run / "recipe.json").read_text())["total_steps"]
    rows = [json.loads(line) for line in (run / "log.jsonl").read_text().splitlines()]
    rates = [row["lr"] for row in rows if "lr" in row]
    assert len(rates) == 5 == load_checkpoint(run / "checkpoints").step and rates[-1] < 0.4 * max(rates)
    assert [row["plan"]["steps"] for row in rows if "plan" in row] == [5]
    assert any("only 5 steps fit into the budget of 60s" in warning for warning in results["warnings"])
    assert (run / "model" / "config.json").exists()


@pytest.mark.parametrize("launcher", ["fork", pytest.param("torchrun", marks=pytest.mark.slow)])
def test_two_ranks_train_the_same_model(launcher, corpora, tmp_path):
    """The same steps on the same data as with one process, one run folder, and a clean exit."""
    plain = tiny_recipe("bert")
    plain = plain.replace(model={**plain.model, "dropout": 0.0, "attention_dropout": 0.0})
    pretrain(plain, corpora["wordpiece"], tmp_path / "one")
    (tmp_path / "recipe.json").write_text(json.dumps(plain.to_json()))
    command = ["pretrain", tmp_path / "recipe.json", "--corpus", corpora["wordpiece"], "--out", tmp_path / "two"]
    if launcher == "fork":
        assert run_ranks(lambda rank: run_cli(*command))[0] == [0, 0]
    else:
        torchrun = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", "2", "--standalone"]
        process = subprocess.run(
            [*torchrun, "-m", "polyseme.cli.main", *map(str, command)],
            env=os.environ | {"OMP_NUM_THREADS": "1"}, capture_output=True, text=True, timeout=120,
        )  # fmt: skip
        assert process.returncode == 0, process.stderr[-2000:]
    models = [load_file(tmp_path / name / "model" / "model.safetensors") for name in ("one", "two")]
    for name, tensor in models[0].items():
        torch.testing.assert_close(models[1][name], tensor, atol=2e-4, rtol=1e-3)
    rows = [[json.loads(r) for r in (tmp_path / n / "log.jsonl").read_text().splitlines()] for n in ("one", "two")]
    assert [r["tokens"] for r in rows[0] if "loss" in r] == [r["tokens"] for r in rows[1] if "loss" in r]


def test_a_run_is_not_overwritten_and_not_mixed(corpora, tmp_path):
    short = tiny_recipe("bert").replace(budget=BudgetConfig(steps=2))
    pretrain(short, corpora["wordpiece"], tmp_path / "run")
    with pytest.raises(PolysemeError, match="resume the run"):
        pretrain(short, corpora["wordpiece"], tmp_path / "run")
    with pytest.raises(PolysemeError, match="seed was 0, now 5"):
        pretrain(short.replace(seed=5), corpora["wordpiece"], tmp_path / "run", resume=True)
    with pytest.raises(PolysemeError, match="another corpus"):
        pretrain(short, corpora["bpe"], tmp_path / "run", resume=True)

"""Gradual unfreezing: the head first, then the groups from the top, the schedule anew each time; in every family."""

from itertools import islice

import numpy as np
import pytest
import torch

from polyseme.errors import UserError
from polyseme.families import FAMILIES
from polyseme.finetuning.finetune import FinetuneSpec, _encode, _open, finetune
from polyseme.finetuning.runner import groups as groups_of
from polyseme.finetuning.runner import phased, steps, training
from polyseme.tasks.examples import Example
from polyseme.tasks.task import Task
from polyseme.text.tokenizer import Tokenizer
from polyseme.train.optimizer import OptimSpec
from polyseme.train.schedule import ScheduleSpec
from polyseme.weights.folder import save_model
from tests.contracts.cases import fitting

EXAMPLES = [Example(f"d:{i}", f"{'cat dog' if i % 2 else 'fish bird'} hare", label="ab"[i % 2]) for i in range(10)]
READS_TEXT = [name for name in FAMILIES if FAMILIES[name].tokenizer != "events"]


def make(family, path):
    kind = FAMILIES[family].tokenizer
    words = "cat dog fish bird hare newt swan seal"
    tokenizer = Tokenizer.train(kind, iter([words, *words.split()] * 30), 300).marked(FAMILIES[family].marks)
    sizes = {"num_layers": 2, "dim": 16, "num_heads": 2, "max_len": 32, "dropout": 0.0, "attention_dropout": 0.0}
    sizes |= {"buckets": 50, "hidden_dim": 24}
    spec = FAMILIES[family].spec(**fitting(FAMILIES[family], **sizes), vocab_size=tokenizer.vocab_size)
    save_model(path, spec.build(seed=0), tokenizer)
    return path


def begun(path, settings, seed=0):
    task = Task.of("classification", EXAMPLES)
    folder = _open(path, task, settings, seed, False)
    data = _encode(task, EXAMPLES, folder, settings)
    return task, data, training(folder.model, settings, len(data), seed)


@pytest.mark.parametrize("family", READS_TEXT)
def test_groups_join_one_by_one(family, tmp_path):
    """A group stays as it was, bit for bit, until its epoch has come, and changes from then on."""
    path = make(family, tmp_path / "model")
    rates = OptimSpec(rate=0.01, layer_decay=0.5)
    settings = FinetuneSpec(epochs=20, batch_size=5, unfreeze=1, optim=rates, schedule=ScheduleSpec("slanted"))
    task, data, run = begun(path, settings)
    groups = groups_of(run.model)
    before = [[p.detach().clone() for p in group] for group in groups]
    head = [p.detach().clone() for p in run.model.heads.parameters()]
    phases = settings.phases(len(data), len(groups))
    assert [frozen for *_, frozen in phases] == list(range(len(groups), -1, -1))
    for report in phased(run, task, data, settings, seed=0):
        if report.step not in [end for _, end, _ in phases]:
            continue
        frozen = phases[[end for _, end, _ in phases].index(report.step)][2]
        moved = [any(not torch.equal(p, was) for p, was in zip(group, old)) for group, old in zip(groups, before)]
        assert not any(moved[:frozen])
        reached = [any(p.grad is not None and p.grad.any() for p in group) for group in groups]
        assert moved[frozen:] == [a or b for a, b in zip(moved[frozen:], reached[frozen:])]
        assert any(not torch.equal(p, was) for p, was in zip(run.model.heads.parameters(), head))
    assert sum(moved) >= len(groups) - 1  # some poolers are read by no head


def test_each_phase_has_a_triangle_of_its_own_and_each_group_its_rate(tmp_path):
    path = make("bert", tmp_path / "model")
    schedule = ScheduleSpec("slanted", 0.25, ratio=8)
    settings = FinetuneSpec(
        epochs=12, batch_size=5, unfreeze=2, optim=OptimSpec(rate=0.1, layer_decay=1 / 2.6), schedule=schedule
    )
    task, data, run = begun(path, settings)
    groups = groups_of(run.model)
    rates = [report.rate for report in phased(run, task, data, settings, seed=0)]
    for first, end, _ in settings.phases(len(data), len(groups)):
        assert rates[first:end] == [pytest.approx(0.1 * schedule.scale(i, end - first)) for i in range(end - first)]
        assert rates[first] == pytest.approx(0.1 / 8) and max(rates[first:end]) == pytest.approx(0.1)
    depth = {id(p): i for i, group in enumerate(groups) for p in group}
    for group in run.optimiser.param_groups:
        below = {len(groups) - depth.get(id(p), len(groups)) for p in group["params"]}
        assert len(below) == 1 and group["scale"] == pytest.approx(2.6 ** -below.pop())


def test_phases_are_runs_of_epochs():
    settings = FinetuneSpec(epochs=5, batch_size=10, unfreeze=1)
    assert settings.phases(95, 3) == [(0, 10, 3), (10, 20, 2), (20, 30, 1), (30, 50, 0)]
    assert settings.replace(freeze=1).phases(95, 3) == [(0, 10, 3), (10, 20, 2), (20, 50, 1)]
    assert settings.replace(unfreeze=0.5).phases(95, 3) == [(0, 5, 3), (5, 10, 2), (10, 15, 1), (15, 50, 0)]
    assert settings.replace(unfreeze=0.0, freeze=2).phases(95, 3) == [(0, 50, 2)]
    with pytest.raises(UserError, match="50 steps end before all 9 groups are unfrozen, at step 90"):
        settings.phases(95, 9)


@pytest.mark.parametrize("done", [0, 1, 3, 4, 10])
def test_a_phase_goes_on_where_the_one_before_ended(done, tmp_path):
    settings = FinetuneSpec(batch_size=3)
    task, data, _ = begun(make("bert", tmp_path / "model"), settings)
    expected = islice(steps(task, data, settings, 7), done, done + 6)
    for (a, _), (b, _) in zip(expected, steps(task, data, settings, 7, done=done)):
        assert np.array_equal(a[0].tokens, b[0].tokens)


def test_bad_settings_are_one_line(tmp_path):
    path = make("bert", tmp_path / "model")
    for settings, said in (
        (FinetuneSpec(unfreeze=-1.0), "unfreeze is -1.0, expected 0 or more"),
        (FinetuneSpec(unfreeze=3.0), "end before all 4 groups are unfrozen"),
        (FinetuneSpec(chunk=8), "chunk is 8, but bert has no memory"),
    ):
        with pytest.raises(UserError, match=said):
            finetune(path, "classification", EXAMPLES, EXAMPLES, tmp_path / "out", settings)
        assert not (tmp_path / "out").exists()

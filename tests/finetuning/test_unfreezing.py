"""Gradual unfreezing in every family: the head first, then the groups from the top; the schedule restarts."""

from itertools import islice

import numpy as np
import pytest
import torch

from polyseme.errors import PolysemeError
from polyseme.families import FAMILIES
from polyseme.finetuning.config import FinetuneConfig
from polyseme.finetuning.experiment import TaskData, epoch_batches
from polyseme.finetuning.finetune import _encode_labeled, finetune, load_for_tasks
from polyseme.finetuning.training import layer_groups as groups_of
from polyseme.finetuning.training import run_phases, train_state
from polyseme.tasks.classification import ClassificationTask
from polyseme.tasks.sequence import TextExample
from polyseme.text.tokenizer import Tokenizer
from polyseme.train.optimizer import OptimizerConfig, ScheduleConfig
from polyseme.weights.folder import save_model
from tests.support.cases import supported_args
from tests.support.tasks import make_experiment

EXAMPLES = [TextExample(f"d:{i}", f"{'cat dog' if i % 2 else 'fish bird'} hare", label="ab"[i % 2]) for i in range(10)]
READS_TEXT = [name for name in FAMILIES if FAMILIES[name].tokenizer != "events"]


def make(family, path):
    kind = FAMILIES[family].tokenizer
    words = "cat dog fish bird hare newt swan seal"
    tokenizer = Tokenizer.train(kind, iter([words, *words.split()] * 30), 300).with_cls_position(
        FAMILIES[family].cls_position
    )
    sizes = {"num_layers": 2, "dim": 16, "num_heads": 2, "max_len": 32, "dropout": 0.0, "attention_dropout": 0.0}
    sizes |= {"num_buckets": 50, "hidden_dim": 24}
    spec = FAMILIES[family].model_config(**supported_args(FAMILIES[family], **sizes), vocab_size=tokenizer.vocab_size)
    save_model(path, spec.build(seed=0), tokenizer)
    return path


def begun(path, settings, seed=0):
    task = ClassificationTask.from_examples(EXAMPLES)
    folder = load_for_tasks(path, [task], settings, seed, False)
    data = _encode_labeled(task, EXAMPLES, folder, settings)
    return (
        make_experiment(task, data, settings, folder.model),
        data,
        train_state(folder.model, settings, len(data), seed),
    )


QUICK = ("bert", "gpt2", "t5", "elmo", "ulmfit", "transformer_xl")  # one of each style


@pytest.mark.parametrize(
    "family", [pytest.param(name, marks=[pytest.mark.slow] * (name not in QUICK)) for name in READS_TEXT]
)
def test_groups_are_unfrozen_one_by_one(family, tmp_path):
    """A group is unchanged, bit for bit, until its phase, and changes from then on."""
    path = make(family, tmp_path / "model")
    rates = OptimizerConfig(lr=0.01, layer_decay=0.5)
    settings = FinetuneConfig(
        epochs=20, batch_size=5, unfreeze_every=1, optimizer=rates, schedule=ScheduleConfig("slanted")
    )
    experiment, data, run = begun(path, settings)
    groups = groups_of(run.model)
    before = [[p.detach().clone() for p in group] for group in groups]
    head = [p.detach().clone() for p in run.model.heads.parameters()]
    phases = settings.unfreezing_phases(len(data), len(groups))
    assert [frozen for *_, frozen in phases] == list(range(len(groups), -1, -1))
    for report in run_phases(experiment, run, seed=0):
        if report.step not in [end for _, end, _ in phases]:
            continue
        frozen = phases[[end for _, end, _ in phases].index(report.step)][2]
        moved = [any(not torch.equal(p, was) for p, was in zip(group, old)) for group, old in zip(groups, before)]
        assert not any(moved[:frozen])
        reached = [any(p.grad is not None and p.grad.any() for p in group) for group in groups]
        assert moved[frozen:] == [a or b for a, b in zip(moved[frozen:], reached[frozen:])]
        assert any(not torch.equal(p, was) for p, was in zip(run.model.heads.parameters(), head))
    assert sum(moved) >= len(groups) - 1  # some poolers are read by no head


def test_schedule_restarts_and_groups_have_their_rates(tmp_path):
    path = make("bert", tmp_path / "model")
    schedule = ScheduleConfig("slanted", 0.25, slanted_ratio=8)
    settings = FinetuneConfig(
        epochs=12,
        batch_size=5,
        unfreeze_every=2,
        optimizer=OptimizerConfig(lr=0.1, layer_decay=1 / 2.6),
        schedule=schedule,
    )
    experiment, data, run = begun(path, settings)
    groups = groups_of(run.model)
    rates = [report.lr for report in run_phases(experiment, run, seed=0)]
    for first, end, _ in settings.unfreezing_phases(len(data), len(groups)):
        assert rates[first:end] == [pytest.approx(0.1 * schedule.lr_factor(i, end - first)) for i in range(end - first)]
        assert rates[first] == pytest.approx(0.1 / 8) and max(rates[first:end]) == pytest.approx(0.1)
    depth = {id(p): i for i, group in enumerate(groups) for p in group}
    for group in run.optimizer.param_groups:
        below = {len(groups) - depth.get(id(p), len(groups)) for p in group["params"]}
        assert len(below) == 1 and group["lr_scale"] == pytest.approx(2.6 ** -below.pop())


def test_phases():
    settings = FinetuneConfig(epochs=5, batch_size=10, unfreeze_every=1)
    assert settings.unfreezing_phases(95, 3) == [(0, 10, 3), (10, 20, 2), (20, 30, 1), (30, 50, 0)]
    assert settings.replace(num_frozen_groups=1).unfreezing_phases(95, 3) == [(0, 10, 3), (10, 20, 2), (20, 50, 1)]
    assert settings.replace(unfreeze_every=0.5).unfreezing_phases(95, 3) == [
        (0, 5, 3),
        (5, 10, 2),
        (10, 15, 1),
        (15, 50, 0),
    ]
    assert settings.replace(unfreeze_every=0.0, num_frozen_groups=2).unfreezing_phases(95, 3) == [(0, 50, 2)]
    with pytest.raises(PolysemeError, match="50 steps end before all 9 groups are unfrozen, at step 90"):
        settings.unfreezing_phases(95, 9)


@pytest.mark.parametrize("num_done", [0, 1, 3, 4, 10])
def test_phases_continue_the_order_of_examples(num_done, tmp_path):
    settings = FinetuneConfig(batch_size=3)
    experiment, data, _ = begun(make("bert", tmp_path / "model"), settings)
    task = experiment.runs[0].task
    expected = islice(epoch_batches(task, data, settings, 7), num_done, num_done + 6)
    for (a, _), (b, _) in zip(expected, epoch_batches(task, data, settings, 7, num_done=num_done)):
        assert np.array_equal(a[0].inputs.tokens, b[0].inputs.tokens)


def test_unfreezing_errors(tmp_path):
    path = make("bert", tmp_path / "model")
    for settings, said in (
        (FinetuneConfig(unfreeze_every=-1.0), "unfreeze_every is -1.0, expected 0 or more"),
        (FinetuneConfig(unfreeze_every=3.0), "end before all 4 groups are unfrozen"),
        (FinetuneConfig(chunk_size=8), "chunk_size is 8, but bert has no memory"),
    ):
        with pytest.raises(PolysemeError, match=said):
            finetune(path, TaskData(ClassificationTask(), EXAMPLES, EXAMPLES), tmp_path / "out", settings)
        assert not (tmp_path / "out").exists()

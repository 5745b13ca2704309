"""Runs that are stopped at any moment and resumed by the same call end with the same bytes (law 5)."""

import json
import os
import random
import signal
from contextlib import closing
from functools import partial

import pytest
import torch

import polyseme
from polyseme.errors import ConfigError, DataError, Interrupted, ModelError
from polyseme.families import FAMILIES
from polyseme.finetuning import runner
from polyseme.finetuning.config import FeatureNetworkSettings, FinetuneConfig
from polyseme.finetuning.experiment import Experiment, RunOptions, Split, TaskData, TaskRun
from polyseme.finetuning.finetune import finetune
from polyseme.finetuning.frozen import FEATURE_DEFAULTS, FeatureInputs, train_on_features
from polyseme.finetuning.resume import first_difference, hash_examples
from polyseme.finetuning.training import SeedTraining
from polyseme.tasks.classification import ClassificationTask
from polyseme.tasks.sequence import TextExample
from polyseme.tasks.tagging import TaggingExample, TaggingTask
from polyseme.text.tokenizer import Tokenizer
from polyseme.train.optimizer import OptimizerConfig
from polyseme.weights.folder import save_model
from tests.support.runs import folder_bytes, freeze_times, run_with_kills

WORDS = ["cat", "dog", "fish", "bird", "wolf", "bear"]
CONFIG = FinetuneConfig(steps=4, batch_size=8, optimizer=OptimizerConfig(lr=1e-2))
EPOCHS = CONFIG.replace(steps=0, epochs=2.0)


def sentences(count):
    draw = random.Random(0)
    return [tuple(draw.choices(WORDS, k=draw.randint(2, 6))) for _ in range(count)]


def texts(count=16):
    labels = ((" ".join(words), "yes" if "wolf" in words else "no") for words in sentences(count))
    return [TextExample(f"d:{i}", text, label=label) for i, (text, label) in enumerate(labels)]


def tagged(count=16):
    rows = enumerate(sentences(count))
    return [TaggingExample(f"t:{i}", w, tuple("A" if x < "d" else "O" for x in w)) for i, w in rows]


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    """A tiny model folder of each of two families."""
    paths = {}
    for name, kind in (("bert", "wordpiece"), ("t5", "unigram")):
        family, paths[name] = FAMILIES[name], tmp_path_factory.mktemp("base") / name
        tokenizer = Tokenizer.train(kind, iter([" ".join(WORDS), *WORDS, "yes no classification text:"] * 30), 120)
        tokenizer = tokenizer.with_cls_position(family.cls_position)
        sizes = {"num_layers": 1, "dim": 16, "num_heads": 2, "max_len": 32, "vocab_size": tokenizer.vocab_size}
        save_model(paths[name], family.model_config(**sizes).build(0), tokenizer)
    return paths


def classification(count=16):
    return TaskData(ClassificationTask(), texts(count), texts(8))


def single_task(folders, out):
    """Three seeds with early stopping, their models, and the last epoch of each."""
    options = RunOptions(3, keep_seeds=True, keep_checkpoints=1)
    return finetune(folders["bert"], classification(), out, EPOCHS.replace(patience=1), options)


def several_tasks(folders, out):
    """Two tasks with gradual unfreezing."""
    data = [TaskData(ClassificationTask(), texts(), texts(8), "a"), TaskData(TaggingTask(), tagged(), tagged(8), "b")]
    return finetune(folders["bert"], data, out, EPOCHS.replace(unfreeze_every=0.5), RunOptions(2))


def frozen_features(folders, out):
    """A network with dropout over cached features."""
    network = FeatureNetworkSettings("bilstm", lstm_dim=8, use_char_cnn=False)
    inputs = FeatureInputs([folders["bert"]], cache_dir=out.parent / f"features-{out.name}")
    data = TaskData(TaggingTask(), tagged(), tagged(8))
    return train_on_features(inputs, data, out, FEATURE_DEFAULTS.replace(steps=3, network=network), RunOptions(2))


def text_to_text(folders, out):
    config = CONFIG.replace(steps=2, optimizer=OptimizerConfig(name="adafactor", lr=1e-2))
    return finetune(folders["t5"], classification(), out, config, RunOptions(2))


def grid(folders, out):
    options = {"steps": 2, "batch_size": 8, "keep_seeds": True, "seeds": 2}
    files = {"train": texts(), "dev": texts(8)}
    return polyseme.finetune(folders["bert"], "classification", out=out, grid={"lr": [1e-4, 1e-2]}, **files, **options)


@pytest.mark.parametrize("call", [single_task, frozen_features, grid])
def test_killed_run_ends_with_the_same_bytes(call, folders, tmp_path, monkeypatch):
    freeze_times(monkeypatch)
    call(folders, tmp_path / "whole")
    num_kills = run_with_kills(partial(call, folders, tmp_path / "run"), growth=16)
    assert num_kills > 2
    whole, resumed = (folder_bytes(tmp_path / name) for name in ("whole", "run"))
    assert whole.keys() == resumed.keys()
    assert not [name for name, content in whole.items() if resumed[name] != content]
    assert not [name for name in whole if "unfinished" in name]
    with pytest.raises(ConfigError, match="already holds"):
        call(folders, tmp_path / "run")


@pytest.mark.slow
@pytest.mark.parametrize("call", [single_task, several_tasks, frozen_features, text_to_text, grid])
def test_run_killed_many_times_ends_with_the_same_bytes(call, folders, tmp_path, monkeypatch):
    freeze_times(monkeypatch)
    call(folders, tmp_path / "whole")
    assert run_with_kills(partial(call, folders, tmp_path / "run"), growth=1) > 10
    assert folder_bytes(tmp_path / "whole") == folder_bytes(tmp_path / "run")


def stop_after(monkeypatch, num_steps, stop):
    """Call `stop` after a number of training steps, of all seeds together."""
    steps, remaining = SeedTraining.steps, iter(range(num_steps))

    def stopping(self):
        for report in steps(self):
            if next(remaining, None) is None:
                stop()
            yield report

    monkeypatch.setattr(SeedTraining, "steps", stopping)


def raise_interrupt():
    raise KeyboardInterrupt


@pytest.mark.parametrize("signum", [signal.SIGINT, signal.SIGTERM])
def test_signal_saves_the_seed_and_the_same_call_resumes(folders, tmp_path, monkeypatch, capsys, signum):
    freeze_times(monkeypatch, save_seconds=60.0)
    run = partial(finetune, folders["bert"], classification(), config=CONFIG, options=RunOptions(2))
    run(out=tmp_path / "whole")
    with monkeypatch.context() as patch:
        stop_after(patch, 6, lambda: os.kill(os.getpid(), signum))
        with pytest.raises(Interrupted, match="interrupted at step 3; the run is saved"):
            run(out=tmp_path / "run")
    assert (tmp_path / "run/unfinished/seed-0/result/step-0").is_dir()
    assert not (tmp_path / "run/results.json").exists()
    run(out=tmp_path / "run")
    assert "seed 0 is finished\nseed 1 continues after step 3\n" in capsys.readouterr().err
    assert folder_bytes(tmp_path / "whole") == folder_bytes(tmp_path / "run")


def test_command_says_how_to_resume(project, cli, tmp_path, monkeypatch):
    files = ("--train", project / "classification-train.tsv", "--dev", project / "classification-dev.tsv")
    command = ("finetune", project / "run-bert/model", "--task", "classification", *files, "--out", tmp_path / "r")
    with monkeypatch.context() as patch:
        stop_after(patch, 1, lambda: os.kill(os.getpid(), signal.SIGTERM))
        stopped = cli(*command)
    assert stopped.status == 128 + signal.SIGTERM
    message = "interrupted at step 2; the run is saved and can be resumed with the same command\n"
    assert stopped.err.startswith("lr 0.001, the default") and stopped.err.endswith(f"\n{message}")
    resumed = cli(*command)
    assert resumed.status == 0 and "seed 0 continues after step 2" in resumed.err


def test_other_settings_are_rejected_by_name(folders, tmp_path, monkeypatch):
    def run(config=CONFIG, num_examples=16, options=RunOptions(2), model="bert"):
        return finetune(folders[model], classification(num_examples), tmp_path / "run", config, options)

    freeze_times(monkeypatch)
    with monkeypatch.context() as patch:
        stop_after(patch, 2, raise_interrupt)
        with pytest.raises(KeyboardInterrupt):
            run()
    before = folder_bytes(tmp_path / "run")
    for changes, message in (
        ({"config": CONFIG.replace(optimizer=OptimizerConfig(lr=0.5))}, "optimizer.lr was 0.01, now 0.5"),
        ({"options": RunOptions(3)}, r"seeds was \[0, 1\], now \[0, 1, 2\]"),
        ({"options": RunOptions(2, keep_seeds=True)}, "keep_seeds was False, now True"),
        ({"num_examples": 17}, "tasks.classification.examples.train was '"),
        ({"model": "t5"}, "models was "),
    ):
        with pytest.raises(ConfigError, match=f"has an unfinished run with other settings: {message}"):
            run(**changes)
    assert folder_bytes(tmp_path / "run") == before
    run()


def test_grid_rejects_other_settings(folders, tmp_path, monkeypatch):
    with monkeypatch.context() as patch:
        stop_after(patch, 5, raise_interrupt)  # the first point is finished
        with pytest.raises(KeyboardInterrupt):
            grid(folders, tmp_path / "run")
    files = {"train": texts(), "dev": texts(8)}
    options = {"steps": 3, "batch_size": 8, "keep_seeds": True, "seeds": 2, "grid": {"lr": [1e-4, 1e-2]}}
    with pytest.raises(ConfigError, match=r"unfinished run with other settings: steps was 2, now 3"):
        polyseme.finetune(folders["bert"], "classification", out=tmp_path / "run", **files, **options)


@pytest.mark.parametrize("part", ["training", "result", "model"])
def test_damaged_checkpoint_is_an_error(part, folders, tmp_path, monkeypatch):
    freeze_times(monkeypatch)
    run = partial(finetune, folders["bert"], classification(), tmp_path / "run", CONFIG, RunOptions(2))
    with monkeypatch.context() as patch:
        stop_after(patch, 6, raise_interrupt)
        with pytest.raises(KeyboardInterrupt):
            run()
    seed = 1 if part == "training" else 0
    (checkpoint,) = (tmp_path / f"run/unfinished/seed-{seed}/{part}").glob("step-*")
    file = checkpoint / ("state.json" if part == "result" else "model.safetensors")
    content = bytearray(file.read_bytes())
    content[-20] ^= 1
    file.write_bytes(content)
    if part == "model":  # it is read only if no later seed is better
        monkeypatch.setattr(runner.SeedResult, "selection_score", lambda self, experiment: -self.seed)
    with pytest.raises(ModelError, match=f"no checkpoint in .*seed-{seed}/{part} is intact"):
        run()
    assert not (tmp_path / "run/results.json").exists()


def test_failed_run_leaves_nothing(folders, tmp_path):
    data = classification()
    with pytest.raises(ModelError, match="not finite"):
        finetune(folders["bert"], data, tmp_path / "run", CONFIG.replace(optimizer=OptimizerConfig(lr=1e30), steps=9))
    assert not (tmp_path / "run").exists()


def test_full_disk_leaves_a_run_that_resumes(folders, tmp_path, monkeypatch):
    freeze_times(monkeypatch)
    run = partial(finetune, folders["bert"], classification(), config=CONFIG, options=RunOptions(2))
    run(out=tmp_path / "whole")

    def full(path, text):
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr("polyseme.weights.folder.write_tensors", full)
        with pytest.raises(DataError, match=r"cannot write .*run/model: No space left on device"):
            run(out=tmp_path / "run")
    run(out=tmp_path / "run")
    assert folder_bytes(tmp_path / "whole") == folder_bytes(tmp_path / "run")


def test_first_difference():
    assert first_difference({"a": {"b": 1}, "c": 2}, {"a": {"b": 1}, "c": 2}) == ""
    assert first_difference({"a": {"b": 1}, "c": 2}, {"a": {"b": 3}, "c": 4}) == "a.b was 1, now 3"
    assert first_difference({"a": 1}, {"a": 1, "b": 2}) == "b was None, now 2"


def test_hash_of_examples_ignores_where_they_were_read():
    first, second = TextExample("a:1", "cat", label="x"), TextExample("b:9", "cat", label="x")
    assert hash_examples([first]) == hash_examples([second]) != hash_examples([first, second])
    assert hash_examples([first]) != hash_examples([TextExample("a:1", "cat", label="y")])


# ------------------------------------------------------------------------------------------------- one seed


def build_experiment(config, is_multitask):
    tokenizer = Tokenizer.train("wordpiece", iter([" ".join(WORDS)] * 30), 120)
    family = FAMILIES["bert"]
    spec = family.model_config(num_layers=2, dim=16, num_heads=2, vocab_size=tokenizer.vocab_size, max_len=24)
    runs, heads = [], {}
    chosen = [(ClassificationTask(), texts(40), "a"), (TaggingTask(), tagged(40), "b")][: 1 + is_multitask]
    for task, examples, name in chosen:
        task = task.replace(name=name if is_multitask else "").fit(examples)
        split = Split(examples, list(task.encode(examples, tokenizer, 24)))
        runs.append(TaskRun(task, TaskData(task, examples, examples, task.name), split, split))
        heads |= task.heads(family, spec.trunk)
    return Experiment(tuple(runs), config, lambda seed: spec.replace(heads=heads).build(seed), None, {})


@pytest.mark.parametrize(
    "is_multitask,changes",
    [
        (False, {}),
        (False, {"unfreeze_every": 0.5}),
        (False, {"patience": 2}),
        (True, {"unfreeze_every": 0.5}),
        pytest.param(True, {}, marks=pytest.mark.slow),
        pytest.param(True, {"patience": 2}, marks=pytest.mark.slow),
    ],
)
def test_seed_continues_exactly(is_multitask, changes):
    config = FinetuneConfig(epochs=3.0, batch_size=8, optimizer=OptimizerConfig(lr=1e-2)).replace(**changes)
    experiment = build_experiment(config, is_multitask)
    whole = SeedTraining(experiment, 3)
    losses = [report.loss for report in whole.steps()]
    first, stop = SeedTraining(experiment, 3), len(losses) // 2
    with closing(first.steps()) as steps:
        first_losses = [next(steps).loss for _ in range(stop)]
    checkpoint = first.checkpoint()
    assert checkpoint.step == stop and json.dumps(checkpoint.state, allow_nan=False)
    second = SeedTraining(experiment, 3)
    second.restore(checkpoint)
    assert first_losses + [report.loss for report in second.steps()] == losses
    assert second.log == whole.log and second.cost["tokens"] == whole.cost["tokens"]
    for name, tensor in whole.model.state_dict().items():
        assert torch.equal(tensor, second.model.state_dict()[name]), name


def test_early_stopped_seed_does_not_continue():
    config = FinetuneConfig(epochs=9.0, batch_size=8, patience=1, optimizer=OptimizerConfig(lr=1e-30))
    experiment = build_experiment(config, False)
    first = SeedTraining(experiment, 0)
    for _ in first.steps():
        checkpoint = first.checkpoint()
    second = SeedTraining(experiment, 0)
    second.restore(checkpoint)
    assert checkpoint.step == 10 and not list(second.steps()) and second.log == first.log

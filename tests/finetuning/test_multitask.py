"""Several tasks over one trunk: sampling of tasks, training of all, and one named task equals a single task."""

import itertools
import json
import random
from dataclasses import replace

import numpy as np
import pytest
import torch

import polyseme
from polyseme.errors import PolysemeError
from polyseme.evaluation.comparison.finetuning_runs import read_run
from polyseme.evaluation.predict import evaluate
from polyseme.families import FAMILIES
from polyseme.finetuning.config import FinetuneConfig
from polyseme.finetuning.experiment import Experiment, RunOptions, Split, TaskData, TaskRun, sample_tasks
from polyseme.finetuning.finetune import finetune
from polyseme.inference.prediction import predict, select_task
from polyseme.nn.packing import tree_leaves
from polyseme.tasks.classification import ClassificationTask
from polyseme.tasks.sequence import TextExample
from polyseme.tasks.tagging import TaggingExample, TaggingTask
from polyseme.text.tokenizer import Tokenizer
from polyseme.train.optimizer import OptimizerConfig
from polyseme.weights.folder import load_model, save_model
from tests.support.commands import cli

WORDS = ["cat", "dog", "fish", "bird", "wolf", "bear", "frog", "hare", "mole", "newt"]
FAST = FinetuneConfig(steps=120, batch_size=8, optimizer=OptimizerConfig(lr=3e-3))


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    path = tmp_path_factory.mktemp("bert")
    tokenizer = Tokenizer.train("wordpiece", iter([" ".join(WORDS), *WORDS] * 30), 120)
    spec = FAMILIES["bert"].model_config(
        num_layers=2, dim=32, num_heads=2, vocab_size=tokenizer.vocab_size, max_len=24, dropout=0.0,
        attention_dropout=0.0, init_std=0.1,
    )  # fmt: skip
    save_model(path, spec.build(0), tokenizer)
    return path


def texts(n, seed, word="wolf"):
    draw_ = random.Random(seed)
    found = [" ".join(draw_.choices(WORDS, k=draw_.randint(2, 6))) for _ in range(n)]
    return [TextExample(f"t:{i}", text, label="yes" if word in text else "no") for i, text in enumerate(found)]


def tagged(n, seed):
    draw_ = random.Random(seed)
    found = [tuple(draw_.choices(WORDS, k=draw_.randint(2, 6))) for _ in range(n)]
    return [
        TaggingExample(f"s:{i}", words=w, tags=tuple("B-A" if x in WORDS[:3] else "O" for x in w))
        for i, w in enumerate(found)
    ]


def jobs():
    return [
        TaskData(ClassificationTask(), texts(160, 0), texts(40, 1), "wolves"),
        TaskData(ClassificationTask(), texts(80, 2, "bear"), texts(40, 3, "bear"), "bears"),
        TaskData(TaggingTask(), tagged(120, 4), tagged(40, 5), "tagging"),
    ]


@pytest.fixture(scope="module")
def run(folder, tmp_path_factory):
    out = tmp_path_factory.mktemp("together") / "run"
    return out, finetune(folder, jobs(), out, FAST.replace(steps=200))


def test_all_tasks_are_learned(run):
    out, found = run
    assert found["primary_metric"] == "mean" and list(found["tasks"]) == ["wolves", "bears", "tagging"]
    values = [found["mean"][name] for name in ("wolves", "bears", "tagging")]
    assert min(values) > 0.95 and found["mean"]["mean"] == pytest.approx(np.mean(values))
    assert {n: t["primary_metric"] for n, t in found["tasks"].items()} == {
        "wolves": "accuracy", "bears": "accuracy", "tagging": "f1",
    }  # fmt: skip
    folder = load_model(out / "model")
    assert list(folder.model.heads) == ["classify@wolves", "classify@bears", "tag@tagging"]
    for job in jobs():
        one = select_task(folder, job.name)
        assert list(one.model.heads) == [{"tagging": "tag"}.get(job.task.task_type, "classify")]
        assert one.model.trunk is folder.model.trunk
        metric = found["tasks"][job.name]["primary_metric"]
        assert evaluate(one, job.dev)[metric] == pytest.approx(found["mean"][job.name], abs=1e-12)
        alone = read_run(out / "tasks" / job.name)
        assert alone.mean == found["mean"][job.name] and len(alone.predictions[0]) == 40
        assert list(alone.predictions[0]) == [p.value for p in predict(one, job.dev)]
    both = polyseme.load(out / "model", task="bears").predict(["bear cat", "wolf cat"])
    assert [p.label for p in both] == ["yes", "no"]
    log = [json.loads(line) for line in (out / "log.jsonl").read_text().splitlines()]
    assert {name for row in log for name in row["loss"]} == set(folder.model.heads)
    assert (out / "report.html").stat().st_size > 1000


def test_step_changes_one_head_and_the_trunk(folder, tmp_path):
    """Other heads have no gradient, so neither weight decay nor momentum changes them."""
    settings = FAST.replace(steps=1, optimizer=OptimizerConfig(lr=1e-2, weight_decay=0.1))
    finetune(folder, jobs(), tmp_path / "run", settings)
    (chosen,) = sample_tasks([160, 80, 120], 1.0, 1, 0)
    heads = ["classify@wolves", "classify@bears", "tag@tagging"]
    after = load_model(tmp_path / "run" / "model").model
    spec = after.config
    before = load_model(folder, heads=spec.heads, seed=0).model.state_dict()
    for name, tensor in after.state_dict().items():
        if name.startswith("heads."):
            assert torch.equal(tensor, before[name]) == (heads[chosen] not in name), name
    assert not torch.equal(after.trunk.token_embeddings, before["trunk.embeddings.tokens.weight"])


def test_single_named_task_equals_single_task(folder, tmp_path):
    """Bit for bit: the same head, order and weights, under another name."""
    train, dev = texts(60, 0), texts(30, 1)
    settings = FAST.replace(steps=12)
    alone = finetune(folder, TaskData(ClassificationTask(), train, dev), tmp_path / "a", settings, RunOptions(seeds=2))
    job = TaskData(ClassificationTask(), train, dev, "wolves")
    found = finetune(folder, [job], tmp_path / "b", settings, RunOptions(seeds=2))["tasks"]["wolves"]
    for key in (
        "seeds",
        "mean",
        "std",
        "majority_score",
        "failed_seeds",
        "num_truncated",
        "parameters",
        "tokens",
        "steps",
    ):
        assert found[key] == alone[key], key
    mine, theirs = (load_model(tmp_path / name / "model").model for name in ("b", "a"))
    theirs_now = {n.replace("heads.classify.", "heads.classify@wolves."): t for n, t in theirs.state_dict().items()}
    assert all(torch.equal(t, theirs_now[n]) for n, t in mine.state_dict().items())


def test_tasks_are_sampled_by_size_to_a_power():
    for alpha, share in ((1.0, 0.9), (0.0, 0.5), (0.5, 0.75)):
        drawn = sample_tasks([900, 100], alpha, 20000, 0)
        assert (drawn == 0).mean() == pytest.approx(share, abs=0.01)
    assert (sample_tasks([9, 1], 1.0, 50, 3) == sample_tasks([9, 1], 1.0, 99, 3)[:50]).all()
    assert (sample_tasks([9, 1], 1.0, 50, 3) != sample_tasks([9, 1], 1.0, 50, 4)).any()


def test_batches_continue_from_any_step(folder):
    opened = load_model(folder)
    works = []
    for job in jobs():
        task = job.task.fit(job.train)
        encoded = task.encode(job.train, opened.tokenizer, 24)
        works.append(TaskRun(task, job, Split(job.train, encoded), Split(job.dev, ())))
    experiment = Experiment(tuple(works), FAST, None, None, {})
    whole = list(experiment.batches(7, 60))
    assert len(whole) == 60 and len({len(b.inputs.layout.lengths) for batches, _ in whole for b in batches}) >= 1
    for done in (1, 17, 59):
        rest = list(experiment.batches(7, 60, num_done=done))
        assert len(rest) == 60 - done
        for (a, at), (b, there) in zip(whole[done:], rest):
            assert at == there
            assert all(torch.equal(x, y) for x, y in zip(tree_leaves(a[0]), tree_leaves(b[0])))
    # every task sees all of its examples before it sees one again
    firsts = [cursor for _, (number, cursor) in whole if number == 1]
    assert firsts[:10] == [(0, 8 * (i + 1)) for i in range(10)] and firsts[10][0] == 1


def test_early_stopping_unfreezing_and_crf(folder, tmp_path):
    settings = FAST.replace(steps=0, epochs=2.0, patience=1, sampling_alpha=0.5, batch_size=16)
    small = [replace(j, train=j.train[:32], dev=j.dev[:10]) for j in jobs()]
    with_crf = [*small[:2], replace(small[2], task=TaggingTask(decoder="crf"))]
    found = finetune(folder, with_crf, tmp_path / "run", settings)
    assert found["steps"] == 2 * 6 and found["chosen_on_dev"] == ["the epoch"]
    heads = load_model(tmp_path / "run" / "model").model.heads
    assert heads["tag@tagging"].crf is not None and heads["classify@bears"].crf is None
    frozen = finetune(folder, small, None, settings.replace(patience=0, unfreeze_every=0.4))
    assert frozen["steps"] == 12


def written(path, examples):
    rows = "".join(f"{e.text}\t{e.label}\n" for e in examples)
    path.write_text("text\tlabel\n" + rows)
    return path


def test_commands(folder, tmp_path, run):
    wolves, bears, tags = jobs()
    files = list(itertools.chain.from_iterable(
        ("--task", f"{job.name}=classification", "--train", written(tmp_path / f"{job.name}.tsv", job.train),
         "--dev", written(tmp_path / f"{job.name}-dev.tsv", job.dev)) for job in (wolves, bears)
    ))  # fmt: skip
    for name, examples in (("train", tags.train), ("dev", tags.dev)):
        (tmp_path / "ner").mkdir(exist_ok=True)
        rows = "\n".join("".join(f"{w} {t}\n" for w, t in zip(e.words, e.tags)) for e in examples)
        (tmp_path / "ner" / f"{name}.conll").write_text(rows)
    settings = ["--set", "steps=3", "--set", "sampling_alpha=0.5"]
    answer = cli(
        "finetune", folder, *files, "--task", "ner", "--data", tmp_path / "ner", "--out", tmp_path / "run", *settings
    )
    assert answer.status == 0, answer.err
    assert [line.split()[:3] for line in answer.out.splitlines()[1:4]] == [
        ["wolves", "classification", "accuracy"], ["bears", "classification", "accuracy"], ["ner", "tagging", "f1"],
    ]  # fmt: skip
    out = run[0]
    answer = cli("evaluate", out / "model", "--task", "bears", "--data", tmp_path / "bears-dev.tsv", "--json")
    assert json.loads(answer.out)["accuracy"] > 0.95
    answer = cli("evaluate", out / "model", "--task", "wolves", "--data", tmp_path / "bears-dev.tsv", "--json")
    assert json.loads(answer.out)["accuracy"] < 0.9
    said = tmp_path / "said.tsv"
    answer = cli("predict", out / "model", "--task", "wolves", "--data", tmp_path / "wolves-dev.tsv", "--out", said)
    assert answer.status == 0 and len(said.read_text().splitlines()) == 41
    for wrong, message in (
        ((), "answers several tasks, wolves, bears, tagging: choose one"),
        (("--task", "bear"), "answers no task 'bear'"),
    ):
        answer = cli("evaluate", out / "model", *wrong, "--data", tmp_path / "bears-dev.tsv")
        assert answer.status == 2 and message in answer.err
    for args, message in (
        (files[:-2], "2 --train and 1 --dev for 2 tasks"),
        ([*files, "--data", tmp_path], "1 --data for 0 named data sets"),
        ([*files[:6], "--task", "x=nonsense"], "there is no task 'nonsense'"),
        (["--task", "classification", *files[2:6], "--train", files[3]], "2 --train for one task"),
        (["--task", "tagging", *files[2:6], "--task", "tagging", *files[2:6]], "called 'tagging'"),
        (["--task", "a.b=classification", *files[2:]], "no name for a task"),
    ):
        answer = cli("finetune", folder, *args, "--out", tmp_path / "never")
        assert answer.status == 2 and message in answer.err, (args, answer.err)
        assert not (tmp_path / "never").exists()


def test_multitask_errors(folder, run):
    some = jobs()
    with pytest.raises(PolysemeError, match="two tasks are called 'wolves'"):
        finetune(folder, [some[0], some[0]], None)
    with pytest.raises(PolysemeError, match="no task to fine-tune"):
        finetune(folder, [], None)
    with pytest.raises(PolysemeError, match="sampling_alpha is -1"):
        finetune(folder, some, None, FAST.replace(sampling_alpha=-1.0))
    with pytest.raises(PolysemeError, match="several tasks, wolves, bears, tagging"):
        polyseme.load(run[0] / "model").predict(["cat"])
    plain = load_model(folder)
    assert select_task(plain, "anything") is plain

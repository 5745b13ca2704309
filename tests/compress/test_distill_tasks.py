"""Distillation of fine-tuned models: labeled and unlabeled examples, resuming, and errors."""

import json
import os
import signal
from functools import partial

import pytest
import torch

from polyseme.compress import distill
from polyseme.errors import Interrupted
from polyseme.families import FAMILIES
from polyseme.finetuning.distillation import TaskDistillation, TaskDistillationLoss, add_soft_targets
from polyseme.finetuning.training import SeedTraining
from polyseme.tasks import task_from_json
from polyseme.weights.folder import load_model, save_model
from tests.support.runs import folder_bytes, freeze_times


def labeled(project, task):
    """Return the labeled files of a task."""
    suffix = "conll" if task == "tagging" else "tsv"
    return {"data": project / f"{task}-train.{suffix}", "dev": project / f"{task}-dev.{suffix}"}


@pytest.mark.parametrize("task", ["classification", "pair_classification", "regression", "tagging"])
def test_every_task_with_scores_can_be_distilled(task, project, tmp_path):
    """The student has one of two layers; the table has the teacher's dev metric and the student's."""
    small = distill(project / f"run-{task}", task=task, out=tmp_path / "run", **labeled(project, task), epochs=1.0)
    rows, results = {row.measure: row for row in small.rows}, small.record["results"]
    assert rows["parameters"].after < rows["parameters"].before
    metric = results["primary_metric"]
    assert rows[f"dev {metric}"].before == results["teacher"]["metrics"][metric]
    assert rows[f"dev {metric}"].after == results["mean"][metric]
    model = load_model(small.out / "model")
    assert model.model.config.trunk.num_layers == 1 and model.metadata["task"]


@pytest.mark.parametrize("task", ["classification", "regression"])
def test_a_student_equal_to_its_teacher_has_nothing_to_learn(task, project):
    """Unlabeled rows have the soft term alone."""
    folder, config = load_model(project / f"run-{task}"), TaskDistillation()
    model, codec = folder.model, task_from_json(folder.metadata["task"])
    encode = partial(codec.encode, tokenizer=folder.tokenizer, max_len=32)
    examples = codec.read(project / f"{task}-dev.tsv")[:6]
    encoded = [*encode(examples[:4]), *encode(examples[4:], use_labels=False)]
    batch = add_soft_targets(codec.collate(encoded)[0], config)
    assert batch.counts() == {"classify": 4, "soft": 6}
    losses = TaskDistillationLoss(config, model, "classify").compute(model, batch)
    assert abs(losses["soft"].item()) < 1e-6 < losses["classify"].item()
    other = model.config.build(seed=5).eval()
    losses = TaskDistillationLoss(config, model, "classify").compute(other, batch)
    hidden = [m.predict("classify", m.trunk(batch.inputs).hidden, batch.inputs.layout) for m in (other, model)]
    if task == "regression":
        expected = (hidden[0] - hidden[1]).square().sum()
    else:
        log_probs, teacher = ((logits / 2).log_softmax(-1) for logits in hidden)
        expected = 4 * (teacher.exp() * (teacher - log_probs)).sum()
    torch.testing.assert_close(losses["soft"], expected, atol=1e-6, rtol=1e-4)


def test_teacher_reads_segments_that_the_student_lacks(project):
    folder, config = load_model(project / "run-pair_classification"), TaskDistillation()
    teacher, codec = folder.model, task_from_json(folder.metadata["task"])
    examples = codec.read(project / "pair_classification-dev.tsv")[:4]
    whole = codec.collate(list(codec.encode(examples, folder.tokenizer, 32)))[0]
    sizes = {"num_layers": 1, "dim": 32, "num_heads": 2, "max_len": 32, "vocab_size": folder.tokenizer.vocab_size}
    config_of_student = FAMILIES["distilbert"].model_config(**sizes)
    heads = codec.heads(FAMILIES["distilbert"], config_of_student.trunk)
    student = config_of_student.replace(heads=heads).build(seed=3).eval()
    batch = add_soft_targets(whole, config).for_trunk(student.config.trunk)
    assert batch.inputs.segments is None and whole.inputs.segments.any()
    inputs = TaskDistillationLoss(config, teacher, "classify")._teacher_inputs(batch)
    assert torch.equal(inputs.segments, whole.inputs.segments)
    assert TaskDistillationLoss(config, teacher, "classify").compute(student, batch)["soft"] > 0


def test_unlabeled_texts_are_learned_from(project, tmp_path):
    run = partial(distill, project / "run-classification", task="classification", **labeled(project, "classification"))
    run(out=tmp_path / "labeled", epochs=1.0)
    texts = ["a good day", "a bad day", "the dog sees the cat", "no"] * 8
    small = run(out=tmp_path / "more", text=texts, epochs=1.0)
    assert small.record["results"]["teacher"]["num_unlabeled"] == 32
    steps = [json.loads((tmp_path / name / "log.jsonl").read_text().splitlines()[-1]) for name in ("labeled", "more")]
    assert [row["step"] for row in steps] == [2, 4] and steps[1]["loss"].keys() == {"classify", "soft"}


def test_stopped_run_is_resumed_exactly(project, tmp_path, monkeypatch):
    freeze_times(monkeypatch, save_seconds=60.0)
    files = labeled(project, "classification") | {"text": ["a good day", "a bad day"] * 4}
    run = partial(distill, project / "run-classification", task="classification", **files, epochs=2.0)
    run(out=tmp_path / "whole")
    steps = SeedTraining.steps

    def stopping(self):
        for report in steps(self):
            if report.step == 2:
                os.kill(os.getpid(), signal.SIGTERM)
            yield report

    with monkeypatch.context() as patch:
        patch.setattr(SeedTraining, "steps", stopping)
        with pytest.raises(Interrupted):
            run(out=tmp_path / "run")
    with pytest.raises(ValueError, match=r"distillation\.temperature was 2\.0, now 3\.0"):
        run(out=tmp_path / "run", temperature=3.0)
    run(out=tmp_path / "run")
    assert folder_bytes(tmp_path / "whole") == folder_bytes(tmp_path / "run")


def test_command(project, run_cli, cli, tmp_path):
    teacher, train = project / "run-classification", project / "classification-train.tsv"
    command = ("distill", teacher, "--task", "classification", "--data", train, "--set", "epochs=1")
    output = json.loads(run_cli(*command, "--out", tmp_path / "run", "--json"))
    assert {"megabytes", "parameters", "ms per text", "dev accuracy"} <= {row["measure"] for row in output["rows"]}
    assert "dev accuracy" in run_cli(*command, "--out", tmp_path / "two", "--student", project / "run-bert/model")
    other = load_model(project / "run-gpt2")
    save_model(tmp_path / "other", other.model, other.tokenizer)
    (tmp_path / "labels.tsv").write_text("text\tlabel\n" + "a good day\tx\na bad day\ty\n" * 12)
    for arguments, message in (
        (("--student", tmp_path / "other"), "another vocabulary than its teacher"),
        (("--data", tmp_path / "labels.tsv"), "but the training examples have x, y"),
        (("--task", "extractive_qa"), "extractive_qa cannot be distilled: only classification"),
        (("--corpus", project / "corpus-bert"), "--corpus is for language models"),
        (("--resume",), "--resume is for language models"),
        (("--set", "temperature=0"), "temperature is 0"),
        (("--student", "tiny"), "no model folder"),
        (("--data", tmp_path / "none.tsv"), "none.tsv"),
    ):
        answer = cli(*command, "--out", tmp_path / "no", *arguments)
        assert answer.status == 2 and message in answer.err and answer.err.count("error:") == 1, (arguments, answer.err)
        assert not (tmp_path / "no").exists()
    answer = cli("distill", teacher, "--corpus", project / "corpus-bert", "--text", train, "--out", tmp_path / "no")
    assert answer.status == 2 and "--text is for a fine-tuned model" in answer.err
    answer = cli("distill", project / "run-bert", "--task", "classification", "--data", train, "--out", tmp_path / "no")
    assert answer.status == 2 and "fine-tune the teacher first" in answer.err

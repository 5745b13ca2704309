"""Distillation of fine-tuned models: labeled and unlabeled examples, resuming, and errors."""

import itertools
import json
import os
import random
import signal
from functools import partial

import pytest
import torch

from polyseme import finetune
from polyseme.compress import distill
from polyseme.compress.task_distillation import save_student
from polyseme.errors import Interrupted
from polyseme.families import FAMILIES
from polyseme.finetuning.distillation import TaskDistillation, TaskDistillationLoss, add_soft_targets
from polyseme.finetuning.training import SeedTraining
from polyseme.nn.heads.crf import ChainLayout, CRFConfig
from polyseme.tasks import TASKS, task_from_json
from polyseme.weights.folder import load_model, save_model
from tests.support.project import tiny_recipe
from tests.support.runs import folder_bytes, freeze_times
from tests.support.text import ANIMALS, sentence


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


def examples_of(task, count, seed):
    """Return plain labeled examples of a task that is not in the project."""
    rng = random.Random(seed)
    sentences = [sentence(rng) for _ in range(count)]
    if task == "tagging":
        return [(words, ["B-A" if w in ANIMALS else "O" for w in words]) for words in map(str.split, sentences)]
    if task == "extractive_qa":
        contexts = [f"{text} A {text.split()[2]} ran." for text in sentences]
        return [{"context": c, "question": "Who ran?", "answers": [c.split()[2]]} for c in contexts]
    if task == "multiple_choice":
        choices = [text.split()[:3] for text in sentences]
        return [{"text": t, "choices": c, "label": i % 3} for i, (t, c) in enumerate(zip(sentences, choices))]
    return [{"text": text, "label": "ab"[i % 2]} for i, text in enumerate(sentences)]


@pytest.mark.parametrize(
    "task,model,settings",
    [
        ("extractive_qa", "bert", {}),
        ("multiple_choice", "bert", {}),
        ("tagging", "bert", {"decoder": "crf"}),
        ("classification", "t5", {}),
    ],
)
def test_scores_over_rows_chains_and_text(task, model, settings, project, tiny_folders, tmp_path):
    """Spans and choices have a softmax over rows, a CRF has marginals, and T5 answers in text; some are unlabeled."""
    source = tiny_folders[model] if model == "t5" else project / "run-bert/model"
    files = {"dev": (dev := examples_of(task, 8, 1))}
    if task == "tagging":  # plain values are unlabeled
        files = {"dev": project / "tagging-dev.conll"}
    train = project / "tagging-train.conll" if task == "tagging" else examples_of(task, 12, 0)
    common = {"epochs": 1.0, "truncate": True}
    finetune(source, task, train=train, out=tmp_path / "teacher", **files, **settings, **common)
    text = (
        [{k: v for k, v in e.items() if k not in ("label", "answers")} for e in dev] if task != "tagging" else dev[:0]
    )
    small = distill(tmp_path / "teacher", task=task, data=train, text=text, out=tmp_path / "run", **files, **common)
    results, folder = small.record["results"], load_model(small.out / "model")
    assert f"dev {results['primary_metric']}" in {row.measure for row in small.rows}
    assert results["teacher"]["num_unlabeled"] == len(text)
    if task == "tagging":
        assert folder.metadata["task"]["decoder"] == "crf", "the student decodes as its teacher does"
    log = [json.loads(line) for line in (small.out / "log.jsonl").read_text().splitlines()]
    assert all(row["loss"]["soft"] > 0 for row in log if "loss" in row)


def reference_soft_loss(task, student, teacher, batch, encoded, temperature):
    """Compute the soft term from plain probabilities, one example at a time."""
    total, rows = 0.0, batch.targets["soft"].rows
    sizes = [len(e.ids) if task.head_name == "span" else len(e.sequence_lengths) for e in encoded]
    models = student, teacher
    logits = [m.predict(task.head_name, m.trunk(batch.inputs).hidden, batch.inputs.layout, rows) for m in models]
    parts = [each.split(sizes) for each in logits]
    for mine, theirs in zip(*parts):
        q, p = (torch.softmax(each / temperature, 0) for each in (mine, theirs))
        total += (p * (p / q).log()).sum(0).mean() * temperature**2
    return total


@pytest.mark.parametrize("task", ["extractive_qa", "multiple_choice"])
def test_softmax_over_rows_is_that_of_each_example(task, project):
    folder, config = load_model(project / "run-bert/model"), TaskDistillation(temperature=3.0)
    examples = TASKS[task].read(examples_of(task, 5, 3))
    codec = TASKS[task]().fit(examples)
    heads = codec.heads(FAMILIES["bert"], folder.model.config.trunk)
    student, teacher = (folder.model.config.replace(heads=heads).build(seed).double().eval() for seed in (1, 2))
    with torch.no_grad():
        for parameter in teacher.parameters():
            parameter.add_(torch.randn(parameter.shape, generator=torch.Generator().manual_seed(4)) * 0.3)
    encode = partial(codec.encode, tokenizer=folder.tokenizer, max_len=32)
    encoded = [*encode(examples[:3]), *encode(examples[3:], use_labels=False)]
    plain, order = codec.collate(encoded)
    batch = add_soft_targets(plain, config)
    assert batch.counts() == {codec.head_name: 3, "soft": 5}
    soft = TaskDistillationLoss(config, teacher, codec.head_name).compute(student, batch)["soft"]
    expected = reference_soft_loss(codec, student, teacher, batch, [encoded[i] for i in order], 3.0)
    torch.testing.assert_close(soft, expected, atol=1e-12, rtol=1e-10)
    assert soft > 1e-3 and TaskDistillationLoss(config, teacher, codec.head_name).compute(teacher, batch)["soft"] < 1e-6


def test_marginals_of_a_crf_at_a_temperature_are_those_of_all_tag_sequences():
    crf = CRFConfig(constrained=False).build(("O", "B-A", "I-A")).double()
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for parameter in crf.parameters():
            parameter.copy_(torch.randn(parameter.shape, generator=generator))
    emissions = torch.randn(4, 3, generator=generator, dtype=torch.float64)
    expected = torch.zeros(4, 3, dtype=torch.float64)
    for tags in itertools.product(range(3), repeat=4):
        score = crf.start_transitions[tags[0]] + crf.end_transitions[tags[-1]] + emissions[range(4), tags].sum()
        score = score + sum(crf.transitions[a, b] for a, b in itertools.pairwise(tags))
        expected[range(4), tags] += (score / 2.5).exp().detach()
    marginals = crf.log_marginals(emissions, ChainLayout.from_lengths([4]), 2.5)
    torch.testing.assert_close(marginals.exp(), expected / expected.sum(1, keepdim=True), atol=1e-12, rtol=0)


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


def test_student_of_a_size_or_a_recipe(project, tmp_path, caplog):
    """A recipe with the sizes of the teacher starts with its layers; another one starts from random weights."""
    teacher = load_model(project / "run-classification")
    (tmp_path / "small.json").write_text(
        json.dumps(tiny_recipe("bert", model={"num_layers": 1, "dim": 32, "num_heads": 2}))
    )
    assert save_student(teacher.path, str(tmp_path / "small.json"), tmp_path / "small").endswith(f"from {teacher.path}")
    small = load_model(tmp_path / "small").model
    assert small.config.trunk.num_layers == 1 and small.config.trunk.embeddings.max_len == 32 and not caplog.text
    for name in ("trunk.embeddings.tokens.weight", "trunk.blocks.0.ffn.up.weight", "heads.classify.linear.weight"):
        assert torch.equal(small.state_dict()[name], teacher.model.state_dict()[name])
    save_student(teacher.path, "tiny", tmp_path / "tiny")
    tiny = load_model(tmp_path / "tiny")
    assert tiny.model.config.family == "distilbert" and tiny.model.config.trunk.dim == 128
    assert tiny.tokenizer.hash == teacher.tokenizer.hash and "it starts from random weights" in caplog.text


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
    whole, resumed = folder_bytes(tmp_path / "whole"), folder_bytes(tmp_path / "run")
    measured = {"compression.json", "compression.html", "SHA256SUMS"}  # they have times
    assert measured < whole.keys() == resumed.keys()
    assert all(whole[name] == resumed[name] for name in whole.keys() - measured)


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
        (("--task", "coreference"), "coreference cannot be distilled: only classification"),
        (("--corpus", project / "corpus-bert"), "--corpus is for language models"),
        (("--resume",), "--resume is for language models"),
        (("--set", "temperature=0"), "temperature is 0"),
        (("--student", "nothing"), "expected a size of distilbert"),
        (("--student", "t5-tiny"), "of the family t5: it does not answer in the form of bert"),
        (("--data", tmp_path / "none.tsv"), "none.tsv"),
    ):
        answer = cli(*command, "--out", tmp_path / "no", *arguments)
        assert answer.status == 2 and message in answer.err and answer.err.count("error:") == 1, (arguments, answer.err)
        assert not (tmp_path / "no").exists()
    answer = cli("distill", teacher, "--corpus", project / "corpus-bert", "--text", train, "--out", tmp_path / "no")
    assert answer.status == 2 and "--text is for a fine-tuned model" in answer.err
    answer = cli("distill", project / "run-bert", "--task", "classification", "--data", train, "--out", tmp_path / "no")
    assert answer.status == 2 and "fine-tune the teacher first" in answer.err


def test_options_for_language_models_are_rejected(project, rejects, tmp_path):
    command = ["distill", project / "run-classification", "--task", "classification", "--out", tmp_path / "run"]
    command += ["--data", labeled(project, "classification")["data"]]
    rejects(*command, "--budget", "3steps", match="--budget is for a language model: with --task, --set epochs=3")
    rejects(*command, "--seed", 3, match="--seed is for a language model: with --task, pass --seeds")
    weights = "--set", "soft_weight=0", "--set", "hard_weight=0"
    rejects(*command, *weights, match="soft_weight and hard_weight are 0, so nothing would be learned")
    assert not (tmp_path / "run").exists()

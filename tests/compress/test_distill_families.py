"""Distillation of every family, and of pairs of families that share a vocabulary."""

import json
import logging
from dataclasses import replace
from functools import partial

import pytest
import torch

from polyseme.compress.distillation import distill
from polyseme.corpus.build.prepare import PrepareConfig, prepare
from polyseme.corpus.sampling import DataPosition
from polyseme.corpus.store import Corpus
from polyseme.nn.memory import Memory
from polyseme.objectives.causal_lm import CausalLM
from polyseme.objectives.distillation import Distillation, DistillationLoss
from polyseme.objectives.masked_lm import MaskedLM
from polyseme.objectives.packing import SpecialIds
from polyseme.objectives.permutation_lm import PermutationLM
from polyseme.objectives.span_corruption import SpanCorruption
from polyseme.objectives.streaming_lm import StreamingCausalLM
from polyseme.recipes import get_training_recipe
from polyseme.train import pretrain as pretraining
from polyseme.train.checkpoint import load_checkpoint
from polyseme.train.streams import BatchStream
from polyseme.weights.folder import load_model
from tests.support import cases
from tests.support.text import documents

LANGUAGE_MODELS = [
    *("bert", "roberta", "albert", "spanbert", "distilbert", "modernbert", "gpt", "gpt2", "transformer_xl", "xlnet"),
    *("t5", "rnn_lm", "ulmfit", "elmo"),
]


@pytest.fixture(scope="module")
def corpora(tiny_folders, tmp_path_factory):
    """Return a function that prepares text with the tokenizer of a family."""
    folder, corpora = tmp_path_factory.mktemp("corpora"), {}
    (folder / "text.txt").write_text("\n\n".join(documents(40)))

    def corpus(family):
        if family not in corpora:
            tokenizer = load_model(tiny_folders[family]).tokenizer
            config = PrepareConfig(split="blank", dedup="none")
            prepare([folder / "text.txt"], tokenizer, folder / family, config)
            corpora[family] = folder / family
        return corpora[family]

    return corpus


@pytest.mark.parametrize("family", LANGUAGE_MODELS)
def test_every_language_model_can_be_distilled(family, tiny_folders, corpora, tmp_path):
    """The student has two of three layers, or one of two stacks each, and fewer parameters unless they are shared."""
    compressed = distill(tiny_folders[family], corpora(family), out=tmp_path / "run", budget="2steps")
    recipe = json.loads((tmp_path / "run/recipe.json").read_text())["recipe"]
    assert recipe["objective"]["kind"] == "Distillation" and recipe["model"]["num_layers"] == 2
    rows = {row.measure: row for row in compressed.rows}
    assert rows["parameters"].after < rows["parameters"].before or family == "albert"
    assert any(name.startswith("valid ") for name in rows)
    assert load_model(tmp_path / "run/model").model.config.trunk.num_layers == 2


def base_of(model):
    """Return an objective whose token head the model has."""
    trunk = model.config.trunk
    if trunk.has_source or trunk.has_query_stream:
        return SpanCorruption() if trunk.has_source else PermutationLM()
    return MaskedLM() if "masked" in model.heads else CausalLM()


@pytest.mark.parametrize("name", LANGUAGE_MODELS)
def test_a_student_equal_to_its_teacher_has_nothing_to_learn(name):
    """Both terms are at their minimum: the cross entropy is the entropy, so the divergence is 0, and the cosine 1."""
    model = cases.tiny_spec(name).build(seed=1).double().eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(torch.randn(parameter.shape, generator=torch.Generator().manual_seed(2)) * 0.2)
    batch = cases.training_batch(model, cases.sequences((5, 9, 3)))
    objective = Distillation(base_of(model), hard_weight=0.0)
    teacher = model.config.build(seed=0).double()
    teacher.load_state_dict(model.state_dict())
    losses = DistillationLoss(objective, teacher).compute(model, objective.add_teacher_targets(batch))
    gradient = torch.autograd.grad(losses["soft"] + losses["cosine"], list(model.parameters()), allow_unused=True)
    assert abs(losses["soft"].item()) < 1e-5 and abs(losses["cosine"].item()) < 1e-5
    assert max(g.abs().max().item() for g in gradient if g is not None) < 1e-5
    with torch.no_grad():
        for parameter in teacher.parameters():
            parameter.add_(torch.randn(parameter.shape, generator=torch.Generator().manual_seed(3)) * 0.1)
    changed = DistillationLoss(objective, teacher).compute(model, objective.add_teacher_targets(batch))
    assert changed["soft"].item() > 1e-3 and changed["cosine"].item() > 1e-3


@pytest.mark.parametrize(
    "teacher,recipe,model,has_cosine",
    [
        ("gpt2", "rnn_lm-tiny", {"num_layers": 1, "dim": 16}, False),
        ("gpt2", "transformer_xl-tiny", {"num_layers": 1, "dim": 24, "num_heads": 3, "memory_len": 8}, True),
        ("bert", "albert-tiny", {"num_layers": 2, "dim": 24, "num_heads": 3, "embedding_dim": 8}, True),
        ("albert", "bert-tiny", {"num_layers": 1, "dim": 12, "num_heads": 3}, False),
    ],
)
def test_student_of_another_family(teacher, recipe, model, has_cosine, tiny_folders, corpora, tmp_path, caplog):
    """It starts from random weights, and has the cosine term if the hidden sizes agree."""
    sizes = {"max_len": 24, "batch_tokens": 480, "micro_batch_tokens": 240, "compile": False}
    student = get_training_recipe(recipe).replace(size="", model=model, **sizes)
    with caplog.at_level(logging.INFO):
        distill(tiny_folders[teacher], corpora(teacher), out=tmp_path / "run", student=student, budget="2steps")
    assert "it starts from random weights" in caplog.text and ("no cosine term" in caplog.text) != has_cosine
    rows = [json.loads(line) for line in (tmp_path / "run/log.jsonl").read_text().splitlines()]
    assert {"soft"} <= rows[0]["loss"].keys() and ("cosine" in rows[0]["loss"]) == has_cosine


@pytest.mark.parametrize("name", ["transformer_xl", "rnn_lm"])
def test_teacher_and_student_of_a_stream_carry_their_own_memory(name, tiny_folders, corpora):
    """With the same weights, the predictions agree in the second segment too, which depends on the first."""
    folder = load_model(tiny_folders[name])
    student, teacher = (folder.model.config.build(seed=0).double().eval() for _ in range(2))
    for model in (student, teacher):
        model.load_state_dict(folder.model.state_dict())
    objective = Distillation(StreamingCausalLM())
    builder = objective.bind(Corpus.open(corpora(name)), SpecialIds.from_tokenizer(folder.tokenizer), 12)
    stream, loss = BatchStream(builder, builder.build_sampler(48)), DistillationLoss(objective, teacher)
    steps = stream.steps(DataPosition())
    for number in range(3):
        (batch,), _ = next(steps)
        losses = loss.compute(student, batch)
        assert abs(losses["soft"].item()) < 1e-5 and abs(losses["cosine"].item()) < 1e-5
        memory = stream.segment_states[0].memory
        restored = Memory.from_tensors(memory.to_tensors())
        for mine, theirs in zip(memory.states, restored.teacher.states, strict=True):
            assert all(torch.equal(a, b) for a, b in zip(mine, theirs, strict=True))
        if number == 1:
            stream.segment_states[0].memory = replace(
                memory, teacher=None
            )  # a teacher that forgets predicts differently
            (batch,), _ = next(steps)
            assert loss.compute(student, batch)["soft"].item() > 1e-3
            break


def test_stopped_run_over_a_stream_is_resumed_exactly(tiny_folders, corpora, tmp_path, monkeypatch):
    recipe = get_training_recipe("transformer_xl-tiny").replace(
        size="", model={"num_layers": 1, "dim": 24, "num_heads": 3, "memory_len": 8}, max_len=12, batch_tokens=96,
        micro_batch_tokens=48, compile=False, save_every=2, log_every=1, valid_fraction=0.0,
    )  # fmt: skip
    run = partial(distill, tiny_folders["transformer_xl"], corpora("transformer_xl"), student=recipe, budget="4steps")
    run(out=tmp_path / "whole")
    train = pretraining.train

    def stopping(state, batches):
        for report in train(state, batches):
            if report.step == 3:
                raise KeyboardInterrupt
            yield report

    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(pretraining, "train", stopping)
        run(out=tmp_path / "run")
    distill(out=tmp_path / "run", resume=True)
    whole, resumed = (load_checkpoint(tmp_path / name / "checkpoints").tensors for name in ("whole", "run"))
    assert any("teacher/" in name for name in whole["memory"])
    for file, tensors in whole.items():
        assert all(torch.equal(tensor, resumed[file][name]) for name, tensor in tensors.items())

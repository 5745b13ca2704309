"""A BiLSTM between the trunk and the head of a task (Devlin et al. 2019, §5.1): trained, saved and read back."""

import json

import pytest
import torch

from polyseme import load
from polyseme.errors import ConfigError
from polyseme.families import FAMILIES
from polyseme.finetuning.config import FinetuneConfig
from polyseme.finetuning.experiment import TaskData
from polyseme.finetuning.finetune import finetune, load_for_tasks
from polyseme.finetuning.frozen import FEATURE_DEFAULTS, FeatureInputs, train_on_features
from polyseme.finetuning.training import train_state
from polyseme.nn.heads.classification import ClassificationHeadConfig
from polyseme.nn.model import ModelConfig
from polyseme.nn.packing import Inputs, PackedLayout
from polyseme.tasks import TASKS
from polyseme.tasks.sequence import TextExample
from polyseme.train.loop import count_training_flops
from polyseme.train.optimizer import OptimizerConfig
from polyseme.weights.folder import load_model, save_model
from tests.finetuning.test_styles import examples
from tests.support.cases import LENGTHS, sequences, tiny_spec
from tests.support.small_models import save_small_model

QUICK = FinetuneConfig(steps=2, batch_size=8, bilstm=True)
KINDS = ("classification", "pair_classification", "regression", "tagging", "extractive_qa", "multiple_choice")


@pytest.fixture(scope="module")
def bert(tmp_path_factory):
    return save_small_model(tmp_path_factory.mktemp("bilstm") / "bert", "bert")


@pytest.mark.parametrize("pooling", ["pooled", "tokens", "concat"])
def test_packing_alone_equals_among_neighbors(pooling):
    head = ClassificationHeadConfig(("a", "b"), pooling, bilstm_dim=5)
    model = ModelConfig("bert", tiny_spec("bert").trunk, {"head": head}).build(seed=1).double().eval()
    rows, layout = sequences(LENGTHS), PackedLayout.from_lengths(LENGTHS)
    with torch.no_grad():
        together = model.predict("head", model.trunk(Inputs(torch.cat(rows), layout)).hidden, layout)
        for i, row in enumerate(rows):
            alone = PackedLayout.from_lengths([len(row)])
            expected = model.predict("head", model.trunk(Inputs(row, alone)).hidden, alone)
            part = together.split(list(LENGTHS))[i] if pooling == "tokens" else together[i : i + 1]
            torch.testing.assert_close(part, expected, atol=1e-10, rtol=0)


def test_the_states_are_those_of_torch():
    """`nn.LSTM` over padded sequences with the same weights; a sequence is its two final states."""
    head = ClassificationHeadConfig(("a", "b"), bilstm_dim=5).build(24).double()
    reference = torch.nn.LSTM(24, 5, bidirectional=True, batch_first=True).double()
    with torch.no_grad():
        for parameter in head.parameters():
            parameter.uniform_(-0.5, 0.5)
        for suffix, cell in zip(("", "_reverse"), head.bilstm.layers[0].cells):
            for name in ("weight_ih", "weight_hh", "bias_ih", "bias_hh"):
                getattr(reference, f"{name}_l0{suffix}").copy_(getattr(cell, name))
        x = torch.randn(9, 24, dtype=torch.float64)
        states = head.select_states(x, PackedLayout.from_lengths([9]), None, None)
        _, (final, _) = reference(x[None])
    torch.testing.assert_close(states[0], final[:, 0].flatten(), atol=1e-12, rtol=0)


@pytest.mark.parametrize("kind", KINDS)
def test_every_task_trains_and_reads_it_back(kind, bert, tmp_path):
    data = examples(kind, 16)
    finetune(bert, TaskData(TASKS[kind](), data, data), tmp_path / "run", QUICK)
    model = load(tmp_path / "run/model")
    (head,) = model.model.config.heads.values()
    assert head.bilstm_dim == 4
    assert (tmp_path / "run/model/polyseme.safetensors").exists()
    config = json.loads((tmp_path / "run/model/config.json").read_text())
    assert config["architectures"] == ["BertModel"] and "id2label" not in config
    card = (tmp_path / "run/model/README.md").read_text()
    assert "does not read `polyseme.safetensors`" in card
    trained, fresh = model.model.state_dict(), load_for_tasks(bert, [model._load_task()], QUICK, 0, False).model
    weights = [name for name in trained if "bilstm" in name]
    assert len(weights) == 8
    assert all(not torch.equal(trained[name], fresh.state_dict()[name]) for name in weights)


def test_a_dense_head_over_the_first_token_reads_the_final_states(tmp_path):
    folder = save_small_model(tmp_path / "roberta", "roberta")
    task = TASKS["classification"].from_examples([TextExample("", "x", label=c) for c in "ab"])
    head = load_for_tasks(folder, [task], QUICK, 0, False).model.heads["classify"]
    assert (head.config.pooling, head.dense.in_features) == ("pooled", 8)


def test_it_belongs_to_the_head(bert):
    """Freezing all groups of the trunk leaves it trainable, and layer decay gives it the full learning rate."""
    task = TASKS["classification"].from_examples([TextExample("", "x", label=c) for c in "ab"])
    model = load_for_tasks(bert, [task], QUICK, 0, False).model
    num_groups = len(model.trunk.layer_groups())
    settings = QUICK.replace(num_frozen_groups=num_groups, optimizer=OptimizerConfig(lr=0.1, layer_decay=0.5))
    state = train_state(model, settings, 16, 0)
    bilstm = {id(parameter) for parameter in model.heads["classify"].bilstm.parameters()}
    assert all(parameter.requires_grad for parameter in model.heads["classify"].parameters())
    scales = {group["lr_scale"] for group in state.optimizer.param_groups if bilstm & {*map(id, group["params"])}}
    assert scales == {1.0} and not state.use_cuda_graphs


def test_its_operations_are_counted(bert):
    task = TASKS["classification"].from_examples([TextExample("", "x", label=c) for c in "ab"])
    plain, with_bilstm = (load_for_tasks(bert, [task], QUICK.replace(bilstm=b), 0, False).model for b in (False, True))
    batch, _ = task.collate(list(task.encode([TextExample("", "a b c", label="a")], load(bert).tokenizer, 32)))
    difference = count_training_flops(with_bilstm, batch) - count_training_flops(plain, batch)
    length = batch.inputs.layout.num_tokens
    assert difference == 6 * (length * 2 * 4 * 4 * (8 + 4) - 8 * 8)  # without the pooler


def test_a_saved_head_is_used_by_predictions(bert, tmp_path):
    task = TASKS["tagging"](labels=("O", "B-X"))
    folder = load_for_tasks(bert, [task], QUICK, 3, False)
    save_model(tmp_path / "model", folder.model, folder.tokenizer, {"task": task.to_json()})
    before = load(tmp_path / "model").predict([["the", "cat"]])
    with torch.no_grad():
        folder.model.heads["tag"].bilstm.layers[0].cells[0].weight_ih.add_(3.0)
    save_model(tmp_path / "changed", folder.model, folder.tokenizer, {"task": task.to_json()})
    assert before == load(tmp_path / "model").predict([["the", "cat"]])
    assert load_model(tmp_path / "changed").model.config == folder.model.config
    assert str(before) != str(load(tmp_path / "changed").predict([["the", "cat"]]))


def test_what_cannot_have_one_is_rejected(tmp_path):
    data = examples("classification", 16)
    with pytest.raises(ConfigError, match="answers classification as text"):
        finetune(save_small_model(tmp_path / "t5", "t5"), TaskData(TASKS["classification"](), data, data), None, QUICK)
    bert = save_small_model(tmp_path / "bert", "bert")
    with pytest.raises(ConfigError, match="answers contrastive with a head of another kind"):
        load_for_tasks(bert, [TASKS["contrastive"](pooling="mean", positives="pairs")], QUICK, 0, False)
    with pytest.raises(ConfigError, match="over frozen features"):
        train_on_features(
            FeatureInputs(),
            TaskData(TASKS["classification"](), data, data),
            None,
            FEATURE_DEFAULTS.replace(bilstm=True),
        )


def test_other_folders_do_not_change():
    assert FAMILIES["bert"].task_head("tag", ("a",), tiny_spec("bert").trunk).is_published

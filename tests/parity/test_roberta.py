"""RoBERTa and DistilBERT against tiny random models of `transformers`: states, logits, gradients to 1e-5."""

import pytest
import torch
import torch.nn.functional as F

from polyseme.families import FAMILIES
from polyseme.families.family import FIXED_LABELS
from polyseme.nn.model import Model, ModelConfig
from polyseme.nn.packing import Inputs, PackedLayout
from polyseme.objectives.batch import Batch, Targets
from polyseme.objectives.losses import compute_losses
from polyseme.weights.convert import expand_weight_maps, to_published
from tests.support.hf_models import convert_model, randomize

transformers = pytest.importorskip("transformers")

LENGTHS = (7, 3, 12, 12, 1)
VOCAB = 99
LABELS = ("a", "b", "c")


def build_hf_model(family: str, head: str):
    if family == "roberta":
        config = transformers.RobertaConfig(
            vocab_size=VOCAB, hidden_size=32, num_hidden_layers=3, num_attention_heads=4, intermediate_size=56,
            max_position_embeddings=42, type_vocab_size=1, layer_norm_eps=1e-5, num_labels=3,
        )  # fmt: skip
    else:
        config = transformers.DistilBertConfig(
            vocab_size=VOCAB, dim=32, n_layers=3, n_heads=4, hidden_dim=56, max_position_embeddings=40, num_labels=3
        )
    if head.endswith("QuestionAnswering"):
        config.num_labels = 2
    return randomize(getattr(transformers, head)(config).eval())


def make_batch():
    layout = PackedLayout.from_lengths(LENGTHS)
    return torch.randint(5, VOCAB, (layout.num_tokens,)), layout


def make_hf_inputs(tokens, layout):
    return {"input_ids": layout.pad(tokens, 1), "attention_mask": layout.attention_mask().long()}


@pytest.mark.parametrize("family,head", [("roberta", "RobertaForMaskedLM"), ("distilbert", "DistilBertForMaskedLM")])
def test_states_logits_and_gradients_match(family, head):
    torch.manual_seed(0)
    hf_model = build_hf_model(family, head)
    model = convert_model(hf_model, family, ("masked",))
    tokens, layout = make_batch()
    expected = hf_model(**make_hf_inputs(tokens, layout), output_hidden_states=True)
    output = model.trunk(Inputs(tokens, layout), layers=range(4))
    assert len(expected.hidden_states) == 4
    for depth, hidden in enumerate(expected.hidden_states):
        torch.testing.assert_close(output.layers[depth], layout.unpad(hidden), atol=1e-5, rtol=0)
    scores, logits = model.predict("masked", output.hidden, layout), layout.unpad(expected.logits)
    torch.testing.assert_close(scores, logits, atol=1e-5, rtol=1e-5)

    rows = torch.arange(0, layout.num_tokens, 3)
    labels = torch.randint(5, VOCAB, (len(rows),))
    targets = {"masked": Targets(rows, labels, len(rows))}
    (compute_losses(model, Batch(Inputs(tokens, layout), targets, layout.num_tokens))["masked"] / len(rows)).backward()
    F.cross_entropy(logits[rows], labels).backward()
    grads = {n: p.grad for n, p in model.named_parameters() if p.grad is not None}
    expected_grads = {n: p.grad for n, p in hf_model.named_parameters() if p.grad is not None}
    published_grads, unpublished = to_published(FAMILIES[family], model.config, grads)
    assert not unpublished and set(published_grads) == set(expected_grads)
    for name, gradient in published_grads.items():
        torch.testing.assert_close(gradient, expected_grads[name], atol=1e-5, rtol=1e-4, msg=name)


TASK_CLASSES = ("SequenceClassification", "TokenClassification", "QuestionAnswering", "MultipleChoice")


@pytest.mark.parametrize("family,prefix", [("roberta", "Roberta"), ("distilbert", "DistilBert")])
@pytest.mark.parametrize("task_class,name", list(zip(TASK_CLASSES, ("classify", "tag", "span", "choice"))))
def test_task_heads_match(family, prefix, task_class, name):
    torch.manual_seed(0)
    hf_model = build_hf_model(family, f"{prefix}For{task_class}")
    model = convert_model(hf_model, family, (name,), LABELS)
    tokens, layout = make_batch()
    inputs = make_hf_inputs(tokens, layout)
    with torch.no_grad():
        hf_output = hf_model(**{k: v[:, None] for k, v in inputs.items()} if name == "choice" else inputs)
        scores = model.predict(name, model.trunk(Inputs(tokens, layout)).hidden, layout)
        selected = model.predict(name, model.trunk(Inputs(tokens, layout)).hidden, layout, torch.tensor([3, 0]))
    expected = torch.stack([hf_output.start_logits, hf_output.end_logits], -1) if name == "span" else hf_output.logits
    expected = expected if name in ("classify", "choice") else layout.unpad(expected)
    torch.testing.assert_close(scores, expected, atol=1e-5, rtol=0)
    torch.testing.assert_close(selected, expected[[3, 0]], atol=1e-5, rtol=0)


@pytest.mark.parametrize("family", ["roberta", "distilbert"])
def test_weight_maps_are_a_bijection(family):
    family_spec = FAMILIES[family]
    for heads in family_spec.architectures.values():
        trunk = family_spec.model_config("tiny").trunk
        head_configs = {
            h: family_spec.pretraining_heads(trunk).get(h)
            or family_spec.task_head(h, FIXED_LABELS.get(h, ("a",)), trunk)
            for h in heads
        }
        weight_maps = list(expand_weight_maps(family_spec, ModelConfig(family, trunk, head_configs)))
        with torch.device("meta"):
            state = Model(ModelConfig(family, trunk, head_configs)).state_dict()
        published = [name for weight_map in weight_maps for name in weight_map.published_names]
        assert sorted(weight_map.name for weight_map in weight_maps) == sorted(state) and len(set(published)) == len(
            published
        )


def test_positions_start_after_two_unused_rows():
    """The first two rows get no gradient; the last row is used by a sequence of maximum length."""
    model = (
        FAMILIES["roberta"].model_config(num_layers=1, dim=16, num_heads=2, vocab_size=VOCAB, max_len=8).build(seed=0)
    )
    table = model.trunk.embeddings.positions.weight
    assert table.shape == (10, 16)
    model.trunk(Inputs(torch.arange(8), PackedLayout.from_lengths([8]))).hidden.square().sum().backward()
    assert not table.grad[:2].any() and table.grad[2:].any(-1).all()


def test_classifier_has_dropout_before_and_after_its_dense_layer():
    """If everything is dropped before the dense layer, the output does not depend on the input."""
    family_spec = FAMILIES["roberta"]
    head_config = family_spec.task_head("classify", ("a", "b"), family_spec.model_config("tiny", dropout=0.3).trunk)
    assert head_config.input_dropout == head_config.dropout == 0.3
    head = head_config.replace(input_dropout=1.0, dropout=0.0).build(8).train()
    first, second = (head(torch.randn(1, 8), torch.empty(0)) for _ in range(2))
    assert torch.equal(first, second)

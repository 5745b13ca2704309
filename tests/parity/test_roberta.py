"""RoBERTa and DistilBERT against tiny random models of `transformers`: states, logits, gradients to 1e-5."""

import pytest
import torch
import torch.nn.functional as F

from polyseme.families import FAMILIES
from polyseme.families.family import FIXED_LABELS
from polyseme.nn.inputs import Inputs
from polyseme.nn.model import Model, ModelConfig
from polyseme.nn.packing import PackedLayout
from polyseme.objectives.batch import Batch, Targets
from polyseme.objectives.losses import compute_losses
from polyseme.weights.convert import expand_weight_maps, from_published, to_published

transformers = pytest.importorskip("transformers")

LENGTHS = (7, 3, 12, 12, 1)
VOCAB = 99


def make(family: str, head: str):
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
    theirs = getattr(transformers, head)(config).eval()
    with torch.no_grad():
        for parameter in theirs.parameters():  # biases and norms start where a swapped one would not show
            parameter.add_(torch.randn_like(parameter) * 0.1)
    return theirs


def ours(theirs, family: str, heads: tuple[str, ...]) -> Model:
    fam = FAMILIES[family]
    trunk = fam.from_hf_config(theirs.config.to_dict())
    known, labels = fam.pretraining_heads(trunk), ("a", "b", "c")
    made = {h: known.get(h) or fam.task_head(h, FIXED_LABELS.get(h, labels), trunk) for h in heads}
    model = ModelConfig(family, trunk, made).build().eval()
    shapes = {n: t.shape for n, t in model.state_dict().items()}
    found = from_published(fam, model.config, shapes, theirs.state_dict(), "test")
    assert all(name.startswith("trunk.pooler.") for name in shapes.keys() - found.keys())
    model.load_state_dict(found, strict=False)
    return model


def batch():
    layout = PackedLayout.from_lengths(LENGTHS)
    return torch.randint(5, VOCAB, (layout.num_tokens,)), layout


def given(tokens, layout):
    return {"input_ids": layout.pad(tokens, 1), "attention_mask": layout.attention_mask().long()}


@pytest.mark.parametrize("family,head", [("roberta", "RobertaForMaskedLM"), ("distilbert", "DistilBertForMaskedLM")])
def test_states_logits_and_gradients(family, head):
    torch.manual_seed(0)
    theirs = make(family, head)
    model = ours(theirs, family, ("masked",))
    tokens, layout = batch()
    expected = theirs(**given(tokens, layout), output_hidden_states=True)
    reading = model.trunk(Inputs(tokens, layout), layers=range(4))
    assert len(expected.hidden_states) == 4
    for depth, hidden in enumerate(expected.hidden_states):
        torch.testing.assert_close(reading.layers[depth], layout.unpad(hidden), atol=1e-5, rtol=0)
    scores, logits = model.predict("masked", reading.hidden, layout), layout.unpad(expected.logits)
    torch.testing.assert_close(scores, logits, atol=1e-5, rtol=1e-5)

    rows = torch.arange(0, layout.num_tokens, 3)
    values = torch.randint(5, VOCAB, (len(rows),))
    targets = {"masked": Targets(rows, values, len(rows))}
    (compute_losses(model, Batch(Inputs(tokens, layout), targets, layout.num_tokens))["masked"] / len(rows)).backward()
    F.cross_entropy(logits[rows], values).backward()
    own = {n: p.grad for n, p in model.named_parameters() if p.grad is not None}
    named = {n: p.grad for n, p in theirs.named_parameters() if p.grad is not None}
    table, left = to_published(FAMILIES[family], model.config, own)
    assert not left and set(table) == set(named)
    for name, gradient in table.items():
        torch.testing.assert_close(gradient, named[name], atol=1e-5, rtol=1e-4, msg=name)


CLASSES = ("SequenceClassification", "TokenClassification", "QuestionAnswering", "MultipleChoice")


@pytest.mark.parametrize("family,prefix", [("roberta", "Roberta"), ("distilbert", "DistilBert")])
@pytest.mark.parametrize("kind,name", list(zip(CLASSES, ("classify", "tag", "span", "choice"))))
def test_label_heads(family, prefix, kind, name):
    torch.manual_seed(0)
    theirs = make(family, f"{prefix}For{kind}")
    model = ours(theirs, family, (name,))
    tokens, layout = batch()
    inputs = given(tokens, layout)
    with torch.no_grad():
        found = theirs(**{k: v[:, None] for k, v in inputs.items()} if name == "choice" else inputs)
        scores = model.predict(name, model.trunk(Inputs(tokens, layout)).hidden, layout)
        some = model.predict(name, model.trunk(Inputs(tokens, layout)).hidden, layout, torch.tensor([3, 0]))
    expected = torch.stack([found.start_logits, found.end_logits], -1) if name == "span" else found.logits
    expected = expected if name in ("classify", "choice") else layout.unpad(expected)
    torch.testing.assert_close(scores, expected, atol=1e-5, rtol=0)
    torch.testing.assert_close(some, expected[[3, 0]], atol=1e-5, rtol=0)


@pytest.mark.parametrize("family", ["roberta", "distilbert"])
def test_the_table_is_a_bijection(family):
    fam = FAMILIES[family]
    for heads in fam.architectures.values():
        trunk = fam.model_config("tiny").trunk
        made = {
            h: fam.pretraining_heads(trunk).get(h) or fam.task_head(h, FIXED_LABELS.get(h, ("a",)), trunk)
            for h in heads
        }
        rules = list(expand_weight_maps(fam, ModelConfig(family, trunk, made)))
        with torch.device("meta"):
            state = Model(ModelConfig(family, trunk, made)).state_dict()
        theirs = [name for rule in rules for name in rule.published_names]
        assert sorted(rule.name for rule in rules) == sorted(state) and len(set(theirs)) == len(theirs)


def test_positions_start_behind_two_rows():
    """The first rows of the table stand for nothing; the last is read by the last token a sequence may have."""
    model = (
        FAMILIES["roberta"].model_config(num_layers=1, dim=16, num_heads=2, vocab_size=VOCAB, max_len=8).build(seed=0)
    )
    table = model.trunk.embeddings.positions.weight
    assert table.shape == (10, 16)
    model.trunk(Inputs(torch.arange(8), PackedLayout.from_lengths([8]))).hidden.square().sum().backward()
    assert not table.grad[:2].any() and table.grad[2:].any(-1).all()


def test_dropout_of_the_classifier():
    """Before its dense layer and behind it: with everything dropped before, the input no longer counts."""
    fam = FAMILIES["roberta"]
    spec = fam.task_head("classify", ("a", "b"), fam.model_config("tiny", dropout=0.3).trunk)
    assert spec.input_dropout == spec.dropout == 0.3
    head = spec.replace(input_dropout=1.0, dropout=0.0).build(8).train()
    first, second = (head(torch.randn(1, 8), torch.empty(0)) for _ in range(2))
    assert torch.equal(first, second)

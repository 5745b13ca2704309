"""Tiny random models of `transformers`, opened here: every layer and every head agrees to 1e-5."""

import pytest
import torch

from polyseme.families import FAMILIES
from polyseme.parts.layout import Layout
from polyseme.parts.model import Model, ModelSpec
from polyseme.weights.table import to_ours

transformers = pytest.importorskip("transformers")

LENGTHS = (7, 3, 12, 12, 1)


def tiny_bert(head: str):
    config = transformers.BertConfig(
        vocab_size=99, hidden_size=32, num_hidden_layers=3, num_attention_heads=4, intermediate_size=56,
        max_position_embeddings=40,
    )  # fmt: skip
    return getattr(transformers, head)(config).eval()


def tiny_gpt2(head: str):
    config = transformers.GPT2Config(
        vocab_size=99, n_embd=32, n_layer=3, n_head=4, n_positions=40, bos_token_id=0, eos_token_id=0,
        pad_token_id=0, attn_implementation="eager",
    )  # fmt: skip
    return getattr(transformers, head)(config).eval()


def randomise(model: torch.nn.Module) -> None:
    """Biases and norms start at 0 and 1, where a swapped or dropped one would not show."""
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(torch.randn_like(parameter) * 0.1)


def ours(theirs, family: str, heads: tuple[str, ...]) -> Model:
    fam = FAMILIES[family]
    trunk = fam.from_config(theirs.config.to_dict())
    known = fam.heads(trunk)
    labels = ("LABEL_0", "LABEL_1")
    spec = ModelSpec(family, trunk, {h: known.get(h) or fam.label_head(h, labels, trunk) for h in heads})
    model = spec.build().eval()
    shapes = {n: t.shape for n, t in model.state_dict().items()}
    model.load_state_dict(to_ours(fam, spec, shapes, theirs.state_dict(), "test"), strict=False)
    return model


def batch(vocab: int = 99):
    layout = Layout.of(LENGTHS)
    tokens = torch.randint(1, vocab, (layout.total,))
    segments = (layout.positions > 4).long()
    return tokens, layout, segments


@pytest.mark.parametrize("family,make,head,names", [
    ("bert", tiny_bert, "BertForPreTraining", ("masked", "pair")),
    ("gpt2", tiny_gpt2, "GPT2LMHeadModel", ("next",)),
])  # fmt: skip
def test_every_layer_and_head(family, make, head, names):
    torch.manual_seed(0)
    theirs = make(head)
    randomise(theirs)
    model = ours(theirs, family, names)
    tokens, layout, segments = batch()
    extra = {"token_type_ids": layout.pad(segments)} if family == "bert" else {}
    with torch.no_grad():
        expected = theirs(
            input_ids=layout.pad(tokens),
            attention_mask=layout.mask().long(),
            output_hidden_states=True,
            **extra,
        )
        reading = model.trunk(tokens, layout, segments if family == "bert" else None, keep=range(4))
        for depth, hidden in enumerate(expected.hidden_states):
            torch.testing.assert_close(reading.layers[depth], layout.unpad(hidden), atol=1e-5, rtol=0)
        logits = expected.prediction_logits if family == "bert" else expected.logits
        scores = model.predict(names[0], reading.last, layout)
        torch.testing.assert_close(scores, layout.unpad(logits), atol=1e-5, rtol=1e-5)
        if family == "bert":
            pair = model.predict("pair", reading.last, layout)
            torch.testing.assert_close(pair, expected.seq_relationship_logits, atol=1e-5, rtol=0)


@pytest.mark.parametrize("family,make,head,name", [
    ("bert", tiny_bert, "BertForSequenceClassification", "classify"),
    ("bert", tiny_bert, "BertForTokenClassification", "tag"),
    ("bert", tiny_bert, "BertForQuestionAnswering", "span"),
    ("gpt2", tiny_gpt2, "GPT2ForSequenceClassification", "classify"),
    ("gpt2", tiny_gpt2, "GPT2ForTokenClassification", "tag"),
])  # fmt: skip
def test_label_heads(family, make, head, name):
    torch.manual_seed(0)
    theirs = make(head)
    randomise(theirs)
    model = ours(theirs, family, (name,))
    tokens, layout, _ = batch()
    with torch.no_grad():
        found = theirs(input_ids=layout.pad(tokens), attention_mask=layout.mask().long())
        scores = model.predict(name, model.trunk(tokens, layout).last, layout)
    expected = torch.stack([found.start_logits, found.end_logits], -1) if name == "span" else found.logits
    expected = expected if name == "classify" else layout.unpad(expected)
    torch.testing.assert_close(scores, expected, atol=1e-5, rtol=0)


@pytest.mark.parametrize("family,size", [(f, s) for f in FAMILIES for s in FAMILIES[f].published])
def test_published_parameter_counts(family, size):
    with torch.device("meta"):
        model = Model(FAMILIES[family].spec(size, heads=False))
    assert sum(p.numel() for p in model.parameters()) == FAMILIES[family].published[size]

"""Tiny random models of `transformers`, opened here: every layer and every head agrees to 1e-5."""

import pytest
import torch

from polyseme.families import FAMILIES
from polyseme.nn.inputs import Inputs
from polyseme.nn.model import Model, ModelConfig
from polyseme.nn.packing import PackedLayout
from polyseme.weights.convert import from_published

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


def tiny_modern(head: str, **changes):
    """Three kinds of blocks; at length 12 a query of the local ones sees 2 tokens on each side."""
    config = transformers.ModernBertConfig(
        vocab_size=99, hidden_size=32, num_hidden_layers=4, num_attention_heads=4, intermediate_size=56,
        max_position_embeddings=40, local_attention=4, pad_token_id=0, attn_implementation="eager",
        rope_parameters={"full_attention": {"rope_type": "default", "rope_theta": 900.0},
                         "sliding_attention": {"rope_type": "default", "rope_theta": 70.0}}, **changes,
    )  # fmt: skip
    return getattr(transformers, head)(config).eval()


def modern_mean(head: str):
    return tiny_modern(head, classifier_pooling="mean")


def randomise(model: torch.nn.Module) -> None:
    """Biases and norms start at 0 and 1, where a swapped or dropped one would not show."""
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(torch.randn_like(parameter) * 0.1)


def ours(theirs, family: str, heads: tuple[str, ...]) -> Model:
    fam = FAMILIES[family]
    trunk = fam.from_hf_config(theirs.config.to_dict())
    known = fam.pretraining_heads(trunk)
    labels = ("LABEL_0", "LABEL_1")
    spec = ModelConfig(family, trunk, {h: known.get(h) or fam.task_head(h, labels, trunk) for h in heads})
    model = spec.build().eval()
    shapes = {n: t.shape for n, t in model.state_dict().items()}
    model.load_state_dict(from_published(fam, spec, shapes, theirs.state_dict(), "test"), strict=False)
    return model


def batch(vocab: int = 99):
    layout = PackedLayout.from_lengths(LENGTHS)
    tokens = torch.randint(1, vocab, (layout.num_tokens,))
    segments = (layout.positions > 4).long()
    return tokens, layout, segments


@pytest.mark.parametrize("family,make,head,names", [
    ("bert", tiny_bert, "BertForPreTraining", ("masked", "pair")),
    ("gpt2", tiny_gpt2, "GPT2LMHeadModel", ("next",)),
    ("modernbert", tiny_modern, "ModernBertForMaskedLM", ("masked",)),
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
            attention_mask=layout.attention_mask().long(),
            output_hidden_states=True,
            **extra,
        )
        reading = model.trunk(Inputs(tokens, layout, segments if family == "bert" else None), layers=range(5))
        assert len(expected.hidden_states) == model.config.trunk.num_layers + 1
        for depth, hidden in enumerate(expected.hidden_states):
            torch.testing.assert_close(reading.layers[depth], layout.unpad(hidden), atol=1e-5, rtol=0)
        logits = expected.prediction_logits if family == "bert" else expected.logits
        scores = model.predict(names[0], reading.hidden, layout)
        torch.testing.assert_close(scores, layout.unpad(logits), atol=1e-5, rtol=1e-5)
        if family == "bert":
            pair = model.predict("pair", reading.hidden, layout)
            torch.testing.assert_close(pair, expected.seq_relationship_logits, atol=1e-5, rtol=0)


@pytest.mark.parametrize("family,make,head,name", [
    ("bert", tiny_bert, "BertForSequenceClassification", "classify"),
    ("bert", tiny_bert, "BertForTokenClassification", "tag"),
    ("bert", tiny_bert, "BertForQuestionAnswering", "span"),
    ("gpt2", tiny_gpt2, "GPT2ForSequenceClassification", "classify"),
    ("gpt2", tiny_gpt2, "GPT2ForTokenClassification", "tag"),
    ("modernbert", tiny_modern, "ModernBertForSequenceClassification", "classify"),
    ("modernbert", modern_mean, "ModernBertForSequenceClassification", "classify"),
    ("modernbert", tiny_modern, "ModernBertForTokenClassification", "tag"),
    ("modernbert", tiny_modern, "ModernBertForQuestionAnswering", "span"),
])  # fmt: skip
def test_label_heads(family, make, head, name):
    torch.manual_seed(0)
    theirs = make(head)
    randomise(theirs)
    model = ours(theirs, family, (name,))
    tokens, layout, _ = batch()
    with torch.no_grad():
        found = theirs(input_ids=layout.pad(tokens), attention_mask=layout.attention_mask().long())
        scores = model.predict(name, model.trunk(Inputs(tokens, layout)).hidden, layout)
    expected = torch.stack([found.start_logits, found.end_logits], -1) if name == "span" else found.logits
    expected = expected if name == "classify" else layout.unpad(expected)
    torch.testing.assert_close(scores, expected, atol=1e-5, rtol=0)


@pytest.mark.parametrize("family,make,head,name", [
    ("bert", tiny_bert, "BertForMaskedLM", "masked"),
    ("gpt2", tiny_gpt2, "GPT2LMHeadModel", "next"),
    ("modernbert", tiny_modern, "ModernBertForMaskedLM", "masked"),
])  # fmt: skip
def test_gradients(family, make, head, name):
    """One loss on both sides, every other token predicted: each weight gets the same gradient."""
    torch.manual_seed(0)
    theirs = make(head)
    randomise(theirs)
    model = ours(theirs, family, (name,))
    tokens, layout, _ = batch()
    rows = torch.arange(0, layout.num_tokens, 2)
    values = (tokens[rows] * 7) % 99
    logits = theirs(input_ids=layout.pad(tokens), attention_mask=layout.attention_mask().long()).logits
    torch.nn.functional.cross_entropy(layout.unpad(logits)[rows], values).backward()
    last = model.trunk(Inputs(tokens, layout)).hidden
    (model.loss(name, last, layout, rows, values, -100) / len(rows)).backward()
    found = {n: p.grad for n, p in model.named_parameters() if p.grad is not None}
    wanted = {n: p.grad for n, p in theirs.named_parameters() if p.grad is not None}
    shapes = {n: g.shape for n, g in found.items()}
    wanted = from_published(FAMILIES[family], model.config, shapes, wanted, "gradients")
    assert wanted.keys() == found.keys() == {n for n, _ in model.named_parameters() if "pooler" not in n}
    for n, gradient in found.items():
        torch.testing.assert_close(gradient, wanted[n], atol=1e-5, rtol=1e-5, msg=lambda m, n=n: f"{n}: {m}")


@pytest.mark.parametrize("size", ["base", "large"])
def test_modern_counts_are_theirs(size):
    """The published sizes of ModernBERT, counted in `transformers` itself, head included."""
    sizes = {"base": {}, "large": {"num_hidden_layers": 28, "hidden_size": 1024, "num_attention_heads": 16,
                                   "intermediate_size": 2624}}  # fmt: skip
    with torch.device("meta"):
        theirs = transformers.ModernBertForMaskedLM(transformers.ModernBertConfig(**sizes[size]))
        model = Model(FAMILIES["modernbert"].model_config(size))
    counts = [sum(p.numel() for p in m.parameters()) for m in (theirs.model, theirs, model.trunk, model)]
    assert counts[:2] == counts[2:] and counts[0] == FAMILIES["modernbert"].num_params[size]


@pytest.mark.parametrize("family,size", [(f, s) for f in FAMILIES for s in FAMILIES[f].num_params])
def test_published_parameter_counts(family, size):
    with torch.device("meta"):
        model = Model(FAMILIES[family].model_config(size, with_heads=False))
    assert sum(p.numel() for p in model.parameters()) == FAMILIES[family].num_params[size]

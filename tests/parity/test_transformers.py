"""Tiny random models of `transformers`: all layers and heads agree to 1e-5."""

import pytest
import torch

from polyseme.families import FAMILIES
from polyseme.nn.model import Model
from polyseme.nn.packing import Inputs, PackedLayout
from polyseme.weights.convert import from_published
from tests.support.hf_models import convert_model, randomize

transformers = pytest.importorskip("transformers")

LENGTHS = (7, 3, 12, 12, 1)


def build_hf_bert(head: str):
    config = transformers.BertConfig(
        vocab_size=99, hidden_size=32, num_hidden_layers=3, num_attention_heads=4, intermediate_size=56,
        max_position_embeddings=40,
    )  # fmt: skip
    return getattr(transformers, head)(config).eval()


def build_hf_gpt2(head: str):
    config = transformers.GPT2Config(
        vocab_size=99, n_embd=32, n_layer=3, n_head=4, n_positions=40, bos_token_id=0, eos_token_id=0,
        pad_token_id=0, attn_implementation="eager",
    )  # fmt: skip
    return getattr(transformers, head)(config).eval()


def build_hf_modernbert(head: str, **changes):
    """Three kinds of blocks; the local ones attend to 2 tokens on each side."""
    config = transformers.ModernBertConfig(
        vocab_size=99, hidden_size=32, num_hidden_layers=4, num_attention_heads=4, intermediate_size=56,
        max_position_embeddings=40, local_attention=4, pad_token_id=0, attn_implementation="eager",
        rope_parameters={"full_attention": {"rope_type": "default", "rope_theta": 900.0},
                         "sliding_attention": {"rope_type": "default", "rope_theta": 70.0}}, **changes,
    )  # fmt: skip
    return getattr(transformers, head)(config).eval()


def build_hf_modernbert_mean(head: str):
    return build_hf_modernbert(head, classifier_pooling="mean")


def make_batch(vocab_size: int = 99):
    layout = PackedLayout.from_lengths(LENGTHS)
    tokens = torch.randint(1, vocab_size, (layout.num_tokens,))
    segments = (layout.positions > 4).long()
    return tokens, layout, segments


@pytest.mark.parametrize("family,build_fn,head,head_names", [
    ("bert", build_hf_bert, "BertForPreTraining", ("masked", "pair")),
    ("gpt2", build_hf_gpt2, "GPT2LMHeadModel", ("next",)),
    ("modernbert", build_hf_modernbert, "ModernBertForMaskedLM", ("masked",)),
])  # fmt: skip
def test_layers_and_heads_match(family, build_fn, head, head_names):
    torch.manual_seed(0)
    hf_model = build_fn(head)
    randomize(hf_model)
    model = convert_model(hf_model, family, head_names)
    tokens, layout, segments = make_batch()
    extra_inputs = {"token_type_ids": layout.pad(segments)} if family == "bert" else {}
    with torch.no_grad():
        expected = hf_model(
            input_ids=layout.pad(tokens),
            attention_mask=layout.attention_mask().long(),
            output_hidden_states=True,
            **extra_inputs,
        )
        output = model.trunk(
            Inputs(tokens, layout, segments if family == "bert" else None),
            layers=range(model.config.trunk.num_layers + 1),
        )
        assert len(expected.hidden_states) == model.config.trunk.num_layers + 1
        for depth, hidden in enumerate(expected.hidden_states):
            torch.testing.assert_close(output.layers[depth], layout.unpad(hidden), atol=1e-5, rtol=0)
        logits = expected.prediction_logits if family == "bert" else expected.logits
        scores = model.predict(head_names[0], output.hidden, layout)
        torch.testing.assert_close(scores, layout.unpad(logits), atol=1e-5, rtol=1e-5)
        if family == "bert":
            pair = model.predict("pair", output.hidden, layout)
            torch.testing.assert_close(pair, expected.seq_relationship_logits, atol=1e-5, rtol=0)


@pytest.mark.parametrize("family,build_fn,head,name", [
    ("bert", build_hf_bert, "BertForSequenceClassification", "classify"),
    ("bert", build_hf_bert, "BertForTokenClassification", "tag"),
    ("bert", build_hf_bert, "BertForQuestionAnswering", "span"),
    ("gpt2", build_hf_gpt2, "GPT2ForSequenceClassification", "classify"),
    ("gpt2", build_hf_gpt2, "GPT2ForTokenClassification", "tag"),
    ("modernbert", build_hf_modernbert, "ModernBertForSequenceClassification", "classify"),
    ("modernbert", build_hf_modernbert_mean, "ModernBertForSequenceClassification", "classify"),
    ("modernbert", build_hf_modernbert, "ModernBertForTokenClassification", "tag"),
    ("modernbert", build_hf_modernbert, "ModernBertForQuestionAnswering", "span"),
])  # fmt: skip
def test_task_heads_match(family, build_fn, head, name):
    torch.manual_seed(0)
    hf_model = build_fn(head)
    randomize(hf_model)
    model = convert_model(hf_model, family, (name,))
    tokens, layout, _ = make_batch()
    with torch.no_grad():
        hf_output = hf_model(input_ids=layout.pad(tokens), attention_mask=layout.attention_mask().long())
        scores = model.predict(name, model.trunk(Inputs(tokens, layout)).hidden, layout)
    expected = torch.stack([hf_output.start_logits, hf_output.end_logits], -1) if name == "span" else hf_output.logits
    expected = expected if name == "classify" else layout.unpad(expected)
    torch.testing.assert_close(scores, expected, atol=1e-5, rtol=0)


@pytest.mark.parametrize("family,build_fn,head,name", [
    ("bert", build_hf_bert, "BertForMaskedLM", "masked"),
    ("gpt2", build_hf_gpt2, "GPT2LMHeadModel", "next"),
    ("modernbert", build_hf_modernbert, "ModernBertForMaskedLM", "masked"),
])  # fmt: skip
def test_gradients_match(family, build_fn, head, name):
    """With the same loss on every other token, all gradients are equal."""
    torch.manual_seed(0)
    hf_model = build_fn(head)
    randomize(hf_model)
    model = convert_model(hf_model, family, (name,))
    tokens, layout, _ = make_batch()
    rows = torch.arange(0, layout.num_tokens, 2)
    labels = (tokens[rows] * 7) % 99
    logits = hf_model(input_ids=layout.pad(tokens), attention_mask=layout.attention_mask().long()).logits
    torch.nn.functional.cross_entropy(layout.unpad(logits)[rows], labels).backward()
    hidden = model.trunk(Inputs(tokens, layout)).hidden
    (model.loss(name, hidden, layout, rows, labels) / len(rows)).backward()
    grads = {n: p.grad for n, p in model.named_parameters() if p.grad is not None}
    expected_grads = {n: p.grad for n, p in hf_model.named_parameters() if p.grad is not None}
    shapes = {n: g.shape for n, g in grads.items()}
    expected_grads = from_published(FAMILIES[family], model.config, shapes, expected_grads, "gradients")
    assert expected_grads.keys() == grads.keys() == {n for n, _ in model.named_parameters() if "pooler" not in n}
    for n, grad in grads.items():
        torch.testing.assert_close(grad, expected_grads[n], atol=1e-5, rtol=1e-5, msg=lambda m, n=n: f"{n}: {m}")


@pytest.mark.parametrize("size", ["base", "large"])
def test_modernbert_parameter_counts_match(size):
    """Parameters of the published sizes in `transformers`, with and without the head."""
    sizes = {"base": {}, "large": {"num_hidden_layers": 28, "hidden_size": 1024, "num_attention_heads": 16,
                                   "intermediate_size": 2624}}  # fmt: skip
    with torch.device("meta"):
        hf_model = transformers.ModernBertForMaskedLM(transformers.ModernBertConfig(**sizes[size]))
        model = Model(FAMILIES["modernbert"].model_config(size))
    counts = [sum(p.numel() for p in m.parameters()) for m in (hf_model.model, hf_model, model.trunk, model)]
    assert counts[:2] == counts[2:] and counts[0] == FAMILIES["modernbert"].num_params[size]


@pytest.mark.parametrize("family,size", [(f, s) for f in FAMILIES for s in FAMILIES[f].num_params])
def test_published_parameter_counts(family, size):
    with torch.device("meta"):
        model = Model(FAMILIES[family].model_config(size, with_heads=False))
    assert sum(p.numel() for p in model.parameters()) == FAMILIES[family].num_params[size]

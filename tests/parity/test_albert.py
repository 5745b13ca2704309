"""ALBERT against `transformers` with tiny random weights: states, logits, gradients, folders, layer sharing."""

import json

import pytest
import torch
from safetensors.torch import load_file, save_file

import polyseme
from polyseme.errors import PolysemeError
from polyseme.families import FAMILIES
from polyseme.nn.model import Model, ModelConfig
from polyseme.nn.packing import Inputs, PackedLayout
from polyseme.objectives.batch import Batch, Targets
from polyseme.objectives.losses import compute_losses
from polyseme.train.checkpoint import Checkpoint, load_checkpoint, save_checkpoint
from polyseme.train.loop import count_training_flops
from polyseme.weights.convert import from_published, to_published
from polyseme.weights.folder import load_model, save_model
from tests.support.hf_models import convert_model, randomize

transformers = pytest.importorskip("transformers")
transformers.logging.set_verbosity_error()

ALBERT = FAMILIES["albert"]
LENGTHS = (7, 3, 12, 12, 2)


def build_hf_model(head: str, **changes):
    """A tiny model with random biases and norms, so that a swapped or missing one is noticed."""
    config = transformers.AlbertConfig(
        vocab_size=99, embedding_size=16, hidden_size=32, num_hidden_layers=3, num_attention_heads=4,
        intermediate_size=56, max_position_embeddings=40, **changes,
    )  # fmt: skip
    torch.manual_seed(0)
    return randomize(getattr(transformers, head)(config).eval())


def make_batch():
    generator = torch.Generator().manual_seed(1)
    layout = PackedLayout.from_lengths(LENGTHS)
    tokens = torch.randint(1, 99, (layout.num_tokens,), generator=generator)
    return tokens, layout, (layout.positions > 4).long()


@pytest.mark.parametrize("num_groups", [1, 3], ids=["one group", "one group per layer"])
def test_states_logits_and_gradients_match(num_groups):
    hf_model = build_hf_model("AlbertForPreTraining", num_hidden_groups=num_groups)
    model = convert_model(hf_model, "albert", ("masked", "pair"))
    assert len(model.trunk.blocks) == num_groups
    tokens, layout, segments = make_batch()
    rows, order = torch.arange(0, layout.num_tokens, 3), torch.tensor([0, 1, 1, 0, 1])
    labels = torch.full_like(tokens, -100)
    labels[rows] = (tokens[rows] * 7) % 99
    expected = hf_model(
        input_ids=layout.pad(tokens), attention_mask=layout.attention_mask().long(),
        token_type_ids=layout.pad(segments), labels=layout.pad(labels, -100), sentence_order_label=order,
        output_hidden_states=True,
    )  # fmt: skip
    output = model.trunk(Inputs(tokens, layout, segments), layers=range(4))
    assert len(expected.hidden_states) == 4
    for depth, hidden in enumerate(expected.hidden_states):
        torch.testing.assert_close(output.layers[depth], layout.unpad(hidden), atol=1e-5, rtol=0)
    masked = model.predict("masked", output.hidden, layout)
    torch.testing.assert_close(masked, layout.unpad(expected.prediction_logits), atol=1e-5, rtol=1e-5)
    torch.testing.assert_close(
        model.predict("pair", output.hidden, layout), expected.sop_logits, atol=1e-5, rtol=0
    )  # fmt: skip
    expected.loss.backward()
    targets = {"masked": Targets(rows, labels[rows], len(rows)), "pair": Targets(torch.arange(5), order, 5)}
    losses = compute_losses(model, Batch(Inputs(tokens, layout, segments), targets, layout.num_tokens))
    loss = sum(value / targets[name].count for name, value in losses.items())
    torch.testing.assert_close(loss, expected.loss, atol=1e-5, rtol=0)
    loss.backward()
    grads, unpublished = to_published(ALBERT, model.config, {name: p.grad for name, p in model.named_parameters()})
    expected_grads = {name: p.grad for name, p in hf_model.named_parameters()}
    assert not unpublished and grads.keys() == expected_grads.keys() - ALBERT.tied_weights.keys()
    for name, gradient in grads.items():
        torch.testing.assert_close(gradient, expected_grads[name], atol=1e-5, rtol=1e-4)


@pytest.mark.parametrize("changes", [
    {"hidden_act": "gelu"}, {"hidden_act": "relu"}, {"layer_norm_eps": 1e-3}, {"type_vocab_size": 3},
], ids=str)  # fmt: skip
def test_other_settings_match(changes):
    hf_model = build_hf_model("AlbertForMaskedLM", **changes)
    trunk = ALBERT.from_hf_config(hf_model.config.to_dict())
    config = ModelConfig("albert", trunk, {"masked": ALBERT.pretraining_heads(trunk)["masked"]})
    model = config.build().eval()
    shapes = {n: t.shape for n, t in model.state_dict().items()}
    model.load_state_dict(
        from_published(ALBERT, config, shapes, hf_model.state_dict(), "test"), strict=False
    )  # it has no pooler
    tokens, layout, segments = make_batch()
    with torch.no_grad():
        expected = hf_model(layout.pad(tokens), layout.attention_mask().long(), layout.pad(segments)).logits
        scores = model.predict("masked", model.trunk(Inputs(tokens, layout, segments)).hidden, layout)
    torch.testing.assert_close(scores, layout.unpad(expected), atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("changes", [{"num_hidden_groups": 2}, {"inner_group_num": 2}], ids=str)
def test_unsupported_settings_are_rejected(changes):
    config = ALBERT.to_hf_config(ALBERT.model_config("base")) | changes
    with pytest.raises(PolysemeError, match=f"{next(iter(changes))} is 2"):
        ALBERT.from_hf_config(config)


# Table 4 of the paper: millions of parameters of the base size, by sharing and embedding size.
@pytest.mark.parametrize("embedding_dim,sharing,expected_millions", [
    (768, "all", 31), (768, "attention", 83), (768, "ffn", 57), (768, "none", 108),
    (128, "all", 12), (128, "attention", 64), (128, "ffn", 38), (128, "none", 89),
])  # fmt: skip
def test_sharing_has_the_published_parameter_counts(embedding_dim, sharing, expected_millions):
    with torch.device("meta"):
        model = Model(ALBERT.model_config("base", with_heads=False, sharing=sharing, embedding_dim=embedding_dim))
    num_params = sum(p.numel() for p in model.parameters())
    assert abs(num_params / 1e6 - expected_millions) < 1.7, num_params  # 768 has an unneeded projection here
    assert sum(p.numel() for group in model.trunk.layer_groups() for p in group) == num_params
    names = {name for name, _ in model.named_parameters()}
    assert all(any(name.startswith(f"trunk.blocks.{i}.") for name in names) for i in range(len(model.trunk.blocks)))


def test_invalid_sharing_is_rejected():
    with pytest.raises(PolysemeError, match=r"sharing is 'fnn'.*'ffn'"):
        ALBERT.model_config("base", sharing="fnn")
    config = ALBERT.model_config("tiny")
    with pytest.raises(PolysemeError, match="layer_to_ffn has 1 layers, but layer_to_block has 2"):
        config.replace(trunk=config.trunk.replace(layer_to_ffn=(0,))).build()


def test_sharing_does_not_change_flops():
    """Sharing saves parameters, not computation."""
    tokens, layout, _ = make_batch()
    models = [
        ALBERT.model_config("tiny", sharing=s, vocab_size=99).build(seed=0) for s in ("all", "attention", "ffn", "none")
    ]
    assert (
        len({count_training_flops(m, Batch(Inputs(tokens, layout), num_tokens=layout.num_tokens)) for m in models}) == 1
    )
    num_params = [sum(p.numel() for p in m.parameters()) for m in models]
    assert num_params[0] < num_params[2] < num_params[1] < num_params[3]


@pytest.mark.parametrize("sharing", ["attention", "ffn", "none"])
def test_folder_round_trip_with_partial_sharing(sharing, tiny_folders, tmp_path):
    """`transformers` lacks partially shared blocks: it gets a copy per layer, which we load as one tensor."""
    tokenizer = load_model(tiny_folders["albert"]).tokenizer
    config = ALBERT.model_config(
        num_layers=3,
        dim=24,
        num_heads=3,
        embedding_dim=16,
        vocab_size=tokenizer.vocab_size,
        max_len=48,
        sharing=sharing,
    )
    model = config.build(seed=3).eval()
    with torch.no_grad():
        for p in model.parameters():
            p.add_(torch.randn(p.shape, generator=torch.Generator().manual_seed(p.numel())) * 0.2)
    save_model(tmp_path / "model", model, tokenizer)
    hf_model = transformers.AlbertForPreTraining.from_pretrained(tmp_path / "model").eval()
    tokens, layout, segments = make_batch()
    with torch.no_grad():
        expected = hf_model(layout.pad(tokens), layout.attention_mask().long(), layout.pad(segments))
        hidden = model.trunk(Inputs(tokens, layout, segments)).hidden
        scores = model.predict("masked", hidden, layout)
    torch.testing.assert_close(scores, layout.unpad(expected.prediction_logits), atol=1e-5, rtol=1e-5)
    reloaded = load_model(tmp_path / "model").model
    assert reloaded.config == config
    assert sum(p.numel() for p in reloaded.parameters()) == sum(p.numel() for p in model.parameters())
    assert all(torch.equal(t, model.state_dict()[n]) for n, t in reloaded.state_dict().items())
    (tmp_path / "model/SHA256SUMS").unlink()
    (tmp_path / "model/polyseme.json").rename(tmp_path / "spec.json")
    assert load_model(tmp_path / "model").model.config.trunk == config.trunk.replace(
        layer_to_block=(0, 1, 2), layer_to_ffn=(0, 1, 2)
    )
    (tmp_path / "spec.json").rename(tmp_path / "model/polyseme.json")
    if sharing == "none":
        return
    part = "attention.dense" if sharing == "attention" else "ffn"
    name = f"albert.encoder.albert_layer_groups.1.albert_layers.0.{part}.weight"
    tensors = load_file(tmp_path / "model/model.safetensors")
    save_file(tensors | {name: tensors[name] + 1}, tmp_path / "model/model.safetensors")
    with pytest.raises(PolysemeError, match=r"trunk\.blocks\.1\..* differs from the tensor that it is tied to"):
        load_model(tmp_path / "model")


def test_shared_layers_in_checkpoints_and_attention(tiny_folders, tmp_path):
    config = ALBERT.model_config("tiny", num_layers=3, vocab_size=99, sharing="attention")
    model, other = config.build(seed=0), config.build(seed=1)
    save_checkpoint(tmp_path, Checkpoint(1, {"model": model.state_dict()}, {}), keep_checkpoints=1)
    other.load_state_dict(load_checkpoint(tmp_path).tensors["model"])
    assert all(torch.equal(a, b) for a, b in zip(model.parameters(), other.parameters()))
    first, second, third = other.trunk.layers()
    assert first.attention is second.attention is third.attention and first.ffn is not second.ffn is not third.ffn
    assert first.attention_post_norm is third.attention_post_norm and first.ffn_post_norm is not third.ffn_post_norm
    attention = polyseme.load(tiny_folders["albert"]).attention("The old cat sees the dog.")["self"]
    assert attention.weights.shape == (3, 3, len(attention.queries), len(attention.keys))


def test_families_command_shows_published_counts(run_cli):
    shown = {(row["family"], row["size"]): row["published_params"] for row in json.loads(run_cli("families", "--json"))}
    assert shown["albert", "xxlarge"] == "222,595,584 (paper: 235M)"
    assert shown["bert", "base"] == "109,482,240"

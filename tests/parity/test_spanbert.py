"""SpanBERT is BERT for `transformers`; the boundary head is ours, checked against its formula in the paper."""

import pytest
import torch
from safetensors.torch import load_file

from polyseme.families import FAMILIES
from polyseme.nn.heads.span_boundary import SpanBoundaryHeadConfig
from polyseme.nn.inputs import Inputs
from polyseme.nn.layers.norms import LayerNormConfig
from polyseme.nn.packing import PackedLayout
from polyseme.weights.folder import load_model, read_model_config, save_model

transformers = pytest.importorskip("transformers")
transformers.logging.set_verbosity_error()


def test_the_folder_is_bert_to_others_and_spanbert_to_us(tiny_folders, tmp_path):
    ours = load_model(tiny_folders["spanbert"])
    assert ours.model.config.family == "spanbert" and list(ours.model.heads) == ["masked", "boundary"]
    extra = load_file(tiny_folders["spanbert"] / "polyseme.safetensors")
    assert extra and all(name.startswith("heads.boundary.") for name in extra)
    theirs, info = transformers.AutoModelForMaskedLM.from_pretrained(
        tiny_folders["spanbert"], output_loading_info=True
    )  # fmt: skip
    assert type(theirs).__name__ == "BertForMaskedLM" and not info["missing_keys"]
    layout = PackedLayout.from_lengths([9, 4])
    tokens = torch.arange(5, 18)
    with torch.no_grad():
        expected = theirs.eval()(layout.pad(tokens), layout.attention_mask().long()).logits
        scores = ours.model.predict("masked", ours.model.trunk(Inputs(tokens, layout)).hidden, layout)
    torch.testing.assert_close(scores, layout.unpad(expected), atol=1e-5, rtol=1e-5)
    theirs.save_pretrained(tmp_path / "theirs")
    ours.tokenizer.save(tmp_path / "theirs")
    back = load_model(tmp_path / "theirs").model
    assert (
        back.config.family == "bert" and list(back.heads) == ["masked"] and back.config.trunk == ours.model.config.trunk
    )
    save_model(tmp_path / "again", ours.model, ours.tokenizer)
    again = load_model(tmp_path / "again").model.state_dict()
    assert all(torch.equal(t, again[n]) for n, t in ours.model.state_dict().items())


def test_the_boundary_head_is_the_paper_s():
    """h1 = norm(gelu(W1 [left; right; place])), h2 = norm(gelu(W2 h1)), scores = table · h2 + bias (§3.2)."""
    torch.manual_seed(0)
    dim, vocab = 12, 31
    head = SpanBoundaryHeadConfig(vocab, norm=LayerNormConfig(1e-12), position_dim=5).build(dim).double()
    with torch.no_grad():
        for p in head.parameters():
            p.copy_(torch.randn_like(p))
    states, table = torch.randn(20, dim).double(), torch.randn(vocab, dim).double()
    rows = torch.tensor([[3, 7, 0], [3, 7, 2], [11, 13, 0]])
    found = head(head.select_states(states, PackedLayout.from_lengths([len(states)]), rows, None), table)
    weights = dict(head.named_parameters())

    def layer(x, number):
        x = torch.nn.functional.gelu(weights[f"linear{number}.weight"] @ x + weights[f"linear{number}.bias"])
        x = (x - x.mean()) / x.std(correction=0)
        return x * weights[f"norm{number}.weight"] + weights[f"norm{number}.bias"]

    for (left, right, place), scores in zip(rows.tolist(), found):
        x = torch.cat([states[left], states[right], weights["position_embeddings.weight"][place]])
        expected = table @ layer(layer(x, 1), 2) + weights["bias"]
        torch.testing.assert_close(scores, expected, atol=1e-8, rtol=0)


def test_a_task_takes_the_trunk_alone(tiny_folders):
    spec = read_model_config(tiny_folders["spanbert"])[0]
    heads = {"tag": FAMILIES["spanbert"].task_head("tag", ("O", "B"), spec.trunk)}
    found = load_model(tiny_folders["spanbert"], heads=heads)
    assert found.newly_initialized == ["heads.tag.linear.bias", "heads.tag.linear.weight"] and list(
        found.model.heads
    ) == ["tag"]


def test_the_boundary_head_has_to_know_its_rows():
    model = FAMILIES["spanbert"].model_config("tiny", vocab_size=50).build(seed=0)
    layout = PackedLayout.from_lengths([4])
    with pytest.raises(ValueError, match="boundary"):
        model.predict("boundary", model.trunk(Inputs(torch.arange(4), layout)).hidden, layout)

"""SpanBERT loads as BERT in `transformers`; the boundary head is checked against the paper's formula."""

import pytest
import torch
from safetensors.torch import load_file

from polyseme.families import FAMILIES
from polyseme.nn.heads.lm import SpanBoundaryHeadConfig
from polyseme.nn.layers.block import LayerNormConfig
from polyseme.nn.packing import Inputs, PackedLayout
from polyseme.weights.folder import load_model, read_model_config, save_model

transformers = pytest.importorskip("transformers")
transformers.logging.set_verbosity_error()


def test_transformers_loads_the_folder_as_bert(tiny_folders, tmp_path):
    folder = load_model(tiny_folders["spanbert"])
    assert folder.model.config.family == "spanbert" and list(folder.model.heads) == ["masked", "boundary"]
    extra = load_file(tiny_folders["spanbert"] / "polyseme.safetensors")
    assert extra and all(name.startswith("heads.boundary.") for name in extra)
    hf_model, info = transformers.AutoModelForMaskedLM.from_pretrained(
        tiny_folders["spanbert"], output_loading_info=True
    )  # fmt: skip
    assert type(hf_model).__name__ == "BertForMaskedLM" and not info["missing_keys"]
    layout = PackedLayout.from_lengths([9, 4])
    tokens = torch.arange(5, 18)
    with torch.no_grad():
        expected = hf_model.eval()(layout.pad(tokens), layout.attention_mask().long()).logits
        scores = folder.model.predict("masked", folder.model.trunk(Inputs(tokens, layout)).hidden, layout)
    torch.testing.assert_close(scores, layout.unpad(expected), atol=1e-5, rtol=1e-5)
    hf_model.save_pretrained(tmp_path / "theirs")
    folder.tokenizer.save(tmp_path / "theirs")
    loaded = load_model(tmp_path / "theirs").model
    assert (
        loaded.config.family == "bert"
        and list(loaded.heads) == ["masked"]
        and loaded.config.trunk == folder.model.config.trunk
    )
    save_model(tmp_path / "again", folder.model, folder.tokenizer)
    state = load_model(tmp_path / "again").model.state_dict()
    assert all(torch.equal(t, state[n]) for n, t in folder.model.state_dict().items())


def test_boundary_head_matches_the_formula():
    """h1 = norm(gelu(W1 [left; right; position])), h2 = norm(gelu(W2 h1)), logits = table · h2 + bias (§3.2)."""
    torch.manual_seed(0)
    dim, vocab_size = 12, 31
    head = SpanBoundaryHeadConfig(vocab_size, norm=LayerNormConfig(1e-12), position_dim=5).build(dim).double()
    with torch.no_grad():
        for p in head.parameters():
            p.copy_(torch.randn_like(p))
    states, table = torch.randn(20, dim).double(), torch.randn(vocab_size, dim).double()
    rows = torch.tensor([[3, 7, 0], [3, 7, 2], [11, 13, 0]])
    logits = head(head.select_states(states, PackedLayout.from_lengths([len(states)]), rows, None), table)
    weights = dict(head.named_parameters())

    def layer(x, i):
        x = torch.nn.functional.gelu(weights[f"linear{i}.weight"] @ x + weights[f"linear{i}.bias"])
        x = (x - x.mean()) / x.std(correction=0)
        return x * weights[f"norm{i}.weight"] + weights[f"norm{i}.bias"]

    for (left, right, offset), scores in zip(rows.tolist(), logits):
        x = torch.cat([states[left], states[right], weights["position_embeddings.weight"][offset]])
        expected = table @ layer(layer(x, 1), 2) + weights["bias"]
        torch.testing.assert_close(scores, expected, atol=1e-8, rtol=0)


def test_task_model_keeps_only_the_trunk(tiny_folders):
    config = read_model_config(tiny_folders["spanbert"])[0]
    heads = {"tag": FAMILIES["spanbert"].task_head("tag", ("O", "B"), config.trunk)}
    folder = load_model(tiny_folders["spanbert"], heads=heads)
    assert folder.newly_initialized == ["heads.tag.linear.bias", "heads.tag.linear.weight"] and list(
        folder.model.heads
    ) == ["tag"]


def test_boundary_head_requires_rows():
    model = FAMILIES["spanbert"].model_config("tiny", vocab_size=50).build(seed=0)
    layout = PackedLayout.from_lengths([4])
    with pytest.raises(ValueError, match="boundary"):
        model.predict("boundary", model.trunk(Inputs(torch.arange(4), layout)).hidden, layout)

"""Transformer-XL against tensors that the last `transformers` which had it made (make_transfo_xl.py)."""

import json
from pathlib import Path

import pytest
import torch
from safetensors import safe_open

from polyseme.families import FAMILIES
from polyseme.families.transformer_xl import trunk_config
from polyseme.nn.inputs import Inputs
from polyseme.nn.layers.adaptive import AdaptiveEmbeddingsConfig, AdaptiveSoftmaxHeadConfig
from polyseme.nn.model import Model, ModelConfig
from polyseme.nn.packing import PackedLayout

FILE = Path(__file__).with_name("transfo_xl.safetensors")
LAYER = {  # our name -> theirs
    "attention.qkv.weight": "dec_attn.qkv_net.weight",
    "attention.distance.weight": "dec_attn.r_net.weight",
    "attention.out.weight": "dec_attn.o_net.weight",
    "attention.u": "dec_attn.r_w_bias",
    "attention.v": "dec_attn.r_r_bias",
    "attention_post_norm.weight": "dec_attn.layer_norm.weight",
    "attention_post_norm.bias": "dec_attn.layer_norm.bias",
    "ffn.up.weight": "pos_ff.CoreNet.0.weight",
    "ffn.up.bias": "pos_ff.CoreNet.0.bias",
    "ffn.down.weight": "pos_ff.CoreNet.3.weight",
    "ffn.down.bias": "pos_ff.CoreNet.3.bias",
    "ffn_post_norm.weight": "pos_ff.layer_norm.weight",
    "ffn_post_norm.bias": "pos_ff.layer_norm.bias",
}


def golden(name: str) -> tuple[dict, dict[str, torch.Tensor]]:
    with safe_open(FILE, "pt") as file:
        config = json.loads(file.metadata()["configs"])[name]
        return config, {k.partition("/")[2]: file.get_tensor(k) for k in file.keys() if k.startswith(f"{name}/")}  # noqa: SIM118


def ours_of(tensors: dict[str, torch.Tensor], what: str, config: dict) -> dict[str, torch.Tensor]:
    """Their weights or gradients under our names."""
    theirs = {k.removeprefix(f"{what}."): t for k, t in tensors.items() if k.startswith(f"{what}.")}
    found = {"heads.next.clusters.weight": theirs["crit.cluster_weight"]}
    found |= {"heads.next.clusters.bias": theirs["crit.cluster_bias"]}
    tables, biases = (
        [theirs[k] for k in sorted(theirs) if k.startswith(start) and k.endswith(end)]
        for start, end in (("transformer.word_emb.emb_layers.", "weight"), ("crit.out_layers.", "bias"))
    )
    if config["div_val"] == 1:  # one table for all bands
        sizes = [b - a for a, b in zip([0, *config["cutoffs"]], [*config["cutoffs"], config["vocab_size"]])]
        tables, biases = tables[0].split(sizes), biases[0].split(sizes)
        found |= {f"trunk.position_bias.{o}": theirs[f"transformer.r_{t}_bias"] for o, t in (("u", "w"), ("v", "r"))}
    else:
        found |= {"heads.next.projection.weight": theirs["crit.out_projs.0"]}
        for i in range(len(tables)):
            found[f"trunk.embeddings.projections.{i}.weight"] = theirs[f"transformer.word_emb.emb_projs.{i}"]
    for i, (table, bias) in enumerate(zip(tables, biases)):
        found |= {f"trunk.embeddings.tables.{i}.weight": table, f"heads.next.biases.{i}": bias}
    for layer in range(config["n_layer"]):
        for mine, other in LAYER.items():
            if (key := f"transformer.layers.{layer}.{other}") in theirs:
                found[f"trunk.blocks.{layer}.{mine}"] = theirs[key]
    return found


def build(name: str) -> tuple[Model, dict, dict[str, torch.Tensor]]:
    config, tensors = golden(name)
    spec = trunk_config(
        config["n_layer"], config["d_model"], config["n_head"], config["d_inner"], config["vocab_size"],
        dropout=0.0, head_dim=config["d_head"], memory_len=config["mem_len"], div_value=config["div_val"],
        max_distance=max(config["clamp_len"], 0), share_uv_biases=name == "shared",
    )  # fmt: skip
    embeddings = AdaptiveEmbeddingsConfig(config["vocab_size"], spec.dim, tuple(config["cutoffs"]), config["div_val"])
    attention = spec.block.attention.replace(window=config["mem_len"] - 1 if config["same_length"] else 0)
    spec = spec.replace(embeddings=embeddings, block=spec.block.replace(attention=attention))
    head = AdaptiveSoftmaxHeadConfig(config["vocab_size"], spec.dim, tuple(config["cutoffs"]), config["div_val"])
    model = ModelConfig("transformer_xl", spec, {"next": head}).build().eval()
    model.load_state_dict(ours_of(tensors, "weight", config))  # strict: every tensor has its other
    return model, config, tensors


@pytest.mark.parametrize("name", ["layer", "shared"])
def test_states_memory_and_loss(name):
    model, config, tensors = build(name)
    first, second = tensors["tokens"].split(7, dim=1)
    layout, memory = PackedLayout.from_lengths([7, 7]), None
    for key, tokens in (("before", first), ("after", second)):
        reading = model.trunk(Inputs(tokens.flatten(), layout), layers=range(3), memory=memory, return_memory=True)
        for depth, found in reading.layers.items():
            expected = tensors[f"{key}.hidden.{depth}"].flatten(0, 1)
            torch.testing.assert_close(found, expected, atol=1e-5, rtol=1e-5)
        scores = model.predict("next", reading.hidden, layout)
        torch.testing.assert_close(scores, tensors[f"{key}.log_probabilities"].flatten(0, 1), atol=1e-5, rtol=1e-5)
        memory = reading.memory.detach()
        assert memory.layout.lengths == (min(config["mem_len"], 7 if key == "before" else 14),) * 2
        for depth, (found,) in enumerate(memory.states):
            expected = tensors[f"{key}.memory.{depth}"].flatten(0, 1)
            torch.testing.assert_close(found, expected, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("name", ["layer", "shared"])
def test_loss_and_gradients(name):
    model, config, tensors = build(name)
    first, second = tensors["tokens"].split(7, dim=1)
    layout = PackedLayout.from_lengths([7, 7])
    memory = model.trunk(Inputs(first.flatten(), layout), return_memory=True).memory.detach()
    last = model.trunk(Inputs(second.flatten(), layout), memory=memory).hidden
    rows = torch.tensor([0, 1, 2, 3, 4, 5, 7, 8, 9, 10, 11, 12])
    loss = model.loss("next", last, layout, rows, second[:, 1:].flatten(), -100)
    torch.testing.assert_close(loss, tensors["loss_sum"], atol=1e-5, rtol=1e-5)
    loss.backward()
    expected = ours_of(tensors, "gradient", config)
    for key, parameter in model.named_parameters():
        torch.testing.assert_close(parameter.grad, expected[key], atol=1e-5, rtol=1e-4, msg=key)


def test_published_counts_are_those_of_the_release():
    with safe_open(FILE, "pt") as file:
        assert json.loads(file.metadata()["counts"]) == FAMILIES["transformer_xl"].num_params

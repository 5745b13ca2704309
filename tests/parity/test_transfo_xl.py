"""Transformer-XL against outputs of the last `transformers` that had it (make_transfo_xl.py)."""

import json
from pathlib import Path

import pytest
import torch
from safetensors import safe_open

from polyseme.families import FAMILIES
from polyseme.families.transformer_xl import trunk_config
from polyseme.nn.layers.adaptive import AdaptiveEmbeddingsConfig, AdaptiveSoftmaxHeadConfig
from polyseme.nn.model import Model, ModelConfig
from polyseme.nn.packing import Inputs, PackedLayout

FILE = Path(__file__).with_name("transfo_xl.safetensors")
LAYER_NAMES = {  # our name -> published name
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


def load_reference(name: str) -> tuple[dict, dict[str, torch.Tensor]]:
    with safe_open(FILE, "pt") as file:
        config = json.loads(file.metadata()["configs"])[name]
        return config, {k.partition("/")[2]: file.get_tensor(k) for k in file.keys() if k.startswith(f"{name}/")}  # noqa: SIM118


def convert_tensors(tensors: dict[str, torch.Tensor], prefix: str, config: dict) -> dict[str, torch.Tensor]:
    """Return the reference's weights or gradients under our names."""
    reference = {k.removeprefix(f"{prefix}."): t for k, t in tensors.items() if k.startswith(f"{prefix}.")}
    converted = {"heads.next.clusters.weight": reference["crit.cluster_weight"]}
    converted |= {"heads.next.clusters.bias": reference["crit.cluster_bias"]}
    tables, biases = (
        [reference[k] for k in sorted(reference) if k.startswith(start) and k.endswith(end)]
        for start, end in (("transformer.word_emb.emb_layers.", "weight"), ("crit.out_layers.", "bias"))
    )
    if config["div_val"] == 1:  # one table for all bands
        sizes = [b - a for a, b in zip([0, *config["cutoffs"]], [*config["cutoffs"], config["vocab_size"]])]
        tables, biases = tables[0].split(sizes), biases[0].split(sizes)
        converted |= {
            f"trunk.position_bias.{o}": reference[f"transformer.r_{t}_bias"] for o, t in (("u", "w"), ("v", "r"))
        }
    else:
        converted |= {"heads.next.projection.weight": reference["crit.out_projs.0"]}
        for i in range(len(tables)):
            converted[f"trunk.embeddings.projections.{i}.weight"] = reference[f"transformer.word_emb.emb_projs.{i}"]
    for i, (table, bias) in enumerate(zip(tables, biases)):
        converted |= {f"trunk.embeddings.tables.{i}.weight": table, f"heads.next.biases.{i}": bias}
    for layer in range(config["n_layer"]):
        for name, published in LAYER_NAMES.items():
            if (key := f"transformer.layers.{layer}.{published}") in reference:
                converted[f"trunk.blocks.{layer}.{name}"] = reference[key]
    return converted


def build_model(name: str) -> tuple[Model, dict, dict[str, torch.Tensor]]:
    config, tensors = load_reference(name)
    trunk = trunk_config(
        config["n_layer"], config["d_model"], config["n_head"], config["d_inner"], config["vocab_size"],
        dropout=0.0, head_dim=config["d_head"], memory_len=config["mem_len"], div_value=config["div_val"],
        max_distance=max(config["clamp_len"], 0), share_uv_biases=name == "shared",
    )  # fmt: skip
    embeddings = AdaptiveEmbeddingsConfig(config["vocab_size"], trunk.dim, tuple(config["cutoffs"]), config["div_val"])
    attention = trunk.block.attention.replace(window=config["mem_len"] - 1 if config["same_length"] else 0)
    trunk = trunk.replace(embeddings=embeddings, block=trunk.block.replace(attention=attention))
    head = AdaptiveSoftmaxHeadConfig(config["vocab_size"], trunk.dim, tuple(config["cutoffs"]), config["div_val"])
    model = ModelConfig("transformer_xl", trunk, {"next": head}).build().eval()
    model.load_state_dict(convert_tensors(tensors, "weight", config))
    return model, config, tensors


@pytest.mark.parametrize("name", ["layer", "shared"])
def test_states_memory_and_logits_match(name):
    model, config, tensors = build_model(name)
    first, second = tensors["tokens"].split(7, dim=1)
    layout, memory = PackedLayout.from_lengths([7, 7]), None
    for key, tokens in (("before", first), ("after", second)):
        output = model.trunk(Inputs(tokens.flatten(), layout), layers=range(3), memory=memory, return_memory=True)
        for depth, actual in output.layers.items():
            expected = tensors[f"{key}.hidden.{depth}"].flatten(0, 1)
            torch.testing.assert_close(actual, expected, atol=1e-5, rtol=1e-5)
        scores = model.predict("next", output.hidden, layout)
        torch.testing.assert_close(scores, tensors[f"{key}.log_probabilities"].flatten(0, 1), atol=1e-5, rtol=1e-5)
        memory = output.memory.detach()
        assert memory.layout.lengths == (min(config["mem_len"], 7 if key == "before" else 14),) * 2
        for depth, (actual,) in enumerate(memory.states):
            expected = tensors[f"{key}.memory.{depth}"].flatten(0, 1)
            torch.testing.assert_close(actual, expected, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("name", ["layer", "shared"])
def test_loss_and_gradients_match(name):
    model, config, tensors = build_model(name)
    first, second = tensors["tokens"].split(7, dim=1)
    layout = PackedLayout.from_lengths([7, 7])
    memory = model.trunk(Inputs(first.flatten(), layout), return_memory=True).memory.detach()
    hidden = model.trunk(Inputs(second.flatten(), layout), memory=memory).hidden
    rows = torch.tensor([0, 1, 2, 3, 4, 5, 7, 8, 9, 10, 11, 12])
    loss = model.loss("next", hidden, layout, rows, second[:, 1:].flatten())
    torch.testing.assert_close(loss, tensors["loss_sum"], atol=1e-5, rtol=1e-5)
    loss.backward()
    expected = convert_tensors(tensors, "gradient", config)
    for key, parameter in model.named_parameters():
        torch.testing.assert_close(parameter.grad, expected[key], atol=1e-5, rtol=1e-4, msg=key)


def test_published_counts_match_transformers():
    with safe_open(FILE, "pt") as file:
        assert json.loads(file.metadata()["counts"]) == FAMILIES["transformer_xl"].num_params

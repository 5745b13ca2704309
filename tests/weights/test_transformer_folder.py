"""Folders of a family that `transformers` lacks: the same layout with our names."""

import json

import torch
from safetensors.torch import load_file

from polyseme.families import FAMILIES
from polyseme.nn.model import ModelConfig
from polyseme.weights.folder import load_model, save_model
from tests.support.folders import remove_polyseme_files


def test_folder_loads_without_polyseme_json(tiny_folders, tmp_path):
    folder = load_model(tiny_folders["transformer"])
    save_model(tmp_path / "model", folder.model, folder.tokenizer)
    remove_polyseme_files(tmp_path / "model")
    config = json.loads((tmp_path / "model/config.json").read_text())
    assert config["model_type"] == "transformer" and config["architectures"] == ["Translation"]
    assert set(load_file(tmp_path / "model/model.safetensors")) == set(folder.model.state_dict())
    reloaded = load_model(tmp_path / "model").model
    assert reloaded.config == folder.model.config
    state = reloaded.state_dict()
    assert all(torch.equal(state[name], t) for name, t in folder.model.state_dict().items())


def test_model_without_heads_is_saved_without_prefix(tiny_folders, tmp_path):
    folder = load_model(tiny_folders["transformer"])
    bare = ModelConfig("transformer", folder.model.config.trunk).build(seed=4)
    save_model(tmp_path / "model", bare, folder.tokenizer)
    assert "encoder.embeddings.tokens.weight" in load_file(tmp_path / "model/model.safetensors")
    reloaded = load_model(tmp_path / "model").model.state_dict()
    assert all(torch.equal(reloaded[name], t) for name, t in bare.state_dict().items())
    names = [
        name for weight_map in FAMILIES["transformer"].weight_maps(bare.config) for name in weight_map.published_names
    ]
    assert len(set(names)) == len(names)

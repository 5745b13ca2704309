"""Weights stored as int8 and bf16: their error, idempotence, strict loading, and the folders of every family."""

import json

import pytest
import torch
from safetensors.torch import load_file, save_file

import polyseme
from polyseme.errors import ConfigError, ModelError, UnsupportedError
from polyseme.families import FAMILIES
from polyseme.weights.folder import load_model
from polyseme.weights.int8_storage import (
    INT8_FILE,
    dequantize_weights,
    measure_error,
    quantize_weights,
)
from tests.support.folders import copy_unhashed


def rows_of_many_sizes() -> torch.Tensor:
    """Rows of sizes from 1e-36 to 1e30, of outliers, and of zeros."""
    matrix = torch.randn(400, 33, generator=torch.Generator().manual_seed(0))
    matrix *= torch.logspace(-36, 30, 400)[:, None]
    matrix[::7, 3] *= 1000
    matrix[5] = 0
    matrix[6] = 1e-43  # a subnormal number
    return matrix


def test_error_is_at_most_half_a_level_and_storing_again_changes_nothing():
    weights = {"m": rows_of_many_sizes(), "bias": torch.randn(9), "ids": torch.arange(3)}
    stored = quantize_weights(weights)
    assert stored["m"].dtype == torch.int8 and stored["m.scale"].dtype == torch.bfloat16 == stored["bias"].dtype
    loaded = dequantize_weights(stored, "file")
    assert loaded.keys() == weights.keys() and torch.equal(loaded["ids"], weights["ids"])
    level = weights["m"].abs().amax(1, keepdim=True) / 127
    assert ((loaded["m"] - weights["m"]).abs() <= 0.51 * level + 1e-37).all()
    assert stored["m"].abs().amax(1)[7:].eq(127).all()
    again = quantize_weights(loaded)
    assert all(torch.equal(again[name], stored[name]) for name in stored)


def test_measured_error():
    originals = {"m": torch.tensor([[3.0, 4.0]]), "ids": torch.arange(2)}
    error = measure_error(originals, {"m": torch.tensor([[3.0, 4.5]]), "ids": torch.arange(2)})
    assert error.max_error == 0.5 and error.relative_error == pytest.approx(0.1)


@pytest.mark.parametrize("family", FAMILIES)
def test_folders_of_every_family(family, tiny_folders, tmp_path):
    """A folder in int8 loads, is small, and is written again byte by byte; float32 afterwards has the same weights."""
    model = load_model(tiny_folders[family]).model
    try:
        path = polyseme.load(tiny_folders[family]).save(tmp_path / "a", "int8")
    except UnsupportedError:
        assert family in ("word2vec", "fasttext", "glove")
        return
    loaded = polyseme.load(path)
    error = measure_error(model.state_dict(), loaded.model.state_dict())
    assert 0 < error.relative_error < 0.02
    loaded.save(tmp_path / "b", "int8")
    assert (tmp_path / "b" / "SHA256SUMS").read_text() == (path / "SHA256SUMS").read_text()
    restored = polyseme.load(loaded.save(tmp_path / "c")).model.state_dict()
    assert all(torch.equal(tensor, restored[name]) for name, tensor in loaded.model.state_dict().items())
    assert polyseme.verify(path).has_hashes


def test_transformers_opens_bf16_and_the_float32_copy_of_int8(tiny_folders, tmp_path):
    transformers = pytest.importorskip("transformers")
    model = polyseme.load(tiny_folders["modernbert"])
    path = model.save(tmp_path / "int8", "int8")
    with pytest.raises(OSError, match="no file named"):
        transformers.AutoModelForMaskedLM.from_pretrained(path)
    assert "AutoModel" not in (path / "README.md").read_text()
    polyseme.load(path).save(tmp_path / "float32")
    hf_model = transformers.AutoModelForMaskedLM.from_pretrained(tmp_path / "float32")
    table = polyseme.load(path).model.trunk.embeddings.tokens.weight
    assert torch.equal(hf_model.get_input_embeddings().weight, table)
    model.save(tmp_path / "bf16", "bf16")
    hf_model = transformers.AutoModelForMaskedLM.from_pretrained(tmp_path / "bf16")
    assert hf_model.get_input_embeddings().weight.dtype == torch.bfloat16


def break_int8(folder, change):
    tensors = load_file(folder / INT8_FILE)
    name = next(name for name, tensor in tensors.items() if tensor.dtype == torch.int8)
    change(tensors, name)
    save_file(tensors, folder / INT8_FILE)


@pytest.mark.parametrize(
    "change, message",
    [
        (lambda tensors, name: tensors.pop(f"{name}.scale"), "has no scale for each of its rows"),
        (lambda tensors, name: tensors.update({f"{name}.scale": torch.ones(2)}), "has no scale for each of its rows"),
        (lambda tensors, name: tensors[f"{name}.scale"].fill_(float("nan")), "are NaN or infinite"),
        (lambda tensors, name: tensors.update({"other.scale": torch.ones(2)}), "unexpected tensor"),
        (lambda tensors, name: (tensors.pop(f"{name}.scale"), tensors.pop(name)), "has no tensor"),
    ],
)
def test_loading_is_strict(change, message, tiny_folders, tmp_path):
    polyseme.load(tiny_folders["bert"]).save(tmp_path / "int8", "int8")
    folder = copy_unhashed(tmp_path / "int8", tmp_path / "copy")
    break_int8(folder, change)
    with pytest.raises(ModelError, match=message):
        load_model(folder)


def test_changed_weights_are_noticed(tiny_folders, tmp_path):
    path = polyseme.load(tiny_folders["bert"]).save(tmp_path / "int8", "int8")
    break_int8(path, lambda tensors, name: tensors[name].add_(1))
    with pytest.raises(ModelError, match="was changed"):
        polyseme.load(path)


def test_save_rejects_bad_input_and_keeps_pooling_and_metadata(tiny_folders, tmp_path):
    model = polyseme.load(tiny_folders["bert"])
    with pytest.raises(ConfigError, match="dtype 'int4' is not supported"):
        model.save(tmp_path / "new", "int4")
    assert not (tmp_path / "new").exists()
    with pytest.raises(ConfigError, match="already exists"):
        model.save(tiny_folders["bert"])
    folder = copy_unhashed(tiny_folders["bert"], tmp_path / "pooled")
    modules = [{"idx": i, "name": str(i), "path": path, "type": f"sentence_transformers.models.{name}"}
               for i, (name, path) in enumerate([("Transformer", ""), ("Pooling", "1_Pooling")])]  # fmt: skip
    (folder / "1_Pooling").mkdir()
    (folder / "modules.json").write_text(json.dumps(modules))
    (folder / "1_Pooling" / "config.json").write_text(json.dumps({"pooling_mode_max_tokens": True}))
    (folder / "sentence_bert_config.json").write_text(json.dumps({"max_seq_length": 16}))
    copied = load_model(polyseme.load(folder).save(tmp_path / "copy"))
    assert (
        copied.pooling == load_model(folder).pooling and copied.pooling.mode == "max" and copied.pooling.max_len == 16
    )

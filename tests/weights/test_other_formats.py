"""Folders without safetensors, and names on the Hub: one error that says how to get a model folder."""

import json
import shlex
from pathlib import Path

import pytest

import polyseme
from polyseme.errors import PolysemeError


@pytest.fixture
def folder(tmp_path, monkeypatch) -> Path:
    """A folder with a config and no weights, in the current folder."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "my model").mkdir()
    config = {
        "model_type": "bert", "architectures": ["BertForMaskedLM"], "vocab_size": 9, "hidden_size": 8,
        "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 8, "max_position_embeddings": 8,
        "_name_or_path": "user/bert",
    }  # fmt: skip
    Path("my model/config.json").write_text(json.dumps(config))
    return Path("my model")


def load_error(path: Path | str) -> str:
    with pytest.raises(PolysemeError) as caught:
        polyseme.load(path)
    return str(caught.value)


@pytest.mark.parametrize(
    "file,description,source",
    [
        ("pytorch_model.bin", "a pickle, which can run code", "'my model'"),
        ("pytorch_model-00001-of-00002.bin", "a pickle", "'my model'"),
        ("tf_model.h5", "weights of TensorFlow", "'my model', from_tf=True"),
        ("flax_model.msgpack", "weights of Flax", "'my model', from_flax=True"),
        ("onnx/model.onnx", "an ONNX graph", "'user/bert'"),
    ],
)
def test_other_weights_are_converted_by_one_command(folder, file, description, source):
    (folder / "training_args.bin").touch()
    (folder / "onnx").mkdir()
    (folder / file).touch()
    message = load_error(folder)
    assert message.startswith(f"my model/{file} is {description}")
    command = message[message.index("python -c") :]
    assert shlex.split(command)[2] == (
        f"import transformers; model = transformers.BertForMaskedLM.from_pretrained({source}); "
        "model.save_pretrained('my model')"
    )


def test_names_in_a_config_are_not_run(folder):
    """A hostile config does not get into the command that the message advises to run."""
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | {"_name_or_path": "'); print(1", "architectures": ["X()"]}))
    (folder / "model.onnx").touch()
    message = load_error(folder)
    assert "architecture 'X()' is not supported" in message
    (folder / "config.json").write_text(json.dumps(config | {"_name_or_path": "'); print(1"}))
    assert "print(1" not in load_error(folder) and "NAME on the Hub" in load_error(folder)


def test_no_weights_at_all(folder):
    (folder / "training_args.bin").touch()
    assert load_error(folder) == "my model has no model.safetensors"


def test_unsupported_model_type(folder):
    (folder / "config.json").write_text('{"model_type": "electra"}')
    message = load_error(folder)
    assert message.startswith("my model/config.json: model_type 'electra' is not supported; supported: albert, bert, ")
    assert "did you mean" not in message and "xlm-roberta" in message


@pytest.mark.parametrize("name", ["bert-base-uncased", "user/model.v2"])
def test_nothing_is_downloaded(folder, name):
    message = load_error(name)
    assert f"there is no model folder at {name}, and nothing is downloaded" in message
    assert f"'hf download {name} --local-dir {Path(name).name}'" in message


@pytest.mark.parametrize("path", ["/nowhere/model", "my model/x", "../a/b/c", "a b"])
def test_other_missing_paths(folder, path):
    assert load_error(path) == f"there is no model folder at {path}"


def test_misspelled_folder(folder):
    assert load_error("my modle") == "there is no model folder at my modle; did you mean 'my model'?"


def test_folders_that_are_not_model_folders(tmp_path):
    folder = tmp_path / "models--user--bert"
    snapshot = folder / "snapshots" / "abc"
    snapshot.mkdir(parents=True)
    (snapshot / "config.json").write_text("{}")
    assert load_error(folder).endswith(f"is a folder of the Hub's cache; pass the model in it: {snapshot}")
    (snapshot / "config.json").unlink()
    assert load_error(folder) == f"{folder} has no config.json, so it is not a model folder"
    (folder / "manifest.json").touch()
    assert load_error(folder) == f"{folder} is a corpus, not a model folder"
    (folder / "adapter_config.json").touch()
    assert "is a PEFT adapter, not a model: merge it" in load_error(folder)

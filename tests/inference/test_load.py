"""`load`: its options apply to every kind of model, or are an error."""

import copy
import pickle

import numpy as np
import pytest
import torch

import polyseme
from polyseme.errors import ConfigError, ModelError
from polyseme.families import FAMILIES
from polyseme.inference.feature_extraction import FeatureEncoder
from polyseme.ngram.arpa import read_arpa
from polyseme.ngram.model import NgramFolder
from polyseme.weights.elmo_format import write_elmo
from polyseme.word_vectors.files import write_vectors
from tests.support.small_models import save_small_model

WORDS = ["cat", "dog", "the"]
UNIGRAMS = "\\data\\\nngram 1=5\n\n\\1-grams:\n-99\t<s>\n-1\t</s>\n-1\t<unk>\n-0.5\tthe\n-0.5\tcat\n\n\\end\\\n"


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    """A folder or file of each kind that a device could apply to."""
    root = tmp_path_factory.mktemp("folders")
    folders = {name: save_small_model(root / name, name) for name in ("bert", "word2vec")}
    write_vectors(root / "vectors.txt", WORDS, np.eye(3, 4))
    return folders | {"file": root / "vectors.txt"}


@pytest.mark.parametrize("device", ["gpu", "meta", "cuda:99", "", 2.5, ["cpu"]])
@pytest.mark.parametrize("kind", ["bert", "word2vec", "file"])
def test_a_device_that_does_not_exist(folders, kind, device):
    with pytest.raises(ConfigError, match=r"`device` is .*, which cannot be used on this machine; valid: cpu"):
        polyseme.load(folders[kind], device=device)


@pytest.mark.parametrize("kind", ["bert", "word2vec", "file"])
def test_a_device_is_used(folders, kind, monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)  # the default would be a GPU that is not there
    for device in ("cpu", torch.device("cpu")):
        assert polyseme.load(folders[kind], device=device).embed("the cat").shape


def test_loading_changes_no_setting_of_torch(folders):
    is_deterministic = torch.are_deterministic_algorithms_enabled()
    torch.use_deterministic_algorithms(False)
    try:
        FeatureEncoder.load(folders["bert"])
        assert not torch.are_deterministic_algorithms_enabled()
    finally:
        torch.use_deterministic_algorithms(is_deterministic)


def test_an_ngram_model_has_no_device(tmp_path):
    (tmp_path / "model.arpa").write_text(UNIGRAMS)
    NgramFolder(tmp_path / "ngrams", *read_arpa(tmp_path / "model.arpa")).save(tmp_path / "ngrams")
    assert polyseme.load(tmp_path / "ngrams", device="cpu").score("the cat").num_tokens == 2
    with pytest.raises(ConfigError, match="order 1, which runs on the CPU: leave the device out"):
        polyseme.load(tmp_path / "ngrams", device="cuda")


def test_large_weights_of_elmo_are_hashed_on_request(tmp_path, monkeypatch):
    pytest.importorskip("h5py")
    config = FAMILIES["elmo"].model_config(vocab_size=1, dim=4, ffn_dim=6, num_layers=1, with_heads=False)
    write_elmo(tmp_path / "elmo", config.build(seed=0))
    write_elmo(tmp_path / "other", config.build(seed=1))
    (tmp_path / "other/weights.hdf5").replace(tmp_path / "elmo/weights.hdf5")
    monkeypatch.setattr("polyseme.io.hashes.MAX_HASHED_WEIGHT_BYTES", 1000)
    assert polyseme.load(tmp_path / "elmo").embed("the cat").shape == (4,)
    with pytest.raises(ModelError, match=r"weights\.hdf5 was changed"):
        polyseme.load(tmp_path / "elmo", verify=True)


@pytest.mark.parametrize("name", ["model.safetensors", "config.json", "tokenizer.json", "pytorch_model.bin"])
def test_a_file_of_a_model_is_not_the_model(folders, name):
    path = folders["bert"] / name
    path.touch()
    with pytest.raises(ModelError, match=rf"{path} is a file, .*: pass the folder, {folders['bert']}$"):
        polyseme.load(path)
    if name.endswith(".bin"):
        path.unlink()


@pytest.mark.parametrize("family", ["bert", "gpt2", "fasttext"])
def test_a_used_model_can_be_copied_and_sent_to_another_process(tiny_folders, family):
    model = polyseme.load(tiny_folders[family])
    vectors = model.embed(["the cat sat", "a dog"])
    for other in (copy.deepcopy(model), pickle.loads(pickle.dumps(model))):
        assert np.array_equal(other.embed(["the cat sat", "a dog"]), vectors)

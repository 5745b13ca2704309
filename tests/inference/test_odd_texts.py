"""Texts that no file holds, such as half a surrogate pair from JSON, and lists without a text."""

import numpy as np
import pytest

import polyseme
from polyseme.errors import ConfigError
from polyseme.families import FAMILIES
from polyseme.ngram.arpa import read_arpa
from polyseme.ngram.model import NgramFolder
from polyseme.weights.elmo_format import write_elmo
from tests.support.small_models import save_small_model

BROKEN, MENDED = "the \ud800cat", "the \ufffdcat"
UNIGRAMS = "\\data\\\nngram 1=5\n\n\\1-grams:\n-99\t<s>\n-1\t</s>\n-1\t<unk>\n-0.5\tthe\n-0.7\tcat\n\n\\end\\\n"


@pytest.fixture(scope="module")
def ngrams(tmp_path_factory):
    folder = tmp_path_factory.mktemp("ngrams")
    (folder / "model.arpa").write_text(UNIGRAMS)
    NgramFolder(folder / "model", *read_arpa(folder / "model.arpa")).save(folder / "model")
    return polyseme.load(folder / "model")


@pytest.mark.parametrize("family", ["bert", "gpt2", "t5", "xlnet", "elmo", "word2vec", "fasttext"])
def test_half_a_surrogate_pair_is_embedded_as_a_replacement_character(family, tiny_folders):
    model = polyseme.load(tiny_folders[family], device="cpu")
    for granularity in ("text", "word", "token"):
        broken, mended = (model.embed(text, granularity=granularity) for text in (BROKEN, MENDED))
        np.testing.assert_array_equal(broken, mended)


def test_half_a_surrogate_pair_in_an_ngram_model(ngrams):
    assert ngrams.score(BROKEN) == ngrams.score(MENDED)
    assert ngrams.encode(BROKEN) == ngrams.encode(MENDED)
    assert ngrams.generate(BROKEN, max_new_tokens=2) == ngrams.generate(MENDED, max_new_tokens=2)


def test_half_a_surrogate_pair_in_a_word(tiny_folders):
    vectors = polyseme.load(tiny_folders["fasttext"], device="cpu")
    broken, mended = (word.split()[1] for word in (BROKEN, MENDED))
    np.testing.assert_array_equal(vectors.vector(broken), vectors.vector(mended))
    assert vectors.neighbors(broken, 3) == vectors.neighbors(mended, 3)


@pytest.mark.parametrize("layers", ["last", "all", "concat_last_4", "sum_last_4", 0])
@pytest.mark.parametrize("family", ["bert", "gpt2", "elmo"])
def test_no_texts_have_no_vectors_of_the_usual_shape(family, layers, tmp_path):
    model = polyseme.load(save_small_model(tmp_path / "model", family, num_layers=4), device="cpu")
    assert model.embed([], layers=layers).shape == (0, *model.embed("the cat", layers=layers).shape)
    assert model.embed([], layers=layers, granularity="word") == []
    with pytest.raises(ConfigError, match="weights that a task learns"):
        model.embed([], layers="scalar_mix")


@pytest.mark.parametrize("layers", ["last", "all", 0])
def test_no_texts_in_published_elmo(layers, tmp_path):
    pytest.importorskip("h5py")
    config = FAMILIES["elmo"].model_config(vocab_size=1, dim=4, ffn_dim=6, num_layers=1, with_heads=False)
    write_elmo(tmp_path / "elmo", config.build(seed=0))
    model = polyseme.load(tmp_path / "elmo")
    assert model.embed([], layers=layers).shape == (0, *model.embed("the cat", layers=layers).shape)
    assert model.embed([], layers=layers, granularity="word") == []

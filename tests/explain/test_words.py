"""Words in context: occurrences, vectors of every family, clusters, and the command with its page."""

import json
import re
from collections import Counter

import numpy as np
import pytest

import polyseme
from polyseme.errors import ConfigError, DataError, UnsupportedError
from polyseme.explain import explain_word
from polyseme.explain.words import clusters, occurrences
from polyseme.explain.words.occurrences import bundled_sentences, find_occurrences
from polyseme.explain.words.vectors import _SpanReader, embed_spans
from polyseme.inference.word_vectors import WordVectors

TEXTS = ["the cat sat on the mat", "a dog saw the cat", "The Cat and the bear ran to the catfish."]
STATIC = {"word2vec", "glove", "fasttext"}


def test_occurrences_are_whole_words():
    spans = [(each.text, each.start, each.end) for each in find_occurrences("cat", TEXTS)[0]]
    assert spans == [(TEXTS[0], 4, 7), (TEXTS[1], 14, 17), (TEXTS[2], 4, 7)]
    assert len(find_occurrences("cat", TEXTS, ignore_case=False)[0]) == 2
    assert [each.end for each in find_occurrences("the  bear", ["see the bear", "the\nbear"])[0]] == [12, 8]


def test_context_is_cut_between_words():
    occurrence = occurrences.Occurrence("one two three cat four five six", 14, 17)
    assert occurrence.keyword_in_context(8) == ("…three ", "cat", " four…")
    assert occurrence.keyword_in_context(20) == ("one two three ", "cat", " four five six")
    assert occurrence.context_words(2) == ["two", "three", "four", "five"]


def test_at_most_2000_occurrences_are_used(monkeypatch, caplog):
    monkeypatch.setattr(occurrences, "MAX_OCCURRENCES", 2)
    monkeypatch.setattr(occurrences.logger.parent, "propagate", True)
    used, num_total = find_occurrences("cat", TEXTS)
    assert (len(used), num_total) == (2, 3) and "occurs 3 times: the first 2 are used" in caplog.text


@pytest.mark.parametrize(
    "word,message",
    [
        ("cart", "'cart' does not occur in 3 texts; did you mean 'cat'"),
        ("xyz", "frequent words are the, cat"),
        ("mat", "occurs once in 3 texts"),
        (" ", "the word is empty"),
    ],
)
def test_a_word_that_does_not_occur_twice(word, message):
    with pytest.raises(DataError, match=message):
        find_occurrences(word, ["the cat", "the cat sat", "the mat"])


def test_every_family_has_vectors_of_words(tiny_folders):
    """In every layer but the embeddings, the context changes the vector of a word, unless the model is a table."""
    spans = [[(4, 7)], [(14, 17)]]
    for family, folder in tiny_folders.items():
        model = polyseme.load(folder)
        vectors = embed_spans(model, TEXTS[:2], spans)
        assert len(vectors.layers) == len(vectors.vectors) and vectors.is_static == (family in STATIC), family
        for layer, rows in zip(vectors.layers, vectors.vectors):
            assert rows.shape[0] == 2 and np.isfinite(rows).all(), family
            is_equal = np.allclose(rows[0], rows[1], atol=1e-6)
            assert is_equal == (family in STATIC) or layer == 0, (family, layer)


def test_the_vector_of_a_word_is_the_mean_of_its_pieces(tiny_folders):
    model = polyseme.load(tiny_folders["bert"])
    text = "the flightless bird"
    pieces = model.tokenizer.encode_with_offsets(text)[1]
    inside = [1 + i for i, (start, end) in enumerate(pieces) if start >= 4 and end <= 14]  # after [CLS]
    expected = model.embed(text, layers="all", granularity="token")[inside].mean(0)
    vectors = embed_spans(model, [text], [[(4, 14)]])
    assert len(inside) > 1 and np.allclose(np.stack(vectors.vectors)[:, 0], expected, atol=1e-6)


def test_flair_reads_at_the_ends_of_a_word(tiny_folders):
    """As the features of a task, which are tested by themselves."""
    from polyseme.inference.feature_extraction import FeatureEncoder, extract_features

    encoder = FeatureEncoder.load(tiny_folders["flair"])
    last = encoder.num_layers - 1
    expected = extract_features(encoder, [("the", "cat", "sat")], str(last), None)
    vectors = embed_spans(polyseme.load(tiny_folders["flair"]), ["the cat sat"], [[(4, 7)]])
    assert vectors.layers == list(range(1, last + 1))
    assert np.allclose(vectors.vectors[-1][0], expected[1, 0], atol=1e-6)


def test_a_long_text_is_read_around_each_word(tiny_folders):
    reader = _SpanReader(polyseme.load(tiny_folders["bert"]))
    text = " ".join(f"the dog ran {'cat' if i % 20 == 7 else 'fish'}" for i in range(80))
    spans = [match.span() for match in re.finditer("cat", text)]
    windows = list(reader._windows(text, spans))
    assert [window[start:end] for window, row in windows for start, end in row] == ["cat"] * 4
    room = reader.model.max_len - 2
    assert all(len(reader.model.tokenizer.encode(window)) <= room for window, _ in windows)
    assert len(list(reader.read([text], [spans]))) == 4


def test_two_clouds_are_two_clusters_and_one_is_one():
    rng = np.random.default_rng(0)
    cloud = rng.normal(size=(40, 60))
    shifted = cloud + 20 * (np.arange(40) % 2 == 0)[:, None] * np.eye(60)[0]
    labels = clusters.choose_clusters(clusters.principal_components(shifted)[0]).labels
    assert clusters.agreement(labels, ["ab"[i % 2] for i in range(40)]) == 1
    assert clusters.choose_clusters(clusters.principal_components(cloud)[0]).num_clusters == 1
    scores, shares = clusters.principal_components(np.ones((5, 3)))
    assert scores.shape == (5, 0) and not shares.size and clusters.choose_clusters(scores).num_clusters == 1


def test_principal_components_match_the_covariance():
    rows = np.random.default_rng(0).normal(size=(12, 5)) * [5, 3, 2, 1, 0.5]
    scores, shares = clusters.principal_components(rows)
    variances = np.sort(np.linalg.eigvalsh(np.cov(rows.T)))[::-1]
    assert np.allclose(scores.var(0, ddof=1), variances) and np.allclose(shares, variances / variances.sum())
    assert (np.take_along_axis(scores, np.abs(scores).argmax(0)[None], 0) > 0).all()
    assert np.allclose(clusters.principal_components(rows, -scores)[0], -scores)


def test_similarities_match_a_loop():
    rows = np.random.default_rng(0).normal(size=(7, 4))

    def cosine(i, j):
        return rows[i] @ rows[j] / np.linalg.norm(rows[i]) / np.linalg.norm(rows[j])

    pairs = [cosine(i, j) for i in range(7) for j in range(7) if i != j]
    assert np.isclose(clusters.mean_similarity(rows), np.mean(pairs))
    nearest, cosines = clusters.nearest_neighbors(rows, 3)
    for i in range(7):
        expected = sorted((j for j in range(7) if j != i), key=lambda j: -cosine(i, j))[:3]
        assert nearest[i].tolist() == expected and np.allclose(cosines[i], [cosine(i, j) for j in expected])


def test_distinctive_words():
    contexts = [["deep", "river"], ["the", "river"], ["money", "the"], ["money", "loan"]]
    assert clusters.distinctive_words(contexts, np.array([0, 0, 1, 1]), 2, 1) == [["river"], ["money"]]
    assert clusters.distinctive_words(contexts, np.zeros(4, int), 1) == [[]]


def test_bundled_sentences_are_clustered_by_sense(run_cli):
    """The first command of a visitor: no data, and the model that comes with the package."""
    texts, senses = bundled_sentences()
    assert len(set(texts)) == len(texts) and min(Counter(senses).values()) >= 8
    record = json.loads(run_cli("explain", "mini", "--word", "stick", "--json"))
    (model,) = record["models"]
    layers = model["layers"]
    assert layers[0]["self_similarity"] == pytest.approx(1) and layers[0]["adjusted_rand_index"] == 0
    shown = layers[model["first_layer_shown"]]
    assert (shown["layer"], shown["num_clusters"], shown["adjusted_rand_index"]) == (8, 2, 1)
    assert shown["neighbor_agreement"] == 1 and sorted(c["size"] for c in shown["clusters"]) == [10, 10]


@pytest.fixture
def data(tmp_path):
    rows = [(f"the cat {what} the {i} fish", sense) for i, (what, sense) in enumerate([("saw", "a"), ("ate", "b")] * 3)]
    path = tmp_path / "senses.tsv"
    path.write_text("text\tmeaning\n" + "".join(f"{text}\t{sense}\n" for text, sense in rows))
    return path


def test_page_of_own_data_with_senses(run_cli, tiny_folders, tmp_path, data):
    out = tmp_path / "cat.html"
    printed = run_cli(
        *("explain", tiny_folders["bert"], tiny_folders["word2vec"], "--word", "Cat"),
        *("--data", f"{data}::label=meaning", "--layer", "0", "--out", out),
    )
    assert "6 occurrences of 'Cat'" in printed and "all occurrences have the same vector" in printed
    assert printed.count(", embeddings: ") == 2  # --layer 0
    page = out.read_text("utf-8")
    assert "one vector per word, the reference" in page and not re.search(r"(src|href)=.?https?:", page)
    content = json.loads(re.search(r'id="words-data">(.*?)</script>', page)[1])
    assert content["senses"] == ["a", "b"] and content["sense"] == [0, 1] * 3
    record = json.loads(out.with_suffix(".json").read_text("utf-8"))
    assert [model["is_static"] for model in record["models"]] == [False, True]
    names = {path.name for path in tmp_path.glob("cat-*.svg")}
    assert names == {f"cat-{name}.svg" for name in ("points-1", "points-2", "layers-1", "self-similarity", "senses")}


def test_texts_cannot_escape_into_the_page():
    model = WordVectors(["cat", "b"], np.eye(2, dtype=np.float32))
    page = explain_word([model], "cat", ["</script><b> cat", "<b> cat <i>"], senses=["<u>", ""]).page
    assert "</script><b>" not in page and "<u>" not in page and "<i>" not in page


@pytest.mark.parametrize(
    "arguments,message",
    [
        (("--data", "{}::label=sense"), "there is no column 'sense'.*meaning"),
        (("--data", "{}", "--layer", "9"), "`?-*layer`? is 9, and .* has vectors of words in the layers 0 to 3"),
        (("--data", "{}", "--text", "a"), "--text has no effect with --word"),
        ((), "are about bank, spring, stick, not 'cat': pass texts with it as --data"),
    ],
)
def test_bad_input_is_one_line(rejects, tiny_folders, data, arguments, message):
    arguments = [each.format(data) for each in arguments]
    rejects("explain", tiny_folders["bert"], "--word", "cat", *arguments, match=message)


def test_bad_calls():
    model = WordVectors(["cat", "b"], np.eye(2, dtype=np.float32))
    with pytest.raises(ConfigError, match="5 models, expected 1 to 4"):
        explain_word([model] * 5, "cat", TEXTS)
    with pytest.raises(DataError, match="1 senses for 3 texts"):
        explain_word([model], "cat", TEXTS, senses=["a"])
    with pytest.raises(DataError, match="'dog' is not in the vocabulary"):
        explain_word([model], "dog", ["a dog", "the dog"])


def test_a_model_without_vectors_is_told_what_it_supports(monkeypatch):
    monkeypatch.setattr(WordVectors, "capabilities", ("encode",))
    model = WordVectors(["cat", "b"], np.eye(2, dtype=np.float32))
    with pytest.raises(UnsupportedError, match="explain cannot show words in context; it can show no figure"):
        explain_word([model], "cat", TEXTS)

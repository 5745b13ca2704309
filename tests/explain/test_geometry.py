"""The geometry of word vectors by layer, against loops over the formulas."""

import json
from itertools import combinations, permutations

import numpy as np
import pytest

from polyseme.explain.geometry import LayerGeometry, WordSample, measure_layers, sample_words
from polyseme.explain.words.vectors import LayerVectors


def cosine(a, b):
    return a @ b / np.linalg.norm(a) / np.linalg.norm(b)


def test_measures_match_loops():
    rng = np.random.default_rng(0)
    low, high = rng.normal(size=(2, 12, 6)) + 0.5
    contexts, sentences = [np.array([0, 4, 8]), np.array([1, 5, 9, 11])], [np.arange(5), np.arange(5, 12)]
    random, random_contexts = np.array([2, 3, 7, 10]), [np.array([0, 1, 2]), np.array([3, 6, 8, 9])]
    sample = WordSample(["", ""], [[(0, 1)] * 5, [(0, 1)] * 7], contexts, sentences, random, random_contexts)
    first, second = measure_layers(sample, LayerVectors([0, 1], [low, high]))
    assert first.input_distance is None and first.input_cosine is None

    def mean_cosine(rows):
        return np.mean([cosine(high[i], high[j]) for i, j in permutations(rows, 2)])

    def explained(rows):
        values = np.linalg.svd(high[rows], compute_uv=False) ** 2
        return values[0] / values.sum()

    means = [high[rows].mean(0) for rows in sentences]
    steps = [cosine(a, b) for a, b in zip(low, high)]
    expected = LayerGeometry(
        1,
        np.mean([cosine(high[i], high[j]) for i, j in combinations(random, 2)]),
        np.mean([mean_cosine(rows) for rows in contexts]),
        np.mean([np.mean([cosine(mean, high[i]) for i in rows]) for mean, rows in zip(means, sentences)]),
        np.mean([explained(rows) for rows in contexts]),
        np.mean([explained(rows) for rows in random_contexts]),
        np.mean([np.linalg.norm(a - b) for a, b in zip(low, high)]),
        np.mean(steps),
        np.mean(np.degrees(np.arccos(steps))),
    )
    assert second.to_json() == pytest.approx(expected.to_json())
    assert second.adjusted_self_similarity == pytest.approx(expected.self_similarity - expected.anisotropy)


def test_words_are_sampled_by_spelling_and_text():
    texts = [f"the cat saw cat {i}" for i in range(5)] + ["the dog the dog the dog the dog the dog", "!"]
    sample = sample_words(texts)
    forms = [text[slice(*span)] for text, spans in zip(sample.texts, sample.spans) for span in spans]
    assert {forms[rows[0]]: len(rows) for rows in sample.contexts} == {"the": 10, "cat": 10, "saw": 5}
    assert all(len({forms[i] for i in rows}) == 1 for rows in sample.contexts)
    assert [len(rows) for rows in sample.sentences] == [5] * 5 + [10] and len(set(sample.random)) == 35
    assert np.array_equal(sample.random, sample_words(texts).random)
    known = sample_words(texts, lambda word: word == "the")
    assert known.num_words == 10 and known.sentences[0].tolist() == [5, 6, 7, 8, 9]


def test_command(run_cli, rejects, tiny_folders, tmp_path):
    data = tmp_path / "texts.txt"
    data.write_text("".join(f"the {a} sees the {b} .\n" for a in ("cat", "dog", "bear") for b in ("cat", "fish")))
    folders = [tiny_folders[name] for name in ("albert", "ulmfit", "word2vec")]
    record = json.loads(run_cli("explain", *folders, "--geometry", "--data", data, "--json"))
    albert, ulmfit, static = (model["layers"] for model in record["models"])
    assert record["num_words"] == 30 and record["num_compared_words"] == 2
    assert all(layer["input_cosine"] is not None for layer in albert[1:])
    assert any(layer["input_cosine"] is None for layer in ulmfit[1:])  # its layers differ in size
    assert static[0]["self_similarity"] == pytest.approx(1) and len(static) == 1
    printed = run_cli("explain", folders[0], "--geometry", "--data", data, "--out", tmp_path / "page.html")
    assert "30 words of 6 texts" in printed and (tmp_path / "page-steps.svg").exists()
    data.write_text("the cat\n\n")
    rejects("explain", folders[0], "--geometry", "--data", data, match="no word occurs in 5 of 1 texts")

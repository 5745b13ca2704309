"""Subword embeddings: fastText's n-grams and hash, the mean of rows, vectors of unknown words."""

from __future__ import annotations

import pytest
import torch

from polyseme.errors import PolysemeError
from polyseme.families import FAMILIES
from polyseme.nn.layers.subwords import SubwordEmbeddingsConfig, char_ngrams, fnv1a, ngram_buckets

WORDS = ["where", "a", "naïve", "東京", "it", "Ω", "x" * 30]


def test_ngrams_of_the_example_in_the_paper() -> None:
    assert char_ngrams("where", 3, 3) == ["<wh", "whe", "her", "ere", "re>"]  # §3.2
    assert char_ngrams("a", 3, 6) == ["<a>"] and char_ngrams("", 3, 6) == []
    assert char_ngrams("ab", 1, 2) == ["<a", "a", "ab", "b", "b>"]


@pytest.mark.parametrize("sizes", [(3, 6), (2, 4), (1, 3)])
def test_ngrams_and_hashes_match_gensim(sizes: tuple[int, int]) -> None:
    fasttext_inner = pytest.importorskip("gensim.models.fasttext_inner")
    for word in WORDS:
        expected = fasttext_inner.compute_ngrams_bytes(word, *sizes)
        assert sorted(expected) == sorted(gram.encode() for gram in char_ngrams(word, *sizes))
        assert sorted(map(fasttext_inner.ft_hash_bytes, expected)) == sorted(map(fnv1a, char_ngrams(word, *sizes)))


def test_word_vector_is_the_mean_of_its_rows() -> None:
    config = FAMILIES["fasttext"].model_config(with_heads=False, dim=4, vocab_size=9, num_buckets=30)
    model = config.build(seed=0)
    model.set_vocabulary(["<unk>", *WORDS], (0,))
    embeddings = model.trunk.embeddings
    vectors = model.trunk.embeddings.look_up(torch.tensor([1, 0, 1, 3]))
    for vector, word_id in zip(vectors, (1, 0, 1, 3)):
        buckets = ngram_buckets(WORDS[word_id - 1], config.trunk.embeddings) if word_id else []
        rows = torch.cat([embeddings.tokens.weight[word_id : word_id + 1], embeddings.ngrams.weight[buckets]])
        torch.testing.assert_close(vector, rows.mean(0))
    known_word = embeddings.word_vector("where", 1)
    torch.testing.assert_close(known_word, vectors[0])
    unknown_word = embeddings.word_vector("wherever")
    assert unknown_word.abs().sum() > 0 and not torch.equal(unknown_word, known_word)
    assert not embeddings.word_vector("").any() and embeddings.token_embeddings is None


def test_min_n_above_max_n_is_rejected() -> None:
    with pytest.raises(PolysemeError, match="min_n is 6, larger than max_n"):
        SubwordEmbeddingsConfig(10, 4, 8, 10, min_n=6, max_n=3)

"""n-grams and their hash are fastText's; a word is the mean of its rows; words that were never seen have a vector."""

from __future__ import annotations

import pytest
import torch

from polyseme.errors import PolysemeError
from polyseme.families import FAMILIES
from polyseme.nn.layers.subwords import SubwordEmbeddingsConfig, char_ngrams, fnv1a, ngram_buckets

WORDS = ["where", "a", "naïve", "東京", "it", "Ω", "x" * 30]


def test_ngrams_of_the_papers_example() -> None:
    assert char_ngrams("where", 3, 3) == ["<wh", "whe", "her", "ere", "re>"]  # §3.2
    assert char_ngrams("a", 3, 6) == ["<a>"] and char_ngrams("", 3, 6) == []
    assert char_ngrams("ab", 1, 2) == ["<a", "a", "ab", "b", "b>"]


@pytest.mark.parametrize("sizes", [(3, 6), (2, 4), (1, 3)])
def test_ngrams_and_hashes_are_gensims(sizes: tuple[int, int]) -> None:
    inner = pytest.importorskip("gensim.models.fasttext_inner")
    for word in WORDS:
        theirs = inner.compute_ngrams_bytes(word, *sizes)
        assert sorted(theirs) == sorted(gram.encode() for gram in char_ngrams(word, *sizes))
        assert sorted(map(inner.ft_hash_bytes, theirs)) == sorted(map(fnv1a, char_ngrams(word, *sizes)))


def test_a_vector_is_the_mean_of_its_rows() -> None:
    spec = FAMILIES["fasttext"].model_config(with_heads=False, dim=4, vocab_size=9, num_buckets=30)
    model = spec.build(seed=0)
    model.set_vocabulary(["<unk>", *WORDS], (0,))
    table = model.trunk.embeddings
    found = model.trunk.look_up(torch.tensor([1, 0, 1, 3]))
    for row, number in zip(found, (1, 0, 1, 3)):
        grams = ngram_buckets(WORDS[number - 1], spec.trunk.embeddings) if number else []
        rows = torch.cat([table.tokens.weight[number : number + 1], table.ngrams.weight[grams]])
        torch.testing.assert_close(row, rows.mean(0))
    seen = table.word_vector("where", 1)
    torch.testing.assert_close(seen, found[0])
    new = table.word_vector("wherever")
    assert new.abs().sum() > 0 and not torch.equal(new, seen)
    assert not table.word_vector("").any() and table.token_embeddings is None


def test_lengths_that_are_none() -> None:
    with pytest.raises(PolysemeError, match="n-grams of 6 to 3 characters are none"):
        SubwordEmbeddingsConfig(10, 4, 8, 10, min_n=6, max_n=3)

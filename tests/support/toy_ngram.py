"""Small n-gram models of random sentences."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from polyseme.ngram.count import count_ngrams
from polyseme.ngram.estimate import estimate_kneser_ney
from polyseme.ngram.trie import NgramTrie, NgramVocab

SIZE, BOS, EOS = 40, 2, 3
IS_PREDICTED = np.ones(SIZE, bool)
IS_PREDICTED[[0, BOS]] = False
VOCAB = NgramVocab(SIZE, BOS, EOS, IS_PREDICTED)


def random_sentences(seed: int, num_sentences: int = 300) -> list[list[int]]:
    """Generate sentences with a skewed distribution of words and likely successors; the last words never occur."""
    rng = np.random.default_rng(seed)
    successors = rng.integers(4, SIZE - 4, (SIZE, 3))
    sentences = []
    for _ in range(num_sentences):
        sentence = [int(4 + (SIZE - 8) * rng.random() ** 3)]
        while rng.random() < 0.88:
            is_random = rng.random() < 0.4
            sentence.append(
                int(4 + (SIZE - 8) * rng.random() ** 3) if is_random else int(rng.choice(successors[sentence[-1]]))
            )
        sentences.append(sentence)
    return sentences


def to_stream(sentences: list[list[int]], vocab: NgramVocab = VOCAB) -> np.ndarray:
    """Concatenate sentences, each enclosed in BOS and EOS."""
    return vocab.add_bos_eos(np.concatenate(sentences), np.array([len(s) for s in sentences]))


def estimate_toy(
    sentences: list[list[int]], order: int, work_dir: Path, vocab: NgramVocab = VOCAB, **options
) -> NgramTrie:
    """Estimate an n-gram model of the sentences."""
    work_dir.mkdir(exist_ok=True)
    return estimate_kneser_ney(
        count_ngrams([to_stream(sentences, vocab)], vocab, order, work_dir), vocab, work_dir, **options
    )[0]


def next_token_probs(ngrams: NgramTrie, histories: np.ndarray) -> np.ndarray:
    """Return probabilities of every id, float64 [rows, size], after histories [rows, length] padded with -1."""
    return 10.0 ** ngrams.next_log10_probs(ngrams.lookup_state(histories))

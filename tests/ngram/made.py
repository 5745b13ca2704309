"""Small models of n-grams, from text that is made."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from polyseme.ngram.count import count_ngrams
from polyseme.ngram.estimate import estimate_kneser_ney
from polyseme.ngram.trie import NgramTrie, NgramVocab

SIZE, START, END = 40, 2, 3
CAN = np.ones(SIZE, bool)
CAN[[0, START]] = False
WORDS = NgramVocab(SIZE, START, END, CAN)


def made_sentences(seed: int, number: int = 300) -> list[list[int]]:
    """Text of a kind: a few words often, each with favourites behind it; the last words of the vocabulary never."""
    rng = np.random.default_rng(seed)
    favourites = rng.integers(4, SIZE - 4, (SIZE, 3))
    found = []
    for _ in range(number):
        sentence = [int(4 + (SIZE - 8) * rng.random() ** 3)]
        while rng.random() < 0.88:
            far = rng.random() < 0.4
            sentence.append(
                int(4 + (SIZE - 8) * rng.random() ** 3) if far else int(rng.choice(favourites[sentence[-1]]))
            )
        found.append(sentence)
    return found


def stream_of(sentences: list[list[int]], words: NgramVocab = WORDS) -> np.ndarray:
    return words.add_bos_eos(np.concatenate(sentences), np.array([len(s) for s in sentences]))


def learnt(sentences: list[list[int]], order: int, work: Path, words: NgramVocab = WORDS, **more) -> NgramTrie:
    work.mkdir(exist_ok=True)
    return estimate_kneser_ney(count_ngrams([stream_of(sentences, words)], words, order, work), words, work, **more)[0]

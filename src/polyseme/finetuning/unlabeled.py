"""Unlabeled text as sentences of words, and its batches."""

import hashlib
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import torch

from polyseme.corpus.clean.sentences import split_sentences
from polyseme.corpus.sources.sources import open_sources
from polyseme.errors import DataError
from polyseme.nn.layers.frozen_features import FeatureStore
from polyseme.nn.packing import Inputs, PackedLayout, token_budget_batches
from polyseme.rng import derive_sample_keys, feistel_permutation

MAX_SENTENCE_WORDS = 100  # a longer sentence is cut
ORDER_KEY = np.array([0x76696577])  # separates the order of unlabeled text from other random draws
# as in treebanks: a clitic (do n't, Anna 's), a run of letters and digits, any other character by itself
WORD_PATTERN = re.compile(r"\w+?(?=n['’]t\b)|n['’]t\b|['’](?:s|re|ve|ll|d|m)\b|\w+|[^\w\s]", re.IGNORECASE)


@dataclass(frozen=True, eq=False)
class UnlabeledText:
    """Sentences as indices into their distinct `words`."""

    words: list[str]
    word_ids: np.ndarray  # int32 [T], the words of all sentences
    offsets: np.ndarray  # int64 [sentences + 1], the first word of each

    @classmethod
    def read(cls, source: Any) -> "UnlabeledText":
        """Read files and folders, whose names `polyseme.prepare` takes, or take sentences that are lists of words."""
        sources = [source] if isinstance(source, str | Path) else list(source)
        if all(isinstance(each, str | Path) for each in sources):
            documents = (document.text for document in open_sources(sources)) if sources else ()
            sentences: Iterable[Any] = (WORD_PATTERN.findall(s) for text in documents for s in split_sentences(text))
            name = ", ".join(map(str, sources)) or "the unlabeled text"
        else:
            sentences, name = map(_check_sentence, sources), "the unlabeled text"
        text = cls.from_sentences(sentences)
        if not len(text):
            raise DataError(f"{name} has no sentence: cross-view training needs unlabeled text")
        return text

    @classmethod
    def from_sentences(cls, sentences: Iterable[Sequence[str]]) -> "UnlabeledText":
        """Number the words of sentences; empty sentences are skipped."""
        ids: dict[str, int] = {}
        numbers: list[np.ndarray] = []
        for sentence in sentences:
            if words := sentence[:MAX_SENTENCE_WORDS]:
                numbers.append(np.array([ids.setdefault(word, len(ids)) for word in words], dtype=np.int32))
        offsets = np.cumsum([0, *map(len, numbers)])
        return cls(list(ids), np.concatenate(numbers) if numbers else np.zeros(0, np.int32), offsets)

    def __len__(self) -> int:
        return len(self.offsets) - 1

    @cached_property
    def hash(self) -> str:
        """A short hash of all sentences."""
        digest = hashlib.sha256("\n".join(self.words).encode("utf-8", "surrogatepass"))
        digest.update(self.word_ids.tobytes() + self.offsets.tobytes())
        return digest.hexdigest()[:16]

    def sample(self, batch_size: int, seed: int, step: int) -> np.ndarray:
        """Return the sentences of a step; every epoch is a permutation of all, which (seed, epoch) determines."""
        epoch, position = divmod(step, -(-len(self) // batch_size))
        index = np.arange(position * batch_size, min((position + 1) * batch_size, len(self)))
        return feistel_permutation(index, len(self), derive_sample_keys(seed, epoch, ORDER_KEY))

    def inputs(self, sentences: np.ndarray, store: FeatureStore, max_tokens: int) -> Iterator[Inputs]:
        """Yield sentences in packed batches of at most `max_tokens` words, shortest first; `store` has all words."""
        lengths = np.diff(self.offsets)[sentences]
        for part in token_budget_batches(lengths, max_tokens):
            sizes, starts = lengths[part[::-1]], self.offsets[sentences[part[::-1]]]
            tokens = np.arange(sizes.sum()) + np.repeat(starts - np.cumsum(sizes) + sizes, sizes)
            yield Inputs(torch.from_numpy(tokens), PackedLayout.from_lengths(sizes), features=store)


def _check_sentence(words: Any) -> Sequence[str]:
    if not isinstance(words, list | tuple) or not all(isinstance(word, str) for word in words):
        raise DataError(f"the unlabeled text has {str(words)[:40]!r}: pass files, or sentences as lists of words")
    return words

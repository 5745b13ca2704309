"""Small corpora in memory, and views of the batches that objectives build from them."""

import numpy as np

from polyseme.objectives.causal_lm import CausalLM
from polyseme.objectives.packing import SpecialIds

PAD, UNK, CLS, SEP, MASK = range(5)
SIZE = 2000
BERT = SpecialIds(SIZE, frozenset(range(5)), cls=CLS, sep=SEP, mask=MASK)
GPT2 = SpecialIds(SIZE, frozenset([0]), bos=0, eos=0)


class MemoryCorpus:
    """A corpus in memory, with the interface of the store."""

    def __init__(self, documents, tokens=None, words=None, seed=0):
        """`documents` are lists of sentence lengths."""
        rng = np.random.default_rng(seed)
        counts = [len(d) for d in documents]
        self.sentence_offsets = np.concatenate(([0], np.cumsum([n for d in documents for n in d]))).astype(np.int64)
        self.document_offsets = np.concatenate(([0], np.cumsum(counts))).astype(np.int64)
        self.num_tokens = int(self.sentence_offsets[-1])
        self.tokens = rng.integers(5, SIZE, self.num_tokens) if tokens is None else tokens
        self.words = rng.random(self.num_tokens) < 0.6 if words is None else words
        self.words[self.sentence_offsets[:-1]] = True
        self.document_of = np.repeat(np.arange(len(documents)), [sum(d) for d in documents])

    def _at(self, starts, lengths):
        return np.concatenate([np.arange(s, s + n) for s, n in zip(starts, lengths)])

    def gather_tokens(self, starts, lengths):
        return self.tokens[self._at(starts, lengths)]

    def gather_word_starts(self, starts, lengths):
        return self.words[self._at(starts, lengths)]


def random_corpus(documents=150, sentences=40, longest=45, seed=0):
    """Return a corpus of sentences of random lengths."""
    rng = np.random.default_rng(seed)
    counts = rng.integers(2, sentences, documents)
    return MemoryCorpus([rng.integers(3, longest, count).tolist() for count in counts], seed=seed)


def numbered_corpus(documents):
    """Return a corpus whose tokens are their own offsets, so that a batch shows where it was read, and its ids."""
    corpus = MemoryCorpus(documents)
    corpus.tokens = np.arange(corpus.num_tokens) + 5
    return corpus, SpecialIds(corpus.num_tokens + 5, BERT.all_ids, CLS, SEP, MASK)


def unmasked_tokens(batch):
    """Return the tokens of a batch before masking."""
    tokens, masked = batch.inputs.tokens.numpy().copy(), batch.targets["masked"]
    tokens[masked.rows[: masked.count]] = masked.labels[: masked.count]
    return tokens


def split_sequences(batch):
    """Return the unmasked tokens of each sequence."""
    return np.split(unmasked_tokens(batch), np.cumsum(batch.inputs.layout.lengths)[:-1])


def all_ids(bound):
    """Return the ids of all samples."""
    return np.arange(len(bound))


def bind(spec, corpus=None, max_len=64, seed=1):
    """Bind an objective to a corpus, by default a random one."""
    return spec.bind(corpus or random_corpus(), GPT2 if isinstance(spec, CausalLM) else BERT, max_len, seed)


def halves(batch):
    """Yield the offsets of A and B and the label of each pair of a numbered corpus."""
    for sequence, label in zip(split_sequences(batch), batch.targets["pair"].labels.tolist()):
        a, b = np.split(sequence[1:-1], np.flatnonzero(sequence[1:-1] == SEP))
        yield a - 5, b[1:] - 5, label


NUM_WORDS = 60
WORD_IDS = SpecialIds(NUM_WORDS, frozenset(range(4)))


def zipf_corpus(sentences: int = 400, seed: int = 0) -> MemoryCorpus:
    """Return a corpus of words with Zipf's distribution; id 1 is an unknown word."""
    rng = np.random.default_rng(seed)
    corpus = MemoryCorpus([rng.integers(5, 40, 8).tolist() for _ in range(sentences // 8)])
    chances = 1 / np.arange(1, NUM_WORDS - 3)
    corpus.tokens = rng.choice(np.arange(4, NUM_WORDS), corpus.num_tokens, p=chances / chances.sum())
    corpus.tokens[rng.random(corpus.num_tokens) < 0.05] = 1
    return corpus

"""Functions that workers run on a block of documents: hash its lines, clean and fingerprint it, tokenize it."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

import numpy as np
from tokenizers import Tokenizer as Backend

from polyseme.corpus.build.blocks import DocumentBlock
from polyseme.corpus.clean.clean import Cleaner, CleaningConfig, CleaningStats, hash_distinct_lines
from polyseme.corpus.clean.sentences import split_sentences
from polyseme.corpus.dedup.minhash import hash_texts, minhash_signatures
from polyseme.corpus.store import token_dtype
from polyseme.text.tokenizer import Tokenizer


@dataclass(frozen=True)
class WorkerConfig:
    """Settings shared by all blocks of a stage, sent to each worker once."""

    cleaning: CleaningConfig
    tokenizer: str = ""  # tokenizer.json
    boilerplate_hashes: bytes = b""  # sorted uint64 line hashes
    needs_signatures: bool = True  # compute MinHash signatures for near duplicates
    is_filtered: bool = False  # removed documents have been taken out of the blocks already

    @cached_property
    def key(self) -> str:
        """Hash of all settings."""
        parts = (str(self.cleaning), self.tokenizer, str(self.needs_signatures), str(self.is_filtered))
        return hashlib.sha256("\0".join(parts).encode() + self.boilerplate_hashes).hexdigest()

    def open(self) -> WorkerState:
        """Build the cleaner and load the tokenizer."""
        hashes = np.frombuffer(self.boilerplate_hashes, np.uint64) if self.boilerplate_hashes else None
        backend = Backend.from_str(self.tokenizer) if self.tokenizer else None
        return WorkerState(self, Cleaner(self.cleaning, hashes), None if backend is None else Tokenizer(backend))


class WorkerState(NamedTuple):
    """Objects that a worker builds once from a `WorkerConfig`."""

    config: WorkerConfig
    cleaner: Cleaner
    tokenizer: Tokenizer | None


class LineHashes(NamedTuple):
    """Hashes of the lines of a block's documents."""

    line_hashes: np.ndarray  # uint64: each distinct line of a document once
    num_lines: np.ndarray  # int64 [n]: distinct lines of each document
    exact_hashes: np.ndarray  # uint64 [n, 2]: hash of each document


class ScanResult(NamedTuple):
    """Fingerprints of a block's documents after cleaning."""

    passed_cleaning: np.ndarray  # bool [n]: not removed by cleaning
    exact_hashes: np.ndarray  # uint64 [n, 2]
    signatures: np.ndarray  # uint16 [n, SIGNATURE_SIZE], or [n, 0] without near-duplicate detection
    cleaning_stats: CleaningStats


class TokenizedBlock(NamedTuple):
    """A block as it is stored, without sentences and documents that have no token."""

    ids: np.ndarray
    word_starts: np.ndarray  # bool
    sentence_lengths: np.ndarray  # int32: tokens per sentence
    document_lengths: np.ndarray  # int32: sentences per document
    is_stored: np.ndarray  # bool, for each input document: has at least one token
    num_characters: int
    cleaning_stats: CleaningStats
    empty_locations: list[str]  # locations of documents without a token


def hash_block_lines(state: WorkerState, block: DocumentBlock) -> LineHashes:
    """Hash the lines of each document, after the cleaning steps that precede boilerplate removal."""
    texts = [state.cleaner.transform(text) for text in block.texts]
    text_hashes = [hash_distinct_lines(text) for text in texts]
    num_lines = np.fromiter(map(len, text_hashes), np.int64, len(text_hashes))
    return LineHashes(np.concatenate([np.zeros(0, np.uint64), *text_hashes]), num_lines, hash_texts(texts))


def scan_block(state: WorkerState, block: DocumentBlock) -> ScanResult:
    """Clean the documents and fingerprint those that are left."""
    stats = CleaningStats()
    cleaned_texts = [state.cleaner.clean(t, block.lang, p, stats) for t, p in zip(block.texts, block.locations)]
    passed_cleaning = np.array([text is not None for text in cleaned_texts], bool)
    texts = [text or "" for text in cleaned_texts]
    if state.config.needs_signatures:
        return ScanResult(passed_cleaning, *minhash_signatures(texts), stats)
    return ScanResult(passed_cleaning, hash_texts(texts), np.zeros((len(texts), 0), np.uint16), stats)


def tokenize_block(state: WorkerState, block: DocumentBlock) -> TokenizedBlock:
    """Clean the documents, split them into sentences and encode them."""
    assert state.tokenizer is not None
    stats = CleaningStats()
    sentences: list[str] = []
    num_sentences: list[int] = []
    characters: list[int] = []
    for text, location in zip(block.texts, block.locations):
        if state.config.is_filtered:
            cleaned_text: str | None = state.cleaner.transform(text)
        else:
            cleaned_text = state.cleaner.clean(text, block.lang, location, stats)
        text_sentences = [] if cleaned_text is None else split_sentences(cleaned_text, block.lang or "en")
        sentences += text_sentences
        num_sentences.append(len(text_sentences))
        characters.append(len(cleaned_text or ""))
    encoded = state.tokenizer.encode_corpus(sentences)
    is_nonempty = encoded.lengths > 0
    document_ids = np.repeat(np.arange(len(num_sentences)), num_sentences)[is_nonempty]
    sentence_counts = np.bincount(document_ids, minlength=len(num_sentences))
    return TokenizedBlock(
        encoded.ids.astype(token_dtype(state.tokenizer.vocab_size)),
        encoded.word_starts,
        encoded.lengths[is_nonempty].astype(np.int32),
        sentence_counts[sentence_counts > 0].astype(np.int32),
        sentence_counts > 0,
        int(np.array(characters, np.int64)[sentence_counts > 0].sum()),
        stats,
        [
            location
            for location, size, stored_sentences in zip(block.locations, characters, sentence_counts)
            if size and not stored_sentences
        ],
    )

"""Blocks of input documents, which the input alone determines, and the functions that workers run on them."""

import hashlib
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cached_property
from itertools import accumulate, pairwise
from typing import Any, NamedTuple

import numpy as np
from tokenizers import Tokenizer as Backend

from polyseme.corpus.clean.clean import Cleaner, CleaningConfig, CleaningStats, hash_distinct_lines
from polyseme.corpus.clean.sentences import split_sentences
from polyseme.corpus.dedup.minhash import hash_texts, minhash_signatures
from polyseme.corpus.sources.sources import ReadPosition, SkippedInput, SourceReader
from polyseme.corpus.store import token_dtype
from polyseme.text.tokenizer import Tokenizer

BLOCK_CHARS = 2_000_000  # enough to be worth sending to a worker, few enough to fit into memory
MAX_BLOCK_DOCUMENTS = 20_000  # limits for short documents
MAX_SHARD_DOCUMENTS = 200_000


@dataclass
class DocumentBlock:
    """Consecutive documents of one source and language, with the counts of what was skipped between them."""

    source_index: int
    lang: str
    first_document: int  # index of the first document in the whole input
    num_documents: int = 0  # also those that were removed from `texts`
    texts: list[str] = field(default_factory=list)
    locations: list[str] = field(default_factory=list)  # file and line or row of each document
    num_characters: int = 0
    skipped: SkippedInput = field(default_factory=SkippedInput)
    next_position: ReadPosition = field(default_factory=ReadPosition)  # start of the next block
    ends_shard: bool = False
    duplicate_characters: int = 0  # in documents removed from `texts`
    example_texts: dict[str, dict[str, str]] = field(default_factory=dict)  # excerpts of duplicates, by document

    @property
    def end_document(self) -> int:
        """Index after that of the last document."""
        return self.first_document + self.num_documents


def read_blocks(
    reader: SourceReader, start: ReadPosition, first_document: int, shard_characters: int
) -> Iterator[DocumentBlock]:
    """Yield the blocks from `start` on, where document `first_document` is next, and mark those that fill a shard."""
    num_characters = num_documents = 0
    for block in _split_blocks(reader, start, first_document):
        num_characters, num_documents = num_characters + block.num_characters, num_documents + block.num_documents
        block.ends_shard = num_characters >= shard_characters or num_documents >= MAX_SHARD_DOCUMENTS
        if block.ends_shard:
            num_characters = num_documents = 0
        yield block


def _split_blocks(reader: SourceReader, start: ReadPosition, first_document: int) -> Iterator[DocumentBlock]:
    keys = [(file.source_index, file.lang) for file in reader.files]
    runs = list(accumulate((a != b for a, b in pairwise(keys)), initial=0))  # consecutive files that share a block
    block: DocumentBlock | None = None
    for position, entry in reader.read(start):
        if block and runs[position.file_index] != runs[block.next_position.file_index]:
            yield block
            block = None
        if block is None:
            block = DocumentBlock(*keys[position.file_index], first_document)
        block.next_position = position
        if document := block.skipped.check(entry, reader.skip_bad):
            first_document += 1
            block.num_documents += 1
            block.texts.append(document.text)
            block.locations.append(f"{document.source} {document.location}".rstrip())
            block.num_characters += len(document.text)
            if block.num_characters >= BLOCK_CHARS or block.num_documents >= MAX_BLOCK_DOCUMENTS:
                yield block
                block = None
    if block:
        yield block


@dataclass(frozen=True)
class WorkerConfig:
    """Settings shared by all blocks of a stage, sent to each worker once."""

    cleaning: CleaningConfig
    tokenizer_json: str = ""
    boilerplate_hashes: bytes = b""  # sorted uint64 line hashes
    hash_key: bytes = b""  # of line hashes and signatures
    needs_signatures: bool = True  # compute MinHash signatures for near duplicates
    is_filtered: bool = False  # removed documents have been taken out of the blocks already

    @cached_property
    def key(self) -> str:
        """Hash of all settings."""
        parts = (str(self.cleaning), self.tokenizer_json, str(self.needs_signatures), str(self.is_filtered))
        return hashlib.sha256("\0".join(parts).encode() + self.hash_key + self.boilerplate_hashes).hexdigest()

    @cached_property
    def cleaner(self) -> Cleaner:
        """Cleaner with these settings."""
        return Cleaner(self.cleaning, np.frombuffer(self.boilerplate_hashes, np.uint64), self.hash_key)

    @cached_property
    def tokenizer(self) -> Tokenizer:
        """Tokenizer of the corpus."""
        return Tokenizer(Backend.from_str(self.tokenizer_json))


class LineHashes(NamedTuple):
    """Hashes of the lines of a block's documents."""

    line_hashes: np.ndarray  # uint64: each distinct line of a document once
    num_lines: np.ndarray  # int64 [n]: distinct lines of each document
    exact_hashes: np.ndarray  # uint64 [n, 2]: hash of each document


class Fingerprints(NamedTuple):
    """Fingerprints of a block's documents after cleaning."""

    passed_cleaning: np.ndarray  # bool [n]: not removed by cleaning
    exact_hashes: np.ndarray  # uint64 [n, 2]
    signatures: np.ndarray  # uint16 [n, SIGNATURE_SIZE], or [n, 0] without near-duplicate detection
    cleaning_stats: dict[str, Any]  # by step


class TokenizedBlock(NamedTuple):
    """A block as it is stored, without sentences and documents that have no token."""

    ids: np.ndarray
    word_starts: np.ndarray  # bool
    sentence_lengths: np.ndarray  # int32: tokens per sentence
    document_lengths: np.ndarray  # int32: sentences per document
    is_stored: np.ndarray  # bool, for each input document: has at least one token
    num_characters: int
    cleaning_stats: dict[str, Any]  # by step
    empty_locations: list[str]  # locations of documents without a token


def hash_lines(config: WorkerConfig, block: DocumentBlock) -> LineHashes:
    """Hash the lines of each document, after the cleaning steps that precede boilerplate removal."""
    texts = [config.cleaner.transform(text) for text in block.texts]
    text_hashes = [hash_distinct_lines(text, config.hash_key) for text in texts]
    num_lines = np.fromiter(map(len, text_hashes), np.int64, len(text_hashes))
    return LineHashes(np.concatenate([np.zeros(0, np.uint64), *text_hashes]), num_lines, hash_texts(texts))


def fingerprint(config: WorkerConfig, block: DocumentBlock) -> Fingerprints:
    """Clean the documents and fingerprint those that are left."""
    stats = CleaningStats()
    cleaned_texts = [config.cleaner.clean(t, block.lang, p, stats) for t, p in zip(block.texts, block.locations)]
    passed_cleaning = np.array([text is not None for text in cleaned_texts], bool)
    texts = [text or "" for text in cleaned_texts]
    if config.needs_signatures:
        return Fingerprints(passed_cleaning, *minhash_signatures(texts, config.hash_key), stats.by_step)
    return Fingerprints(passed_cleaning, hash_texts(texts), np.zeros((len(texts), 0), np.uint16), stats.by_step)


def tokenize(config: WorkerConfig, block: DocumentBlock) -> TokenizedBlock:
    """Clean the documents, split them into sentences and encode them."""
    cleaner, stats, sentences = config.cleaner, CleaningStats(), list[str]()
    num_sentences, num_characters = (np.zeros(len(block.texts), np.int64) for _ in range(2))
    for i, (text, location) in enumerate(zip(block.texts, block.locations)):
        new_text = cleaner.transform(text) if config.is_filtered else cleaner.clean(text, block.lang, location, stats)
        text_sentences = [] if new_text is None else split_sentences(new_text, block.lang or "en")
        sentences += text_sentences
        num_sentences[i], num_characters[i] = len(text_sentences), len(new_text or "")
    encoded = config.tokenizer.encode_corpus(sentences)
    is_nonempty = encoded.lengths > 0
    document_ids = np.repeat(np.arange(len(num_sentences)), num_sentences)[is_nonempty]
    stored_sentences = np.bincount(document_ids, minlength=len(num_sentences))
    is_stored = stored_sentences > 0
    return TokenizedBlock(
        encoded.ids.astype(token_dtype(config.tokenizer.vocab_size)),
        encoded.word_starts,
        encoded.lengths[is_nonempty].astype(np.int32),
        stored_sentences[is_stored].astype(np.int32),
        is_stored,
        int(num_characters[is_stored].sum()),
        stats.by_step,
        [block.locations[i] for i in np.flatnonzero((num_characters > 0) & ~is_stored)],
    )

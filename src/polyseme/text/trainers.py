"""Deterministic training of vocabularies from word counts."""

from __future__ import annotations

import io
import json
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence

import numpy as np
from tokenizers import Tokenizer, models, pre_tokenizers, trainers

from polyseme.errors import ConfigError, DataError, UnsupportedError
from polyseme.text.pipelines import (
    BERT_SPECIALS,
    CONTINUATION_PREFIX,
    END_OF_TEXT,
    METASPACE,
    ROBERTA_SPECIALS,
    T5_SPECIALS,
    UNIGRAM_SPECIALS,
    WORD_SPECIALS,
    add_sentinels,
    build_bpe,
    build_characters,
    build_unigram,
    build_word_level,
    build_wordpiece,
)
from polyseme.text.sentencepiece_model import parse_model

MAX_ALPHABET = 10_000
BYTE_BPE_SPECIALS: dict[str, Sequence[str]] = {"bpe": (END_OF_TEXT,), "byte-bpe-roberta": ROBERTA_SPECIALS}
_CHARACTER_COVERAGE = 0.9999  # share of the text written in characters that get an entry
_MAX_UNIGRAM_WORDS = 500_000  # sentencepiece holds a suffix array of all of them in memory


def train_vocabulary(
    kind: str,
    word_counts: Mapping[str, int],
    vocab_size: int,
    lowercase: bool,
    min_frequency: int = 2,
    max_alphabet: int = MAX_ALPHABET,
    num_sentinels: int = 0,
) -> Tokenizer:
    """Train a tokenizer with at most `vocab_size` entries on sorted counts (`WordCounts.smoothed_counts`).

    The last `num_sentinels` entries are sentinels; a unigram vocabulary with sentinels gets T5's other special tokens.
    """
    check_vocab_size(kind, vocab_size, num_sentinels)
    if not word_counts:
        raise DataError("there is no text to train the tokenizer on")
    if num_sentinels:
        tokenizer = _train_kind(
            kind, word_counts, vocab_size - num_sentinels, lowercase, min_frequency, max_alphabet, T5_SPECIALS
        )
        add_sentinels(tokenizer, num_sentinels)
        return tokenizer
    return _train_kind(kind, word_counts, vocab_size, lowercase, min_frequency, max_alphabet, UNIGRAM_SPECIALS)


def _train_kind(
    kind: str,
    word_counts: Mapping[str, int],
    vocab_size: int,
    lowercase: bool,
    min_frequency: int,
    max_alphabet: int,
    special_tokens: tuple[str, ...],
) -> Tokenizer:
    if kind == "wordpiece":
        return _train_wordpiece(word_counts, vocab_size, lowercase, min_frequency, max_alphabet)
    if kind in BYTE_BPE_SPECIALS:
        return _train_bpe(word_counts, vocab_size, lowercase, min_frequency, BYTE_BPE_SPECIALS[kind])
    if kind == "unigram":
        return _train_unigram(word_counts, vocab_size, lowercase, max_alphabet, special_tokens)
    if kind in ("words", "whitespace"):
        frequent_words = (
            word for word, count in word_counts.items() if count >= min_frequency and word not in WORD_SPECIALS
        )
        top_words = sorted(frequent_words, key=lambda word: (-word_counts[word], word))[
            : vocab_size - len(WORD_SPECIALS)
        ]
        return build_word_level(top_words, lowercase, kind)
    alphabet = _choose_alphabet(word_counts, vocab_size, max_alphabet, entries_per_char=1)
    return build_characters(alphabet, lowercase)


def check_vocab_size(kind: str, vocab_size: int, num_sentinels: int = 0) -> None:
    """Raise `ConfigError` if a vocabulary size is too small for any text."""
    if num_sentinels:
        if vocab_size <= num_sentinels:
            raise ConfigError(f"vocab_size is {vocab_size}, too small for {num_sentinels} sentinel tokens")
        return check_vocab_size(kind, vocab_size - num_sentinels)
    if kind in BYTE_BPE_SPECIALS and vocab_size < (min_size := 256 + len(BYTE_BPE_SPECIALS[kind])):
        special_tokens = " ".join(BYTE_BPE_SPECIALS[kind])
        raise ConfigError(
            f"vocab_size is {vocab_size}, too small for {kind}: 256 bytes and {special_tokens} need {min_size}"
        )
    if vocab_size <= len(BERT_SPECIALS):
        raise ConfigError(f"vocab_size is {vocab_size}, too small for the {len(BERT_SPECIALS)} special tokens")


def _train_wordpiece(
    word_counts: Mapping[str, int], vocab_size: int, lowercase: bool, min_frequency: int, max_alphabet: int
) -> Tokenizer:
    """Train WordPiece with the `tokenizers` trainer, made deterministic.

    That trainer numbers the `##x` characters in the order of a randomly seeded hash map and breaks ties between merges
    by those numbers, so two runs on one text differ. Passing both forms of every character in sorted order fixes the
    numbers and ensures that both forms exist. Words with a character outside the alphabet are skipped, since they would
    be encoded as [UNK] anyway.
    """
    # Four entries per character: both forms of all characters fill at most half of the vocabulary.
    alphabet = _choose_alphabet(word_counts, vocab_size, max_alphabet, entries_per_char=4)
    continuation_chars = [CONTINUATION_PREFIX + character for character in alphabet]
    trainer = trainers.WordPieceTrainer(
        vocab_size=vocab_size,
        min_frequency=min_frequency,
        special_tokens=[*BERT_SPECIALS, *continuation_chars],
        initial_alphabet=alphabet,
        show_progress=False,
    )
    trained_tokenizer = Tokenizer(models.WordPiece(unk_token="[UNK]"))
    trained_tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    trained_tokenizer.train_from_iterator(_repeat_words(_filter_by_alphabet(word_counts, alphabet)), trainer)
    vocab_items = sorted(trained_tokenizer.get_vocab().items(), key=lambda item: item[1])
    initial_pieces = dict.fromkeys([*BERT_SPECIALS, *alphabet, *continuation_chars])
    pieces = [*initial_pieces, *(piece for piece, _ in vocab_items if piece not in initial_pieces)]
    return build_wordpiece({piece: i for i, piece in enumerate(pieces)}, lowercase)


def _train_bpe(
    word_counts: Mapping[str, int], vocab_size: int, lowercase: bool, min_frequency: int, special_tokens: Sequence[str]
) -> Tokenizer:
    """Train GPT-2's byte-level BPE, which encodes any text. The trainer breaks ties by id, so it is deterministic."""
    trainer = trainers.BpeTrainer(
        vocab_size=vocab_size,
        min_frequency=min_frequency,
        special_tokens=list(special_tokens),
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        show_progress=False,
    )
    trained_tokenizer = Tokenizer(models.BPE())
    # The counted words contain no white space, only its byte-level symbols.
    trained_tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    trained_tokenizer.train_from_iterator(_repeat_words(word_counts), trainer)
    model = json.loads(trained_tokenizer.to_str())["model"]
    return build_bpe(model["vocab"], [(first, second) for first, second in model["merges"]], lowercase, special_tokens)


def _train_unigram(
    word_counts: Mapping[str, int], vocab_size: int, lowercase: bool, max_alphabet: int, special_tokens: tuple[str, ...]
) -> Tokenizer:
    """Train unigram pieces (Kudo 2018) with the sentencepiece library on one thread.

    The trainer in `tokenizers` sums numbers in the order of a randomly seeded hash map, so its scores and the choice of
    pieces differ between runs.
    """
    try:
        import sentencepiece
    except ImportError:
        raise UnsupportedError("training a unigram vocabulary needs sentencepiece: install polyseme[unigram]") from None

    stripped_counts = {
        word.removeprefix(METASPACE): count for word, count in word_counts.items() if word.removeprefix(METASPACE)
    }
    alphabet = _choose_alphabet(
        stripped_counts, vocab_size, max_alphabet, entries_per_char=2, special_tokens=special_tokens
    )
    covered_counts = _filter_by_alphabet(stripped_counts, alphabet)
    if len(covered_counts) > _MAX_UNIGRAM_WORDS:
        top_words = sorted(covered_counts, key=lambda word: (-covered_counts[word], word))[:_MAX_UNIGRAM_WORDS]
        covered_counts = {word: covered_counts[word] for word in sorted(top_words)}
    model_buffer = io.BytesIO()
    try:
        sentencepiece.SentencePieceTrainer.train(
            sentence_iterator=(f"{word}\t{count}" for word, count in covered_counts.items()),
            input_format="tsv",
            model_writer=model_buffer,
            model_type="unigram",
            vocab_size=vocab_size - len(special_tokens) + 1,
            hard_vocab_limit=False,
            character_coverage=1.0,
            normalization_rule_name="identity",
            unk_id=0,
            bos_id=-1,
            eos_id=-1,
            pad_id=-1,
            num_threads=1,
            minloglevel=3,
        )
    except (RuntimeError, OSError) as error:
        raise DataError(f"cannot train a unigram vocabulary of {vocab_size} on this text: {error}") from None
    pieces = [(piece.text, piece.score) for piece in parse_model(model_buffer.getvalue()).pieces[1:]]
    return build_unigram(pieces, lowercase, special_tokens)


def _choose_alphabet(
    word_counts: Mapping[str, int],
    vocab_size: int,
    max_alphabet: int,
    entries_per_char: int,
    special_tokens: tuple[str, ...] = BERT_SPECIALS,
) -> list[str]:
    """Return the sorted characters that get an entry: ASCII, then the most frequent, up to 99.99 % of the text.

    There are at most `max_alphabet`, and few enough that `entries_per_char` entries per character fit.
    """
    counts: Counter[str] = Counter()
    for word, count in word_counts.items():
        for character in word:
            counts[character] += count
    ranked_chars = sorted(counts, key=lambda character: (not character.isascii(), -counts[character], character))
    coverage = np.cumsum([counts[character] for character in ranked_chars]) / counts.total()
    num_needed = min(int(np.searchsorted(coverage, _CHARACTER_COVERAGE)) + 1, len(ranked_chars), max_alphabet)
    num_chars = min(num_needed, (vocab_size - len(special_tokens)) // entries_per_char)
    if num_chars < num_needed and (num_chars < 1 or coverage[num_chars - 1] < 0.99):
        raise ConfigError(
            f"vocab_size is {vocab_size}, too small for a text of {len(ranked_chars)} different characters: "
            f"use at least {len(special_tokens) + entries_per_char * num_needed}"
        )
    return sorted(ranked_chars[:num_chars])


def _filter_by_alphabet(word_counts: Mapping[str, int], alphabet: list[str]) -> dict[str, int]:
    alphabet_set = set(alphabet)
    return {word: count for word, count in word_counts.items() if alphabet_set.issuperset(word)}


def _repeat_words(word_counts: Mapping[str, int], words_per_line: int = 1000) -> Iterator[str]:
    """Yield each word as often as it was counted, in lines of bounded length."""
    for word, count in word_counts.items():
        for start in range(0, count, words_per_line):
            yield (word + " ") * min(words_per_line, count - start)

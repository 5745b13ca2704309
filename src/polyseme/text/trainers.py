"""Deterministic training of vocabularies from word counts."""

import io
import itertools
import json
import logging
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from tokenizers import Tokenizer, models, pre_tokenizers, trainers

from polyseme.config import check_in_range
from polyseme.errors import ConfigError, DataError, require_package, require_packages
from polyseme.io.limits import MAX_VOCAB_SIZE
from polyseme.progress import waiting
from polyseme.text import pipelines
from polyseme.text.pipelines import BERT_SPECIALS, ROBERTA_SPECIALS, T5_SPECIALS, UNIGRAM_SPECIALS, WORD_SPECIALS
from polyseme.text.sentencepiece_model import parse_model

logger = logging.getLogger(__name__)

MAX_ALPHABET = 10_000
MAX_WORDS = 2_000_000
BYTE_BPE_SPECIALS: dict[str, Sequence[str]] = {"bpe": (pipelines.END_OF_TEXT,), "byte-bpe-roberta": ROBERTA_SPECIALS}
_WORD_KINDS = ("words", "whitespace")
_CHARACTER_COVERAGE = 0.9999  # share of the text written in characters that get an entry
_SENTENCEPIECE_OPTIONS: dict[str, Any] = {
    "model_type": "unigram", "input_format": "tsv", "normalization_rule_name": "identity", "unk_id": 0,
    "bos_id": -1, "eos_id": -1, "pad_id": -1, "hard_vocab_limit": False, "character_coverage": 1.0, "num_threads": 1,
    "minloglevel": 3,
}  # fmt: skip
_MAX_UNIGRAM_WORDS = 500_000  # sentencepiece holds a suffix array of all of them in memory


@dataclass(frozen=True)
class VocabularyConfig:
    """Settings of a vocabulary. Characters, words and whitespace need no `vocab_size`.

    `min_frequency` applies to WordPiece, BPE and words, `max_alphabet` to WordPiece, unigram and characters. The last
    `num_sentinels` entries are sentinel tokens for T5's span corruption; a unigram vocabulary with sentinels gets T5's
    other special tokens, too.
    """

    kind: str
    vocab_size: int | None = None
    min_frequency: int = 2
    max_alphabet: int = MAX_ALPHABET
    num_sentinels: int = 0

    def __post_init__(self) -> None:
        if self.vocab_size is None and self.kind not in ("characters", *_WORD_KINDS):
            raise ConfigError(f"`vocab_size` is missing: the maximum number of entries in a {self.kind} vocabulary")
        if self.kind == "unigram":  # before the text is read
            require_packages({"sentencepiece": "training a unigram vocabulary"})
        size = self.size
        for name in ("vocab_size", "min_frequency", "max_alphabet", "num_sentinels"):
            check_in_range(name, getattr(self, name) or 0, 0, MAX_VOCAB_SIZE)
        unused = {
            "min_frequency": ("characters", *UNIGRAM_SPECIALS),
            "max_alphabet": (*BYTE_BPE_SPECIALS, *_WORD_KINDS),
        }
        for name, kinds in unused.items():
            if self.kind in kinds and getattr(self, name) != getattr(type(self), name):
                raise ConfigError(f"`{name}` has no effect on a {self.kind} vocabulary: leave it out")
        if self.num_sentinels and size <= 0:
            raise ConfigError(f"vocab_size is {self.vocab_size}, too small for {self.num_sentinels} sentinel tokens")
        specials = BYTE_BPE_SPECIALS.get(self.kind, ())
        if specials and size < (min_size := 256 + len(specials)):
            needs = f"256 bytes and {' '.join(specials)} need {min_size}"
            raise ConfigError(f"vocab_size is {size}, too small for {self.kind}: {needs}")
        if size <= len(BERT_SPECIALS):
            raise ConfigError(f"vocab_size is {size}, too small for the {len(BERT_SPECIALS)} special tokens")

    @property
    def size(self) -> int:
        """Maximum number of entries without sentinels."""
        default = self.max_alphabet if self.kind == "characters" else MAX_WORDS
        return (default if self.vocab_size is None else self.vocab_size) - self.num_sentinels


def train_vocabulary(word_counts: Mapping[str, int], lowercase: bool, config: VocabularyConfig) -> Tokenizer:
    """Train a tokenizer on sorted counts (`WordCounts.smoothed_counts`); warn if it is smaller than requested."""
    if not word_counts:
        raise DataError("there is no text to train the tokenizer on")
    with waiting(f"training a {config.kind} vocabulary on {len(word_counts):,} words"):
        tokenizer = _train_kind(word_counts, lowercase, config)
    pipelines.add_sentinels(tokenizer, config.num_sentinels)
    if config.vocab_size is not None and (size := tokenizer.get_vocab_size()) < config.vocab_size:
        reason = _explain_size(len(word_counts), config)
        logger.warning(f"the vocabulary has {size:,} entries, not the {config.vocab_size:,} requested: {reason}")
    return tokenizer


def _explain_size(num_words: int, config: VocabularyConfig) -> str:
    """Say why a vocabulary is smaller than requested, and what to do."""
    if config.kind == "characters":
        return "the text has no more different characters"
    text = f"the text has {num_words:,} different words"
    if config.kind in UNIGRAM_SPECIALS:
        return f"{text} and no more pieces; train on more text, or request fewer entries"
    unit = "of them are" if config.kind in _WORD_KINDS else "pieces are"
    advice = "train on more text, lower `min_frequency`, or request fewer entries"
    return f"{text}, and no more {unit} as frequent as `min_frequency` ({config.min_frequency}); {advice}"


def _train_kind(word_counts: Mapping[str, int], lowercase: bool, config: VocabularyConfig) -> Tokenizer:
    """Train a tokenizer without sentinels."""
    if config.kind == "wordpiece":
        return _train_wordpiece(word_counts, lowercase, config)
    if config.kind in BYTE_BPE_SPECIALS:
        return _train_bpe(word_counts, lowercase, config)
    if config.kind in UNIGRAM_SPECIALS:
        return _train_unigram(word_counts, lowercase, config)
    if config.kind in _WORD_KINDS:
        reserved = set(itertools.chain(*pipelines.DEFAULT_SPECIAL_TOKENS.values()))  # no word gets a special role
        frequent = {w: n for w, n in word_counts.items() if n >= config.min_frequency and w not in reserved}
        words = _most_frequent(frequent, config.size - len(WORD_SPECIALS))
        return pipelines.build_word_level(words, lowercase, config.kind)
    return pipelines.build_characters(_choose_alphabet(word_counts, config, 1), lowercase)


def _train_wordpiece(word_counts: Mapping[str, int], lowercase: bool, config: VocabularyConfig) -> Tokenizer:
    """Train WordPiece with the `tokenizers` trainer, made deterministic.

    That trainer numbers the `##x` characters in the order of a randomly seeded hash map and breaks ties between merges
    by those numbers, so two runs on one text differ. Passing both forms of every character in sorted order fixes the
    numbers and ensures that both forms exist. Words with a character outside the alphabet are skipped, since they would
    be encoded as [UNK] anyway.
    """
    # Four entries per character: both forms of all characters fill at most half of the vocabulary.
    alphabet = _choose_alphabet(word_counts, config, 4)
    continuation_chars = [pipelines.CONTINUATION_PREFIX + character for character in alphabet]
    options = _trainer_options(config, [*BERT_SPECIALS, *continuation_chars], alphabet)
    trainer = trainers.WordPieceTrainer(**options)
    vocab = _run_trainer(models.WordPiece(unk_token="[UNK]"), trainer, _filter_words(word_counts, alphabet))["vocab"]
    pieces = dict.fromkeys([*BERT_SPECIALS, *alphabet, *continuation_chars, *sorted(vocab, key=vocab.__getitem__)])
    return pipelines.build_wordpiece({piece: i for i, piece in enumerate(pieces)}, lowercase)


def _train_bpe(word_counts: Mapping[str, int], lowercase: bool, config: VocabularyConfig) -> Tokenizer:
    """Train GPT-2's byte-level BPE, which encodes any text. The trainer breaks ties by id, so it is deterministic."""
    specials = BYTE_BPE_SPECIALS[config.kind]
    options = _trainer_options(config, list(specials), sorted(pre_tokenizers.ByteLevel.alphabet()))
    trainer = trainers.BpeTrainer(**options)
    model = _run_trainer(models.BPE(), trainer, word_counts)
    return pipelines.build_bpe(model["vocab"], [(a, b) for a, b in model["merges"]], lowercase, specials)


def _trainer_options(config: VocabularyConfig, special_tokens: list[str], alphabet: list[str]) -> dict[str, Any]:
    options = {"vocab_size": config.size, "min_frequency": config.min_frequency, "show_progress": False}
    return options | {"special_tokens": special_tokens, "initial_alphabet": alphabet}


def _run_trainer(model: models.Model, trainer: trainers.Trainer, word_counts: Mapping[str, int]) -> dict[str, dict]:
    """Train on each word as often as it was counted; return the model as JSON. The words contain no white space."""

    def lines(words_per_line: int = 1000) -> Iterator[str]:
        for word, count in word_counts.items():
            for start in range(0, count, words_per_line):
                yield (word + " ") * min(words_per_line, count - start)

    tokenizer = Tokenizer(model)
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    tokenizer.train_from_iterator(lines(), trainer)
    return json.loads(tokenizer.to_str())["model"]


def _train_unigram(word_counts: Mapping[str, int], lowercase: bool, config: VocabularyConfig) -> Tokenizer:
    """Train unigram pieces (Kudo 2018) with the sentencepiece library on one thread.

    The trainer in `tokenizers` sums numbers in the order of a randomly seeded hash map, so its scores and the choice of
    pieces differ between runs.
    """
    sentencepiece = require_package("sentencepiece", "training a unigram vocabulary", "'polyseme[unigram]'")
    specials = T5_SPECIALS if config.num_sentinels else UNIGRAM_SPECIALS[config.kind]
    stripped = ((word.removeprefix(pipelines.METASPACE), count) for word, count in word_counts.items())
    stripped_counts = {word: count for word, count in stripped if word}
    alphabet = _choose_alphabet(stripped_counts, config, 2, specials)
    covered_counts = _filter_words(stripped_counts, alphabet)
    if len(covered_counts) > _MAX_UNIGRAM_WORDS:
        top_words = sorted(_most_frequent(covered_counts, _MAX_UNIGRAM_WORDS))
        covered_counts = {word: covered_counts[word] for word in top_words}
    model_buffer = io.BytesIO()
    try:
        sentencepiece.SentencePieceTrainer.train(
            sentence_iterator=(f"{word}\t{count}" for word, count in covered_counts.items()),
            model_writer=model_buffer,
            vocab_size=config.size - len(specials) + 1,
            **_SENTENCEPIECE_OPTIONS,
        )
    except (RuntimeError, OSError) as error:
        raise DataError(f"cannot train a unigram vocabulary of {config.size} on this text: {error}") from None
    pieces = [(piece.text, piece.score) for piece in parse_model(model_buffer.getvalue()).pieces[1:]]
    return pipelines.build_unigram(pieces, lowercase, specials)


def _choose_alphabet(
    words: Mapping[str, int], config: VocabularyConfig, entries_per_char: int, specials: Sequence[str] = BERT_SPECIALS
) -> list[str]:
    """Return the sorted characters that get an entry: ASCII, then the most frequent, up to 99.99% of the text."""
    counts: Counter[str] = Counter()
    for word, count in words.items():
        for character in word:
            counts[character] += count
    ranked_chars = sorted(counts, key=lambda character: (not character.isascii(), -counts[character], character))
    coverage = np.cumsum([counts[character] for character in ranked_chars]) / counts.total()
    num_needed = min(int(np.searchsorted(coverage, _CHARACTER_COVERAGE)) + 1, len(ranked_chars), config.max_alphabet)
    num_chars = min(num_needed, (config.size - len(specials)) // entries_per_char)
    if num_chars < num_needed and (num_chars < 1 or coverage[num_chars - 1] < 0.99):
        raise ConfigError(
            f"vocab_size is {config.size}, too small for a text of {len(ranked_chars)} different characters: "
            f"use at least {len(specials) + entries_per_char * num_needed}"
        )
    return sorted(ranked_chars[:num_chars])


def _filter_words(word_counts: Mapping[str, int], alphabet: list[str]) -> dict[str, int]:
    """Return the counts of words that consist of characters of the alphabet."""
    alphabet_set = set(alphabet)
    return {word: count for word, count in word_counts.items() if alphabet_set.issuperset(word)}


def _most_frequent(word_counts: Mapping[str, int], max_words: int) -> list[str]:
    return sorted(word_counts, key=lambda word: (-word_counts[word], word))[:max_words]

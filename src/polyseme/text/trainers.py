"""Learning vocabularies from counts of words: the same counts give the same bytes every time."""

from __future__ import annotations

import io
import json
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence

import numpy as np
from tokenizers import Tokenizer, models, pre_tokenizers, trainers

from polyseme.errors import UserError
from polyseme.text.pipelines import (
    BERT_SPECIALS,
    END_OF_TEXT,
    PREFIX,
    ROBERTA_SPECIALS,
    SPACE,
    SPAN_SPECIALS,
    UNIGRAM_SPECIALS,
    WORD_SPECIALS,
    add_sentinels,
    build_bpe,
    build_characters,
    build_unigram,
    build_wordpiece,
    build_words,
)
from polyseme.text.sentencepiece_model import parse

MAX_ALPHABET = 10_000
BYTE_SPECIALS: dict[str, Sequence[str]] = {"bpe": (END_OF_TEXT,), "bpe-masked": ROBERTA_SPECIALS}
_COVERED = 0.9999  # of the text, by the characters that get an entry
_MOST_UNIGRAM_WORDS = 500_000  # that trainer holds an array of all their suffixes


def learn(
    kind: str,
    words: Mapping[str, int],
    vocab_size: int,
    lowercase: bool,
    min_frequency: int = 2,
    max_alphabet: int = MAX_ALPHABET,
    sentinels: int = 0,
) -> Tokenizer:
    """A tokenizer of at most `vocab_size` entries from sorted counts, as `WordCounts.combined` gives them.

    The last of them are `sentinels`; a unigram vocabulary that has some has T5's other special tokens too.
    """
    check_size(kind, vocab_size, sentinels)
    if not words:
        raise UserError("no text came to train the tokenizer on")
    if sentinels:
        made = _learn(kind, words, vocab_size - sentinels, lowercase, min_frequency, max_alphabet, SPAN_SPECIALS)
        add_sentinels(made, sentinels)
        return made
    return _learn(kind, words, vocab_size, lowercase, min_frequency, max_alphabet, UNIGRAM_SPECIALS)


def _learn(
    kind: str,
    words: Mapping[str, int],
    vocab_size: int,
    lowercase: bool,
    min_frequency: int,
    max_alphabet: int,
    specials: tuple[str, ...],
) -> Tokenizer:
    if kind == "wordpiece":
        return _learn_wordpiece(words, vocab_size, lowercase, min_frequency, max_alphabet)
    if kind in BYTE_SPECIALS:
        return _learn_bpe(words, vocab_size, lowercase, min_frequency, BYTE_SPECIALS[kind])
    if kind == "unigram":
        return _learn_unigram(words, vocab_size, lowercase, max_alphabet, specials)
    if kind in ("words", "spaced"):
        often = (word for word, count in words.items() if count >= min_frequency and word not in WORD_SPECIALS)
        kept = sorted(often, key=lambda word: (-words[word], word))[: vocab_size - len(WORD_SPECIALS)]
        return build_words(kept, lowercase, kind)
    alphabet = _alphabet(words, vocab_size, max_alphabet, forms=1)
    return build_characters(alphabet, lowercase)


def check_size(kind: str, vocab_size: int, sentinels: int = 0) -> None:
    """What can be said about a size before any text is read."""
    if sentinels:
        if vocab_size <= sentinels:
            raise UserError(f"a vocabulary of {vocab_size} is too small: the sentinels alone are {sentinels}")
        return check_size(kind, vocab_size - sentinels)
    if kind in BYTE_SPECIALS and vocab_size < (least := 256 + len(BYTE_SPECIALS[kind])):
        marks = " ".join(BYTE_SPECIALS[kind])
        raise UserError(f"a vocabulary of {vocab_size} is too small for {kind}: 256 bytes and {marks} need {least}")
    if vocab_size <= len(BERT_SPECIALS):
        raise UserError(f"a vocabulary of {vocab_size} is too small: the special tokens alone are {len(BERT_SPECIALS)}")


def _learn_wordpiece(
    words: Mapping[str, int], vocab_size: int, lowercase: bool, min_frequency: int, max_alphabet: int
) -> Tokenizer:
    """Learn pieces by merging, as the `tokenizers` trainer does, but with a fixed result.

    That trainer numbers the `##x` characters in the order of a randomly seeded hash map, and ties between
    merges follow those numbers, so two runs over one text differ. Here the trainer is given both forms of every
    character in sorted order, which also makes sure that both exist. A word with a character outside the
    alphabet would become [UNK] whole, so it is left out.
    """
    alphabet = _alphabet(words, vocab_size, max_alphabet, forms=4)  # both forms of all in at most half of it
    inner = [PREFIX + character for character in alphabet]
    trainer = trainers.WordPieceTrainer(
        vocab_size=vocab_size,
        min_frequency=min_frequency,
        special_tokens=[*BERT_SPECIALS, *inner],
        initial_alphabet=alphabet,
        show_progress=False,
    )
    learner = Tokenizer(models.WordPiece(unk_token="[UNK]"))
    learner.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    learner.train_from_iterator(_repeated(_within(words, alphabet)), trainer)
    learnt = sorted(learner.get_vocab().items(), key=lambda item: item[1])
    fixed = dict.fromkeys([*BERT_SPECIALS, *alphabet, *inner])
    pieces = [*fixed, *(piece for piece, _ in learnt if piece not in fixed)]
    return build_wordpiece({piece: i for i, piece in enumerate(pieces)}, lowercase)


def _learn_bpe(
    words: Mapping[str, int], vocab_size: int, lowercase: bool, min_frequency: int, specials: Sequence[str]
) -> Tokenizer:
    """GPT-2's byte-level BPE. It can write any text, so nothing is unknown; its trainer breaks ties by id."""
    trainer = trainers.BpeTrainer(
        vocab_size=vocab_size,
        min_frequency=min_frequency,
        special_tokens=list(specials),
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        show_progress=False,
    )
    learner = Tokenizer(models.BPE())
    learner.pre_tokenizer = pre_tokenizers.WhitespaceSplit()  # the counted words hold no white space, but signs for it
    learner.train_from_iterator(_repeated(words), trainer)
    model = json.loads(learner.to_str())["model"]
    return build_bpe(model["vocab"], [(first, second) for first, second in model["merges"]], lowercase, specials)


def _learn_unigram(
    words: Mapping[str, int], vocab_size: int, lowercase: bool, max_alphabet: int, specials: tuple[str, ...]
) -> Tokenizer:
    """Kudo's unigram pieces (2018), by the sentencepiece library on one thread.

    The trainer in `tokenizers` adds up numbers in the order of a randomly seeded hash map, so its scores and the
    choice of pieces differ from run to run.
    """
    try:
        import sentencepiece
    except ImportError:
        raise UserError("training a unigram vocabulary needs sentencepiece: install polyseme[unigram]") from None

    bare = {word.removeprefix(SPACE): count for word, count in words.items() if word.removeprefix(SPACE)}
    alphabet = _alphabet(bare, vocab_size, max_alphabet, forms=2, specials=specials)
    known = _within(bare, alphabet)
    if len(known) > _MOST_UNIGRAM_WORDS:
        kept = sorted(known, key=lambda word: (-known[word], word))[:_MOST_UNIGRAM_WORDS]
        known = {word: known[word] for word in sorted(kept)}
    written = io.BytesIO()
    try:
        sentencepiece.SentencePieceTrainer.train(
            sentence_iterator=(f"{word}\t{count}" for word, count in known.items()),
            input_format="tsv",
            model_writer=written,
            model_type="unigram",
            vocab_size=vocab_size - len(specials) + 1,
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
        raise UserError(f"no unigram vocabulary of {vocab_size} can be learnt from this text: {error}") from None
    pieces = [(piece.text, piece.score) for piece in parse(written.getvalue()).pieces[1:]]
    return build_unigram(pieces, lowercase, specials)


def _alphabet(
    words: Mapping[str, int],
    vocab_size: int,
    largest: int,
    forms: int,
    specials: tuple[str, ...] = BERT_SPECIALS,
) -> list[str]:
    """The characters worth an entry, sorted: ASCII, then the most frequent, up to 99.99 % of the text.

    At most `largest`, and so few that there is room for `forms` entries each.
    """
    counts: Counter[str] = Counter()
    for word, count in words.items():
        for character in word:
            counts[character] += count
    ranked = sorted(counts, key=lambda character: (not character.isascii(), -counts[character], character))
    covered = np.cumsum([counts[character] for character in ranked]) / counts.total()
    wanted = min(int(np.searchsorted(covered, _COVERED)) + 1, len(ranked), largest)
    kept = min(wanted, (vocab_size - len(specials)) // forms)
    if kept < wanted and (kept < 1 or covered[kept - 1] < 0.99):
        raise UserError(
            f"a vocabulary of {vocab_size} is too small for this text of {len(ranked)} different characters: "
            f"at least {len(specials) + forms * wanted} is sound"
        )
    return sorted(ranked[:kept])


def _within(words: Mapping[str, int], alphabet: list[str]) -> dict[str, int]:
    kept = set(alphabet)
    return {word: count for word, count in words.items() if kept.issuperset(word)}


def _repeated(words: Mapping[str, int], at_once: int = 1000) -> Iterator[str]:
    """Each word as often as it was counted, in lines of bounded length."""
    for word, count in words.items():
        for start in range(0, count, at_once):
            yield (word + " ") * min(at_once, count - start)

"""Making vocabularies: BERT's WordPiece and GPT-2's byte-level BPE, trained to the same bytes every time."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import numpy as np
from tokenizers import (
    AddedToken,
    Tokenizer,
    decoders,
    models,
    normalizers,
    pre_tokenizers,
    processors,
    trainers,
)

from polyseme.errors import UserError

BERT_SPECIALS = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]")
END_OF_TEXT = "<|endoftext|>"
PREFIX = "##"  # marks a piece that continues a word


def build_wordpiece(vocab: dict[str, int], lowercase: bool) -> Tokenizer:
    """BERT's tokenizer over a given vocabulary: its cleaning, its split at punctuation, its pair template."""
    made = Tokenizer(models.WordPiece(vocab, unk_token="[UNK]", continuing_subword_prefix=PREFIX))
    made.normalizer = normalizers.BertNormalizer(lowercase=lowercase)
    made.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    made.decoder = decoders.WordPiece(prefix=PREFIX)
    made.add_special_tokens([AddedToken(token, special=True, normalized=False) for token in BERT_SPECIALS])
    made.post_processor = processors.TemplateProcessing(
        single="[CLS]:0 $A:0 [SEP]:0",
        pair="[CLS]:0 $A:0 [SEP]:0 $B:1 [SEP]:1",
        special_tokens=[(token, vocab[token]) for token in ("[CLS]", "[SEP]")],
    )
    return made


def read_vocab(path: Path, lowercase: bool | None) -> Tokenizer:
    """BERT's `vocab.txt`; lower case, if not told, unless some piece of it is not."""
    try:
        pieces = path.read_text(encoding="utf-8").removesuffix("\n").split("\n")
    except UnicodeDecodeError as error:
        raise UserError(f"{path} is not UTF-8 text: byte {error.start}") from None
    vocab = {piece.rstrip("\r"): i for i, piece in enumerate(pieces)}
    if lost := [token for token in BERT_SPECIALS if token not in vocab]:
        raise UserError(f"{path} is not a BERT vocabulary: it has no {' '.join(lost)}")
    if len(vocab) < len(pieces):
        raise UserError(f"{path} is not a BERT vocabulary: {len(pieces) - len(vocab)} of its lines occur twice")
    if lowercase is None:
        lowercase = not any(piece != piece.lower() for piece in vocab if not piece.startswith("["))
    return build_wordpiece(vocab, lowercase)


def train_wordpiece(
    texts: Iterator[str], vocab_size: int, lowercase: bool, min_frequency: int, max_alphabet: int
) -> Tokenizer:
    """Learn pieces by merging, as the `tokenizers` trainer does, but with a fixed result.

    That trainer numbers the `##x` characters in the order of a randomly seeded hash map, and ties between
    merges follow those numbers, so two runs over one text differ. Here the words are counted first; then the
    trainer is given both forms of every character in sorted order, which also makes sure that both exist. A
    word with a character outside the alphabet would become [UNK] whole, so it is left out.
    """
    frame = build_wordpiece({token: i for i, token in enumerate(BERT_SPECIALS)}, lowercase)
    words = _count_words(frame, texts)
    alphabet = _alphabet(words, vocab_size, max_alphabet)
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
    kept = set(alphabet)
    learner.train_from_iterator(_repeated({w: n for w, n in words.items() if kept.issuperset(w)}), trainer)
    learnt = sorted(learner.get_vocab().items(), key=lambda item: item[1])
    fixed = dict.fromkeys([*BERT_SPECIALS, *alphabet, *inner])
    pieces = [*fixed, *(piece for piece, _ in learnt if piece not in fixed)]
    return build_wordpiece({piece: i for i, piece in enumerate(pieces)}, lowercase)


def train_bpe(texts: Iterator[str], vocab_size: int, lowercase: bool, min_frequency: int) -> Tokenizer:
    """GPT-2's byte-level BPE. It can write any text, so nothing is unknown; its trainer breaks ties by id."""
    if vocab_size < 257:
        raise UserError(f"a vocabulary of {vocab_size} is too small for bpe: 256 bytes and {END_OF_TEXT} need 257")
    made = Tokenizer(models.BPE())
    if lowercase:
        made.normalizer = normalizers.Lowercase()
    made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    made.decoder = decoders.ByteLevel()
    made.post_processor = processors.ByteLevel(trim_offsets=False)
    trainer = trainers.BpeTrainer(
        vocab_size=vocab_size,
        min_frequency=min_frequency,
        special_tokens=[END_OF_TEXT],
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        show_progress=False,
    )
    seen = Counter[bool]()
    made.train_from_iterator(_watched(texts, seen), trainer)
    if not seen[True]:
        raise UserError("no text came to train the tokenizer on")
    return made


def _count_words(frame: Tokenizer, texts: Iterator[str]) -> dict[str, int]:
    """How often each word occurs after BERT's normalizer and pre-tokenizer.

    A trainer asked for no vocabulary does nothing but count, at the speed of its threads; the counts are
    part of the state it gives to pickle.
    """
    counter = trainers.WordPieceTrainer(vocab_size=0, show_progress=False)
    frame.train_from_iterator(texts, counter)
    words: dict[str, int] = json.loads(counter.__getstate__())["WordPieceTrainer"]["bpe_trainer"]["words"]
    if not words:
        raise UserError("no text came to train the tokenizer on")
    return dict(sorted(words.items()))


def _alphabet(words: dict[str, int], vocab_size: int, largest: int) -> list[str]:
    """The characters worth an entry, sorted: ASCII, then the most frequent, up to 99.99 % of the text.

    At most `largest`, and both forms of all of them in at most half the vocabulary.
    """
    counts: Counter[str] = Counter()
    for word, count in words.items():
        for character in word:
            counts[character] += count
    ranked = sorted(counts, key=lambda character: (not character.isascii(), -counts[character], character))
    covered = np.cumsum([counts[character] for character in ranked]) / counts.total()
    wanted = min(int(np.searchsorted(covered, 0.9999)) + 1, len(ranked), largest)
    kept = min(wanted, (vocab_size - len(BERT_SPECIALS)) // 4)
    if kept < wanted and (kept < 1 or covered[kept - 1] < 0.99):
        raise UserError(
            f"a vocabulary of {vocab_size} is too small for this text of {len(ranked)} different characters: "
            f"at least {len(BERT_SPECIALS) + 4 * wanted} is sound"
        )
    return sorted(ranked[:kept])


def _repeated(words: dict[str, int], at_once: int = 1000) -> Iterator[str]:
    """Each word as often as it was counted, in lines of bounded length."""
    for word, count in words.items():
        for start in range(0, count, at_once):
            yield (word + " ") * min(at_once, count - start)


def _watched(texts: Iterator[str], seen: Counter[bool]) -> Iterator[str]:
    for text in texts:
        seen[bool(text.strip())] += 1
        yield text

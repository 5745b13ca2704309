"""Properties of every kind of tokenizer on any script, unusual marks and spaces: round trip, offsets, no crashes."""

from __future__ import annotations

import functools
import random
import unicodedata

import numpy as np
import pytest
from multilingual import MARKS, english_lines, generate_lines

from polyseme.io.lines import replace_surrogates
from polyseme.text.pipelines import TOKENIZER_KINDS
from polyseme.text.tokenizer import Tokenizer
from polyseme.text.validation import strip_markers

LINES = generate_lines(1200, seed=3) + english_lines(100)
NOISE = [
    *MARKS,
    "\u0323",
    "\u0651",
    "\u064e",
    "\u3099",
    "\uff9e",
    "\u1100",
    "\u1161",
    "\r\n",
    "[MASK]",
    "</s>",
    "##",
    "Ġ",
]


@functools.cache
def random_strings(count: int, seed: int) -> list[str]:
    """Generate strings of arbitrary code points, with marks in any place."""
    rng = random.Random(seed)
    blocks = [0x20, 0x80, 0x300, 0x370, 0x400, 0x590, 0x600, 0x900, 0xE00, 0x1100, 0x2000, 0x3000, 0x4E00, 0xAC00]
    blocks += [0xFB00, 0xFE00, 0xFF00, 0x1D400, 0x1F300, 0x1F900, 0xE0000]
    return [
        "".join(
            rng.choice(NOISE) if rng.random() < 0.2 else chr(rng.choice(blocks) + rng.randrange(0x80))
            for _ in range(rng.randint(0, 24))
        )
        for _ in range(count)
    ]


@pytest.fixture(scope="module", params=[(kind, lower) for kind in TOKENIZER_KINDS for lower in (False, True)])
def tokenizer(request: pytest.FixtureRequest) -> Tokenizer:
    kind, lower = request.param
    if kind.startswith("unigram"):
        pytest.importorskip("sentencepiece")
    plain = generate_lines(1500, seed=4, marks=["\u200d"])
    if kind in ("words", "whitespace"):  # they only know the words they were trained on
        return Tokenizer.train(kind, LINES, 100_000, lower, min_frequency=1)  # type: ignore[arg-type]
    options = {} if "bpe" in kind else {"max_alphabet": 580}
    return Tokenizer.train(kind, [*plain, *english_lines(300)], 2400, lower, **options)


def normalize(tokenizer: Tokenizer, text: str) -> str:
    normalizer = tokenizer.backend.normalizer
    return text if normalizer is None else normalizer.normalize_str(text)


def remove_spaces(text: str) -> str:
    return "".join(text.split())


@functools.cache
def combining_classes(line: str) -> list[int]:
    return [unicodedata.combining(unicodedata.normalize("NFKD", character)[0]) for character in line]


def cluster(line: str, start: int, end: int) -> str:
    """Return a slice extended to whole clusters of characters and marks, which NFC and NFKC may reorder."""
    marks = combining_classes(line)
    while start and marks[start]:
        start -= 1
    while end < len(line) and marks[end]:
        end += 1
    return line[start:end]


def test_decoding_restores_the_text(tokenizer: Tokenizer) -> None:
    known = 0
    encoded = tokenizer.encode_corpus(LINES)
    for line, token_ids in zip(LINES, np.split(encoded.ids, np.cumsum(encoded.lengths)[:-1]), strict=True):
        ids = token_ids.tolist()
        if not tokenizer.is_byte_level and tokenizer.special_token_ids.unk in ids:
            continue
        known += 1
        expected = normalize(tokenizer, line)
        if tokenizer.kind in ("wordpiece", "words", "whitespace"):  # does not mark spaces
            pieces = "".join(strip_markers(tokenizer, piece) for piece in tokenizer.convert_ids_to_tokens(ids))
            assert pieces == remove_spaces(expected)
        elif "▁" not in line:
            assert tokenizer.decode(ids) == expected
    assert known > (600 if not tokenizer.is_byte_level else len(LINES) - 1)


def test_offsets_cover_the_text(tokenizer: Tokenizer) -> None:
    for line in LINES[::3] + random_strings(500, seed=5):
        ids, offsets = tokenizer.encode_with_offsets(line)
        starts = [start for start, _ in offsets]
        assert starts == sorted(starts), line
        covered = np.zeros(len(line), bool)
        for piece, number, (start, end) in zip(tokenizer.convert_ids_to_tokens(ids), ids, offsets):
            assert 0 <= start <= end <= len(line)
            covered[start:end] = True
            if tokenizer.is_byte_level or number in tokenizer.all_special_ids:
                continue
            part = strip_markers(tokenizer, piece).replace("▁", "")
            assert part in normalize(tokenizer, cluster(line, start, end)).replace("▁", ""), (line, piece, start, end)
        for position in np.flatnonzero(~covered).tolist():  # only what the normalizer removes may be skipped
            skipped = line[position]
            assert not tokenizer.is_byte_level
            mark = unicodedata.normalize("NFKD", skipped)[0]  # a mark by itself may be normalized to a space or removed
            assert (
                not normalize(tokenizer, skipped).replace("▁", "").strip() or unicodedata.combining(mark) or mark == " "
            ), (
                line,
                position,
            )


def test_encode_corpus_agrees_with_encode(tokenizer: Tokenizer) -> None:
    tokens = {"[MASK]", *tokenizer.special_tokens_map.values()}  # `encode` treats these as special tokens
    lines = [line for line in random_strings(300, seed=6) + LINES[::8] if not any(token in line for token in tokens)]
    encoded = tokenizer.encode_corpus(lines)
    parts = np.split(encoded.ids, np.cumsum(encoded.lengths)[:-1])
    for number, (line, part) in enumerate(zip(lines, parts)):
        assert part.tolist() == tokenizer.encode(line), line
        assert number % 4 or len(tokenizer.encode_corpus([line]).word_starts) == len(part)


def test_encode_words_indices(tokenizer: Tokenizer) -> None:
    for line in LINES[::6] + random_strings(200, seed=7):
        words = line.split()
        if not words:
            continue
        ids, word_indices = tokenizer.encode_words(words)
        assert (
            len(ids) == len(word_indices)
            and word_indices == sorted(word_indices)
            and set(word_indices) <= set(range(len(words)))
        )
        if tokenizer.is_byte_level or tokenizer.kind == "characters":
            known = not tokenizer.all_special_ids & set(ids)
            assert not known or tokenizer.decode(ids) == normalize(tokenizer, " ".join(words))


def test_lone_surrogate_is_encoded_as_the_replacement_character(tokenizer: Tokenizer) -> None:
    broken, mended = "one \ud83d two\udc00 \ud800\udc00é", "one \ufffd two\ufffd \ufffd\ufffdé"
    assert replace_surrogates(broken) == mended and replace_surrogates("a\U0001f642é") == "a\U0001f642é"
    assert tokenizer.encode(broken) == tokenizer.encode(mended)
    assert tokenizer.encode_with_offsets(broken) == tokenizer.encode_with_offsets(mended)
    assert tokenizer.encode_words(broken.split()) == tokenizer.encode_words(mended.split())
    assert [a.tolist() for a in tokenizer.encode_batch([broken, "x"])] == [
        tokenizer.encode(mended),
        tokenizer.encode("x"),
    ]
    for ours, theirs in zip(*(tokenizer.encode_corpus(["x", text]) for text in (broken, mended))):
        np.testing.assert_array_equal(ours, theirs)


def test_special_tokens_in_a_corpus_are_plain_text(tokenizer: Tokenizer) -> None:
    for token in tokenizer.special_tokens_map.values():
        for text in (f"a {token} b", token, f"{token}{token}", f"x{token}y", token.lower()):
            special_ids = set(tokenizer.encode_corpus([text]).ids.tolist()) & tokenizer.all_special_ids
            assert special_ids <= ({tokenizer.special_token_ids.unk} if not tokenizer.is_byte_level else set()), text

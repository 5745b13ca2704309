"""No text changes the ids of another: words with equal hashes, real ones and forced ones."""

from __future__ import annotations

import itertools
import random

import numpy as np
import pytest

from polyseme.text import cached_encoder, span_hash, unit_cache
from polyseme.text.cached_encoder import CachedEncoder, encode_uncached, pretokenization_rule
from polyseme.text.tokenizer import Tokenizer
from polyseme.text.unit_cache import MAX_UNIT_BYTES, UnitCache, Units, load_units

# Found with Wagner's generalized birthday algorithm: words with the hash that the encoder once identified words by.
OLD_BASE = 0xD6E8FEB86659FD93
COLLISIONS = {
    "the": "slrmqfylbfeqinkzndbhptvnhpkrmhhx",
    "of": "vihgecdhzocaudtjsqmsyhcxijgpysmx",
    "and": "rdgzneiunxbnsxifryuulaxhfivspsjc",
    "river": "lxcrxtajvbbslwrzkchpxvdbpfzoigzd",
}
WORDS = [word for pair in COLLISIONS.items() for word in pair]
KINDS = ("wordpiece", "bpe", "words", "whitespace")


@pytest.fixture(scope="module", params=KINDS)
def tokenizer(request: pytest.FixtureRequest) -> Tokenizer:
    texts = [" ".join(WORDS), "the bank of the river and the sea", "a\x00b éé 漢字 " + "x" * 60] * 3
    return Tokenizer.train(request.param, iter(texts), 400)


def make_encoder(tokenizer: Tokenizer, bits: int = 12) -> CachedEncoder:
    rule = pretokenization_rule(tokenizer._plain_backend)
    assert rule is not None
    return CachedEncoder(tokenizer._plain_backend, rule, tokenizer._is_word_start, bits)


def check_ids(tokenizer: Tokenizer, encoder: CachedEncoder, texts: list[str]) -> None:
    expected = encode_uncached(tokenizer._plain_backend, texts, tokenizer._is_word_start)
    for encoded_array, expected_array in zip(encoder.encode(texts), expected):
        assert encoded_array.tolist() == expected_array.tolist()


def test_words_collide_under_the_old_hash() -> None:
    def old_hash(word: str) -> int:
        return sum((ord(char) + 1) * pow(OLD_BASE, i, 1 << 64) for i, char in enumerate(word)) % (1 << 64)

    assert all(old_hash(word) == old_hash(crafted) for word, crafted in COLLISIONS.items())


def test_crafted_words_keep_their_ids_in_any_order(tokenizer: Tokenizer) -> None:
    for pair in itertools.chain(COLLISIONS.items(), (pair[::-1] for pair in COLLISIONS.items())):
        check_ids(tokenizer, make_encoder(tokenizer), [" ".join(pair), "the river " + " ".join(pair)])  # one batch
        encoder = make_encoder(tokenizer)
        for word in pair * 2:  # across batches
            check_ids(tokenizer, encoder, [word, f" {word} {word}"])


@pytest.mark.parametrize("bits", [0, 3])
def test_ids_are_right_when_all_hashes_collide(
    tokenizer: Tokenizer, bits: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    true_hash = Units.hash
    monkeypatch.setattr(Units, "hash", lambda units: true_hash(units) & np.uint64((1 << bits) - 1))
    monkeypatch.setattr(cached_encoder, "BATCH_CHARS", 200)
    rng, encoder = random.Random(bits), make_encoder(tokenizer, bits=7)
    parts = [*WORDS, "a", "ab", "aa", "a\x00", "\x00\x00", "b\x00\x00", "é", "éé", "漢", "abcdefg", "abcdefgh"]
    parts += ["abcdefgh\x00", "abcdefghabcdefgh", "abcdefghabcdefg", "x" * (MAX_UNIT_BYTES - 1), "x" * MAX_UNIT_BYTES]
    parts += ["x" * (MAX_UNIT_BYTES + 1), "x" * 60, "x" * 59 + "y", "é" * 23, "é" * 24, ".", "!", "1", "12"]
    for _ in range(12):
        check_ids(tokenizer, encoder, [" ".join(rng.choices(parts, k=20)) for _ in range(4)])
    assert encoder.cache.num_units > 10


def test_cache_finds_exactly_the_units_it_holds() -> None:
    rng = random.Random(0)
    texts = sorted({"".join(rng.choices("ab\x00é", k=rng.randrange(1, 20))) for _ in range(500)})
    raw = [text.encode() for text in texts]
    sizes = np.array(list(map(len, raw)))
    starts = np.cumsum(sizes) - sizes
    units = load_units(b"".join(raw) + bytes(8), starts, sizes)
    cache = UnitCache(11)
    half = np.arange(0, len(texts), 2)
    ones = np.ones(len(half), np.int64)
    cache.add(units.take(half), unit_cache.EncodedTexts(np.arange(len(half), dtype=np.int32), ones, ones > 0))
    unit_numbers = cache.find(units)
    assert unit_numbers[half].tolist() == list(range(1, len(half) + 1))
    assert not unit_numbers[1::2].any()


def test_the_hash_of_spans_depends_on_the_key() -> None:
    values = np.array([3, 1, 2, 9, 3, 1, 2], np.uint64)
    starts, stops = np.array([0, 4, 1]), np.array([3, 7, 4])
    hashes = [span_hash.SpanHasher(key).hash_spans(values, starts, stops).tolist() for key in (b"a", b"a", b"b")]
    assert hashes[0] == hashes[1] and set(hashes[0]).isdisjoint(hashes[2])
    assert hashes[0][0] == hashes[0][1] != hashes[0][2]
    char_values = [span_hash.SpanHasher(key).char_values for key in (b"a", b"b")]
    assert all(len(values) == span_hash.NUM_CODE_POINTS for values in char_values)
    assert len({*char_values[0][:999].tolist(), *char_values[1][:999].tolist()}) == 1998

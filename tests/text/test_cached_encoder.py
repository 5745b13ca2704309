"""The cached encoder gives the same ids as the tokenizer: all scripts, unusual spaces, small tables."""

from __future__ import annotations

import json
import random
from pydoc_data.topics import topics

import pytest
from tokenizers import Tokenizer as Backend

from polyseme.text import cached_encoder
from polyseme.text.cached_encoder import CachedEncoder, encode_uncached, pretokenization_rule
from polyseme.text.tokenizer import Tokenizer

TEXTS = [text for _, text in sorted(topics.items())][:30]
WORDS = [
    *("the", "Café", "naïve", "it's", "I'LL", "'s", "rock'n'roll", "x'", "''", "don’t", "12", "3.14", "a1b2", "U.S.A."),
    *(
        "東京",
        "漢字かな",
        "ไทย",
        "हिन्दी",
        "العربية",
        "русский",
        "ﬁne",
        "İstanbul",
        "ΣΑΣ",
        "e\u0301",
        "\u0301x",
        "ß",
        "½",
    ),
    *(
        "🙂",
        "👩\u200d💻",
        "\u200f",
        "\ufeff",
        "\ufffd",
        "\x00",
        "\x07b",
        "—",
        "…",
        "“q”",
        "。",
        "「",
        "！",
        "[MASK]",
        "##x",
    ),
    *(
        "(a",
        "b)",
        "!?",
        "_",
        "a_b",
        "<|endoftext|>",
        "\U0001f1e9\U0001f1ea",
        "㐀",
        "\U00020000",
        "x" * 60,
        "9" * 120,
        "1st",
    ),
]
SPACES = [
    " ",
    " ",
    " ",
    "",
    "",
    "  ",
    "\n",
    "\n\n",
    "\t",
    "\r\n",
    "\xa0",
    "\u3000",
    "\x0b",
    "\x85",
    "\u2028",
    "\u200b",
    " \n ",
]


def random_text(rng: random.Random) -> str:
    kinds = [lambda: rng.choice(WORDS), lambda: chr(rng.randrange(32, 0x2100)), lambda: rng.choice(WORDS).upper()]
    parts = [rng.choice(kinds)() + rng.choice(SPACES) for _ in range(rng.randrange(12))]
    return rng.choice(SPACES) + "".join(parts)


CASES = [(kind, lower) for kind in ("wordpiece", "bpe", "words", "whitespace") for lower in (True, False)]


@pytest.fixture(scope="module", params=CASES, ids=str)
def tokenizer(request: pytest.FixtureRequest) -> Tokenizer:
    kind, lowercase = request.param
    return Tokenizer.train(kind, iter([*TEXTS, " ".join(WORDS)]), 900, lowercase)


@pytest.mark.parametrize("bits", [4, pytest.param(9, marks=pytest.mark.slow), 20])
def test_cached_ids_equal_those_of_the_tokenizer(
    tokenizer: Tokenizer, bits: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cached_encoder, "BATCH_CHARS", 300)
    rule = pretokenization_rule(tokenizer._plain_backend)
    assert rule is not None
    encoder = CachedEncoder(tokenizer._plain_backend, rule, tokenizer._is_word_start, bits)
    rng = random.Random(bits)
    for _ in range(6):
        texts = [random_text(rng) for _ in range(80)] + TEXTS[:2]
        expected = encode_uncached(tokenizer._plain_backend, texts, tokenizer._is_word_start)
        encoded = encoder.encode(texts)
        assert encoded.lengths.tolist() == expected.lengths.tolist()
        assert encoded.ids.tolist() == expected.ids.tolist()
        assert encoded.word_starts.tolist() == expected.word_starts.tolist()
    assert bits < 20 or encoder.cache.num_units > 500


def test_empty_texts(tokenizer: Tokenizer) -> None:
    for texts in ([], [""], ["", "\x00", ""]):
        encoded = tokenizer.encode_corpus(texts)
        assert (
            len(encoded.lengths) == len(texts) and len(encoded.ids) == len(encoded.word_starts) == encoded.lengths.sum()
        )


def test_unknown_pretokenization_falls_back_to_the_tokenizer() -> None:
    tokenizer = Tokenizer.train("wordpiece", iter(TEXTS), 900)
    tokenizer.backend.add_tokens(["the end"])
    assert pretokenization_rule(tokenizer.backend) is None
    text = "this is the end of it"
    assert Tokenizer(tokenizer.backend).encode_corpus([text]).ids.tolist() == tokenizer.encode(text)


def test_word_starts_with_another_continuation_prefix() -> None:
    config = json.loads(Tokenizer.train("wordpiece", iter(TEXTS), 900).backend.to_str())
    vocab = {piece.replace("##", "@@"): number for piece, number in config["model"]["vocab"].items()}
    config["model"] |= {"vocab": vocab, "continuing_subword_prefix": "@@"}
    tokenizer = Tokenizer(Backend.from_str(json.dumps(config)))
    encoded = tokenizer.encode_corpus(["unbelievable café words"])
    assert encoded.word_starts.tolist() == [
        not piece.startswith("@@") for piece in tokenizer.convert_ids_to_tokens(encoded.ids)
    ]
    assert not encoded.word_starts.all()

"""Looking units up gives what the tokenizer gives: on every script, every odd space, and with a table too small."""

from __future__ import annotations

import json
import random
from pydoc_data.topics import topics

import pytest
from tokenizers import Tokenizer as Backend

from polyseme.text import cached_encoder as units
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


def odd(draw: random.Random) -> str:
    kinds = [lambda: draw.choice(WORDS), lambda: chr(draw.randrange(32, 0x2100)), lambda: draw.choice(WORDS).upper()]
    parts = [draw.choice(kinds)() + draw.choice(SPACES) for _ in range(draw.randrange(12))]
    return draw.choice(SPACES) + "".join(parts)


CASES = [(kind, lower) for kind in ("wordpiece", "bpe", "words", "whitespace") for lower in (True, False)]


@pytest.fixture(scope="module", params=CASES, ids=str)
def tokenizer(request: pytest.FixtureRequest) -> Tokenizer:
    kind, lowercase = request.param
    return Tokenizer.train(kind, iter([*TEXTS, " ".join(WORDS)]), 900, lowercase)


@pytest.mark.parametrize("bits", [4, 9, 20])
def test_units_give_what_the_tokenizer_gives(tokenizer: Tokenizer, bits: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(units, "BATCH_CHARS", 300)
    rule = pretokenization_rule(tokenizer._plain_backend)
    assert rule is not None
    encoder = CachedEncoder(tokenizer._plain_backend, rule, tokenizer._is_word_start, bits)
    draw = random.Random(bits)
    for _ in range(12):
        texts = [odd(draw) for _ in range(80)] + TEXTS[:2]
        expected = encode_uncached(tokenizer._plain_backend, texts, tokenizer._is_word_start)
        found = encoder.encode(texts)
        assert found.lengths.tolist() == expected.lengths.tolist()
        assert found.ids.tolist() == expected.ids.tolist()
        assert found.word_starts.tolist() == expected.word_starts.tolist()
    assert bits < 20 or encoder.cache.num_units > 500


def test_nothing_is_something(tokenizer: Tokenizer) -> None:
    for texts in ([], [""], ["", "\x00", ""]):
        run = tokenizer.encode_corpus(texts)
        assert len(run.lengths) == len(texts) and len(run.ids) == len(run.word_starts) == run.lengths.sum()


def test_a_tokenizer_of_another_make_is_asked_itself(tokenizer: Tokenizer) -> None:
    other = Tokenizer.train("wordpiece", iter(TEXTS), 900)
    other.backend.add_tokens(["the end"])
    assert pretokenization_rule(other.backend) is None
    text = "this is the end of it"
    assert Tokenizer(other.backend).encode_corpus([text]).ids.tolist() == other.encode(text)


def test_another_prefix_tells_where_words_start() -> None:
    said = json.loads(Tokenizer.train("wordpiece", iter(TEXTS), 900).backend.to_str())
    vocab = {piece.replace("##", "@@"): number for piece, number in said["model"]["vocab"].items()}
    said["model"] |= {"vocab": vocab, "continuing_subword_prefix": "@@"}
    other = Tokenizer(Backend.from_str(json.dumps(said)))
    run = other.encode_corpus(["unbelievable café words"])
    assert run.word_starts.tolist() == [not piece.startswith("@@") for piece in other.convert_ids_to_tokens(run.ids)]
    assert not run.word_starts.all()

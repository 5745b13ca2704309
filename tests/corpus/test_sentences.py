"""Sentences concatenate to their text, and byte-level BPE gives the same ids with and without splitting."""

from __future__ import annotations

import gzip
import random
import sys
from pathlib import Path
from pydoc_data.topics import topics

import pytest

from polyseme.corpus.clean.sentences import split_sentences
from polyseme.errors import PolysemeError
from polyseme.text.tokenizer import Tokenizer

SHARED = Path(__file__).parents[3] / "shared"


def same_ids(tokenizer: Tokenizer, *texts: str) -> bool:
    parts = [split_sentences(text) for text in texts]
    assert ["".join(sentences) for sentences in parts] == list(texts)
    sentence_ids = tokenizer.encode_corpus([sentence for sentences in parts for sentence in sentences]).ids
    return sentence_ids.tolist() == tokenizer.encode_corpus(list(texts)).ids.tolist()


@pytest.fixture(scope="module")
def bpe() -> Tokenizer:
    return Tokenizer.train("bpe", iter(sorted(topics.values())), 800, lowercase=False)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("Dr. Smith left. He ran.", ["Dr. Smith left.", " He ran."]),
        ("One.\n\nTwo!  Three?\n", ["One.", "\n\nTwo!", "  Three?\n"]),
        ("a title\nA line", ["a title", "\nA line"]),
        ("  Led by space.", ["  Led by space."]),
        ("See torch.Tensor for more.", ["See torch.Tensor for more."]),
        ("你好。我是。", ["你好。", "我是。"]),
        (" \n ", [" \n "]),
        ("", []),
    ],
)
def test_split_sentences(text: str, expected: list[str]) -> None:
    assert split_sentences(text) == expected


def test_splitting_does_not_change_bpe_ids(bpe: Tokenizer) -> None:
    assert same_ids(bpe, *topics.values())
    characters = [
        *"abA1.!?\"'’”)( \n\t\x1c\x85\xa0_,。我é\u0301-",
        "Dr. ",
        "'s",
        "...",
        "  ",
        "\n\n",
        "end. Next",
    ]
    rng = random.Random(0)
    for _ in range(30):
        texts = ["".join(rng.choices(characters, k=rng.randrange(40))) for _ in range(100)]
        assert same_ids(bpe, *texts), texts


def test_very_long_lines_are_split(bpe: Tokenizer) -> None:
    text = "This goes on and on. It never breaks the line. " * 3000
    parts = split_sentences(text)
    assert len(parts) >= 6000 and max(map(len, parts)) < 100
    assert same_ids(bpe, text[:50_000]) and same_ids(bpe, "word" * 20_000)


@pytest.mark.skipif(not SHARED.is_dir(), reason="shared data not available")
def test_splitting_does_not_change_ids_of_published_gpt2() -> None:
    tokenizer = Tokenizer.load(SHARED / "vocab" / "gpt2-tokenizer.json")
    with gzip.open(SHARED / "data" / "wikitext-2" / "wiki.valid.raw.gz", "rt", encoding="utf-8") as file:
        assert same_ids(tokenizer, file.read())


def test_missing_sentencex_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "sentencex", None)
    with pytest.raises(PolysemeError, match="pip install sentencex"):
        split_sentences("One. Two.")
    monkeypatch.undo()
    assert len(split_sentences("One. Two.")) == 2

"""Words as tokens: which words there are, what is unknown, and text that is cut already."""

from __future__ import annotations

from pathlib import Path

import pytest

from polyseme.text.tokenizer import Tokenizer, TokenizerKind

TEXTS = ["The café, the Café: it's 3.14!", "The cat saw the other cat.", "the mat"]


def test_words_are_those_that_occur_often_enough_the_most_frequent_first() -> None:
    made = Tokenizer.train("words", TEXTS, 1000, lowercase=True)
    assert made.vocabulary == ["<pad>", "<unk>", "<s>", "</s>", "the", ".", "café", "cat"]
    assert made.convert_ids_to_tokens(made.encode("The CAFÉ, a cat")) == ["the", "café", "<unk>", "<unk>", "cat"]
    assert (
        made.build_inputs_with_special_tokens(made.encode("cat")) == ([7], [0])
        and made.special_token_ids.unk == 1
        and made.special_token_ids.eos == 3
    )
    assert Tokenizer.train("words", TEXTS, 6, lowercase=True).vocabulary[4:] == ["the", "."]
    assert len(Tokenizer.train("words", TEXTS, 1000, min_frequency=1).vocabulary) == 21


def test_spaced_words_are_left_as_they_are_and_unk_is_unknown() -> None:
    made = Tokenizer.train("whitespace", ["the <unk> @-@ sat , the <unk> </s> sat @-@ x,y"] * 2, 1000)
    assert made.vocabulary[:4] == ["<pad>", "<unk>", "<s>", "</s>"] and made.vocabulary.count("<unk>") == 1
    ids = made.encode_corpus(["the <unk> @-@ x,y </s> new"]).ids.tolist()
    assert made.convert_ids_to_tokens(ids) == [
        "the",
        "<unk>",
        "@-@",
        "x,y",
        "<",
        "/s>",
        "<unk>",
    ]  # no corpus ends a text by itself
    assert made.encode("sat </s>")[-1] == made.special_token_ids.eos


@pytest.mark.parametrize("kind", ["words", "whitespace"])
def test_a_folder_keeps_the_kind(kind: TokenizerKind, tmp_path: Path) -> None:
    made = Tokenizer.train(kind, TEXTS, 1000)
    made.save(tmp_path)
    again = Tokenizer.load(tmp_path)
    assert (again.kind, again.hash) == (kind, made.hash)

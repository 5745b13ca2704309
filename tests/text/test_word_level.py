"""Word-level tokenizers: choice of words, unknown words, and pre-tokenized text."""

from __future__ import annotations

from pathlib import Path

import pytest

from polyseme.text.pipelines import TokenizerKind
from polyseme.text.tokenizer import Tokenizer

TEXTS = ["The café, the Café: it's 3.14!", "The cat saw the other cat.", "the mat"]


def test_words_are_sorted_by_frequency() -> None:
    tokenizer = Tokenizer.train("words", TEXTS, 1000, lowercase=True)
    assert tokenizer.vocabulary == ["<pad>", "<unk>", "<s>", "</s>", "the", ".", "café", "cat"]
    assert tokenizer.convert_ids_to_tokens(tokenizer.encode("The CAFÉ, a cat")) == [
        "the",
        "café",
        "<unk>",
        "<unk>",
        "cat",
    ]
    assert (
        tokenizer.build_inputs_with_special_tokens(tokenizer.encode("cat")) == ([7], [0])
        and tokenizer.special_token_ids.unk == 1
        and tokenizer.special_token_ids.eos == 3
    )
    assert Tokenizer.train("words", TEXTS, 6, lowercase=True).vocabulary[4:] == ["the", "."]
    assert len(Tokenizer.train("words", TEXTS, 1000, min_frequency=1).vocabulary) == 21


def test_whitespace_words_are_unchanged_and_unk_is_unknown() -> None:
    tokenizer = Tokenizer.train("whitespace", ["the <unk> @-@ sat , the <unk> </s> sat @-@ x,y"] * 2, 1000)
    assert tokenizer.vocabulary[:4] == ["<pad>", "<unk>", "<s>", "</s>"] and tokenizer.vocabulary.count("<unk>") == 1
    ids = tokenizer.encode_corpus(["the <unk> @-@ x,y </s> new"]).ids.tolist()
    assert tokenizer.convert_ids_to_tokens(ids) == [
        "the",
        "<unk>",
        "@-@",
        "x,y",
        "<",
        "/s>",
        "<unk>",
    ]  # `</s>` in a corpus is plain text
    assert tokenizer.encode("sat </s>")[-1] == tokenizer.special_token_ids.eos


def test_whitespace_words_that_look_like_special_tokens_of_other_kinds_get_no_role() -> None:
    text = "the [MASK] sat <mask> on [UNK] [PAD] <cls> [SEP] the mat <|endoftext|>"
    tokenizer = Tokenizer.train("whitespace", [text] * 3, 1000)
    assert tokenizer.special_tokens_map == Tokenizer.train("whitespace", ["a mat"] * 3, 1000).special_tokens_map
    tokens = tokenizer.convert_ids_to_tokens(tokenizer.encode_corpus([text]).ids.tolist())
    assert tokens == ["the", "<unk>", "sat", "<unk>", "on", *["<unk>"] * 4, "the", "mat", "<unk>"]


@pytest.mark.parametrize("kind", ["words", "whitespace"])
def test_saved_tokenizer_keeps_its_kind(kind: TokenizerKind, tmp_path: Path) -> None:
    tokenizer = Tokenizer.train(kind, TEXTS, 1000)
    tokenizer.save(tmp_path)
    reloaded = Tokenizer.load(tmp_path)
    assert (reloaded.kind, reloaded.hash) == (kind, tokenizer.hash)

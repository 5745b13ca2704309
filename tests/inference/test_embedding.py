"""Texts are encoded for `embed` at once: each has to be as when it is encoded alone."""

from dataclasses import replace

import numpy as np
import pytest

import polyseme
from polyseme.errors import DataError, TextTooLongError
from polyseme.inference.embedding import EncodedSequences, encode_texts

TEXTS = ["The old cat sees the dog.", "a", "the unseen swan follows the quiet wolf", "ä [CLS] b!"]
FAMILIES = ["bert", "roberta", "gpt2", "t5", "xlnet", "elmo"]  # with different special tokens


@pytest.fixture(scope="module")
def packed_models(tiny_folders):
    return {family: polyseme.load(tiny_folders[family], device="cpu").packed_model for family in FAMILIES}


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("max_tokens", [0, 3])
def test_sequences_are_those_of_single_texts(family, max_tokens, packed_models):
    packed = packed_models[family]
    tokenizer = packed.tokenizer
    if max_tokens:
        packed = limit_length(packed, max_tokens + tokenizer.num_special_tokens_to_add())
    encoded = encode_texts(packed, TEXTS, "text", truncate=True)
    ends = np.cumsum(encoded.lengths)
    word_starts = []
    for text, start, end in zip(TEXTS, ends - encoded.lengths, ends):
        alone = tokenizer.encode_corpus([text])
        ids = alone.ids[: max_tokens or None].tolist()
        expected = tokenizer.build_inputs_with_special_tokens(ids)
        assert (encoded.ids[start:end].tolist(), encoded.segments[start:end].tolist()) == expected
        word_starts += alone.word_starts[: len(ids)].tolist()
    assert encoded.word_starts.tolist() == word_starts
    parts = [encode_texts(packed, part, "text", truncate=True) for part in (TEXTS[:1], TEXTS[1:])]
    joined = EncodedSequences.concat(parts)
    for name in ("ids", "segments", "word_starts", "lengths"):
        np.testing.assert_array_equal(getattr(joined, name), getattr(encoded, name))


def test_the_first_invalid_text_is_named(packed_models):
    packed = limit_length(packed_models["bert"], 6)
    long_text = "a " * 9
    for truncate in (False, True):
        with pytest.raises(DataError, match="no tokens: ' '"):
            encode_texts(packed, ["a", " ", long_text], "text", truncate)
    with pytest.raises(TextTooLongError, match="11 tokens is longer than the model reads \\(6\\)"):
        encode_texts(packed, ["a", long_text, " "], "text", False)


def limit_length(packed, max_len):
    return replace(packed, pooling=replace(packed.pooling, max_len=max_len))

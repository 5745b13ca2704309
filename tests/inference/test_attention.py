"""`model.attention`: tokens, words, and errors."""

import numpy as np
import pytest

import polyseme
from polyseme.inference.inspection.attention import Attention, AttentionMap, LabeledTokens
from polyseme.text.tokenizer import Tokenizer

TEXT = "The old cat sees the dog."


@pytest.fixture(scope="module")
def tokenizer():
    return Tokenizer.train("wordpiece", iter(["the cat sings the dogs sing un hap py", "cats dog"] * 5), 80)


def test_words_of_a_text_and_special_tokens(tokenizer):
    labels = LabeledTokens.from_text(tokenizer, "Unhappy [MASK] dogs!")
    assert labels.words[:3] == ["Unhappy", "[MASK]", "dogs"] and labels.word_ids[0] == labels.word_ids[1] == 0
    assert len(labels.words) == 4 and labels.word_ids == sorted(labels.word_ids)
    assert "[MASK]" in [token for token, is_special in zip(labels.tokens, labels.is_special) if is_special]
    joined = LabeledTokens.from_ids(tokenizer, [tokenizer.special_token_ids.cls]).join(labels)
    assert joined.words == ["[CLS]", *labels.words] and joined.word_ids == [0, *(i + 1 for i in labels.word_ids)]


def test_generated_tokens_have_words_if_their_text_is_encoded_alike(tokenizer):
    ids = tokenizer.encode("unhappy dogs")
    assert LabeledTokens.from_generated(tokenizer, ids).words == ["unhappy", "dogs"]
    pieces = [tokenizer.backend.token_to_id(token) for token in ("dog", "##s")]  # the text has a token of its own
    assert LabeledTokens.from_generated(tokenizer, pieces).words == ["dog", "##s"]


def test_merged_words_sum_columns_and_average_rows():
    weights = np.array([[[[0.1, 0.2, 0.7], [0.5, 0.3, 0.2], [0.3, 0.3, 0.4]]]], np.float32)
    pieces, words, word_ids = ["[CLS]", "un", "##do"], ["[CLS]", "undo"], [0, 1, 1]
    merged = Attention((AttentionMap("self", pieces, pieces, weights, words, words, word_ids, word_ids),)).merge_words()
    assert merged["self"].queries == merged["self"].keys == words
    np.testing.assert_allclose(merged["self"].weights[0, 0], [[0.1, 0.9], [0.4, 0.6]], atol=1e-7)
    assert merged["self"].weights.dtype == np.float32
    np.testing.assert_array_equal(merged.merge_words()["self"].weights, merged["self"].weights)


@pytest.mark.parametrize("family", ["bert", "gpt2", "xlnet", "t5", "transformer", "seq2seq", "transformer_xl", "music"])
def test_every_row_sums_to_one_and_words_are_those_of_the_text(family, tiny_folders):
    model = polyseme.load(tiny_folders[family], device="cpu")
    attention, (alone,) = model.attention(TEXT), model.attention([TEXT])
    names = ("encoder", "decoder", "cross") if family in ("t5", "transformer") else ("self",)
    assert attention.names == (("cross",) if family == "seq2seq" else names)
    for each, other in zip(attention.maps, alone.maps):
        np.testing.assert_array_equal(each.weights, other.weights)
        assert each.weights.shape[2:] == (len(each.queries), len(each.keys))
        merged = each.merge_words()
        assert merged.weights.shape[2:] == (len(each.query_words), len(each.key_words))
        np.testing.assert_allclose(each.weights.sum(-1), 1, atol=1e-5)
        np.testing.assert_allclose(merged.weights.sum(-1), 1, atol=1e-5)
    assert {"old", "cat", "sees", "the"} <= set(attention.maps[0].key_words)


def test_representations(tiny_folders):
    attention = polyseme.load(tiny_folders["bert"], device="cpu").attention("the cat")
    assert repr(attention) == "Attention(self: 3 layers × 3 heads, 4 queries × 4 keys)"
    assert repr(attention["self"]) == "AttentionMap(self: 3 layers × 3 heads, 4 queries × 4 keys)"
    assert attention._repr_html_().startswith('<figure><img alt="self, layer 3, mean of 3 heads" src="data:image/svg')


def test_errors(tiny_folders):
    bert, t5 = (polyseme.load(tiny_folders[name], device="cpu") for name in ("bert", "t5"))
    for call, error, message in (
        (
            lambda: bert.attention("cat " * 60),
            polyseme.DataError,
            r"of 62 tokens is longer than the model reads \(48\)",
        ),
        (lambda: t5.attention("cat " * 60), polyseme.DataError, r"of 61 tokens is longer than the model reads \(48\)"),
        (lambda: t5.attention("cat", target="cat " * 60), polyseme.DataError, r"a target of 61 tokens .* \(48\)"),
        (lambda: bert.attention(""), polyseme.DataError, "no tokens"),
        (lambda: t5.attention(""), polyseme.DataError, "no tokens"),
        (lambda: bert.attention("cat", target="dog"), polyseme.ConfigError, "`target` has no effect"),
        (lambda: t5.attention("cat", "dog"), polyseme.ConfigError, "`pair` has no effect"),
        (lambda: bert.attention("cat")["cross"], polyseme.ConfigError, "no attention 'cross'; the maps are self"),
        (lambda: bert.attention(["cat", "dog"], ["cat"]), polyseme.DataError, "parallel"),
        (lambda: polyseme.load(tiny_folders["rnn_lm"]).attention("cat"), polyseme.UnsupportedError, "show attention"),
    ):
        with pytest.raises(error, match=message):
            call()

"""The token of the whole sequence may stand last: XLNet's tokenizer, published and trained here."""

import io

import pytest

from polyseme.text import sentencepiece_model as sentence_pieces
from polyseme.text.tokenizer import Tokenizer

WORDS = "the old cat sees a young dog near the river and follows it into the forest".split()  # noqa: SIM905


def test_a_published_vocabulary_says_it_by_its_control_symbols(tmp_path):
    """As XLNet's spiece.model: <cls> and <sep> among the control symbols."""
    sentencepiece = pytest.importorskip("sentencepiece")
    written = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter([" ".join(WORDS)] * 20), model_writer=written, vocab_size=60, hard_vocab_limit=False,
        control_symbols=["<cls>", "<sep>", "<pad>", "<mask>", "<eod>", "<eop>"], minloglevel=3,
    )  # fmt: skip
    backend, config = sentence_pieces.build_tokenizer(sentence_pieces.parse_model(written.getvalue()), "test")
    made = Tokenizer(backend, config)
    cls, sep = made.special_token_ids.cls, made.special_token_ids.sep
    assert made.convert_ids_to_tokens([cls, sep]) == ["<cls>", "<sep>"]
    assert made.build_inputs_with_special_tokens([40, 41]) == ([40, 41, sep, cls], [0, 0, 0, 2])
    assert made.build_inputs_with_special_tokens([40], [41, 42]) == ([40, sep, 41, 42, sep, cls], [0, 0, 1, 1, 1, 2])
    made.save(tmp_path)
    assert Tokenizer.load(tmp_path).build_inputs_with_special_tokens(
        [40], [41]
    ) == made.build_inputs_with_special_tokens([40], [41])


@pytest.mark.parametrize("kind", ["wordpiece", "unigram", "bpe"])
def test_a_vocabulary_trained_here_serves_both(kind, tmp_path):
    plain = Tokenizer.train(kind, iter([" ".join(WORDS)] * 20), 300)
    last = plain.with_cls_position("last")
    assert plain.with_cls_position("first") is plain
    if kind == "bpe":  # which has no such token
        assert last is plain
        return
    cls, sep = plain.special_token_ids.cls, plain.special_token_ids.sep
    assert plain.build_inputs_with_special_tokens([9], [8]) == ([cls, 9, sep, 8, sep], [0, 0, 0, 1, 1])
    assert last.build_inputs_with_special_tokens([9], [8]) == ([9, sep, 8, sep, cls], [0, 0, 1, 1, 2])
    assert last.encode("the cat") == plain.encode("the cat") and last.vocab_size == plain.vocab_size
    last.save(tmp_path)
    assert Tokenizer.load(tmp_path).build_inputs_with_special_tokens([9]) == last.build_inputs_with_special_tokens([9])
    transformers = pytest.importorskip("transformers")
    theirs = transformers.AutoTokenizer.from_pretrained(tmp_path)
    found = theirs(["the cat", "the cat sees a dog"], padding=True)
    assert theirs.padding_side == "left" and [row[-1] for row in found["input_ids"]] == [cls, cls]
    assert found["token_type_ids"][1] == last.build_inputs_with_special_tokens(last.encode("the cat sees a dog"))[1]

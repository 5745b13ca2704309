"""Position of the CLS token: last in XLNet's tokenizer, imported or trained."""

import io

import pytest

from polyseme.text.sentencepiece_model import build_tokenizer, parse_model
from polyseme.text.tokenizer import Tokenizer

WORDS = "the old cat sees a young dog near the river and follows it into the forest".split()  # noqa: SIM905


def test_control_symbols_put_cls_last(tmp_path):
    """XLNet's spiece.model has <cls> and <sep> as control symbols."""
    sentencepiece = pytest.importorskip("sentencepiece")
    model_buffer = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter([" ".join(WORDS)] * 20), model_writer=model_buffer, vocab_size=60,
        hard_vocab_limit=False, control_symbols=["<cls>", "<sep>", "<pad>", "<mask>", "<eod>", "<eop>"], minloglevel=3,
    )  # fmt: skip
    backend, config = build_tokenizer(parse_model(model_buffer.getvalue()), "test")
    tokenizer = Tokenizer(backend, config)
    cls, sep = tokenizer.special_token_ids.cls, tokenizer.special_token_ids.sep
    assert tokenizer.convert_ids_to_tokens([cls, sep]) == ["<cls>", "<sep>"]
    assert tokenizer.build_inputs_with_special_tokens([40, 41]) == ([40, 41, sep, cls], [0, 0, 0, 2])
    assert tokenizer.build_inputs_with_special_tokens([40], [41, 42]) == (
        [40, sep, 41, 42, sep, cls],
        [0, 0, 1, 1, 1, 2],
    )
    tokenizer.save(tmp_path)
    assert Tokenizer.load(tmp_path).build_inputs_with_special_tokens(
        [40], [41]
    ) == tokenizer.build_inputs_with_special_tokens([40], [41])


@pytest.mark.parametrize("kind", ["wordpiece", "unigram", "bpe"])
def test_with_cls_position(kind, tmp_path):
    plain = Tokenizer.train(kind, iter([" ".join(WORDS)] * 20), 300)
    last = plain.with_cls_position("last")
    assert plain.with_cls_position("first") is plain
    if kind == "bpe":  # has no CLS token
        assert last is plain
        return
    cls, sep = plain.special_token_ids.cls, plain.special_token_ids.sep
    assert plain.build_inputs_with_special_tokens([9], [8]) == ([cls, 9, sep, 8, sep], [0, 0, 0, 1, 1])
    assert last.build_inputs_with_special_tokens([9], [8]) == ([9, sep, 8, sep, cls], [0, 0, 1, 1, 2])
    assert last.encode("the cat") == plain.encode("the cat") and last.vocab_size == plain.vocab_size
    last.save(tmp_path)
    assert Tokenizer.load(tmp_path).build_inputs_with_special_tokens([9]) == last.build_inputs_with_special_tokens([9])
    transformers = pytest.importorskip("transformers")
    hf_tokenizer = transformers.AutoTokenizer.from_pretrained(tmp_path)
    encodings = hf_tokenizer(["the cat", "the cat sees a dog"], padding=True)
    assert hf_tokenizer.padding_side == "left" and [row[-1] for row in encodings["input_ids"]] == [cls, cls]
    assert encodings["token_type_ids"][1] == last.build_inputs_with_special_tokens(last.encode("the cat sees a dog"))[1]

"""Sentinel tokens: T5's sentencepiece file has neither them nor an EOS template; loading adds both."""

import io
import json

import pytest

from polyseme.text.tokenizer import Tokenizer
from tests.support.text import documents

TEXTS = ["The old cat sees the dog.", "the <extra_id_0> of <extra_id_1>.", "unseen zebras: 12!", "a"]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Write spiece.model and tokenizer_config.json, like `transformers` for T5 v1.1."""
    sentencepiece = pytest.importorskip("sentencepiece")
    path = tmp_path_factory.mktemp("published")
    model_buffer = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(documents()), model_writer=model_buffer, vocab_size=120, model_type="unigram", pad_id=0,
        eos_id=1, unk_id=2, bos_id=-1, minloglevel=3, hard_vocab_limit=False,
    )  # fmt: skip
    (path / "spiece.model").write_bytes(model_buffer.getvalue())
    special_tokens = {"eos_token": "</s>", "unk_token": "<unk>", "pad_token": "<pad>"}
    (path / "tokenizer_config.json").write_text(json.dumps({"extra_ids": 100, **special_tokens}))
    return path


def test_imported_t5_vocabulary_gets_sentinels(folder, tmp_path):
    tokenizer = Tokenizer.load(folder)
    pieces = tokenizer.vocab_size - 100
    assert tokenizer.sentinel_ids == tuple(range(pieces + 99, pieces - 1, -1))
    assert tokenizer.build_inputs_with_special_tokens([5, 6])[0] == [5, 6, 1] and tokenizer.special_token_ids.eos == 1
    assert tokenizer.convert_ids_to_tokens(tokenizer.encode("the <extra_id_0> cat"))[1] == "<extra_id_0>"
    tokenizer.save(tmp_path)
    reloaded = Tokenizer.load(tmp_path)
    assert reloaded.sentinel_ids == tokenizer.sentinel_ids
    assert all(reloaded.encode(text) == tokenizer.encode(text) for text in TEXTS)


@pytest.mark.parametrize("kind", ["wordpiece", "bpe", "unigram", "characters"])
def test_training_with_sentinels(kind):
    bare, tokenizer = (Tokenizer.train(kind, iter(documents()), 330 + n, num_sentinels=n) for n in (0, 7))
    size = tokenizer.vocab_size
    assert tokenizer.sentinel_ids == tuple(range(size - 1, size - 8, -1)) and not bare.sentinel_ids
    assert tokenizer.all_special_ids >= set(tokenizer.sentinel_ids)
    tokenizer.validate()
    if kind != "unigram":
        assert size == bare.vocab_size + 7 and tokenizer.encode(TEXTS[0]) == bare.encode(TEXTS[0])

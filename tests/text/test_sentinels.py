"""T5's published file of pieces has neither its sentinels nor its end mark around a text: both are added."""

import io
import json

import pytest

from polyseme.text.tokenizer import Tokenizer
from tests.conftest import documents

TEXTS = ["The old cat sees the dog.", "the <extra_id_0> of <extra_id_1>.", "unseen zebras: 12!", "a"]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """As `transformers` lays out v1.1: spiece.model and what stands beside it."""
    sentencepiece = pytest.importorskip("sentencepiece")
    path = tmp_path_factory.mktemp("published")
    written = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(documents()), model_writer=written, vocab_size=120, model_type="unigram", pad_id=0,
        eos_id=1, unk_id=2, bos_id=-1, minloglevel=3, hard_vocab_limit=False,
    )  # fmt: skip
    (path / "spiece.model").write_bytes(written.getvalue())
    marks = {"eos_token": "</s>", "unk_token": "<unk>", "pad_token": "<pad>"}
    (path / "tokenizer_config.json").write_text(json.dumps({"extra_ids": 100, **marks}))
    return path


def test_a_published_file_gets_its_sentinels(folder, tmp_path):
    found = Tokenizer.load(folder)
    pieces = found.vocab_size - 100
    assert found.sentinel_ids == tuple(range(pieces + 99, pieces - 1, -1))
    assert found.build_inputs_with_special_tokens([5, 6])[0] == [5, 6, 1] and found.special_token_ids.eos == 1
    assert found.convert_ids_to_tokens(found.encode("the <extra_id_0> cat"))[1] == "<extra_id_0>"
    found.save(tmp_path)
    again = Tokenizer.load(tmp_path)
    assert again.sentinel_ids == found.sentinel_ids
    assert all(again.encode(text) == found.encode(text) for text in TEXTS)


@pytest.mark.parametrize("kind", ["wordpiece", "bpe", "unigram", "characters"])
def test_every_kind_can_end_in_sentinels(kind):
    bare, made = (Tokenizer.train(kind, iter(documents()), 330 + n, num_sentinels=n) for n in (0, 7))
    size = made.vocab_size
    assert made.sentinel_ids == tuple(range(size - 1, size - 8, -1)) and not bare.sentinel_ids
    assert made.all_special_ids >= set(made.sentinel_ids)
    made.validate()
    if kind != "unigram":
        assert size == bare.vocab_size + 7 and made.encode(TEXTS[0]) == bare.encode(TEXTS[0])

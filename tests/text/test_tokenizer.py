"""Tokenizers: deterministic training, saving and loading, parity with `transformers`, and validation."""

from __future__ import annotations

import json
import re
from pathlib import Path
from pydoc_data.topics import topics

import numpy as np
import pytest
from tokenizers import Tokenizer as Backend
from tokenizers import processors

from polyseme.errors import PolysemeError
from polyseme.text.pipelines import TOKENIZER_KINDS, build_wordpiece
from polyseme.text.tokenizer import SpecialTokenIds, Tokenizer

TEXTS = [text for _, text in sorted(topics.items())][:30]
UNUSUAL_TEXT = "Naïve café — 東京, 12.5 £! \t it's\n\nΩ flightless 🙂"
VOCAB = Path(__file__).parents[3] / "shared" / "vocab"


def train(kind: str, lowercase: bool) -> Tokenizer:
    return Tokenizer.train(kind, iter(TEXTS), 900, lowercase)  # type: ignore[arg-type]


@pytest.fixture(
    scope="module",
    params=[(kind, lower) for kind in TOKENIZER_KINDS for lower in (True, False)],
)
def tokenizer(request: pytest.FixtureRequest) -> Tokenizer:
    return train(*request.param)


@pytest.fixture(scope="module")
def wordpiece() -> Tokenizer:
    return train("wordpiece", True)


@pytest.fixture(scope="module")
def bpe() -> Tokenizer:
    return train("bpe", False)


def test_training_is_deterministic_and_has_the_requested_size(tokenizer: Tokenizer) -> None:
    assert tokenizer.vocab_size == (900 if tokenizer.kind != "characters" else len(set(tokenizer.vocabulary)))
    assert train(tokenizer.kind, tokenizer.lowercase).hash == tokenizer.hash


def test_wordpiece_has_specials_first_and_both_forms_of_every_character(wordpiece: Tokenizer) -> None:
    assert wordpiece.vocabulary[:5] == ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
    pieces = set(wordpiece.vocabulary)
    characters = {c for piece in wordpiece.vocabulary[5:] for c in piece.removeprefix("##")}
    assert characters and all({c, "##" + c} <= pieces for c in characters)
    unknown = wordpiece.special_token_ids.unk
    assert unknown not in wordpiece.encode("".join(sorted(c for c in characters if c.isalnum())))
    assert wordpiece.encode("\U0001f642") == [unknown]


def test_bpe_encodes_any_text(bpe: Tokenizer) -> None:
    assert bpe.decode(bpe.encode(UNUSUAL_TEXT)) == UNUSUAL_TEXT
    assert bpe.special_token_ids.eos == bpe.special_token_ids.bos == bpe.special_token_ids.pad == 0
    assert bpe.special_tokens_map["eos"] == "<|endoftext|>" and bpe.all_special_ids == {0}
    assert all(len(bpe.encode(chr(c))) >= 1 for c in range(256))


@pytest.mark.parametrize("kind", TOKENIZER_KINDS)
def test_invalid_training_options_raise(kind: str) -> None:
    few = 4 if kind in ("words", "whitespace") else 40
    with pytest.raises(PolysemeError, match=f"vocab_size is {few}, too small"):
        Tokenizer.train(kind, iter(TEXTS), few)  # type: ignore[arg-type]
    for texts in ([], ["  \n"]):
        with pytest.raises(PolysemeError, match="no text to train the tokenizer on"):
            Tokenizer.train(kind, iter(texts), 1000)  # type: ignore[arg-type]
    with pytest.raises(PolysemeError, match="did you mean 'wordpiece'"):
        Tokenizer.train("wordpieces", iter(TEXTS), 1000)  # type: ignore[arg-type]


def test_save_and_load_round_trip(tokenizer: Tokenizer, tmp_path: Path) -> None:
    tokenizer.save_files(tmp_path)
    reloaded = Tokenizer.load(tmp_path)
    assert (reloaded.hash, reloaded.special_token_ids, reloaded.lowercase) == (
        tokenizer.hash,
        tokenizer.special_token_ids,
        tokenizer.lowercase,
    )
    packed = json.dumps(json.loads((tmp_path / "tokenizer.json").read_text()))
    (tmp_path / "tokenizer.json").write_text(packed)
    assert Tokenizer.load(tmp_path / "tokenizer.json").hash == tokenizer.hash
    if tokenizer.kind == "wordpiece":
        (tmp_path / "tokenizer.json").unlink()
        assert Tokenizer.load(tmp_path).hash == tokenizer.hash
        (tmp_path / "tokenizer_config.json").unlink()
        assert Tokenizer.load(tmp_path / "vocab.txt").hash == tokenizer.hash


def test_transformers_gives_the_same_ids(tokenizer: Tokenizer, tmp_path: Path) -> None:
    transformers = pytest.importorskip("transformers")
    tokenizer.save(tmp_path)
    other = transformers.AutoTokenizer.from_pretrained(tmp_path)
    for text in [*TEXTS[:10], UNUSUAL_TEXT]:
        assert other(text, add_special_tokens=False)["input_ids"] == tokenizer.encode(text)
    pair = other(UNUSUAL_TEXT, "And then?")
    ids, segments = tokenizer.build_inputs_with_special_tokens(
        tokenizer.encode(UNUSUAL_TEXT), tokenizer.encode("And then?")
    )
    assert pair["input_ids"] == ids
    assert pair.get("token_type_ids", segments) == segments
    for role, token in tokenizer.special_tokens_map.items():
        assert getattr(other, f"{role}_token") == token
    assert len(other) == tokenizer.vocab_size


def test_roberta_bpe_template() -> None:
    """`<s> A </s></s> B </s>` in one segment, pad at 1, and a mask that absorbs the space before it."""
    tokenizer = Tokenizer.train("byte-bpe-roberta", iter(TEXTS), 600)
    assert tokenizer.kind == "byte-bpe-roberta" and tokenizer.convert_ids_to_tokens(range(5)) == [
        "<s>",
        "<pad>",
        "</s>",
        "<unk>",
        "<mask>",
    ]
    assert tokenizer.build_inputs_with_special_tokens([10, 11], [12]) == (
        [0, 10, 11, 2, 2, 12, 2],
        [0] * 7,
    ) and tokenizer.build_inputs_with_special_tokens([10]) == ([0, 10, 2], [0] * 3)
    assert tokenizer.special_token_ids == SpecialTokenIds(pad=1, unk=3, cls=0, sep=2, mask=4, bos=0, eos=2)
    assert tokenizer.encode("x <mask> y") == [*tokenizer.encode("x"), 4, *tokenizer.encode(" y")]
    assert 4 not in tokenizer.encode_corpus(["x <mask> y"]).ids
    assert tokenizer.decode(tokenizer.encode(UNUSUAL_TEXT)) == UNUSUAL_TEXT
    with pytest.raises(PolysemeError, match="256 bytes and <s> <pad> </s> <unk> <mask> need 261"):
        Tokenizer.train("byte-bpe-roberta", iter(TEXTS), 260)


def test_special_tokens_added_by_kind(wordpiece: Tokenizer, bpe: Tokenizer) -> None:
    ids, segments = wordpiece.build_inputs_with_special_tokens([10, 11], [12])
    assert ids == [2, 10, 11, 3, 12, 3] and segments == [0, 0, 0, 0, 1, 1]
    assert wordpiece.build_inputs_with_special_tokens([10])[0] == [2, 10, 3]
    assert (wordpiece.num_special_tokens_to_add(), wordpiece.num_special_tokens_to_add(pair=True)) == (2, 3)
    assert (
        bpe.build_inputs_with_special_tokens([10, 11], [12])[0] == [10, 11, 12]
        and bpe.num_special_tokens_to_add(pair=True) == 0
    )


def test_encode_words(tokenizer: Tokenizer) -> None:
    words = ["the", "statement", "is", "executed."]
    ids, word_indices = tokenizer.encode_words(words)
    assert ids == tokenizer.encode(" ".join(words))
    assert word_indices == sorted(word_indices) and set(word_indices) == {0, 1, 2, 3}
    first = [word_indices.index(i) for i in range(4)]
    starts = np.flatnonzero(tokenizer.encode_corpus([" ".join(words)]).word_starts)
    assert set(first) <= set(starts.tolist())


def test_word_starts(wordpiece: Tokenizer, bpe: Tokenizer) -> None:
    text = "the zyzzyx statement, isn't"
    expected = [not piece.startswith("##") for piece in wordpiece.convert_ids_to_tokens(wordpiece.encode(text))]
    assert wordpiece.encode_corpus([text]).word_starts.tolist() == expected and False in expected
    pieces = bpe.convert_ids_to_tokens(bpe.encode(text))
    starts = [i for i, piece in enumerate(pieces) if bpe.encode_corpus([text]).word_starts[i]]
    words = ["".join(pieces[a:b]) for a, b in zip(starts, [*starts[1:], len(pieces)])]
    assert words == ["the", "Ġzyzzyx", "Ġstatement", ",", "Ġisn", "'t"]


def test_encode_corpus_concatenates_texts(tokenizer: Tokenizer) -> None:
    texts = ["The first.", "", " And the second, longer one.", "\x00", "third"]
    encoded = tokenizer.encode_corpus(texts)
    parts = np.split(encoded.ids, np.cumsum(encoded.lengths)[:-1])
    assert [part.tolist() for part in parts] == [tokenizer.encode(text) for text in texts]
    firsts = (np.cumsum(encoded.lengths) - encoded.lengths)[encoded.lengths > 0]
    assert encoded.word_starts[firsts].all() and len(encoded.word_starts) == len(encoded.ids)
    assert [a.tolist() for a in tokenizer.encode_batch(texts)] == [p.tolist() for p in parts]
    assert len(tokenizer.encode_corpus([]).ids) == 0


def test_special_tokens_in_a_corpus_are_plain_text(wordpiece: Tokenizer, bpe: Tokenizer) -> None:
    assert wordpiece.special_token_ids.mask in wordpiece.encode("a [MASK] b")
    assert not wordpiece.all_special_ids & set(wordpiece.encode_corpus(["a [MASK] b [SEP]"]).ids.tolist())
    assert not bpe.all_special_ids & set(bpe.encode_corpus(["a <|endoftext|>"]).ids.tolist())


def test_offsets_point_into_the_text(tokenizer: Tokenizer) -> None:
    text = "Evaluating the expression, twice."
    ids, offsets = tokenizer.encode_with_offsets(text)
    assert len(ids) == len(offsets)
    assert "".join(text[a:b] for a, b in offsets).replace(" ", "") == text.replace(" ", "")


def test_truncation_and_padding_are_disabled_on_load(wordpiece: Tokenizer, tmp_path: Path) -> None:
    wordpiece.backend.enable_truncation(4)
    wordpiece.backend.enable_padding(length=9)
    wordpiece.backend.save(str(tmp_path / "tokenizer.json"))
    wordpiece.backend.no_truncation()
    wordpiece.backend.no_padding()
    reloaded = Tokenizer.load(tmp_path)
    assert len(reloaded.encode("the statement is the statement is")) >= 6
    assert reloaded.hash == wordpiece.hash


def test_invalid_folders_raise(wordpiece: Tokenizer, tmp_path: Path) -> None:
    with pytest.raises(PolysemeError, match="no such file or folder"):
        Tokenizer.load(tmp_path / "nowhere")
    with pytest.raises(PolysemeError, match=r"expected tokenizer.json, vocab.txt"):
        Tokenizer.load(tmp_path)
    (tmp_path / "vocab.txt").write_text("[PAD]\n[UNK]\n[CLS]\n[SEP]\nthe\n")
    with pytest.raises(PolysemeError, match=r"it has no \[MASK\]"):
        Tokenizer.load(tmp_path)
    (tmp_path / "vocab.txt").write_bytes(b"[PAD]\n\xff\n")
    with pytest.raises(PolysemeError, match="not UTF-8 text: invalid byte at 6"):
        Tokenizer.load(tmp_path)
    (tmp_path / "tokenizer.json").write_text('{"model": 3}')
    with pytest.raises(PolysemeError, match=r"is not a valid tokenizer\.json"):
        Tokenizer.load(tmp_path)
    wordpiece.save_files(tmp_path)
    (tmp_path / "tokenizer_config.json").write_text('{"mask_token": "<gone>"}')
    with pytest.raises(PolysemeError, match="mask token '<gone>' is not in its vocabulary"):
        Tokenizer.load(tmp_path)


def test_validate_rejects_a_wrong_template(wordpiece: Tokenizer, tmp_path: Path) -> None:
    backend = build_wordpiece({piece: i for i, piece in enumerate(wordpiece.vocabulary)}, True)
    backend.post_processor = processors.TemplateProcessing(
        single="[CLS] $A", pair="[CLS] $A [SEP] $B", special_tokens=[("[CLS]", 2), ("[SEP]", 3)]
    )
    with pytest.raises(PolysemeError, match="pair template"):
        Tokenizer(backend).save(tmp_path / "new")
    assert not (tmp_path / "new").exists()


@pytest.mark.skipif(not VOCAB.is_dir(), reason="the published vocabularies are not available")
def test_published_vocabularies() -> None:
    bert = Tokenizer.load(VOCAB / "bert-base-uncased-vocab.txt")
    assert bert.convert_ids_to_tokens(bert.encode("Flightless")) == ["flight", "##less"]
    assert bert.lowercase and bert.vocab_size == 30_522 and bert.special_token_ids.mask == 103
    cased = Tokenizer.load(VOCAB / "bert-base-cased-tokenizer.json")
    assert not cased.lowercase and cased.convert_ids_to_tokens(cased.encode("Paris")) == ["Paris"]
    gpt2 = Tokenizer.load(VOCAB / "gpt2-tokenizer.json")
    assert gpt2.encode("Hello world") == [15496, 995] and gpt2.special_token_ids.eos == 50_256
    for tokenizer in (bert, cased, gpt2):
        tokenizer.validate()


def test_characters_and_spaces_are_single_tokens(tmp_path: Path) -> None:
    tokenizer = train("characters", False)
    text = "Two  words,\n\nsplit."
    assert tokenizer.convert_ids_to_tokens(tokenizer.encode(text)) == list(text)
    assert tokenizer.decode(tokenizer.encode(text)) == text
    assert tokenizer.convert_ids_to_tokens(tokenizer.encode("a\U0001f642\U0001f642b")) == ["a", "[UNK]", "[UNK]", "b"]
    starts = "".join("^" if start else " " for start in tokenizer.encode_corpus(["two words, 中国"]).word_starts)
    assert starts == "^  ^^    ^^^^"
    tokenizer.save(tmp_path)
    reloaded = Tokenizer.load(tmp_path)
    assert reloaded.kind == "characters" and reloaded.encode(text) == tokenizer.encode(text)
    assert Tokenizer.train("bpe", iter(TEXTS), 257).kind == "bpe"  # no merges either, but byte-level
    small = Tokenizer.train("characters", iter(TEXTS), 90)
    assert small.vocab_size == 90


@pytest.mark.parametrize("kind", ["unigram", "characters"])
def test_unigram_and_characters_have_berts_specials_and_template(kind: str) -> None:
    tokenizer = train(kind, False)
    assert tokenizer.build_inputs_with_special_tokens([10, 11], [12]) == ([2, 10, 11, 3, 12, 3], [0, 0, 0, 0, 1, 1])
    assert [tokenizer.special_tokens_map[role] for role in ("cls", "sep", "mask")] == ["[CLS]", "[SEP]", "[MASK]"]
    assert tokenizer.encode("a [MASK] b")[-3 if kind == "characters" else 1] == tokenizer.special_token_ids.mask


def with_config(tokenizer: Tokenizer, change) -> Tokenizer:
    """Return a copy of the tokenizer with a modified `tokenizer.json`."""
    config = json.loads(tokenizer.backend.to_str())
    change(config)
    return Tokenizer(Backend.from_str(json.dumps(config)))


def test_validate_rejects_bad_special_tokens_and_round_trips(wordpiece: Tokenizer) -> None:
    def without_mask(config):
        config["added_tokens"] = [token for token in config["added_tokens"] if token["content"] != "[MASK]"]
        config["model"]["vocab"] = {
            piece.replace("[MASK]", "[GONE]"): i for piece, i in config["model"]["vocab"].items()
        }

    with pytest.raises(PolysemeError, match="has no mask token"):
        with_config(wordpiece, without_mask).validate()

    twice = Tokenizer(wordpiece.backend, {"pad_token": "[MASK]"})
    with pytest.raises(PolysemeError, match=r"pad and mask tokens are both '\[MASK\]'"):
        twice.validate()

    def not_special(config):
        config["added_tokens"] = [token for token in config["added_tokens"] if token["content"] != "[SEP]"]

    with pytest.raises(PolysemeError, match=r"sep token '\[SEP\]' is encoded as several tokens"):
        with_config(wordpiece, not_special).validate()

    def prefixed(config):
        steps = [config["normalizer"], {"type": "Prepend", "prepend": "the "}]
        config["normalizer"] = {"type": "Sequence", "normalizers": steps}

    with pytest.raises(PolysemeError, match="the normalizer changes every word"):
        with_config(wordpiece, prefixed).validate()

    def undecoded(config):
        config["decoder"] = None

    with pytest.raises(PolysemeError, match="the tokenizer decodes the ids of"):
        with_config(train("unigram", False), undecoded).validate()


def test_validate_rejects_many_unknown_tokens(wordpiece: Tokenizer) -> None:
    wordpiece.validate(["the statement"] * 200 + ["Ж"])
    with pytest.raises(PolysemeError, match=r"50\.0% of the tokens of a sample are \[UNK\] .*characters Ж 🙂"):
        wordpiece.validate(["Ж the", "Ж and", "🙂 the"])
    with pytest.raises(PolysemeError, match="for words of more than 100 characters"):
        wordpiece.validate(["x" * 101])


def test_validate_rejects_special_tokens_in_plain_text() -> None:
    pytest.importorskip("sentencepiece")

    def unguarded(config):
        config["pre_tokenizer"] = config["pre_tokenizer"]["pretokenizers"][0]

    tokenizer = with_config(train("unigram", False), unguarded)
    with pytest.raises(PolysemeError, match="in the text of a corpus as its special token"):
        tokenizer.validate(["the statement"])


@pytest.mark.parametrize(
    "kind,reason",
    [
        ("wordpiece", r"no more pieces are as frequent as `min_frequency` \(2\); train on more text"),
        ("bpe", "no more pieces are as frequent as"),
        ("words", "no more of them are as frequent as"),
        ("unigram", "and no more pieces; train on more text"),
        ("characters", "the text has no more different characters"),
    ],
)
def test_a_vocabulary_that_is_smaller_than_requested(kind, reason, capsys):
    texts = ["a few words and a few more words, few of them different"] * 3
    tokenizer = Tokenizer.train(kind, iter(texts), 5000)
    message = f"the vocabulary has {tokenizer.vocab_size} entries, not the 5,000 requested: .*{reason}"
    assert re.search(message, capsys.readouterr().err)
    Tokenizer.train("words", iter(texts))
    Tokenizer.train("words", iter(texts), 6)
    assert capsys.readouterr().err == "", "nothing more was requested"

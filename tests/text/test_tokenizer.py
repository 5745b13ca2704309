"""Tokenizers: the same each time they are trained, read alike by others, and honest about bad files."""

from __future__ import annotations

import json
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
STRANGE = "Naïve café — 東京, 12.5 £! \t it's\n\nΩ flightless 🙂"
VOCAB = Path(__file__).parents[3] / "shared" / "vocab"


def train(kind: str, lowercase: bool) -> Tokenizer:
    return Tokenizer.train(kind, iter(TEXTS), 900, lowercase)  # type: ignore[arg-type]


@pytest.fixture(
    scope="module",
    params=[(kind, lower) for kind in TOKENIZER_KINDS for lower in (True, False)],
)
def made(request: pytest.FixtureRequest) -> Tokenizer:
    return train(*request.param)


@pytest.fixture(scope="module")
def wordpiece() -> Tokenizer:
    return train("wordpiece", True)


@pytest.fixture(scope="module")
def bpe() -> Tokenizer:
    return train("bpe", False)


def test_training_is_deterministic_and_keeps_to_its_size(made: Tokenizer) -> None:
    assert made.vocab_size == (900 if made.kind != "characters" else len(set(made.vocabulary)))
    assert train(made.kind, made.lowercase).hash == made.hash


def test_wordpiece_has_the_specials_first_and_every_character_in_both_forms(wordpiece: Tokenizer) -> None:
    assert wordpiece.vocabulary[:5] == ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
    pieces = set(wordpiece.vocabulary)
    characters = {c for piece in wordpiece.vocabulary[5:] for c in piece.removeprefix("##")}
    assert characters and all({c, "##" + c} <= pieces for c in characters)
    unknown = wordpiece.special_token_ids.unk
    assert unknown not in wordpiece.encode("".join(sorted(c for c in characters if c.isalnum())))
    assert wordpiece.encode("\U0001f642") == [unknown]


def test_bpe_writes_any_text(bpe: Tokenizer) -> None:
    assert bpe.decode(bpe.encode(STRANGE)) == STRANGE
    assert bpe.special_token_ids.eos == bpe.special_token_ids.bos == bpe.special_token_ids.pad == 0
    assert bpe.special_tokens_map["eos"] == "<|endoftext|>" and bpe.all_special_ids == {0}
    assert all(len(bpe.encode(chr(c))) >= 1 for c in range(256))


@pytest.mark.parametrize("kind", TOKENIZER_KINDS)
def test_too_small_and_no_text_are_one_line(kind: str) -> None:
    few = 4 if kind in ("words", "whitespace") else 40
    with pytest.raises(PolysemeError, match=f"a vocabulary of {few} is too small"):
        Tokenizer.train(kind, iter(TEXTS), few)  # type: ignore[arg-type]
    for texts in ([], ["  \n"]):
        with pytest.raises(PolysemeError, match="no text came"):
            Tokenizer.train(kind, iter(texts), 1000)  # type: ignore[arg-type]
    with pytest.raises(PolysemeError, match="did you mean 'wordpiece'"):
        Tokenizer.train("wordpieces", iter(TEXTS), 1000)  # type: ignore[arg-type]


def test_save_and_load_change_nothing(made: Tokenizer, tmp_path: Path) -> None:
    made.save(tmp_path)
    again = Tokenizer.load(tmp_path)
    assert (again.hash, again.special_token_ids, again.lowercase) == (made.hash, made.special_token_ids, made.lowercase)
    packed = json.dumps(json.loads((tmp_path / "tokenizer.json").read_text()))
    (tmp_path / "tokenizer.json").write_text(packed)
    assert Tokenizer.load(tmp_path / "tokenizer.json").hash == made.hash
    if made.kind == "wordpiece":
        (tmp_path / "tokenizer.json").unlink()
        assert Tokenizer.load(tmp_path).hash == made.hash
        (tmp_path / "tokenizer_config.json").unlink()
        assert Tokenizer.load(tmp_path / "vocab.txt").hash == made.hash


def test_transformers_reads_the_same_ids(made: Tokenizer, tmp_path: Path) -> None:
    transformers = pytest.importorskip("transformers")
    made.save(tmp_path)
    other = transformers.AutoTokenizer.from_pretrained(tmp_path)
    for text in [*TEXTS[:10], STRANGE]:
        assert other(text, add_special_tokens=False)["input_ids"] == made.encode(text)
    pair = other(STRANGE, "And then?")
    ids, segments = made.build_inputs_with_special_tokens(made.encode(STRANGE), made.encode("And then?"))
    assert pair["input_ids"] == ids
    assert pair.get("token_type_ids", segments) == segments
    for role, token in made.special_tokens_map.items():
        assert getattr(other, f"{role}_token") == token
    assert len(other) == made.vocab_size


def test_marked_bpe_is_wrapped_as_by_its_makers() -> None:
    """`<s> A </s></s> B </s>`, one segment, pad at 1, and a mask that takes the space of the word it stands for."""
    made = Tokenizer.train("byte-bpe-roberta", iter(TEXTS), 600)
    assert made.kind == "byte-bpe-roberta" and made.convert_ids_to_tokens(range(5)) == [
        "<s>",
        "<pad>",
        "</s>",
        "<unk>",
        "<mask>",
    ]
    assert made.build_inputs_with_special_tokens([10, 11], [12]) == (
        [0, 10, 11, 2, 2, 12, 2],
        [0] * 7,
    ) and made.build_inputs_with_special_tokens([10]) == ([0, 10, 2], [0] * 3)
    assert made.special_token_ids == SpecialTokenIds(pad=1, unk=3, cls=0, sep=2, mask=4, bos=0, eos=2)
    assert made.encode("x <mask> y") == [*made.encode("x"), 4, *made.encode(" y")]
    assert 4 not in made.encode_corpus(["x <mask> y"]).ids
    assert made.decode(made.encode(STRANGE)) == STRANGE
    with pytest.raises(PolysemeError, match="256 bytes and <s> <pad> </s> <unk> <mask> need 261"):
        Tokenizer.train("byte-bpe-roberta", iter(TEXTS), 260)


def test_wrap_adds_what_the_kind_asks_for(wordpiece: Tokenizer, bpe: Tokenizer) -> None:
    ids, segments = wordpiece.build_inputs_with_special_tokens([10, 11], [12])
    assert ids == [2, 10, 11, 3, 12, 3] and segments == [0, 0, 0, 0, 1, 1]
    assert wordpiece.build_inputs_with_special_tokens([10])[0] == [2, 10, 3]
    assert (wordpiece.num_special_tokens_to_add(), wordpiece.num_special_tokens_to_add(pair=True)) == (2, 3)
    assert (
        bpe.build_inputs_with_special_tokens([10, 11], [12])[0] == [10, 11, 12]
        and bpe.num_special_tokens_to_add(pair=True) == 0
    )


def test_words_that_are_split_already(made: Tokenizer) -> None:
    words = ["the", "statement", "is", "executed."]
    ids, of = made.encode_words(words)
    assert ids == made.encode(" ".join(words))
    assert of == sorted(of) and set(of) == {0, 1, 2, 3}
    first = [of.index(i) for i in range(4)]
    starts = np.flatnonzero(made.word_start_mask(" ".join(words)))
    assert set(first) <= set(starts.tolist())


def test_word_starts(wordpiece: Tokenizer, bpe: Tokenizer) -> None:
    text = "the zyzzyx statement, isn't"
    expected = [not piece.startswith("##") for piece in wordpiece.convert_ids_to_tokens(wordpiece.encode(text))]
    assert wordpiece.word_start_mask(text).tolist() == expected and False in expected
    pieces = bpe.convert_ids_to_tokens(bpe.encode(text))
    starts = [i for i, piece in enumerate(pieces) if bpe.word_start_mask(text)[i]]
    words = ["".join(pieces[a:b]) for a, b in zip(starts, [*starts[1:], len(pieces)])]
    assert words == ["the", "Ġzyzzyx", "Ġstatement", ",", "Ġisn", "'t"]


def test_a_run_is_its_texts_end_to_end(made: Tokenizer) -> None:
    texts = ["The first.", "", " And the second, longer one.", "\x00", "third"]
    run = made.encode_corpus(texts)
    parts = np.split(run.ids, np.cumsum(run.lengths)[:-1])
    assert [part.tolist() for part in parts] == [made.encode(text) for text in texts]
    firsts = (np.cumsum(run.lengths) - run.lengths)[run.lengths > 0]
    assert run.word_starts[firsts].all() and len(run.word_starts) == len(run.ids)
    assert [a.tolist() for a in made.encode_batch(texts)] == [p.tolist() for p in parts]
    assert len(made.encode_corpus([]).ids) == 0


def test_specials_in_a_corpus_are_plain_text(wordpiece: Tokenizer, bpe: Tokenizer) -> None:
    assert wordpiece.special_token_ids.mask in wordpiece.encode("a [MASK] b")
    assert not wordpiece.all_special_ids & set(wordpiece.encode_corpus(["a [MASK] b [SEP]"]).ids.tolist())
    assert not bpe.all_special_ids & set(bpe.encode_corpus(["a <|endoftext|>"]).ids.tolist())


def test_offsets_point_into_the_text(made: Tokenizer) -> None:
    text = "Evaluating the expression, twice."
    ids, offsets = made.encode_with_offsets(text)
    assert len(ids) == len(offsets)
    assert "".join(text[a:b] for a, b in offsets).replace(" ", "") == text.replace(" ", "")


def test_what_is_loaded_neither_truncates_nor_pads(wordpiece: Tokenizer, tmp_path: Path) -> None:
    wordpiece.backend.enable_truncation(4)
    wordpiece.backend.enable_padding(length=9)
    wordpiece.backend.save(str(tmp_path / "tokenizer.json"))
    wordpiece.backend.no_truncation()
    wordpiece.backend.no_padding()
    again = Tokenizer.load(tmp_path)
    assert len(again.encode("the statement is the statement is")) >= 6
    assert again.hash == wordpiece.hash


def test_bad_folders_are_one_line(wordpiece: Tokenizer, tmp_path: Path) -> None:
    with pytest.raises(PolysemeError, match="no such file or folder"):
        Tokenizer.load(tmp_path / "nowhere")
    with pytest.raises(PolysemeError, match=r"neither tokenizer.json nor vocab.txt"):
        Tokenizer.load(tmp_path)
    (tmp_path / "vocab.txt").write_text("[PAD]\n[UNK]\n[CLS]\n[SEP]\nthe\n")
    with pytest.raises(PolysemeError, match=r"it has no \[MASK\]"):
        Tokenizer.load(tmp_path)
    (tmp_path / "vocab.txt").write_bytes(b"[PAD]\n\xff\n")
    with pytest.raises(PolysemeError, match="not UTF-8 text: byte 6"):
        Tokenizer.load(tmp_path)
    (tmp_path / "tokenizer.json").write_text('{"model": 3}')
    with pytest.raises(PolysemeError, match="is not a tokenizer"):
        Tokenizer.load(tmp_path)
    wordpiece.save(tmp_path)
    (tmp_path / "tokenizer_config.json").write_text('{"mask_token": "<gone>"}')
    with pytest.raises(PolysemeError, match="mask token '<gone>' is not in its vocabulary"):
        Tokenizer.load(tmp_path)


def test_the_contract_finds_a_wrong_template(wordpiece: Tokenizer, tmp_path: Path) -> None:
    backend = build_wordpiece({piece: i for i, piece in enumerate(wordpiece.vocabulary)}, True)
    backend.post_processor = processors.TemplateProcessing(
        single="[CLS] $A", pair="[CLS] $A [SEP] $B", special_tokens=[("[CLS]", 2), ("[SEP]", 3)]
    )
    with pytest.raises(PolysemeError, match="pair template"):
        Tokenizer(backend).save(tmp_path / "new")
    assert not (tmp_path / "new").exists()


@pytest.mark.skipif(not VOCAB.is_dir(), reason="the published vocabularies are not here")
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


def test_characters_are_one_token_each_and_spaces_too(tmp_path: Path) -> None:
    made = train("characters", False)
    text = "Two  words,\n\nsplit."
    assert made.convert_ids_to_tokens(made.encode(text)) == list(text)
    assert made.decode(made.encode(text)) == text
    assert made.convert_ids_to_tokens(made.encode("a\U0001f642\U0001f642b")) == ["a", "[UNK]", "[UNK]", "b"]
    starts = "".join("^" if start else " " for start in made.word_start_mask("two words, 中国"))
    assert starts == "^  ^^    ^^^^"
    made.save(tmp_path)
    again = Tokenizer.load(tmp_path)
    assert again.kind == "characters" and again.encode(text) == made.encode(text)
    assert Tokenizer.train("bpe", iter(TEXTS), 257).kind == "bpe"  # no merges either, but of bytes
    small = Tokenizer.train("characters", iter(TEXTS), 90)
    assert small.vocab_size == 90


@pytest.mark.parametrize("kind", ["unigram", "characters"])
def test_the_new_kinds_have_berts_specials_and_template(kind: str) -> None:
    made = train(kind, False)
    assert made.build_inputs_with_special_tokens([10, 11], [12]) == ([2, 10, 11, 3, 12, 3], [0, 0, 0, 0, 1, 1])
    assert [made.special_tokens_map[role] for role in ("cls", "sep", "mask")] == ["[CLS]", "[SEP]", "[MASK]"]
    assert made.encode("a [MASK] b")[-3 if kind == "characters" else 1] == made.special_token_ids.mask


def changed(made: Tokenizer, change) -> Tokenizer:
    """The same tokenizer after a change to what it would save."""
    said = json.loads(made.backend.to_str())
    change(said)
    return Tokenizer(Backend.from_str(json.dumps(said)))


def test_the_contract_finds_what_is_missing_double_or_shifted(wordpiece: Tokenizer) -> None:
    def without_mask(said):
        said["added_tokens"] = [token for token in said["added_tokens"] if token["content"] != "[MASK]"]
        said["model"]["vocab"] = {piece.replace("[MASK]", "[GONE]"): i for piece, i in said["model"]["vocab"].items()}

    with pytest.raises(PolysemeError, match="has no mask token"):
        changed(wordpiece, without_mask).validate()

    twice = Tokenizer(wordpiece.backend, {"pad_token": "[MASK]"})
    with pytest.raises(PolysemeError, match=r"pad and mask tokens are both '\[MASK\]'"):
        twice.validate()

    def not_special(said):
        said["added_tokens"] = [token for token in said["added_tokens"] if token["content"] != "[SEP]"]

    with pytest.raises(PolysemeError, match=r"sep token '\[SEP\]' is not one token"):
        changed(wordpiece, not_special).validate()

    def prefixed(said):
        steps = [said["normalizer"], {"type": "Prepend", "prepend": "the "}]
        said["normalizer"] = {"type": "Sequence", "normalizers": steps}

    with pytest.raises(PolysemeError, match="no word in its vocabulary that its own cleaning leaves"):
        changed(wordpiece, prefixed).validate()

    def undecoded(said):
        said["decoder"] = None

    with pytest.raises(PolysemeError, match="does not give back the text"):
        changed(train("unigram", False), undecoded).validate()


def test_the_contract_finds_what_is_unknown(wordpiece: Tokenizer) -> None:
    wordpiece.validate(["the statement"] * 200 + ["Ж"])
    with pytest.raises(PolysemeError, match=r"50\.0% of a sample of the text would be \[UNK\] .*characters Ж 🙂"):
        wordpiece.validate(["Ж the", "Ж and", "🙂 the"])
    with pytest.raises(PolysemeError, match="for words of more than 100 characters"):
        wordpiece.validate(["x" * 101])


def test_the_contract_finds_specials_in_plain_text() -> None:
    pytest.importorskip("sentencepiece")

    def unguarded(said):
        said["pre_tokenizer"] = said["pre_tokenizer"]["pretokenizers"][0]

    made = changed(train("unigram", False), unguarded)
    with pytest.raises(PolysemeError, match="in the text of a corpus for its special token"):
        made.validate(["the statement"])

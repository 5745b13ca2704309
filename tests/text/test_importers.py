"""Imported vocabularies give the ids of the original implementations, on lines of many scripts."""

from __future__ import annotations

import functools
import io
import itertools
import json
import shutil
import unicodedata
from collections.abc import Callable
from pathlib import Path

import pytest
from multilingual import SHARED, english_lines, generate_lines, mixed_lines

from polyseme.errors import PolysemeError
from polyseme.text.sentencepiece_model import parse_model
from polyseme.text.tokenizer import Tokenizer

VOCAB = SHARED / "vocab"
# two fifths of them are English, the rest is generated from the words of many scripts
NUM_LINES = [3_000, pytest.param(10_000, marks=pytest.mark.slow)]
needs_vocab = pytest.mark.skipif(not VOCAB.is_dir(), reason="the published vocabularies are not available")
ENDING = ["", " ", "a  b", "<unk> </s> <s> [CLS] <0x0A>", "def-initely foo_bar<sep>foo", "\u2581x \u2581"]


def count_ties(tokenizer: Tokenizer, original: Callable[[str], list[int]], lines: list[str]) -> int:
    """Check that the ids of all lines are the same and return the number of lines that differ by a tie.

    Sentencepiece sums scores in single precision over a whole line, so rounding decides between two orders of the same
    pieces (`0 00` and `00 0`).
    """
    encoded = tokenizer.encode_corpus(lines)
    ids = iter(encoded.ids.tolist())
    ties = 0
    for line, length in zip(lines, encoded.lengths.tolist()):
        ours, theirs = [next(ids) for _ in range(length)], original(line)
        ties += ours != theirs
        assert ours == theirs or (tokenizer.kind == "unigram" and sorted(ours) == sorted(theirs)), line
    return ties


@functools.cache
def loses_marks(line: str) -> bool:
    """Return whether `tokenizers` would lose a mark or joiner after a character that sentencepiece replaces."""
    for before, after in itertools.pairwise(line):
        mark = unicodedata.category(after)[0] == "M" or after in "\u200c\u200d\uff9e\uff9f"
        changed = unicodedata.normalize("NFKC", before.casefold()) != before
        if mark and (changed or unicodedata.category(before)[0] not in "LMNS" or before == "\ufffd"):
            return True
    return unicodedata.normalize("NFC", line) != line


# ------------------------------------------------------------------------------------- what was published


@needs_vocab
@pytest.mark.parametrize("num_lines", NUM_LINES)
def test_bert(num_lines: int, tmp_path: Path) -> None:
    legacy = pytest.importorskip("transformers.models.bert.tokenization_bert_legacy")
    uncased = Tokenizer.load(VOCAB / "bert-base-uncased-vocab.txt")
    original = legacy.BertTokenizerLegacy(str(VOCAB / "bert-base-uncased-vocab.txt"))
    count_ties(uncased, lambda line: original.convert_tokens_to_ids(original._tokenize(line)), mixed_lines(num_lines))
    cased = Tokenizer.load(VOCAB / "bert-base-cased-tokenizer.json")
    (tmp_path / "vocab.txt").write_text("\n".join(cased.vocabulary) + "\n", encoding="utf-8")
    reloaded = Tokenizer.import_files([tmp_path / "vocab.txt"])
    assert not reloaded.lowercase
    original = legacy.BertTokenizerLegacy(str(tmp_path / "vocab.txt"), do_lower_case=False)
    lines = [
        unicodedata.normalize("NFC", line) for line in mixed_lines(num_lines // 5)
    ]  # the original does this itself
    count_ties(reloaded, lambda line: original.convert_tokens_to_ids(original._tokenize(line)), lines)


@needs_vocab
@pytest.mark.parametrize("num_lines", NUM_LINES)
def test_gpt2(num_lines: int, tmp_path: Path) -> None:
    tiktoken = pytest.importorskip("tiktoken")
    model = json.loads((VOCAB / "gpt2-tokenizer.json").read_text(encoding="utf-8"))["model"]
    (tmp_path / "encoder.json").write_text(json.dumps(model["vocab"]))
    merges = [pair if isinstance(pair, str) else " ".join(pair) for pair in model["merges"]]
    (tmp_path / "vocab.bpe").write_text("#version: 0.2\n" + "\n".join(merges) + "\n", encoding="utf-8")
    plain = [*range(33, 127), *range(161, 173), *range(174, 256)]  # bytes written as their own character
    others = [byte for byte in range(256) if byte not in plain]
    bytes_of = {chr(byte): byte for byte in plain} | {chr(256 + i): byte for i, byte in enumerate(others)}
    ranks = {bytes(map(bytes_of.__getitem__, piece)): i for piece, i in model["vocab"].items() if piece[:2] != "<|"}
    pattern = r"""'(?:[sdmt]|ll|ve|re)| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"""
    special = {"<|endoftext|>": 50_256}
    original = tiktoken.Encoding("gpt2", pat_str=pattern, mergeable_ranks=ranks, special_tokens=special)
    tokenizer = Tokenizer.import_files([tmp_path / "vocab.bpe", tmp_path / "encoder.json"])
    count_ties(tokenizer, original.encode_ordinary, mixed_lines(num_lines))
    assert tokenizer.hash == Tokenizer.import_files([tmp_path / "encoder.json", tmp_path / "vocab.bpe"]).hash
    whole = Tokenizer.load(VOCAB / "gpt2-tokenizer.json")
    assert whole.vocabulary == tokenizer.vocabulary and whole.encode(" it's\n\n  ½") == tokenizer.encode(" it's\n\n  ½")


@needs_vocab
@pytest.mark.parametrize("num_lines", NUM_LINES)
def test_gpt(num_lines: int, tmp_path: Path) -> None:
    transformers = pytest.importorskip("transformers")
    files = [VOCAB / "encoder_bpe_40000.json", VOCAB / "vocab_40000.bpe"]
    for file, name in zip(files, ("vocab.json", "merges.txt")):
        shutil.copy(file, tmp_path / name)
    original = transformers.OpenAIGPTTokenizer.from_pretrained(tmp_path)
    tokenizer = Tokenizer.import_files(files)
    lines = mixed_lines(num_lines)
    assert count_ties(tokenizer, lambda line: original(line)["input_ids"], lines) == 0
    assert tokenizer.lowercase and tokenizer.kind == "bpe" and not tokenizer.is_byte_level
    assert tokenizer.convert_ids_to_tokens(tokenizer.encode("Unbelievable!")) == ["unbelievable</w>", "!</w>"]
    assert tokenizer.decode(tokenizer.encode("it was unbelievable")) == "it was unbelievable"
    assert Tokenizer.load(tmp_path).hash == tokenizer.hash


@needs_vocab
@pytest.mark.parametrize("num_lines", NUM_LINES)
def test_albert(num_lines: int) -> None:
    sentencepiece = pytest.importorskip("sentencepiece")
    tokenizer = Tokenizer.load(VOCAB / "albert-spiece.model")
    original = sentencepiece.SentencePieceProcessor(model_file=str(VOCAB / "albert-spiece.model"))
    lines = [line[:300] for line in mixed_lines(num_lines * 13 // 10) if not loses_marks(line)][:num_lines]
    assert len(lines) == num_lines
    assert count_ties(tokenizer, original.encode, lines) == 0
    named = {"pad": "<pad>", "unk": "<unk>", "cls": "[CLS]", "sep": "[SEP]", "mask": "[MASK]"}
    assert tokenizer.special_tokens_map == named and tokenizer.build_inputs_with_special_tokens([7], [8]) == (
        [2, 7, 3, 8, 3],
        [0, 0, 0, 1, 1],
    )
    strays = [line for line in mixed_lines(num_lines) if loses_marks(line)]
    differ = [line for line in strays if tokenizer.encode(line) != original.encode(line)]
    assert 0 < len(differ) < 40, "`loses_marks` skips too many lines, or the loss is fixed"


# -------------------------------------------------------------------------- sentencepiece models trained here

DEFINED = ["<sep>", "foo_bar", "def", "-"]
CHOICES = {
    "default": {},
    "identity": {"normalization_rule_name": "identity"},
    "folded": {"normalization_rule_name": "nfkc_cf", "pad_id": 3},
    "bytes": {"byte_fallback": True},
    "symbols": {"user_defined_symbols": DEFINED, "control_symbols": ["[CLS]", "[SEP]", "[MASK]"], "pad_id": 3},
    "no space before": {"add_dummy_prefix": False},
    "all spaces": {"remove_extra_whitespaces": False},
    "across spaces": {"split_by_whitespace": False},
    "code": {"normalization_rule_name": "identity", "remove_extra_whitespaces": False, "byte_fallback": True},
    "other ids": {"unk_id": 5, "bos_id": -1, "eos_id": 1, "pad_id": 0},
}


@functools.cache
def short_lines(num_generated: int, seed: int) -> list[str]:
    """Return English and generated lines without marks that `tokenizers` would lose."""
    return [line for line in english_lines(300) + generate_lines(num_generated, seed) if not loses_marks(line)]


def train_sentencepiece(kind: str, **options) -> bytes:
    sentencepiece = pytest.importorskip("sentencepiece")
    model_buffer = io.BytesIO()
    texts = short_lines(500, seed=9)
    fixed = {"vocab_size": 1000, "hard_vocab_limit": False, "character_coverage": 0.999, "num_threads": 1}
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(texts), model_writer=model_buffer, model_type=kind, minloglevel=2, **fixed, **options
    )
    return model_buffer.getvalue()


@pytest.mark.parametrize("kind", ["unigram", "bpe"])
@pytest.mark.parametrize("choice", CHOICES)
def test_sentencepiece(kind: str, choice: str, tmp_path: Path) -> None:
    content = train_sentencepiece(kind, **CHOICES[choice])
    (tmp_path / "spiece.model").write_bytes(content)
    original = pytest.importorskip("sentencepiece").SentencePieceProcessor(model_proto=content)
    tokenizer = Tokenizer.load(tmp_path)
    lines = [line[:300] for line in short_lines(900, seed=10)] + ENDING
    assert len(lines) > 900
    assert count_ties(tokenizer, original.encode, lines) <= 10
    assert tokenizer.vocab_size == original.vocab_size() and tokenizer.kind == kind
    assert tokenizer.vocabulary == [original.id_to_piece(i) for i in range(tokenizer.vocab_size)]
    for role in ("unk", "bos", "eos", "pad"):
        number = getattr(original, f"{role}_id")()
        assert getattr(tokenizer.special_token_ids, role) == (number if number >= 0 else None)
    words = ["the", "statement", "isn't"]
    ids, word_indices = tokenizer.encode_words(words)
    assert ids == tokenizer.encode(" ".join(words)) and set(word_indices) == {0, 1, 2}
    tokenizer.save(tmp_path / "out")
    reloaded = Tokenizer.load(tmp_path / "out")
    assert (reloaded.hash, reloaded.special_token_ids) == (tokenizer.hash, tokenizer.special_token_ids)
    if choice not in ("default", "symbols"):
        return
    transformers = pytest.importorskip("transformers")
    opened = transformers.AutoTokenizer.from_pretrained(tmp_path / "out")
    assert all(opened(line, add_special_tokens=False)["input_ids"] == tokenizer.encode(line) for line in lines[:200])


def test_parser_agrees_with_protobuf() -> None:
    pb = pytest.importorskip("sentencepiece.sentencepiece_model_pb2")
    content = train_sentencepiece("unigram", **CHOICES["symbols"])
    theirs = pb.ModelProto.FromString(content)
    ours = parse_model(content)
    assert [(p.text, p.kind) for p in ours.pieces] == [(p.piece, p.type) for p in theirs.pieces]
    assert [p.score for p in ours.pieces] == pytest.approx([p.score for p in theirs.pieces], rel=1e-7)
    assert ours.precompiled_charsmap == theirs.normalizer_spec.precompiled_charsmap and ours.precompiled_charsmap
    assert ours.roles == {"unk": "<unk>", "bos": "<s>", "eos": "</s>", "pad": "<pad>"}


def test_damaged_or_unsupported_models_raise(tmp_path: Path) -> None:
    content = train_sentencepiece("unigram")
    path = tmp_path / "x.model"
    for cut in (1, 7, 100, 3_000, len(content) - 1):
        path.write_bytes(content[:cut])
        try:
            Tokenizer.import_files([path])
        except PolysemeError as error:
            assert str(path) in str(error)
    suffix = train_sentencepiece("unigram", treat_whitespace_as_suffix=True)
    path.write_bytes(suffix)
    with pytest.raises(PolysemeError, match="encodes spaces as suffixes or not at all"):
        Tokenizer.import_files([path])
    path.write_bytes(train_sentencepiece("char"))
    with pytest.raises(PolysemeError, match="only unigram and bpe are supported"):
        Tokenizer.import_files([path])


# ------------------------------------------------------------------------------------------- files and mistakes

TINY = {"a": 0, "b": 1, "ab": 2, "<|endoftext|>": 3}


def test_formats_are_detected_by_content(tmp_path: Path) -> None:
    vocab, merges, other = tmp_path / "one", tmp_path / "two", tmp_path / "three"
    vocab.write_text(json.dumps(TINY))
    merges.write_text("a b\n")
    tokenizer = Tokenizer.import_files([merges, vocab])
    assert tokenizer.encode("ab") == [2] and tokenizer.special_token_ids.eos == 3
    with pytest.raises(PolysemeError, match=r"is a BPE vocabulary: pass the merges .merges.txt. too"):
        Tokenizer.import_files([vocab])
    with pytest.raises(PolysemeError, match=r"is BPE merges: pass the vocabulary .vocab.json. too"):
        Tokenizer.import_files([merges])
    other.write_text("[PAD]\n[UNK]\n[CLS]\n[SEP]\n[MASK]\nThe\nthe\n")
    assert not Tokenizer.import_files([other]).lowercase and Tokenizer.import_files([other], lowercase=True).lowercase
    with pytest.raises(PolysemeError, match="do not belong together"):
        Tokenizer.import_files([other, vocab])
    with pytest.raises(PolysemeError, match="are both a BPE vocabulary"):
        shutil.copy(vocab, tmp_path / "copy")
        Tokenizer.import_files([vocab, tmp_path / "copy"])
    for content in (b"", b"\xff\xfe\x00", b"{", b"hello", b"[1, 2, 3]", b'{"a": "b"}', b"\x0a\x05hello"):
        other.write_bytes(content)
        with pytest.raises(PolysemeError, match="is not a supported vocabulary file"):
            Tokenizer.import_files([other])
    with pytest.raises(PolysemeError, match="nowhere is missing"):
        Tokenizer.import_files([tmp_path / "nowhere"])


@pytest.mark.parametrize(
    "merges,message",
    [
        ("a b\nb c d\n", "line 2: expected two pieces separated by a space, not 'b c d'"),
        ("a b\nb a\n", "line 2: 'ba' is not in the vocabulary"),
    ],
)
def test_invalid_merges_name_the_line(merges: str, message: str, tmp_path: Path) -> None:
    (tmp_path / "vocab.json").write_text(json.dumps(TINY))
    (tmp_path / "merges.txt").write_text("a b\n" * 200 + merges)
    with pytest.raises(PolysemeError, match=message.replace("line 2", "line 202")):
        Tokenizer.load(tmp_path)


def test_vocabulary_with_missing_ids_raises(tmp_path: Path) -> None:
    (tmp_path / "vocab.json").write_text(json.dumps(TINY | {"c": 9}))
    (tmp_path / "merges.txt").write_text("a b\n")
    with pytest.raises(PolysemeError, match="are not 0 to 4"):
        Tokenizer.load(tmp_path)


def test_roberta_vocabulary_has_its_template(tmp_path: Path) -> None:
    names = ["<s>", "<pad>", "</s>", "<unk>", "a", "b", "Ġ", "ab", "<mask>"]
    (tmp_path / "vocab.json").write_text(json.dumps({name: i for i, name in enumerate(names)}))
    (tmp_path / "merges.txt").write_text("#version: 0.2\na b\n")
    tokenizer = Tokenizer.load(tmp_path)
    assert tokenizer.build_inputs_with_special_tokens([7], [4]) == ([0, 7, 2, 2, 4, 2], [0, 0, 0, 0, 0, 0])
    assert (
        tokenizer.special_token_ids.mask == 8
        and tokenizer.special_token_ids.pad == 1
        and tokenizer.encode("ab<mask>") == [7, 8]
    )

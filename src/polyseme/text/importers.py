"""Reading vocabularies as they were published: what a file is, its content says."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers

from polyseme.errors import ConfigError, ModelError
from polyseme.text import sentencepiece_model as sentence_pieces
from polyseme.text.pipelines import (
    BERT_SPECIALS,
    END_OF_TEXT,
    END_OF_WORD_SUFFIX,
    ROBERTA_SPECIALS,
    add_special_tokens,
    build_bpe,
    build_wordpiece,
)

_SUPPORTED_FORMATS = "BERT's vocab.txt, vocab.json with merges.txt (GPT-2, GPT), sentencepiece's .model, tokenizer.json"


def import_vocabulary(files: Sequence[Path], lowercase: bool | None = None) -> tuple[Tokenizer, dict[str, str]]:
    """A tokenizer from one file, or from a vocabulary and its merges in any order; and its special tokens' names.

    `lowercase` is a question for BERT and GPT-2 only; the others say it themselves.
    """
    contents = {path: _read_bytes(path) for path in files}
    path_by_format: dict[str, Path] = {}
    for path, content in contents.items():
        file_format = _detect_format(content)
        if file_format is None:
            raise ModelError(f"{path} is no vocabulary that is known here: {_SUPPORTED_FORMATS}")
        if file_format in path_by_format:
            raise ModelError(f"{path_by_format[file_format]} and {path} are both {file_format}: one is wanted")
        path_by_format[file_format] = path
    formats = set(path_by_format)
    if formats == {"a vocabulary of BPE", "merges of BPE"}:
        vocab = json.loads(contents[path_by_format["a vocabulary of BPE"]])
        return _read_bpe(
            vocab, path_by_format["merges of BPE"], contents[path_by_format["merges of BPE"]], lowercase
        ), {}
    if formats in ({"a vocabulary of BPE"}, {"merges of BPE"}):
        missing_file = "its merges (merges.txt)" if "a vocabulary of BPE" in formats else "its vocabulary (vocab.json)"
        raise ModelError(f"{files[0]} is {next(iter(formats))}: {missing_file} has to be given too")
    if len(formats) != 1:
        raise ModelError(
            f"{', '.join(map(str, files))} do not belong together: one file, or a vocabulary and its merges"
        )
    (path,) = files
    if formats == {"a BERT vocabulary"}:
        return read_wordpiece_vocab(path, lowercase), {}
    if lowercase is not None:
        raise ConfigError(
            f"{path} says itself whether it lowers case: lowercase is for BERT's and GPT-2's vocabularies"
        )
    if formats == {"a tokenizer.json"}:
        return read_tokenizer(path), {}
    return sentence_pieces.build_tokenizer(sentence_pieces.parse_model(contents[path]), str(path))


def read_tokenizer(path: Path) -> Tokenizer:
    try:
        return Tokenizer.from_file(str(path))
    except Exception as error:  # the library raises nothing narrower
        raise ModelError(f"{path} is not a tokenizer: {error}") from None


def read_wordpiece_vocab(path: Path, lowercase: bool | None) -> Tokenizer:
    """BERT's `vocab.txt`; lower case, if not told, unless some piece of it is not."""
    try:
        pieces = _read_bytes(path).decode().removesuffix("\n").split("\n")
    except UnicodeDecodeError as error:
        raise ModelError(f"{path} is not UTF-8 text: byte {error.start}") from None
    vocab = {piece.rstrip("\r"): i for i, piece in enumerate(pieces)}
    if missing_tokens := [token for token in BERT_SPECIALS if token not in vocab]:
        raise ModelError(f"{path} is not a BERT vocabulary: it has no {' '.join(missing_tokens)}")
    if len(vocab) < len(pieces):
        raise ModelError(f"{path} is not a BERT vocabulary: {len(pieces) - len(vocab)} of its lines occur twice")
    if lowercase is None:
        lowercase = not any(piece != piece.lower() for piece in vocab if not piece.startswith("["))
    return build_wordpiece(vocab, lowercase)


def _read_bpe(vocab: dict[str, int], merges_path: Path, content: bytes, lowercase: bool | None) -> Tokenizer:
    """GPT-2's BPE of bytes, or GPT's (2018) of characters, whose last piece of a word ends in `</w>`."""
    merges: list[tuple[str, str]] = []
    for line_number, line in enumerate(content.decode().split("\n"), start=1):
        if not line.strip() or (line_number == 1 and line.startswith("#version")):
            continue
        pair = line.rstrip("\r").split(" ")
        if len(pair) != 2:
            raise ModelError(f"{merges_path}, line {line_number}: {line!r} is not two pieces with a space between")
        if missing_pieces := [piece for piece in (*pair, "".join(pair)) if piece not in vocab]:
            raise ModelError(f"{merges_path}, line {line_number}: {missing_pieces[0]!r} is not in the vocabulary")
        merges.append((pair[0], pair[1]))
    if sorted(vocab.values()) != list(range(len(vocab))):
        raise ModelError(f"the vocabulary that goes with {merges_path} does not number its pieces from 0 to the last")
    if any(piece.endswith(END_OF_WORD_SUFFIX) for piece in vocab):
        return _build_gpt(vocab, merges)
    special_tokens = [token for token in (END_OF_TEXT, *ROBERTA_SPECIALS) if token in vocab]
    if not special_tokens:
        raise ModelError(f"the vocabulary that goes with {merges_path} has no {END_OF_TEXT}")
    return build_bpe(vocab, merges, bool(lowercase), special_tokens)


def _build_gpt(vocab: dict[str, int], merges: list[tuple[str, str]]) -> Tokenizer:
    """GPT (2018): text cleaned and cut as for BERT in lower case, as `transformers` reads it.

    The first release cut with spaCy after ftfy; without them it falls back to this.
    """
    unk_token = "<unk>" if "<unk>" in vocab else None
    tokenizer = Tokenizer(models.BPE(vocab, merges, unk_token=unk_token, end_of_word_suffix=END_OF_WORD_SUFFIX))
    tokenizer.normalizer = normalizers.BertNormalizer(lowercase=True)
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    tokenizer.decoder = decoders.BPEDecoder(suffix=END_OF_WORD_SUFFIX)
    add_special_tokens(tokenizer, [unk_token] if unk_token else [])
    return tokenizer


def _detect_format(content: bytes) -> str | None:
    """What a file is, by its content."""
    if content.lstrip()[:1] == b"{":
        try:
            value = json.loads(content)
        except ValueError:
            return None
        if isinstance(value.get("model"), dict):
            return "a tokenizer.json"
        return "a vocabulary of BPE" if value and all(type(token_id) is int for token_id in value.values()) else None
    try:
        lines = content.decode().split("\n")
    except UnicodeDecodeError:
        lines = []
    if "[UNK]" in lines[:2000] or "[UNK]\r" in lines[:2000]:
        return "a BERT vocabulary"
    pairs = [line.rstrip("\r") for line in lines[:200] if line.strip() and not line.startswith("#version")]
    if pairs and all(len(pair.split(" ")) == 2 for pair in pairs):
        return "merges of BPE"
    try:
        sentence_pieces.parse_model(content)
    except ValueError:
        return None
    return "a sentencepiece model"


def _read_bytes(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except FileNotFoundError:
        raise ModelError(f"there is no {path}") from None
    except OSError as error:
        raise ModelError(f"cannot read {path}: {error.strerror or error}") from None

"""Reader of sentencepiece `.model` files: a protocol buffer of pieces, scores and normalization settings."""

import re
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from tokenizers import Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers

from polyseme.errors import ModelError
from polyseme.text import pipelines
from polyseme.text.pipelines import METASPACE

NORMAL, UNKNOWN, CONTROL, USER_DEFINED, UNUSED, BYTE = range(1, 7)
UNIGRAM, BPE, WORD, CHAR = range(1, 5)
_DEFAULT_ROLE_IDS = {"unk": 0, "bos": 1, "eos": 2, "pad": -1}
# Usual names of control symbols for which the format has no field.
_CONTROL_SYMBOLS = {"cls": ("[CLS]", "<cls>"), "sep": ("[SEP]", "<sep>"), "mask": ("[MASK]", "<mask>")}


@dataclass(frozen=True)
class SentencePiece:
    """A piece of a sentencepiece vocabulary."""

    text: str
    score: float
    kind: int = NORMAL


@dataclass
class SentencePieceProto:
    """Content of a `.model` file, with the defaults of the format."""

    pieces: list[SentencePiece] = field(default_factory=list)
    model_type: int = UNIGRAM
    treat_whitespace_as_suffix: bool = False
    byte_fallback: bool = False
    roles: dict[str, str] = field(default_factory=dict)
    precompiled_charsmap: bytes = b""
    add_dummy_prefix: bool = True
    remove_extra_whitespaces: bool = True
    escape_whitespaces: bool = True


def parse_model(serialized: bytes) -> SentencePieceProto:
    """Parse a `.model` file (field numbers of sentencepiece_model.proto); raise ValueError if it is not one."""
    try:
        return _parse_fields(serialized)
    except (AttributeError, TypeError) as error:  # a number in place of bytes, or the reverse
        raise ValueError(str(error)) from None


def _parse_fields(serialized: bytes) -> SentencePieceProto:
    proto = SentencePieceProto()
    trainer_spec: dict[int, Any] = {}
    for field_number, value in _iter_fields(serialized):
        if field_number == 1:
            fields = dict(_iter_fields(value))
            (score,) = np.frombuffer(fields.get(2, bytes(4)), "<f4")
            # The shortest digits that identify the float32: `tokenizers` misreads the last of seventeen.
            proto.pieces.append(SentencePiece(fields.get(1, b"").decode(), float(str(score)), fields.get(3, NORMAL)))
        elif field_number == 2:
            trainer_spec = dict(_iter_fields(value))
        elif field_number == 3:
            normalizer_spec = dict(_iter_fields(value))
            proto.precompiled_charsmap = normalizer_spec.get(2, b"")
            proto.add_dummy_prefix, proto.remove_extra_whitespaces, proto.escape_whitespaces = (
                bool(normalizer_spec.get(n, 1)) for n in (3, 4, 5)
            )
    if not proto.pieces:
        raise ValueError("no pieces")
    proto.model_type = trainer_spec.get(3, UNIGRAM)
    proto.treat_whitespace_as_suffix, proto.byte_fallback = bool(trainer_spec.get(24)), bool(trainer_spec.get(35))
    for field_number, (role, default) in enumerate(_DEFAULT_ROLE_IDS.items(), start=40):
        i = trainer_spec.get(field_number, default)  # -1 is written as 2^64 - 1
        if 0 <= i < len(proto.pieces) and proto.pieces[i].kind in (UNKNOWN, CONTROL):
            proto.roles[role] = proto.pieces[i].text
    return proto


def to_fairseq(proto: SentencePieceProto, model_type: str) -> SentencePieceProto:
    """Return the vocabulary with the ids of fairseq, which XLM-RoBERTa and CamemBERT use: special tokens come first.

    Their `.model` files do not have these tokens, nor the mask. CamemBERT keeps sentencepiece's own after unused ones.
    """
    if model_type == "camembert":
        first = [("<s>NOTUSED", UNUSED), ("<pad>", CONTROL), ("</s>NOTUSED", UNUSED), ("<unk>", UNKNOWN)]
        first.append(("<unk>NOTUSED", UNUSED))
        pieces = proto.pieces[1:]
    else:
        first = [("<s>", CONTROL), ("<pad>", CONTROL), ("</s>", CONTROL), ("<unk>", UNKNOWN)]
        pieces = proto.pieces[3:]
    added = [SentencePiece(text, 0.0, kind) for text, kind in [*first, ("<mask>", CONTROL)]]
    roles = {"bos": "<s>", "cls": "<s>", "eos": "</s>", "sep": "</s>", "pad": "<pad>", "unk": "<unk>"}
    return replace(proto, pieces=[*added[:-1], *pieces, added[-1]], roles=roles)


def build_tokenizer(proto: SentencePieceProto, name: str) -> tuple[Tokenizer, dict[str, str]]:
    """Build the equivalent `tokenizers` tokenizer and return it with its special tokens by role.

    The ids equal sentencepiece's, with two exceptions. `tokenizers` looks up whole clusters of a character and its
    marks in the table of replacements, and loses the rest of a cluster whose front is replaced: a mark after a
    full-width letter or an unusual space, the second of two decomposed accents. NFC text has hardly any of these. And
    between two segmentations of equal probability sentencepiece decides by rounding, which depends on the whole line.
    """
    unk_index = _check_proto(proto, name)
    if proto.model_type == UNIGRAM:
        vocab = [(piece.text, piece.score) for piece in proto.pieces]
        model: models.Model = models.Unigram(vocab, unk_index, proto.byte_fallback)
    else:
        model = _build_bpe(proto, unk_index)
    steps: list[Any] = [decoders.Replace(METASPACE, " ")]
    steps += [decoders.ByteFallback()] if proto.byte_fallback else []
    steps += [decoders.Fuse()]
    steps += [decoders.Strip(" ", 1, 0)] if proto.add_dummy_prefix else []
    special_tokens = [piece.text for piece in proto.pieces if piece.kind in (UNKNOWN, CONTROL)]
    splitter, normalizer, decoder = _build_pre_tokenizer(proto), _build_normalizer(proto), decoders.Sequence(steps)
    tokenizer = pipelines.build_pipeline(model, splitter, special_tokens, normalizer, decoder)
    roles = dict(proto.roles)
    for role, names in _CONTROL_SYMBOLS.items():
        if symbols := [name for name in names if name in special_tokens]:
            roles[role] = symbols[0]
    if roles.get("cls") == "[CLS]" and roles.get("sep") == "[SEP]":
        pipelines.set_pair_template(tokenizer)
    if roles.get("cls") == "<cls>" and roles.get("sep") == "<sep>":
        pipelines.set_cls_last_template(tokenizer, "<cls>", "<sep>")
    if roles.get("cls") == "<s>":
        pipelines.set_roberta_template(tokenizer)
    return tokenizer, {f"{role}_token": token for role, token in roles.items()}


def _check_proto(proto: SentencePieceProto, name: str) -> int:
    """Raise `ModelError` for an unsupported or damaged model; return the index of the unknown piece."""
    if proto.model_type not in (UNIGRAM, BPE):
        raise ModelError(f"{name} is a sentencepiece model of words or characters; only unigram and bpe are supported")
    if proto.treat_whitespace_as_suffix or not proto.escape_whitespaces:
        raise ModelError(f"{name} encodes spaces as suffixes or not at all, which is not supported")
    unk_indices = [i for i, piece in enumerate(proto.pieces) if piece.kind == UNKNOWN]
    if len(unk_indices) != 1:
        raise ModelError(f"{name} has {len(unk_indices)} unknown pieces; a sentencepiece model has one")
    if len({piece.text for piece in proto.pieces}) < len(proto.pieces):
        raise ModelError(f"{name} has the same piece twice")
    return unk_indices[0]


def _build_normalizer(proto: SentencePieceProto) -> normalizers.Sequence:
    steps: list[Any] = [normalizers.Precompiled(proto.precompiled_charsmap)] if proto.precompiled_charsmap else []
    if proto.remove_extra_whitespaces:
        steps.append(normalizers.Replace(Regex(rf"\A +|[ {METASPACE}]+\z| +(?= )"), ""))
    steps.append(normalizers.Replace(" ", METASPACE))
    if proto.add_dummy_prefix:
        steps.append(normalizers.Prepend(METASPACE))
    return normalizers.Sequence(steps)


def _build_pre_tokenizer(proto: SentencePieceProto) -> pre_tokenizers.Sequence:
    steps: list[Any] = []
    if not any(METASPACE in piece.text.lstrip(METASPACE) for piece in proto.pieces):  # no piece spans two words
        steps.append(pre_tokenizers.Split(Regex(f"{METASPACE}*[^{METASPACE}]+|{METASPACE}+"), "isolated"))
    if user_defined_patterns := [re.escape(piece.text) for piece in proto.pieces if piece.kind == USER_DEFINED]:
        pattern = "|".join(sorted(user_defined_patterns, key=len, reverse=True))
        steps.append(pre_tokenizers.Split(Regex(pattern), "isolated"))
    if proto.model_type == UNIGRAM:
        special_kinds = (UNKNOWN, CONTROL, UNUSED, BYTE)
        steps.append(pipelines.split_special_tokens(p.text for p in proto.pieces if p.kind in special_kinds))
    return pre_tokenizers.Sequence(steps)


def _build_bpe(proto: SentencePieceProto, unk_index: int) -> models.BPE:
    """Build a BPE model. Sentencepiece merges any neighbors that form a piece, best score first; list those merges."""
    ids = {piece.text: i for i, piece in enumerate(proto.pieces)}
    mergeable = {piece.text: piece.score for piece in proto.pieces if piece.kind in (NORMAL, UNUSED)}
    merges = []
    for text in sorted(mergeable, key=lambda text: -mergeable[text]):
        pairs = ((text[:i], text[i:]) for i in range(1, len(text)))
        pieces = [(a, b) for a, b in pairs if a in mergeable and b in mergeable]
        merges += sorted(pieces, key=lambda pair: (ids[pair[0]], ids[pair[1]]))
    return models.BPE(
        ids,
        merges,
        unk_token=proto.pieces[unk_index].text,
        fuse_unk=True,
        byte_fallback=proto.byte_fallback,
        ignore_merges=any(piece.kind == USER_DEFINED for piece in proto.pieces),
    )


def _iter_fields(serialized: bytes) -> Iterator[tuple[int, Any]]:
    """Yield (field number, value) of a message: varints as int, everything else as bytes."""
    position = 0
    while position < len(serialized):
        tag, position = _read_varint(serialized, position)
        wire_type = tag & 7
        if wire_type == 0:
            value, position = _read_varint(serialized, position)
            yield tag >> 3, value
            continue
        size = {1: 8, 5: 4}.get(wire_type, -1)
        if wire_type == 2:
            size, position = _read_varint(serialized, position)
        if size < 0 or position + size > len(serialized):
            raise ValueError("not a protocol buffer")
        yield tag >> 3, serialized[position : position + size]
        position += size


def _read_varint(serialized: bytes, position: int) -> tuple[int, int]:
    value = shift = 0
    while position < len(serialized) and shift < 64:
        byte = serialized[position]
        value |= (byte & 127) << shift
        position, shift = position + 1, shift + 7
        if byte < 128:
            return value, position
    raise ValueError("not a protocol buffer")

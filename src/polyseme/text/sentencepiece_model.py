"""Reading a sentencepiece `.model`: a protocol buffer of pieces with scores, and how text is cleaned for them."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from tokenizers import Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers

from polyseme.errors import UserError
from polyseme.text.pipelines import SPACE, add_specials, apart, set_last_template, set_pair_template

NORMAL, UNKNOWN, CONTROL, USER_DEFINED, UNUSED, BYTE = range(1, 7)
UNIGRAM, BPE, WORD, CHAR = range(1, 5)
_ROLES = ("unk", "bos", "eos", "pad")
# Names that models give to control symbols which the format has no field for.
_NAMED = {"cls": ("[CLS]", "<cls>"), "sep": ("[SEP]", "<sep>"), "mask": ("[MASK]", "<mask>")}


@dataclass(frozen=True)
class Piece:
    text: str
    score: float
    kind: int = NORMAL


@dataclass
class Model:
    """What a `.model` file says; the defaults are the format's own."""

    pieces: list[Piece] = field(default_factory=list)
    model_type: int = UNIGRAM
    space_behind: bool = False  # treat_whitespace_as_suffix
    byte_fallback: bool = False
    roles: dict[str, str] = field(default_factory=dict)
    charsmap: bytes = b""
    space_before: bool = True  # add_dummy_prefix
    single_spaces: bool = True  # remove_extra_whitespaces
    marked_spaces: bool = True  # escape_whitespaces


def parse(data: bytes) -> Model:
    """Field numbers are those of sentencepiece_model.proto. Raises ValueError for what is no such file."""
    try:
        return _parse(data)
    except (AttributeError, TypeError) as error:  # a number where bytes should be, or the reverse
        raise ValueError(str(error)) from None


def _parse(data: bytes) -> Model:
    made = Model()
    trainer: dict[int, Any] = {}
    for number, value in _fields(data):
        if number == 1:
            found = dict(_fields(value))
            (score,) = np.frombuffer(found.get(2, bytes(4)), "<f4")
            # In as few digits as tell it from its neighbours: `tokenizers` misreads the last of seventeen.
            made.pieces.append(Piece(found.get(1, b"").decode(), float(str(score)), found.get(3, NORMAL)))
        elif number == 2:
            trainer = dict(_fields(value))
        elif number == 3:
            rules = dict(_fields(value))
            made.charsmap = rules.get(2, b"")
            made.space_before, made.single_spaces, made.marked_spaces = (bool(rules.get(n, 1)) for n in (3, 4, 5))
    if not made.pieces:
        raise ValueError("no pieces")
    made.model_type = trainer.get(3, UNIGRAM)
    made.space_behind, made.byte_fallback = bool(trainer.get(24)), bool(trainer.get(35))
    ids = {role: _signed(trainer.get(40 + i, default)) for i, (role, default) in enumerate(zip(_ROLES, (0, 1, 2, -1)))}
    for role, i in ids.items():
        if 0 <= i < len(made.pieces) and made.pieces[i].kind in (UNKNOWN, CONTROL):
            made.roles[role] = made.pieces[i].text
    return made


def build(model: Model, name: str) -> tuple[Tokenizer, dict[str, str]]:
    """The same tokenizer for `tokenizers`, and its special tokens by role.

    The ids are sentencepiece's own, with two exceptions. The table of replacements is asked by `tokenizers` for
    whole clusters of a character and its marks, and of a cluster whose front it replaces the rest is lost: a mark
    behind a full-width letter or an odd space, the second of two decomposed accents; NFC text hardly has any.
    And of two cuts that are equally probable sentencepiece takes one by rounding, which depends on the whole line.
    """
    if model.model_type not in (UNIGRAM, BPE):
        raise UserError(f"{name} holds a sentencepiece model of words or characters: only unigram and bpe are read")
    if model.space_behind or not model.marked_spaces:
        raise UserError(f"{name} writes spaces in a way that is not read here: behind words, or not at all")
    unknown = [i for i, piece in enumerate(model.pieces) if piece.kind == UNKNOWN]
    if len(unknown) != 1:
        raise UserError(f"{name} has {len(unknown)} unknown pieces; a sentencepiece model has one")
    if len({piece.text for piece in model.pieces}) < len(model.pieces):
        raise UserError(f"{name} has the same piece twice")
    if model.model_type == UNIGRAM:
        vocab = [(piece.text, piece.score) for piece in model.pieces]
        made = Tokenizer(models.Unigram(vocab, unknown[0], model.byte_fallback))
    else:
        made = Tokenizer(_bpe(model, unknown[0]))
    steps: list[Any] = [normalizers.Precompiled(model.charsmap)] if model.charsmap else []
    if model.single_spaces:
        steps.append(normalizers.Replace(Regex(rf"\A +|[ {SPACE}]+\z| +(?= )"), ""))
    steps.append(normalizers.Replace(" ", SPACE))
    if model.space_before:
        steps.append(normalizers.Prepend(SPACE))
    cuts: list[Any] = []
    if not any(SPACE in piece.text.lstrip(SPACE) for piece in model.pieces):  # none reaches into the next word
        cuts.append(pre_tokenizers.Split(Regex(f"{SPACE}*[^{SPACE}]+|{SPACE}+"), "isolated"))
    if defined := [re.escape(piece.text) for piece in model.pieces if piece.kind == USER_DEFINED]:
        cuts.append(pre_tokenizers.Split(Regex("|".join(sorted(defined, key=len, reverse=True))), "isolated"))
    if model.model_type == UNIGRAM:
        cuts.append(apart(p.text for p in model.pieces if p.kind in (UNKNOWN, CONTROL, UNUSED, BYTE)))
    specials = [piece.text for piece in model.pieces if piece.kind in (UNKNOWN, CONTROL)]
    made.normalizer = normalizers.Sequence(steps)
    made.pre_tokenizer = pre_tokenizers.Sequence(cuts)
    fallback = [decoders.ByteFallback()] if model.byte_fallback else []
    strip = [decoders.Strip(" ", 1, 0)] if model.space_before else []
    made.decoder = decoders.Sequence([decoders.Replace(SPACE, " "), *fallback, decoders.Fuse(), *strip])
    add_specials(made, specials)
    roles = dict(model.roles)
    for role, names in _NAMED.items():
        if found := [name for name in names if name in specials]:
            roles[role] = found[0]
    if roles.get("cls") == "[CLS]" and roles.get("sep") == "[SEP]":
        set_pair_template(made)
    if roles.get("cls") == "<cls>" and roles.get("sep") == "<sep>":
        set_last_template(made, "<cls>", "<sep>")
    return made, {f"{role}_token": token for role, token in roles.items()}


def _bpe(model: Model, unknown: int) -> models.BPE:
    """Sentencepiece merges any neighbours whose sum is a piece, the best score first; here that is a list."""
    ids = {piece.text: i for i, piece in enumerate(model.pieces)}
    parts = {piece.text for piece in model.pieces if piece.kind in (NORMAL, UNUSED)}
    merges = []
    for piece in sorted((p for p in model.pieces if p.kind in (NORMAL, UNUSED)), key=lambda p: -p.score):
        text = piece.text
        pairs = [(text[:at], text[at:]) for at in range(1, len(text)) if text[:at] in parts and text[at:] in parts]
        merges += sorted(pairs, key=lambda pair: (ids[pair[0]], ids[pair[1]]))
    defined = any(piece.kind == USER_DEFINED for piece in model.pieces)
    return models.BPE(
        ids,
        merges,
        unk_token=model.pieces[unknown].text,
        fuse_unk=True,
        byte_fallback=model.byte_fallback,
        ignore_merges=defined,
    )


def _fields(data: bytes) -> Iterator[tuple[int, Any]]:
    """The fields of a message: numbers as ints, everything else as bytes."""
    at = 0
    while at < len(data):
        tag, at = _varint(data, at)
        kind = tag & 7
        if kind == 0:
            value, at = _varint(data, at)
            yield tag >> 3, value
            continue
        size, at = _varint(data, at) if kind == 2 else ({1: 8, 5: 4}.get(kind, -1), at)
        if size < 0 or at + size > len(data):
            raise ValueError("not a protocol buffer")
        yield tag >> 3, data[at : at + size]
        at += size


def _varint(data: bytes, at: int) -> tuple[int, int]:
    value = shift = 0
    while at < len(data) and shift < 64:
        byte = data[at]
        value |= (byte & 127) << shift
        at, shift = at + 1, shift + 7
        if byte < 128:
            return value, at
    raise ValueError("not a protocol buffer")


def _signed(value: int) -> int:
    return value - (1 << 64) if value >> 63 else value

"""Validation of a tokenizer before it is saved."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING

from polyseme.errors import ModelError
from polyseme.text.pipelines import CONTINUATION_PREFIX, END_OF_WORD_SUFFIX, METASPACE

if TYPE_CHECKING:
    from polyseme.text.tokenizer import Tokenizer

MAX_UNKNOWN_RATE = 0.01  # of the tokens of a sample of the training text
_MODEL_ROLES = ("pad", "unk", "cls", "sep", "mask")


def validate_tokenizer(tokenizer: Tokenizer, sample: Sequence[str] | None = None) -> None:
    """Check special tokens, pair template, round trip and offsets, and the rate of unknown tokens in a sample."""
    tokenizer.check_ids(tokenizer.vocab_size)
    _check_special_tokens(tokenizer)
    text = probe_text(tokenizer)
    _check_template(tokenizer, text)
    ids, offsets = tokenizer.encode_with_offsets(text)
    if tokenizer.decode(ids).strip() != text:
        raise ModelError(f"the tokenizer decodes the ids of {text!r} as {tokenizer.decode(ids)!r}")
    starts = [start for start, _ in offsets]
    if starts != sorted(starts) or any(not 0 <= start <= end <= len(text) for start, end in offsets):
        raise ModelError(f"the tokenizer's offsets are not ascending or lie outside the text {text!r}")
    for piece, (start, end) in zip(tokenizer.convert_ids_to_tokens(ids), offsets):
        surface = strip_markers(tokenizer, piece).replace(METASPACE, " ").strip()
        if surface and not tokenizer.is_byte_level and surface != text[start:end].strip():
            raise ModelError(f"the tokenizer's offsets map {piece!r} to {text[start:end]!r} in the text {text!r}")
    if sample:
        _check_special_tokens_in_text(tokenizer)
        _check_unknown_rate(tokenizer, sample)


def strip_markers(tokenizer: Tokenizer, piece: str) -> str:
    """Remove the markers of word start, continuation or end from a piece."""
    if tokenizer.kind == "wordpiece":
        return piece.removeprefix(CONTINUATION_PREFIX)
    if tokenizer.kind in ("words", "whitespace"):
        return piece
    return piece.removesuffix(END_OF_WORD_SUFFIX).removeprefix("Ġ" if tokenizer.is_byte_level else METASPACE)


def probe_text(tokenizer: Tokenizer) -> str:
    """Return a text that the vocabulary can encode: words from it that its normalizer leaves unchanged."""
    if tokenizer.is_byte_level:
        return "naïve café" if tokenizer.lowercase else "Naïve Café: 12 “quotes”, it's 東京!"
    normalizer = tokenizer.backend.normalizer
    pieces = tokenizer.vocabulary
    if tokenizer.kind == "wordpiece":
        pieces = [piece for piece in pieces if not piece.startswith(CONTINUATION_PREFIX)]
    pieces = [strip_markers(tokenizer, piece) for piece in pieces]
    candidates = (list(filter(is_kind, pieces))[:80] for is_kind in (str.isalpha, str.isdigit, str.isalnum))
    words = next(filter(None, candidates), [])
    if normalizer is not None:
        words = [word for word in words if normalizer.normalize_str(word).strip(f" {METASPACE}") == word]
    if not words:
        raise ModelError("the normalizer changes every word of the tokenizer's vocabulary")
    return " ".join(words[:40])


def count_unknown_characters(tokenizer: Tokenizer, texts: Sequence[str]) -> Counter[str]:
    """Count the characters of texts that the vocabulary cannot encode."""
    counts = Counter(character for text in texts for character in text)
    unk_id = tokenizer.special_token_ids.unk
    return Counter({c: n for c, n in counts.items() if not c.isspace() and unk_id in tokenizer.encode(c)})


def _check_special_tokens(tokenizer: Tokenizer) -> None:
    ids = {role: i for role, i in asdict(tokenizer.special_token_ids).items() if i is not None}
    missing_roles = [role for role in _MODEL_ROLES if role not in ids]
    if missing_roles and tokenizer.kind in ("wordpiece", "characters", "byte-bpe-roberta"):
        raise ModelError(f"the tokenizer has no {' and no '.join(missing_roles)} token")
    if "mask" in ids:  # GPT-2 has one token for all roles and no mask
        role_by_id: dict[int, str] = {}
        for role in _MODEL_ROLES:
            if role in ids and role_by_id.setdefault(ids[role], role) != role:
                token = tokenizer.special_tokens_map[role]
                raise ModelError(f"the tokenizer's {role_by_id[ids[role]]} and {role} tokens are both {token!r}")
    for role, token in tokenizer.special_tokens_map.items():
        if tokenizer.encode(token) != [ids[role]]:
            raise ModelError(f"the tokenizer's {role} token {token!r} is encoded as several tokens")


def _check_template(tokenizer: Tokenizer, text: str) -> None:
    first, second = text, text[:20]
    pair, build = tokenizer.backend.encode(first, second), tokenizer.build_inputs_with_special_tokens
    if build(tokenizer.encode(first), tokenizer.encode(second)) != (pair.ids, pair.type_ids):
        raise ModelError("the tokenizer's post-processor does more than add special tokens")
    cls, sep = tokenizer.special_token_ids.cls, tokenizer.special_token_ids.sep
    templates = ([cls, sep, sep], [0, 0, 1]), ([sep, sep, cls], [0, 1, 2])
    if tokenizer.kind in ("wordpiece", "characters") and build([], []) not in templates:
        raise ModelError("the tokenizer's pair template is not [CLS] A [SEP] B [SEP] with segments 0 and 1")


def _check_special_tokens_in_text(tokenizer: Tokenizer) -> None:
    """Check that special tokens written in a corpus are plain text; their characters may be unknown."""
    encoded = tokenizer.encode_corpus([f"x {token} y" for token in tokenizer.special_tokens_map.values()])
    allowed_ids = set() if tokenizer.is_byte_level else {tokenizer.special_token_ids.unk}
    if special_ids_in_text := (tokenizer.all_special_ids - allowed_ids) & set(encoded.ids.tolist()):
        token = tokenizer.convert_ids_to_tokens([min(special_ids_in_text)])[0]
        raise ModelError(f"the tokenizer encodes {token!r} in the text of a corpus as its special token")


def _check_unknown_rate(tokenizer: Tokenizer, sample: Sequence[str]) -> None:
    unk_id = tokenizer.special_token_ids.unk
    if unk_id is None or tokenizer.is_byte_level or tokenizer.kind in ("words", "whitespace"):
        return  # rare words are meant to be unknown
    ids = tokenizer.encode_corpus(sample).ids
    unknown_rate = float((ids == unk_id).mean()) if len(ids) else 0.0
    if unknown_rate <= MAX_UNKNOWN_RATE:
        return
    top_unknown = " ".join(character for character, _ in count_unknown_characters(tokenizer, sample).most_common(8))
    reason = f"most often for the characters {top_unknown}" if top_unknown else "for words of more than 100 characters"
    raise ModelError(
        f"{unknown_rate:.1%} of the tokens of a sample are {tokenizer.special_tokens_map['unk']} ({reason}), "
        f"more than {MAX_UNKNOWN_RATE:.0%}: use a larger vocabulary, a larger alphabet, or bpe, "
        "which can encode every character"
    )

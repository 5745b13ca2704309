"""What every model rests on: checked before a tokenizer is saved."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING

from polyseme.errors import UserError
from polyseme.text.pipelines import END_OF_WORD, PREFIX, SPACE

if TYPE_CHECKING:
    from polyseme.text.tokenizer import Tokenizer

MOST_UNKNOWN = 0.01  # of the tokens of a sample of the training text
_FIVE = ("pad", "unk", "cls", "sep", "mask")


def check(tokenizer: Tokenizer, sample: Sequence[str] | None = None) -> None:
    """Specials present, single and apart; the pair template; round trip; offsets; few unknowns in a sample."""
    _check_specials(tokenizer)
    text = some_text(tokenizer)
    _check_template(tokenizer, text)
    ids, offsets = tokenizer.encode_with_offsets(text)
    if not tokenizer.decode(ids).strip() == text:
        raise UserError(f"the tokenizer does not give back the text {text!r} but {tokenizer.decode(ids)!r}")
    starts = [start for start, _ in offsets]
    if starts != sorted(starts) or any(not 0 <= start <= end <= len(text) for start, end in offsets):
        raise UserError(f"the tokenizer's offsets do not lie in the text {text!r}")
    for piece, (start, end) in zip(tokenizer.pieces(ids), offsets):
        part = bare(tokenizer, piece).replace(SPACE, " ").strip()
        if part and not tokenizer.byte_level and part != text[start:end].strip():
            raise UserError(f"the tokenizer's offsets give {text[start:end]!r} for {piece!r} in the text {text!r}")
    if sample:
        _check_plain(tokenizer)
        _check_unknown(tokenizer, sample)


def bare(tokenizer: Tokenizer, piece: str) -> str:
    """A piece without the signs that say where a word starts, goes on or ends."""
    if tokenizer.kind == "wordpiece":
        return piece.removeprefix(PREFIX)
    if tokenizer.kind in ("words", "spaced"):
        return piece
    return piece.removesuffix(END_OF_WORD).removeprefix("Ġ" if tokenizer.byte_level else SPACE)


def some_text(tokenizer: Tokenizer) -> str:
    """Some text that the vocabulary can write: words of its own, as its normalizer leaves them."""
    if tokenizer.byte_level:
        return "naïve café" if tokenizer.lowercase else "Naïve Café: 12 “quotes”, it's 東京!"
    normalizer = tokenizer.backend.normalizer
    inner = tokenizer.kind == "wordpiece"
    pieces = [bare(tokenizer, piece) for piece in tokenizer.vocabulary if not (inner and piece.startswith(PREFIX))]
    words = [word for word in pieces if word.isalpha()][:80] or [word for word in pieces if word.isdigit()][:80]
    words = words or [word for word in pieces if word.isalnum()][:80]
    if normalizer is not None:
        words = [word for word in words if normalizer.normalize_str(word).strip(f" {SPACE}") == word]
    if not words:
        raise UserError("the tokenizer has no word in its vocabulary that its own cleaning leaves as it is")
    return " ".join(words[:40])


def unknown_characters(tokenizer: Tokenizer, texts: Sequence[str]) -> Counter[str]:
    """The characters of some texts that the vocabulary cannot write, and how often they occur."""
    counts = Counter(character for text in texts for character in text)
    unknown = tokenizer.specials.unk
    return Counter({c: n for c, n in counts.items() if not c.isspace() and unknown in tokenizer.encode(c)})


def _check_specials(tokenizer: Tokenizer) -> None:
    ids = {role: number for role, number in asdict(tokenizer.specials).items() if number is not None}
    lost = [role for role in _FIVE if role not in ids]
    if lost and tokenizer.kind in ("wordpiece", "characters", "bpe-masked"):
        raise UserError(f"the tokenizer has no {' and no '.join(lost)} token")
    if "mask" in ids:  # GPT-2 has one token for all roles, and masks nothing
        names: dict[int, str] = {}
        for role in _FIVE:
            if role in ids and names.setdefault(ids[role], role) != role:
                token = tokenizer.special_tokens[role]
                raise UserError(f"the tokenizer's {names[ids[role]]} and {role} tokens are both {token!r}")
    for role, token in tokenizer.special_tokens.items():
        if tokenizer.encode(token) != [ids[role]]:
            raise UserError(f"the tokenizer's {role} token {token!r} is not one token")


def _check_template(tokenizer: Tokenizer, text: str) -> None:
    first, second = text, text[:20]
    joined = tokenizer.backend.encode(first, second)
    if tokenizer.wrap(tokenizer.encode(first), tokenizer.encode(second)) != (joined.ids, joined.type_ids):
        raise UserError("the tokenizer's pair template does more than add special tokens")
    cls, sep = tokenizer.specials.cls, tokenizer.specials.sep
    if tokenizer.kind in ("wordpiece", "characters") and tokenizer.wrap([], []) not in (
        ([cls, sep, sep], [0, 0, 1]),
        ([sep, sep, cls], [0, 1, 2]),
    ):
        raise UserError("the tokenizer's pair template is not [CLS] A [SEP] B [SEP] with segments 0 and 1")


def _check_plain(tokenizer: Tokenizer) -> None:
    """A special token written in a corpus is plain text; its signs may be unknown, which is no harm."""
    run = tokenizer.encode_run([f"x {token} y" for token in tokenizer.special_tokens.values()])
    harmless = set() if tokenizer.byte_level else {tokenizer.specials.unk}
    if found := (tokenizer.special_ids - harmless) & set(run.ids.tolist()):
        token = tokenizer.pieces([min(found)])[0]
        raise UserError(f"the tokenizer takes {token!r} in the text of a corpus for its special token")


def _check_unknown(tokenizer: Tokenizer, sample: Sequence[str]) -> None:
    unknown = tokenizer.specials.unk
    if unknown is None or tokenizer.byte_level or tokenizer.kind in ("words", "spaced"):
        return  # of words, those that are rare are meant to be unknown
    ids = tokenizer.encode_run(sample).ids
    share = float((ids == unknown).mean()) if len(ids) else 0.0
    if share <= MOST_UNKNOWN:
        return
    guilty = " ".join(character for character, _ in unknown_characters(tokenizer, sample).most_common(8))
    because = f"most often for the characters {guilty}" if guilty else "for words of more than 100 characters"
    raise UserError(
        f"{share:.1%} of a sample of the text would be {tokenizer.special_tokens['unk']} ({because}), more than "
        f"{MOST_UNKNOWN:.0%}: take a larger vocabulary, more of the alphabet, or bpe, which knows every character"
    )

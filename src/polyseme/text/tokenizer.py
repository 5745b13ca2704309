"""A tokenizer: text to ids and back, the special tokens, and where words start."""

from __future__ import annotations

import copy
import hashlib
import itertools
import json
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, Literal, NamedTuple, final

import numpy as np
from tokenizers import Tokenizer as Backend
from tokenizers.normalizers import BertNormalizer

from polyseme.errors import UserError, nearest
from polyseme.files import read_json, write_json, write_text
from polyseme.text.vocabulary import PREFIX, read_vocab, train_bpe, train_wordpiece

# What each special role is called when a folder does not say; the first name found in the vocabulary counts.
_USUAL = {
    "pad": ("[PAD]", "<pad>", "<|endoftext|>"),
    "unk": ("[UNK]", "<unk>", "<|endoftext|>"),
    "cls": ("[CLS]", "<s>"),
    "sep": ("[SEP]", "</s>"),
    "mask": ("[MASK]", "<mask>"),
    "bos": ("<s>", "<|endoftext|>"),
    "eos": ("</s>", "<|endoftext|>"),
}
_FIRST, _SECOND = -1, -2  # the two texts' places in a template, where a special token has its id


@dataclass(frozen=True)
class Specials:
    """The id of each special role, None where the vocabulary has none."""

    pad: int | None = None
    unk: int | None = None
    cls: int | None = None
    sep: int | None = None
    mask: int | None = None
    bos: int | None = None
    eos: int | None = None


class Run(NamedTuple):
    """Many texts encoded end to end, without special tokens."""

    ids: np.ndarray  # int32 [T]
    lengths: np.ndarray  # int64, one for each text
    words: np.ndarray  # bool [T], True where a word starts; the first token of a text always does


@final
class Tokenizer:
    """Wraps `tokenizers.Tokenizer`. It never truncates or pads: sequences are packed, and cut by their users.

    `encode` and its kin read a special token written in the text (`[MASK]`) as that token, as one who asks a
    model wants it; `encode_run`, which reads corpora, takes the same characters as plain text.
    """

    def __init__(self, backend: Backend, config: dict[str, Any] | None = None):
        self.backend = backend
        self.config = config or {}
        backend.no_truncation()
        backend.no_padding()
        self.special_tokens = _special_tokens(backend, self.config)
        self.specials = Specials(**{r: backend.token_to_id(t) for r, t in self.special_tokens.items()})
        self._single, self._pair = _template(backend.encode("a")), _template(backend.encode("a", "a"))

    @classmethod
    def train(
        cls,
        kind: Literal["wordpiece", "bpe"],
        texts: Iterator[str],
        vocab_size: int,
        lowercase: bool | None = None,
        min_frequency: int = 2,
        max_alphabet: int = 1000,
    ) -> Tokenizer:
        """Learn a vocabulary of at most `vocab_size` entries; the same texts give the same one.

        By default WordPiece lowers case, as BERT's first model does, and BPE keeps it, as GPT-2 does.
        """
        lowercase = kind == "wordpiece" if lowercase is None else lowercase
        if kind == "wordpiece":
            return cls(train_wordpiece(texts, vocab_size, lowercase, min_frequency, max_alphabet))
        if kind == "bpe":
            return cls(train_bpe(texts, vocab_size, lowercase, min_frequency))
        raise UserError(f"no tokenizer kind {kind!r}: {nearest(kind, ['wordpiece', 'bpe'])}")

    @classmethod
    def load(cls, path: Path | str) -> Tokenizer:
        """From a folder with `tokenizer.json` or BERT's `vocab.txt`, or from one such file."""
        path = Path(path)
        folder = path if path.is_dir() else path.parent
        if path.is_dir():
            found = [folder / name for name in ("tokenizer.json", "vocab.txt") if (folder / name).is_file()]
            if not found:
                raise UserError(f"no tokenizer in {folder}: neither tokenizer.json nor vocab.txt is there")
            path = found[0]
        elif not path.is_file():
            raise UserError(f"no tokenizer at {path}: there is no such file or folder")
        config: dict[str, Any] = {}
        for name in ("special_tokens_map.json", "tokenizer_config.json"):
            if (folder / name).is_file():
                config |= read_json(folder / name)
        if path.suffix == ".txt":
            return cls(read_vocab(path, config.get("do_lower_case")), config)
        try:
            backend = Backend.from_file(str(path))
        except Exception as error:  # the library raises nothing narrower
            raise UserError(f"{path} is not a tokenizer: {error}") from None
        return cls(backend, config)

    def save(self, folder: Path) -> None:
        """Write what `transformers.AutoTokenizer` opens, after `check`; `vocab.txt` too for WordPiece."""
        self.check()
        tokens = {f"{role}_token": token for role, token in self.special_tokens.items()}
        config: dict[str, Any] = {"tokenizer_class": "PreTrainedTokenizerFast"}
        normalizer = self.backend.normalizer
        if self.kind == "bpe" and normalizer is None:
            config["tokenizer_class"] = "GPT2Tokenizer"
        elif self.kind == "wordpiece" and isinstance(normalizer, BertNormalizer):
            config["tokenizer_class"] = "BertTokenizer"
            config["do_lower_case"] = normalizer.lowercase
            config["strip_accents"] = normalizer.strip_accents
            config["tokenize_chinese_chars"] = normalizer.handle_chinese_chars
            write_text(folder / "vocab.txt", "\n".join(self.vocabulary) + "\n")
        config |= self.config | tokens
        write_json(folder / "special_tokens_map.json", tokens)
        write_json(folder / "tokenizer_config.json", config)
        write_text(folder / "tokenizer.json", self.backend.to_str(pretty=True))

    @property
    def kind(self) -> str:
        """What the model inside is called: wordpiece, bpe, unigram, …"""
        return type(self.backend.model).__name__.lower()

    @property
    def lowercase(self) -> bool:
        normalizer = self.backend.normalizer
        return bool(getattr(normalizer, "lowercase", type(normalizer).__name__ == "Lowercase"))

    @property
    def vocab_size(self) -> int:
        return self.backend.get_vocab_size()

    @cached_property
    def vocabulary(self) -> list[str]:
        """Every entry, at the place of its id."""
        return self.pieces(range(self.vocab_size))

    @cached_property
    def hash(self) -> str:
        """Equal for equal behaviour: file layout, key order and fields at null or false do not count."""

        def bare(value: Any) -> Any:
            if isinstance(value, dict):
                return {key: bare(item) for key, item in value.items() if item is not None and item is not False}
            return [bare(item) for item in value] if isinstance(value, list) else value

        canonical = json.dumps(bare(json.loads(self.backend.to_str())), sort_keys=True, ensure_ascii=False)
        return hashlib.sha256(canonical.encode()).hexdigest()

    @property
    def mask_token(self) -> str | None:
        return self.special_tokens.get("mask")

    @cached_property
    def special_ids(self) -> frozenset[int]:
        added = self.backend.get_added_tokens_decoder()
        roles = (i for i in asdict(self.specials).values() if i is not None)
        return frozenset([*roles, *(i for i, token in added.items() if token.special)])

    def encode(self, text: str) -> list[int]:
        """The ids of a text, without special tokens around it."""
        ids: list[int] = self.backend.encode(text, add_special_tokens=False).ids
        return ids

    def encode_batch(self, texts: Sequence[str]) -> list[np.ndarray]:
        found = self.backend.encode_batch_fast(list(texts), add_special_tokens=False)
        return [np.array(encoding.ids, dtype=np.int32) for encoding in found]

    def encode_with_offsets(self, text: str) -> tuple[list[int], list[tuple[int, int]]]:
        """The ids, and for each the characters of the text it covers."""
        encoding = self.backend.encode(text, add_special_tokens=False)
        return encoding.ids, encoding.offsets

    def encode_words(self, words: Sequence[str]) -> tuple[list[int], list[int]]:
        """The ids of words that are split already, and for each id which word it is of.

        A word that is nothing but control characters has no id. Byte-level BPE writes the space before a word
        into its first piece, so words after the first are given one.
        """
        spaced = [" " + word if i and self._byte_level else word for i, word in enumerate(words)]
        encoding = self.backend.encode(spaced, is_pretokenized=True, add_special_tokens=False)
        return encoding.ids, [word or 0 for word in encoding.word_ids]

    def encode_run(self, texts: Sequence[str]) -> Run:
        """Many texts at once, with no Python work per token: what a corpus is made of."""
        if self.kind == "wordpiece":
            found = self._plain.encode_batch_fast(list(texts), add_special_tokens=False)
        else:
            found = self._plain.encode_batch(list(texts), add_special_tokens=False)
        lengths = np.fromiter((len(encoding) for encoding in found), np.int64, len(found))
        total = int(lengths.sum())
        chain = itertools.chain.from_iterable
        ids = np.fromiter(chain(encoding.ids for encoding in found), np.int32, total)
        if self.kind == "wordpiece":
            words = self._starts_word[ids]
        else:
            of = np.fromiter(chain(encoding.word_ids for encoding in found), np.int32, total)
            words = np.concatenate([np.ones(min(total, 1), bool), of[1:] != of[:-1]])
        firsts = np.cumsum(lengths) - lengths
        words[firsts[lengths > 0]] = True
        return Run(ids, lengths, words)

    def words_of(self, text: str) -> np.ndarray:
        """True for each token of a text that starts a word."""
        return self.encode_run([text]).words

    def wrap(self, first: Sequence[int], second: Sequence[int] | None = None) -> tuple[list[int], list[int]]:
        """Put the special tokens around one text or a pair; returns ids and segment ids."""
        ids: list[int] = []
        segments: list[int] = []
        for what, segment in self._single if second is None else self._pair:
            part = [what] if what >= 0 else list(first) if what == _FIRST else list(second or ())
            ids += part
            segments += [segment] * len(part)
        return ids, segments

    def num_added(self, pair: bool = False) -> int:
        """How many special tokens `wrap` adds."""
        return sum(what >= 0 for what, _ in (self._pair if pair else self._single))

    def decode(self, ids: Sequence[int], skip_specials: bool = True) -> str:
        text: str = self.backend.decode(list(ids), skip_special_tokens=skip_specials)
        return text

    def pieces(self, ids: Sequence[int]) -> list[str]:
        return [self.backend.id_to_token(int(i)) or "" for i in ids]

    def check(self) -> None:
        """The contract that every model rests on; a `UserError` names what does not hold."""
        for role, token in self.special_tokens.items():
            if self.encode(token) != [getattr(self.specials, role)]:
                raise UserError(f"the tokenizer's {role} token {token!r} is not one token")
        first, second = self._sample(), self._sample()[:20]
        joined = self.backend.encode(first, second)
        if self.wrap(self.encode(first), self.encode(second)) != (joined.ids, joined.type_ids):
            raise UserError("the tokenizer's pair template does more than add special tokens")
        cls, sep = self.specials.cls, self.specials.sep
        bert = [(cls, 0), (_FIRST, 0), (sep, 0), (_SECOND, 1), (sep, 1)]
        if self.kind == "wordpiece" and self._pair != bert:
            raise UserError("the tokenizer's pair template is not [CLS] A [SEP] B [SEP] with segments 0 and 1")
        ids, offsets = self.encode_with_offsets(first)
        if not self.decode(ids).strip() == first:
            raise UserError(f"the tokenizer does not give back the text {first!r} but {self.decode(ids)!r}")
        starts = [start for start, _ in offsets]
        if starts != sorted(starts) or any(not 0 <= start <= end <= len(first) for start, end in offsets):
            raise UserError(f"the tokenizer's offsets do not lie in the text {first!r}")

    def _sample(self) -> str:
        """Some text that the vocabulary can write: words of its own, as its normalizer leaves them."""
        if self._byte_level:
            return "naïve café" if self.lowercase else "Naïve Café: 12 “quotes”, it's 東京!"
        normalizer = self.backend.normalizer
        pieces = [piece.removeprefix("▁") for piece in self.vocabulary if PREFIX not in piece]
        words = [word for word in pieces if word.isalpha()][:80]
        if normalizer is not None:
            words = [word for word in words if normalizer.normalize_str(word).strip() == word]
        return " ".join(words[:40])

    @cached_property
    def _byte_level(self) -> bool:
        return '"ByteLevel"' in json.dumps(json.loads(self.backend.to_str())["pre_tokenizer"])

    @cached_property
    def _plain(self) -> Backend:
        plain = copy.deepcopy(self.backend)
        plain.encode_special_tokens = True
        return plain

    @cached_property
    def _starts_word(self) -> np.ndarray:
        return np.array([not piece.startswith(PREFIX) for piece in self.vocabulary])


def _special_tokens(backend: Backend, config: dict[str, Any]) -> dict[str, str]:
    """Role to token: as the folder's files say, else by the usual names."""
    found: dict[str, str] = {}
    for role, usual in _USUAL.items():
        named = config.get(f"{role}_token")
        if isinstance(named, dict):  # an AddedToken written out
            named = named.get("content")
        token = next((t for t in ([named] if named else usual) if backend.token_to_id(t) is not None), None)
        if named and not token:
            raise UserError(f"the tokenizer's {role} token {named!r} is not in its vocabulary")
        if token:
            found[role] = token
    return found


def _template(encoding: Any) -> list[tuple[int, int]]:
    """The places of the special tokens and the texts in an encoded example, each with its segment."""
    places: list[tuple[int, int]] = []
    for i, text, segment in zip(encoding.ids, encoding.sequence_ids, encoding.type_ids):
        place = (i if text is None else (_FIRST, _SECOND)[text], segment)
        if text is None or place not in places:
            places.append(place)
    return places

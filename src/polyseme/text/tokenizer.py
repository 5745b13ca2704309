"""A tokenizer: text to ids and back, the special tokens, and where words start."""

from __future__ import annotations

import copy
import hashlib
import itertools
import json
import unicodedata
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from functools import cached_property, partial
from pathlib import Path
from typing import Any, Literal, final

import numpy as np
from tokenizers import Tokenizer as Backend
from tokenizers.normalizers import BertNormalizer

from polyseme.errors import UserError
from polyseme.io.files import read_json, write_json, write_text
from polyseme.text import validation as contract
from polyseme.text.cached_encoder import Run, Units, cuts_of, encode_directly
from polyseme.text.counts import SMOOTHING, WordCounts
from polyseme.text.events import EVENTS, build_events
from polyseme.text.importers import read_published, read_tokenizer, read_vocab
from polyseme.text.pipelines import (
    SENTINEL,
    SPACE,
    add_sentinels,
    set_end_template,
    set_frame,
    set_last_template,
    sound,
)
from polyseme.text.trainers import MAX_ALPHABET, learn

# What each special role is called when a folder does not say; the first name found in the vocabulary counts.
_USUAL = {
    "pad": ("[PAD]", "<pad>", "<|endoftext|>"),
    "unk": ("[UNK]", "<unk>", "<|endoftext|>"),
    "cls": ("[CLS]", "<cls>", "<s>"),
    "sep": ("[SEP]", "<sep>", "</s>"),
    "mask": ("[MASK]", "<mask>"),
    "bos": ("<s>", "<|endoftext|>"),
    "eos": ("</s>", "<|endoftext|>"),
}
# What a folder may hold, the first that is there counts.
_FILES = (
    *(("tokenizer.json",), ("vocab.txt",), ("vocab.json", "merges.txt")),
    *(("spiece.model",), ("sentencepiece.bpe.model",), ("tokenizer.model",)),
)
Kind = Literal["wordpiece", "bpe", "bpe-masked", "unigram", "characters", "words", "spaced"]
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
        kind: Kind,
        texts: Iterable[str],
        vocab_size: int,
        lowercase: bool | None = None,
        min_frequency: int = 2,
        max_alphabet: int = MAX_ALPHABET,
        sentinels: int = 0,
    ) -> Tokenizer:
        """Learn a vocabulary of at most `vocab_size` entries; the same texts give the same one.

        By default WordPiece lowers case, as BERT's first model does, and the other kinds keep it.
        """
        counts = WordCounts(kind, lowercase)
        for text in texts:
            counts.add(text)
        return cls.learn(counts, vocab_size, min_frequency, max_alphabet, sentinels=sentinels)

    @classmethod
    def learn(
        cls,
        counts: WordCounts,
        vocab_size: int,
        min_frequency: int = 2,
        max_alphabet: int = MAX_ALPHABET,
        smoothing: float = SMOOTHING,
        sentinels: int = 0,
    ) -> Tokenizer:
        """A tokenizer from counted words, checked on a sample of the text that was counted.

        `min_frequency` is of WordPiece, BPE and words; `smoothing` is the exponent on the sizes of languages. The last
        `sentinels` entries stand for spans that are taken out of a text, which T5's objective needs.
        """
        words = counts.combined(smoothing)
        made = cls(learn(counts.kind, words, vocab_size, counts.lowercase, min_frequency, max_alphabet, sentinels))
        made.check(counts.sample())
        return made

    @classmethod
    def load(cls, path: Path | str) -> Tokenizer:
        """From a folder with `tokenizer.json` or a published vocabulary, or from one such file.

        What has the name `events` is nowhere: the fixed vocabulary of music.
        """
        path = Path(path)
        if str(path) == "events" and not path.exists():
            return cls(build_events())
        folder = path if path.is_dir() else path.parent
        files = [path]
        if path.is_dir():
            there = ([folder / name for name in names] for names in _FILES)
            files = next((names for names in there if all(map(Path.is_file, names))), [])
            if not files:
                rest = "vocab.json with merges.txt or a sentencepiece .model"
                raise UserError(f"no tokenizer in {folder}: neither tokenizer.json nor vocab.txt, {rest} is there")
        elif not path.is_file():
            raise UserError(f"no tokenizer at {path}: there is no such file or folder")
        config: dict[str, Any] = {}
        for name in ("special_tokens_map.json", "tokenizer_config.json"):
            if (folder / name).is_file():
                config |= read_json(folder / name)
        if files[0].suffix == ".txt":
            return cls(read_vocab(files[0], config.get("do_lower_case")), config)
        if files[0].suffix == ".json" and len(files) == 1:
            return cls(read_tokenizer(files[0]), config)
        backend, tokens = read_published(files)
        if (sentinels := config.get("extra_ids")) and backend.token_to_id(SENTINEL.format(0)) is None:
            add_sentinels(backend, sentinels)  # T5's file of pieces holds neither them nor what stands around a text
            set_end_template(backend)
        return cls(backend, tokens | config)

    @classmethod
    def read(cls, files: Sequence[Path], lowercase: bool | None = None) -> Tokenizer:
        """From a published vocabulary: one file, or a vocabulary and its merges; what they are, their content says."""
        return cls(*read_published(files, lowercase))

    def save(self, folder: Path) -> None:
        """Write what `transformers.AutoTokenizer` opens, after `check`; `vocab.txt` too for WordPiece."""
        self.check()
        tokens = {f"{role}_token": token for role, token in self.special_tokens.items()}
        config: dict[str, Any] = {"tokenizer_class": "PreTrainedTokenizerFast"}
        normalizer = self.backend.normalizer
        if self.kind == "bpe" and self.byte_level and normalizer is None and not self.num_added():
            config["tokenizer_class"] = "GPT2Tokenizer"
        elif (
            self.kind == "wordpiece"
            and isinstance(normalizer, BertNormalizer)
            and self.wrap([])[0] == [self.specials.cls, self.specials.sep]
        ):
            config["tokenizer_class"] = "BertTokenizer"
            config["do_lower_case"] = normalizer.lowercase
            config["strip_accents"] = normalizer.strip_accents
            config["tokenize_chinese_chars"] = normalizer.handle_chinese_chars
            write_text(folder / "vocab.txt", "\n".join(self.vocabulary) + "\n")
        config |= self.config | tokens
        write_json(folder / "special_tokens_map.json", tokens)
        write_json(folder / "tokenizer_config.json", config)
        write_text(folder / "tokenizer.json", self.backend.to_str(pretty=True))

    @cached_property
    def kind(self) -> str:
        """What it was trained as, or would be; characters is a BPE model without merges; else the model's name."""
        name = type(self.backend.model).__name__.lower()
        if name == "wordlevel" and self.vocabulary[-len(EVENTS) :] == list(EVENTS):
            return "events"
        if name == "wordlevel":
            before = type(self.backend.pre_tokenizer).__name__
            return {"BertPreTokenizer": "words", "Sequence": "spaced"}.get(before, name)
        if name == "bpe" and self.byte_level and self.specials.mask is not None:
            return "bpe-masked"
        if name != "bpe" or self.byte_level:
            return name
        plain = (piece for i, piece in enumerate(self.vocabulary) if i not in self.special_ids)
        return "characters" if all(len(piece) == 1 for piece in plain) else name

    @property
    def lowercase(self) -> bool:
        normalizer = self.backend.normalizer
        return normalizer is not None and "A" not in normalizer.normalize_str("A")

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

    @cached_property
    def sentinels(self) -> tuple[int, ...]:
        """The ids that stand for the first, second, … span taken out of a text."""
        vocab = self.backend.get_vocab()
        names = (SENTINEL.format(i) for i in itertools.count())
        return tuple(vocab[name] for name in itertools.takewhile(vocab.__contains__, names))

    def encode(self, text: str) -> list[int]:
        """The ids of a text, without special tokens around it. Here and below a lone surrogate reads as U+FFFD."""
        ids: list[int] = self._encoded(text).ids
        return ids

    def encode_batch(self, texts: Sequence[str]) -> list[np.ndarray]:
        encode = partial(self.backend.encode_batch_fast, add_special_tokens=False)
        try:
            found = encode(list(texts))
        except TypeError:
            found = encode(list(map(sound, texts)))
        return [np.array(encoding.ids, dtype=np.int32) for encoding in found]

    def encode_with_offsets(self, text: str) -> tuple[list[int], list[tuple[int, int]]]:
        """The ids, and for each the characters of the text it covers.

        A space that is put before a text covers nothing. What was composed with the character before it, or a
        mark that was taken off it, is covered with that character.
        """
        encoding = self._encoded(text)
        ids, offsets = encoding.ids, encoding.offsets
        space = self.backend.token_to_id(SPACE)
        if space is None and (text.isascii() or self.byte_level):
            return ids, offsets
        fixed = self.special_ids - {self.specials.unk}
        for i, (start, end) in enumerate(offsets):
            after = offsets[i + 1][0] if i + 1 < len(ids) else len(text)
            if ids[i] == space and after < end:
                end = start
            while end < after and ids[i] not in fixed and _joins(text[end]):
                end += 1
            offsets[i] = start, end
        return ids, offsets

    def encode_words(self, words: Sequence[str]) -> tuple[list[int], list[int]]:
        """The ids of words that are split already, and for each id which word it is of.

        The ids are those of the words with spaces between. A space goes with the next word, which has it in its
        first piece; where it is a token of its own (characters) it goes with the word before. A word that is
        nothing but control characters has no id.
        """
        encoding = self._encoded(" ".join(words))
        starts = np.cumsum([0, *(len(word) + 1 for word in words)])[:-1]
        lasts = [max(start, end - 1) for start, end in encoding.offsets]
        of = np.searchsorted(starts - (self.kind != "characters"), lasts, side="right") - 1
        return encoding.ids, of.tolist()

    def encode_run(self, texts: Sequence[str]) -> Run:
        """Many texts at once, with no Python work per token: what a corpus is made of."""
        if self._units is not None:
            return self._units.encode(texts)
        return encode_directly(self._plain, texts, self._starts_word)

    def words_of(self, text: str) -> np.ndarray:
        """True for each token of a text that starts a word."""
        return self.encode_run([sound(text)]).words

    def wrap(self, first: Sequence[int], second: Sequence[int] | None = None) -> tuple[list[int], list[int]]:
        """Put the special tokens around one text or a pair; returns ids and segment ids."""
        ids: list[int] = []
        segments: list[int] = []
        for what, segment in self._single if second is None else self._pair:
            part = [what] if what >= 0 else list(first) if what == _FIRST else list(second or ())
            ids += part
            segments += [segment] * len(part)
        return ids, segments

    def marked(self, place: Literal["first", "last"]) -> Tokenizer:
        """The tokenizer for a family whose token of the whole sequence stands there; `first` is how they are made."""
        cls, sep = self.special_tokens.get("cls"), self.special_tokens.get("sep")
        if place == "first" or cls is None or sep is None:
            return self
        backend = copy.deepcopy(self.backend)
        set_last_template(backend, cls, sep)
        # other tools have to pad on the other side then, and to hand the segments on
        names = ["input_ids", "token_type_ids", "attention_mask"]
        return Tokenizer(backend, self.config | {"padding_side": "left", "model_input_names": names})

    def framed(self, start: str, between: str, end: str) -> Tokenizer:
        """A copy that puts marks around a text and between two; what the vocabulary lacks of them gets new ids."""
        backend = copy.deepcopy(self.backend)
        set_frame(backend, start, between, end)
        return Tokenizer(backend, {key: value for key, value in self.config.items() if key != "tokenizer_class"})

    def closed(self) -> Tokenizer:
        """A copy that puts the end mark behind a text, where nothing is put around it yet."""
        end = self.special_tokens.get("eos")
        if self.num_added() or end is None:
            return self
        backend = copy.deepcopy(self.backend)
        set_end_template(backend, end)
        return Tokenizer(backend, self.config)

    def num_added(self, pair: bool = False) -> int:
        """How many special tokens `wrap` adds."""
        return sum(what >= 0 for what, _ in (self._pair if pair else self._single))

    def decode(self, ids: Sequence[int], skip_specials: bool = True) -> str:
        text: str = self.backend.decode(list(ids), skip_special_tokens=skip_specials)
        return text

    def pieces(self, ids: Sequence[int]) -> list[str]:
        return [self.backend.id_to_token(int(i)) or "" for i in ids]

    def check(self, sample: Sequence[str] | None = None) -> None:
        """The contract that every model rests on; a `UserError` names what does not hold.

        With a sample of the text it was trained on, too much that is unknown is an error too.
        """
        contract.check(self, sample)

    @cached_property
    def byte_level(self) -> bool:
        """Whether pieces are made of bytes, so that any text can be written."""
        return '"ByteLevel"' in json.dumps(json.loads(self.backend.to_str())["pre_tokenizer"])

    def _encoded(self, text: str) -> Any:
        try:
            return self.backend.encode(text, add_special_tokens=False)
        except TypeError:  # the library's word for a lone surrogate
            return self.backend.encode(sound(text), add_special_tokens=False)

    @cached_property
    def _plain(self) -> Backend:
        plain = copy.deepcopy(self.backend)
        plain.encode_special_tokens = True
        return plain

    @cached_property
    def _units(self) -> Units | None:
        rule = cuts_of(self._plain)
        return None if rule is None else Units(self._plain, rule, self._starts_word)

    @cached_property
    def _starts_word(self) -> np.ndarray | None:
        """For each id whether it starts a word, where the id tells."""
        prefix = getattr(self.backend.model, "continuing_subword_prefix", "")
        if self.kind != "wordpiece" or not prefix:
            return None
        return np.array([not piece.startswith(prefix) for piece in self.vocabulary])


def _joins(character: str) -> bool:
    """Whether a character that no token covers went into the one before it, and was not just taken out."""
    return unicodedata.category(character)[0] not in "CZ" and character != "\ufffd"


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

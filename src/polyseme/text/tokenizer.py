"""Tokenizer: text to ids and back, special tokens and word starts."""

import copy
import hashlib
import itertools
import json
import re
import unicodedata
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from functools import cached_property, partial
from pathlib import Path
from typing import Any, Literal, Self, final, overload

import numpy as np
from tokenizers import Tokenizer as Backend
from tokenizers.normalizers import BertNormalizer

from polyseme.corpus.sources.midi import EVENTS
from polyseme.errors import ModelError
from polyseme.io.atomic import write_text
from polyseme.io.hashes import TOKENIZER_FILES, check_hashes, write_hashes
from polyseme.io.json import write_json
from polyseme.io.lines import replace_surrogates
from polyseme.io.model_path import resolve_model
from polyseme.text import pipelines
from polyseme.text.arguments import check_text, check_texts
from polyseme.text.cached_encoder import CachedEncoder, EncodedTexts, encode_uncached, pretokenization_rule
from polyseme.text.card import write_tokenizer_card
from polyseme.text.counts import SMOOTHING, WordCounts, count_words
from polyseme.text.importers import import_vocabulary, load_files
from polyseme.text.patterns import is_panic
from polyseme.text.trainers import MAX_ALPHABET, VocabularyConfig, train_vocabulary
from polyseme.text.validation import validate_tokenizer

# Usual names of each special role, for folders that do not name it; the first one in the vocabulary is used.
_DEFAULT_SPECIAL_TOKENS = {
    "pad": ("[PAD]", "<pad>", "<|endoftext|>"),
    "unk": ("[UNK]", "<unk>", "<|endoftext|>"),
    "cls": ("[CLS]", "<cls>", "<s>"),
    "sep": ("[SEP]", "<sep>", "</s>"),
    "mask": ("[MASK]", "<mask>"),
    "bos": ("<s>", "<|endoftext|>"),
    "eos": ("</s>", "<|endoftext|>"),
}
_FIRST_TEXT, _SECOND_TEXT = -1, -2  # slots of the texts in a template; a special token's slot is its id


@dataclass(frozen=True)
class SpecialTokenIds:
    """Id of each special token by role; None if the vocabulary has none."""

    pad: int | None = None
    unk: int | None = None
    cls: int | None = None
    sep: int | None = None
    mask: int | None = None
    bos: int | None = None
    eos: int | None = None

    @property
    def text_boundaries(self) -> tuple[int | None, int | None]:
        """The ids before and after a text for a causal model: bos and eos, eos twice, or BERT's cls and sep."""
        if self.eos is None and self.cls is not None and self.sep is not None:
            return self.cls, self.sep
        return self.eos if self.bos is None else self.bos, self.eos


@final
class Tokenizer:
    """Wrapper around `tokenizers.Tokenizer` that never truncates or pads (batches are packed).

    The `encode` methods turn a special token written in the text (`[MASK]`) into that token, as a prompt needs it.
    `encode_corpus` treats the same characters as plain text.
    """

    def __init__(self, backend: Backend, config: dict[str, Any] | None = None):
        self.backend = backend
        self.config = config or {}
        backend.no_truncation()
        backend.no_padding()
        self.special_tokens_map = _find_special_tokens(backend, self.config)
        ids = {role: backend.token_to_id(token) for role, token in self.special_tokens_map.items()}
        self.special_token_ids = SpecialTokenIds(**ids)
        try:
            self._single_template = _extract_template(backend.encode("a"))
            self._pair_template = _extract_template(backend.encode("a", "a"))
        except BaseException as error:
            raise _convert_error(error, "a") from None

    @classmethod
    def train(
        cls,
        kind: pipelines.TokenizerKind,
        sources: str | Path | Iterable[Any],
        vocab_size: int | None = None,
        lowercase: bool | None = None,
        min_frequency: int = 2,
        max_alphabet: int = MAX_ALPHABET,
        smoothing: float = SMOOTHING,
        num_sentinels: int = 0,
        **source_options: Any,
    ) -> Self:
        """Train a tokenizer on sources of text (a path or a list of `Path`, as `prepare` reads them) or on texts.

        The vocabulary has at most `vocab_size` entries; the same text gives the same one. `lowercase` is on for
        WordPiece by default (as BERT's first model) and off for the other kinds. Further options are those of the
        sources: `text_column`, `split`, `format`, `lang`, `skip_bad`, `allow_large`, `sample_characters`.

        >>> tokenizer = polyseme.Tokenizer.train("wordpiece", ["the cat sat", "the dog sat"] * 50, vocab_size=60)
        >>> tokenizer.convert_ids_to_tokens(tokenizer.encode("the cat"))
        ['the', 'cat']
        """
        config = VocabularyConfig(kind, vocab_size, min_frequency, max_alphabet, num_sentinels)
        return cls.from_counts(count_words(kind, sources, lowercase, **source_options), config, smoothing)

    @classmethod
    def from_counts(cls, counts: WordCounts, config: VocabularyConfig, smoothing: float = SMOOTHING) -> Self:
        """Train a tokenizer on counts (smoothed as in `WordCounts.smoothed_counts`) and validate it on a sample."""
        tokenizer = cls(train_vocabulary(counts.smoothed_counts(smoothing), counts.lowercase, config))
        tokenizer.validate(counts.sample_texts())
        return tokenizer

    @classmethod
    def load(cls, path: Path | str) -> Self:
        """Load the tokenizer of a folder (of a tokenizer, a model or a run) or file; `events` is that of music."""
        if str(path) == "events" and not Path(path).exists():
            return cls(pipelines.build_events())
        path = resolve_model(path)
        check_hashes(path if path.is_dir() else path.parent, TOKENIZER_FILES if path.is_dir() else (path.name,))
        return cls(*load_files(path))

    @classmethod
    def import_files(cls, files: Sequence[Path], lowercase: bool | None = None) -> Self:
        """Import a published vocabulary: one file, or vocabulary and merges; the content tells the format."""
        return cls(*import_vocabulary(files, lowercase))

    def save(self, folder: Path | str) -> None:
        """Write a tokenizer folder: the files that `transformers.AutoTokenizer` reads, and their hashes."""
        self.save_files(Path(folder))
        write_tokenizer_card(Path(folder), self)
        write_hashes(Path(folder))

    def save_files(self, folder: Path) -> None:
        """Validate, then write the files of the tokenizer into a larger folder, with `vocab.txt` for WordPiece."""
        self.validate()
        tokens = {f"{role}_token": token for role, token in self.special_tokens_map.items()}
        config: dict[str, Any] = {"tokenizer_class": "PreTrainedTokenizerFast"}
        normalizer, template = self.backend.normalizer, self.build_inputs_with_special_tokens([])[0]
        is_bert = self.kind == "wordpiece" and isinstance(normalizer, BertNormalizer)
        if self.kind == "bpe" and self.is_byte_level and normalizer is None and not template:
            config["tokenizer_class"] = "GPT2Tokenizer"
        elif is_bert and template == [self.special_token_ids.cls, self.special_token_ids.sep]:
            config = {
                "tokenizer_class": "BertTokenizer",
                "do_lower_case": normalizer.lowercase,
                "strip_accents": normalizer.strip_accents,
                "tokenize_chinese_chars": normalizer.handle_chinese_chars,
            }
            write_text(folder / "vocab.txt", "\n".join(self.vocabulary) + "\n")
        config |= self.config | tokens
        write_json(folder / "special_tokens_map.json", tokens)
        write_json(folder / "tokenizer_config.json", config)
        write_text(folder / "tokenizer.json", self.backend.to_str(pretty=True))

    @cached_property
    def kind(self) -> str:
        """Tokenizer kind as given to `train` (characters is a BPE model without merges), else the model's name."""
        model_name = type(self.backend.model).__name__.lower()
        if model_name == "wordlevel" and self.vocabulary[-len(EVENTS) :] == list(EVENTS):
            return "events"
        if model_name == "wordlevel":
            pre_tokenizer_name = type(self.backend.pre_tokenizer).__name__
            return {"BertPreTokenizer": "words", "Sequence": "whitespace"}.get(pre_tokenizer_name, model_name)
        if model_name == "bpe" and self.is_byte_level and self.special_token_ids.mask is not None:
            return "byte-bpe-roberta"
        if model_name == "unigram" and self.special_tokens_map.get("mask") == "<mask>":
            return "unigram-roberta" if self.special_tokens_map.get("cls") == "<s>" else model_name
        if model_name != "bpe" or self.is_byte_level:
            return model_name
        plain_pieces = (piece for i, piece in enumerate(self.vocabulary) if i not in self.all_special_ids)
        return "characters" if all(len(piece) == 1 for piece in plain_pieces) else model_name

    @property
    def lowercase(self) -> bool:
        """Whether the normalizer lowercases text."""
        normalizer = self.backend.normalizer
        return normalizer is not None and "A" not in normalizer.normalize_str("A")

    @property
    def vocab_size(self) -> int:
        """Number of entries, special tokens included."""
        return self.backend.get_vocab_size()

    @cached_property
    def vocabulary(self) -> list[str]:
        """All entries, ordered by id."""
        return self.convert_ids_to_tokens(range(self.vocab_size))

    @cached_property
    def hash(self) -> str:
        """Hash of the behavior: file layout, key order and fields that are null or false do not change it."""

        def drop_unset(value: Any) -> Any:
            if isinstance(value, dict):
                return {k: drop_unset(v) for k, v in value.items() if v is not None and v is not False}
            return [drop_unset(v) for v in value] if isinstance(value, list) else value

        canonical = json.dumps(drop_unset(json.loads(self.backend.to_str())), sort_keys=True, ensure_ascii=False)
        return hashlib.sha256(canonical.encode()).hexdigest()

    @property
    def mask_token(self) -> str | None:
        """The mask token, or None if there is none."""
        return self.special_tokens_map.get("mask")

    @cached_property
    def all_special_ids(self) -> frozenset[int]:
        """Ids of all special tokens: those with a role and other added special tokens."""
        added_tokens = self.backend.get_added_tokens_decoder()
        role_ids = (i for i in asdict(self.special_token_ids).values() if i is not None)
        return frozenset([*role_ids, *(i for i, token in added_tokens.items() if token.special)])

    @cached_property
    def sentinel_ids(self) -> tuple[int, ...]:
        """Ids of the sentinel tokens `<extra_id_0>`, `<extra_id_1>`, … for removed spans."""
        vocab = self.backend.get_vocab()
        names = (pipelines.SENTINEL_TEMPLATE.format(i) for i in itertools.count())
        return tuple(vocab[name] for name in itertools.takewhile(vocab.__contains__, names))

    @overload
    def encode(self, text: str) -> list[int]: ...  # type: ignore[overload-overlap]
    @overload
    def encode(self, text: Sequence[str]) -> list[list[int]]: ...
    def encode(self, text: Any) -> Any:
        """Encode a text, or each of a list, without special tokens. All methods read a lone surrogate as U+FFFD."""
        if isinstance(text, list | tuple):
            return [self.encode(each) for each in check_texts(text)]
        ids: list[int] = self._encode_text(text).ids
        return ids

    @overload
    def encode_batch(self, texts: str) -> np.ndarray: ...  # type: ignore[overload-overlap]
    @overload
    def encode_batch(self, texts: Sequence[str]) -> list[np.ndarray]: ...
    def encode_batch(self, texts: Any) -> Any:
        """Encode texts without adding special tokens; one int32 array of ids per text."""
        if isinstance(texts, str):
            return self.encode_batch([texts])[0]
        encode = partial(self.backend.encode_batch_fast, add_special_tokens=False)
        try:
            encodings = encode(list(texts))
        except TypeError:
            encodings = encode(list(map(replace_surrogates, check_texts(texts))))
        except BaseException as error:
            raise _convert_error(error, texts[0]) from None
        return [np.array(encoding.ids, dtype=np.int32) for encoding in encodings]

    def encode_with_offsets(self, text: str) -> tuple[list[int], list[tuple[int, int]]]:
        """Return the ids and, for each, the (start, end) characters of the text that it covers.

        A space prepended to the text covers nothing. A character that normalization merged into the one before it, or
        a mark that was stripped from it, is covered together with that character.
        """
        encoding = self._encode_text(text)
        ids, offsets = encoding.ids, encoding.offsets
        metaspace_id = self.backend.token_to_id(pipelines.METASPACE)
        if metaspace_id is None and (text.isascii() or self.is_byte_level):
            return ids, offsets
        special_ids = self.all_special_ids - {self.special_token_ids.unk}
        for i, (start, end) in enumerate(offsets):
            next_start = offsets[i + 1][0] if i + 1 < len(ids) else len(text)
            if ids[i] == metaspace_id and next_start < end:
                end = start
            while end < next_start and ids[i] not in special_ids and _is_combined(text[end]):
                end += 1
            offsets[i] = start, end
        return ids, offsets

    @overload
    def word_ids(self, texts: str) -> np.ndarray: ...  # type: ignore[overload-overlap]
    @overload
    def word_ids(self, texts: Sequence[str]) -> list[np.ndarray]: ...
    def word_ids(self, texts: Any) -> Any:
        """Return the index of the word of each token of each text; words are what the pre-tokenizer splits."""
        if isinstance(texts, str):
            return self.word_ids([texts])[0]
        plain_texts = list(map(replace_surrogates, check_texts(texts)))
        encodings = self.backend.encode_batch(plain_texts, add_special_tokens=False)
        rows = ([-1 - i if word is None else word for i, word in enumerate(e.word_ids)] for e in encodings)
        return [np.array(row, dtype=np.int64) for row in rows]

    def encode_words(self, words: Sequence[str]) -> tuple[list[int], list[int]]:
        """Encode words and return the ids and, for each id, the index of its word.

        The ids are those of the words joined by spaces. A space belongs to the next word, whose first piece contains
        it; where it is a separate token (characters) it belongs to the word before. A word that consists of control
        characters only has no ids.
        """
        encoding = self._encode_text(" ".join(check_texts(words, "word")))
        starts = np.cumsum([0, *(len(word) + 1 for word in words)])[:-1]
        last_chars = [max(start, end - 1) for start, end in encoding.offsets]
        word_indices = np.searchsorted(starts - (self.kind != "characters"), last_chars, side="right") - 1
        return encoding.ids, word_indices.tolist()

    def encode_corpus(self, texts: Sequence[str]) -> EncodedTexts:
        """Encode many texts at once, as plain text and with no Python work per token."""
        texts = check_texts([texts] if isinstance(texts, str) else texts)
        encode = self._encode_uncached if self._cached_encoder is None else self._cached_encoder.encode
        try:
            return encode(texts)
        except (TypeError, UnicodeEncodeError):  # of a lone surrogate
            return encode(list(map(replace_surrogates, texts)))

    def _encode_uncached(self, texts: Sequence[str]) -> EncodedTexts:
        return encode_uncached(self._plain_backend, texts, self._is_word_start)

    def build_inputs_with_special_tokens(
        self, first: Sequence[int], second: Sequence[int] | None = None
    ) -> tuple[list[int], list[int]]:
        """Add special tokens to one text or a pair; return ids and segment ids."""
        ids: list[int] = []
        segments: list[int] = []
        for slot, segment in self._single_template if second is None else self._pair_template:
            slot_ids = [slot] if slot >= 0 else first if slot == _FIRST_TEXT else second or ()
            ids += slot_ids
            segments += [segment] * len(slot_ids)
        return ids, segments

    def with_cls_position(self, cls_position: Literal["first", "last"]) -> Self:
        """Return a tokenizer that puts the CLS token first (itself) or last (a copy, for XLNet)."""
        cls, sep = self.special_tokens_map.get("cls"), self.special_tokens_map.get("sep")
        if cls_position == "first" or cls is None or sep is None:
            return self
        backend = pipelines.set_cls_last_template(copy.deepcopy(self.backend), cls, sep)
        # Other tools must then pad on the left and pass the segment ids.
        input_names = ["input_ids", "token_type_ids", "attention_mask"]
        return type(self)(backend, self.config | {"padding_side": "left", "model_input_names": input_names})

    def with_template(self, start: str, between: str, end: str) -> Self:
        """Return a copy that adds tokens around a text and between two; tokens not in the vocabulary get new ids."""
        backend = pipelines.set_text_template(copy.deepcopy(self.backend), start, between, end)
        return type(self)(backend, {key: value for key, value in self.config.items() if key != "tokenizer_class"})

    def with_eos(self) -> Self:
        """Return a copy that appends the EOS token, or itself if it already adds special tokens or has no EOS."""
        eos_token = self.special_tokens_map.get("eos")
        if self.num_special_tokens_to_add() or eos_token is None:
            return self
        return type(self)(pipelines.set_eos_template(copy.deepcopy(self.backend), eos_token), self.config)

    def num_special_tokens_to_add(self, pair: bool = False) -> int:
        """Return the number of tokens that `build_inputs_with_special_tokens` adds."""
        return sum(slot >= 0 for slot, _ in (self._pair_template if pair else self._single_template))

    def decode(self, ids: Sequence[int], skip_special_tokens: bool = True) -> str:
        """Convert ids to text."""
        text: str = self.backend.decode(list(ids), skip_special_tokens=skip_special_tokens)
        return text

    def convert_ids_to_tokens(self, ids: Sequence[int]) -> list[str]:
        """Return the vocabulary entry of each id; an empty string for an unused id."""
        return [self.backend.id_to_token(int(i)) or "" for i in ids]

    def display_tokens(self, ids: Sequence[int]) -> list[str]:
        """Return readable tokens: `_` for a space, `↵` for a line break; bytes that are no character as they are."""
        tokens = self.convert_ids_to_tokens(ids)
        if self.is_byte_level:
            decoded = [self.decode([i]) for i in ids]
            tokens = [text if text and "\ufffd" not in text else token for text, token in zip(decoded, tokens)]
        return [re.sub("[Ġ▁ ]", "_", token).replace("\n", "↵") for token in tokens]

    def check_ids(self, num_ids: int) -> None:
        """Raise `ModelError` if two entries share an id, or an id is not below `num_ids`."""
        if self.vocab_size <= num_ids and "" not in self.vocabulary:
            return  # n entries with the ids 0 to n - 1
        token_by_id: dict[int, str] = {}
        for token, token_id in self.backend.get_vocab().items():
            if token_id >= num_ids:
                raise ModelError(f"the tokenizer's entry {token!r} has id {token_id}, but ids must be below {num_ids}")
            if (other := token_by_id.setdefault(token_id, token)) != token:
                raise ModelError(f"the tokenizer's entries {other!r} and {token!r} have the same id {token_id}")

    def validate(self, sample: Sequence[str] | None = None) -> None:
        """Check what all models rely on, and the rate of unknown tokens in a sample; raise `ModelError`."""
        validate_tokenizer(self, sample)

    @cached_property
    def is_byte_level(self) -> bool:
        """Whether pieces consist of bytes, so that any text can be encoded."""
        return '"ByteLevel"' in json.dumps(json.loads(self.backend.to_str())["pre_tokenizer"])

    def _encode_text(self, text: str) -> Any:
        try:
            return self.backend.encode(text, add_special_tokens=False)
        except TypeError:  # raised by `tokenizers` for a lone surrogate
            return self.backend.encode(replace_surrogates(check_text(text)), add_special_tokens=False)
        except BaseException as error:
            raise _convert_error(error, text) from None

    @cached_property
    def _plain_backend(self) -> Backend:
        backend = copy.deepcopy(self.backend)
        backend.encode_special_tokens = True
        return backend

    @cached_property
    def _cached_encoder(self) -> CachedEncoder | None:
        rule = pretokenization_rule(self._plain_backend)
        return None if rule is None else CachedEncoder(self._plain_backend, rule, self._is_word_start)

    @cached_property
    def _is_word_start(self) -> np.ndarray | None:
        """Whether each id starts a word; None if that cannot be told from the id."""
        prefix = getattr(self.backend.model, "continuing_subword_prefix", "")
        if self.kind != "wordpiece" or not prefix:
            return None
        return np.array([not piece.startswith(prefix) for piece in self.vocabulary])


def _convert_error(error: BaseException, text: str) -> BaseException:
    """Return the error to raise: a `ModelError` for a failure of `tokenizers`, else the error itself."""
    if not is_panic(error) and type(error) is not Exception:  # `tokenizers` raises nothing narrower
        return error
    return ModelError(f"the tokenizer cannot encode a text ({error}): {text[:60]!r}")


def _is_combined(character: str) -> bool:
    """Whether an uncovered character was merged into the one before it, rather than removed."""
    return unicodedata.category(character)[0] not in "CZ" and character != "\ufffd"


def _find_special_tokens(backend: Backend, config: dict[str, Any]) -> dict[str, str]:
    """Return the token of each role: as configured, else by the usual names."""
    token_by_role: dict[str, str] = {}
    for role, default_tokens in _DEFAULT_SPECIAL_TOKENS.items():
        configured = config.get(f"{role}_token")
        if isinstance(configured, dict):  # a serialized AddedToken
            configured = configured.get("content")
        if configured and not isinstance(configured, str):
            raise ModelError(f"the tokenizer's {role} token is {configured!r}, expected a string")
        candidates = [configured] if configured else default_tokens
        tokens = [token for token in candidates if backend.token_to_id(token) is not None]
        if configured and not tokens:
            raise ModelError(f"the tokenizer's {role} token {configured!r} is not in its vocabulary")
        if tokens:
            token_by_role[role] = tokens[0]
    return token_by_role


def _extract_template(encoding: Any) -> list[tuple[int, int]]:
    """Return the (slot, segment) pairs of an encoded example: special token ids and text slots in order."""
    slots: list[tuple[int, int]] = []
    for token_id, sequence_id, segment in zip(encoding.ids, encoding.sequence_ids, encoding.type_ids):
        slot = (token_id if sequence_id is None else (_FIRST_TEXT, _SECOND_TEXT)[sequence_id], segment)
        if sequence_id is None or slot not in slots:
            slots.append(slot)
    return slots

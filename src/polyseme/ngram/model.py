"""A model folder of n-grams, and what can be asked of it.

`config.json` has `model_type: ngram` and the order, the arrays of each level are `.npy` files, and `polyseme.json` has
their hashes and notes, as with every model. There is no tensor to train, so there is no trunk and no head.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from polyseme.corpus.clean.sentences import split_sentences
from polyseme.errors import UserError
from polyseme.generation.text import Search, Writer, generate, streamed
from polyseme.inference.results import Score
from polyseme.io.files import read_json, sha256, whole_folder, write_json
from polyseme.ngram.trie import MOST, Ngrams, Words
from polyseme.text.tokenizer import Tokenizer

FAMILY = "ngram"
FORMAT = 1
_TOGETHER = 1 << 20  # tokens scored at once
# what a neural model can be asked, and what it is made of
_QUESTIONS = "fill", "next_sentence", "choose", "choose_each", "embed", "predict", "answer", "last_words", "translate"
_INSIDE = "model", "folder", "device", "max_len", "opening", "bin_tokens"


class NgramModel:
    """N-grams with their tokenizer: every question to a `LanguageModel` that counts can answer."""

    def __init__(self, path: Path, ngrams: Ngrams, tokenizer: Tokenizer, language: str = "en"):
        self.path, self.ngrams, self.tokenizer, self.language = path, ngrams, tokenizer, language

    @classmethod
    def open(cls, folder: str | Path) -> NgramModel:
        folder = Path(folder)
        config = read_json(folder / "config.json")
        order, language = config.get("order"), config.get("language", "en")
        if type(order) is not int or not 1 <= order <= MOST:
            raise UserError(f"{folder}/config.json: order is {order!r}, expected a number from 1 to {MOST}")
        if not isinstance(language, str):
            raise UserError(f"{folder}/config.json: language is {language!r}, expected a name such as 'en'")
        tokenizer = Tokenizer.load(folder)
        words = Words.of(tokenizer)
        for name, found in (("vocab_size", words.size), ("bos_token_id", words.start), ("eos_token_id", words.end)):
            if config.get(name) != found:
                raise UserError(
                    f"{folder}: config.json has {name} {config.get(name)!r}, but the tokenizer's is {found}"
                )
        return cls(folder, Ngrams.open(folder, words, order), tokenizer, language)

    def save(self, folder: Path, notes: dict[str, Any] | None = None) -> None:
        """Write the folder whole or not at all."""
        words = self.ngrams.words
        config = {
            "model_type": FAMILY,
            "order": self.ngrams.order,
            "vocab_size": words.size,
            "bos_token_id": words.start,
            "eos_token_id": words.end,
            "language": self.language,
        }
        with whole_folder(folder) as new:
            self.ngrams.save(new)
            self.tokenizer.save(new)
            write_json(new / "config.json", config)
            hashes = {path.name: sha256(path) for path in sorted(new.glob("*.npy"))}
            write_json(new / "polyseme.json", {"format": FORMAT, "sha256": hashes, "notes": notes or {}})

    def encode(self, text: str, pair: str | None = None) -> dict[str, Any]:
        """Pieces and ids of a text as it is read: each sentence between its marks."""
        if pair is not None:
            raise self.cannot("read two texts together")
        stream, _ = self._streams([text])
        names = [*self.tokenizer.vocabulary, *["<s>"] * (self.ngrams.words.size - self.tokenizer.vocab_size)]
        names[self.ngrams.words.end : self.ngrams.words.end + 1] = [self._name(self.ngrams.words.end, "</s>")]
        ids = stream.tolist()
        return {
            "pieces": [names[i] for i in ids],
            "ids": ids,
            "segments": [0] * len(ids),
            "attention_mask": [1] * len(ids),
        }

    def score(self, texts: Sequence[str]) -> list[Score]:
        """Log-probability of each text, cut into sentences as a corpus is; the end of a sentence counts as a token."""
        found: list[Score] = []
        for first in range(0, len(texts), 4096):
            stream, lengths = self._streams(texts[first : first + 4096])
            logs = np.log(10) * self.ngrams.log10(stream)
            begins = np.cumsum(lengths) - lengths
            tokens = np.add.reduceat(stream != self.ngrams.words.start, begins)
            found += map(Score, np.add.reduceat(logs, begins).tolist(), tokens.tolist())
        return found

    sourced = False  # it goes on with a beginning

    def generate(self, prompts: str | Sequence[str], search: Search | None = None, prefix: str = "") -> list[Any]:
        """What comes behind a prompt, until the sentence ends, as `LanguageModel.generate` has it."""
        found = generate(self._writer, [prompts] if isinstance(prompts, str) else prompts, search or Search(), prefix)
        return found[0] if isinstance(prompts, str) else found

    def stream(self, prompt: str, search: Search | None = None, prefix: str = "") -> Iterator[str]:
        """The same of one prompt, piece by piece while it is written."""
        return streamed(self._writer, prompt, search or Search(), prefix)

    @cached_property
    def _writer(self) -> Writer:
        """Sentences of a prompt are read between their marks, the last is left open; what is unknown is not written."""
        tokenizer, words = self.tokenizer, self.ngrams.words
        ends = frozenset([words.end])
        return Writer(self.path, self.ngrams, tokenizer, tokenizer, self._begun, ends, tokenizer.special_ids - ends)

    def _begun(self, text: str) -> list[int]:
        stream, _ = self._streams([text], empty=True)
        return stream[:-1].tolist() or [self.ngrams.words.start]

    def cannot(self, what: str) -> UserError:
        return UserError(f"{self.path} cannot {what}: it counts n-grams, which can be scored and can write")

    def __getattr__(self, name: str) -> Any:
        """What only a neural model has is a mistake to ask for, told in one line."""
        if name in _QUESTIONS:
            raise self.cannot(f"do that, as it has no {name!r}")
        if name in _INSIDE:
            raise self.cannot("do that")
        raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")

    def _name(self, token: int, otherwise: str) -> str:
        return self.tokenizer.pieces([token])[0] or otherwise

    def _streams(self, texts: Sequence[str], empty: bool = False) -> tuple[np.ndarray, np.ndarray]:
        """All texts as one stream, and the length of each in it; whether a text may be `empty`."""
        sentences = [split_sentences(text, self.language) for text in texts]
        run = self.tokenizer.encode_run([sentence for part in sentences for sentence in part])
        stays = run.lengths > 0
        of = np.repeat(np.arange(len(texts)), [len(part) for part in sentences])[stays]
        lengths = np.bincount(of, run.lengths[stays] + 2, len(texts)).astype(np.int64)
        if not empty and not lengths.all():
            raise UserError(f"there is nothing to read in {texts[int(np.argmin(lengths))]!r}")
        words, unknown = self.ngrams.words, self.tokenizer.specials.unk
        marks = ~words.can_follow[run.ids] | (run.ids == words.end)  # the names of marks, written in a text
        ids = run.ids if unknown is None else np.where(marks, unknown, run.ids)
        return words.stream(ids, run.lengths[stays]), lengths


def is_ngram(folder: Path) -> bool:
    """Whether a folder says that it holds n-grams; what else it may be is for others to say."""
    try:
        config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return False
    return isinstance(config, dict) and config.get("model_type") == FAMILY


def verify_ngrams(folder: Path) -> None:
    """Open the folder, and compare the hashes that were written beside the arrays."""
    NgramModel.open(folder)
    about = read_json(folder / "polyseme.json")
    for name, expected in about.get("sha256", {}).items():
        if not (folder / name).is_file() or sha256(folder / name) != expected:
            raise UserError(f"{folder / name} is not what was saved: its hash differs from the one in polyseme.json")

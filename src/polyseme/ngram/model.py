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
from polyseme.errors import DataError, ModelError, UnsupportedError
from polyseme.generation.text import GenerationConfig, TextGenerator, generate_texts, stream_text
from polyseme.inference.results import TextScore
from polyseme.io.atomic import atomic_directory, sha256
from polyseme.io.json import read_json, write_json
from polyseme.ngram.trie import MAX_ORDER, NgramTrie, NgramVocab
from polyseme.text.tokenizer import Tokenizer

FAMILY = "ngram"
FORMAT = 1
_SCORE_BATCH_TOKENS = 1 << 20  # tokens scored at once
# what a neural model can be asked, and what it is made of
_UNSUPPORTED_METHODS = (
    "fill",
    "next_sentence",
    "rank_choices",
    "rank_choices_batch",
    "embed",
    "predict",
    "answer",
    "last_words",
    "translate",
)
_UNSUPPORTED_ATTRIBUTES = "model", "folder", "device", "max_len", "bos_ids", "max_batch_tokens"


class NgramLM:
    """N-grams with their tokenizer: every question to a `LanguageModel` that counts can answer."""

    def __init__(self, path: Path, ngrams: NgramTrie, tokenizer: Tokenizer, language: str = "en"):
        self.path, self.ngrams, self.tokenizer, self.language = path, ngrams, tokenizer, language

    @classmethod
    def open(cls, folder: str | Path) -> NgramLM:
        folder = Path(folder)
        config = read_json(folder / "config.json")
        order, language = config.get("order"), config.get("language", "en")
        if type(order) is not int or not 1 <= order <= MAX_ORDER:
            raise ModelError(f"{folder}/config.json: order is {order!r}, expected a number from 1 to {MAX_ORDER}")
        if not isinstance(language, str):
            raise ModelError(f"{folder}/config.json: language is {language!r}, expected a name such as 'en'")
        tokenizer = Tokenizer.load(folder)
        vocab = NgramVocab.from_tokenizer(tokenizer)
        for name, expected in (
            ("vocab_size", vocab.size),
            ("bos_token_id", vocab.bos_id),
            ("eos_token_id", vocab.eos_id),
        ):
            if config.get(name) != expected:
                raise ModelError(
                    f"{folder}: config.json has {name} {config.get(name)!r}, but the tokenizer's is {expected}"
                )
        return cls(folder, NgramTrie.open(folder, vocab, order), tokenizer, language)

    def save(self, folder: Path, metadata: dict[str, Any] | None = None) -> None:
        """Write the folder whole or not at all."""
        vocab = self.ngrams.vocab
        config = {
            "model_type": FAMILY,
            "order": self.ngrams.order,
            "vocab_size": vocab.size,
            "bos_token_id": vocab.bos_id,
            "eos_token_id": vocab.eos_id,
            "language": self.language,
        }
        with atomic_directory(folder) as staging:
            self.ngrams.save(staging)
            self.tokenizer.save(staging)
            write_json(staging / "config.json", config)
            hashes = {path.name: sha256(path) for path in sorted(staging.glob("*.npy"))}
            write_json(staging / "polyseme.json", {"format": FORMAT, "sha256": hashes, "metadata": metadata or {}})

    def encode(self, text: str, pair: str | None = None) -> dict[str, Any]:
        """Pieces and ids of a text as it is read: each sentence between its marks."""
        if pair is not None:
            raise self._unsupported("read two texts together")
        stream, _ = self._encode_streams([text])
        names = [*self.tokenizer.vocabulary, *["<s>"] * (self.ngrams.vocab.size - self.tokenizer.vocab_size)]
        names[self.ngrams.vocab.eos_id : self.ngrams.vocab.eos_id + 1] = [
            self._token_name(self.ngrams.vocab.eos_id, "</s>")
        ]
        ids = stream.tolist()
        return {
            "tokens": [names[i] for i in ids],
            "input_ids": ids,
            "token_type_ids": [0] * len(ids),
            "attention_mask": [1] * len(ids),
        }

    def score(self, texts: Sequence[str]) -> list[TextScore]:
        """Log-probability of each text, cut into sentences as a corpus is; the end of a sentence counts as a token."""
        scores: list[TextScore] = []
        for first in range(0, len(texts), 4096):
            stream, lengths = self._encode_streams(texts[first : first + 4096])
            log_probs = np.log(10) * self.ngrams.log10_probs(stream)
            starts = np.cumsum(lengths) - lengths
            token_counts = np.add.reduceat(stream != self.ngrams.vocab.bos_id, starts)
            scores += map(TextScore, np.add.reduceat(log_probs, starts).tolist(), token_counts.tolist())
        return scores

    is_seq2seq = False  # it goes on with a beginning

    def generate(
        self, prompts: str | Sequence[str], generation_config: GenerationConfig | None = None, prefix: str = ""
    ) -> list[Any]:
        """What comes behind a prompt, until the sentence ends, as `LanguageModel.generate` has it."""
        generated = generate_texts(
            self._text_generator,
            [prompts] if isinstance(prompts, str) else prompts,
            generation_config or GenerationConfig(),
            prefix,
        )
        return generated[0] if isinstance(prompts, str) else generated

    def stream(self, prompt: str, generation_config: GenerationConfig | None = None, prefix: str = "") -> Iterator[str]:
        """The same of one prompt, piece by piece while it is written."""
        return stream_text(self._text_generator, prompt, generation_config or GenerationConfig(), prefix)

    @cached_property
    def _text_generator(self) -> TextGenerator:
        """Sentences of a prompt are read between their marks, the last is left open; what is unknown is not written."""
        tokenizer, vocab = self.tokenizer, self.ngrams.vocab
        eos_token_ids = frozenset([vocab.eos_id])
        return TextGenerator(
            self.path,
            self.ngrams,
            tokenizer,
            tokenizer,
            self._encode_prompt,
            eos_token_ids,
            tokenizer.all_special_ids - eos_token_ids,
        )

    def _encode_prompt(self, text: str) -> list[int]:
        stream, _ = self._encode_streams([text], allow_empty=True)
        return stream[:-1].tolist() or [self.ngrams.vocab.bos_id]

    def _unsupported(self, operation: str) -> UnsupportedError:
        return UnsupportedError(f"{self.path} cannot {operation}: it counts n-grams, which can be scored and can write")

    def __getattr__(self, name: str) -> Any:
        """What only a neural model has is a mistake to ask for, told in one line."""
        if name in _UNSUPPORTED_METHODS:
            raise self._unsupported(f"do that, as it has no {name!r}")
        if name in _UNSUPPORTED_ATTRIBUTES:
            raise self._unsupported("do that")
        raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")

    def _token_name(self, token: int, default: str) -> str:
        return self.tokenizer.convert_ids_to_tokens([token])[0] or default

    def _encode_streams(self, texts: Sequence[str], allow_empty: bool = False) -> tuple[np.ndarray, np.ndarray]:
        """All texts as one stream, and the length of each in it; whether a text may be `allow_empty`."""
        sentences = [split_sentences(text, self.language) for text in texts]
        encoded = self.tokenizer.encode_corpus(
            [sentence for text_sentences in sentences for sentence in text_sentences]
        )
        is_nonempty = encoded.lengths > 0
        text_index = np.repeat(np.arange(len(texts)), [len(text_sentences) for text_sentences in sentences])[
            is_nonempty
        ]
        lengths = np.bincount(text_index, encoded.lengths[is_nonempty] + 2, len(texts)).astype(np.int64)
        if not allow_empty and not lengths.all():
            raise DataError(f"there is nothing to read in {texts[int(np.argmin(lengths))]!r}")
        vocab, unk_id = self.ngrams.vocab, self.tokenizer.special_token_ids.unk
        is_marker = ~vocab.is_predicted[encoded.ids] | (
            encoded.ids == vocab.eos_id
        )  # the names of marks, written in a text
        ids = encoded.ids if unk_id is None else np.where(is_marker, unk_id, encoded.ids)
        return vocab.add_bos_eos(ids, encoded.lengths[is_nonempty]), lengths


def is_ngram(folder: Path) -> bool:
    """Whether a folder says that it holds n-grams; what else it may be is for others to say."""
    try:
        config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return False
    return isinstance(config, dict) and config.get("model_type") == FAMILY


def verify_ngrams(folder: Path) -> None:
    """Open the folder, and compare the hashes that were written beside the arrays."""
    NgramLM.open(folder)
    saved_metadata = read_json(folder / "polyseme.json")
    for name, expected in saved_metadata.get("sha256", {}).items():
        if not (folder / name).is_file() or sha256(folder / name) != expected:
            raise ModelError(f"{folder / name} is not what was saved: its hash differs from the one in polyseme.json")

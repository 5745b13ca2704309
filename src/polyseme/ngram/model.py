"""The model folder of n-grams.

`config.json` has `model_type: ngram` and the order, the arrays of each level are `.npy` files, and `polyseme.json` has
the metadata, as in every model folder.
"""

from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

from polyseme.errors import DataError, ModelError
from polyseme.io.hashes import check_hashes, hashed_directory
from polyseme.io.json import read_json, read_json_object, write_json
from polyseme.ngram.trie import MAX_ORDER, NgramTrie, NgramVocab
from polyseme.report.cards.model_card import ModelFacts, format_usage, write_model_card
from polyseme.text.tokenizer import Tokenizer

FAMILY = "ngram"
FORMAT = 1


@dataclass(frozen=True, eq=False)
class NgramFolder:
    """A model folder of n-grams: the trie, its tokenizer, and the language that texts are split into sentences by."""

    path: Path
    ngrams: NgramTrie
    tokenizer: Tokenizer
    language: str = "en"

    @classmethod
    def load(cls, folder: str | Path, verify: bool = False) -> Self:
        """Open the folder and check its config against the tokenizer, and its hashes: of large arrays if `verify`."""
        folder = Path(folder)
        check_hashes(folder, with_large_weights=verify)
        config = read_json_object(folder / "config.json")
        order, language = config.get("order"), config.get("language", "en")
        if type(order) is not int or not 1 <= order <= MAX_ORDER:
            raise ModelError(f"{folder}/config.json: order is {order!r}, expected a number from 1 to {MAX_ORDER}")
        if not isinstance(language, str):
            raise ModelError(f"{folder}/config.json: language is {language!r}, expected a name such as 'en'")
        tokenizer = Tokenizer.load(folder)
        vocab = NgramVocab.from_tokenizer(tokenizer)
        for name, expected in _vocab_config(vocab).items():
            if (value := config.get(name)) != expected:
                raise ModelError(f"{folder}: config.json has {name} {value!r}, but the tokenizer's is {expected}")
        return cls(folder, NgramTrie.open(folder, vocab, order), tokenizer, language)

    def save(self, folder: Path, metadata: dict[str, Any] | None = None) -> None:
        """Write the folder atomically."""
        config = {"model_type": FAMILY, "order": self.ngrams.order, **_vocab_config(self.ngrams.vocab)}
        with hashed_directory(folder) as staging:
            self.ngrams.save(staging)
            self.tokenizer.save_files(staging)
            write_json(staging / "config.json", config | {"language": self.language})
            write_json(staging / "polyseme.json", {"format": FORMAT, "metadata": metadata or {}})
            write_model_card(staging, self._describe(folder.absolute().name, metadata or {}), metadata or {}, folder)

    def _describe(self, name: str, metadata: dict[str, Any]) -> ModelFacts:
        tokenizer, num_ngrams = self.tokenizer, sum(self.ngrams.sizes)
        table = {
            "family": "ngram: interpolated modified Kneser-Ney smoothing (Chen and Goodman 1999)",
            "order": self.ngrams.order,
            "n-grams": ", ".join(f"{size:,}" for size in self.ngrams.sizes),
            "tokenizer": f"{tokenizer.kind}, {tokenizer.vocab_size:,} tokens",
            "imported from": metadata.get("arpa", ""),
        }
        if "arpa" in metadata:
            table["family"] = "ngram: a back-off model"
        usage = format_usage(name, {"": 'score("The cat sat on the mat.")'})
        summary = f"An n-gram model of order {self.ngrams.order} with {num_ngrams:,} n-grams."
        return ModelFacts(FAMILY, summary, {k: v for k, v in table.items() if v != ""}, usage, "", "text-generation")


def _vocab_config(vocab: NgramVocab) -> dict[str, int]:
    return {"vocab_size": vocab.size, "bos_token_id": vocab.bos_id, "eos_token_id": vocab.eos_id}


def is_ngram(folder: Path) -> bool:
    """Whether a folder holds an n-gram model, by its config."""
    try:
        config = read_json(folder / "config.json")
    except DataError:
        return False
    return isinstance(config, dict) and config.get("model_type") == FAMILY

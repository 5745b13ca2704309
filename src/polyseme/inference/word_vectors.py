"""`WordVectors`: a table of word vectors, from a model folder or a file."""

import difflib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from numbers import Real
from pathlib import Path
from typing import Any, Self

import numpy as np
import torch

from polyseme.errors import DataError, UnsupportedError
from polyseme.inference.base import Granularity, LanguageModel
from polyseme.inference.neural_lm import NeuralLM
from polyseme.inference.packed_model import select_device
from polyseme.inference.results import EncodedText
from polyseme.io.lines import replace_surrogates
from polyseme.nn.layers.subwords import SubwordEmbeddings
from polyseme.nn.trunks.shallow import StaticEmbeddingTrunkConfig
from polyseme.report.notebook import NotebookResult
from polyseme.tasks.metrics.standard import regression_metrics
from polyseme.text.arguments import check_count, check_list, check_path, check_text
from polyseme.text.tokenizer import Tokenizer
from polyseme.weights.folder import ModelFolder, load_model
from polyseme.word_vectors.files import read_vectors, to_model

_BATCH_SIZE = 512  # analogy questions compared with the whole table at once


@dataclass(frozen=True)
class AnalogySection(NotebookResult):
    """The number of correct answers, of questions whose words are all known, and of questions in a section."""

    name: str
    num_correct: int
    num_answerable: int
    num_questions: int

    @property
    def accuracy(self) -> float:
        """The share of correct answers among the answerable questions."""
        return self.num_correct / max(self.num_answerable, 1)


@dataclass(frozen=True)
class SimilarityResult(NotebookResult):
    """Spearman's rank correlation with human judgments, over the pairs whose words are both known."""

    spearman: float
    num_answerable: int
    num_pairs: int


def _check_rows(rows: Any, types: tuple[type, ...], description: str) -> list[Any]:
    """Return rows of values of these types; raise `DataError` for another one."""
    checked = check_list(rows, "row")
    for number, row in enumerate(checked, 1):
        is_row = isinstance(row, list | tuple) and len(row) == len(types)
        if not is_row or not all(map(isinstance, row, types)):
            raise DataError(f"row {number} is {row!r}, expected {description}")
    return checked


def _embed_subwords(embeddings: SubwordEmbeddings, word: str) -> np.ndarray:
    """Return the vector of a word that is not in the vocabulary."""
    return embeddings.word_vector(word).detach().float().cpu().numpy()


class WordVectors(LanguageModel):
    """Words, most frequent first, and their vectors [words, dim].

    `oov_embedder` computes a vector for a word outside the vocabulary (fastText). If `lowercase`, all words are in
    lower case and lookups ignore case.
    """

    capabilities = ("encode", "embed")

    def __init__(
        self,
        words: Sequence[str],
        vectors: np.ndarray,
        path: Path = Path("the word vectors"),
        oov_embedder: Callable[[str], np.ndarray] | None = None,
        lowercase: bool = False,
        folder: ModelFolder | None = None,
        device: str | torch.device | None = None,
    ):
        super().__init__(path)
        vectors = np.asarray(vectors)
        if vectors.ndim != 2 or len(vectors) != len(words):
            raise DataError(
                f"{len(words):,} words have vectors of shape {vectors.shape}, expected one row for each word"
            )
        self.words, self.vectors, self.oov_embedder, self.lowercase = list(words), vectors, oov_embedder, lowercase
        self.index = {word: i for i, word in enumerate(self.words)}
        self._folder, self._device = folder, select_device(device)

    @classmethod
    def load(cls, path: str | Path, device: str | None = None) -> Self:
        """Load a model folder of word vectors, or a file in word2vec's text or binary format or GloVe's text format."""
        path = check_path(path, "a file of word vectors, or a model folder")
        if path.is_file():
            return cls(*read_vectors(path), path, device=device)
        if not path.exists():
            raise DataError(f"there are no word vectors at {path}: neither a file nor a model folder")
        return cls.from_folder(load_model(path), device)

    @classmethod
    def from_folder(cls, folder: ModelFolder, device: str | None = None) -> Self:
        """The vectors of a loaded model folder, without those of special tokens; texts are embedded on the device."""
        if not isinstance(folder.model.config.trunk, StaticEmbeddingTrunkConfig):
            family = folder.model.config.family
            raise UnsupportedError(f"{folder.path} is a {family} model: its vectors depend on the context; use `embed`")
        tokenizer, embeddings = folder.tokenizer, folder.model.trunk.embeddings
        token_ids = [i for i in range(tokenizer.vocab_size) if i not in tokenizer.all_special_ids]
        oov_embedder = partial(_embed_subwords, embeddings) if isinstance(embeddings, SubwordEmbeddings) else None
        rows = torch.tensor(token_ids, device=next(folder.model.parameters()).device)
        vectors = embeddings.look_up(rows).detach().float().cpu().numpy()
        words = [tokenizer.vocabulary[i] for i in token_ids]
        return cls(words, vectors, folder.path, oov_embedder, tokenizer.lowercase, folder, device)

    @property
    def dim(self) -> int:
        """The number of dimensions of a vector."""
        return int(self.vectors.shape[1])

    @property
    def description(self) -> str:
        return f"a table of {len(self.words):,} word vectors of {self.dim} dimensions"

    @cached_property
    def normalized(self) -> np.ndarray:
        """The vectors scaled to length one."""
        norms = np.linalg.norm(self.vectors, axis=1, keepdims=True)
        unit: np.ndarray = self.vectors / np.maximum(norms, 1e-12)
        return unit

    def find_index(self, word: str) -> int | None:
        """The index of a word as it is written, or else in lower case; None if it is unknown."""
        check_text(word, "word")
        word_index = self.index.get(word.lower() if self.lowercase else word)
        return self.index.get(word.lower()) if word_index is None else word_index

    def get_vector(self, word: str) -> np.ndarray | None:
        """The vector of a word exactly as it is written, not normalized; None if it has none."""
        check_text(word, "word")
        word = word.lower() if self.lowercase else word
        row = self.index.get(word)
        return self._oov_vector(word) if row is None else self.vectors[row].copy()

    def vector(self, word: str) -> np.ndarray:
        """The vector of a word, scaled to length one; an unknown word is an error that names similar ones."""
        vector = self._find_normalized(word)
        if vector is not None:
            return vector
        close = difflib.get_close_matches(word.lower(), self.words[:200_000], n=3, cutoff=0.6)
        hint = f"; similar: {', '.join(close)}" if close else f"; it has {len(self.words):,} words"
        raise DataError(f"{word!r} is not in the vocabulary of {self.path}{hint}")

    def neighbors(self, word: str, top_k: int = 10) -> list[tuple[str, float]]:
        """The words with the highest cosine similarity to a word, and their similarities, without the word itself."""
        top_k, scores = check_count(top_k, "top_k"), self.normalized @ self.vector(word)
        word_index = self.find_index(word)
        if word_index is not None:
            scores[word_index] = -np.inf
        best = np.argsort(-scores, kind="stable")[: min(top_k, len(scores) - (word_index is not None))]
        return [(self.words[i], float(scores[i])) for i in best]

    def evaluate_similarity(self, pairs: Sequence[tuple[str, str, float]]) -> SimilarityResult:
        """Correlate the cosine similarities of word pairs with human ratings (Spearman)."""
        pairs = _check_rows(pairs, (str, str, Real), "two words and a number")
        rows = [(self._find_normalized(one), self._find_normalized(two), rating) for one, two, rating in pairs]
        known = [(one, two, rating) for one, two, rating in rows if one is not None and two is not None]
        if len(known) < 2:
            raise DataError(
                f"{len(known)} of {len(pairs)} pairs have both words in {self.path}: at least two are needed"
            )
        cosines = [float(one @ two) for one, two, _ in known]
        correlation = regression_metrics([rating for *_, rating in known], cosines)["spearman"]
        return SimilarityResult(correlation, len(known), len(pairs))

    def evaluate_analogies(
        self, sections: dict[str, list[tuple[str, str, str, str]]], cosmul: bool = False, max_words: int = 30_000
    ) -> list[AnalogySection]:
        """Answer analogy questions, "a is to b as c is to d": d is the best of the first `max_words` words but a, b, c.

        By b − a + c (3CosAdd, Mikolov et al. 2013c), or with `cosmul` by cos(d, b) · cos(d, c) / cos(d, a) of cosines
        shifted to [0, 1] (3CosMul, Levy and Goldberg 2014, eq. 4). Questions with an unknown word are not counted.
        """
        table = self.normalized[: check_count(max_words, "max_words")]
        results = []
        for name, rows_of_words in sections.items():
            questions = _check_rows(rows_of_words, (str,) * 4, "a question of four words")
            index_rows = [[self.find_index(word) for word in question] for question in questions]
            rows = np.array([row for row in index_rows if all(n is not None and n < len(table) for n in row)], np.int64)
            num_correct = 0
            for start in range(0, len(rows), _BATCH_SIZE):
                a, b, c, d = rows[start : start + _BATCH_SIZE].T
                if cosmul:
                    cos_b, cos_c, cos_a = ((table[x] @ table.T + 1) / 2 for x in (b, c, a))
                    scores = cos_b * cos_c / (cos_a + 0.001)
                else:
                    scores = (table[b] - table[a] + table[c]) @ table.T
                for column in (a, b, c):
                    scores[np.arange(len(a)), column] = -np.inf
                num_correct += int((scores.argmax(1) == d).sum())
            results.append(AnalogySection(name, num_correct, len(rows), len(questions)))
        return results

    @property
    def tokenizer(self) -> Tokenizer:
        return self._neural.tokenizer

    @property
    def max_len(self) -> int:
        """The longest text that can be embedded, in words."""
        return self._neural.max_len

    @property
    def max_text_tokens(self) -> int:
        return self._neural.max_text_tokens

    def to_neural(self) -> NeuralLM:
        """Return the same vectors as a network, which embeds words of any text."""
        return self._neural

    @cached_property
    def _neural(self) -> NeuralLM:
        """The same vectors as a network, which embeds texts."""
        lowercase = self.lowercase or None
        folder = self._folder or ModelFolder(self.path, *to_model(self.words, self.vectors, lowercase))
        return NeuralLM(folder, self._device)

    def _find_normalized(self, word: str) -> np.ndarray | None:
        word_index = self.find_index(word)
        if word_index is not None:
            unit: np.ndarray = self.normalized[word_index]
            return unit.copy()  # the table is not the caller's to change
        vector = self._oov_vector(word.lower() if self.lowercase else word)
        return None if vector is None else vector / np.linalg.norm(vector)

    def _oov_vector(self, word: str) -> np.ndarray | None:
        vector = None if self.oov_embedder is None else self.oov_embedder(replace_surrogates(word))
        return None if vector is None or not vector.any() else vector

    def _encode(self, text: str, pair: str | None) -> EncodedText:
        return self._neural.encode(text, pair)

    def _embed(
        self, texts: Sequence[str], layers: str | int, granularity: Granularity, truncate: bool
    ) -> np.ndarray | list[np.ndarray]:
        return self._neural._embed(texts, layers, granularity, truncate)

"""What can be asked of word vectors: neighbours, analogies, and how they agree with people about similarity.

vectors = polyseme.word_vectors.model.load("runs/words/model")     # or a file of vectors
vectors.neighbours("river")
vectors.analogies(questions)
"""

from __future__ import annotations

import difflib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from polyseme.errors import DataError
from polyseme.io.atomic import wrap_os_errors
from polyseme.word_vectors.files import open_vectors

_BATCH_SIZE = 512  # questions that are compared with all words together


@dataclass(frozen=True)
class AnalogySection:
    """How many of the questions of a section were right, asked (all words known), and there."""

    name: str
    num_correct: int
    num_answerable: int
    num_questions: int

    @property
    def accuracy(self) -> float:
        return self.num_correct / max(self.num_answerable, 1)


@dataclass(frozen=True)
class SimilarityResult:
    """Spearman's rank correlation with what people said, over the pairs whose words are both known."""

    spearman: float
    num_answerable: int
    num_pairs: int


def load(path: str | Path) -> WordVectors:
    """From a model folder of word vectors or a file of them. A model's other tokens, the special ones, are left out."""
    vectors = open_vectors(Path(path))
    return WordVectors(vectors.words, vectors.vectors, str(path), vectors.oov_fn, vectors.is_lowercase)


class WordVectors:
    """Words, the most frequent first, and a vector for each; `oov_embedder` makes one for a word that is not there."""

    def __init__(
        self,
        words: Sequence[str],
        vectors: np.ndarray,
        source_name: str = "the vectors",
        oov_embedder: Callable[[str], np.ndarray] | None = None,
        lowercase: bool = False,
    ):
        self.words, self.vectors, self.source_name, self.oov_embedder, self.lowercase = (
            list(words),
            vectors,
            source_name,
            oov_embedder,
            lowercase,
        )
        self.index = {word: i for i, word in enumerate(self.words)}
        norms = np.linalg.norm(vectors, axis=1, keepdims=True)
        self.normalized = vectors / np.maximum(norms, 1e-12)

    def find_index(self, word: str) -> int | None:
        """The number of a word, as it is written or else in lower case."""
        word_index = self.index.get(word.lower() if self.lowercase else word)
        return self.index.get(word.lower()) if word_index is None else word_index

    def vector(self, word: str) -> np.ndarray:
        """Of length one; of a word that is not there by its n-grams, or a `DataError` that names words near it."""
        vector = self._find_vector(word)
        if vector is not None:
            return vector
        close_matches = difflib.get_close_matches(word.lower(), self.words[:200_000], n=3, cutoff=0.6)
        hint = (
            f"; near it in spelling: {', '.join(close_matches)}"
            if close_matches
            else f"; it has {len(self.words):,} words"
        )
        raise DataError(f"{word!r} is not in the vocabulary of {self.source_name}{hint}")

    def neighbors(self, word: str, top_k: int = 10) -> list[tuple[str, float]]:
        """The words whose vectors have the largest cosine with a word's, best first, without that word."""
        scores = self.normalized @ self.vector(word)
        word_index = self.find_index(word)
        if word_index is not None:
            scores[word_index] = -np.inf
        top_indices = np.argsort(-scores, kind="stable")[: min(top_k, len(scores) - (word_index is not None))]
        return [(self.words[i], float(scores[i])) for i in top_indices]

    def evaluate_similarity(self, pairs: Sequence[tuple[str, str, float]]) -> SimilarityResult:
        """How the cosines of pairs of words rank beside the numbers that people gave them."""
        rows = [(self._find_vector(one), self._find_vector(two), value) for one, two, value in pairs]
        known_pairs = [(one, two, value) for one, two, value in rows if one is not None and two is not None]
        if len(known_pairs) < 2:
            raise DataError(
                f"of {len(pairs)} pairs {len(known_pairs)} have both words in {self.source_name}: nothing can be ranked"
            )
        cosines = np.array([float(one @ two) for one, two, _ in known_pairs])
        return SimilarityResult(
            spearman(cosines, np.array([value for *_, value in known_pairs])), len(known_pairs), len(pairs)
        )

    def _find_vector(self, word: str) -> np.ndarray | None:
        word_index = self.find_index(word)
        if word_index is not None:
            return self.normalized[word_index]
        oov_vector = None if self.oov_embedder is None else self.oov_embedder(word.lower() if self.lowercase else word)
        return oov_vector / np.linalg.norm(oov_vector) if oov_vector is not None and oov_vector.any() else None

    def evaluate_analogies(
        self, sections: dict[str, list[tuple[str, str, str, str]]], cosmul: bool = False, max_words: int = 30_000
    ) -> list[AnalogySection]:
        """a is to b as c is to d: how often d is the best of the first `max_words` words but a, b and c.

        By b − a + c (3CosAdd, Mikolov et al. 2013c) or cos(d, b) · cos(d, c) / cos(d, a), of cosines moved to 0 … 1
        (3CosMul, Levy and Goldberg 2014, eq. 4). A question with an unknown word is not asked.
        """
        table = self.normalized[:max_words]
        results = []
        for name, questions in sections.items():
            index_rows = [[self.find_index(word) for word in question] for question in questions]
            rows = np.array([row for row in index_rows if all(n is not None and n < len(table) for n in row)], np.int64)
            num_correct = 0
            for batch_start in range(0, len(rows), _BATCH_SIZE):
                a, b, c, d = rows[batch_start : batch_start + _BATCH_SIZE].T
                if cosmul:
                    plus, plus_other, minus = ((table[x] @ table.T + 1) / 2 for x in (b, c, a))
                    scores = plus * plus_other / (minus + 0.001)
                else:
                    scores = (table[b] - table[a] + table[c]) @ table.T
                for column in (a, b, c):
                    scores[np.arange(len(a)), column] = -np.inf
                num_correct += int((scores.argmax(1) == d).sum())
            results.append(AnalogySection(name, num_correct, len(rows), len(questions)))
        return results


def spearman(one: np.ndarray, two: np.ndarray) -> float:
    """The correlation of ranks, equal values sharing the mean of theirs; 0 where all values are equal."""
    first, second = (_ranks(x) - (len(x) - 1) / 2 for x in (one, two))
    scale = float(np.sqrt((first @ first) * (second @ second)))
    return float(first @ second) / scale if scale else 0.0


def _ranks(values: np.ndarray) -> np.ndarray:
    _, where, counts = np.unique(values, return_inverse=True, return_counts=True)
    ends = np.cumsum(counts)
    means: np.ndarray = (ends - (counts + 1) / 2)[where]
    return means


def read_similarity_pairs(path: Path) -> list[tuple[str, str, float]]:
    """Two words and a number a line, parted by tabs, spaces or commas; a first line without a number is a header.

    So WordSim-353, SimLex-999 and MEN are distributed; of SimLex's own file with more columns, the fourth counts.
    """
    pairs = []
    for line_number, line in enumerate(_read_lines(path), 1):
        fields = line.replace(",", "\t").split("\t") if "\t" in line or "," in line else line.split()
        if not line.strip():
            continue
        value = fields[3 if len(fields) > 4 else 2] if len(fields) > 2 else ""
        try:
            pairs.append((fields[0].strip(), fields[1].strip(), float(value)))
        except (ValueError, IndexError):
            if line_number > 1:
                raise DataError(
                    f"{path} line {line_number}: expected two words and a number, not {line.strip()!r}"
                ) from None
    if not pairs:
        raise DataError(f"{path} has no pairs of words")
    return pairs


def read_analogy_questions(path: Path) -> dict[str, list[tuple[str, str, str, str]]]:
    """Four words a line, under lines such as `: capital-common-countries` that name their section."""
    questions_by_section: dict[str, list[tuple[str, str, str, str]]] = {}
    section = "all"
    for line_number, line in enumerate(_read_lines(path), 1):
        words = line.split()
        if words[:1] == [":"] or line.startswith(":"):
            section = line[1:].strip()
        elif len(words) == 4:
            questions_by_section.setdefault(section, []).append((words[0], words[1], words[2], words[3]))
        elif words:
            raise DataError(f"{path} line {line_number}: a question is four words, not {len(words)}: {line.strip()!r}")
    if not questions_by_section:
        raise DataError(f"{path} has no questions")
    return questions_by_section


def _read_lines(path: Path) -> list[str]:
    if not path.is_file():
        raise DataError(f"there is no file {path}")
    try:
        with wrap_os_errors(path):
            return path.read_text(encoding="utf-8").splitlines()
    except UnicodeDecodeError:
        raise DataError(f"{path} is not text in UTF-8") from None

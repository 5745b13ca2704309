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

from polyseme.errors import UserError
from polyseme.io.files import told
from polyseme.word_vectors.files import open_vectors

_AT_ONCE = 512  # questions that are compared with all words together


@dataclass(frozen=True)
class Section:
    """How many of the questions of a section were right, asked (all words known), and there."""

    name: str
    right: int
    asked: int
    questions: int

    @property
    def accuracy(self) -> float:
        return self.right / max(self.asked, 1)


@dataclass(frozen=True)
class Agreement:
    """Spearman's rank correlation with what people said, over the pairs whose words are both known."""

    spearman: float
    asked: int
    pairs: int


def load(path: str | Path) -> WordVectors:
    """From a model folder of word vectors or a file of them. A model's other tokens, the special ones, are left out."""
    found = open_vectors(Path(path))
    return WordVectors(found.words, found.table, str(path), found.unseen, found.lowercase)


class WordVectors:
    """Words, the most frequent first, and a vector for each; `unseen` makes one for a word that is not there."""

    def __init__(
        self,
        words: Sequence[str],
        vectors: np.ndarray,
        where: str = "the vectors",
        unseen: Callable[[str], np.ndarray] | None = None,
        lowercase: bool = False,
    ):
        self.words, self.vectors, self.where, self.unseen, self.lowercase = (
            list(words),
            vectors,
            where,
            unseen,
            lowercase,
        )
        self.number = {word: i for i, word in enumerate(self.words)}
        norms = np.linalg.norm(vectors, axis=1, keepdims=True)
        self.unit = vectors / np.maximum(norms, 1e-12)

    def find(self, word: str) -> int | None:
        """The number of a word, as it is written or else in lower case."""
        found = self.number.get(word.lower() if self.lowercase else word)
        return self.number.get(word.lower()) if found is None else found

    def vector(self, word: str) -> np.ndarray:
        """Of length one; of a word that is not there by its n-grams, or a `UserError` that names words near it."""
        found = self._known(word)
        if found is not None:
            return found
        close = difflib.get_close_matches(word.lower(), self.words[:200_000], n=3, cutoff=0.6)
        near = f"; near it in spelling: {', '.join(close)}" if close else f"; it has {len(self.words):,} words"
        raise UserError(f"{word!r} is not in the vocabulary of {self.where}{near}")

    def neighbours(self, word: str, top: int = 10) -> list[tuple[str, float]]:
        """The words whose vectors have the largest cosine with a word's, best first, without that word."""
        scores = self.unit @ self.vector(word)
        number = self.find(word)
        if number is not None:
            scores[number] = -np.inf
        best = np.argsort(-scores, kind="stable")[: min(top, len(scores) - (number is not None))]
        return [(self.words[i], float(scores[i])) for i in best]

    def similarity(self, pairs: Sequence[tuple[str, str, float]]) -> Agreement:
        """How the cosines of pairs of words rank beside the numbers that people gave them."""
        rows = [(self._known(one), self._known(two), value) for one, two, value in pairs]
        known = [(one, two, value) for one, two, value in rows if one is not None and two is not None]
        if len(known) < 2:
            raise UserError(
                f"of {len(pairs)} pairs {len(known)} have both words in {self.where}: nothing can be ranked"
            )
        cosines = np.array([float(one @ two) for one, two, _ in known])
        return Agreement(spearman(cosines, np.array([value for *_, value in known])), len(known), len(pairs))

    def _known(self, word: str) -> np.ndarray | None:
        number = self.find(word)
        if number is not None:
            return self.unit[number]
        made = None if self.unseen is None else self.unseen(word.lower() if self.lowercase else word)
        return made / np.linalg.norm(made) if made is not None and made.any() else None

    def analogies(
        self, sections: dict[str, list[tuple[str, str, str, str]]], multiply: bool = False, restrict: int = 30_000
    ) -> list[Section]:
        """a is to b as c is to d: how often d is the best of the first `restrict` words but a, b and c.

        By b − a + c (3CosAdd, Mikolov et al. 2013c) or cos(d, b) · cos(d, c) / cos(d, a), of cosines moved to 0 … 1
        (3CosMul, Levy and Goldberg 2014, eq. 4). A question with an unknown word is not asked.
        """
        table = self.unit[:restrict]
        found = []
        for name, questions in sections.items():
            numbers = [[self.find(word) for word in question] for question in questions]
            rows = np.array([row for row in numbers if all(n is not None and n < len(table) for n in row)], np.int64)
            right = 0
            for low in range(0, len(rows), _AT_ONCE):
                a, b, c, d = rows[low : low + _AT_ONCE].T
                if multiply:
                    plus, other, minus = ((table[x] @ table.T + 1) / 2 for x in (b, c, a))
                    scores = plus * other / (minus + 0.001)
                else:
                    scores = (table[b] - table[a] + table[c]) @ table.T
                for column in (a, b, c):
                    scores[np.arange(len(a)), column] = -np.inf
                right += int((scores.argmax(1) == d).sum())
            found.append(Section(name, right, len(rows), len(questions)))
        return found


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


def read_pairs(path: Path) -> list[tuple[str, str, float]]:
    """Two words and a number a line, parted by tabs, spaces or commas; a first line without a number is a header.

    So WordSim-353, SimLex-999 and MEN are distributed; of SimLex's own file with more columns, the fourth counts.
    """
    found = []
    for number, line in enumerate(_lines(path), 1):
        fields = line.replace(",", "\t").split("\t") if "\t" in line or "," in line else line.split()
        if not line.strip():
            continue
        value = fields[3 if len(fields) > 4 else 2] if len(fields) > 2 else ""
        try:
            found.append((fields[0].strip(), fields[1].strip(), float(value)))
        except (ValueError, IndexError):
            if number > 1:
                raise UserError(
                    f"{path} line {number}: expected two words and a number, not {line.strip()!r}"
                ) from None
    if not found:
        raise UserError(f"{path} has no pairs of words")
    return found


def read_questions(path: Path) -> dict[str, list[tuple[str, str, str, str]]]:
    """Four words a line, under lines such as `: capital-common-countries` that name their section."""
    found: dict[str, list[tuple[str, str, str, str]]] = {}
    name = "all"
    for number, line in enumerate(_lines(path), 1):
        words = line.split()
        if words[:1] == [":"] or line.startswith(":"):
            name = line[1:].strip()
        elif len(words) == 4:
            found.setdefault(name, []).append((words[0], words[1], words[2], words[3]))
        elif words:
            raise UserError(f"{path} line {number}: a question is four words, not {len(words)}: {line.strip()!r}")
    if not found:
        raise UserError(f"{path} has no questions")
    return found


def _lines(path: Path) -> list[str]:
    if not path.is_file():
        raise UserError(f"there is no file {path}")
    try:
        with told(path):
            return path.read_text(encoding="utf-8").splitlines()
    except UnicodeDecodeError:
        raise UserError(f"{path} is not text in UTF-8") from None

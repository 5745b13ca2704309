"""Files of word vectors: word2vec's text and binary forms, and GloVe's text, which has no header.

A line of text is a word and its numbers; word2vec's begins with a line of how many words and how many numbers. The
binary form has the same first line, then each word, a space, and its numbers as float32, lowest byte first.
"""

from __future__ import annotations

import mmap
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch

from polyseme.errors import UserError, nearest
from polyseme.families import FAMILIES
from polyseme.io.files import write_whole
from polyseme.nn.layers.subwords import SubwordEmbeddings
from polyseme.nn.model import Model
from polyseme.nn.trunks.lookup import LookupSpec
from polyseme.text.pipelines import build_words
from polyseme.text.tokenizer import Tokenizer
from polyseme.weights.folder import load_model

Format = Literal["text", "binary", "glove"]
FORMATS: tuple[Format, ...] = ("text", "binary", "glove")
_AT_ONCE = 4096  # lines that are parsed or written together


def write_vectors(path: Path, words: Sequence[str], vectors: np.ndarray, form: Format = "text") -> None:
    """A word with white space in it cannot be written: where it ends, nobody could tell."""
    if form not in FORMATS:
        raise UserError(f"no format {form!r}; {nearest(form, FORMATS)}")
    broken = next((word for word in words if word.split() != [word]), None)
    if broken is not None:
        raise UserError(
            f"the word {broken!r} cannot stand in a file of vectors: there is white space in it, or nothing"
        )
    numbers = np.ascontiguousarray(vectors, dtype="<f4")
    line = " ".join(["%.9g"] * numbers.shape[1])  # nine digits give every float32 back

    def write(target: Path) -> None:
        with open(target, "wb") as f:
            if form != "glove":
                f.write(f"{len(words)} {numbers.shape[1]}\n".encode())
            for low in range(0, len(words), _AT_ONCE):
                rows = zip(words[low : low + _AT_ONCE], numbers[low : low + _AT_ONCE])
                if form == "binary":
                    f.write(b"".join(word.encode() + b" " + row.tobytes() + b"\n" for word, row in rows))
                else:
                    f.write("".join(f"{word} {line % tuple(row.tolist())}\n" for word, row in rows).encode())

    write_whole(path, write)


@dataclass(frozen=True, eq=False)
class Vectors:
    """Words, the most frequent first, and their vectors as they are; `unseen` makes one for a word that is not there.

    With `lowercase` no word has a capital, and none is looked for.
    """

    words: list[str]
    table: np.ndarray  # [words, dim]
    unseen: Callable[[str], np.ndarray] | None = None
    lowercase: bool = False
    places: dict[str, int] = field(init=False, repr=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "places", {word: i for i, word in enumerate(self.words)})

    def find(self, word: str) -> np.ndarray | None:
        """The vector of a word as it is written, if it has one."""
        word = word.lower() if self.lowercase else word
        place = self.places.get(word)
        if place is not None:
            vector: np.ndarray = self.table[place]
            return vector
        made = self.unseen(word) if self.unseen is not None else None
        return made if made is not None and made.any() else None


def open_vectors(path: Path) -> Vectors:
    """From a model folder of word vectors or a file of them. A model's other tokens, the special ones, are left out."""
    if path.is_file():
        return Vectors(*read_vectors(path))
    if not path.exists():
        raise UserError(f"there are no vectors at {path}: neither a file nor a model folder")
    folder = load_model(path)
    if not isinstance(folder.model.spec.trunk, LookupSpec):
        raise UserError(
            f"{path} is a {folder.model.spec.family}: its vectors depend on the context; `embed` gives them"
        )
    tokenizer = folder.tokenizer
    embeddings: Any = folder.model.trunk.embeddings
    kept = [i for i in range(tokenizer.vocab_size) if i not in tokenizer.special_ids]
    unseen = None
    if isinstance(embeddings, SubwordEmbeddings):
        unseen = lambda word: embeddings.vector(word).detach().numpy()  # noqa: E731
    pieces = tokenizer.vocabulary
    table = embeddings.look_up(torch.tensor(kept)).detach().numpy()
    return Vectors([pieces[i] for i in kept], table, unseen, tokenizer.lowercase)


def read_vectors(path: Path) -> tuple[list[str], np.ndarray]:
    """The words and their vectors, float32; the content says which format it is. A repeated word counts once."""
    if not path.is_file():
        raise UserError(f"there is no file of vectors {path}")
    if not path.stat().st_size:
        raise UserError(f"{path} is empty")
    with open(path, "rb") as f, mmap.mmap(f.fileno(), 0, access=mmap.ACCESS_READ) as data:
        first = data[: max(data.find(b"\n"), 0) or min(len(data), 1 << 16)]
        header = first.split()
        counted = len(header) == 2 and all(part.isdigit() for part in header)
        size, dim = map(int, header) if counted else (0, len(header) - 1)
        if dim < 1:
            raise UserError(f"{path} line 1 has no vector: {_shown(first)}")
        if counted and _is_binary(data, len(first) + 1, dim):
            words, vectors = _read_binary(path, data, len(first) + 1, size, dim)
        else:
            words, vectors = _read_text(path, data, size if counted else None, dim, len(first) + 1 if counted else 0)
    places = {word: i for i, word in reversed(list(enumerate(words)))}
    kept = sorted(places.values())
    return [words[i] for i in kept], vectors if len(kept) == len(words) else vectors[kept]


def _is_binary(data: mmap.mmap, at: int, dim: int) -> bool:
    """Text has a line of dim numbers behind its first word."""
    end = data.find(b"\n", at)
    line = data[at : end if end >= 0 else len(data)]
    try:
        np.array(line.split()[1:], dtype=np.float64)
    except ValueError:
        return True
    return b"\0" in line


def _read_binary(path: Path, data: mmap.mmap, at: int, size: int, dim: int) -> tuple[list[str], np.ndarray]:
    words, vectors, width = [], np.empty((min(size, len(data) // (4 * dim) + 1), dim), np.float32), 4 * dim
    for number in range(size):
        end = data.find(b" ", at, at + 4096)
        if end < 0 or end + 1 + width > len(data):
            what = f"is cut off at word {number + 1:,} of {size:,}"
            raise UserError(f"{path} {what}: it has {len(data):,} bytes, and {dim} numbers a word need more")
        words.append(_decoded(path, data[at:end].lstrip(b"\n"), f"word {number + 1:,}"))
        vectors[number] = np.frombuffer(data[end + 1 : end + 1 + width], "<f4")
        at = end + 1 + width
    if rest := data[at : at + 100].strip():
        raise UserError(f"{path} goes on behind its {size:,} words: {_shown(rest)}")
    return words, vectors


def _read_text(path: Path, data: mmap.mmap, size: int | None, dim: int, at: int) -> tuple[list[str], np.ndarray]:
    words: list[str] = []
    parts: list[np.ndarray] = []
    number, fields = 1 if size is None else 2, []
    data.seek(at)
    while line := data.readline():
        pieces = line.rstrip().rsplit(b" ", dim)
        if len(pieces) != dim + 1 or len(pieces[0].split()) != 1:
            found = max(len(line.split()) - 1, 0)
            raise UserError(f"{path} line {number}: {found} numbers behind the word where {dim} are expected")
        words.append(_decoded(path, pieces[0], f"line {number}"))
        fields.append(pieces[1:])
        if len(fields) == _AT_ONCE:
            parts.append(_numbers(path, fields, number))
            fields = []
        number += 1
    parts.append(_numbers(path, fields, number - 1))
    if size is not None and size != len(words):
        raise UserError(f"{path}: its first line promises {size:,} words, but {len(words):,} follow")
    return words, np.concatenate([part.reshape(-1, dim) for part in parts])


def _numbers(path: Path, fields: list[list[bytes]], last: int) -> np.ndarray:
    try:
        return np.array(fields, dtype=np.float32)
    except ValueError:
        for number, row in enumerate(fields, last - len(fields) + 1):
            for field in row:
                try:
                    float(field)
                except ValueError:
                    raise UserError(f"{path} line {number}: {_shown(field)} is no number") from None
        raise


def _decoded(path: Path, word: bytes, where: str) -> str:
    try:
        return word.decode()
    except UnicodeDecodeError:
        raise UserError(f"{path} {where}: the word {_shown(word)} is not UTF-8") from None


def _shown(data: bytes) -> str:
    return repr(data[:40].decode(errors="replace"))


def model_of(words: Sequence[str], vectors: np.ndarray, lowercase: bool | None = None) -> tuple[Model, Tokenizer]:
    """A model folder's two halves: the table, and a tokenizer that knows these words; an unknown one reads as zeros."""
    lower = all(word == word.lower() for word in words) if lowercase is None else lowercase
    tokenizer = Tokenizer(build_words(words, lower))
    model = FAMILIES["word2vec"].spec(heads=False, dim=vectors.shape[1], vocab_size=tokenizer.vocab_size).build(0)
    assert model.trunk.table is not None
    table = model.trunk.table.data.zero_()
    places = [tokenizer.backend.token_to_id(word) for word in words]
    table[places] = torch.from_numpy(np.ascontiguousarray(vectors, np.float32))
    return model, tokenizer

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

from polyseme.errors import ConfigError, DataError, UnsupportedError, suggest
from polyseme.families import FAMILIES
from polyseme.io.atomic import atomic_write
from polyseme.nn.layers.subwords import SubwordEmbeddings
from polyseme.nn.model import Model
from polyseme.nn.trunks.lookup import StaticEmbeddingTrunkConfig
from polyseme.text.pipelines import build_word_level
from polyseme.text.tokenizer import Tokenizer
from polyseme.weights.folder import load_model

VectorFormat = Literal["text", "binary", "glove"]
VECTOR_FORMATS: tuple[VectorFormat, ...] = ("text", "binary", "glove")
_LINES_PER_CHUNK = 4096  # lines that are parsed or written together


def write_vectors(path: Path, words: Sequence[str], vectors: np.ndarray, file_format: VectorFormat = "text") -> None:
    """A word with white space in it cannot be written: where it ends, nobody could tell."""
    if file_format not in VECTOR_FORMATS:
        raise ConfigError(f"no format {file_format!r}; {suggest(file_format, VECTOR_FORMATS)}")
    bad_word = next((word for word in words if word.split() != [word]), None)
    if bad_word is not None:
        raise DataError(
            f"the word {bad_word!r} cannot stand in a file of vectors: there is white space in it, or nothing"
        )
    matrix = np.ascontiguousarray(vectors, dtype="<f4")
    line_format = " ".join(["%.9g"] * matrix.shape[1])  # nine digits give every float32 back

    def write(target: Path) -> None:
        with open(target, "wb") as f:
            if file_format != "glove":
                f.write(f"{len(words)} {matrix.shape[1]}\n".encode())
            for start in range(0, len(words), _LINES_PER_CHUNK):
                rows = zip(words[start : start + _LINES_PER_CHUNK], matrix[start : start + _LINES_PER_CHUNK])
                if file_format == "binary":
                    f.write(b"".join(word.encode() + b" " + row.tobytes() + b"\n" for word, row in rows))
                else:
                    f.write("".join(f"{word} {line_format % tuple(row.tolist())}\n" for word, row in rows).encode())

    atomic_write(path, write)


@dataclass(frozen=True, eq=False)
class WordVectorTable:
    """Words, the most frequent first, and their vectors as they are; `oov_fn` makes one for a word that is not there.

    With `is_lowercase` no word has a capital, and none is looked for.
    """

    words: list[str]
    vectors: np.ndarray  # [words, dim]
    oov_fn: Callable[[str], np.ndarray] | None = None
    is_lowercase: bool = False
    index: dict[str, int] = field(init=False, repr=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "index", {word: i for i, word in enumerate(self.words)})

    def get_vector(self, word: str) -> np.ndarray | None:
        """The vector of a word as it is written, if it has one."""
        word = word.lower() if self.is_lowercase else word
        row = self.index.get(word)
        if row is not None:
            vector: np.ndarray = self.vectors[row]
            return vector
        oov_vector = self.oov_fn(word) if self.oov_fn is not None else None
        return oov_vector if oov_vector is not None and oov_vector.any() else None


def open_vectors(path: Path) -> WordVectorTable:
    """From a model folder of word vectors or a file of them. A model's other tokens, the special ones, are left out."""
    if path.is_file():
        return WordVectorTable(*read_vectors(path))
    if not path.exists():
        raise DataError(f"there are no vectors at {path}: neither a file nor a model folder")
    folder = load_model(path)
    if not isinstance(folder.model.config.trunk, StaticEmbeddingTrunkConfig):
        raise UnsupportedError(
            f"{path} is a {folder.model.config.family}: its vectors depend on the context; `embed` gives them"
        )
    tokenizer = folder.tokenizer
    embeddings: Any = folder.model.trunk.embeddings
    token_ids = [i for i in range(tokenizer.vocab_size) if i not in tokenizer.all_special_ids]
    oov_fn = None
    if isinstance(embeddings, SubwordEmbeddings):
        oov_fn = lambda word: embeddings.word_vector(word).detach().numpy()  # noqa: E731
    vocabulary = tokenizer.vocabulary
    vectors = embeddings.look_up(torch.tensor(token_ids)).detach().numpy()
    return WordVectorTable([vocabulary[i] for i in token_ids], vectors, oov_fn, tokenizer.lowercase)


def read_vectors(path: Path) -> tuple[list[str], np.ndarray]:
    """The words and their vectors, float32; the content says which format it is. A repeated word counts once."""
    if not path.is_file():
        raise DataError(f"there is no file of vectors {path}")
    if not path.stat().st_size:
        raise DataError(f"{path} is empty")
    with open(path, "rb") as f, mmap.mmap(f.fileno(), 0, access=mmap.ACCESS_READ) as buffer:
        first_line = buffer[: max(buffer.find(b"\n"), 0) or min(len(buffer), 1 << 16)]
        header = first_line.split()
        has_header = len(header) == 2 and all(part.isdigit() for part in header)
        num_words, dim = map(int, header) if has_header else (0, len(header) - 1)
        if dim < 1:
            raise DataError(f"{path} line 1 has no vector: {_format_excerpt(first_line)}")
        if has_header and _is_binary(buffer, len(first_line) + 1, dim):
            words, vectors = _read_binary(path, buffer, len(first_line) + 1, num_words, dim)
        else:
            words, vectors = _read_text(
                path, buffer, num_words if has_header else None, dim, len(first_line) + 1 if has_header else 0
            )
    first_index = {word: i for i, word in reversed(list(enumerate(words)))}
    rows = sorted(first_index.values())
    return [words[i] for i in rows], vectors if len(rows) == len(words) else vectors[rows]


def _is_binary(buffer: mmap.mmap, offset: int, dim: int) -> bool:
    """Text has a line of dim numbers behind its first word."""
    end = buffer.find(b"\n", offset)
    line = buffer[offset : end if end >= 0 else len(buffer)]
    try:
        np.array(line.split()[1:], dtype=np.float64)
    except ValueError:
        return True
    return b"\0" in line


def _read_binary(path: Path, buffer: mmap.mmap, offset: int, num_words: int, dim: int) -> tuple[list[str], np.ndarray]:
    words, vectors, row_bytes = [], np.empty((min(num_words, len(buffer) // (4 * dim) + 1), dim), np.float32), 4 * dim
    for index in range(num_words):
        end = buffer.find(b" ", offset, offset + 4096)
        if end < 0 or end + 1 + row_bytes > len(buffer):
            problem = f"is cut off at word {index + 1:,} of {num_words:,}"
            raise DataError(f"{path} {problem}: it has {len(buffer):,} bytes, and {dim} numbers a word need more")
        words.append(_decode_word(path, buffer[offset:end].lstrip(b"\n"), f"word {index + 1:,}"))
        vectors[index] = np.frombuffer(buffer[end + 1 : end + 1 + row_bytes], "<f4")
        offset = end + 1 + row_bytes
    if trailing := buffer[offset : offset + 100].strip():
        raise DataError(f"{path} goes on behind its {num_words:,} words: {_format_excerpt(trailing)}")
    return words, vectors


def _read_text(
    path: Path, buffer: mmap.mmap, num_words: int | None, dim: int, offset: int
) -> tuple[list[str], np.ndarray]:
    words: list[str] = []
    chunks: list[np.ndarray] = []
    line_number, fields = 1 if num_words is None else 2, []
    buffer.seek(offset)
    while line := buffer.readline():
        pieces = line.rstrip().rsplit(b" ", dim)
        if len(pieces) != dim + 1 or len(pieces[0].split()) != 1:
            num_fields = max(len(line.split()) - 1, 0)
            raise DataError(f"{path} line {line_number}: {num_fields} numbers behind the word where {dim} are expected")
        words.append(_decode_word(path, pieces[0], f"line {line_number}"))
        fields.append(pieces[1:])
        if len(fields) == _LINES_PER_CHUNK:
            chunks.append(_parse_numbers(path, fields, line_number))
            fields = []
        line_number += 1
    chunks.append(_parse_numbers(path, fields, line_number - 1))
    if num_words is not None and num_words != len(words):
        raise DataError(f"{path}: its first line promises {num_words:,} words, but {len(words):,} follow")
    return words, np.concatenate([chunk.reshape(-1, dim) for chunk in chunks])


def _parse_numbers(path: Path, fields: list[list[bytes]], last_line: int) -> np.ndarray:
    try:
        return np.array(fields, dtype=np.float32)
    except ValueError:
        for line_number, row in enumerate(fields, last_line - len(fields) + 1):
            for field in row:
                try:
                    float(field)
                except ValueError:
                    raise DataError(f"{path} line {line_number}: {_format_excerpt(field)} is no number") from None
        raise


def _decode_word(path: Path, word: bytes, where: str) -> str:
    try:
        return word.decode()
    except UnicodeDecodeError:
        raise DataError(f"{path} {where}: the word {_format_excerpt(word)} is not UTF-8") from None


def _format_excerpt(excerpt: bytes) -> str:
    return repr(excerpt[:40].decode(errors="replace"))


def to_model(words: Sequence[str], vectors: np.ndarray, lowercase: bool | None = None) -> tuple[Model, Tokenizer]:
    """A model folder's two halves: the table, and a tokenizer that knows these words; an unknown one reads as zeros."""
    is_lowercase = all(word == word.lower() for word in words) if lowercase is None else lowercase
    tokenizer = Tokenizer(build_word_level(words, is_lowercase))
    model = (
        FAMILIES["word2vec"]
        .model_config(with_heads=False, dim=vectors.shape[1], vocab_size=tokenizer.vocab_size)
        .build(0)
    )
    assert model.trunk.token_embeddings is not None
    table = model.trunk.token_embeddings.data.zero_()
    token_ids = [tokenizer.backend.token_to_id(word) for word in words]
    table[token_ids] = torch.from_numpy(np.ascontiguousarray(vectors, np.float32))
    return model, tokenizer

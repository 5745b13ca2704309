"""Files of word vectors: word2vec's text and binary formats, and GloVe's text format, which has no header.

A line of a text file is a word and its numbers. word2vec's header is a line with the number of words and of dimensions.
The binary format has the same header, then each word, a space, and its numbers as little-endian float32.
"""

import mmap
from collections.abc import Sequence
from pathlib import Path
from typing import Literal

import numpy as np
import torch

from polyseme.errors import ConfigError, DataError, suggest
from polyseme.families import FAMILIES
from polyseme.io.atomic import atomic_write
from polyseme.nn.model import Model
from polyseme.text.pipelines import build_word_level
from polyseme.text.tokenizer import Tokenizer

VectorFormat = Literal["text", "binary", "glove"]
VECTOR_FORMATS: tuple[VectorFormat, ...] = ("text", "binary", "glove")
_LINES_PER_CHUNK = 4096  # lines that are parsed or written together


def write_vectors(path: Path, words: Sequence[str], vectors: np.ndarray, file_format: VectorFormat = "text") -> None:
    """Write word vectors; a word that is empty or contains white space is an error."""
    if file_format not in VECTOR_FORMATS:
        raise ConfigError(f"unknown vector format {file_format!r}; {suggest(file_format, VECTOR_FORMATS)}")
    if bad_words := [word for word in words if word.split() != [word]]:
        raise DataError(f"a word in a vector file cannot be empty or contain white space: {bad_words[0]!r}")
    matrix = np.ascontiguousarray(vectors, dtype="<f4")
    line_format = " ".join(["%.9g"] * matrix.shape[1])  # nine digits restore every float32

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


def read_vectors(path: Path) -> tuple[list[str], np.ndarray]:
    """Read words and float32 vectors; the format is detected. Of a repeated word, the first vector is used."""
    if not path.is_file():
        raise DataError(f"there is no vector file {path}")
    if not path.stat().st_size:
        raise DataError(f"{path} is empty")
    with open(path, "rb") as f, mmap.mmap(f.fileno(), 0, access=mmap.ACCESS_READ) as buffer:
        first_line = buffer[: max(buffer.find(b"\n"), 0) or min(len(buffer), 1 << 16)]
        header, start = first_line.split(), min(len(first_line) + 1, len(buffer))
        has_header = len(header) == 2 and all(part.isdigit() and len(part) < 19 for part in header)
        num_words, dim = map(int, header) if has_header else (None, len(header) - 1)
        if dim < 1:
            raise DataError(f"{path} line 1 has no vector: {_format_excerpt(first_line)}")
        if dim > len(buffer):
            raise DataError(f"{path} line 1 declares {dim:,} dimensions, but the file has {len(buffer):,} bytes")
        if num_words is not None and _is_binary(buffer, start, dim):
            words, vectors = _read_binary(path, buffer, start, num_words, dim)
        else:
            words, vectors = _read_text(path, buffer, start if has_header else 0, num_words, dim)
    _check_finite(path, words, vectors)
    first_index = {word: i for i, word in reversed(list(enumerate(words)))}
    rows = sorted(first_index.values())
    return [words[i] for i in rows], vectors if len(rows) == len(words) else vectors[rows]


def _check_finite(path: Path, words: Sequence[str], vectors: np.ndarray) -> None:
    with np.errstate(invalid="ignore"):
        is_finite = np.isfinite(vectors.sum(dtype=np.float64))
    if not is_finite:
        is_bad = ~np.isfinite(vectors).all(axis=1)
        word = words[int(is_bad.argmax())]
        raise DataError(f"{path}: the vectors of {is_bad.sum():,} words are NaN or infinite, such as {word!r}")


def _is_binary(buffer: mmap.mmap, offset: int, dim: int) -> bool:
    """Return whether the first vector is binary: in a text file, a line of numbers follows the first word."""
    end = buffer.find(b"\n", offset)
    line = buffer[offset : end if end >= 0 else len(buffer)]
    try:
        np.array(line.split()[1:], dtype=np.float64)
    except ValueError:
        return True
    return b"\0" in line


def _read_binary(path: Path, buffer: mmap.mmap, offset: int, num_words: int, dim: int) -> tuple[list[str], np.ndarray]:
    words, row_bytes = [], 4 * dim
    vectors = np.empty((min(num_words, len(buffer) // row_bytes + 1), dim), np.float32)
    for index in range(num_words):
        end = buffer.find(b" ", offset, offset + 4096)
        if end < 0 or end + 1 + row_bytes > len(buffer):
            raise DataError(f"{path} is truncated at word {index + 1:,} of {num_words:,}: it has {len(buffer):,} bytes")
        words.append(_decode_word(path, buffer[offset:end].lstrip(b"\n"), f"word {index + 1:,}"))
        vectors[index] = np.frombuffer(buffer[end + 1 : end + 1 + row_bytes], "<f4")
        offset = end + 1 + row_bytes
    if trailing := buffer[offset : offset + 100].strip():
        raise DataError(f"{path} continues after its {num_words:,} words: {_format_excerpt(trailing)}")
    return words, vectors


def _read_text(
    path: Path, buffer: mmap.mmap, offset: int, num_words: int | None, dim: int
) -> tuple[list[str], np.ndarray]:
    words: list[str] = []
    chunks: list[np.ndarray] = []
    line_number, fields = 1 if num_words is None else 2, []
    buffer.seek(offset)
    while line := buffer.readline():
        pieces = line.rstrip().rsplit(b" ", dim)
        if len(pieces) != dim + 1 or len(pieces[0].split()) != 1:
            num_fields = max(len(line.split()) - 1, 0)
            raise DataError(f"{path} line {line_number}: {num_fields} numbers after the word, expected {dim}")
        words.append(_decode_word(path, pieces[0], f"line {line_number}"))
        fields.append(pieces[1:])
        if len(fields) == _LINES_PER_CHUNK:
            chunks.append(_parse_numbers(path, fields, line_number))
            fields = []
        line_number += 1
    chunks.append(_parse_numbers(path, fields, line_number - 1))
    if num_words is not None and num_words != len(words):
        raise DataError(f"{path}: the header declares {num_words:,} words, but there are {len(words):,}")
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
                    raise DataError(f"{path} line {line_number}: {_format_excerpt(field)} is not a number") from None
        raise


def _decode_word(path: Path, word: bytes, where: str) -> str:
    try:
        return word.decode()
    except UnicodeDecodeError:
        raise DataError(f"{path} {where}: the word {_format_excerpt(word)} is not UTF-8") from None


def _format_excerpt(excerpt: bytes) -> str:
    return repr(excerpt[:40].decode(errors="replace"))


def to_model(words: Sequence[str], vectors: np.ndarray, lowercase: bool | None = None) -> tuple[Model, Tokenizer]:
    """Build a model and a tokenizer with these words; an unknown word has a vector of zeros."""
    is_lowercase = all(word == word.lower() for word in words) if lowercase is None else lowercase
    tokenizer = Tokenizer(build_word_level(words, is_lowercase))
    settings = {"dim": vectors.shape[1], "vocab_size": tokenizer.vocab_size}
    model = FAMILIES["word2vec"].model_config(with_heads=False, **settings).build(0)
    assert model.trunk.token_embeddings is not None
    table = model.trunk.token_embeddings.data.zero_()
    token_ids = [tokenizer.backend.token_to_id(word) for word in words]
    table[token_ids] = torch.from_numpy(np.ascontiguousarray(vectors, np.float32))
    return model, tokenizer

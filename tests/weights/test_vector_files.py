"""Files of word vectors: round trips, exchange with gensim, invalid files."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from polyseme.errors import PolysemeError
from polyseme.inference.load import load as load_model
from polyseme.inference.word_vectors import WordVectors
from polyseme.weights.folder import save_model
from polyseme.word_vectors.files import VECTOR_FORMATS, VectorFormat, read_vectors, to_model, write_vectors

WORDS = ["the", "naïve", "東京", ",", "x" * 300, "12.5", "-", "U.S."]
VECTORS = (np.random.default_rng(0).standard_normal((8, 7)) * 10.0 ** np.arange(-3, 4)).astype(np.float32)


@pytest.mark.parametrize("vector_format", VECTOR_FORMATS)
def test_round_trip_is_exact(vector_format: VectorFormat, tmp_path: Path) -> None:
    write_vectors(tmp_path / "v", WORDS, VECTORS, vector_format)
    words, vectors = read_vectors(tmp_path / "v")
    assert words == WORDS and vectors.dtype == np.float32 and (vectors == VECTORS).all()


@pytest.mark.parametrize("vector_format", VECTOR_FORMATS)
def test_gensim_reads_written_files(vector_format: VectorFormat, tmp_path: Path) -> None:
    keyed_vectors = pytest.importorskip("gensim.models").KeyedVectors
    write_vectors(tmp_path / "v", WORDS, VECTORS, vector_format)
    loaded = keyed_vectors.load_word2vec_format(
        str(tmp_path / "v"), binary=vector_format == "binary", no_header=vector_format == "glove"
    )
    assert loaded.index_to_key == WORDS and (loaded.vectors == VECTORS).all()


@pytest.mark.parametrize("binary", [False, True])
def test_files_written_by_gensim_are_read(binary: bool, tmp_path: Path) -> None:
    keyed_vectors = pytest.importorskip("gensim.models").KeyedVectors(7)
    keyed_vectors.add_vectors(WORDS, VECTORS)
    keyed_vectors.save_word2vec_format(str(tmp_path / "v"), binary=binary)
    words, vectors = read_vectors(tmp_path / "v")
    assert words == WORDS
    np.testing.assert_allclose(vectors, VECTORS, rtol=1e-6 if binary else 1e-4, atol=0 if binary else 1e-6)


def test_binary_without_newlines_and_with_duplicates(tmp_path: Path) -> None:
    rows = [("a", VECTORS[0]), ("b", VECTORS[1]), ("a", VECTORS[2])]
    contents = b"3 7\n" + b"".join(w.encode() + b" " + v.tobytes() for w, v in rows)
    (tmp_path / "v").write_bytes(contents)
    words, vectors = read_vectors(tmp_path / "v")
    assert words == ["a", "b"] and (vectors == VECTORS[:2]).all()


@pytest.mark.parametrize(
    "text,message",
    [
        ("3 2\na 1 2\nb 1\nc 1 2\n", "line 3: 1 numbers after the word, expected 2"),
        ("a 1 2\nb 1 2\nc 1 2 3\n", "line 3: 3 numbers after the word, expected 2"),
        ("2 2\na 1 2\nb 1 x\n", "line 3: 'x' is not a number"),
        ("3 2\na 1 2\nb 1 2\n", "declares 3 words, but there are 2"),
        ("a 1 2\n\nb 1 2\n", "line 2: 0 numbers after the word"),
        ("word\n", "line 1 has no vector"),
        ("", "is empty"),
    ],
)
def test_invalid_text_files_are_rejected(text: str, message: str, tmp_path: Path) -> None:
    (tmp_path / "v.txt").write_text(text)
    with pytest.raises(PolysemeError, match=message) as caught:
        read_vectors(tmp_path / "v.txt")
    assert "v.txt" in str(caught.value)


@pytest.mark.parametrize("num_missing", [1, 5, 30, 100, 1300])
def test_truncated_binary_files_are_rejected(num_missing: int, tmp_path: Path) -> None:
    write_vectors(tmp_path / "v", WORDS, VECTORS, "binary")
    contents = (tmp_path / "v").read_bytes()
    size = max(len(contents) - 1 - num_missing, 10)  # the last newline is optional
    (tmp_path / "v").write_bytes(contents[:size])
    with pytest.raises(PolysemeError, match=r"is truncated at word \d of 8"):
        read_vectors(tmp_path / "v")
    (tmp_path / "v").write_bytes(contents + b"more of it")
    with pytest.raises(PolysemeError, match="continues after its 8 words"):
        read_vectors(tmp_path / "v")


def test_invalid_words_and_formats_are_rejected(tmp_path: Path) -> None:
    for word in ("two words", "", "tab\t"):
        with pytest.raises(PolysemeError, match="cannot be empty or contain white space"):
            write_vectors(tmp_path / "v", [word], VECTORS[:1])
    with pytest.raises(PolysemeError, match="did you mean 'binary'"):
        write_vectors(tmp_path / "v", WORDS, VECTORS, "binar")  # type: ignore[arg-type]
    assert not list(tmp_path.iterdir())


def test_vectors_become_a_model_that_embeds(tmp_path: Path) -> None:
    words = ["the", "cat", "sat", ","]
    save_model(tmp_path / "model", *to_model(words, VECTORS[:4]))
    model = load_model(tmp_path / "model")
    embeddings = model.embed(["The cat", "cat, sat", "unheard"])
    np.testing.assert_allclose(embeddings[0], VECTORS[:2].mean(0), rtol=1e-5)
    np.testing.assert_allclose(embeddings[1], VECTORS[[1, 3, 2]].mean(0), rtol=1e-5)
    assert not embeddings[2].any()
    vectors = WordVectors.load(tmp_path / "model")
    assert vectors.words == words and (vectors.vectors == VECTORS[:4]).all()

"""Files of word vectors: there and back, read by gensim and written by it, and honest about what is broken."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from polyseme.errors import PolysemeError
from polyseme.inference.language_model import load as load_model
from polyseme.weights.folder import save_model
from polyseme.word_vectors.files import VECTOR_FORMATS, VectorFormat, read_vectors, to_model, write_vectors
from polyseme.word_vectors.model import load

WORDS = ["the", "naïve", "東京", ",", "x" * 300, "12.5", "-", "U.S."]
VECTORS = (np.random.default_rng(0).standard_normal((8, 7)) * 10.0 ** np.arange(-3, 4)).astype(np.float32)


@pytest.mark.parametrize("form", VECTOR_FORMATS)
def test_there_and_back_changes_no_bit(form: VectorFormat, tmp_path: Path) -> None:
    write_vectors(tmp_path / "v", WORDS, VECTORS, form)
    words, vectors = read_vectors(tmp_path / "v")
    assert words == WORDS and vectors.dtype == np.float32 and (vectors == VECTORS).all()


@pytest.mark.parametrize("form", VECTOR_FORMATS)
def test_gensim_reads_what_is_written(form: VectorFormat, tmp_path: Path) -> None:
    keyed = pytest.importorskip("gensim.models").KeyedVectors
    write_vectors(tmp_path / "v", WORDS, VECTORS, form)
    found = keyed.load_word2vec_format(str(tmp_path / "v"), binary=form == "binary", no_header=form == "glove")
    assert found.index_to_key == WORDS and (found.vectors == VECTORS).all()


@pytest.mark.parametrize("binary", [False, True])
def test_what_gensim_writes_is_read(binary: bool, tmp_path: Path) -> None:
    keyed = pytest.importorskip("gensim.models").KeyedVectors(7)
    keyed.add_vectors(WORDS, VECTORS)
    keyed.save_word2vec_format(str(tmp_path / "v"), binary=binary)
    words, vectors = read_vectors(tmp_path / "v")
    assert words == WORDS
    np.testing.assert_allclose(vectors, VECTORS, rtol=1e-6 if binary else 1e-4, atol=0 if binary else 1e-6)


def test_binary_without_line_ends_and_a_word_twice(tmp_path: Path) -> None:
    rows = [("a", VECTORS[0]), ("b", VECTORS[1]), ("a", VECTORS[2])]
    data = b"3 7\n" + b"".join(w.encode() + b" " + v.tobytes() for w, v in rows)
    (tmp_path / "v").write_bytes(data)
    words, vectors = read_vectors(tmp_path / "v")
    assert words == ["a", "b"] and (vectors == VECTORS[:2]).all()


@pytest.mark.parametrize(
    "text,said",
    [
        ("3 2\na 1 2\nb 1\nc 1 2\n", "line 3: 1 numbers behind the word where 2 are expected"),
        ("a 1 2\nb 1 2\nc 1 2 3\n", "line 3: 3 numbers behind the word where 2 are expected"),
        ("2 2\na 1 2\nb 1 x\n", "line 3: 'x' is no number"),
        ("3 2\na 1 2\nb 1 2\n", "promises 3 words, but 2 follow"),
        ("a 1 2\n\nb 1 2\n", "line 2: 0 numbers behind the word"),
        ("word\n", "line 1 has no vector"),
        ("", "is empty"),
    ],
)
def test_broken_text_is_one_line(text: str, said: str, tmp_path: Path) -> None:
    (tmp_path / "v.txt").write_text(text)
    with pytest.raises(PolysemeError, match=said) as caught:
        read_vectors(tmp_path / "v.txt")
    assert "v.txt" in str(caught.value)


@pytest.mark.parametrize("cut", [1, 5, 30, 100, 1300])
def test_a_truncated_binary_says_where(cut: int, tmp_path: Path) -> None:
    write_vectors(tmp_path / "v", WORDS, VECTORS, "binary")
    data = (tmp_path / "v").read_bytes()
    size = max(len(data) - 1 - cut, 10)  # the last line end may be missing
    (tmp_path / "v").write_bytes(data[:size])
    with pytest.raises(PolysemeError, match=r"is cut off at word \d of 8"):
        read_vectors(tmp_path / "v")
    (tmp_path / "v").write_bytes(data + b"more of it")
    with pytest.raises(PolysemeError, match="goes on behind its 8 words"):
        read_vectors(tmp_path / "v")


def test_words_that_cannot_be_written(tmp_path: Path) -> None:
    for word in ("two words", "", "tab\t"):
        with pytest.raises(PolysemeError, match="cannot stand in a file of vectors"):
            write_vectors(tmp_path / "v", [word], VECTORS[:1])
    with pytest.raises(PolysemeError, match="did you mean 'binary'"):
        write_vectors(tmp_path / "v", WORDS, VECTORS, "binar")  # type: ignore[arg-type]
    assert not list(tmp_path.iterdir())


def test_a_file_becomes_a_model_that_embeds(tmp_path: Path) -> None:
    words = ["the", "cat", "sat", ","]
    save_model(tmp_path / "model", *to_model(words, VECTORS[:4]))
    model = load_model(tmp_path / "model")
    found = model.embed(["The cat", "cat, sat", "unheard"])
    np.testing.assert_allclose(found[0], VECTORS[:2].mean(0), rtol=1e-5)
    np.testing.assert_allclose(found[1], VECTORS[[1, 3, 2]].mean(0), rtol=1e-5)
    assert not found[2].any()
    vectors = load(tmp_path / "model")
    assert vectors.words == words and (vectors.vectors == VECTORS[:4]).all()

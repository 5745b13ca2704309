"""Neighbors, analogies and similarity: by hand, and compared with gensim and scipy."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from polyseme.errors import PolysemeError
from polyseme.inference.word_vectors import AnalogySection, WordVectors
from polyseme.word_vectors.evaluation import read_analogy_questions, read_similarity_pairs
from polyseme.word_vectors.files import write_vectors

SETS = Path(__file__).parents[3] / "shared" / "data" / "words"
RANDOM = np.random.default_rng(0)
WORDS = [f"w{i}" for i in range(200)]
VECTORS = RANDOM.standard_normal((200, 12)).astype(np.float32)
QUESTIONS = [tuple(RANDOM.choice(WORDS, 4, replace=False)) for _ in range(60)]


def test_neighbors_equal_those_of_gensim() -> None:
    keyed = pytest.importorskip("gensim.models").KeyedVectors(12)
    keyed.add_vectors(WORDS, VECTORS)
    vectors = WordVectors(WORDS, VECTORS)
    for word in WORDS[:20]:
        ours, theirs = vectors.neighbors(word, 5), keyed.most_similar(word, topn=5)
        assert [name for name, _ in ours] == [name for name, _ in theirs]
        np.testing.assert_allclose([v for _, v in ours], [v for _, v in theirs], atol=1e-5)
    assert len(vectors.neighbors("w0", 1000)) == 199


@pytest.mark.parametrize("cosmul", [False, True])
def test_analogies_equal_those_of_gensim(cosmul: bool) -> None:
    keyed = pytest.importorskip("gensim.models").KeyedVectors(12)
    keyed.add_vectors(WORDS, VECTORS)
    ask = keyed.most_similar_cosmul if cosmul else keyed.most_similar
    answered = [(a, b, c, ask(positive=[b, c], negative=[a], topn=1)[0][0]) for a, b, c, _ in QUESTIONS]
    wrong = [(a, b, c, "w1" if d != "w1" else "w2") for a, b, c, d in answered[:20]]
    unknown = [("w1", "w2", "w3", "none")]
    sections = WordVectors(WORDS, VECTORS).evaluate_analogies({"right": answered, "wrong": wrong + unknown}, cosmul)
    assert sections == [AnalogySection("right", 60, 60, 60), AnalogySection("wrong", 0, 20, 21)]


def test_answers_are_limited_to_frequent_words() -> None:
    vectors = np.eye(5, dtype=np.float32)
    vectors[4] = vectors[1] - vectors[0] + vectors[2]
    model = WordVectors(list("abcde"), vectors)
    question = {"all": [("a", "b", "c", "e")]}
    assert model.evaluate_analogies(question)[0].num_correct == 1
    assert model.evaluate_analogies(question, max_words=4)[0] == AnalogySection("all", 0, 0, 1)


def test_similarity_by_hand() -> None:
    vectors = WordVectors(["a", "b", "c"], np.array([[1, 0], [1, 1], [0, 1]], np.float32))
    similarity = vectors.evaluate_similarity([("a", "b", 3.0), ("A", "c", 1.0), ("b", "c", 2.0), ("a", "z", 9.0)])
    assert (similarity.num_answerable, similarity.num_pairs) == (3, 4) and similarity.spearman == pytest.approx(
        np.sqrt(3) / 2
    )
    with pytest.raises(PolysemeError, match="0 of 1 pairs have both words"):
        vectors.evaluate_similarity([("x", "y", 1.0)])


def test_unknown_word_suggests_similar_ones(tmp_path: Path) -> None:
    write_vectors(tmp_path / "v.txt", ["river", "rivers", "banana"], VECTORS[:3])
    with pytest.raises(PolysemeError, match=r"'rivver' is not in the vocabulary of .*v.txt; similar: river"):
        WordVectors.load(tmp_path / "v.txt").neighbors("rivver")
    assert WordVectors.load(tmp_path / "v.txt").neighbors("River")[0][0] in ("rivers", "banana")
    with pytest.raises(PolysemeError, match="it has 3 words"):
        WordVectors.load(tmp_path / "v.txt").neighbors("qqqq")


def test_question_and_pair_files(tmp_path: Path) -> None:
    path = tmp_path / "f"
    path.write_text(": capitals\nAthens Greece Oslo Norway\n: plural\nbird birds cat cats\n")
    assert read_analogy_questions(path) == {
        "capitals": [("Athens", "Greece", "Oslo", "Norway")],
        "plural": [("bird", "birds", "cat", "cats")],
    }
    path.write_text("Word 1,Word 2,Human (mean)\ntiger,cat,7.35\n")
    assert read_similarity_pairs(path) == [("tiger", "cat", 7.35)]
    path.write_text("old\tnew\tA\t1.58\t2.72\nhard\teasy\tA\t0.95\t1\n")
    assert read_similarity_pairs(path) == [("old", "new", 1.58), ("hard", "easy", 0.95)]
    for text, message in (("a b 1\nc d\n", "line 2: expected two words and a number"), ("", "has no pairs")):
        path.write_text(text)
        with pytest.raises(PolysemeError, match=message):
            read_similarity_pairs(path)
    for text, message in ((": x\na b c\n", "line 2: a question is four words, not 3"), (": x\n", "has no questions")):
        path.write_text(text)
        with pytest.raises(PolysemeError, match=message):
            read_analogy_questions(path)
    with pytest.raises(PolysemeError, match="there is no file"):
        read_similarity_pairs(tmp_path / "nowhere")


@pytest.mark.skipif(not SETS.exists(), reason="needs the data sets in shared/")
def test_published_sets_are_read() -> None:
    sizes = {"EN-WS-353-ALL.txt": 353, "EN-SIMLEX-999.txt": 999, "EN-MEN-TR-3k.txt": 3000}
    assert {name: len(read_similarity_pairs(SETS / name)) for name in sizes} == sizes
    sections = read_analogy_questions(SETS / "questions-words.txt")
    assert len(sections) == 14 and sum(map(len, sections.values())) == 19544


def test_a_changed_vector_leaves_the_table_alone() -> None:
    vectors = WordVectors(WORDS, VECTORS)
    before = vectors.neighbors("w0", 5), vectors.get_vector("w0").tolist()
    for copy in (vectors.vector("w0"), vectors.get_vector("w0")):
        copy -= copy
    assert (vectors.neighbors("w0", 5), vectors.get_vector("w0").tolist()) == before


@pytest.mark.parametrize("shape", [(199, 12), (200,), (200, 3, 4)])
def test_vectors_that_do_not_belong_to_the_words(shape: tuple[int, ...]) -> None:
    with pytest.raises(PolysemeError, match=rf"200 words have vectors of shape \({shape[0]}.*, expected one row for"):
        WordVectors(WORDS, np.zeros(shape))


@pytest.mark.parametrize("row", [("w1", "w2"), ("w1", "w2", "3"), ("w1", 2, 3.0), "w12", None])
def test_pairs_that_are_none(row: object) -> None:
    with pytest.raises(PolysemeError, match=r"row 2 is .*, expected two words and a number"):
        WordVectors(WORDS, VECTORS).evaluate_similarity([("w1", "w2", 1), row])


@pytest.mark.parametrize("row", [("w1", "w2", "w3"), ("w1", "w2", "w3", 4), "w123", None])
def test_questions_that_are_none(row: object) -> None:
    vectors = WordVectors(WORDS, VECTORS)
    with pytest.raises(PolysemeError, match=r"row 1 is .*, expected a question of four words"):
        vectors.evaluate_analogies({"all": [row]})
    with pytest.raises(PolysemeError, match="max_words is 0, expected an integer of 1 or more"):
        vectors.evaluate_analogies({"all": QUESTIONS}, max_words=0)


def test_pairs_from_a_generator() -> None:
    pairs = [("w1", "w2", 1.0), ("w3", "w4", 2.0), ("w5", "w6", 0.5)]
    vectors = WordVectors(WORDS, VECTORS)
    assert vectors.evaluate_similarity(iter(pairs)) == vectors.evaluate_similarity(pairs)

"""ARPA files: scores equal those of other tools, round trips are exact, and errors name the line."""

from __future__ import annotations

import gzip
import math
from pathlib import Path

import numpy as np
import pytest

from polyseme.errors import PolysemeError
from polyseme.inference.ngram_lm import NgramLM
from polyseme.ngram.arpa import arpa_names, read_arpa, write_arpa
from polyseme.ngram.count import count_ngrams
from polyseme.ngram.estimate import estimate_kneser_ney
from polyseme.ngram.model import NgramFolder
from polyseme.ngram.trie import NgramVocab
from polyseme.text.tokenizer import Tokenizer
from tests.ngram.reference import parse_arpa, score_by_backoff
from tests.support.text import ADJECTIVES, ANIMALS, PLACES, VERBS

GOOD = """made by hand

\\data\\
ngram 1=5
ngram 2=4
ngram 3=1

\\1-grams:
-99\t<s>\t-0.3
-1\t</s>
-0.9\t<unk>
-0.5\tthe\t-0.1
-0.4\tcat\t-0.2

\\2-grams:
-0.2\t<s> the\t-0.15
-0.3\tthe cat
-0.4\tcat </s>
-0.7\tcat the\t0

\\3-grams:
-0.1\t<s> the cat

\\end\\
"""
BAD = {  # old text in the valid file, new text, message
    "too few": ("-0.7\tcat the\t0\n", "", "line 19 ends a section of 3 2-grams, but the header declares 4"),
    "too many": ("ngram 2=4", "ngram 2=3", "line 20 ends a section of 4 2-grams, but the header declares 3"),
    "no back-off": ("<s> the\t-0.15", "<s> the", "line 16 has no back-off, but is the context of longer n-grams"),
    "no back-off of a word": ("-0.5\tthe\t-0.1", "-0.5\tthe", "line 12 has no back-off"),
    "a back-off too many": ("<s> the cat\n", "<s> the cat\t-1\n", "line 22 has 5 fields"),
    "a word too few": ("-0.4\tcat </s>", "-0.4\tcat", "line 18 has 2 fields"),
    "no number": ("-0.3\tthe cat", "-0,3\tthe cat", "line 17 has an invalid number"),
    "no number behind": ("cat the\t0", "cat the\tzero", "line 19 has an invalid number"),
    "not finite": ("cat the\t0", "cat the\tnan", "line 19 has an invalid log10"),
    "infinite": ("-0.3\tthe cat", "-inf\tthe cat", "line 17 has an invalid log10"),
    "above one": ("-0.3\tthe cat", "0.3\tthe cat", "line 17 has an invalid log10"),
    "unknown word": ("cat the\t0", "cat dog\t0", "line 19 has the word 'dog', which is not among the 1-grams"),
    "twice": ("cat the\t0", "the cat\t0", "line 19 repeats an n-gram"),
    "a word twice": ("-0.4\tcat\t-0.2", "-0.4\tthe\t-0.2", "line 13 repeats the word 'the'"),
    "no context": ("<s> the cat\n", "<s> cat the\n", "line 22 has an n-gram whose context"),
    "an end inside": ("cat the\t0", "</s> the\t0", "line 19 has <s> after the first word or </s> before the last"),
    "a start inside": ("cat the\t0", "cat <s>\t0", "line 19 has <s> after the first word or </s> before the last"),
    "no header": ("\\data\\\n", "", "line 3 belongs to a section, but there is no \\data\\"),
    "an order missing": ("ngram 2=4", "ngram 3=4", "line 5 counts 3-grams, expected 2-grams"),
    "a strange header": ("ngram 2=4", "ngram 2=four", "line 5 is 'ngram 2=four'"),
    "another section": ("\\3-grams:", "\\4-grams:", "line 21 is '\\\\4-grams:', expected '\\\\3-grams:'"),
    "no empty line": ("the\t0\n\n", "the\t0\n", "line 20 is '\\\\3-grams:', but an empty line"),
    "no end": ("\\end\\\n", "", "is truncated: it ends at line 23, before \\end\\"),
    "more behind the end": ("\\end\\\n", "\\end\\\nmore\n", "line 25 is 'more'"),
    "no start": ("-99\t<s>\t-0.3", "-99\t<S>\t-0.3", "line 14 ends the 1-grams, but <s> is not among them"),
}


def assert_rejected(path: Path, content: str | bytes, says: str) -> None:
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    with pytest.raises(PolysemeError) as error:
        read_arpa(path)
    assert says in str(error.value) and str(path) in str(error.value)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize("case", BAD)
def test_errors_name_the_line(case, tmp_path):
    old, new, says = BAD[case]
    assert GOOD.count(old) == 1
    assert_rejected(tmp_path / "bad.arpa", GOOD.replace(old, new), says)


def test_truncated_files_are_rejected(tmp_path):
    for end in range(0, len(GOOD.rstrip()) - 1, 3):
        with pytest.raises(PolysemeError):
            (tmp_path / "cut.arpa").write_text(GOOD[:end])
            read_arpa(tmp_path / "cut.arpa")
    compressed = gzip.compress(GOOD.encode(), mtime=0)
    assert_rejected(tmp_path / "cut.arpa.gz", compressed[: len(compressed) // 2], "truncated")
    assert_rejected(tmp_path / "no.arpa.gz", GOOD, "cannot decompress it")
    assert_rejected(tmp_path / "latin.arpa", GOOD.replace("cat", "chät").encode("latin-1"), "line 13: byte")
    with pytest.raises(PolysemeError, match="missing"):
        read_arpa(tmp_path / "nowhere.arpa")


def test_scores_of_a_small_file(tmp_path):
    (tmp_path / "good.arpa").write_text(GOOD)
    ngrams, tokenizer = read_arpa(tmp_path / "good.arpa")
    NgramFolder(tmp_path, ngrams, tokenizer).save(tmp_path / "model")
    model = NgramLM(NgramFolder.load(tmp_path / "model"))
    (score, unknown, with_marker) = model.score(["the cat", "the dog", "the </s> cat"])
    assert math.isclose(score.log_prob / math.log(10), -0.2 - 0.1, rel_tol=1e-6)
    assert (score.num_tokens, score.num_characters) == (2, 7)
    # "dog" is unknown, after a context without 3-grams for it
    assert math.isclose(unknown.log_prob / math.log(10), -0.2 + (-0.15 - 0.1 - 0.9), rel_tol=1e-6)
    assert with_marker.num_tokens == 3, "</s> in a text is an ordinary word"
    assert model.score("the cat", spans=(4, 7)).log_prob == pytest.approx(-0.1 * math.log(10))
    assert model.encode("the </s> cat").tokens == ["<s>", "the", "<unk>", "cat", "</s>"]


# -------------------------------------------------------------------------------------- parity with other readers


@pytest.fixture(scope="module")
def arpa_model(tmp_path_factory):
    """A 4-gram model, its tokenizer, its ARPA file, and sentences to score as (pieces, ids)."""
    folder = tmp_path_factory.mktemp("arpa")
    rng = np.random.default_rng(0)

    def sentence() -> str:
        words = [rng.choice(part) for part in (ADJECTIVES, ANIMALS, VERBS, ["the", "a"], ANIMALS, PLACES)]
        return " ".join(words[: rng.integers(1, 7)])

    texts = [sentence() for _ in range(400)]
    tokenizer = Tokenizer.train("wordpiece", iter(texts), vocab_size=120)
    words = NgramVocab.from_tokenizer(tokenizer)
    encoded = tokenizer.encode_corpus(texts)
    counts = count_ngrams([words.add_bos_eos(encoded.ids, encoded.lengths)], words, 4, folder)
    ngrams, _ = estimate_kneser_ney(counts, words, folder, (0, 0, 1))
    write_arpa(folder / "model.arpa", ngrams, tokenizer)
    names = arpa_names(tokenizer, words)
    new = [tokenizer.encode(f"{sentence()} 東") for _ in range(30)] + [tokenizer.encode(sentence()) for _ in range(30)]
    rows = [([names[i] for i in ids], np.array(ids)) for ids in new]
    return ngrams, tokenizer, folder / "model.arpa", rows


def scores(ngrams, rows) -> list[float]:
    return [float(ngrams.log10_probs(ngrams.vocab.add_bos_eos(ids, np.array([len(ids)]))).sum()) for _, ids in rows]


def test_reference_reader_gives_the_same_scores(arpa_model):
    ngrams, _, path, rows = arpa_model
    table, order = parse_arpa(path.read_text(encoding="utf-8"))
    assert order == 4
    assert np.allclose([score_by_backoff(table, order, pieces) for pieces, _ in rows], scores(ngrams, rows), rtol=1e-5)
    assert any("<unk>" in pieces for pieces, _ in rows)


def test_kenlm_gives_the_same_scores(arpa_model):
    kenlm = pytest.importorskip("kenlm")
    ngrams, _, path, rows = arpa_model
    theirs = kenlm.Model(str(path))
    assert theirs.order == 4
    assert np.allclose([theirs.score(" ".join(pieces)) for pieces, _ in rows], scores(ngrams, rows), rtol=1e-5)


def test_arpa_package_gives_the_same_scores(arpa_model):
    arpa = pytest.importorskip("arpa")
    ngrams, _, path, rows = arpa_model
    (theirs,) = arpa.loadf(str(path))
    expected = [theirs.log_s(" ".join(pieces)) for pieces, _ in rows]
    assert np.allclose(expected, scores(ngrams, rows), rtol=1e-5)


@pytest.mark.parametrize("ending", [".arpa", ".arpa.gz"])
def test_round_trip_is_exact(arpa_model, ending, tmp_path):
    ngrams, tokenizer, _, rows = arpa_model
    path = tmp_path / f"copy{ending}"
    write_arpa(path, ngrams, tokenizer)
    reloaded, _ = read_arpa(path, tokenizer)
    for one, other in zip(ngrams.levels, reloaded.levels):
        for a, b in zip(one, other):
            assert np.array_equal(a, b) and (not len(a) or a.dtype == b.dtype)
    first = path.read_bytes()
    write_arpa(path, reloaded, tokenizer)
    assert path.read_bytes() == first
    alone, words = read_arpa(path)  # without the tokenizer, the pieces are words
    for (pieces, _), expected in zip(rows, scores(ngrams, rows)):
        ids = np.array([words.backend.token_to_id(piece) for piece in pieces])
        assert math.isclose(
            alone.log10_probs(alone.vocab.add_bos_eos(ids, np.array([len(ids)]))).sum(), expected, rel_tol=1e-6
        )


def test_pieces_with_white_space_are_renamed():
    tokenizer = Tokenizer.train("characters", iter(["a b c <s> d"] * 3), vocab_size=40)
    names = arpa_names(tokenizer, NgramVocab.from_tokenizer(tokenizer))
    assert not [name for name in names if not name or name.split() != [name]]
    assert len(set(names)) == len(names)


def test_words_must_be_pieces_of_the_tokenizer(arpa_model, tmp_path):
    _, tokenizer, _, _ = arpa_model
    (tmp_path / "good.arpa").write_text(GOOD.replace("cat", "zebra"))
    with pytest.raises(PolysemeError, match="'zebra' is not a piece of the tokenizer"):
        read_arpa(tmp_path / "good.arpa", tokenizer)
    with pytest.raises(PolysemeError, match=r"must end in \.arpa"):
        write_arpa(tmp_path / "x.txt", arpa_model[0], tokenizer)

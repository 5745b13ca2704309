"""Search: the same texts as by brute force, in bounded memory, with deterministic ties, and stored vectors checked."""

import json
import shutil
import tracemalloc

import numpy as np
import pytest

import polyseme
from polyseme.errors import ConfigError, DataError, UnsupportedError
from polyseme.evaluation import search as search_module
from polyseme.evaluation import streaming
from polyseme.evaluation.search import TopK
from polyseme.inference.neural_lm import NeuralLM
from polyseme.weights.pooling import read_pooling
from tests.support.text import documents

LINES = list(dict.fromkeys(sentence for text in documents(20, seed=3) for sentence in text.split(". ")))
QUERIES = ["the cat sat", "a dog ran to the house", LINES[7]]


def brute_force(model, texts, queries, top_k):
    """Return the rows (from 1) and scores of the best texts, of equal ones the first."""
    unit = [v / np.linalg.norm(v, axis=1, keepdims=True) for v in (model.embed(queries), model.embed(texts))]
    scores = np.round(unit[0] @ unit[1].T, 6)
    order = np.argsort(-scores, axis=1, kind="stable")[:, :top_k]
    return (order + 1).tolist(), np.take_along_axis(scores, order, axis=1)


@pytest.fixture(scope="module")
def texts():
    """More texts than one window has, with repeated ones."""
    return [*LINES, *LINES[:30]]


@pytest.mark.parametrize("family", ["bert", "word2vec", "elmo", "t5"])
def test_search_equals_brute_force(tiny_folders, texts, family, monkeypatch):
    monkeypatch.setattr(streaming, "MAX_EXAMPLES", 16)
    monkeypatch.setattr(search_module, "MAX_SCORES", 32)  # two queries at a time
    model = polyseme.load(tiny_folders[family])
    rows, scores = brute_force(model, texts, QUERIES, 7)
    hits = polyseme.search(model, texts, QUERIES, top_k=7)
    assert [[hit.row for hit in each] for each in hits] == rows
    np.testing.assert_allclose([[hit.score for hit in each] for each in hits], scores, atol=2e-6)
    assert all(hit.text == texts[hit.row - 1] and hit.rank == i for each in hits for i, hit in enumerate(each, 1))
    assert [hit.row for hit in polyseme.search(model, texts, QUERIES[0], top_k=7)] == rows[0]


def test_more_results_than_texts(tiny_folders):
    hits = polyseme.search(tiny_folders["bert"], ["the cat", "a dog", "the cat"], "the cat", top_k=10)
    assert [(hit.rank, hit.row) for hit in hits[:2]] == [(1, 1), (2, 3)]
    assert len(hits) == 3


def test_ties_across_blocks_go_to_the_first_rows():
    rng = np.random.default_rng(0)
    scores = rng.integers(0, 4, size=(5, 900)).astype(np.float32) / 4
    best = TopK(5, 20)
    for start in range(0, 900, 7):
        best.update(scores, np.eye(900, dtype=np.float32)[start : start + 7], start)
    expected = np.argsort(-scores, axis=1, kind="stable")[:, :20]
    assert np.array_equal(np.stack(best.rows), expected)


@pytest.fixture
def stored(tmp_path, tiny_folders, texts, run_cli):
    """A file of texts, a model, and the vectors that `embed` wrote."""
    file, model, vectors = tmp_path / "texts.txt", tmp_path / "model", tmp_path / "v.npz"
    file.write_text("\n".join(texts) + "\n")
    shutil.copytree(tiny_folders["bert"], model)
    run_cli("embed", model, "--data", file, "--out", vectors)
    return file, model, vectors


def test_stored_vectors_give_the_same_texts(stored, texts, monkeypatch):
    file, model, vectors = stored
    monkeypatch.setattr("polyseme.evaluation.embed_file.MAX_BLOCK_ROWS", 10)
    hits = polyseme.search(model, file, QUERIES, top_k=5, vectors=vectors)
    rows, _ = brute_force(polyseme.load(model), texts, QUERIES, 5)
    assert [[hit.row for hit in each] for each in hits] == rows
    assert hits[2][0].text == LINES[7]


def test_vectors_of_other_texts_or_models_are_rejected(stored, tiny_folders, rejects, tmp_path):
    file, model, vectors = stored
    other = tmp_path / "other.txt"
    other.write_text(file.read_text() + "one more\n")
    np.savez(tmp_path / "numpy.npz", vectors=np.zeros((3, 4)))
    (tmp_path / "text.npz").write_text("no archive")
    for path, folder, npz, match in (
        (other, model, vectors, "vectors of other texts than .*other.txt: write them again"),
        (file, tiny_folders["roberta"], vectors, "vectors of another model than .*roberta"),
        (file, model, tmp_path / "numpy.npz", "no vectors of texts that `polyseme embed` wrote"),
        (file, model, tmp_path / "text.npz", "is not a file of vectors"),
        (file, model, tmp_path / "none.npz", "there is no file .*none.npz"),
    ):
        rejects("search", path, "cat", "--model", folder, "--vectors", npz, match=match)


def test_command(stored, run_cli, tmp_path):
    file, model, _ = stored
    table = run_cli("search", file, "the cat", "a dog", "--model", model, "--top-k", 2)
    assert table.splitlines()[:2] == ["the cat", "rank  score   row  text"]
    assert len(table.splitlines()) == 9
    (tmp_path / "q.txt").write_text("the cat\na dog\n")
    out = tmp_path / "hits.jsonl"
    printed = run_cli("search", file, "--queries", tmp_path / "q.txt", "--model", model, "--top-k", 2, "--json")
    assert "4 results of 2 queries" in run_cli(
        "search", file, "the cat", "a dog", "--model", model, "--top-k", 2, "--out", out
    )
    assert out.read_text() == printed
    row = json.loads(printed.splitlines()[0])
    assert set(row) == {"query", "rank", "score", "row", "text"}
    assert row["query"] == "the cat"


def test_columns_are_kept(tmp_path, tiny_folders, run_cli):
    """All columns of a row are in the results; the id is shown; ours get another name if the input has it."""
    file, out = tmp_path / "products.csv", tmp_path / "hits.csv"
    file.write_text('id,title,score\nB7,"the cat, sat",9\nA1,a dog ran,8\n')
    command = ("search", f"{file}::text=title", "the cat, sat", "--model", tiny_folders["bert"], "--top-k", 1)
    assert run_cli(*command).splitlines() == ["rank  score   id  text", "   1  1.0000  B7  the cat, sat"]
    row = json.loads(run_cli(*command, "--json"))
    assert (row["id"], row["title"], row["score"], row["rank"], row["row"]) == ("B7", "the cat, sat", "9", 1, 1)
    assert row["polyseme_score"] == pytest.approx(1)
    run_cli(*command, "--out", out)
    assert out.read_text().splitlines()[0] == "id,title,score,query,rank,polyseme_score,row"
    run_cli(*command, "--out", tmp_path / "hits.parquet")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["hits.csv", "hits.parquet", "products.csv"]
    hit = polyseme.search(tiny_folders["bert"], f"{file}::text=title", "the cat, sat")[0]
    assert hit.columns == {"id": "B7", "title": "the cat, sat", "score": "9"}
    vectors = tmp_path / "v.npz"
    run_cli("embed", tiny_folders["bert"], "--data", f"{file}::text=title", "--out", vectors)
    assert polyseme.search(tiny_folders["bert"], f"{file}::text=title", "a dog ran", vectors=vectors)[0].row == 2
    with pytest.raises(DataError, match="vectors of the column 'title', not 'id'"):
        polyseme.search(tiny_folders["bert"], f"{file}::text=id", "a dog ran", vectors=vectors)


def test_bad_searches(stored, rejects, tmp_path):
    file, model, _ = stored
    (tmp_path / "empty.txt").write_text("")
    rejects("search", file, " ", "--model", model, match="query 1 is empty")
    rejects("search", file, "--model", model, match="give a QUERY, or --queries")
    rejects("search", tmp_path / "empty.txt", "cat", "--model", model, match="empty.txt is empty")
    rejects("search", file, "cat", "--model", model, "--out", tmp_path / "hits.xml", match="xml")
    with pytest.raises(ConfigError, match="`top_k` is 0"):
        polyseme.search(model, ["a"], "b", top_k=0)
    with pytest.raises(DataError, match="no texts to search"):
        polyseme.search(model, [], "b")
    with pytest.raises(DataError, match="text 2 is ' '"):
        polyseme.search(model, ["a", " "], "b")


def test_a_model_that_cannot_embed(tiny_folders, monkeypatch):
    monkeypatch.setattr(NeuralLM, "capabilities", ("encode", "score"))
    with pytest.raises(UnsupportedError, match="cannot embed texts: it is a bert model"):
        polyseme.search(tiny_folders["bert"], ["a text"], "a text")


def test_long_texts_are_cut_with_one_warning(tiny_folders, caplog):
    texts = ["the cat " * 100, "the dog", "the dog " * 100]
    (hit,) = polyseme.search(tiny_folders["bert"], texts, "the cat " * 90, top_k=1)
    assert (hit.row, hit.score) == (1, pytest.approx(1))
    (record,) = [r for r in caplog.records if "longer than" in r.message]
    assert record.message.endswith("only the beginning is compared: 3")


@pytest.mark.parametrize("content", ["{}", '[{"type": 3}]'])
def test_bad_modules_are_errors(tmp_path, content):
    (tmp_path / "modules.json").write_text(content)
    with pytest.raises(polyseme.ModelError, match=r"modules\.json is not a list of modules"):
        read_pooling(tmp_path)


def test_modules_that_we_do_not_have(tmp_path, tiny_folders):
    shutil.copytree(tiny_folders["bert"], tmp_path / "model")
    (tmp_path / "model/SHA256SUMS").unlink()
    names = ["Transformer", "Pooling", "Dense"]
    (tmp_path / "model/modules.json").write_text(json.dumps([{"type": f"s.{n}", "path": n} for n in names]))
    model = polyseme.load(tmp_path / "model")
    assert model.embed("the cat", granularity="token").shape[1] == 24
    with pytest.raises(UnsupportedError, match="Transformer, Pooling, Dense"):
        model.embed("the cat")


@pytest.mark.slow
def test_memory_does_not_grow_with_the_number_of_texts(tmp_path, tiny_folders):
    """200,000 short texts: the peak stays below what their vectors alone would take."""
    peaks = {}
    for num_texts in (20_000, 200_000):
        file = tmp_path / f"{num_texts}.txt"
        file.write_text("".join(f"the cat {i % 977} and the dog {i % 89}\n" for i in range(num_texts)))
        texts = search_module.open_texts(file)
        model = polyseme.load(tiny_folders["word2vec"])
        tracemalloc.start()
        hits = search_module.search(model, texts, ["the cat 5 and the dog 6"], 10)
        peaks[num_texts] = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        assert len(hits[0]) == 10
    assert peaks[200_000] < 1.2 * peaks[20_000] + (1 << 20)

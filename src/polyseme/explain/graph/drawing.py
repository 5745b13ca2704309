"""Drawing of a computation graph in layers from left to right; long arcs go around the nodes between their ends."""

from collections.abc import Sequence

from polyseme.explain.graph.graph import Graph, Node
from polyseme.report.html import escape
from polyseme.report.svg import format_number, shorten, svg_image, svg_text

NODE_WIDTH, NODE_HEIGHT, LAYER_GAP, ROW_GAP, MARGIN, ARC_HEIGHT = 104, 58, 86, 26, 16, 12
STYLE = (
    ".node rect{fill:var(--tint);stroke:var(--faint)}.node .grad,.edge .grad{fill:var(--s2)}"
    ".node .value{fill:var(--s1);font-weight:600}.edge path{fill:none;stroke:var(--faint)}.edge text{font-size:11px}"
)
Key = int | tuple[int, int, int]  # a node, or the place of an arc in a layer: child, number of the arc, layer


def draw_graph(graph: Graph, first_steps: Sequence[tuple[int, int]]) -> str:
    """Draw a graph; the value and the gradient of each node appear at its two `first_steps`."""
    index = {id(node): i for i, node in enumerate(graph.nodes)}
    parents = [[index[id(parent)] for parent in node.parents] for node in graph.nodes]
    layers = assign_layers(parents)
    total = [sum(_height(key) + ROW_GAP for key in layer) - ROW_GAP for layer in layers]
    width = 2 * MARGIN + len(layers) * (NODE_WIDTH + LAYER_GAP) - LAYER_GAP
    places: dict[Key, tuple[float, float]] = {}
    for i, layer in enumerate(layers):
        y = MARGIN + (max(total) - total[i]) / 2
        for key in layer:
            places[key] = MARGIN + i * (NODE_WIDTH + LAYER_GAP), y + _height(key) / 2
            y += _height(key) + ROW_GAP
    arcs = []
    for i, node in enumerate(graph.nodes):
        grads = [float(grad) for _, grad in node.contributions()]
        routes = [_route(i, k, parents[i][k], places) for k in range(len(grads))]
        ports = sorted(range(len(grads)), key=lambda k: routes[k][-1][1])  # from top to bottom, without crossings
        for port, k in enumerate(ports):
            arcs.append(_draw_arc(routes[k], places[i], port, grads[k], first_steps[i][1]))
    nodes = [_draw_node(i, node, places[i], first_steps[i]) for i, node in enumerate(graph.nodes)]
    label = f"computation graph with {len(nodes)} nodes and {len(arcs)} arcs"
    drawing = f"<style>{STYLE}</style>{''.join(arcs + nodes)}"
    image = svg_image(width, max(total) + 2 * MARGIN, drawing, label, scalable=width < 900)
    return f'<div class="plot">{image}</div>'


def assign_layers(parents: Sequence[Sequence[int]]) -> list[list[Key]]:
    """Return the nodes by their longest path from an input, and the places of arcs that pass a layer.

    Within a layer, they are ordered by the mean position of what they come from, to have few crossings.
    """
    depth: list[int] = []
    for sources in parents:
        depth.append(max((depth[source] + 1 for source in sources), default=0))
    layers: list[list[Key]] = [[] for _ in range(max(depth) + 1)]
    before: dict[Key, list[Key]] = {}
    for child, sources in enumerate(parents):
        before[child] = []
        layers[depth[child]].append(child)
        for k, source in enumerate(sources):
            previous: Key = source
            for layer in range(depth[source] + 1, depth[child]):
                layers[layer].append(key := (child, k, layer))
                before[key], previous = [previous], key
            before[child].append(previous)
    position: dict[Key, float] = {}
    for keys in layers:
        keys.sort(key=lambda key: sum(position[p] for p in before[key]) / max(len(before[key]), 1))
        position |= {key: (i + 0.5) / len(keys) for i, key in enumerate(keys)}
    return layers


def _height(key: Key) -> int:
    return NODE_HEIGHT if isinstance(key, int) else ARC_HEIGHT


def _route(child: int, k: int, parent: int, places: dict[Key, tuple[float, float]]) -> list[tuple[float, float]]:
    """Return the places that an arc passes: its parent, and one in each layer between."""
    passed = sorted((key for key in places if isinstance(key, tuple) and key[:2] == (child, k)), key=lambda key: key[2])
    return [places[parent], *(places[key] for key in passed)]


def _draw_arc(route: list[tuple[float, float]], child: tuple[float, float], port: int, grad: float, step: int) -> str:
    """Draw an arc through the places of its route, with the gradient that it passes back near its end."""
    ends = [*route[1:], (child[0], child[1] + 12 * (port - 0.5))]
    path = f"M{route[0][0] + NODE_WIDTH:.0f},{route[0][1]:.0f}"
    for (x, y), (end_x, end_y) in zip(route, ends):
        start_x, middle = x + NODE_WIDTH, (x + NODE_WIDTH + end_x) / 2
        path += f" L{start_x:.0f},{y:.0f} C{middle:.0f},{y:.0f} {middle:.0f},{end_y:.0f} {end_x:.0f},{end_y:.0f}"
    (x, y), (end_x, end_y) = route[-1], ends[-1]
    text = svg_text(
        x + NODE_WIDTH + 0.7 * LAYER_GAP,
        y + 0.8 * (end_y - y) + (14 if port else -6),
        format_number(grad, 4),
        "middle",
        f' class="grad" data-step="{step}"',
    )
    return f'<g class="edge"><path d="{path}"/>{text}</g>'


def _draw_node(i: int, node: Node, place: tuple[float, float], first_steps: tuple[int, int]) -> str:
    """Draw a node with its operation, its value, and its gradient."""
    assert node.value is not None and node.grad is not None
    x, y = place
    middle, top = x + NODE_WIDTH / 2, y - NODE_HEIGHT / 2
    texts = svg_text(middle, top + 18, shorten(_symbol(node), 14), "middle")
    texts += svg_text(middle, top + 34, format_number(float(node.value), 6), "middle",
                      f' class="value" data-step="{first_steps[0]}"')  # fmt: skip
    texts += svg_text(middle, top + 50, f"∂ {format_number(float(node.grad), 6)}", "middle",
                      f' class="grad" data-step="{first_steps[1]}"')  # fmt: skip
    box = f'<rect x="{x:.0f}" y="{top:.0f}" width="{NODE_WIDTH}" height="{NODE_HEIGHT}" rx="8"/>'
    return f'<g class="node" id="node-{i}"><title>{escape(node.label)}</title>{box}{texts}</g>'


def _symbol(node: Node) -> str:
    """Return the operation of a node with a dot for each parent, such as `· ** 2`; the name of an input."""
    operation = node.operation
    if operation is None:
        return node.label
    operands = ["·" if isinstance(operand, Node) else f"{float(operand):.6g}" for operand in node.operands]
    return f" {operation.infix} ".join(operands) if operation.infix else operation.name

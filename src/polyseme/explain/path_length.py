"""How far apart two words are in each type of layer: path length, sequential operations and cost, measured.

Table 1 of "Attention Is All You Need" (Vaswani et al. 2017, §4) states these by formula. Here they are measured on the
layers of this package: which positions a change of the first word reaches after each round, how many matrix products
have to wait for another one, how many multiplications a layer takes, and how long.
"""

import math
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.flop_counter import FlopCounterMode

from polyseme.errors import ConfigError
from polyseme.explain.explanation import Explanation
from polyseme.nn.attention.multihead import AttentionConfig
from polyseme.nn.layers.embeddings import EmbeddingsConfig
from polyseme.nn.layers.rnn import RNNCellLayer, TimeMajor
from polyseme.nn.packing import PackedLayout
from polyseme.nn.trunks.recurrent import RecurrentTrunkConfig
from polyseme.report.charts import Series, line_chart
from polyseme.report.heatmap import Labels, heat_map
from polyseme.report.html import figure, html_page, html_table, note, paragraph
from polyseme.report.svg import Axis

PATH_LENGTHS = (8, 16, 32, 64, 128)  # numbers of words whose paths are measured
COST_LENGTHS = (128, 256, 512, 1024)  # numbers of words whose operations and times are measured
REACH_LENGTH = 24  # words in the figure of what is reached
NUM_REPEATS = 7
PATH_DIM, COST_DIM, NUM_HEADS = 8, 64, 2
WINDOW, KERNEL = 4, 3  # words on each side of restricted attention; width of a convolution
_jvp: Any = torch.func.jvp  # the value of a function, and the change of it along a tangent
PRODUCTS = ("AddmmBackward0", "MmBackward0", "BmmBackward0", "ConvolutionBackward0")


@dataclass(frozen=True)
class LayerType:
    """A type of layer, and its row of table 1: n words, vectors of size d, kernels of width k, r words attended to."""

    name: str
    complexity: str
    sequential_operations: str
    max_path_length: str

    @property
    def is_recurrent(self) -> bool:
        """Whether a word waits for the one before it."""
        return self.name == "recurrent"


LAYER_TYPES = (
    LayerType("self-attention", "O(n² · d)", "O(1)", "O(1)"),
    LayerType("recurrent", "O(n · d²)", "O(n)", "O(n)"),
    LayerType("convolution", "O(k · n · d²)", "O(1)", "O(n / k)"),
    LayerType("dilated convolution", "O(k · n · d²)", "O(1)", "O(log_k n)"),
    LayerType("restricted self-attention", "O(r · n · d)", "O(1)", "O(n / r)"),
)


@dataclass(frozen=True)
class LayerCost:
    """The cost of one layer: multiplications, seconds, and matrix products of which each waits for the one before."""

    num_words: int
    num_multiplications: int
    seconds: float
    sequential_products: int


class MixingLayer(nn.Module):
    """One layer of a type, x [n, dim] to [n, dim]; `depth` (from 0) is its place in a stack, for dilation."""

    def __init__(self, layer_type: LayerType, dim: int, depth: int = 0, use_reference: bool = False):
        super().__init__()
        self.layer_type, self.use_reference = layer_type, use_reference
        self.layer = self._build(dim, depth)
        generator = torch.Generator().manual_seed(depth)
        for parameter in self.layer.parameters():
            nn.init.normal_(parameter, 0.0, dim**-0.5, generator=generator)

    def _build(self, dim: int, depth: int) -> nn.Module:
        if self.layer_type.is_recurrent:
            config = RecurrentTrunkConfig(EmbeddingsConfig(1, dim, 1, position_embedding_type="none"), (dim,))
            return RNNCellLayer(config, dim, dim)
        if "convolution" in self.layer_type.name:
            dilation = KERNEL**depth if "dilated" in self.layer_type.name else 1
            return nn.Conv1d(dim, dim, KERNEL, dilation=dilation)
        window = WINDOW if "restricted" in self.layer_type.name else 0
        return AttentionConfig(NUM_HEADS, window=window).build(dim)

    def forward(self, x: Tensor) -> Tensor:
        """Return the outputs of all words."""
        if isinstance(self.layer, RNNCellLayer):
            order = TimeMajor(PackedLayout.from_lengths([len(x)]))
            steps = x[:, None]  # [n, 1, dim]
            return self.layer(steps, order, self.layer.initial_states(1, x), self.use_reference, None)[0][:, 0]
        if isinstance(self.layer, nn.Conv1d):
            padding = self.layer.dilation[0] * (KERNEL - 1)  # a word reads itself and earlier ones, as in a decoder
            return self.layer(F.pad(x.T, (padding, 0))[None])[0].T
        layout = PackedLayout.from_lengths([len(x)])
        return self.layer(x, layout, layout.positions, None, None)


def reached_positions(layer_type: LayerType, num_words: int) -> np.ndarray:
    """Return which positions a change of the first word has reached after each round, bool [rounds, words].

    A round is a layer, or a step of a recurrent layer: what can be computed at once. The last round is the first that
    reaches the last word. The change is a tangent (forward differentiation), which is scaled after each round so that
    it does not vanish; where there is no path, it is exactly 0.
    """
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(num_words, PATH_DIM, generator=generator, dtype=torch.float64)
    tangent = torch.zeros_like(x)
    tangent[0] = 1.0
    with sdpa_kernel(SDPBackend.MATH):
        if layer_type.is_recurrent:
            return _reached_by_steps(layer_type, x, tangent)
        rounds: list[np.ndarray] = []
        while not rounds or not rounds[-1][-1]:
            if len(rounds) >= num_words:
                raise ConfigError(f"{layer_type.name}: {num_words} layers do not connect {num_words} words")
            layer = MixingLayer(layer_type, PATH_DIM, len(rounds)).double()
            _, change = _jvp(layer, (x,), (tangent,))
            tangent = _rescale(tangent + change)  # with a residual connection; every layer gets the same words
            rounds.append((tangent != 0).any(1).numpy())
    return np.stack(rounds)


def _reached_by_steps(layer_type: LayerType, x: Tensor, tangent: Tensor) -> np.ndarray:
    """Run a recurrent layer step by step; after a step, only the words up to it have an output."""
    cell: Any = MixingLayer(layer_type, PATH_DIM).double().layer
    order = TimeMajor(PackedLayout.from_lengths([1]))
    states = cell.initial_states(1, x)
    state_tangents = [torch.zeros_like(state) for state in states]
    reached = np.zeros((len(x), len(x)), dtype=bool)

    def step(word: Tensor, *states: Tensor) -> tuple[Tensor, ...]:
        return tuple(cell(word[None, None], order, list(states), True, None)[1])

    for i in range(len(x)):
        states, state_tangents = _jvp(step, (x[i], *states), (tangent[i], *state_tangents))
        state_tangents = [_rescale(each) for each in state_tangents]
        reached[i:, i] = bool((state_tangents[0] != 0).any())
    return reached


def _rescale(tangent: Tensor) -> Tensor:
    """Scale each row to length 1, unless it is 0."""
    norm = tangent.norm(dim=1, keepdim=True)
    return torch.where(norm > 0, tangent / norm.clamp(min=1e-300), tangent)


def max_path_length(layer_type: LayerType, num_words: int) -> int:
    """Return how many rounds it takes until the last word depends on the first."""
    return len(reached_positions(layer_type, num_words))


def measure_cost(layer_type: LayerType, num_words: int, dim: int = COST_DIM) -> LayerCost:
    """Measure one layer on this CPU: multiplications, the best of seven times, and products that wait for others."""
    x = torch.randn(num_words, dim, generator=torch.Generator().manual_seed(0))
    layer, reference = (MixingLayer(layer_type, dim, use_reference=is_reference) for is_reference in (False, True))
    with sdpa_kernel(SDPBackend.MATH), FlopCounterMode(display=False) as counter:
        depth = sequential_products(reference(x.clone().requires_grad_()))
    num_multiplications = counter.get_total_flops() // 2  # it counts additions, too
    seconds = []
    with torch.inference_mode():
        for _ in range(NUM_REPEATS):
            start = time.perf_counter()
            layer(x)
            seconds.append(time.perf_counter() - start)
    return LayerCost(num_words, num_multiplications, min(seconds), depth)


def sequential_products(output: Tensor) -> int:
    """Return the largest number of matrix products on a path of the autograd graph: each waits for the one before."""
    depths: dict[Any, int] = {}
    stack: list[Any] = [output.grad_fn]
    while stack:
        node = stack[-1]
        inputs = [each for each, _ in node.next_functions if each is not None]
        if unknown := [each for each in inputs if each not in depths]:
            stack += unknown
            continue
        depths[node] = max((depths[each] for each in inputs), default=0) + (node.name() in PRODUCTS)
        stack.pop()
    return depths[output.grad_fn]


def explain_path_length(
    path_lengths: Sequence[int] = PATH_LENGTHS, cost_lengths: Sequence[int] = COST_LENGTHS
) -> Explanation:
    """Compare types of layers: how many rounds lie between two words, and what a layer costs, by number of words.

    >>> explain_path_length((8, 16), (16, 32)).record["layer_types"][0]["path_length"]
    {'8': 1, '16': 1}
    """
    if min(*path_lengths, *cost_lengths) < 2 or len(cost_lengths) < 2:
        raise ConfigError("path lengths need at least two words, and costs at least two lengths")
    paths = {each: [max_path_length(each, n) for n in path_lengths] for each in LAYER_TYPES}
    costs = {each: [measure_cost(each, n) for n in cost_lengths] for each in LAYER_TYPES}
    table_1 = (
        ["layer", "complexity", "sequential", "maximum path"],
        [[each.name, each.complexity, each.sequential_operations, each.max_path_length] for each in LAYER_TYPES],
    )
    path_table = (
        ["path length", *(f"{n} words" for n in path_lengths)],
        [[each.name, *paths[each]] for each in LAYER_TYPES],
    )
    cost_header = ["one layer", "waiting products", "million mult.", "ms", "growth of mult.", "growth of time"]
    cost_rows = [[each.name, *_format_cost(costs[each])] for each in LAYER_TYPES]
    tables: list[tuple[list[str], list[list[Any]]]] = [table_1, path_table, (cost_header, cost_rows)]
    record = {
        "dim": COST_DIM,
        "window": WINDOW,
        "kernel": KERNEL,
        "layer_types": [_to_record(each, dict(zip(path_lengths, paths[each])), costs[each]) for each in LAYER_TYPES],
    }
    figures = {
        "paths": _line_chart("rounds between the first and the last word", path_lengths, paths),
        "time": _line_chart("ms per layer", cost_lengths, {k: [1e3 * c.seconds for c in v] for k, v in costs.items()}),
        "reach": heat_map(*_reach_map(), cell_size=16),
    }
    summary = (
        f"vectors of {COST_DIM}, windows of {WINDOW} words on each side, kernels of {KERNEL}; costs are those of "
        f"{cost_lengths[-1]:,} words, and growth is the exponent of n from {cost_lengths[-2]:,} words"
    )
    return Explanation(_page(figures, tables, summary), record, figures, summary, tables)


def _format_cost(costs: Sequence[LayerCost]) -> list[str]:
    """Format the cost at the largest length, and how it grew from the one before: the exponent of n."""
    before, last = costs[-2:]
    ratio = math.log(last.num_words / before.num_words)
    growths = [
        math.log(last.num_multiplications / before.num_multiplications) / ratio,
        math.log(last.seconds / before.seconds) / ratio,
    ]
    values = [f"{last.num_multiplications / 1e6:.1f}", f"{1e3 * last.seconds:.2f}", *(f"n^{g:.2f}" for g in growths)]
    return [str(last.sequential_products), *values]


def _to_record(layer_type: LayerType, paths: dict[int, int], costs: Sequence[LayerCost]) -> dict[str, Any]:
    return {
        "name": layer_type.name,
        "complexity": layer_type.complexity,
        "sequential_operations": layer_type.sequential_operations,
        "max_path_length": layer_type.max_path_length,
        "path_length": {str(n): length for n, length in paths.items()},
        "cost": [
            {"words": c.num_words, "multiplications": c.num_multiplications, "ms": 1e3 * c.seconds,
             "sequential_products": c.sequential_products}
            for c in costs
        ],
    }  # fmt: skip


def _line_chart(label: str, lengths: Sequence[int], values: dict[LayerType, Any]) -> str:
    series = [Series(each.name, list(zip(lengths, values[each])), show_points=True) for each in LAYER_TYPES]
    return line_chart(series, Axis("words", log=True), Axis(label, log=True), direct_labels=True)


def _reach_map() -> tuple[np.ndarray, Labels]:
    """Return for each type and position the round that reaches it, as a share of all rounds of the slowest type."""
    rounds = [reached_positions(each, REACH_LENGTH) for each in LAYER_TYPES]
    first = np.stack([reached.argmax(0) + 1 for reached in rounds])
    labels = Labels([each.name for each in LAYER_TYPES], [str(i + 1) for i in range(REACH_LENGTH)], "", "word")
    return first / REACH_LENGTH, labels


def _page(figures: dict[str, str], tables: Sequence[tuple[list[str], list[list[Any]]]], summary: str) -> str:
    """Return the page of all tables and figures."""
    captions = {
        "paths": "How many layers, or steps of a recurrent layer, it takes until the last word depends on the first.",
        "time": "Time of one layer on this machine's CPU, the best of seven, by number of words.",
        "reach": "After how many rounds a change of the first word reaches each word: the darker, the later.",
    }
    sections = [
        ("By formula", paragraph("Vaswani et al. 2017, table 1. Convolutions need O(log_k n) layers if dilated.")),
        ("Path length", figure(figures["paths"], captions["paths"]) + html_table(*tables[1])),
        ("What a change reaches", figure(figures["reach"], captions["reach"])),
        ("Cost of a layer", figure(figures["time"], captions["time"]) + html_table(*tables[2]) + paragraph(summary)),
        (
            "How it is measured",
            paragraph(
                "Paths: a change of the first word is followed through layers with random weights by forward "
                "differentiation; where there is no path it is exactly 0. Waiting products: the longest chain of "
                "matrix products in the graph of a layer. Multiplications include projections, whose cost is linear: "
                "attention is quadratic only for texts that are long compared with d."
            )
            + note(
                "On a CPU, restricted attention computes all scores and masks those outside of the window, so that its "
                "multiplications are quadratic here; the GPU kernel skips them."
            ),
        ),
    ]
    sections[0] = (sections[0][0], html_table(*tables[0]) + sections[0][1])
    lead = "How far apart two words are, and what a layer costs, by the type of layer."
    return html_page("Path length by type of layer", lead, sections)

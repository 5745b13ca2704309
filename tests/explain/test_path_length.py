"""Path lengths and costs of layers, compared with their formulas."""

import math

import pytest
import torch

from polyseme.errors import ConfigError
from polyseme.explain import explain_path_length
from polyseme.explain.path_length import (
    KERNEL,
    LAYER_TYPES,
    WINDOW,
    max_path_length,
    measure_cost,
    reached_positions,
    sequential_products,
)
from tests.support.pages import check_svg, parse_page

TYPES = {each.name: each for each in LAYER_TYPES}
PATHS = {
    "self-attention": lambda n: 1,
    "recurrent": lambda n: n,
    "convolution": lambda n: math.ceil((n - 1) / (KERNEL - 1)),
    "dilated convolution": lambda n: next(i for i in range(n) if KERNEL**i >= n),
    "restricted self-attention": lambda n: math.ceil((n - 1) / WINDOW),
}
D = 16
MULTIPLICATIONS = {
    "self-attention": lambda n: 4 * n * D * D + 2 * n * n * D,
    "recurrent": lambda n: n * 8 * D * D,  # four gates, from the input and from the state; the first state is zero
    "convolution": lambda n: KERNEL * n * D * D,
}


@pytest.mark.parametrize("name", TYPES)
@pytest.mark.parametrize("n", [2, 7, 28])
def test_paths_match_the_formulas(name, n):
    assert max_path_length(TYPES[name], n) == PATHS[name](n)


def test_a_change_spreads_word_by_word():
    reached = reached_positions(TYPES["recurrent"], 5)
    assert (reached == torch.tril(torch.ones(5, 5)).bool().numpy()).all()
    first_round = reached_positions(TYPES["restricted self-attention"], 12)[0]
    assert first_round.tolist() == [True] * (WINDOW + 1) + [False] * (11 - WINDOW)


@pytest.mark.parametrize("name", MULTIPLICATIONS)
def test_multiplications_match_the_formulas(name):
    for n in (6, 12):
        assert measure_cost(TYPES[name], n, D).num_multiplications == MULTIPLICATIONS[name](n)


def test_only_recurrent_products_wait_for_each_other():
    depths = {name: [measure_cost(each, n, D).sequential_products for n in (4, 9)] for name, each in TYPES.items()}
    assert depths.pop("recurrent") == [4, 9]
    assert all(first == second <= 4 for first, second in depths.values())
    matrix = torch.randn(3, 3, requires_grad=True)
    assert sequential_products(matrix @ matrix @ matrix + matrix @ matrix) == 2


def test_explanation():
    explanation = explain_path_length((8, 16), (16, 32))
    parse_page(explanation.page)
    for chart in explanation.figures.values():
        check_svg(chart)
    recurrent = explanation.record["layer_types"][1]
    assert recurrent["path_length"] == {"8": 8, "16": 16} and recurrent["cost"][1]["sequential_products"] == 32
    with pytest.raises(ConfigError, match="two words"):
        explain_path_length((1,), (8, 16))


def test_options_without_effect(rejects):
    rejects("explain", "--path-length", "--text", "a", match="--text has no effect with --path-length")
    rejects("explain", "mini", "--path-length", match="MODEL has no effect")

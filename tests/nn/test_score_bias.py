"""Attention with a bias by distance: the body that runs against the definition, and buckets against a plain loop."""

import math

import pytest
import torch

from polyseme.nn.attention.attend import ScoreModifier, attend, attend_eager, expand_relative_bias
from polyseme.nn.attention.score_bias import BucketedRelativeBiasConfig
from polyseme.nn.packing import PackedLayout


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("window", [0, 3])
@pytest.mark.parametrize("cached", [False, True])
def test_bodies_agree_with_their_gradients(causal, window, cached):
    torch.manual_seed(0)
    rows = PackedLayout.from_lengths((5, 5, 1, 9))
    keys = PackedLayout.from_lengths((8, 5, 4, 9)) if cached else rows
    given = [torch.randn(n, 3, 4, dtype=torch.float64) for n in (rows.num_tokens, keys.num_tokens, keys.num_tokens)]
    bias = torch.randn(3, 2 * 11 - 1, dtype=torch.float64)
    found = []
    for body in (attend, attend_eager):
        leaves = [t.clone().requires_grad_() for t in (*given, bias)]
        out = body(*leaves[:3], rows, keys, causal=causal, window=window, score_modifier=ScoreModifier(0.7, leaves[3]))
        (out * torch.arange(1.0, 5.0)).sum().backward()
        found.append([out.detach(), *(leaf.grad for leaf in leaves)])
    for one, other in zip(*found):
        torch.testing.assert_close(one, other, atol=1e-12, rtol=0)


def test_spread_by_the_definition():
    bias = torch.arange(2 * 13, dtype=torch.float64).view(2, 13)
    for rows, columns in ((4, 4), (1, 7), (3, 6), (7, 7)):
        dense = expand_relative_bias(bias, rows, columns)
        for i in range(rows):
            for j in range(columns):
                assert (dense[:, i, j] == bias[:, 6 + j - (columns - rows + i)]).all()


@pytest.mark.parametrize("causal", [False, True])
def test_buckets_by_a_loop(causal):
    module = BucketedRelativeBiasConfig(2, causal, 16, 40).build(8)
    found = module.bucket_indices(90).tolist()
    for ahead, bucket in zip(range(-89, 90), found):
        half = 16 if causal else 8
        far = max(-ahead, 0) if causal else abs(ahead)
        exact = half // 2
        number = far
        if far >= exact:
            number = min(exact + int(math.log(far / exact) / math.log(40 / exact) * (half - exact)), half - 1)
        assert bucket == number + (half if ahead > 0 and not causal else 0), ahead
    table = module.bias_by_distance(90)
    assert table.shape == (2, 179) and torch.equal(table[:, 100], module.positions.weight[found[100]])

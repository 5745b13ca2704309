"""Attention with a score bias by relative position, and the buckets of distances."""

import math

import pytest
import torch

from polyseme.nn.attention.attend import AttentionOptions, attend, expand_relative_bias
from polyseme.nn.attention.multihead import BucketedRelativeBiasConfig
from polyseme.nn.packing import PackedLayout
from tests.support.attention import attend_eager


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("window", [0, 3])
@pytest.mark.parametrize("cached", [False, True])
def test_attend_with_bias_matches_eager_with_gradients(causal, window, cached):
    torch.manual_seed(0)
    q_layout = PackedLayout.from_lengths((5, 5, 1, 9))
    k_layout = PackedLayout.from_lengths((8, 5, 4, 9)) if cached else q_layout
    inputs = [
        torch.randn(n, 3, 4, dtype=torch.float64)
        for n in (q_layout.num_tokens, k_layout.num_tokens, k_layout.num_tokens)
    ]
    bias = torch.randn(3, 2 * 11 - 1, dtype=torch.float64)
    outputs = []
    for attend_fn in (attend, attend_eager):
        leaves = [t.clone().requires_grad_() for t in (*inputs, bias)]
        options = AttentionOptions(causal, window, scale=0.7, bias=leaves[3])
        output = attend_fn(*leaves[:3], q_layout, k_layout, options)
        (output * torch.arange(1.0, 5.0)).sum().backward()
        outputs.append([output.detach(), *(leaf.grad for leaf in leaves)])
    for actual, expected in zip(*outputs):
        torch.testing.assert_close(actual, expected, atol=1e-12, rtol=0)


def test_expand_relative_bias_matches_its_definition():
    bias = torch.arange(2 * 13, dtype=torch.float64).view(2, 13)
    for num_queries, num_keys in ((4, 4), (1, 7), (3, 6), (7, 7)):
        dense = expand_relative_bias(bias, num_queries, num_keys)
        for i in range(num_queries):
            for j in range(num_keys):
                assert (dense[:, i, j] == bias[:, 6 + j - (num_keys - num_queries + i)]).all()


@pytest.mark.parametrize("causal", [False, True])
def test_bucket_indices_match_a_plain_loop(causal):
    module = BucketedRelativeBiasConfig(2, causal, 16, 40).build(8)
    buckets = module.bucket_indices(90).tolist()
    for relative_position, bucket in zip(range(-89, 90), buckets):
        num_buckets = 16 if causal else 8
        distance = max(-relative_position, 0) if causal else abs(relative_position)
        max_exact = num_buckets // 2
        expected = distance
        if distance >= max_exact:
            expected = min(
                max_exact + int(math.log(distance / max_exact) / math.log(40 / max_exact) * (num_buckets - max_exact)),
                num_buckets - 1,
            )
        assert bucket == expected + (num_buckets if relative_position > 0 and not causal else 0), relative_position
    table = module.bias_by_distance(90)
    assert table.shape == (2, 179) and torch.equal(table[:, 100], module.positions.weight[buckets[100]])

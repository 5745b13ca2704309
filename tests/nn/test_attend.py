"""Each implementation of `attend` matches the eager reference, forward and backward."""

import pytest
import torch

from polyseme.nn.attention import groups
from polyseme.nn.attention.attend import (
    AttentionOptions,
    attend_bucketed,
    attend_grouped,
    attend_varlen,
)
from polyseme.nn.attention.terms import attention_terms
from polyseme.nn.packing import PackedLayout
from tests.support.attention import attend_eager

CASES = {
    "sorted": ((3, 5, 5, 5, 9), None),
    "unsorted": ((5, 1, 5, 9, 3), None),
    "queries shorter than keys": ((1, 2, 2, 4), (6, 2, 7, 9)),
}


def make_inputs(case: str, device: str = "cpu", dtype: torch.dtype = torch.float64):
    q_lengths, k_lengths = CASES[case]
    q_layout = PackedLayout.from_lengths(q_lengths, device=device)
    k_layout = q_layout if k_lengths is None else PackedLayout.from_lengths(k_lengths, device=device)
    generator = torch.Generator().manual_seed(0)
    q, k, v = (
        torch.randn(layout.num_tokens, 2, 16, generator=generator, dtype=torch.float64)
        .to(device, dtype)
        .requires_grad_()
        for layout in (q_layout, k_layout, k_layout)
    )
    return q, k, v, q_layout, k_layout


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("case", CASES)
def test_bucketed_attention_matches_eager(case, causal):
    q, k, v, q_layout, k_layout = make_inputs(case)
    expected = attend_eager(q, k, v, q_layout, k_layout, AttentionOptions(causal))
    output = attend_bucketed(q, k, v, q_layout, k_layout, AttentionOptions(causal))
    torch.testing.assert_close(output, expected, atol=1e-12, rtol=0)
    weight = torch.randn_like(expected)
    for a, b in zip(*(torch.autograd.grad((x * weight).sum(), (q, k, v)) for x in (expected, output))):
        torch.testing.assert_close(a, b, atol=1e-12, rtol=0)


@pytest.mark.parametrize("small_group", [0, 1 << 14])
@pytest.mark.parametrize("causal, window", [(False, 0), (True, 0), (False, 2), (True, 1)])
@pytest.mark.parametrize("case", ["sorted", "unsorted"])
def test_grouped_attention_matches_runs_of_equal_length(case, causal, window, small_group, monkeypatch):
    """With a bias, as on a GPU: few sequences in each group, or all."""
    monkeypatch.setattr(groups, "SMALL_GROUP", small_group)
    q, k, v, q_layout, k_layout = make_inputs(case)
    bias = torch.randn(2, 2 * 9 - 1, dtype=torch.float64, generator=torch.Generator().manual_seed(1)).requires_grad_()
    options = AttentionOptions(causal, window, bias=bias)
    expected = attend_bucketed(q, k, v, q_layout, k_layout, options)
    output = attend_grouped(q, k, v, q_layout, options)
    torch.testing.assert_close(output, expected, atol=1e-12, rtol=0)
    weight = torch.randn_like(expected)
    for a, b in zip(*(torch.autograd.grad((x * weight).sum(), (q, k, v, bias)) for x in (expected, output))):
        torch.testing.assert_close(a, b, atol=1e-12, rtol=0)


def test_groups_limit_padding():
    lengths = (*range(60, 129), 500, 3)
    layout = PackedLayout.from_lengths(lengths)
    grouped = groups.group_sequences(layout, layout)
    assert sum(group.num_sequences for group in grouped) == len(lengths) and len(grouped) < 8
    sides = [group.queries for group in grouped]
    assert [side.length for side in sides][-2:] == [500, 3]
    padded = sum(side.is_padding.numel() * side.length for side in sides)
    assert padded <= groups.MAX_PADDED_SHARE * sum(n**2 for n in lengths)
    rows = torch.cat([side.start + side.padded_to_packed[side.packed_to_padded] for side in sides])
    assert rows.tolist() == list(range(sum(lengths)))


@pytest.mark.parametrize("causal", [False, True])
def test_weights_are_probabilities_inside_each_sequence(causal):
    q, k, v, *_ = make_inputs("queries shorter than keys")
    q_lengths, k_lengths = CASES["queries shorter than keys"]
    for num_queries, num_keys, *qkv in zip(
        q_lengths, k_lengths, q.split(q_lengths), k.split(k_lengths), v.split(k_lengths)
    ):
        weights = attention_terms(*qkv, AttentionOptions(causal)).weights
        assert weights.shape == (2, num_queries, num_keys)
        torch.testing.assert_close(weights.sum(-1), torch.ones(2, num_queries, dtype=torch.float64))
        if causal:
            assert (weights[:, 0, num_keys - num_queries + 1 :] == 0).all()


def test_dropout_preserves_the_mean():
    torch.manual_seed(0)
    layout = PackedLayout.from_lengths([64])
    q = torch.zeros(64, 1, 8)
    v = torch.ones(64, 1, 8)
    output = attend_bucketed(q, q, v, layout, layout, AttentionOptions(dropout=0.5))
    assert output.std() > 0.01
    assert abs(output.mean().item() - 1) < 0.05


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("case", CASES)
def test_varlen_attention_matches_eager(case, causal):
    q, k, v, q_layout, k_layout = make_inputs(case, "cuda", torch.bfloat16)
    exact = [t.detach().double().requires_grad_() for t in (q, k, v)]
    expected = attend_eager(*exact, q_layout, k_layout, AttentionOptions(causal))
    output = attend_varlen(q, k, v, q_layout, k_layout, AttentionOptions(causal))
    assert (output - expected).norm() / expected.norm() < 1e-2
    weight = torch.randn_like(expected)
    expected_grads = torch.autograd.grad((expected * weight).sum(), exact)
    grads = torch.autograd.grad((output * weight).sum(), (q, k, v))
    for a, b in zip(grads, expected_grads):
        assert (a - b).norm() / b.norm() < 2e-2


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_varlen_with_dropout_and_empty_slots():
    layout = PackedLayout.from_lengths([64, 64], num_slots=5, max_seqlen=80, device="cuda")
    torch.manual_seed(0)
    q = torch.zeros(128, 2, 64, device="cuda", dtype=torch.bfloat16)
    output = attend_varlen(q, q, torch.ones_like(q), layout, layout, AttentionOptions(dropout=0.5))
    assert output.float().std() > 0.01
    assert abs(output.float().mean().item() - 1) < 0.05

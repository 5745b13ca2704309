"""Muon: orthogonal updates of the size of AdamW's, for the matrices of blocks only."""

import pytest
import torch

from polyseme.families import FAMILIES
from polyseme.train.optimizer import (
    NS_COEFFICIENTS,
    OptimizerConfig,
    load_optimizer_state_dict,
    newton_schulz,
    optimizer_state_dict,
    set_lr,
)


@pytest.mark.parametrize("shape", [(2, 30, 50), (3, 50, 30), (1, 40, 40)])
def test_singular_values_follow_the_polynomial(shape):
    """Newton-Schulz iterations apply the polynomial to the singular values, five times, and change nothing else."""
    torch.manual_seed(0)
    x = torch.randn(shape, dtype=torch.float64)
    u, s, v = torch.linalg.svd(x, full_matrices=False)
    s = s / s.norm(dim=-1, keepdim=True)
    for a, b, c in NS_COEFFICIENTS:
        s = a * s + b * s**3 + c * s**5
    torch.testing.assert_close(newton_schulz(x), u @ torch.diag_embed(s) @ v, atol=1e-6, rtol=0)
    assert s.max() < 1.25 and (s > 0.6).double().mean() > 0.9  # what is almost 0 stays small


def model_and_optimizer(family="bert", **changes):
    model = FAMILIES[family].model_config(num_layers=2, dim=32, num_heads=2, vocab_size=50, max_len=16).build(seed=0)
    spec = OptimizerConfig(lr=0.01, name="muon", **changes)
    return model, spec.build(model, model.trunk.layer_groups())


def step(model, optimizer, seed):
    draw = torch.Generator().manual_seed(seed)
    for p in model.parameters():
        p.grad = torch.randn(p.shape, generator=draw)
    optimizer.step()


@pytest.mark.parametrize("family,fused_counts", [("bert", {1, 3}), ("modernbert", {1, 2, 3})])
def test_matrices_of_the_blocks_and_no_others(family, fused_counts):
    model, optimizer = model_and_optimizer(family)
    chosen = {id(p): g["fused_count"] for g in optimizer.param_groups for p in g["params"] if g["fused_count"]}
    names = {name for name, p in model.named_parameters() if id(p) in chosen}
    assert names == {n for n, p in model.named_parameters() if n.startswith("trunk.blocks.") and p.ndim == 2}
    assert set(chosen.values()) == fused_counts
    assert sum(len(g["params"]) for g in optimizer.param_groups) == len(list(model.parameters()))


def test_each_part_of_a_stack_moves_on_its_own():
    """A fused query, key and value matrix is orthogonalized in three parts, and the step has AdamW's size."""
    model, optimizer = model_and_optimizer(weight_decay=0.0)
    weight = model.trunk.blocks[0].attention.qkv.weight
    before = weight.detach().clone()
    step(model, optimizer, 1)
    moved = (before - weight.detach()) / 0.01
    for part in moved.view(3, 32, 32):
        values = torch.linalg.svdvals(part / (0.2 * 32**0.5))
        assert values.max() < 1.25 and (values > 0.6).double().mean() > 0.9
    assert moved.square().mean().sqrt().item() == pytest.approx(0.2, rel=0.15)


def test_the_rest_is_adamw():
    model, optimizer = model_and_optimizer()
    plain = FAMILIES["bert"].model_config(num_layers=2, dim=32, num_heads=2, vocab_size=50, max_len=16).build(seed=0)
    other = OptimizerConfig(lr=0.01).build(plain, plain.trunk.layer_groups())
    for seed in range(3):
        step(model, optimizer, seed)
        step(plain, other, seed)
    for (name, p), q in zip(model.named_parameters(), plain.parameters()):
        inside = name.startswith("trunk.blocks.") and p.ndim == 2
        assert torch.equal(p, q) != inside, name


def test_rates_of_t5_follow_the_size_of_its_weights():
    """As if queries, embeddings and score biases had the sizes of a model that scales scores and embeddings."""
    model, optimizer = model_and_optimizer("t5", weight_decay=0.1)
    set_lr(optimizer, 0.01)
    before = {name: p.detach().clone() for name, p in model.named_parameters()}
    step(model, optimizer, 1)
    moved = {name: (before[name] * (1 - 0.01 * 0.1) - p.detach()) / 0.01 for name, p in model.named_parameters()}
    for name in ("encoder.blocks.1.attention", "decoder.blocks.0.attention", "decoder.blocks.1.cross_attention"):
        query, key, _ = moved[f"trunk.{name}.qkv.weight"].view(3, -1).square().mean(1).sqrt()
        assert query / key == pytest.approx(16**-0.5, rel=0.1)
    for name, scale in {"encoder.embeddings.tokens": 32**0.5, "decoder.position_bias.positions": 16}.items():
        assert moved[f"trunk.{name}.weight"].abs().mean().item() == pytest.approx(scale, rel=1e-3)
    assert moved["trunk.encoder.final_norm.weight"].abs().max() < 1.2


def test_momentum_there_and_back():
    model, optimizer = model_and_optimizer()
    again, other = model_and_optimizer()
    for seed in range(3):
        step(model, optimizer, seed)
    again.load_state_dict(model.state_dict())
    load_optimizer_state_dict(other, again, optimizer_state_dict(optimizer, model))
    set_lr(optimizer, 0.003)
    set_lr(other, 0.003)
    step(model, optimizer, 9)
    step(again, other, 9)
    assert all(torch.equal(p, q) for p, q in zip(model.parameters(), again.parameters()))


def test_it_learns():
    torch.manual_seed(0)
    model, optimizer = model_and_optimizer()
    weight = model.trunk.blocks[1].ffn.down.weight
    true = torch.randn_like(weight) * 0.1
    losses = []
    for number in range(60):
        set_lr(optimizer, 0.05 * (1 - number / 60))
        optimizer.zero_grad()
        loss = (weight - true).square().mean()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    assert losses[-1] < 0.02 * losses[0]

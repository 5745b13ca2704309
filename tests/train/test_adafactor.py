"""Adafactor, Adagrad, LAMB and StableAdamW, against independent implementations; their state in checkpoints."""

import math

import pytest
import torch
from transformers.optimization import Adafactor as ReferenceAdafactor

from polyseme.families import FAMILIES
from polyseme.nn.model import build_meta
from polyseme.recipes import get_recipe
from polyseme.train.optimizer import (
    OptimizerConfig,
    ScheduleConfig,
    load_optimizer_state_dict,
    optimizer_state_dict,
    set_lr,
)
from polyseme.train.pretrain import pretrain
from tests.support.runs import assert_same, prepare_text, pretrain_killed, tiny_recipe


def build(family="gpt2", **fields):
    sizes = {"num_layers": 1, "dim": 8, "num_heads": 2, "vocab_size": 20, "max_len": 8}
    model = FAMILIES[family].model_config(**sizes).build(seed=0).double()
    config = OptimizerConfig(**{"weight_decay": 0.0} | fields)
    return model, config.build(model, model.trunk.layer_groups())


def draw_gradients(params, seed):
    generator = torch.Generator().manual_seed(seed)
    for p in params:
        p.grad = torch.randn(p.shape, generator=generator, dtype=torch.float64) * 10.0 ** ((seed % 3) - 1)


def split(model):
    """Return the weights as a user of `transformers` has them: fused matrices apart."""
    fused = {id(p): n for p, n in model.trunk.hidden_matrices()}
    return [part.detach().clone() for p in model.parameters() for part in p.chunk(fused.get(id(p), 1))]


@pytest.mark.parametrize("family", ["gpt2", "t5"])
def test_adafactor_is_that_of_transformers(family):
    model, optimizer = build(family, name="adafactor", lr=0.05)
    fused = {id(p): n for p, n in model.trunk.hidden_matrices()}
    assert any(count == 3 for count in fused.values())
    reference = [torch.nn.Parameter(part) for part in split(model)]
    settings = {"scale_parameter": True, "relative_step": False, "warmup_init": False}
    reference_optimizer = ReferenceAdafactor(reference, lr=0.05, **settings)
    for seed in range(7):
        draw_gradients(model.parameters(), seed)
        grads = [g for p in model.parameters() for g in p.grad.chunk(fused.get(id(p), 1))]
        for p, grad in zip(reference, grads, strict=True):
            p.grad = grad.clone()
        for each in (optimizer, reference_optimizer):
            each.step()
    for p, expected in zip(split(model), reference, strict=True):
        torch.testing.assert_close(p, expected.data, rtol=1e-6, atol=1e-9)


@pytest.mark.parametrize("initial_sum", [0.0, 0.01])
def test_adagrad_is_that_of_torch(initial_sum):
    model, optimizer = build(name="adagrad", lr=0.2, initial_sum=initial_sum)
    reference = [torch.nn.Parameter(p.detach().clone()) for p in model.parameters()]
    reference_optimizer = torch.optim.Adagrad(reference, lr=0.2, initial_accumulator_value=initial_sum)
    for seed in range(7):
        draw_gradients(model.parameters(), seed)
        draw_gradients(reference, seed)
        for each in (optimizer, reference_optimizer):
            each.step()
    for p, expected in zip(model.parameters(), reference, strict=True):
        torch.testing.assert_close(p.data, expected.data, rtol=1e-12, atol=1e-12)


def test_elmo_has_the_updates_of_its_program():
    """A sum of squares from 1 and clipping at 10 with ten times the gradient are one from 0.01 and clipping at 1."""
    recipe = get_recipe("elmo-original")
    assert (recipe.optimizer.initial_sum, recipe.optimizer.max_grad_norm) == (0.01, 1.0)
    weights = []
    for scale, initial_sum, max_norm in ((10.0, 1.0, 10.0), (1.0, recipe.optimizer.initial_sum, 1.0)):
        p = torch.nn.Parameter(torch.ones(5, dtype=torch.float64))
        optimizer = torch.optim.Adagrad([p], lr=0.2, initial_accumulator_value=initial_sum)
        for seed in range(4):
            draw_gradients([p], seed)
            p.grad *= scale
            torch.nn.utils.clip_grad_norm_([p], max_norm)
            optimizer.step()
        weights.append(p.data)
    torch.testing.assert_close(weights[0], weights[1], rtol=1e-6, atol=0)


def test_the_schedule_of_t5():
    """Raffel et al. 2020, §3.1.2: 1 / √max(n, k) with k = 10,000 warm-up steps."""
    recipe = get_recipe("t5-base")
    for step in (0, 1, 9_999, 10_000, 40_000, 524_287):
        rate = recipe.optimizer.lr * recipe.schedule.lr_factor(step, 524_288)
        assert rate == pytest.approx(1 / math.sqrt(max(step + 1, 10_000)), rel=1e-12)
    assert not ScheduleConfig("constant_inverse_sqrt").depends_on_length


def adam_updates(grads, betas, eps=1e-6):
    """Return the update of AdamW without weight decay after each gradient, and the unbiased mean of their squares."""
    mean, mean_square, updates = 0.0, 0.0, []
    for step, grad in enumerate(grads, start=1):
        mean = betas[0] * mean + (1 - betas[0]) * grad
        mean_square = betas[1] * mean_square + (1 - betas[1]) * grad**2
        unbiased = mean_square / (1 - betas[1] ** step)
        updates.append((mean / (1 - betas[0] ** step) / (unbiased**0.5 + eps), unbiased))
    return updates


def lamb(p, grad, update, unbiased, lr, weight_decay):
    if p.ndim < 2:
        return p - lr * update
    update = update + weight_decay * p
    return p - lr * p.norm() / update.norm() * update


def stable_adamw(p, grad, update, unbiased, lr, weight_decay):
    lr = lr / max(1.0, float((grad**2 / unbiased.clamp(min=1e-12)).mean() ** 0.5))
    return p - lr * update - lr * (weight_decay if p.ndim > 1 else 0.0) * p


@pytest.mark.parametrize("formula", [lamb, stable_adamw])
def test_lamb_and_stable_adamw_have_the_formulas_of_their_papers(formula):
    """You et al. 2020, algorithm 2; Wortsman et al. 2023, algorithm 2. Matrices in one weight are updated apart."""
    model, optimizer = build("bert", name=formula.__name__, lr=0.05, weight_decay=0.1, beta2=0.98)
    fused = {id(p): n for p, n in model.trunk.hidden_matrices()}
    expected, grads = split(model), []
    for seed in range(7):
        draw_gradients(model.parameters(), seed)
        grads.append([g.clone() for p in model.parameters() for g in p.grad.chunk(fused.get(id(p), 1))])
        optimizer.step()
        for i, p in enumerate(expected):
            update, unbiased = adam_updates([each[i] for each in grads], (0.9, 0.98))[-1]
            expected[i] = formula(p, grads[-1][i], update, unbiased, 0.05, 0.1)
    for p, reference in zip(split(model), expected, strict=True):
        torch.testing.assert_close(p, reference, rtol=1e-6, atol=1e-9)


@pytest.mark.parametrize("name", ["adagrad", "adafactor", "lamb", "stable_adamw"])
def test_a_step_that_is_not_finite_changes_nothing(name):
    """As on a GPU, where optimizers read `found_inf`, in the first step as well as later."""
    weights = []
    for losses in ((1, 2), (math.nan, 1, math.inf, 2)):
        model, optimizer = build("bert", name=name, lr=0.05, weight_decay=0.1)
        for loss in losses:
            draw_gradients(model.parameters(), int(loss) if math.isfinite(loss) else 0)
            for p in model.parameters():
                p.grad *= 1 if math.isfinite(loss) else loss
            optimizer.found_inf = torch.tensor(float(not math.isfinite(loss)))
            optimizer.step()
        weights.append(list(model.parameters()))
    assert all(torch.equal(*pair) for pair in zip(*weights, strict=True))


@pytest.mark.parametrize("name", ["adafactor", "adagrad", "lamb", "stable_adamw"])
def test_the_state_is_saved_and_counted(name):
    model, optimizer = build("bert", name=name, lr=0.05, initial_sum=0.1 if name == "adagrad" else 0.0)
    draw_gradients(model.parameters(), 1)
    optimizer.step()
    state, weights = optimizer_state_dict(optimizer, model), {n: p.clone() for n, p in model.state_dict().items()}
    num_values = sum(t.numel() for t in state.values() if t.ndim)
    config = OptimizerConfig(name=name)
    assert config.count_state(build_meta(model.config)) == num_values
    if name == "adafactor":  # rows and columns, not entries
        assert num_values < sum(p.numel() for p in model.parameters()) / 2
    state = {key: value.clone() for key, value in state.items()}
    restored, restored_optimizer = build("bert", name=name, lr=0.05)
    restored.load_state_dict(weights)
    load_optimizer_state_dict(restored_optimizer, restored, state)
    for each, each_optimizer in ((model, optimizer), (restored, restored_optimizer)):
        set_lr(each_optimizer, 0.02)
        draw_gradients(each.parameters(), 2)
        each_optimizer.step()
    assert all(torch.equal(*pair) for pair in zip(model.parameters(), restored.parameters(), strict=True))
    assert not torch.equal(weights["trunk.embeddings.tokens.weight"], model.trunk.embeddings.tokens.weight)


@pytest.mark.parametrize("name", ["adafactor", "adagrad", "lamb", "stable_adamw"])
def test_a_killed_run_resumes_exactly(name, tmp_path):
    corpus = prepare_text(tmp_path)
    recipe = tiny_recipe("bert").replace(optimizer=OptimizerConfig(name=name, lr=0.01, initial_sum=0.01))
    pretrain(recipe, corpus, tmp_path / "whole")
    pretrain_killed(recipe, corpus, tmp_path / "killed", kill_after=4)
    assert_same(tmp_path / "whole", tmp_path / "killed")

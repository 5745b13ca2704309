"""Batches filled up to few shapes, for recordings: the model says the same of them."""

import numpy as np
import pytest
import torch

from polyseme.families import FAMILIES
from polyseme.nn.heads.standard import LabelHeadSpec
from polyseme.nn.model import ModelSpec
from polyseme.nn.packing import Layout
from polyseme.objectives.batch import IGNORED, Batch, Targets, changed, signature, tensors
from polyseme.objectives.losses import losses
from polyseme.objectives.packing import rounded

MAX_LEN = 48


def batch_of(lengths, head="classify", seed=0):
    draw = torch.Generator().manual_seed(seed)
    layout = Layout.of(lengths)
    rows = torch.arange(len(lengths)) if head == "classify" else torch.arange(0, layout.total, 3)
    values = torch.randint(0, 3, (len(rows),), generator=draw)
    tokens = torch.randint(0, 50, (layout.total,), generator=draw)
    return Batch(tokens, layout, torch.zeros_like(tokens), {head: Targets(rows, values, len(rows))}, layout.total)


@pytest.fixture(scope="module")
def model():
    trunk = FAMILIES["bert"].spec(num_layers=2, dim=16, num_heads=2, vocab_size=50, max_len=MAX_LEN).trunk
    heads = {"classify": LabelHeadSpec(("a", "b", "c")), "tag": LabelHeadSpec(("a", "b", "c"), "tokens")}
    return ModelSpec("bert", trunk, heads).build(seed=0).double().eval()


@pytest.mark.parametrize("head", ["classify", "tag"])
@pytest.mark.parametrize("lengths", [[5, 9, 1], [48] * 3, [33, 2], [7], list(range(1, 49))])
def test_the_same_losses(model, head, lengths):
    batch = batch_of(lengths, head)
    full = rounded(batch, MAX_LEN)
    assert full.layout.total == full.tokens.numel() >= batch.layout.total and full.layout.longest <= MAX_LEN
    assert full.layout.total - batch.layout.total < max(64, batch.layout.total / 8 + 1)
    assert (full.num_tokens, full.targets[head].count) == (batch.num_tokens, batch.targets[head].count)
    true, found = losses(model, batch)[head], losses(model, full)[head]
    torch.testing.assert_close(found, true, atol=1e-10, rtol=0)


def test_few_kinds():
    """A thousand batches of 32 texts have a few kinds; each kind has one size of everything."""
    draw = np.random.default_rng(0)
    kinds: dict[tuple[object, ...], set[tuple[torch.Size, ...]]] = {}
    for _ in range(1000):
        lengths = np.clip(np.exp(draw.normal(2.5, 0.6, 32)).astype(int), 3, MAX_LEN).tolist()
        full = rounded(batch_of(lengths), MAX_LEN)
        kinds.setdefault(signature(full), set()).add(tuple(t.shape for t in tensors(full)))
    assert len(kinds) <= 12 and all(len(shapes) == 1 for shapes in kinds.values())


def test_what_fills_never_counts():
    full = rounded(batch_of([5, 9, 1], "tag"), MAX_LEN)
    target = full.targets["tag"]
    assert (target.values[target.count :] == IGNORED).all() and len(target.values) > target.count


def test_every_tensor_is_changed_and_nothing_else():
    batch = batch_of([5, 9, 1])
    twice = changed(batch, lambda t: t * 2)
    assert [t.tolist() for t in tensors(twice)] == [(t * 2).tolist() for t in tensors(batch)]
    assert twice.layout.lengths == batch.layout.lengths and twice.targets["classify"].count == 3
    assert len(tensors((batch, torch.ones(1)))) == len(tensors(batch)) + 1

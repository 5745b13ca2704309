"""Batches padded to few shapes, for CUDA graphs, give the same losses."""

import numpy as np
import pytest
import torch

from polyseme.families import FAMILIES
from polyseme.nn.cuda_graph import shape_signature
from polyseme.nn.heads.classification import ClassificationHeadConfig
from polyseme.nn.model import ModelConfig
from polyseme.nn.packing import Inputs, PackedLayout, tree_leaves, tree_map
from polyseme.objectives.batch import IGNORE_INDEX, Batch, Targets
from polyseme.objectives.losses import compute_losses
from polyseme.objectives.packing import pad_to_bucket

MAX_LEN = 48


def batch_of(lengths, head="classify", seed=0):
    draw = torch.Generator().manual_seed(seed)
    layout = PackedLayout.from_lengths(lengths)
    rows = torch.arange(len(lengths)) if head == "classify" else torch.arange(0, layout.num_tokens, 3)
    values = torch.randint(0, 3, (len(rows),), generator=draw)
    tokens = torch.randint(0, 50, (layout.num_tokens,), generator=draw)
    return Batch(
        Inputs(tokens, layout, torch.zeros_like(tokens)), {head: Targets(rows, values, len(rows))}, layout.num_tokens
    )


@pytest.fixture(scope="module")
def model():
    trunk = FAMILIES["bert"].model_config(num_layers=2, dim=16, num_heads=2, vocab_size=50, max_len=MAX_LEN).trunk
    heads = {
        "classify": ClassificationHeadConfig(("a", "b", "c")),
        "tag": ClassificationHeadConfig(("a", "b", "c"), "tokens"),
    }
    return ModelConfig("bert", trunk, heads).build(seed=0).double().eval()


@pytest.mark.parametrize("head", ["classify", "tag"])
@pytest.mark.parametrize("lengths", [[5, 9, 1], [48] * 3, [33, 2], [7], list(range(1, 49))])
def test_the_same_losses(model, head, lengths):
    batch = batch_of(lengths, head)
    full = pad_to_bucket(batch, MAX_LEN)
    assert (
        full.inputs.layout.num_tokens == full.inputs.tokens.numel() >= batch.inputs.layout.num_tokens
        and full.inputs.layout.max_seqlen <= MAX_LEN
    )
    assert full.inputs.layout.num_tokens - batch.inputs.layout.num_tokens < max(
        64, batch.inputs.layout.num_tokens / 8 + 1
    )
    assert (full.num_tokens, full.targets[head].count) == (batch.num_tokens, batch.targets[head].count)
    true, found = compute_losses(model, batch)[head], compute_losses(model, full)[head]
    torch.testing.assert_close(found, true, atol=1e-10, rtol=0)


def test_few_kinds():
    """A thousand batches of 32 texts have few signatures; batches of a signature have the same shapes."""
    draw = np.random.default_rng(0)
    kinds: dict[tuple[object, ...], set[tuple[torch.Size, ...]]] = {}
    for _ in range(1000):
        lengths = np.clip(np.exp(draw.normal(2.5, 0.6, 32)).astype(int), 3, MAX_LEN).tolist()
        full = pad_to_bucket(batch_of(lengths), MAX_LEN)
        kinds.setdefault(shape_signature(full), set()).add(tuple(t.shape for t in tree_leaves(full)))
    assert len(kinds) <= 12 and all(len(shapes) == 1 for shapes in kinds.values())


def test_what_fills_never_counts():
    full = pad_to_bucket(batch_of([5, 9, 1], "tag"), MAX_LEN)
    target = full.targets["tag"]
    assert (target.labels[target.count :] == IGNORE_INDEX).all() and len(target.labels) > target.count


def test_every_tensor_is_changed_and_nothing_else():
    batch = batch_of([5, 9, 1])
    twice = tree_map(batch, lambda t: t * 2)
    assert [t.tolist() for t in tree_leaves(twice)] == [(t * 2).tolist() for t in tree_leaves(batch)]
    assert twice.inputs.layout.lengths == batch.inputs.layout.lengths and twice.targets["classify"].count == 3
    assert len(tree_leaves((batch, torch.ones(1)))) == len(tree_leaves(batch)) + 1

"""Loss terms. Each is a sum, which the training loop divides once by its count over the whole step.

A term has the name of its head, which computes its loss. Terms without a head are in `REGULARIZERS`.
"""

from dataclasses import replace

import torch
import torch.nn.functional as F
from torch import Tensor

from polyseme.nn.model import Model
from polyseme.nn.trunks.base import TrunkOutput
from polyseme.objectives.batch import IGNORE_INDEX, Batch, SparseUpdateBatch

REGULARIZERS = ("activation_reg", "temporal_activation_reg", "attention_coverage")
EVAL_CHUNK_ROWS = 1024  # rows whose logits over the vocabulary are in memory at once, in evaluation


def compute_losses(model: Model, batch: Batch) -> dict[str, Tensor]:
    """Return the summed loss of each term of a batch; the last layer computes only the states that they read."""
    if model.training:
        batch = batch.extra.prepare(model, batch)
    inputs, targets = batch.inputs, batch.targets
    selections = model.select_rows({name: t.rows for name, t in targets.items()}, inputs.layout)
    if selections is not None and batch.extra.has_plain_forward:
        rows = [each.state_rows for each in selections.values()]
        parts = model.trunk(replace(inputs, rows=torch.cat(rows))).hidden.split([len(each) for each in rows])
        return {
            name: model.loss(name, hidden, each.layout, each.rows, targets[name].labels, targets[name].label_smoothing)
            for (name, each), hidden in zip(selections.items(), parts)
        }
    output = run_trunk(model, batch)
    return {name: compute_term(model, batch, output, name) for name in batch.targets}


def run_trunk(model: Model, batch: Batch) -> TrunkOutput:
    """Run the trunk with the layers that the terms of a batch need."""
    needs_raw_hidden = "temporal_activation_reg" in batch.targets
    return batch.forward(model, (model.config.trunk.num_layers,) if needs_raw_hidden else ())


def compute_term(model: Model, batch: Batch, output: TrunkOutput, name: str) -> Tensor:
    """Return the summed loss of one term, from the output of `run_trunk`."""
    hidden, layout, t = output.hidden, batch.inputs.layout, batch.targets[name]
    if name == "activation_reg":  # mean square of each state, after dropout (Merity et al. 2018, §4.6, AR)
        return hidden.float().square().mean(-1).sum()
    if name == "temporal_activation_reg":  # that of the change between states, before dropout (TAR)
        raw_hidden = output.layers[model.config.trunk.num_layers]
        squared_diff = (raw_hidden[1:] - raw_hidden[:-1]).float().square().mean(-1)
        return (squared_diff * (layout.positions[1:] > 0)).sum()
    if name == "attention_coverage":  # each region gets as much attention as one word (Xu et al. 2015, §4.2.1)
        assert output.source_attention is not None and batch.inputs.source is not None
        weights = output.source_attention
        weights = weights.to(torch.promote_types(weights.dtype, torch.float32))
        totals = layout.pad(weights).sum(1)  # [B, longest source]
        return ((1 - totals).square() * batch.inputs.source.layout.attention_mask()).sum()
    return model.loss(name, hidden, layout, t.rows, t.labels, t.label_smoothing)


@torch.no_grad()
def evaluate_batch(model: Model, batch: Batch) -> dict[str, tuple[float, int, int]]:
    """Return (summed cross entropy, number of correct predictions, count) of each term that has a head."""
    hidden = batch.forward(model).hidden
    scores = {}
    for name, targets in batch.targets.items():
        if name not in model.heads:
            continue
        loss_sum = torch.zeros((), device=hidden.device)
        num_correct = torch.zeros((), dtype=torch.int64, device=hidden.device)
        for rows, labels in zip(targets.rows.split(EVAL_CHUNK_ROWS), targets.labels.split(EVAL_CHUNK_ROWS)):
            logits = model.predict(name, hidden, batch.inputs.layout, rows).float()
            loss_sum += F.cross_entropy(logits, labels, ignore_index=IGNORE_INDEX, reduction="sum")
            num_correct += (logits.argmax(-1) == labels).sum()
        scores[name] = (loss_sum.item(), int(num_correct), targets.count)
    return scores


@torch.no_grad()
def evaluate_sparse_batch(model: Model, batch: SparseUpdateBatch) -> dict[str, tuple[float, int, int]]:
    """Return (summed loss, 0, count) of the term of a batch of word2vec or GloVe; nothing is correct or wrong."""
    loss, _ = model.compute_sparse_grads(batch.term, batch.examples, with_loss=True)
    assert loss is not None
    return {batch.term: (float(loss), 0, batch.count)}

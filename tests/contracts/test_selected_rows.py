"""The last layer computed only for the rows that heads read: equal states, losses and gradients, for every family."""

from dataclasses import replace

import pytest
import torch

from polyseme.errors import UnsupportedError
from polyseme.nn import model as model_module
from polyseme.nn.packing import Inputs, PackedLayout
from polyseme.objectives.losses import compute_losses
from tests.support import cases

SELECTING = [name for name in cases.NAMES if cases.tiny_model(name).trunk.supports_rows]


def compute_step(model, batch):
    """Return the losses and the gradients of a step."""
    model.zero_grad(set_to_none=True)
    losses = compute_losses(model, batch)
    torch.stack(list(losses.values())).sum().backward()
    return losses, {name: p.grad.clone() for name, p in model.named_parameters() if p.grad is not None}


@pytest.mark.parametrize("family", cases.NAMES)
def test_states_of_some_rows_equal_those_of_all(family):
    model, tokens = cases.tiny_model(family), torch.cat(cases.sequences(cases.LENGTHS))
    layout, rows = PackedLayout.from_lengths(cases.LENGTHS), torch.tensor([3, 0, 3, 17, 40])
    inputs = Inputs(tokens, layout, cases.segments_of(layout, family))
    selected = replace(inputs, rows=rows)
    if family not in SELECTING:
        with pytest.raises(UnsupportedError, match="does not support rows"):
            model.trunk(selected)
        return
    torch.testing.assert_close(model.trunk(selected).hidden, model.trunk(inputs).hidden[rows], atol=1e-12, rtol=0)
    with pytest.raises(UnsupportedError, match="all states of the last layer"):
        model.trunk(selected, layers=[model.config.trunk.num_layers])


@pytest.mark.parametrize("family", SELECTING)
def test_losses_and_gradients_are_those_of_all_rows(family, monkeypatch):
    model = cases.tiny_model(family)
    batch = cases.training_batch(model, cases.sequences(cases.LENGTHS))
    monkeypatch.setattr(model_module, "MAX_ROW_SHARE", 0.0)
    losses, gradients = compute_step(model, batch)
    monkeypatch.setattr(model_module, "MAX_ROW_SHARE", 10.0)
    selected_losses, selected_gradients = compute_step(model, batch)
    torch.testing.assert_close(selected_losses, losses, atol=1e-10, rtol=0)
    torch.testing.assert_close(selected_gradients, gradients, atol=1e-10, rtol=0)


@pytest.mark.parametrize("family", SELECTING)
def test_classification_is_that_of_all_rows(family, monkeypatch):
    spec = cases.tiny_spec(family)
    head = cases.family_of(family).task_head("classify", ("no", "yes"), spec.trunk)
    model = spec.replace(heads={"classify": head}).build(seed=1).double().eval()
    batch = cases.training_batch(model, cases.sequences(cases.LENGTHS))
    monkeypatch.setattr(model_module, "MAX_ROW_SHARE", 0.0)
    losses, gradients = compute_step(model, batch)
    states = model.trunk(batch.inputs).hidden
    scores = model.predict("classify", states, batch.inputs.layout)
    monkeypatch.setattr(model_module, "MAX_ROW_SHARE", 10.0)
    selected_losses, selected_gradients = compute_step(model, batch)
    torch.testing.assert_close(selected_losses, losses, atol=1e-10, rtol=0)
    torch.testing.assert_close(selected_gradients, gradients, atol=1e-10, rtol=0)
    hidden, selected = batch.forward_for_head(model, "classify")
    pools_one_token = spec.trunk.pooler.pooling in ("first", "last")
    assert len(hidden) == (len(cases.LENGTHS) if pools_one_token else len(states))
    found = model.predict("classify", hidden, selected.inputs.layout, selected.targets["classify"].rows)
    torch.testing.assert_close(found, scores, atol=1e-12, rtol=0)


@pytest.mark.parametrize("family", ["bert", "roberta", "albert", "distilbert", "spanbert", "xlnet"])
def test_masked_models_compute_few_rows(family, monkeypatch):
    monkeypatch.setattr(model_module, "MAX_ROW_SHARE", 10.0)
    model, num_rows = cases.tiny_model(family), []
    batch = cases.training_batch(model, cases.sequences(cases.LENGTHS))
    model.trunk.layers()[-1].ffn.register_forward_pre_hook(lambda module, args: num_rows.append(len(args[0])))
    compute_losses(model, batch)
    selections = model.select_rows({name: t.rows for name, t in batch.targets.items()}, batch.inputs.layout)
    assert num_rows[-1] == sum(len(each.state_rows) for each in selections.values())

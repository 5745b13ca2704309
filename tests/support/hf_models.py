"""Models of `transformers` with random weights, converted to ours for comparison."""

from collections.abc import Mapping

import torch

from polyseme.families import FAMILIES
from polyseme.families.family import FIXED_LABELS
from polyseme.nn.model import Model, ModelConfig
from polyseme.weights.convert import from_published


def randomize(model: torch.nn.Module) -> torch.nn.Module:
    """Add noise to all parameters, so that a swapped or missing bias or norm is noticed."""
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(torch.randn_like(parameter) * 0.1)
    return model


def convert_model(
    hf_model,
    family_name: str,
    heads: tuple[str, ...] | None = None,
    labels: tuple[str, ...] = ("LABEL_0", "LABEL_1"),
    tensors: Mapping[str, torch.Tensor] | None = None,
) -> Model:
    """Return our model with the weights of a model of `transformers`; only the pooler may be missing.

    Its heads are `heads`, by default all pre-training heads.
    """
    family, tensors = FAMILIES[family_name], hf_model.state_dict() if tensors is None else tensors
    trunk = family.from_hf_config({**hf_model.config.to_dict(), "tensors": list(tensors)})
    pretraining_heads = family.pretraining_heads(trunk)
    head_configs = {
        name: pretraining_heads.get(name) or family.task_head(name, FIXED_LABELS.get(name, labels), trunk)
        for name in (pretraining_heads if heads is None else heads)
    }
    model = ModelConfig(family_name, trunk, head_configs).build().eval()
    shapes = {name: tensor.shape for name, tensor in model.state_dict().items()}
    converted = from_published(family, model.config, shapes, tensors, "test")
    assert all(name.startswith("trunk.pooler.") for name in shapes.keys() - converted.keys())
    model.load_state_dict(converted, strict=False)
    return model

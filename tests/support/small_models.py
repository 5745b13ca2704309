"""Model folders with random weights, small and quickly built: pre-trained ones, and task models over BERT."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch

from polyseme.families import FAMILIES
from polyseme.tasks.base import TaskConfig
from polyseme.text.tokenizer import Tokenizer
from polyseme.weights.folder import save_model
from tests.support.cases import supported_args
from tests.support.text import documents


def save_small_model(
    path: Path,
    family_name: str,
    task: TaskConfig | None = None,
    metadata: Mapping[str, Any] | None = None,
    **arguments: Any,
) -> Path:
    """Write a model folder of one layer, with the head of a task if there is one; `arguments` are for its trunk."""
    family = FAMILIES[family_name]
    tokenizer = Tokenizer.train(family.tokenizer, iter(documents(20, seed=5)), 300)
    sizes = supported_args(family, num_layers=1, dim=8, num_heads=2, vocab_size=tokenizer.vocab_size, max_len=32)
    config = family.model_config(**sizes | arguments)
    if task:
        config = config.replace(heads=task.heads(family, config.trunk))
    model = config.build(seed=1)
    generator = torch.Generator().manual_seed(2)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(torch.randn(parameter.shape, generator=generator) * 0.2)
    save_model(path, model, tokenizer, {**({"task": task.to_json()} if task else {}), **(metadata or {})})
    return path

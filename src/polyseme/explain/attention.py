"""Which tokens look at which: the attention probabilities of every layer and head."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from polyseme.inference.language_model import LanguageModel
from polyseme.nn.packing import Layout


@torch.inference_mode()
def attention_maps(model: LanguageModel, text: str, pair: str | None = None) -> tuple[list[str], np.ndarray]:
    """The pieces read, and probabilities [layers, heads, queries, keys]; each row sums to one."""
    encoded = model.encode(text, pair)
    trunk: Any = model.model.trunk
    model.model.spec.transformer  # noqa: B018  # or one line that says that there is no attention
    layout = Layout.of([len(encoded["ids"])], device=model.device)
    tokens = torch.tensor(encoded["ids"], device=model.device)
    segments = torch.tensor(encoded["segments"], device=model.device) if trunk.spec.num_segments else None
    depth = trunk.spec.num_layers
    reading = trunk(tokens, layout, segments, keep=range(depth))
    _, relations = trunk.relations(reading.layers[0], layout, segments, None, None)
    maps = [
        block.attention_weights(reading.layers[i], layout, relations)[0].float().cpu().numpy()
        for i, block in enumerate(trunk.depths())
    ]
    return encoded["pieces"], np.stack(maps)

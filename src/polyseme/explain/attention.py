"""Which tokens look at which: the attention probabilities of every layer and head."""

from __future__ import annotations

import numpy as np
import torch

from polyseme.language_model import LanguageModel
from polyseme.parts.layout import Layout


@torch.inference_mode()
def attention_maps(model: LanguageModel, text: str, pair: str | None = None) -> tuple[list[str], np.ndarray]:
    """The pieces read, and probabilities [layers, heads, queries, keys]; each row sums to one."""
    encoded = model.encode(text, pair)
    trunk = model.model.trunk
    layout = Layout.of([len(encoded["ids"])], device=model.device)
    tokens = torch.tensor(encoded["ids"], device=model.device)
    segments = torch.tensor(encoded["segments"], device=model.device) if trunk.spec.embeddings.num_segments else None
    depth = trunk.spec.num_layers
    reading = trunk(tokens, layout, segments, keep=range(depth))
    bias = trunk.score_bias(layout.longest)
    maps = [
        block.attention_weights(reading.layers[i], layout, bias)[0].float().cpu().numpy()
        for i, block in enumerate(trunk.depths())
    ]
    return encoded["pieces"], np.stack(maps)

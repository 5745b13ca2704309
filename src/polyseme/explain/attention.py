"""Self-attention probabilities of every layer and head."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch

from polyseme.errors import UnsupportedError
from polyseme.explain.explanation import Explanation
from polyseme.explain.translation import explain_translation
from polyseme.inference.base import LanguageModel
from polyseme.inference.load import load_neural
from polyseme.nn.packing import Inputs, PackedLayout


@torch.inference_mode()
def attention_maps(model: LanguageModel, text: str, pair: str | None = None) -> tuple[list[str], np.ndarray]:
    """Return the tokens of a text and probabilities [layers, heads, queries, keys]; each row sums to one."""
    network = load_neural(model)
    encoded = network.encode(text, pair)
    trunk: Any = getattr(network.model.trunk, "encoder", network.model.trunk)
    network.model.config.transformer  # noqa: B018 (raises an error if the model has no attention)
    layout = PackedLayout.from_lengths([len(encoded.input_ids)], device=network.device)
    tokens = torch.tensor(encoded.input_ids, device=network.device)
    segments = torch.tensor(encoded.token_type_ids, device=network.device) if trunk.config.num_segments else None
    num_layers = trunk.config.num_layers
    inputs = trunk.config.omit_unsupported(Inputs(tokens, layout, segments))
    output = trunk(inputs, layers=range(num_layers))
    _, position_info = trunk.position_bias(output.layers[0], inputs, None)
    blocks = enumerate(trunk.layers())
    weights = (block.attention_weights(output.layers[i], layout, position_info) for i, block in blocks)
    return encoded.tokens, np.stack([layer[0].float().cpu().numpy() for layer in weights])


def explain_attention(models: Sequence[LanguageModel], texts: Sequence[str], **settings: Any) -> Explanation:
    """Show the attention of one or two models on one or two texts."""
    network = load_neural(models[0])
    if not network.is_seq2seq:
        raise UnsupportedError(f"{network.path} cannot translate")
    page = explain_translation(network, texts[0], **settings)
    return Explanation(page, {}, {}, f"the translation of {texts[0]!r}")

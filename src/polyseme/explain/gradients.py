"""Gradient norms by distance, which show how gradients vanish in vanilla RNNs."""

from typing import Any

import numpy as np
import torch

from polyseme.errors import ConfigError, DataError, UnsupportedError
from polyseme.inference.neural_lm import NeuralLM
from polyseme.nn.packing import Inputs, PackedLayout
from polyseme.report.charts import Series, line_chart
from polyseme.report.svg import Axis, standalone_svg


def gradients_by_distance(
    model: NeuralLM, texts: list[str], max_distance: int = 50, num_windows: int = 64
) -> np.ndarray:
    """Return the mean norm of ∂loss/∂embedding by distance, [max_distance + 1] (Pascanu et al. 2013).

    The texts are concatenated and read in windows. The loss is that of the prediction after the last token of a window,
    which is at distance 0. A model cannot learn from a token whose gradient vanishes (Bengio et al. 1994).
    """
    network = model.model
    if "next" not in network.heads or not network.config.trunk.causal:
        raise UnsupportedError(f"{model.path} is not a causal language model")
    if not 1 <= max_distance < model.max_len:
        limit = f"expected 1 to {model.max_len - 1} for a model that reads {model.max_len} tokens"
        raise ConfigError(f"max_distance is {max_distance}, {limit}")
    ids = np.concatenate([model.tokenizer.encode(text) for text in texts] or [[]]).astype(np.int64)
    if len(ids) < max_distance + 2:
        raise DataError(f"the texts have {len(ids)} tokens, expected {max_distance + 2} or more")
    starts = np.unique(np.linspace(0, len(ids) - max_distance - 2, num_windows).astype(np.int64))
    token_windows = torch.from_numpy(ids[starts[:, None] + np.arange(max_distance + 2)]).to(model.device)
    layout = PackedLayout.from_lengths([max_distance + 1] * len(starts), device=model.device)
    vectors: list[torch.Tensor] = []

    def record(module: Any, inputs: Any, output: torch.Tensor) -> torch.Tensor:
        vectors.append(output.detach().requires_grad_())
        return vectors[0]

    trunk: Any = network.trunk
    previous, hook = getattr(trunk, "use_reference", False), trunk.embeddings.register_forward_hook(record)
    trunk.use_reference = True  # cuDNN has no backward pass outside of training
    try:
        hidden = trunk(Inputs(token_windows[:, :-1].reshape(-1), layout)).hidden
        loss = network.loss("next", hidden, layout, layout.last_indices, token_windows[:, -1])
        (grads,) = torch.autograd.grad(loss, vectors)
    finally:
        hook.remove()
        trunk.use_reference = previous
    return grads.float().view(len(starts), max_distance + 1, -1).norm(dim=-1).mean(0).flip(0).cpu().numpy()


def plot_gradients(curves: dict[str, np.ndarray]) -> str:
    """Draw one line per model on a logarithmic axis; return the content of an SVG file."""
    series = [Series(name, list(enumerate(norms.tolist()))) for name, norms in curves.items()]
    x, y = Axis("distance in tokens", integers=True), Axis("norm of the gradient", log=True)
    return standalone_svg(line_chart(series, x, y, height=340, direct_labels=True))

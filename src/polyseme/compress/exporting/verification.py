"""Check that an exported graph computes what the model computes."""

from collections.abc import Callable, Sequence

import numpy as np
import torch

from polyseme.compress.exporting.graph import GraphOutput, compute_outputs
from polyseme.errors import ModelError
from polyseme.inference.neural_lm import NeuralLM
from polyseme.nn.packing import Inputs, PackedLayout

TOLERANCE = 1e-4  # of outputs in float32, relative to the largest one if that is over 1
MAX_CHECKED_LENGTH = 512
GraphRunner = Callable[[dict[str, np.ndarray]], Sequence[np.ndarray]]


def checked_shapes(min_len: int, max_len: int) -> list[tuple[int, int]]:
    """Return four shapes (batch, length): the smallest, a long text, a few texts, and many short ones."""
    longest = min(max_len, MAX_CHECKED_LENGTH)
    return [(1, min_len), (1, longest), (3, min(17, longest)), (8, min(5, longest))]


@torch.inference_mode()
def measure_difference(
    network: NeuralLM, outputs: Sequence[GraphOutput], run: GraphRunner, shapes: Sequence[tuple[int, int]]
) -> float:
    """Return the largest difference between a graph and the packed model, at some shapes with uneven lengths."""
    rng = np.random.default_rng(0)
    trunk = network.model.config.trunk
    differences: list[float] = []
    for batch_size, length in shapes:
        lengths = rng.integers(1, length + 1, batch_size)
        lengths[0] = length
        mask = np.arange(length) < lengths[:, None]
        feeds = {
            "input_ids": rng.integers(0, network.tokenizer.vocab_size, mask.shape),
            "attention_mask": mask.astype(np.int64),
        }
        if trunk.num_segments:
            feeds["token_type_ids"] = rng.integers(0, trunk.num_segments, mask.shape)
        flat = {name: torch.from_numpy(values[mask]).to(network.device) for name, values in feeds.items()}
        layout = PackedLayout.from_lengths(lengths, device=network.device)
        inputs = Inputs(flat["input_ids"], layout, flat.get("token_type_ids"))
        expected = compute_outputs(network.model, outputs, inputs, network.folder.pooling)
        for output, tensor, actual in zip(outputs, expected, run(feeds), strict=True):
            differences.append(relative_difference(actual[mask] if output.per_token else actual, tensor))
    return float(np.max(differences))  # NaN if one is


def relative_difference(actual: np.ndarray, expected: torch.Tensor) -> float:
    """Return the largest difference, relative to the largest expected number if that is over 1."""
    reference = expected.float().cpu().numpy()
    return float(np.abs(actual - reference).max()) / max(1.0, float(np.abs(reference).max()))


def check_difference(network: NeuralLM, difference: float) -> float:
    """Return the difference of a graph from the model; raise `ModelError` if it is larger than the tolerance."""
    if not difference <= TOLERANCE:  # also NaN
        raise ModelError(
            f"the exported graph of {network.path} differs from the model by {difference:.2g}, more than "
            f"{TOLERANCE:g}: nothing was written; please report this"
        )
    return difference

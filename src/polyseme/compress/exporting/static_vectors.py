"""Static vectors distilled from an encoder: each token of the vocabulary is encoded alone (model2vec).

The vector of a token is that of a text of this token only. Principal components reduce the vectors, and a weight by
frequency (Arora et al. 2017, SIF) makes frequent tokens short. The probability of a token is taken from its rank in the
vocabulary by Zipf's law, so no text is needed. The vector of a text is then the mean of those of its tokens.
"""

from functools import partial
from pathlib import Path

import numpy as np
import torch

from polyseme.compress.examples import QualityExamples
from polyseme.compress.exporting.evaluation import check_static_examples, static_spearman
from polyseme.compress.result import (
    SAMPLE_TEXTS,
    CompressionResult,
    CompressionRow,
    count_megabytes,
    describe_cpu,
    median_ms,
)
from polyseme.errors import ConfigError, UnsupportedError
from polyseme.families import FAMILIES
from polyseme.inference.load import load
from polyseme.inference.neural_lm import NeuralLM
from polyseme.inference.packed_model import mean_pool, packed_batches
from polyseme.io.hashes import hashed_directory
from polyseme.nn.trunks.shallow import StaticEmbeddingTrunkConfig
from polyseme.train.loop import count_parameters
from polyseme.weights.folder import save_model

DEFAULT_DIM = 256
SIF_COEFFICIENT = 1e-4


def write_static_vectors(
    network: NeuralLM, path: Path, dim: int | None = None, examples: QualityExamples | None = None
) -> CompressionResult:
    """Write a model folder of word vectors; compare size, time and, with examples, the metric with the encoder's."""
    trunk = network.model.config.trunk
    check_static_examples(examples)
    if isinstance(trunk, StaticEmbeddingTrunkConfig):
        raise UnsupportedError(f"{network.path} is a table of static vectors already")
    dim = min(DEFAULT_DIM, trunk.dim) if dim is None else dim
    if not 0 <= dim <= trunk.dim:
        raise ConfigError(f"`dim` is {dim}, but vectors of the model have {trunk.dim} dimensions (0 for all)")
    token_ids = [i for i in range(network.tokenizer.vocab_size) if i not in network.tokenizer.all_special_ids]
    vectors = reduce_dimensions(encode_tokens(network, token_ids), dim)
    vectors *= sif_weights(len(token_ids))[:, None]
    settings = {"dim": vectors.shape[1], "vocab_size": network.tokenizer.vocab_size}
    model = FAMILIES["word2vec"].model_config(with_heads=False, **settings).build(0)
    table = model.trunk.token_embeddings.data.zero_()
    table[token_ids] = torch.from_numpy(vectors.astype(np.float32))
    source = {"static_vectors_of": network.name, "sif_coefficient": SIF_COEFFICIENT}
    with hashed_directory(path) as folder:
        save_model(folder, model, network.tokenizer, source)
        static = load(folder)
        times = median_ms([partial(each.embed, truncate=True) for each in (network, static)], SAMPLE_TEXTS)
        rows = [
            CompressionRow.compare("megabytes", count_megabytes(network.path), count_megabytes(folder)),
            CompressionRow.compare("parameters", count_parameters(network.model), count_parameters(model)),
            CompressionRow.compare("ms per text", *times),
        ]
        if examples is not None:
            scores = examples.evaluate(network), static_spearman(examples, static)
            rows.append(CompressionRow.compare(examples.metric, *scores))
        record = {"format": "static", "num_tokens": len(token_ids), "device": describe_cpu(), **settings}
        notes = (f"Static vectors of {len(token_ids):,} tokens, computed by {network.name}.",)
        exported = CompressionResult(tuple(rows), path, record, notes=notes)
        exported.save(folder)
    return exported


@torch.inference_mode()
def encode_tokens(network: NeuralLM, token_ids: list[int]) -> np.ndarray:
    """Return the mean state of each token in a text of its own, with the special tokens of a text, [tokens, dim]."""
    sequences = [network.tokenizer.build_inputs_with_special_tokens([token_id]) for token_id in token_ids]
    ids, segments = ([np.array(row) for row in rows] for rows in zip(*sequences))
    vectors = np.empty((len(token_ids), network.model.config.trunk.dim), np.float32)
    used_segments = segments if network.model.config.trunk.num_segments else None
    for batch in packed_batches(ids, used_segments, network.max_batch_tokens, network.device):
        hidden = network.model.trunk(batch.inputs).hidden
        vectors[batch.indices] = mean_pool(hidden, batch.inputs.layout).cpu().numpy()
    return vectors


def reduce_dimensions(vectors: np.ndarray, dim: int) -> np.ndarray:
    """Return the first principal components of centered vectors, in float64; all dimensions if `dim` is 0."""
    centered = vectors.astype(np.float64) - vectors.mean(0, dtype=np.float64)
    if dim in (0, vectors.shape[1]):
        return centered
    _, components = np.linalg.eigh(centered.T @ centered)  # in ascending order of their variance
    return centered @ components[:, ::-1][:, :dim]


def sif_weights(num_tokens: int) -> np.ndarray:
    """Return the weight a / (a + p) of each rank, where p is the token's probability by Zipf's law."""
    inverse_ranks = 1 / np.arange(2, num_tokens + 2)
    return SIF_COEFFICIENT / (SIF_COEFFICIENT + inverse_ranks / inverse_ranks.sum())

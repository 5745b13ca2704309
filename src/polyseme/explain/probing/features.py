"""The vectors of spans of words at every layer of a model, and of the same model with random weights."""

from collections.abc import Sequence
from copy import deepcopy
from dataclasses import replace
from itertools import groupby

import numpy as np
import torch

from polyseme.errors import ConfigError, UnsupportedError
from polyseme.explain.probing.items import Combination, ProbeData
from polyseme.inference.base import LanguageModel
from polyseme.inference.feature_extraction import MAX_BATCH_TOKENS, ElmoModel, FeatureEncoder
from polyseme.inference.neural_lm import NeuralLM
from polyseme.inference.word_vectors import WordVectors
from polyseme.nn.layers.char_cnn import CharCNN
from polyseme.nn.sizes import available_memory
from polyseme.nn.trunks.encoder_decoder import EncoderDecoder
from polyseme.tasks.base import Words

LayerVectors = dict[int, np.ndarray]  # float32 [spans, dim] by layer
MAX_CPU_BATCH_TOKENS = 1024  # 1.4 times as fast as 16,384
MAX_MEMORY_SHARE = 0.5  # of the free memory, for vectors


def build_encoder(model: LanguageModel) -> FeatureEncoder:
    """Return the part of a loaded model that computes vectors of words; a model without any is an error."""
    if isinstance(model, ElmoModel):
        return model.encoder
    network = model.to_neural() if isinstance(model, WordVectors) else model
    if not isinstance(network, NeuralLM):
        raise UnsupportedError(f"{model.path} is {model.description}: it has no vectors of words to probe")
    trunk = network.model.trunk
    if isinstance(getattr(trunk, "embeddings", None), CharCNN):
        return FeatureEncoder(model.path, network.model, None)
    tokenizer = network.tokenizer
    needs_eos = isinstance(trunk, EncoderDecoder)  # as the sources of its training had
    return FeatureEncoder(model.path, network.model, tokenizer.with_eos() if needs_eos else tokenizer)


def untrained_copy(encoder: FeatureEncoder, seed: int) -> FeatureEncoder:
    """Return the same architecture and tokenizer with random weights, the embeddings included."""
    model = deepcopy(encoder.model).cpu()
    model.initialize(torch.Generator().manual_seed(seed))
    return replace(encoder, model=model.to(encoder.device))


def select_layers(encoder: FeatureEncoder, layers: Sequence[int] | None) -> list[int]:
    """Return the layers to probe, by default all; layer 0 is the embeddings."""
    first = 1 if encoder.is_character_level else 0  # characters are no words
    existing = range(first, encoder.num_layers)
    if layers is None:
        return list(existing)
    if not layers or (missing := sorted(set(layers) - set(existing))):
        shown = f"has no layer {missing[0]}" if layers else "needs a layer"
        raise ConfigError(f"{encoder.path} {shown}: `layers` are {existing[0]} to {existing[-1]}")
    return sorted(set(layers))


def extract_vectors(
    encoder: FeatureEncoder, sentences: Sequence[Words], spans: np.ndarray, layers: Sequence[int]
) -> LayerVectors:
    """Return the mean vector of the words of each span, by layer; `spans` is (sentence, first word, end), [spans, 3].

    Every sentence is read once, unless its layers differ in size. All vectors are held in memory.
    """
    check_vector_memory(encoder, len(spans), layers)
    vectors = {layer: np.zeros((len(spans), encoder.layer_dims[layer]), np.float32) for layer in layers}
    order = np.argsort(spans[:, 0], kind="stable")
    bounds = np.searchsorted(spans[order, 0], np.arange(len(sentences) + 1))
    sizes = (spans[:, 2] - spans[:, 1]).astype(np.float32)
    is_small = encoder.device.type == "cpu" and encoder.tokenizer is not None
    batch_tokens = MAX_CPU_BATCH_TOKENS if is_small else MAX_BATCH_TOKENS
    by_size = sorted(layers, key=lambda layer: encoder.layer_dims[layer])
    for _, group in groupby(by_size, key=lambda layer: encoder.layer_dims[layer]):
        members = list(group)
        for chunk, states in encoder.extract(sentences, members, batch_tokens):  # states [words, layers, dim]
            rows = order[bounds[chunk.sentence] : bounds[chunk.sentence + 1]]
            starts = np.clip(spans[rows, 1] - chunk.first_word, 0, len(states))
            ends = np.clip(spans[rows, 2] - chunk.first_word, 0, len(states))
            is_inside = ends > starts
            for row, start, end in zip(rows[is_inside], starts[is_inside], ends[is_inside]):
                span_mean = states[start:end].sum(0) / sizes[row]
                for position, layer in enumerate(members):
                    vectors[layer][row] += span_mean[position]
    return vectors


def check_vector_memory(encoder: FeatureEncoder, num_spans: int, layers: Sequence[int]) -> None:
    """Raise an error if the vectors of all layers would take more than half of the free memory."""
    needed, free = 4 * num_spans * sum(encoder.layer_dims[layer] for layer in layers), available_memory()
    if free is not None and needed > MAX_MEMORY_SHARE * free:
        size = f"{num_spans:,} vectors at {len(layers)} layers take {needed / 2**30:.1f} GiB"
        hint = "lower `max_examples`, or choose fewer `layers`"
        raise ConfigError(
            f"{encoder.path}: {size}, more than half of the {free / 2**30:.1f} GiB of free memory: {hint}"
        )


def collect_spans(data: ProbeData) -> tuple[np.ndarray, np.ndarray]:
    """Return the different spans of all items, [spans, 3], and the spans of each item, [items, 1 or 2]."""
    index: dict[tuple[int, int, int], int] = {}
    rows = [[index.setdefault(span, len(index)) for span in example.spans] for example in data.items]
    if len({len(row) for row in rows}) > 1:
        raise ConfigError(f"{data.name}: some examples have a second text and some have none")
    return np.array(list(index), dtype=np.int64), np.array(rows, dtype=np.int64)


def combine_vectors(vectors: np.ndarray, item_spans: np.ndarray, combination: Combination) -> np.ndarray:
    """Return the features of each item, [items, features], from the vectors u and v of its one or two spans.

    They are u (`single`), u and v (`concat`), u, v, |u − v| and u ⊙ v (`pair`, Conneau et al. 2017, §3.1), or |u − v|,
    u ⊙ v and the cosine of u and v scaled to length one (`compare`), which do not tell u from v.
    """
    first = vectors[item_spans[:, 0]]
    if combination == "single":
        return first
    second = vectors[item_spans[:, 1]]
    if combination == "concat":
        return np.concatenate([first, second], axis=1)
    if combination == "compare":
        first, second = (x / np.maximum(np.linalg.norm(x, axis=1, keepdims=True), 1e-12) for x in (first, second))
        products = first * second
        return np.concatenate([np.abs(first - second), products, products.sum(1, keepdims=True)], axis=1)
    return np.concatenate([first, second, np.abs(first - second), first * second], axis=1)

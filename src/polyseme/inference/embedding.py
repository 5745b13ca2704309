"""Vectors of texts, words, and tokens."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from polyseme.errors import ConfigError, DataError, suggest
from polyseme.inference.base import Granularity
from polyseme.inference.packed_model import PackedBatch, PackedModel, mean_pool, to_host_async
from polyseme.nn.layer_selection import LayerSelection
from polyseme.nn.packing import PackedLayout
from polyseme.text.cached_encoder import concat_ranges
from polyseme.weights.pooling import TextPooling

_TEXT = -1  # stands for a text among special tokens
GRANULARITIES: tuple[Granularity, ...] = ("token", "word", "text")


def check_granularity(granularity: str) -> None:
    """Raise if there are no vectors of such units."""
    if granularity not in GRANULARITIES:
        raise ConfigError(f"granularity is {granularity!r}; {suggest(granularity, GRANULARITIES)}")


@dataclass(frozen=True, eq=False)
class EncodedSequences:
    """Texts with special tokens, concatenated: their token ids and segment ids, and the tokens that start a word."""

    ids: np.ndarray  # int32 [T]
    segments: np.ndarray  # int32 [T]
    word_starts: np.ndarray  # bool, without special tokens
    lengths: np.ndarray  # int64 [number of texts]

    def __len__(self) -> int:
        return len(self.lengths)

    @classmethod
    def concat(cls, parts: "Sequence[EncodedSequences]") -> "EncodedSequences":
        """Return the texts of all parts."""
        arrays = zip(*((part.ids, part.segments, part.word_starts, part.lengths) for part in parts))
        return cls(*map(np.concatenate, arrays))


def embed_texts(
    packed: PackedModel, texts: Sequence[str], layers: str | int, granularity: Granularity, truncate: bool
) -> np.ndarray | list[np.ndarray]:
    """Compute one vector per text, [texts, dim], or a list with the vectors of each text's words or tokens."""
    return embed_sequences(packed, encode_texts(packed, texts, granularity, truncate), layers, granularity)


def encode_texts(
    packed: PackedModel, texts: Sequence[str], granularity: Granularity, truncate: bool
) -> EncodedSequences:
    """Encode texts as `embed_sequences` takes them."""
    check_granularity(granularity)
    if granularity != "text":
        return _encode(packed, texts, truncate, packed.max_len)
    packed.pooling.check()
    texts = [text.lower() for text in texts] if packed.pooling.lowercase else texts
    return _encode(packed, texts, truncate, packed.max_pooled_len)


def embed_sequences(
    packed: PackedModel, sequences: EncodedSequences, layers: str | int, granularity: Granularity
) -> np.ndarray | list[np.ndarray]:
    """Compute what `embed_texts` does of encoded texts."""
    if granularity == "text":
        vectors = _no_vectors(packed, layers)
        for index, means in to_host_async(_iter_pooled(packed, sequences, layers)):
            vectors = vectors if len(vectors) else np.empty((len(sequences), *means.shape[1:]), dtype=np.float32)
            vectors[index] = means
        return vectors
    selection = LayerSelection.parse(layers)
    indices = selection.indices(packed.model.trunk.config.num_layers)
    rows: list[Any] = [None] * len(sequences)
    num_prefix = packed.tokenizer.build_inputs_with_special_tokens([-1])[0].index(-1)
    num_suffix = packed.tokenizer.num_special_tokens_to_add() - num_prefix
    word_starts = np.split(sequences.word_starts, np.cumsum(sequences.lengths - num_prefix - num_suffix)[:-1])
    for batch, hidden in _batch_states(packed, sequences, selection, indices):
        for i, part in zip(batch.indices, hidden.split(list(batch.inputs.layout.lengths))):
            rows[i] = part.float().cpu().numpy()
            if granularity == "word":
                starts = np.flatnonzero(word_starts[i])
                rows[i] = _mean_per_word(rows[i][num_prefix : len(rows[i]) - num_suffix], starts)
    return rows


def _no_vectors(packed: PackedModel, layers: str | int) -> np.ndarray:
    """Return the vectors of no texts."""
    selection, trunk = LayerSelection.parse(layers), packed.model.trunk.config
    states = [torch.empty(0, trunk.dim) for _ in selection.indices(trunk.num_layers)]
    return selection.combine(states).numpy()


def iter_text_vectors(
    packed: PackedModel, texts: Sequence[str], layers: str | int, truncate: bool
) -> Iterator[tuple[np.ndarray, Tensor]]:
    """Yield the indices and the vectors of batches of texts, with gradients unless these are disabled."""
    return _iter_pooled(packed, encode_texts(packed, texts, "text", truncate), layers)


def _iter_pooled(
    packed: PackedModel, sequences: EncodedSequences, layers: str | int
) -> Iterator[tuple[np.ndarray, Tensor]]:
    selection = LayerSelection.parse(layers)
    indices = selection.indices(packed.model.trunk.config.num_layers)
    for batch, hidden in _batch_states(packed, sequences, selection, indices):
        yield batch.indices, _pool(hidden, batch.inputs.layout, packed.pooling)


def _batch_states(
    packed: PackedModel, sequences: EncodedSequences, selection: LayerSelection, layers: Sequence[int]
) -> Iterator[tuple[PackedBatch, Tensor]]:
    for batch in packed.split(sequences.ids, sequences.segments, sequences.lengths):
        layer_states = packed.model.trunk(batch.inputs, layers=layers).layers
        yield batch, selection.combine([layer_states[layer] for layer in layers])


def _pool(hidden: Tensor, layout: PackedLayout, pooling: TextPooling) -> Tensor:
    """Return the vector of each sequence in float32."""
    if pooling.mode == "mean":
        vectors = mean_pool(hidden, layout)
    elif pooling.mode == "cls":
        vectors = hidden.index_select(0, layout.first_indices).float()
    else:
        vectors = layout.max_pool(hidden.float())
    return F.normalize(vectors, dim=-1) if pooling.normalize else vectors


def _encode(packed: PackedModel, texts: Sequence[str], truncate: bool, max_len: int) -> EncodedSequences:
    tokenizer = packed.tokenizer
    encoded = tokenizer.encode_corpus(list(texts))
    template, segment_template = tokenizer.build_inputs_with_special_tokens([_TEXT])
    num_prefix, num_special = template.index(_TEXT), len(template) - 1
    lengths = encoded.lengths
    is_invalid = lengths == 0 if truncate else (lengths == 0) | (lengths > max_len - num_special)
    if is_invalid.any():
        first = int(is_invalid.argmax())
        if not lengths[first]:
            raise DataError(f"the text has no tokens: {texts[first]!r}")
        packed.check_length(int(lengths[first]) + num_special, texts[first], max_len)
    ids, word_starts = encoded.ids, encoded.word_starts
    if truncate and (lengths > max_len - num_special).any():
        lengths = np.minimum(lengths, max_len - num_special)
        rows = concat_ranges(encoded.offsets, lengths)
        ids, word_starts = ids[rows], word_starts[rows]
    sizes = lengths + num_special
    ends, num_tokens = np.cumsum(sizes), len(ids) + num_special * len(sizes)
    input_ids, is_text = np.empty(num_tokens, np.int32), np.ones(num_tokens, bool)
    text_segment = segment_template[num_prefix]
    segment_ids = np.full(num_tokens, text_segment, np.int32)
    for position, (token_id, segment) in enumerate(zip(template, segment_template)):
        if position != num_prefix:
            places = ends - sizes + position if position < num_prefix else ends - len(template) + position
            input_ids[places], is_text[places] = token_id, False
            if segment != text_segment:
                segment_ids[places] = segment
    input_ids[is_text] = ids
    return EncodedSequences(input_ids, segment_ids, word_starts, sizes)


def _mean_per_word(vectors: np.ndarray, word_starts: np.ndarray) -> np.ndarray:
    sizes = np.diff(np.append(word_starts, len(vectors)))
    return np.add.reduceat(vectors, word_starts, axis=0) / sizes.reshape(-1, *[1] * (vectors.ndim - 1))

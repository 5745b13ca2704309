"""Attention weights as the page stores them: the largest of each row, and the rest as one value."""

import base64

import numpy as np

MAX_STORED = 16  # weights of each row
_SCALE = 65535  # a weight is a 16-bit fraction


def pack_weights(weights: np.ndarray) -> tuple[str, int]:
    """Return weights [layers, heads, queries, keys] in base64 and the number k of weights stored of each row.

    A row is 2k + 1 unsigned 16-bit integers: the keys of the k largest weights, largest first, these weights, and the
    sum of all others.
    """
    k = min(MAX_STORED, weights.shape[-1])
    packed = np.empty((*weights.shape[:3], 2 * k + 1), "<u2")
    for layer, values in enumerate(weights):  # one layer at a time, to bound the memory of a long text
        largest = np.argpartition(values, -k, axis=-1)[..., -k:] if k < values.shape[-1] else np.argsort(values)
        stored = np.take_along_axis(values, largest, -1)
        order = np.argsort(-stored, axis=-1, kind="stable")
        largest, stored = (np.take_along_axis(array, order, -1) for array in (largest, stored))
        rest = (
            np.clip(1 - stored.sum(-1, keepdims=True), 0, 1) if k < values.shape[-1] else np.zeros_like(stored[..., :1])
        )
        packed[layer] = np.concatenate([largest, np.rint(_SCALE * stored), np.rint(_SCALE * rest)], -1)
    return base64.b64encode(packed.tobytes()).decode(), k


def unpack_weights(text: str, k: int, shape: tuple[int, int, int, int]) -> tuple[np.ndarray, np.ndarray]:
    """Return weights [layers, heads, queries, keys], zero where not stored, and the rest of each row."""
    packed = np.frombuffer(base64.b64decode(text), "<u2").reshape(*shape[:3], 2 * k + 1)
    weights = np.zeros(shape)
    np.put_along_axis(weights, packed[..., :k].astype(np.int64), packed[..., k : 2 * k] / _SCALE, -1)
    return weights, packed[..., -1] / _SCALE

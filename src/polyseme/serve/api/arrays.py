"""Arrays in JSON: nested lists of numbers, or base64 of little-endian float32."""

import base64
import binascii
from collections.abc import Iterable
from typing import Any

import numpy as np

from polyseme.serve.api.schema import encode_json


def encode_array(array: np.ndarray, encoding_format: str) -> tuple[list[Any] | str, list[int]]:
    """Return an array as JSON, and its shape."""
    array = np.ascontiguousarray(array, dtype="<f4")
    data = base64.b64encode(array.data).decode() if encoding_format == "base64" else array.tolist()
    return data, list(array.shape)


def write_arrays(arrays: Iterable[np.ndarray], encoding_format: str) -> list[bytes]:
    """Return arrays as text in JSON, as `encode_array` encodes them."""
    contiguous = (np.ascontiguousarray(array, dtype="<f4") for array in arrays)
    if encoding_format == "base64":
        return [b'"%b"' % binascii.b2a_base64(array.data, newline=False) for array in contiguous]
    return [encode_json(array.tolist()) for array in contiguous]


def decode_array(data: list[Any] | str, shape: list[int]) -> np.ndarray:
    """Return the array that `encode_array` encoded."""
    if isinstance(data, str):
        return np.frombuffer(base64.b64decode(data), dtype="<f4").reshape(shape).copy()
    return np.array(data, dtype=np.float32).reshape(shape)

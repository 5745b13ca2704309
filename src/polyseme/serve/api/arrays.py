"""Arrays in JSON: nested lists of numbers, or base64 of little-endian float32."""

import base64
from typing import Any

import numpy as np


def encode_array(array: np.ndarray, encoding_format: str) -> tuple[list[Any] | str, list[int]]:
    """Return an array as JSON, and its shape."""
    array = np.ascontiguousarray(array, dtype="<f4")
    data = base64.b64encode(array.data).decode() if encoding_format == "base64" else array.tolist()
    return data, list(array.shape)


def decode_array(data: list[Any] | str, shape: list[int]) -> np.ndarray:
    """Return the array that `encode_array` encoded."""
    if isinstance(data, str):
        return np.frombuffer(base64.b64decode(data), dtype="<f4").reshape(shape).copy()
    return np.array(data, dtype=np.float32).reshape(shape)

"""Write the products and tables of an ONNX graph in int8.

A weight matrix has a scale per column, and values of 7 bits and a sign: processors without VNNI add two products in 16
bits, which 8 bits would overflow. Activations are unsigned bytes, with one scale per product: that of the batch
(dynamic), or that of calibration texts (static), which makes a text's outputs independent of its batch.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from polyseme.compress.quantization.graph_editor import GraphEditor

MAX_WEIGHT, MAX_TABLE = 63, 127
MIN_TABLE_ROWS = 128  # a smaller table of embeddings stays as it is
MIN_OUTPUTS = 32  # so does a smaller matrix, such as that of a classifier
Ranges = Mapping[str, tuple[float, float]]  # the least and the largest activation that a product reads


def product_nodes(editor: GraphEditor) -> list[Any]:
    """Return the products of activations with constant matrices, except small ones."""
    matrices = [(node, editor.matrix(node)) for node in editor.nodes("Gemm", "MatMul")]
    return [node for node, matrix in matrices if matrix is not None and matrix.shape[1] >= MIN_OUTPUTS]


def quantize_graph(editor: GraphEditor, ranges: Ranges | None = None) -> int:
    """Write products and tables in int8, with fixed scales if there are ranges of activations; return their number."""
    products = product_nodes(editor)
    for node in products:
        _quantize_product(editor, node, None if ranges is None else ranges[node.input[0]])
    tables = [node for node in editor.nodes("Gather") if _is_table(editor, node.input[0])]
    for node in tables:
        _quantize_table(editor, node)
    return len(products) + len(tables)


def _quantize_product(editor: GraphEditor, node: Any, bounds: tuple[float, float] | None) -> None:
    matrix = editor.matrix(node)
    assert matrix is not None
    name, output = node.input[1], node.output[0]
    scales = column_scales(matrix)
    levels = editor.add_constant(f"{name}_int8", np.round(matrix / scales).astype(np.int8))
    scale = editor.add_constant(f"{name}_scale", scales)
    zero = editor.add_constant(f"{name}_zero", np.zeros(len(scales), np.int8))
    bias = [node.input[2]] if len(node.input) > 2 else []
    if bounds is None:
        inputs = [node.input[0], levels, scale, zero, *bias]
        editor.replace(node, [editor.contrib_node("DynamicQuantizeMatMul", inputs, output)])
        return
    step, offset = activation_scale(*bounds)
    activation = [editor.add_constant(f"{output}_step", step), editor.add_constant(f"{output}_offset", offset)]
    rounded = f"{output}_input_uint8"
    inputs = [rounded, levels, activation[0], scale, activation[1], zero, *bias]
    nodes = [
        editor.node("QuantizeLinear", [node.input[0], *activation], rounded),
        editor.contrib_node("MatMulIntegerToFloat", inputs, output),
    ]
    editor.replace(node, nodes)


def column_scales(matrix: np.ndarray) -> np.ndarray:
    """Return the step between two int8 values for each column, float32."""
    scales: np.ndarray = (np.abs(matrix).max(0) / MAX_WEIGHT).astype(np.float32)
    return np.where(scales > 0, scales, np.float32(1))


def activation_scale(low: float, high: float) -> tuple[np.ndarray, np.ndarray]:
    """Return the step and the offset with which bytes cover a range and zero."""
    low, high = min(low, 0.0), max(high, 0.0)
    step = (high - low) / 255 or 1.0
    return np.float32(step), np.uint8(np.clip(round(-low / step), 0, 255))  # type: ignore[return-value]


def _is_table(editor: GraphEditor, name: str) -> bool:
    table = editor.array(name)
    is_matrix = table is not None and table.ndim == 2 and table.dtype == np.float32
    return is_matrix and len(table) >= MIN_TABLE_ROWS  # type: ignore[arg-type]


def _quantize_table(editor: GraphEditor, node: Any) -> None:
    """Store a table of embeddings as int8 with a scale per row, and multiply the rows that are read."""
    from onnx import TensorProto

    table, output = editor.array(node.input[0]), node.output[0]
    assert table is not None
    scales = (np.abs(table).max(1, keepdims=True) / MAX_TABLE).astype(np.float32)
    scales = np.where(scales > 0, scales, np.float32(1))
    levels = editor.add_constant(f"{node.input[0]}_rows_int8", np.round(table / scales).astype(np.int8))
    scale = editor.add_constant(f"{node.input[0]}_rows_scale", scales)
    nodes = [
        editor.node("Gather", [levels, node.input[1]], f"{output}_int8"),
        editor.node("Cast", [f"{output}_int8"], f"{output}_levels", to=TensorProto.FLOAT),
        editor.node("Gather", [scale, node.input[1]], f"{output}_scale"),
        editor.node("Mul", [f"{output}_levels", f"{output}_scale"], output),
    ]
    editor.replace(node, nodes)

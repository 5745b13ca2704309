"""Replace groups of nodes by one operator of onnxruntime: attention, and GELU.

Each function looks for the groups that torch writes for our modules, and leaves anything else as it is. A sum and the
norm after it stay two nodes: SkipLayerNormalization of onnxruntime 1.31 takes three times as long on a CPU.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import numpy as np

from polyseme.compress.quantization.graph_editor import GraphEditor

MASK_INPUT, IDS_INPUT = "attention_mask", "input_ids"
KEY_MASK, STATES_SHAPE = "fused_key_mask", "fused_states_shape"
_VIEWS = ("Reshape", "Transpose", "Slice", "Squeeze", "Mul")  # between the projection and the scores


def fuse(editor: GraphEditor) -> dict[str, int]:
    """Fuse what can be fused; return how many groups of each kind."""
    skip_identity_splits(editor)
    return {"attention": fuse_attention(editor), "gelu": fuse_gelu(editor)}


def skip_identity_splits(editor: GraphEditor) -> None:
    """Remove splits into one part, which torch writes for a feed-forward layer without a gate."""
    for split in editor.nodes("Split"):
        if len(split.output) == 1 and split.output[0] not in editor.outputs:
            editor.rename(split.output[0], split.input[0])


def fuse_gelu(editor: GraphEditor) -> int:
    """Fuse x · 0.5 (1 + erf(x / √2))."""
    count = 0
    for erf in editor.nodes("Erf"):
        division = editor.producer(erf.input[0], "Div")
        addition = editor.only_consumer(erf.output[0], "Add")
        if division is None or addition is None or editor.other_scalar(addition, erf.output[0]) != 1:
            continue
        name = division.input[0]
        half = editor.only_consumer(addition.output[0], "Mul")
        product = half and editor.only_consumer(half.output[0], "Mul")
        divisor = editor.scalar(division.input[1]) or 0.0
        is_half = half is not None and editor.other_scalar(half, addition.output[0]) == 0.5
        if is_half and product is not None and name in product.input and math.isclose(divisor, 2**0.5, rel_tol=1e-5):
            editor.replace(product, [editor.contrib_node("Gelu", [name], product.output[0])])
            count += 1
    return count


class ProjectedHeads(NamedTuple):
    """Where queries, keys or values come from: a projection and a third of its columns, and what multiplies them."""

    projection: str
    part: int
    factor: float
    num_heads: int


def fuse_attention(editor: GraphEditor) -> int:
    """Fuse softmax(q kᵀ + mask) v over heads of one projection of queries, keys and values, in both directions."""
    count = 0
    for softmax in editor.nodes("Softmax"):
        masked = editor.producer(softmax.input[0], "Add")
        scores = masked and editor.producer(masked.input[0], "MatMul")
        mixed = editor.only_consumer(softmax.output[0], "MatMul")
        transposed = mixed and editor.only_consumer(mixed.output[0], "Transpose")
        flattened = transposed and editor.only_consumer(transposed.output[0], "Reshape")
        if not scores or not flattened or not _is_padding_mask(editor, masked.input[1]):
            continue
        parts = [_trace_heads(editor, name) for name in (*scores.input, mixed.input[1])]
        query, key, value = parts
        if query is None or key is None or value is None or value.factor != 1:
            continue
        if len({each.projection for each in parts if each}) > 1 or [each.part for each in parts if each] != [0, 1, 2]:
            continue
        _write_attention(editor, flattened, query, query.factor * key.factor)
        count += 1
    return count


def _is_padding_mask(editor: GraphEditor, name: str) -> bool:
    """Return whether a mask depends on the padding alone; that of a causal model depends on positions as well."""
    pending, names = [name], set()
    while pending:
        node = editor.producers.get(current := pending.pop())
        names.add(node.op_type if node is not None else current)
        pending += node.input if node is not None else ()
    computed = names - set(editor.constants)
    return MASK_INPUT in computed and computed <= {MASK_INPUT, "Cast", "Unsqueeze", "Where", "ConstantOfShape"}


def _trace_heads(editor: GraphEditor, name: str) -> ProjectedHeads | None:
    """Follow the queries, keys or values of all heads back to their projection."""
    part, factor, num_heads = -1, 1.0, 0
    while node := editor.producer(name, *_VIEWS):
        if node.op_type == "Mul":
            factor *= editor.scalar(node.input[1]) or math.nan
        elif node.op_type == "Slice":
            starts = editor.array(node.input[1])
            part = -1 if starts is None or starts.size != 1 else int(starts.reshape(()))
        elif node.op_type == "Reshape" and (shape := editor.producer(node.input[1], "Concat")) is not None:
            num_heads = int(editor.scalar(shape.input[2]) or 0) if len(shape.input) == 4 else num_heads
        name = node.input[0]
    gemm = editor.producer(name, "Gemm")
    if gemm is None or editor.matrix(gemm) is None or part < 0 or not num_heads or math.isnan(factor):
        return None
    return ProjectedHeads(name, part, factor, num_heads)


def _write_attention(editor: GraphEditor, flattened: Any, heads: ProjectedHeads, scale: float) -> None:
    """Put one attention operator in the place of the node that flattens the output of all heads."""
    from onnx import TensorProto, helper

    if KEY_MASK not in editor.producers:
        minus_one = editor.add_constant("fused_minus_one", np.array([-1], np.int64))
        nodes = [
            editor.node("Cast", [MASK_INPUT], KEY_MASK, to=TensorProto.INT32),
            editor.node("Shape", [IDS_INPUT], "fused_batch_shape"),
            editor.node("Concat", ["fused_batch_shape", minus_one], STATES_SHAPE, axis=0),
        ]
        editor.prepend(nodes)
    output = flattened.output[0]
    matrix = editor.matrix(editor.producer(heads.projection, "Gemm"))
    assert matrix is not None
    parts = [f"{output}_{name}" for name in ("query", "key", "value")]
    split = helper.make_node("Split", [f"{output}_projected"], parts, axis=2, num_outputs=3)
    flat_shape = editor.add_constant(f"{output}_flat_shape", np.array([-1, matrix.shape[1] // 3], np.int64))
    attention = editor.contrib_node(
        "MultiHeadAttention", [*parts, "", KEY_MASK], f"{output}_heads", num_heads=heads.num_heads, scale=scale
    )
    nodes = [
        editor.node("Reshape", [heads.projection, STATES_SHAPE], f"{output}_projected"),
        *(split, attention),
        editor.node("Reshape", [f"{output}_heads", flat_shape], output),
    ]
    editor.replace(flattened, nodes)

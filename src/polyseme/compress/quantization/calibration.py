"""The ranges of activations that the products of a graph read, measured on texts."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from polyseme.compress.quantization.graph_editor import GraphEditor
from polyseme.compress.quantization.integer_graph import Ranges, product_nodes
from polyseme.errors import DataError, ModelError
from polyseme.evaluation.text_rows import open_texts
from polyseme.inference.neural_lm import NeuralLM

MAX_CALIBRATION_TEXTS = 256


def read_calibration(calibration: Any) -> list[str]:
    """Read up to 256 evenly spaced texts of a file or a list; raise `DataError` if there are none."""
    if isinstance(calibration, str | Path):
        texts = [row.text for row in open_texts(calibration).source]
    else:
        texts = list(calibration)
    if not texts:
        where = calibration if isinstance(calibration, str | Path) else "`calibration`"
        raise DataError(f"{where} has no texts to calibrate with: pass a few hundred that the model will read")
    size = min(MAX_CALIBRATION_TEXTS, len(texts))
    return [texts[i * len(texts) // size] for i in range(size)]


def measure_ranges(model: Any, network: NeuralLM, texts: Sequence[str], max_len: int) -> Ranges:
    """Return the range of each activation: the mean over texts of the least and of the largest value.

    The extreme of all texts would be that of a few outliers, and make the steps of all others coarse.
    """
    import onnxruntime
    from onnx import ModelProto, helper

    probed = ModelProto.FromString(model.SerializeToString())
    names = sorted({node.input[0] for node in product_nodes(GraphEditor(probed))})
    probed.graph.output.extend(helper.ValueInfoProto(name=name) for name in names)
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads, options.log_severity_level = 1, 3
    content = probed.SerializeToString()
    session = onnxruntime.InferenceSession(content, options, providers=["CPUExecutionProvider"])
    tokenizer = network.tokenizer
    max_tokens = max_len - tokenizer.num_special_tokens_to_add()
    bounds = np.zeros((len(names), 2))
    for text in texts:
        ids, segments = tokenizer.build_inputs_with_special_tokens(list(tokenizer.encode(text))[:max_tokens])
        feeds = {"input_ids": np.array([ids]), "attention_mask": np.ones((1, len(ids)), np.int64)}
        feeds |= {"token_type_ids": np.array([segments])} if network.model.config.trunk.num_segments else {}
        activations = session.run(names, feeds)
        bounds += [(float(each.min()), float(each.max())) for each in activations]
    bounds /= len(texts)
    if not np.isfinite(bounds).all():
        raise ModelError(f"{network.path} computes values that are not finite: it cannot be calibrated")
    return {name: (low, high) for name, (low, high) in zip(names, bounds.tolist())}

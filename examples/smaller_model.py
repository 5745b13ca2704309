"""Make a fine-tuned model smaller in four steps, and measure each: distill, prune, quantize, export.

    python examples/smaller_model.py TEACHER --task classification --train train.tsv --dev dev.tsv --out FOLDER

TEACHER is a model that was fine-tuned for the task. The folder gets a model for each step: `distilled` has half of the
layers, `pruned` fewer attention heads, `int8` is a graph in int8, and `onnx` a graph in float32 for other programs.
Each has a page, `compression.html`. All are measured alike, on the dev examples, one text at a time. A step that is
done is not repeated, so the same command continues where it stopped.
"""

import argparse
import json
from pathlib import Path

import polyseme
from polyseme.compress import distill, export, prune, quantize


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("teacher", type=Path)
    parser.add_argument("--task", default="classification")
    parser.add_argument("--train", type=Path, required=True)
    parser.add_argument("--dev", type=Path, required=True)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--heads", type=float, default=0.25, help="share of the attention heads that are removed")
    parser.add_argument("--epochs", type=float, default=3.0, help="of the distillation")
    parser.add_argument("--max-drop", type=float, default=0.5, help="points that int8 may cost at most")
    args = parser.parse_args()
    distilled, pruned, int8, onnx = (args.out / name for name in ("distilled", "pruned", "int8", "onnx"))

    # 1. Half of the layers, trained on the labels and on the scores of the teacher. The same call resumes it.
    if not (distilled / "results.json").exists():
        distill(args.teacher, task=args.task, data=args.train, dev=args.dev, epochs=args.epochs, out=distilled)

    # 2. The heads that matter least to the loss of the training examples are removed.
    if not pruned.exists():
        prune(distilled / "model", heads=args.heads, data=args.train, out=pruned)

    # 3. Weights and activations in int8, unless that costs too much.
    if not int8.exists():
        quantize(pruned, to="int8", data=args.dev, max_drop=args.max_drop, out=int8)

    # 4. The pruned model as a graph in float32, which `run_onnx.py` runs with onnxruntime and tokenizers alone.
    if not onnx.exists():
        export(pruned, to="onnx", data=args.dev, out=onnx)

    steps = {"teacher": args.teacher, "distill": distilled / "model", "prune": pruned, "quantize": int8}
    print_table(steps | {"export": onnx}, args.dev)


def print_table(models: dict[str, Path], dev: Path) -> None:
    """Print the size of the weights, the time per text and the metrics of each model."""
    print(f"{'step':10}{'megabytes':>10}{'ms per text':>13}  dev")
    for step, path in models.items():
        megabytes = sum(file.stat().st_size for file in model_files(path)) / 1e6
        milliseconds, metrics = measure_graph(path) if step == "export" else measure_model(path, dev)
        shown = ", ".join(f"{name} {value:.4f}" for name, value in metrics.items())
        print(f"{step:10}{megabytes:10.2f}{milliseconds:13.2f}  {shown}")


def measure_model(path: Path, dev: Path) -> tuple[float, dict[str, float]]:
    """Return the time per text and the metrics of a model that Polyseme opens."""
    scores = polyseme.evaluate(path, dev)
    return scores.ms_per_text, scores.metrics


def measure_graph(path: Path) -> tuple[float, dict[str, float]]:
    """Return what `export` measured of a graph that other programs open."""
    rows = {row["measure"]: row["after"] for row in json.loads((path / "compression.json").read_text())["rows"]}
    milliseconds = rows.pop("ms per text")
    return milliseconds, {name: value for name, value in rows.items() if name not in ("megabytes", "parameters")}


def model_files(path: Path) -> list[Path]:
    """Return the files of weights of a model, or of its run."""
    folder = path / "model" if (path / "model").is_dir() else path
    return [file for file in folder.iterdir() if file.suffix in (".safetensors", ".onnx", ".data")]


if __name__ == "__main__":
    main()

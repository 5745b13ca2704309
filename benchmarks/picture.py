"""Charts of results: bars of `gpu.py --out`, the loss curve of a run, or the curves of `translation.py`.

python benchmarks/picture.py gpu RESULTS.json OUT.svg
python benchmarks/picture.py curve RUN/log.jsonl OUT.svg
python benchmarks/picture.py translation RESULTS.json OUT.svg
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

import matplotlib.pyplot as plt

plt.switch_backend("agg")
plt.rcParams |= {"svg.hashsalt": "polyseme", "svg.fonttype": "none"}


def gpu(path: Path, out: Path) -> None:
    """Draw the speed of each side of each row, relative to the slowest."""
    rows = json.loads(path.read_text())
    figure, axis = plt.subplots(figsize=(7, 0.4 * sum(map(len, rows.values())) + 0.8))
    labels, values, colors = [], [], []
    for name, sides in rows.items():
        slowest = min(side["tokens"] for side in sides.values())
        for who, side in sides.items():
            labels.append(f"{name}\n{who}")
            values.append(side["tokens"] / slowest)
            colors.append("#2a6f97" if who == "polyseme" else "#b8b8b8")
    axis.barh(range(len(values)), values, color=colors)
    axis.bar_label(axis.containers[0], [f"{v:.1f}×" for v in values], padding=3, fontsize=8)  # type: ignore[arg-type]
    axis.set_yticks(range(len(labels)), labels, fontsize=7)
    axis.invert_yaxis()
    axis.set_xlabel("tokens/s, the slowest of a row = 1")
    _save(figure, axis, out)


def curve(path: Path, out: Path) -> None:
    """Draw the training loss of a run by step."""
    rows = [json.loads(line) for line in path.read_text().splitlines()]
    rows = [row for row in rows if "loss" in row]
    figure, axis = plt.subplots(figsize=(6, 3.5))
    for term in rows[0]["loss"]:
        axis.plot([row["step"] for row in rows], [row["loss"][term] for row in rows], label=term, linewidth=1.2)
    axis.set_xlabel("step")
    axis.set_ylabel("training loss, nats")
    axis.set_yscale("log")
    axis.set_yticks([2, 3, 4, 6, 10], ["2", "3", "4", "6", "10"])
    axis.legend(frameon=False)
    _save(figure, axis, out)


def translation(path: Path, out: Path) -> None:
    """Draw the loss on held-out pairs by step, averaged over the seeds of each model."""
    models: dict[str, list[list[list[float]]]] = {}
    for one in json.loads(path.read_text()):
        models.setdefault(one["model"], []).append(one["curve"])
    figure, axis = plt.subplots(figsize=(6, 3.5))
    for name, curves in models.items():
        steps = [step for step, _ in curves[0]]
        losses = [sum(loss for _, loss in points) / len(points) for points in zip(*curves)]
        axis.plot(steps, losses, label=name, linewidth=1.2)
    axis.set_xlabel("step")
    axis.set_ylabel("loss on held-out pairs, nats per token")
    axis.set_ylim(1.4, 3.5)
    axis.legend(frameon=False, fontsize=8)
    _save(figure, axis, out)


def _save(figure: plt.Figure, axis: plt.Axes, out: Path) -> None:
    axis.spines[["top", "right"]].set_visible(False)
    figure.tight_layout()
    figure.savefig(out, metadata={"Date": None} if out.suffix == ".svg" else None)


PICTURES = {"gpu": gpu, "curve": curve, "translation": translation}

if __name__ == "__main__":
    if len(sys.argv) != 4 or sys.argv[1] not in PICTURES:
        raise SystemExit(__doc__)
    PICTURES[sys.argv[1]](Path(sys.argv[2]), Path(sys.argv[3]))

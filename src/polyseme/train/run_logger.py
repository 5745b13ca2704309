"""The log of a run: a line for every so many steps and every measure."""

from __future__ import annotations

import json
import math
import time
from pathlib import Path
from typing import Any

from polyseme.io.files import told, write_text
from polyseme.train.loop import Report


class Log:
    """`log.jsonl` and TensorBoard events. A resumed run continues both where its checkpoint stood."""

    def __init__(self, out: Path, start: int):
        self.path = out / "log.jsonl"
        rows = self.path.read_text(encoding="utf-8").splitlines() if start and self.path.exists() else []
        write_text(self.path, "".join(row + "\n" for row in rows if _step(row) <= start))
        self.clock, self.last = time.perf_counter(), start
        self.board: Any = None
        try:
            from torch.utils.tensorboard import SummaryWriter

            self.board = SummaryWriter(str(out / "tensorboard"), purge_step=start + 1 if start else None)
        except ImportError:  # the extra `report` is not installed
            pass

    def add(self, report: Report, every: int, last: bool) -> None:
        if report.step % every == 0 or report.step == 1 or last:
            names = ("step", "loss", "rate", "gradient", "tokens")
            row = {name: getattr(report, name) for name in names}
            now = time.perf_counter()
            seconds, self.clock = (now - self.clock) / max(report.step - self.last, 1), now
            self.last = report.step
            self.write(row | {"seconds": seconds, "tokens_per_second": report.tokens / max(seconds, 1e-9)})

    def write(self, row: dict[str, Any]) -> None:
        with told(self.path), open(self.path, "a", encoding="utf-8") as f:
            f.write(json.dumps(row) + "\n")
        if self.board is not None:
            for key, value in row.items():
                flat = {f"{key}/{k}": v for k, v in value.items()} if isinstance(value, dict) else {key: value}
                for name, number in flat.items():
                    self.board.add_scalar(name, number, row["step"])
            self.board.flush()


def _step(row: str) -> float:
    """The step of a log line; a line cut off by a crash belongs to none."""
    try:
        return json.loads(row)["step"]
    except json.JSONDecodeError:
        return math.inf

"""The log of a run: a line for every so many steps and every measure."""

from __future__ import annotations

import json
import math
import time
from pathlib import Path
from typing import Any

from polyseme.io.atomic import wrap_os_errors, write_text
from polyseme.train.loop import StepReport


class RunLogger:
    """`log.jsonl` and TensorBoard events. A resumed run continues both where its checkpoint stood."""

    def __init__(self, out: Path, start_step: int):
        self.path = out / "log.jsonl"
        rows = self.path.read_text(encoding="utf-8").splitlines() if start_step and self.path.exists() else []
        write_text(self.path, "".join(row + "\n" for row in rows if _row_step(row) <= start_step))
        self.last_time, self.last_step = time.perf_counter(), start_step
        self.tensorboard: Any = None
        try:
            from torch.utils.tensorboard import SummaryWriter

            self.tensorboard = SummaryWriter(
                str(out / "tensorboard"), purge_step=start_step + 1 if start_step else None
            )
        except ImportError:  # the extra `report` is not installed
            pass

    def log_step(self, report: StepReport, log_every: int, is_last: bool) -> None:
        if report.step % log_every == 0 or report.step == 1 or is_last:
            names = ("step", "loss", "lr", "grad_norm", "tokens")
            row = {name: getattr(report, name) for name in names}
            now = time.perf_counter()
            seconds, self.last_time = (now - self.last_time) / max(report.step - self.last_step, 1), now
            self.last_step = report.step
            self.write_row(row | {"seconds": seconds, "tokens_per_second": report.tokens / max(seconds, 1e-9)})

    def write_row(self, row: dict[str, Any]) -> None:
        with wrap_os_errors(self.path), open(self.path, "a", encoding="utf-8") as f:
            f.write(json.dumps(row) + "\n")
        if self.tensorboard is not None:
            for key, value in row.items():
                scalars = (
                    {f"{key}/{subkey}": scalar for subkey, scalar in value.items()}
                    if isinstance(value, dict)
                    else {key: value}
                )
                for name, number in scalars.items():
                    self.tensorboard.add_scalar(name, number, row["step"])
            self.tensorboard.flush()


def _row_step(row: str) -> float:
    """The step of a log line; a line cut off by a crash belongs to none."""
    try:
        return json.loads(row)["step"]
    except json.JSONDecodeError:
        return math.inf

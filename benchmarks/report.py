"""How a benchmark prints: where and when it ran, and a Markdown table."""

from __future__ import annotations

import datetime
import platform
import subprocess
from collections.abc import Sequence

import torch


def header(what: str) -> str:
    commit = subprocess.run(["git", "rev-parse", "--short", "HEAD"], capture_output=True, text=True).stdout.strip()
    device = torch.cuda.get_device_name() if torch.cuda.is_available() else _cpu()
    threads = torch.get_num_threads()
    today = datetime.date.today().isoformat()
    return f"{what}\n{today}, commit {commit or '?'}, {device}, {threads} threads, torch {torch.__version__}\n"


def table(names: Sequence[str], rows: Sequence[Sequence[object]]) -> str:
    lines = ["| " + " | ".join(names) + " |", "|" + "---|" * len(names)]
    return "\n".join(lines + ["| " + " | ".join(map(str, row)) + " |" for row in rows])


def _cpu() -> str:
    try:
        with open("/proc/cpuinfo") as f:
            return next(line.split(":")[1].strip() for line in f if line.startswith("model name"))
    except (OSError, StopIteration):
        return platform.processor() or platform.machine()

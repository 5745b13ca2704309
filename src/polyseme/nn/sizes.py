"""Bounds on the size of a model, checked before any memory is allocated."""

import os
from pathlib import Path
from typing import Any

from polyseme.errors import ConfigError
from polyseme.io.limits import MAX_LAYERS, MAX_SIZE

BYTES_PER_PARAMETER = 4  # models are built in float32


def check_sizes(value: Any, location: str = "") -> None:
    """Raise `ConfigError` if an integer of a model's config, or its number of layers, is absurdly large."""
    if isinstance(value, dict):
        for key, inner in value.items():
            check_sizes(inner, f"{location}.{key}" if location else str(key))
    elif isinstance(value, list | tuple):
        if len(value) > MAX_LAYERS and not all(isinstance(inner, str) for inner in value):
            raise ConfigError(f"{location} has {len(value):,} entries, at most {MAX_LAYERS:,} are supported")
        for index, inner in enumerate(value):
            check_sizes(inner, f"{location}[{index}]")
    elif isinstance(value, int):
        name = location.rpartition(".")[2]
        limit = MAX_LAYERS if "layers" in name or "blocks" in name else MAX_SIZE
        if abs(value) > limit:
            raise ConfigError(f"{location} is {value:,}, at most {limit:,} is supported")


def check_memory(num_parameters: int) -> None:
    """Raise `ConfigError` if a model of this size does not fit into the memory of this machine."""
    needed, available = num_parameters * BYTES_PER_PARAMETER, available_memory()
    if available is not None and needed > available:
        problem = f"the model has {num_parameters:,} parameters, which need {needed / 2**30:,.1f} GiB"
        hint = "choose a smaller size, or fewer layers or dimensions"
        raise ConfigError(f"{problem}, and {available / 2**30:,.1f} GiB of memory are available: {hint}")


def available_memory() -> int | None:
    """Return the bytes that can be allocated without swapping, or None if unknown."""
    try:
        lines = Path("/proc/meminfo").read_text().splitlines()
        return next(int(line.split()[1]) << 10 for line in lines if line.startswith("MemAvailable:"))
    except (OSError, StopIteration, ValueError, IndexError):
        pass
    try:
        return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    except (AttributeError, ValueError, OSError):
        return None

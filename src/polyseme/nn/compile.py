"""What a compiled model does outside of its graph."""

import torch

from polyseme.nn.attention import attend
from polyseme.nn.attention.relative import RelativeAttention


def exclude_from_compile() -> None:
    """Call this before `torch.compile`: attention whose shapes change from batch to batch stays out of graphs.

    Decorators would say it where it belongs, but they import torch's compiler, which takes about as long as torch
    itself and which a command that compiles nothing never needs.
    """
    for owner, name in ((attend, "attend_bucketed"), (RelativeAttention, "_attend")):
        function = getattr(owner, name)
        if not hasattr(function, "_torchdynamo_disable"):
            setattr(owner, name, torch.compiler.disable(function))

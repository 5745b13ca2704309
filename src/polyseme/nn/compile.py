"""Functions that `torch.compile` does not trace."""

import torch

from polyseme.nn.attention import attend
from polyseme.nn.attention.relative import RelativeAttention


def exclude_from_compile() -> None:
    """Exclude attention whose shapes change from batch to batch; call this before `torch.compile`.

    A decorator would import torch's compiler, which takes as long as importing torch, also where nothing is compiled.
    """
    for owner, name in ((attend, "attend_bucketed"), (RelativeAttention, "_attend")):
        function = getattr(owner, name)
        if not hasattr(function, "_torchdynamo_disable"):
            setattr(owner, name, torch.compiler.disable(function))

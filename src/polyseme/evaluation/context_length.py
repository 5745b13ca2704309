"""What a causal model makes of a long text by how much of it it has in sight, and how fast.

Transformer-XL reads a text once, in segments, with a memory that may be longer than in training; a model without memory
has to read a whole window anew for each token to have as much in sight (Dai et al. 2019, §4.4 and §4.5).
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from polyseme.errors import UserError
from polyseme.nn.attention.relative import RelativeAttentionSpec
from polyseme.nn.model import Model, outline
from polyseme.nn.packing import Layout


@dataclass(frozen=True)
class Measured:
    """The mean loss of the tokens predicted, in nats, and what it took."""

    loss: float
    tokens: int
    seconds: float

    @property
    def perplexity(self) -> float:
        return math.exp(min(self.loss, 50.0))

    @property
    def tokens_per_second(self) -> float:
        return self.tokens / max(self.seconds, 1e-9)


def with_memory(model: Model, length: int, even: bool = False) -> Model:
    """The same weights with a memory of another length; `even` lets every token see as far back, and no further."""
    trunk, attention = model.spec.transformer, model.spec.transformer.block.attention
    if not isinstance(attention, RelativeAttentionSpec) or not attention.causal:
        raise UserError(f"{model.spec.family} has no memory of a set length: read it by windows")
    block = trunk.block.replace(attention=attention.replace(window=length if even else 0))
    other = outline(model.spec.replace(trunk=trunk.replace(block=block, memory_len=length)))
    other.load_state_dict(model.state_dict(), assign=True)
    return other.eval()


def by_segments(model: Model, text: Tensor, segment: int, memory: int | None = None, head: str = "next") -> Measured:
    """Read a text [n] once, in segments, each with the memory of those before; its first token is not predicted.

    `memory` is how long it is, where that can be set; None is for a model whose memory is a state.
    """
    if memory is None and not model.spec.trunk.remembers:
        raise UserError(f"{model.spec.family} has no memory of a set length: read it by windows")
    reader = model.eval() if memory is None else with_memory(model, memory, even=True)
    state = None

    def read(start: int) -> Tensor:
        nonlocal state
        chunk = text[start : min(start + segment, len(text) - 1)]
        layout = Layout.of([len(chunk)], device=text.device)
        reading = reader.trunk(chunk, layout, memory=state, remember=True)
        state = reading.memory
        return reader.loss(head, reading.last, layout, layout.positions, text[start + 1 : start + 1 + len(chunk)], -100)

    return _measured(read, range(0, len(text) - 1, segment), len(text) - 1)


def by_windows(
    model: Model, text: Tensor, context: int, together: int = 64, stride: int = 1, head: str = "next"
) -> Measured:
    """Predict each token of a text [n] from a window of the `context` tokens before it, read anew for each.

    With a `stride` above 1 a window predicts its last `stride` tokens, the first of which see less. `together` windows
    are one batch.
    """
    model = model.eval()
    ends = list(range(stride, len(text), stride))
    ends += [] if ends and ends[-1] == len(text) - 1 else [len(text) - 1]

    def read(start: int) -> Tensor:
        chosen = ends[start : start + together]
        windows = [(max(end - context, 0), end) for end in chosen]
        layout = Layout.of([b - a for a, b in windows], device=text.device)
        last = model.trunk(torch.cat([text[a:b] for a, b in windows]), layout).last
        before = [ends[start + i - 1] if start + i else 0 for i in range(len(chosen))]
        sizes = [end - max(earlier, a) for (a, end), earlier in zip(windows, before)]
        closes = layout.starts[1:].tolist()
        rows = torch.cat([torch.arange(close - size, close) for close, size in zip(closes, sizes)]).to(text.device)
        values = torch.cat([text[end - size + 1 : end + 1] for end, size in zip(chosen, sizes)])
        return model.loss(head, last, layout, rows, values, -100)

    return _measured(read, range(0, len(ends), together), len(text) - 1)


@torch.inference_mode()
def losses_by_context(
    model: Model, text: Tensor, places: Tensor, contexts: Sequence[int], bin_tokens: int = 8192, head: str = "next"
) -> Tensor:
    """The loss of the tokens at `places` of a text, each from so many tokens before it and no more, [contexts, places].

    A model that cannot read as many reads as many as it can.
    """
    found: list[Tensor] = []
    model, most = model.eval(), model.spec.trunk.embeddings.max_len
    for context in contexts:
        size, row = min(context, most), []
        if found and size == min(contexts[len(found) - 1], most):  # the same windows as before
            found.append(found[-1])
            continue
        for part in places.split(max(bin_tokens // size, 1)):
            windows = part[:, None] + torch.arange(-size, 0, device=text.device)
            layout = Layout.of([size] * len(part), device=text.device)
            last = model.trunk(text[windows.flatten()], layout).last
            scores = model.predict(head, last, layout, layout.last).float()
            row.append(F.cross_entropy(scores, text[part], reduction="none"))
        found.append(torch.cat(row))
    return torch.stack(found).cpu()


def effective_contexts(
    losses: Mapping[str, Tensor], contexts: Sequence[int], share: float = 1.0, threshold: float = 0.01
) -> dict[str, int]:
    """Relative effective context length of each model of a group (Dai et al. 2019, §4.4 and appendix C).

    `losses` are those of `losses_by_context`, on the same places. At each context, the best of the group is what is to
    be beaten, on the `share` of tokens that it finds hardest; the gain of a model is by how much its losses with the
    next longer context lower that mean, where they are lower. A model's length is the context up to which every
    step gained more than the threshold.
    """
    group = torch.stack(list(losses.values()))  # [models, contexts, places]
    best = group.min(dim=0).values
    hard = max(round(share * best.shape[1]), 1)
    found = {}
    for name, own in losses.items():
        reached = contexts[0]
        for i in range(len(contexts) - 1):
            chosen = best[i].topk(hard).indices
            before = best[i][chosen]
            gain = 1 - torch.minimum(before, own[i + 1][chosen]).mean() / before.mean()
            if gain <= threshold:
                break
            reached = contexts[i + 1]
        found[name] = reached
    return found


@torch.inference_mode()
def _measured(read: Callable[[int], Tensor], places: range, tokens: int) -> Measured:
    began = time.perf_counter()
    total = sum(float(read(place)) for place in places)
    return Measured(total / max(tokens, 1), tokens, time.perf_counter() - began)

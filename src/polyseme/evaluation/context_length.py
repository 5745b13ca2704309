"""Loss of a causal model on a long text by context length, and its speed.

Transformer-XL reads a text once, in segments, with a memory that may be longer than in training. A model without memory
reads a whole window again for each token to use as much context (Dai et al. 2019, §4.4 and §4.5).
"""

import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from polyseme.errors import UnsupportedError
from polyseme.nn.attention.relative import RelativeAttentionConfig
from polyseme.nn.model import Model, build_meta
from polyseme.nn.packing import Inputs, PackedLayout


@dataclass(frozen=True)
class LossMeasurement:
    """The mean loss of the predicted tokens, in nats, and the time."""

    loss: float
    num_tokens: int
    seconds: float

    @property
    def perplexity(self) -> float:
        """The exponential of the loss."""
        return math.exp(min(self.loss, 50.0))

    @property
    def tokens_per_second(self) -> float:
        """The speed of prediction."""
        return self.num_tokens / max(self.seconds, 1e-9)


def with_memory_len(model: Model, memory_len: int, is_uniform: bool = False) -> Model:
    """Return the same weights with another memory length; with `is_uniform`, every token sees exactly that far."""
    trunk, attention = model.config.transformer, model.config.transformer.block.attention
    if not isinstance(attention, RelativeAttentionConfig) or not attention.causal:
        raise UnsupportedError(f"{model.config.family} has no memory of a set length: read it by windows")
    block = trunk.block.replace(attention=attention.replace(window=memory_len if is_uniform else 0))
    resized = build_meta(model.config.replace(trunk=trunk.replace(block=block, memory_len=memory_len)))
    resized.load_state_dict(model.state_dict(), assign=True)
    return resized.eval()


def evaluate_segments(
    model: Model, text: Tensor, segment_len: int, memory_len: int | None = None, head: str = "next"
) -> LossMeasurement:
    """Read a text [n] once, in segments, each with the memory of those before; its first token is not predicted.

    `memory_len` is None for a model whose memory is a recurrent state.
    """
    if memory_len is None and not model.config.trunk.has_bounded_memory:
        raise UnsupportedError(f"{model.config.family} has no memory of a set length: read it by windows")
    reader = model.eval() if memory_len is None else with_memory_len(model, memory_len, is_uniform=True)
    trunk_memory = None

    def read(start: int) -> Tensor:
        nonlocal trunk_memory
        chunk = text[start : min(start + segment_len, len(text) - 1)]
        labels = text[start + 1 : start + 1 + len(chunk)]
        layout = PackedLayout.from_lengths([len(chunk)], device=text.device)
        output = reader.trunk(Inputs(chunk, layout), memory=trunk_memory, return_memory=True)
        trunk_memory = output.memory
        return reader.loss(head, output.hidden, layout, layout.positions, labels)

    return _measure_loss(read, range(0, len(text) - 1, segment_len), len(text) - 1)


def evaluate_sliding_window(
    model: Model, text: Tensor, context_len: int, batch_size: int = 64, stride: int = 1, head: str = "next"
) -> LossMeasurement:
    """Predict each token of a text [n] from a window of the `context_len` tokens before it, read again for each.

    With a `stride` above 1 a window predicts its last `stride` tokens, the first of which see less.
    """
    model = model.eval()
    ends = list(range(stride, len(text), stride))
    ends += [] if ends and ends[-1] == len(text) - 1 else [len(text) - 1]

    def read(start: int) -> Tensor:
        batch_ends = ends[start : start + batch_size]
        windows = [(max(end - context_len, 0), end) for end in batch_ends]
        layout = PackedLayout.from_lengths([b - a for a, b in windows], device=text.device)
        hidden = model.trunk(Inputs(torch.cat([text[a:b] for a, b in windows]), layout)).hidden
        previous_ends = [ends[start + i - 1] if start + i else 0 for i in range(len(batch_ends))]
        counts = [end - max(previous_end, a) for (a, end), previous_end in zip(windows, previous_ends)]
        row_ends = zip(layout.cu_seqlens[1:].tolist(), counts)
        rows = torch.cat([torch.arange(end - count, end) for end, count in row_ends]).to(text.device)
        labels = torch.cat([text[end - count + 1 : end + 1] for end, count in zip(batch_ends, counts)])
        return model.loss(head, hidden, layout, rows, labels)

    return _measure_loss(read, range(0, len(ends), batch_size), len(text) - 1)


@torch.inference_mode()
def losses_by_context(
    model: Model,
    text: Tensor,
    positions: Tensor,
    contexts: Sequence[int],
    max_batch_tokens: int = 8192,
    head: str = "next",
) -> Tensor:
    """Return the loss of the tokens at `positions` of a text for each context length, [contexts, positions].

    A context that is longer than the model reads is cut.
    """
    losses: list[Tensor] = []
    model, max_len = model.eval(), model.config.trunk.embeddings.max_len
    for context in contexts:
        window_len, window_losses = min(context, max_len), []
        if losses and window_len == min(contexts[len(losses) - 1], max_len):  # the same windows as before
            losses.append(losses[-1])
            continue
        for chunk in positions.split(max(max_batch_tokens // window_len, 1)):
            windows = chunk[:, None] + torch.arange(-window_len, 0, device=text.device)
            layout = PackedLayout.from_lengths([window_len] * len(chunk), device=text.device)
            hidden = model.trunk(Inputs(text[windows.flatten()], layout)).hidden
            logits = model.predict(head, hidden, layout, layout.last_indices).float()
            window_losses.append(F.cross_entropy(logits, text[chunk], reduction="none"))
        losses.append(torch.cat(window_losses))
    return torch.stack(losses).cpu()


def relative_effective_contexts(
    losses: Mapping[str, Tensor], contexts: Sequence[int], hardest_fraction: float = 1.0, threshold: float = 0.01
) -> dict[str, int]:
    """Return the relative effective context length of each model of a group (Dai et al. 2019, §4.4 and appendix C).

    `losses` are those of `losses_by_context` at the same positions. At each context, the baseline is the best loss of
    the group on the `hardest_fraction` of tokens; a model's gain is the relative drop of its mean when the model reads
    the next longer context. A model's length is the context up to which every step gained more than the threshold.
    """
    best = torch.stack(list(losses.values())).min(dim=0).values  # [contexts, positions]
    num_hardest = max(round(hardest_fraction * best.shape[1]), 1)
    lengths = dict.fromkeys(losses, contexts[0])
    for name, model_losses in losses.items():
        for i in range(len(contexts) - 1):
            baseline, hardest = best[i].topk(num_hardest)
            gain = 1 - torch.minimum(baseline, model_losses[i + 1][hardest]).mean() / baseline.mean()
            if gain <= threshold:
                break
            lengths[name] = contexts[i + 1]
    return lengths


@torch.inference_mode()
def _measure_loss(read: Callable[[int], Tensor], starts: range, num_tokens: int) -> LossMeasurement:
    start_time = time.perf_counter()
    total = sum(float(read(start)) for start in starts)
    return LossMeasurement(total / max(num_tokens, 1), num_tokens, time.perf_counter() - start_time)

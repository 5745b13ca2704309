"""What the rows of `gpu.py` share: the two models, one batch for both, the clock."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch

from polyseme.families import FAMILIES
from polyseme.objectives.batch import Batch, Targets
from polyseme.parts.layout import Layout
from polyseme.parts.model import Model
from polyseme.weights.table import to_ours

DEVICE = torch.device("cuda")


@dataclass(frozen=True)
class Row:
    """One line of the table."""

    family: str
    size: dict[str, int]
    sequences: int
    length: int
    dropout: float = 0.0
    work: str = "train"


@dataclass
class Measured:
    """What one side did."""

    tokens: float  # a second
    memory: float  # GiB
    mfu: float = 0.0
    cold: float = 0.0  # seconds to the first step
    notes: dict[str, float] = field(default_factory=dict)


def peer_model(row: Row) -> Any:
    """The model of `transformers`, drawn at random, with the heads that its paper trains."""
    import transformers

    if row.family == "gpt2":
        config = transformers.GPT2Config(
            n_layer=row.size["num_layers"], n_embd=row.size["dim"], n_head=row.size["num_heads"],
            resid_pdrop=row.dropout, embd_pdrop=row.dropout, attn_pdrop=row.dropout,
        )  # fmt: skip
        return transformers.GPT2LMHeadModel(config)
    config = transformers.BertConfig(
        num_hidden_layers=row.size["num_layers"], hidden_size=row.size["dim"],
        num_attention_heads=row.size["num_heads"],
        intermediate_size=4 * row.size["dim"], hidden_dropout_prob=row.dropout,
        attention_probs_dropout_prob=row.dropout,
    )  # fmt: skip
    return transformers.BertForPreTraining(config)


def our_model(row: Row, peer: Any) -> Model:
    """Ours, with the peer's weights."""
    spec = FAMILIES[row.family].spec(**row.size, dropout=row.dropout, attention_dropout=row.dropout)
    model = spec.build(seed=0)
    model.load_state_dict(in_our_names(model, {name: value.detach() for name, value in peer.named_parameters()}))
    return model


def in_our_names(model: Model, theirs: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    shapes = {name: value.shape for name, value in model.state_dict().items()}
    return to_ours(FAMILIES[model.spec.family], model.spec, shapes, theirs, "the peer")


def our_batch(row: Row, vocab_size: int) -> Batch:
    draw = torch.Generator().manual_seed(0)
    total = row.sequences * row.length
    tokens = torch.randint(0, vocab_size, (total,), generator=draw)
    layout = Layout.of([row.length] * row.sequences)
    if row.family == "gpt2":
        last = torch.arange(total) % row.length == row.length - 1
        rows = torch.arange(total)[~last]
        return Batch(tokens, layout, None, {"next": Targets(rows, tokens[rows + 1], len(rows))}, total)
    count = total * 15 // 100
    rows = torch.randperm(total, generator=draw)[:count].sort().values
    targets = {
        "masked": Targets(rows, torch.randint(0, vocab_size, (count,), generator=draw), count),
        "pair": Targets(
            torch.arange(row.sequences), torch.randint(0, 2, (row.sequences,), generator=draw), row.sequences
        ),
    }
    segments = (torch.arange(total) % row.length >= row.length // 2).long()
    return Batch(tokens, layout, segments, targets, total)


def peer_inputs(row: Row, batch: Batch) -> dict[str, torch.Tensor]:
    """The same as the peer takes it: padded (here to nothing), a label at every position."""
    shape = (row.sequences, row.length)
    inputs = {"input_ids": batch.tokens.view(shape).to(DEVICE)}
    inputs["attention_mask"] = torch.ones_like(inputs["input_ids"])
    if row.family == "gpt2":
        return inputs | {"labels": inputs["input_ids"]}
    labels = torch.full_like(batch.tokens, -100)
    labels[batch.targets["masked"].rows] = batch.targets["masked"].values
    assert batch.segments is not None
    return inputs | {
        "labels": labels.view(shape).to(DEVICE),
        "token_type_ids": batch.segments.view(shape).to(DEVICE),
        "next_sentence_label": batch.targets["pair"].values.to(DEVICE),
    }


def timed(step: Callable[[], object], steps: int) -> float:
    """Milliseconds a step: the median of three runs of steps."""
    found = []
    for _ in range(3):
        start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        start.record()
        for _ in range(steps):
            step()
        end.record()
        torch.cuda.synchronize()
        found.append(start.elapsed_time(end) / steps)
    return statistics.median(found)


def fresh() -> None:
    torch._dynamo.reset()
    torch.cuda.empty_cache()
    torch.cuda.reset_peak_memory_stats()


def measure(step: Callable[[], object], tokens: int, flops: int, peak: float, steps: int) -> Measured:
    began = time.monotonic()
    step()
    torch.cuda.synchronize()
    cold = time.monotonic() - began
    for _ in range(4):
        step()
    each = timed(step, steps) / 1e3
    return Measured(tokens / each, torch.cuda.max_memory_allocated() / 2**30, flops / each / peak, cold)


def matrix_peak() -> float:
    """Operations a second of a large matrix product in bf16, at the clock that a chip at work holds."""
    a, b = (torch.randn(8192, 8192, device=DEVICE, dtype=torch.bfloat16) for _ in range(2))
    for _ in range(1000):  # a second and a half: a cold chip is faster
        a @ b
    return 2 * 8192**3 / (timed(lambda: a @ b, 20) / 1e3)

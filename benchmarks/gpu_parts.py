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
from polyseme.parts.relative import Queries
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

    layers, dim, heads = row.size["num_layers"], row.size["dim"], row.size["num_heads"]
    common = {"num_hidden_layers": layers, "hidden_size": dim, "num_attention_heads": heads}
    dropout = {"hidden_dropout_prob": row.dropout, "attention_probs_dropout_prob": row.dropout}
    bert = {**common, "intermediate_size": 4 * dim, **dropout}
    if row.family == "gpt2":
        drop = dict.fromkeys(("resid_pdrop", "embd_pdrop", "attn_pdrop"), row.dropout)
        return transformers.GPT2LMHeadModel(transformers.GPT2Config(n_layer=layers, n_embd=dim, n_head=heads, **drop))
    if row.family == "roberta":
        config = transformers.RobertaConfig(
            **bert, vocab_size=50_265, type_vocab_size=1, max_position_embeddings=514, pad_token_id=1
        )
        return transformers.RobertaForMaskedLM(config)
    if row.family == "albert":
        return transformers.AlbertForPreTraining(transformers.AlbertConfig(**bert))
    if row.family == "xlnet":
        config = transformers.XLNetConfig(
            n_layer=layers, d_model=dim, n_head=heads, d_inner=4 * dim, dropout=row.dropout, mem_len=None
        )
        return transformers.XLNetLMHeadModel(config)
    return transformers.BertForPreTraining(transformers.BertConfig(**bert))


def our_model(row: Row, peer: Any) -> Model:
    """Ours, with the peer's weights."""
    spec = FAMILIES[row.family].spec(**row.size, dropout=row.dropout, attention_dropout=row.dropout)
    model = spec.build(seed=0)
    theirs = in_our_names(model, {name: value.detach() for name, value in peer.named_parameters()})
    missing = model.load_state_dict(theirs, strict=False).missing_keys
    assert all("pooler" in name for name in missing), missing  # RoBERTa's, which pre-training does not use
    return model


def in_our_names(model: Model, theirs: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    shapes = {name: value.shape for name, value in model.state_dict().items()}
    return to_ours(FAMILIES[model.spec.family], model.spec, shapes, theirs, "the peer")


def our_batch(row: Row, vocab_size: int) -> Batch:
    """Tokens drawn at random, with the targets that the family's paper has."""
    draw = torch.Generator().manual_seed(0)
    total = row.sequences * row.length
    tokens = torch.randint(2, vocab_size, (total,), generator=draw)
    layout = Layout.of([row.length] * row.sequences)
    if row.family == "gpt2":
        last = torch.arange(total) % row.length == row.length - 1
        rows = torch.arange(total)[~last]
        return Batch(tokens, layout, None, {"next": Targets(rows, tokens[rows + 1], len(rows))}, total)
    if row.family == "xlnet":
        each = row.length // 6
        rank = torch.rand(row.sequences, row.length, generator=draw).argsort().argsort()  # the last ones are predicted
        order = (rank - (row.length - each)).clamp(min=-1)
        rows = (order.flatten() >= 0).nonzero()[:, 0]
        queries = Queries(order.flatten(), rows, Layout.of([each] * row.sequences))
        targets = {"masked": Targets(total + torch.arange(len(rows)), tokens[rows], len(rows))}
        return Batch(tokens, layout, None, targets, total, queries=queries)
    count = total * 15 // 100
    rows = torch.randperm(total, generator=draw)[:count].sort().values
    targets = {"masked": Targets(rows, torch.randint(0, vocab_size, (count,), generator=draw), count)}
    if row.family == "roberta":
        return Batch(tokens, layout, None, targets, total)
    pairs = torch.randint(0, 2, (row.sequences,), generator=draw)
    targets["pair"] = Targets(torch.arange(row.sequences), pairs, row.sequences)
    segments = (torch.arange(total) % row.length >= row.length // 2).long()
    return Batch(tokens, layout, segments, targets, total)


def peer_inputs(row: Row, batch: Batch) -> dict[str, torch.Tensor]:
    """The same as the peer takes it: padded (here to nothing), a label at every position."""
    shape = (row.sequences, row.length)
    inputs = {"input_ids": batch.tokens.view(shape).to(DEVICE)}
    if batch.queries is not None:
        order = batch.queries.order.view(shape).to(DEVICE)
        places = (batch.queries.rows.view(len(order), -1) % row.length).to(DEVICE)
        hidden = order[:, None, :] >= order[:, :, None].clamp(min=0)  # i must not see j; itself, in the content stream
        return inputs | {
            "perm_mask": hidden.float(),
            "target_mapping": torch.nn.functional.one_hot(places, row.length).float(),
            "labels": batch.targets["masked"].values.view(len(order), -1).to(DEVICE),
        }
    inputs["attention_mask"] = torch.ones_like(inputs["input_ids"])
    if row.family == "gpt2":
        return inputs | {"labels": inputs["input_ids"]}
    labels = torch.full_like(batch.tokens, -100)
    labels[batch.targets["masked"].rows] = batch.targets["masked"].values
    inputs["labels"] = labels.view(shape).to(DEVICE)
    if batch.segments is not None:
        inputs["token_type_ids"] = batch.segments.view(shape).to(DEVICE)
        label = "sentence_order_label" if row.family == "albert" else "next_sentence_label"
        inputs[label] = batch.targets["pair"].values.to(DEVICE)
    return inputs


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

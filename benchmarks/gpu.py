"""Training and encoding on one GPU, against `transformers` eager and compiled, in one process.

    python benchmarks/gpu.py [--rows NAME …] [--corpus FOLDER] [--steps 20] [--no-compiled-peer] [--out FILE.json]

Each row: the same weights on both sides (the peer's are saved and opened by us), the same tokens, the same targets;
first the losses and the gradients are compared with dropout off, then steps are timed. Ours is the loop that
`polyseme pretrain` runs, batches on the host included; the peer's is the usual one: autocast to bf16, fused AdamW,
clipping. Times are CUDA events around runs of steps, the median of three; tokens are real ones; memory is the
allocator's peak; MFU is against a matrix product measured in the same process. Rows on documents read a corpus made by
`polyseme prepare`, ours through the loader of `polyseme pretrain`; the peer gets the same samples and masks in batches
of `sequences`, padded to the longest, as its default collator does. A family is one more row in ROWS.
"""

from __future__ import annotations

import argparse
import copy
import itertools
import json
import statistics
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from report import header, table

from polyseme.corpus.order import Cursor
from polyseme.corpus.store import Corpus
from polyseme.families import FAMILIES
from polyseme.objectives.batch import Batch, Targets
from polyseme.objectives.specs import MaskedPairs
from polyseme.objectives.terms import losses
from polyseme.parts.heads import LabelHeadSpec
from polyseme.parts.layout import Layout
from polyseme.parts.model import Model, ModelSpec
from polyseme.reading import fetched, in_bins, means
from polyseme.tasks.finetune import FinetuneSpec
from polyseme.tasks.finetune import steps as all_steps
from polyseme.tasks.task import Encoded, Task
from polyseme.text.tokenizer import Tokenizer
from polyseme.train.cost import training_flops
from polyseme.train.half import Half
from polyseme.train.loop import Training, train
from polyseme.train.optim import OptimSpec
from polyseme.train.pretrain import open_data
from polyseme.train.recipe import Recipe
from polyseme.train.schedule import ScheduleSpec
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


BASE = {"num_layers": 12, "dim": 768, "num_heads": 12}
ROWS = {
    "bert-base-512": Row("bert", BASE, 64, 512),
    "bert-base-512-dropout": Row("bert", BASE, 64, 512, 0.1),
    "bert-base-128": Row("bert", BASE, 256, 128),
    "bert-large-512": Row("bert", {"num_layers": 24, "dim": 1024, "num_heads": 16}, 64, 512),
    "bert-small-128": Row("bert", {"num_layers": 4, "dim": 512, "num_heads": 8}, 512, 128),
    "gpt2-small-1024": Row("gpt2", BASE, 32, 1024),
    "bert-base-documents": Row("bert", BASE, 64, 512, work="documents"),
    "bert-small-documents": Row("bert", {"num_layers": 4, "dim": 512, "num_heads": 8}, 512, 128, work="documents"),
    "bert-base-finetune": Row("bert", BASE, 32, 512, 0.1, work="finetune"),
    "bert-base-encode": Row("bert", BASE, 16_384, 512, work="encode"),
}


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


def check(model: Model, peer: Any, row: Row, batch: Batch) -> dict[str, float]:
    """How far loss and gradients lie apart on the first sequences, ours in bf16, theirs in bf16 by autocast."""
    few = Row(row.family, row.size, 4, row.length)
    small = our_batch(few, model.trunk.table.shape[0])
    ours = Half(model.eval())
    sums = losses(ours.load(), small.to(DEVICE))
    loss = sum(value / small.targets[name].count for name, value in sums.items())
    loss.backward()
    ours.give(fresh=True)
    peer.eval()
    with torch.autocast(DEVICE.type, torch.bfloat16):
        theirs = peer(**peer_inputs(few, small)).loss
    theirs.backward()
    grads = {name: torch.zeros_like(p) if p.grad is None else p.grad for name, p in peer.named_parameters()}
    expected = in_our_names(model, grads)
    a = torch.cat([p.grad.flatten().float() for p in model.parameters() if p.grad is not None])
    b = torch.cat([expected[n].flatten().float() for n, p in model.named_parameters() if p.grad is not None])
    for module in (model, peer):
        module.train()
        module.zero_grad(set_to_none=True)
    found = {"loss": abs(loss.item() - theirs.item()) / theirs.item(), "gradient": ((a - b).norm() / b.norm()).item()}
    if found["loss"] > 0.01 or found["gradient"] > 0.05:
        raise SystemExit(f"the two sides differ: {found}")
    return found


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


def train_ours(row: Row, model: Model, batch: Batch, peak: float, steps: int) -> Measured:
    fresh()
    optim = OptimSpec()
    run = Training(
        model, optim.build(model, model.trunk.groups()), optim, ScheduleSpec("constant"), 10**6, DEVICE, "bf16",
        terms=torch.compile(losses), record=True,
    )  # fmt: skip

    def data() -> Iterator[tuple[list[Batch], int]]:
        while True:
            yield [batch], 0

    reports = train(run, data())
    found = measure(lambda: next(reports), batch.num_tokens, training_flops(model, batch), peak, steps)
    reports.close()  # type: ignore[attr-defined]
    return found


def train_peer(row: Row, peer: Any, batch: Batch, flops: int, peak: float, steps: int, compiled: bool) -> Measured:
    fresh()
    model = torch.compile(peer) if compiled else peer
    optimiser = torch.optim.AdamW(peer.parameters(), lr=1e-4, fused=True)
    inputs = peer_inputs(row, batch)

    def step() -> None:
        optimiser.zero_grad(set_to_none=True)
        with torch.autocast("cuda", torch.bfloat16):
            loss = model(**inputs).loss
        loss.backward()
        torch.nn.utils.clip_grad_norm_(peer.parameters(), 1.0)
        optimiser.step()

    return measure(step, batch.num_tokens, flops, peak, steps)


def encode(row: Row, model: Model, peer: Any) -> dict[str, Measured]:
    """Mean vectors of texts of uneven length, ids given."""
    draw = np.random.default_rng(0)
    lengths = np.clip(np.exp(draw.normal(3.0, 0.85, row.sequences)).astype(int), 3, row.length)
    rows = [draw.integers(0, 30_522, n) for n in lengths]
    texts = [torch.from_numpy(ids) for ids in rows]
    half = copy.deepcopy(model).to(torch.bfloat16).eval()
    other = peer.bert.to(torch.bfloat16).eval()

    @torch.inference_mode()
    def ours(trunk: Callable[..., Any], budget: int = 65_536) -> torch.Tensor:
        bins = in_bins(rows, None, budget, DEVICE)
        found = np.empty((len(rows), row.size["dim"]), dtype=np.float32)
        for index, part in fetched((b.index, means(trunk(b.tokens, b.layout).last, b.layout)) for b in bins):
            found[index] = part
        return torch.from_numpy(found)

    @torch.inference_mode()
    def theirs(size: int, ordered: bool) -> torch.Tensor:
        found = torch.empty(len(texts), row.size["dim"], device=DEVICE)
        order = np.argsort(-lengths, kind="stable") if ordered else np.arange(len(texts))
        for start in range(0, len(texts), size):
            chosen = order[start : start + size]
            ids = torch.nn.utils.rnn.pad_sequence([texts[i] for i in chosen], batch_first=True).to(DEVICE)
            sizes = torch.from_numpy(lengths[chosen]).to(DEVICE)
            mask = torch.arange(ids.shape[1], device=DEVICE)[None] < sizes[:, None]
            states = other(input_ids=ids, attention_mask=mask.long()).last_hidden_state.float()
            found[torch.from_numpy(chosen).to(DEVICE)] = (states * mask[..., None]).sum(1) / sizes[:, None]
        return found.cpu()

    def clock(work: Callable[[], torch.Tensor]) -> Measured:
        fresh()
        began = time.monotonic()
        work()
        cold, times = time.monotonic() - began, []
        for _ in range(3):
            began = time.monotonic()
            work()
            times.append(time.monotonic() - began)
        return Measured(lengths.sum() / statistics.median(times), torch.cuda.max_memory_allocated() / 2**30, 0, cold)

    apart = (ours(half.trunk) - theirs(256, True)).norm() / theirs(256, True).norm()
    if apart > 0.03:
        raise SystemExit(f"the vectors differ by {apart:.3f}")
    return {
        "polyseme": clock(lambda: ours(half.trunk)),
        "transformers, batches of 64": clock(lambda: theirs(64, False)),
        "transformers, sorted, 256": clock(lambda: theirs(256, True)),
    }


def finetune(row: Row, model: Model, peak: float, steps: int, compiled_peer: bool) -> dict[str, Measured]:
    """Texts of uneven length with a label each, as a task has them: 32 a step, padded to the longest by the peer."""
    import transformers

    draw = np.random.default_rng(0)
    lengths = np.clip(np.exp(draw.normal(3.0, 0.85, 4096)).astype(int), 3, row.length)
    data = [Encoded(draw.integers(0, 30_522, n), np.zeros(n, np.int64), np.arange(0), int(n % 2)) for n in lengths]
    task, settings = Task("classification", ("a", "b")), FinetuneSpec(batch_size=row.sequences)
    config = transformers.BertConfig(
        num_hidden_layers=row.size["num_layers"], hidden_size=row.size["dim"],
        num_attention_heads=row.size["num_heads"], intermediate_size=4 * row.size["dim"], num_labels=2,
    )  # fmt: skip
    spec = ModelSpec("bert", model.spec.trunk, {"classify": LabelHeadSpec(task.labels, "pooled", row.dropout)})
    ours = spec.build(seed=0).to(DEVICE)
    run = Training(
        ours, settings.optim.build(ours, ours.trunk.groups()), settings.optim, ScheduleSpec("constant"), 10**6, DEVICE,
        "bf16", record=True,
    )  # fmt: skip
    count = 3 * steps + 40
    chosen = [batches[0] for batches, _ in itertools.islice(all_steps(task, data, settings, 0), count)]
    tokens = int(statistics.mean(batch.num_tokens for batch in chosen))
    flops = int(statistics.mean(training_flops(ours, batch) for batch in chosen))
    fresh()
    reports = train(run, all_steps(task, data, settings, 0, run))
    for _ in range(200):  # the shapes that occur are recorded in these
        next(reports)
    found = {"polyseme": measure(lambda: next(reports), tokens, flops, peak, 64)}
    reports.close()  # type: ignore[attr-defined]
    peer = transformers.BertForSequenceClassification(config).to(DEVICE)
    inputs = [
        {
            "input_ids": batch.layout.pad(batch.tokens).to(DEVICE),
            "attention_mask": batch.layout.mask().long().to(DEVICE),
            "labels": batch.targets["classify"].values.to(DEVICE),
        }
        for batch in chosen
    ]
    optimiser = torch.optim.AdamW(peer.parameters(), lr=1e-4, fused=True)

    def stepper(model: Any) -> Callable[[], None]:
        turn = itertools.cycle(inputs)

        def step() -> None:
            optimiser.zero_grad(set_to_none=True)
            with torch.autocast("cuda", torch.bfloat16):
                loss = model(**next(turn)).loss
            loss.backward()
            torch.nn.utils.clip_grad_norm_(peer.parameters(), 1.0)
            optimiser.step()

        return step

    fresh()
    found["transformers"] = measure(stepper(peer), tokens, flops, peak, 32)
    if compiled_peer:
        fresh()
        found["transformers, compiled"] = measure(stepper(torch.compile(peer, dynamic=True)), tokens, flops, peak, 32)
    return found


def documents(row: Row, peer: Any, model: Model, folder: Path, peak: float, steps: int) -> dict[str, Measured]:
    """Real text of uneven length, from the corpus on disk to the step."""
    size = row.sequences * row.length
    recipe = Recipe(
        name="benchmark", family=row.family,
        model={**row.size, "dropout": row.dropout, "attention_dropout": row.dropout},
        objective=MaskedPairs(), max_len=row.length, batch_tokens=size, bin_tokens=size, compile=True, holdout=0.0,
    )  # fmt: skip
    corpus = Corpus.open(folder)
    if corpus.vocab_size != model.trunk.table.shape[0]:
        raise SystemExit(f"{folder} has a vocabulary of {corpus.vocab_size}, not {model.trunk.table.shape[0]}")
    data, _ = open_data(recipe, corpus, Tokenizer.load(folder / "tokenizer"), 0, 1)
    samples = [batch for batches, _ in itertools.islice(data.steps(Cursor()), 4) for batch in batches]
    optim = OptimSpec()
    run = Training(
        model, optim.build(model, model.trunk.groups()), optim, ScheduleSpec("constant"), 10**6, DEVICE, "bf16",
        terms=torch.compile(losses), record=True,
    )  # fmt: skip
    fresh()
    reports = train(run, data.steps(Cursor()))
    tokens = statistics.mean(batch.num_tokens for batch in samples)
    flops = int(statistics.mean(training_flops(model, batch) for batch in samples))
    found = {"polyseme": measure(lambda: next(reports), int(tokens), flops, peak, steps)}
    reports.close()  # type: ignore[attr-defined]
    del run, model
    fresh()
    ready = list(padded(row, samples))
    counts = [int(inputs["attention_mask"].sum()) for inputs in ready]
    optimiser = torch.optim.AdamW(peer.parameters(), lr=1e-4, fused=True)
    turn = itertools.cycle(ready)

    def step() -> None:
        optimiser.zero_grad(set_to_none=True)
        with torch.autocast("cuda", torch.bfloat16):
            loss = peer(**next(turn)).loss
        loss.backward()
        torch.nn.utils.clip_grad_norm_(peer.parameters(), 1.0)
        optimiser.step()

    found["transformers"] = measure(step, int(statistics.mean(counts)), flops, peak, max(len(ready), 5))
    found["transformers"].mfu = 0.0
    return found


def padded(row: Row, samples: list[Batch]) -> Iterator[dict[str, torch.Tensor]]:
    """The sequences of packed batches, mixed, in padded batches as the peer takes them."""
    sequences = []
    for batch in samples:
        labels = torch.full_like(batch.tokens, -100)
        masked, pair = batch.targets["masked"], batch.targets["pair"]
        real = masked.values != -100
        labels[masked.rows[real]] = masked.values[real]
        answers = dict(zip(pair.rows.tolist(), pair.values.tolist()))
        assert batch.segments is not None
        parts = (each.split(list(batch.layout.lengths)) for each in (batch.tokens, labels, batch.segments))
        for number, (tokens, label, segments) in enumerate(zip(*parts)):
            if answers.get(number, -100) != -100:  # the rest is filler
                sequences.append((tokens, label, segments, answers[number]))
    order = np.random.default_rng(0).permutation(len(sequences))
    for start in range(0, len(order) - row.sequences + 1, row.sequences):
        chosen = [sequences[i] for i in order[start : start + row.sequences]]
        pad = torch.nn.utils.rnn.pad_sequence
        tokens, labels, segments = (
            pad([each[part] for each in chosen], batch_first=True, padding_value=value).to(DEVICE)
            for part, value in ((0, 0), (1, -100), (2, 0))
        )
        lengths = torch.tensor([len(each[0]) for each in chosen], device=DEVICE)
        yield {
            "input_ids": tokens,
            "labels": labels,
            "token_type_ids": segments,
            "attention_mask": (torch.arange(tokens.shape[1], device=DEVICE)[None] < lengths[:, None]).long(),
            "next_sentence_label": torch.tensor([each[3] for each in chosen], device=DEVICE),
        }


def measure_row(row: Row, peak: float, steps: int, compiled_peer: bool, corpus: Path | None) -> dict[str, Measured]:
    torch.manual_seed(0)
    peer = peer_model(row).to(DEVICE)
    model = our_model(row, peer).to(DEVICE)
    if row.work == "encode":
        return encode(row, model, peer)
    if row.work == "finetune":
        del peer
        return finetune(row, model, peak, steps, compiled_peer)
    if row.work == "documents":
        if corpus is None:
            raise SystemExit("rows on documents need --corpus")
        return documents(row, peer, model, corpus, peak, steps)
    batch = our_batch(row, model.trunk.table.shape[0])
    notes = check(model, peer, row, batch)
    found = {"polyseme": train_ours(row, model, batch, peak, steps)}
    found["polyseme"].notes = notes
    flops = training_flops(model, batch)
    del model
    found["transformers"] = train_peer(row, peer, batch, flops, peak, max(steps // 2, 5), False)
    if compiled_peer:
        found["transformers, compiled"] = train_peer(row, peer, batch, flops, peak, steps, True)
    return found


def matrix_peak() -> float:
    """Operations a second of a large matrix product in bf16."""
    a, b = (torch.randn(8192, 8192, device=DEVICE, dtype=torch.bfloat16) for _ in range(2))
    for _ in range(5):
        a @ b
    return 2 * 8192**3 / (timed(lambda: a @ b, 20) / 1e3)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rows", nargs="*", default=list(ROWS), choices=list(ROWS))
    parser.add_argument("--corpus", type=Path, help="with BERT's vocabulary of 30,522, for the rows on documents")
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--no-compiled-peer", action="store_true")
    parser.add_argument("--out", type=Path)
    given = parser.parse_args()
    if not torch.cuda.is_available():
        raise SystemExit("this benchmark needs a GPU")
    peak = matrix_peak()
    print(header(f"one GPU, bf16; matrix product {peak / 1e12:.0f} TFLOP/s"), flush=True)
    lines, kept = [], {}
    for name in given.rows:
        found = measure_row(ROWS[name], peak, given.steps, not given.no_compiled_peer, given.corpus)
        kept[name] = {who: asdict(each) for who, each in found.items()}
        for who, each in found.items():
            ratio = found["polyseme"].tokens / each.tokens
            lines.append(
                (
                    name,
                    who,
                    f"{each.tokens:,.0f}",
                    f"{ratio:.2f}×",
                    f"{each.memory:.1f}",
                    f"{each.mfu:.2f}" if each.mfu else "",
                    f"{each.cold:.0f}",
                    ", ".join(f"{k} {v:.1e}" for k, v in each.notes.items()),
                )
            )
            print(*lines[-1], flush=True)
        if given.out:
            given.out.write_text(json.dumps(kept, indent=2))
    names = ["row", "who", "tokens/s", "polyseme is faster by", "GiB", "MFU", "first step, s", "apart"]
    print("\n" + table(names, lines))


if __name__ == "__main__":
    main()

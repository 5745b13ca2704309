"""The rows of `gpu.py` on texts of uneven length: encoding, fine-tuning, and pre-training on documents."""

from __future__ import annotations

import copy
import itertools
import statistics
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch
from gpu_parts import DEVICE, Measurement, Row, measure, reset
from peers import in_our_names, peer_step

from polyseme.corpus.sampling import DataPosition
from polyseme.corpus.store import Corpus
from polyseme.families import FAMILIES
from polyseme.finetuning.config import FinetuneConfig
from polyseme.finetuning.experiment import epoch_batches as all_steps
from polyseme.inference.packed_model import mean_pool, packed_batches, to_host_async
from polyseme.nn.attention.relative import exclude_from_compile
from polyseme.nn.heads.classification import ClassificationHeadConfig
from polyseme.nn.model import Model, ModelConfig
from polyseme.objectives.batch import Batch
from polyseme.objectives.losses import compute_losses
from polyseme.objectives.packing import SpecialIds, pad_to_bucket
from polyseme.objectives.sentence_pairs import MaskedLMWithSentencePairs
from polyseme.tasks.classification import ClassificationTask
from polyseme.tasks.encoded import EncodedExample
from polyseme.text.tokenizer import Tokenizer
from polyseme.train.loop import TrainState, count_training_flops, train
from polyseme.train.optimizer import OptimizerConfig, ScheduleConfig
from polyseme.train.recipe import Recipe
from polyseme.train.streams import open_streams


def encode(row: Row, model: Model, peer: Any) -> dict[str, Measurement]:
    """Compute mean vectors of texts of uneven length from their ids."""
    draw = np.random.default_rng(0)
    lengths = np.clip(np.exp(draw.normal(3.0, 0.85, row.sequences)).astype(int), 3, row.length)
    rows = [draw.integers(0, 30_522, n) for n in lengths]
    texts = [torch.from_numpy(ids) for ids in rows]
    half = copy.deepcopy(model).to(torch.bfloat16).eval()
    other = peer.bert.to(torch.bfloat16).eval()

    @torch.inference_mode()
    def ours(trunk: Callable[..., Any], budget: int = 65_536) -> torch.Tensor:
        bins = packed_batches(rows, None, budget, DEVICE)
        vectors = np.empty((len(rows), row.size["dim"]), dtype=np.float32)
        for index, part in to_host_async((b.indices, mean_pool(trunk(b.inputs).hidden, b.inputs.layout)) for b in bins):
            vectors[index] = part
        return torch.from_numpy(vectors)

    @torch.inference_mode()
    def theirs(size: int, ordered: bool) -> torch.Tensor:
        vectors = torch.empty(len(texts), row.size["dim"], device=DEVICE)
        order = np.argsort(-lengths, kind="stable") if ordered else np.arange(len(texts))
        for start in range(0, len(texts), size):
            chosen = order[start : start + size]
            ids = torch.nn.utils.rnn.pad_sequence([texts[i] for i in chosen], batch_first=True).to(DEVICE)
            sizes = torch.from_numpy(lengths[chosen]).to(DEVICE)
            mask = torch.arange(ids.shape[1], device=DEVICE)[None] < sizes[:, None]
            states = other(input_ids=ids, attention_mask=mask.long()).last_hidden_state.float()
            vectors[torch.from_numpy(chosen).to(DEVICE)] = (states * mask[..., None]).sum(1) / sizes[:, None]
        return vectors.cpu()

    def clock(work: Callable[[], torch.Tensor]) -> Measurement:
        reset()
        times = []
        for _ in range(4):
            start = time.monotonic()
            work()
            times.append(time.monotonic() - start)
        cold, *times = times
        return Measurement(lengths.sum() / statistics.median(times), torch.cuda.max_memory_allocated() / 2**30, 0, cold)

    difference = (ours(half.trunk) - theirs(256, True)).norm() / theirs(256, True).norm()
    if difference > 0.03:
        raise SystemExit(f"the vectors differ by {difference:.3f}")
    return {
        "polyseme": clock(lambda: ours(half.trunk)),
        "transformers, batches of 64": clock(lambda: theirs(64, False)),
        "transformers, sorted, 256": clock(lambda: theirs(256, True)),
    }


def finetune(row: Row, peak: float, compiled_peer: bool) -> dict[str, Measurement]:
    """Fine-tune on labeled texts of uneven length; the peer pads each batch to its longest text."""
    import transformers

    draw = np.random.default_rng(0)
    lengths = np.clip(np.exp(draw.normal(3.0, 0.85, 4096)).astype(int), 3, row.length)
    data = [
        EncodedExample(draw.integers(0, 30_522, n), np.zeros(n, np.int64), np.arange(0), int(n % 2)) for n in lengths
    ]
    task, settings = ClassificationTask(("a", "b")), FinetuneConfig(batch_size=row.sequences)
    config = transformers.BertConfig(
        num_hidden_layers=row.size["num_layers"], hidden_size=row.size["dim"],
        num_attention_heads=row.size["num_heads"], intermediate_size=4 * row.size["dim"], num_labels=2,
    )  # fmt: skip
    peer = transformers.BertForSequenceClassification(config).to(DEVICE)
    spec = FAMILIES["bert"].model_config(**row.size, dropout=row.dropout, attention_dropout=row.dropout)
    spec = ModelConfig("bert", spec.trunk, {"classify": ClassificationHeadConfig(task.labels, "pooled", row.dropout)})
    ours = spec.build(seed=0)
    ours.load_state_dict(in_our_names(ours, peer.state_dict()))
    ours.to(DEVICE)
    chosen = [batches[0] for batches, _ in itertools.islice(all_steps(task, data, settings, 0), 128)]
    inputs = [
        {
            "input_ids": batch.inputs.layout.pad(batch.inputs.tokens).to(DEVICE),
            "attention_mask": batch.inputs.layout.attention_mask().long().to(DEVICE),
            "labels": batch.targets["classify"].labels.to(DEVICE),
        }
        for batch in chosen
    ]
    with torch.no_grad():
        mine = compute_losses(ours.eval(), chosen[0].to(DEVICE))["classify"] / row.sequences
        difference = abs(mine - peer.eval()(**inputs[0]).loss).item()
    if difference > 0.01:
        raise SystemExit(f"the two sides differ: {difference}")
    tokens = int(statistics.mean(batch.num_tokens for batch in chosen))
    flops = int(statistics.mean(count_training_flops(ours, batch) for batch in chosen))
    peer.train()

    def warm_step(model: Any) -> Callable[[], None]:
        """Return a step that has run on every shape, so that its memory is allocated."""
        step = peer_step(peer, itertools.cycle(inputs), model)
        for _ in inputs:
            step()
        return step

    reset()
    others = {"transformers": measure(warm_step(peer), tokens, flops, peak, 64)}
    if compiled_peer:
        reset()
        compiled_step = warm_step(torch.compile(peer, dynamic=True))
        others["transformers, compiled"] = measure(compiled_step, tokens, flops, peak, 64)
    reset()
    run = TrainState(
        ours, settings.optimizer.build(ours, ours.trunk.layer_groups()), settings.optimizer, ScheduleConfig("constant"),
        10**6, DEVICE, "bf16", use_cuda_graphs=True,
    )  # fmt: skip
    trunk = ours.config.trunk
    steps = (
        ([pad_to_bucket(batch.for_trunk(trunk), trunk.embeddings.max_len) for batch in batches], position)
        for batches, position in all_steps(task, data, settings, 0)
    )
    reports = train(run, steps)
    for _ in range(4 * len(inputs)):  # CUDA graphs of the shapes are captured in these
        next(reports)
    result = measure(lambda: next(reports), tokens, flops, peak, 64)
    result.notes = {"loss": difference}
    reports.close()  # type: ignore[attr-defined]
    return {"polyseme": result, **others}


def documents(row: Row, peer: Any, model: Model, folder: Path, peak: float, steps: int) -> dict[str, Measurement]:
    """Pre-train on documents of uneven length, from the corpus on disk to the step."""
    size = row.sequences * row.length
    recipe = Recipe(
        name="benchmark", family=row.family,
        model={**row.size, "dropout": row.dropout, "attention_dropout": row.dropout},
        objective=MaskedLMWithSentencePairs(), max_len=row.length, batch_tokens=size, micro_batch_tokens=size,
        compile=True, valid_fraction=0.0,
    )  # fmt: skip
    corpus = Corpus.open(folder)
    if corpus.vocab_size != model.trunk.token_embeddings.shape[0]:
        raise SystemExit(
            f"{folder} has a vocabulary of {corpus.vocab_size}, not {model.trunk.token_embeddings.shape[0]}"
        )
    data, _ = open_streams(recipe, corpus, SpecialIds.from_tokenizer(Tokenizer.load(folder / "tokenizer")))
    samples = [batch for batches, _ in itertools.islice(data.steps(DataPosition()), 4) for batch in batches]
    exclude_from_compile()
    optim = OptimizerConfig()
    run = TrainState(
        model, optim.build(model, model.trunk.layer_groups()), optim, ScheduleConfig("constant"), 10**6, DEVICE, "bf16",
        loss_fn=torch.compile(compute_losses), use_cuda_graphs=True,
    )  # fmt: skip
    reset()
    reports = train(run, data.steps(DataPosition()))
    tokens = statistics.mean(batch.num_tokens for batch in samples)
    flops = int(statistics.mean(count_training_flops(model, batch) for batch in samples))
    results = {"polyseme": measure(lambda: next(reports), int(tokens), flops, peak, steps)}
    reports.close()  # type: ignore[attr-defined]
    del run, model
    reset()
    ready = list(padded(row, samples))
    counts = [int(inputs["attention_mask"].sum()) for inputs in ready]
    step = peer_step(peer, itertools.cycle(ready))
    results["transformers"] = measure(step, int(statistics.mean(counts)), flops, peak, max(len(ready), 5))
    results["transformers"].mfu = 0.0
    return results


def padded(row: Row, samples: list[Batch]) -> Iterator[dict[str, torch.Tensor]]:
    """Yield the sequences of packed batches, shuffled, as padded batches for the peer."""
    sequences = []
    for batch in samples:
        labels = torch.full_like(batch.inputs.tokens, -100)
        masked, pair = batch.targets["masked"], batch.targets["pair"]
        real = masked.labels != -100
        labels[masked.rows[real]] = masked.labels[real]
        answers = dict(zip(pair.rows.tolist(), pair.labels.tolist()))
        assert batch.inputs.segments is not None
        parts = (
            each.split(list(batch.inputs.layout.lengths))
            for each in (batch.inputs.tokens, labels, batch.inputs.segments)
        )
        for number, (tokens, label, segments) in enumerate(zip(*parts)):
            if answers.get(number, -100) != -100:  # others are filler
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

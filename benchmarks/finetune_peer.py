"""Fine-tuning with `transformers`: its Trainer, or a plain loop if `accelerate` is not installed.

Texts are tokenized before the time starts; batches are padded to their longest text; the optimizer is the Trainer's
default; nothing is evaluated, saved or logged during training.
"""

from __future__ import annotations

import importlib.util
import math
import tempfile
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

from polyseme.config import Config

IGNORED = -100  # label without a loss
N_BEST = 20


@dataclass(frozen=True)
class Settings(Config):
    """Settings of both sides. Windows of a text overlap by `overlap` tokens; answers have at most `longest` tokens."""

    epochs: float = 3.0
    batch_size: int = 16
    rate: float = 5e-5
    warmup: float = 0.1
    decay: float = 0.01
    eps: float = 1e-8
    max_len: int = 128
    overlap: int = 128
    longest: int = 30


@dataclass(frozen=True)
class PeerResult:
    """Predictions for the dev examples, training time, and number of training sequences."""

    predictions: list[Any]
    seconds: float
    num_sequences: int


def peer_name() -> str:
    """Return how the peer is trained."""
    return "Trainer" if importlib.util.find_spec("accelerate") else "plain PyTorch loop"


def run_peer(
    folder: Path,
    kind: str,
    train: Sequence[Any],
    dev: Sequence[Any],
    labels: Sequence[str],
    settings: Settings,
    seed: int,
    device: torch.device,
    by_length: bool = False,
) -> PeerResult:
    """Fine-tune the model of `transformers` and predict; `by_length` groups texts of similar length into batches."""
    import transformers as t

    torch.use_deterministic_algorithms(False)  # ours sets it on a CPU; the Trainer does not
    t.logging.set_verbosity_error()
    t.logging.disable_progress_bar()
    t.set_seed(seed)
    tokenizer = t.AutoTokenizer.from_pretrained(folder)
    classes: dict[str, Any] = {
        "tagging": t.AutoModelForTokenClassification,
        "extractive_qa": t.AutoModelForQuestionAnswering,
    }
    model_class = classes.get(kind, t.AutoModelForSequenceClassification)
    sizes = {} if kind == "extractive_qa" else {"num_labels": 1 if kind == "regression" else len(labels)}
    model = model_class.from_pretrained(folder, **sizes)
    numbers = {label: i for i, label in enumerate(labels)}
    encode = {"tagging": _words, "extractive_qa": _windows}.get(kind, _texts)
    rows = encode(tokenizer, [e for e in train if getattr(e, "is_trainable", True)], kind, numbers, settings, True)
    collate = t.DataCollatorWithPadding
    if kind == "tagging":
        collate = t.DataCollatorForTokenClassification
    padded = collate(tokenizer, pad_to_multiple_of=8 if device.type == "cuda" else None)
    learn = _trainer if peer_name() == "Trainer" else _loop
    inputs = [{name: value for name, value in row.items() if not name.startswith("_")} for row in rows]
    seconds = learn(model, tokenizer, inputs, padded, settings, seed, device, by_length)
    dev_rows = encode(tokenizer, dev, kind, numbers, settings, False)
    scores = _scores(model.to(device).eval(), dev_rows, padded, device)
    return PeerResult(_answers(kind, dev_rows, scores, dev, labels, settings), seconds, len(rows))


def _trainer(
    model: Any,
    tokenizer: Any,
    rows: list[dict[str, Any]],
    collate: Any,
    settings: Settings,
    seed: int,
    device: torch.device,
    by_length: bool,
) -> float:
    import transformers as t

    cuda = device.type == "cuda"
    with tempfile.TemporaryDirectory() as scratch:
        arguments = t.TrainingArguments(
            scratch,
            num_train_epochs=settings.epochs,
            per_device_train_batch_size=settings.batch_size,
            learning_rate=settings.rate,
            lr_scheduler_type="linear",
            warmup_steps=settings.warmup,  # a fraction if below 1
            weight_decay=settings.decay,
            adam_epsilon=settings.eps,
            seed=seed,
            bf16=cuda,
            use_cpu=not cuda,
            dataloader_num_workers=4 if cuda else 0,
            dataloader_persistent_workers=cuda,
            dataloader_pin_memory=cuda,
            train_sampling_strategy="group_by_length" if by_length else "random",
            save_strategy="no",
            logging_strategy="no",
            report_to="none",
            disable_tqdm=True,
        )
        trainer = t.Trainer(model, arguments, collate, rows, processing_class=tokenizer)
        trainer.remove_callback(t.PrinterCallback)
        return timed(trainer.train)


def _loop(
    model: Any,
    tokenizer: Any,
    rows: list[dict[str, Any]],
    collate: Any,
    settings: Settings,
    seed: int,
    device: torch.device,
    by_length: bool,
) -> float:
    """Train as the Trainer does: AdamW without decay of biases and norms, clipping, a linear schedule."""
    cuda = device.type == "cuda"
    model.to(device).train()
    draw = torch.Generator().manual_seed(seed)
    batches = _ByLength(rows, settings.batch_size, seed) if by_length else None
    plain = {"batch_size": settings.batch_size, "shuffle": True, "generator": draw} if batches is None else {}
    loader = torch.utils.data.DataLoader(
        rows,  # type: ignore[arg-type]
        batch_sampler=batches,
        collate_fn=collate,
        num_workers=4 if cuda else 0,
        persistent_workers=cuda,
        pin_memory=cuda,
        **plain,  # type: ignore[arg-type]
    )
    decayed = [p for name, p in model.named_parameters() if "bias" not in name and "LayerNorm" not in name]
    others = [p for name, p in model.named_parameters() if "bias" in name or "LayerNorm" in name]
    groups = [{"params": decayed, "weight_decay": settings.decay}, {"params": others, "weight_decay": 0.0}]
    optimizer = torch.optim.AdamW(groups, lr=settings.rate, eps=settings.eps, fused=True)
    total = math.ceil(settings.epochs * len(loader))
    warm = max(math.ceil(settings.warmup * total), 1)
    schedule = torch.optim.lr_scheduler.LambdaLR(
        optimizer, lambda step: step / warm if step < warm else max(0.0, (total - step) / max(total - warm, 1))
    )

    def go() -> None:
        done = 0
        while done < total:
            for batch in loader:
                inputs = {name: value.to(device, non_blocking=True) for name, value in batch.items()}
                with torch.autocast(device.type, torch.bfloat16, enabled=cuda):
                    loss = model(**inputs).loss
                loss.backward()
                torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
                optimizer.step()
                schedule.step()
                optimizer.zero_grad()
                done += 1
                if done == total:
                    break

    return timed(go)


class _ByLength:
    """Batches of the Trainer's `group_by_length`: sorted within groups of fifty, shuffled again each epoch."""

    def __init__(self, rows: Sequence[dict[str, Any]], size: int, seed: int):
        self.lengths, self.size, self.draw = [len(row["input_ids"]) for row in rows], size, np.random.default_rng(seed)

    def __len__(self) -> int:
        return math.ceil(len(self.lengths) / self.size)

    def __iter__(self) -> Iterator[list[int]]:
        order = self.draw.permutation(len(self.lengths)).tolist()
        for start in range(0, len(order), 50 * self.size):
            part = sorted(order[start : start + 50 * self.size], key=lambda i: -self.lengths[i])
            yield from (part[i : i + self.size] for i in range(0, len(part), self.size))


def timed(function: Callable[[], object]) -> float:
    """Return the seconds that a call takes."""
    start = time.perf_counter()
    function()
    if torch.cuda.is_available():
        torch.cuda.synchronize()
    return time.perf_counter() - start


def _texts(tokenizer: Any, examples: Any, kind: str, numbers: Any, settings: Settings, labeled: bool) -> list[Any]:
    pairs = [e.pair for e in examples] if examples[0].pair is not None else None
    encoded = tokenizer([e.text for e in examples], pairs, truncation=True, max_length=settings.max_len)
    rows = [{name: encoded[name][i] for name in encoded} for i in range(len(examples))]
    for row, example in zip(rows, examples) if labeled else ():
        row["labels"] = float(example.label) if kind == "regression" else numbers[example.label]
    return rows


def _words(tokenizer: Any, examples: Any, kind: str, numbers: Any, settings: Settings, labeled: bool) -> list[Any]:
    """Encode words; the label of a word is on its first piece."""
    encoded = tokenizer(
        [list(e.words) for e in examples], is_split_into_words=True, truncation=True, max_length=settings.max_len
    )
    rows = []
    for i, example in enumerate(examples):
        owners = encoded.word_ids(i)
        first = [owner if owner != before else None for owner, before in zip(owners, [None, *owners])]
        row = {name: encoded[name][i] for name in encoded} | {"_first": first}
        if labeled:
            row["labels"] = [IGNORED if word is None else numbers[example.tags[word]] for word in first]
        rows.append(row)
    return rows


def _windows(tokenizer: Any, examples: Any, kind: str, numbers: Any, settings: Settings, labeled: bool) -> list[Any]:
    """Encode question and window; the target of a window without the whole answer is the first token."""
    encoded = tokenizer(
        [e.question for e in examples],
        [e.context for e in examples],
        truncation="only_second",
        max_length=settings.max_len,
        stride=settings.overlap,
        return_overflowing_tokens=True,
        return_offsets_mapping=True,
    )
    owners, offsets = encoded.pop("overflow_to_sample_mapping"), encoded.pop("offset_mapping")
    rows = []
    for i, owner in enumerate(owners):
        inside = [part == 1 for part in encoded.sequence_ids(i)]
        row = {name: encoded[name][i] for name in encoded}
        row |= {"_of": owner, "_offsets": [at if held else None for at, held in zip(offsets[i], inside)]}
        if labeled:
            text, begin = examples[owner].valid_answers[0]
            places = [k for k, held in enumerate(inside) if held]
            row["start_positions"] = row["end_positions"] = 0
            if offsets[i][places[0]][0] <= begin and offsets[i][places[-1]][1] >= begin + len(text):
                row["start_positions"] = next(k for k in places if offsets[i][k][1] > begin)
                row["end_positions"] = next(k for k in reversed(places) if offsets[i][k][0] < begin + len(text))
        rows.append(row)
    return rows


@torch.inference_mode()
def _scores(model: Any, rows: list[dict[str, Any]], collate: Any, device: torch.device) -> list[np.ndarray]:
    """Return scores [labels] or [tokens, labels] of each sequence, in float32."""
    order = sorted(range(len(rows)), key=lambda i: -len(rows[i]["input_ids"]))
    scores_by_row: list[np.ndarray] = [np.empty(0)] * len(rows)
    names = ("input_ids", "attention_mask", "token_type_ids")
    for start in range(0, len(order), 32):
        part = order[start : start + 32]
        batch = collate.tokenizer.pad(
            [{name: rows[i][name] for name in names if name in rows[i]} for i in part], return_tensors="pt"
        )
        output = model(**{name: value.to(device) for name, value in batch.items()})
        scores = output.logits if "logits" in output else torch.stack([output.start_logits, output.end_logits], -1)
        for i, one in zip(part, scores.float().cpu().numpy()):
            scores_by_row[i] = one[: len(rows[i]["input_ids"])] if scores.ndim == 3 else one
    return scores_by_row


def _answers(
    kind: str,
    rows: Sequence[dict[str, Any]],
    scores: Sequence[np.ndarray],
    examples: Sequence[Any],
    labels: Sequence[str],
    settings: Settings,
) -> list[Any]:
    """Return what the metrics need: a label, a number, tags (None for a truncated word), or a text."""
    if kind == "regression":
        return [float(one[0]) for one in scores]
    if kind == "extractive_qa":
        return _best_texts(rows, scores, examples, settings.longest)
    if kind != "tagging":
        return [labels[int(one.argmax())] for one in scores]
    tags = []
    for row, one, example in zip(rows, scores, examples):
        best: list[str | None] = [None] * len(example.words)
        for word, place in zip(row["_first"], one.argmax(-1).tolist()):
            if word is not None:
                best[word] = labels[place]
        tags.append(tuple(best))
    return tags


def _best_texts(
    rows: Sequence[dict[str, Any]], scores: Sequence[np.ndarray], examples: Sequence[Any], longest: int
) -> list[str]:
    """Return the span with the highest sum of start and end scores, among the best twenty of each."""
    best: dict[int, tuple[float, str]] = defaultdict(lambda: (-math.inf, ""))
    for row, one in zip(rows, scores):
        of, offsets = row["_of"], row["_offsets"]
        starts, ends = (np.argsort(-one[:, k], kind="stable")[:N_BEST].tolist() for k in (0, 1))
        for start in starts:
            for end in ends:
                if offsets[start] is None or offsets[end] is None or not start <= end < start + longest:
                    continue
                value = float(one[start, 0] + one[end, 1])
                if value > best[of][0]:
                    best[of] = value, examples[of].context[offsets[start][0] : offsets[end][1]]
    return [best[i][1] for i in range(len(examples))]

"""Fine-tuning as users of `transformers` write it: its Trainer, or where `accelerate` is not installed a plain loop.

Texts are tokenised before the clock starts; batches are padded to their longest text; the optimiser is the Trainer's
default one; nothing is measured, saved or logged in between.
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

IGNORED = -100  # the label that no loss is taken of
N_BEST = 20


@dataclass(frozen=True)
class Settings(Config):
    """What both sides do alike. Windows of a text overlap by `overlap` tokens; answers have at most `longest`."""

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
class Learnt:
    """What a side says of the dev examples, how long its training took, and of how many sequences."""

    said: list[Any]
    seconds: float
    sequences: int


def way() -> str:
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
) -> Learnt:
    """Fine-tune the model of `transformers` and ask it. With `by_length` its batches are of texts of like length."""
    import transformers as t

    torch.use_deterministic_algorithms(False)  # ours sets it on a CPU; nobody who uses the Trainer does
    t.logging.set_verbosity_error()
    t.logging.disable_progress_bar()
    t.set_seed(seed)
    tokenizer = t.AutoTokenizer.from_pretrained(folder)
    classes: dict[str, Any] = {
        "tagging": t.AutoModelForTokenClassification,
        "extractive_qa": t.AutoModelForQuestionAnswering,
    }
    made = classes.get(kind, t.AutoModelForSequenceClassification)
    sizes = {} if kind == "extractive_qa" else {"num_labels": 1 if kind == "regression" else len(labels)}
    model = made.from_pretrained(folder, **sizes)
    numbers = {label: i for i, label in enumerate(labels)}
    encode = {"tagging": _words, "extractive_qa": _windows}.get(kind, _texts)
    rows = encode(tokenizer, [e for e in train if getattr(e, "is_trainable", True)], kind, numbers, settings, True)
    collate = t.DataCollatorWithPadding
    if kind == "tagging":
        collate = t.DataCollatorForTokenClassification
    padded = collate(tokenizer, pad_to_multiple_of=8 if device.type == "cuda" else None)
    learn = _trainer if way() == "Trainer" else _loop
    inputs = [{name: value for name, value in row.items() if not name.startswith("_")} for row in rows]
    seconds = learn(model, tokenizer, inputs, padded, settings, seed, device, by_length)
    asked = encode(tokenizer, dev, kind, numbers, settings, False)
    scores = _scores(model.to(device).eval(), asked, padded, device)
    return Learnt(_answers(kind, asked, scores, dev, labels, settings), seconds, len(rows))


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
            warmup_steps=settings.warmup,  # below 1 a share
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
    """What the Trainer does, written out: AdamW without decay of biases and norms, clipping, a linear schedule."""
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
    optimiser = torch.optim.AdamW(groups, lr=settings.rate, eps=settings.eps, fused=True)
    total = math.ceil(settings.epochs * len(loader))
    warm = max(math.ceil(settings.warmup * total), 1)
    schedule = torch.optim.lr_scheduler.LambdaLR(
        optimiser, lambda step: step / warm if step < warm else max(0.0, (total - step) / max(total - warm, 1))
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
                optimiser.step()
                schedule.step()
                optimiser.zero_grad()
                done += 1
                if done == total:
                    break

    return timed(go)


class _ByLength:
    """Batches as the Trainer's `group_by_length` has them: sorted inside stretches of fifty, drawn anew each epoch."""

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
    began = time.perf_counter()
    function()
    if torch.cuda.is_available():
        torch.cuda.synchronize()
    return time.perf_counter() - began


def _texts(tokenizer: Any, examples: Any, kind: str, numbers: Any, settings: Settings, labelled: bool) -> list[Any]:
    pairs = [e.pair for e in examples] if examples[0].pair is not None else None
    found = tokenizer([e.text for e in examples], pairs, truncation=True, max_length=settings.max_len)
    rows = [{name: found[name][i] for name in found} for i in range(len(examples))]
    for row, example in zip(rows, examples) if labelled else ():
        row["labels"] = float(example.label) if kind == "regression" else numbers[example.label]
    return rows


def _words(tokenizer: Any, examples: Any, kind: str, numbers: Any, settings: Settings, labelled: bool) -> list[Any]:
    """A word's tag is on its first piece."""
    given = [list(e.words) for e in examples]
    found = tokenizer(given, is_split_into_words=True, truncation=True, max_length=settings.max_len)
    rows = []
    for i, example in enumerate(examples):
        owners = found.word_ids(i)
        first = [owner if owner != before else None for owner, before in zip(owners, [None, *owners])]
        row = {name: found[name][i] for name in found} | {"_first": first}
        if labelled:
            row["labels"] = [IGNORED if word is None else numbers[example.tags[word]] for word in first]
        rows.append(row)
    return rows


def _windows(tokenizer: Any, examples: Any, kind: str, numbers: Any, settings: Settings, labelled: bool) -> list[Any]:
    """Question and window; a window without the whole answer points at the first token."""
    found = tokenizer(
        [e.question for e in examples],
        [e.context for e in examples],
        truncation="only_second",
        max_length=settings.max_len,
        stride=settings.overlap,
        return_overflowing_tokens=True,
        return_offsets_mapping=True,
    )
    owners, offsets = found.pop("overflow_to_sample_mapping"), found.pop("offset_mapping")
    rows = []
    for i, owner in enumerate(owners):
        inside = [part == 1 for part in found.sequence_ids(i)]
        row = {name: found[name][i] for name in found}
        row |= {"_of": owner, "_offsets": [at if held else None for at, held in zip(offsets[i], inside)]}
        if labelled:
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
    """Of each sequence [labels], or [tokens, labels]; read sorted by length, in float32."""
    order = sorted(range(len(rows)), key=lambda i: -len(rows[i]["input_ids"]))
    found: list[np.ndarray] = [np.empty(0)] * len(rows)
    names = ("input_ids", "attention_mask", "token_type_ids")
    for start in range(0, len(order), 32):
        part = order[start : start + 32]
        batch = collate.tokenizer.pad(
            [{name: rows[i][name] for name in names if name in rows[i]} for i in part], return_tensors="pt"
        )
        said = model(**{name: value.to(device) for name, value in batch.items()})
        scores = said.logits if "logits" in said else torch.stack([said.start_logits, said.end_logits], -1)
        for i, one in zip(part, scores.float().cpu().numpy()):
            found[i] = one[: len(rows[i]["input_ids"])] if scores.ndim == 3 else one
    return found


def _answers(
    kind: str,
    rows: Sequence[dict[str, Any]],
    scores: Sequence[np.ndarray],
    examples: Sequence[Any],
    labels: Sequence[str],
    settings: Settings,
) -> list[Any]:
    """As the metrics want them: a label, a number, tags (None for a word that was cut off), or a text."""
    if kind == "regression":
        return [float(one[0]) for one in scores]
    if kind == "extractive_qa":
        return _best_texts(rows, scores, examples, settings.longest)
    if kind != "tagging":
        return [labels[int(one.argmax())] for one in scores]
    found = []
    for row, one, example in zip(rows, scores, examples):
        best: list[str | None] = [None] * len(example.words)
        for word, place in zip(row["_first"], one.argmax(-1).tolist()):
            if word is not None:
                best[word] = labels[place]
        found.append(tuple(best))
    return found


def _best_texts(
    rows: Sequence[dict[str, Any]], scores: Sequence[np.ndarray], examples: Sequence[Any], longest: int
) -> list[str]:
    """The usual reading of start and end scores: of the best twenty of each, the pair with the highest sum."""
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

"""The demo: from the documentation on this machine to a measured task model and a page that shows it."""

from __future__ import annotations

import html
import json
import math
import random
import statistics
import sys
import time
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

import polyseme
from polyseme.corpus.build.prepare import prepare
from polyseme.corpus.sources.python_docs import documents
from polyseme.corpus.store import Corpus
from polyseme.errors import UserError
from polyseme.explain.attention import attention_maps
from polyseme.finetuning.finetune import FinetuneSpec, finetune
from polyseme.inference.language_model import LanguageModel
from polyseme.io.files import write_json, write_text
from polyseme.pipelines.codewords import examples, held_out
from polyseme.recipes.demo import demo as recipe
from polyseme.report import html as report
from polyseme.tasks.baselines.surface import linear, majority
from polyseme.tasks.examples import Example
from polyseme.text.tokenizer import Tokenizer
from polyseme.train.optimizer import OptimSpec
from polyseme.train.pretrain import pretrain
from polyseme.train.recipe import BudgetSpec

VOCAB_SIZE = 6000
NUM_TRAIN, NUM_TEST = 500, 1000
MARKER = "demo.json"  # says that a folder is the demo's own, which the next demo may replace
QUESTIONS = (
    "Return the [MASK] of the array.",
    "If True, the [MASK] is returned.",
    "This function is [MASK] since version 3.8.",
    "The default value [MASK] None.",
    "Raises a [MASK] if the file does not exist.",
    "Compute the [MASK] of two [MASK].",
)
SHOWN = "Returns the first element of the list, or None if it is empty."


def run(out: Path, minutes: float, seeds: int) -> Path:
    """Every step of the toolkit in turn; the page it ends with."""
    began = time.monotonic()
    torch.set_num_threads(min(torch.get_num_threads(), 8))  # the model is too small for more
    write_json(out / MARKER, {"minutes": minutes, "seeds": seeds})
    _say(began, "reading the documentation of this machine's Python")
    texts = [text for _, text in documents(keep=lambda name: not held_out(name))]
    source = out / "text.jsonl"
    write_text(source, "".join(json.dumps({"text": text}) + "\n" for text in texts))
    characters = sum(map(len, texts))
    _say(began, f"training a tokenizer on {characters / 1e6:.1f} MB of {len(texts)} modules")
    tokenizer = Tokenizer.train("wordpiece", iter(texts), VOCAB_SIZE, lowercase=False)
    prepare([source], tokenizer, out / "corpus", clean="none", duplicates="none")  # paragraphs are distinct already
    source.unlink()
    unigram = _unigram(Corpus.open(out / "corpus"))

    chosen = recipe().replace(budget=BudgetSpec(minutes=minutes))
    _say(
        began,
        f"pre-training a small BERT for {minutes:g} minutes; guessing words by frequency costs {unigram:.2f} nats",
    )
    results = pretrain(chosen, out / "corpus", out / "pretrain")
    model = polyseme.load(out / "pretrain" / "model")
    _say(began, f"held-out masked loss {results['valid']['masked']:.2f} nats; filling in masks")
    filled = [(text, model.fill(text, 4)) for text in QUESTIONS]
    for text, masks in filled:
        print(f"  {text}  " + "; ".join(" ".join(guess.piece for guess in guesses) for guesses in masks))

    _say(began, f"fine-tuning on {NUM_TRAIN} sentences: which words stood in backticks?")
    train, test = examples(test=False), examples(test=True)
    known = {example.words for example in train}
    test = _sample([example for example in test if example.words not in known], NUM_TEST, seed=0)
    rows, task_model = measure(out, train, test, seeds)
    for name, scores in rows.items():
        print(f"  {name:24} F1 {_mean_and_deviation(scores)}")
    path = out / "report.html"
    write_text(path, _page(out, results, unigram, filled, model, rows, task_model, test, time.monotonic() - began))
    _say(began, "done")
    return path


def measure(
    out: Path, train: list[Example], test: Sequence[Example], seeds: int
) -> tuple[dict[str, list[float]], LanguageModel]:
    """F1 by four means. A seed draws the sentences to learn from, the new weights and the order of the examples."""
    settings = FinetuneSpec(epochs=6, batch_size=8, optim=OptimSpec(rate=1e-3), truncate=True)
    base = out / "pretrain" / "model"
    rows: dict[str, list[float]] = {}
    for seed in range(seeds):
        drawn = _sample(train, NUM_TRAIN, seed)

        def tuned(where: Path | None, scratch: bool, drawn: list[Example] = drawn, seed: int = seed) -> Any:
            return finetune(base, "tagging", drawn, test, where, settings, first_seed=seed, scratch=scratch)["mean"]

        for name, scores in {
            "majority": majority(drawn, test, "tagging"),
            "linear, window of words": linear(drawn, test, "tagging"),
            "BERT from scratch": tuned(None, True),
            "BERT, pre-trained": tuned(out / "task" if seed == 0 else None, False),
        }.items():
            rows.setdefault(name, []).append(scores["f1"])
    return rows, polyseme.load(out / "task" / "model")


def _sample(given: list[Example], number: int, seed: int) -> list[Example]:
    if len(given) < number:
        raise UserError(f"only {len(given)} sentences with code words were found here; {number} are needed")
    return random.Random(seed).sample(given, number)


def _unigram(corpus: Corpus) -> float:
    """The entropy of single tokens in nats: what a model that knows only frequencies can reach."""
    counts = Counter(corpus.gather(corpus.sentences[corpus.documents[:-1]], _sizes(corpus)).tolist())
    total = counts.total()
    return -sum(n / total * math.log(n / total) for n in counts.values())


def _sizes(corpus: Corpus) -> Any:
    borders = corpus.sentences[corpus.documents]
    return borders[1:] - borders[:-1]


def _mean_and_deviation(scores: Sequence[float]) -> str:
    mean = f"{statistics.fmean(scores):.3f}"
    return f"{mean} ± {statistics.stdev(scores):.3f} ({len(scores)} seeds)" if len(scores) > 1 else mean


def _say(began: float, what: str) -> None:
    seconds = int(time.monotonic() - began)
    print(f"[{seconds // 60}:{seconds % 60:02d}] {what}", file=sys.stderr, flush=True)


def _page(
    out: Path,
    results: dict[str, Any],
    unigram: float,
    filled: Sequence[tuple[str, Any]],
    model: LanguageModel,
    rows: dict[str, list[float]],
    task_model: LanguageModel,
    test: Sequence[Example],
    seconds: float,
) -> str:
    fills = [
        (text, "; ".join(", ".join(f"{g.piece} {g.probability:.0%}" for g in guesses) for guesses in masks))
        for text, masks in filled
    ]
    task = report.table(
        ["", "F1 on held-out modules"],
        [(name, _mean_and_deviation(scores)) for name, scores in rows.items()],
    )
    shown = test[:6]
    answers = [(example, prediction.tags or ()) for example, prediction in zip(shown, task_model.predict(shown))]
    commands = f"""polyseme fill {out}/pretrain/model "Return the [MASK] of the array."
polyseme score {out}/pretrain/model --data TEXT.txt
polyseme embed {out}/pretrain/model --data TEXT.txt --out vectors.npz
polyseme predict {out}/task/model --data SENTENCES.conll --out tagged.conll
polyseme demo --minutes 15          # pre-train longer: the one change that helps most

# the same with your own text
polyseme tokenizer train TEXT/ --vocab-size 16000 --out my/tokenizer
polyseme prepare TEXT/ --tokenizer my/tokenizer --out my/corpus
polyseme pretrain bert-tiny --corpus my/corpus --out my/run
polyseme finetune my/run/model --task classification --train train.tsv --dev dev.tsv --out my/task --seeds 3"""
    lead = (
        f"A BERT of {results['parameters']:,} parameters, pre-trained on the documentation of this machine's Python "
        f"and fine-tuned to find code words, in {seconds / 60:.1f} minutes."
    )
    return report.page(
        "Polyseme: the demo",
        lead,
        [
            (
                "Pre-training: predict the masked words",
                report.curves(report.read_log(out / "pretrain"), {"word frequencies alone": unigram})
                + report.measured(results["valid"]),
            ),
            ("Filling in masks", report.table(["text", "best guesses"], fills)),
            (
                "Transfer: find the code words",
                "<p>The backticks were removed from documentation; which words stood in them? "
                f"{NUM_TRAIN} sentences to learn from, {NUM_TEST} sentences to be measured on, from modules that "
                "neither the tokenizer nor the model has seen.</p>"
                + task
                + "".join(_marked(*answer) for answer in answers)
                + '<p class="note">Underlined: found by the pre-trained model. Struck through: wrong. A seed draws '
                "the training sentences, the new weights and the order.</p>",
            ),
            ("What the heads look at", report.attention(*attention_maps(model, SHOWN))),
            ("Cost of pre-training", report.cost(results)),
            (
                "The exact recipe",
                report.code(json.loads((out / "pretrain" / "recipe.json").read_text())["recipe"]),
            ),
            ("What to try next", report.code(commands)),
        ],
    )


def _marked(example: Example, tags: Sequence[str]) -> str:
    """A sentence with the words found, and the mistakes struck through."""
    parts = []
    for word, gold, tag in zip(example.words or (), example.tags or (), tags):
        text = html.escape(word)
        text = f'<b class="code">{text}</b>' if tag == "code" else text
        parts.append(f"<s>{text}</s>" if tag != gold else text)
    return f"<p>{' '.join(parts)}</p>"

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
from polyseme.corpus.sources.python_docs import read_documents
from polyseme.corpus.store import Corpus
from polyseme.errors import DataError
from polyseme.explain.attention import attention_maps
from polyseme.finetuning.finetune import FinetuneConfig, finetune
from polyseme.inference.language_model import LanguageModel
from polyseme.io.atomic import write_text
from polyseme.io.json import write_json
from polyseme.pipelines.codewords import is_held_out, load_examples
from polyseme.recipes.demo import demo as recipe
from polyseme.report import html as report
from polyseme.tasks.baselines.surface import linear_baseline, majority_baseline
from polyseme.tasks.examples import Example
from polyseme.text.tokenizer import Tokenizer
from polyseme.train.optimizer import OptimizerConfig
from polyseme.train.pretrain import pretrain
from polyseme.train.recipe import BudgetConfig

VOCAB_SIZE = 6000
NUM_TRAIN, NUM_TEST = 500, 1000
MARKER_FILE = "demo.json"  # says that a folder is the demo's own, which the next demo may replace
MASKED_SENTENCES = (
    "Return the [MASK] of the array.",
    "If True, the [MASK] is returned.",
    "This function is [MASK] since version 3.8.",
    "The default value [MASK] None.",
    "Raises a [MASK] if the file does not exist.",
    "Compute the [MASK] of two [MASK].",
)
ATTENTION_SENTENCE = "Returns the first element of the list, or None if it is empty."


def run_demo(out: Path, minutes: float, num_seeds: int) -> Path:
    """Every step of the toolkit in turn; the page it ends with."""
    start_time = time.monotonic()
    torch.set_num_threads(min(torch.get_num_threads(), 8))  # the model is too small for more
    write_json(out / MARKER_FILE, {"minutes": minutes, "seeds": num_seeds})
    _log(start_time, "reading the documentation of this machine's Python")
    texts = [text for _, text in read_documents(keep=lambda name: not is_held_out(name))]
    text_path = out / "text.jsonl"
    write_text(text_path, "".join(json.dumps({"text": text}) + "\n" for text in texts))
    num_chars = sum(map(len, texts))
    _log(start_time, f"training a tokenizer on {num_chars / 1e6:.1f} MB of {len(texts)} modules")
    tokenizer = Tokenizer.train("wordpiece", iter(texts), VOCAB_SIZE, lowercase=False)
    prepare([text_path], tokenizer, out / "corpus", clean="none", dedup="none")  # paragraphs are distinct already
    text_path.unlink()
    unigram_entropy = _unigram_entropy(Corpus.open(out / "corpus"))

    pretrain_recipe = recipe().replace(budget=BudgetConfig(minutes=minutes))
    baseline = f"guessing words by frequency costs {unigram_entropy:.2f} nats"
    _log(start_time, f"pre-training a small BERT for {minutes:g} minutes; {baseline}")
    results = pretrain(pretrain_recipe, out / "corpus", out / "pretrain")
    model = polyseme.load(out / "pretrain" / "model")
    _log(start_time, f"held-out masked loss {results['valid']['masked']:.2f} nats; filling in masks")
    fill_results = [(text, model.fill(text, 4)) for text in MASKED_SENTENCES]
    for text, masks in fill_results:
        print(f"  {text}  " + "; ".join(" ".join(guess.token for guess in guesses) for guesses in masks))

    _log(start_time, f"fine-tuning on {NUM_TRAIN} sentences: which words stood in backticks?")
    train, test = load_examples(is_test=False), load_examples(is_test=True)
    train_words = {example.words for example in train}
    test = _sample([example for example in test if example.words not in train_words], NUM_TEST, seed=0)
    f1_scores, task_model = compare_f1(out, train, test, num_seeds)
    for name, scores in f1_scores.items():
        print(f"  {name:24} F1 {_mean_and_deviation(scores)}")
    path = out / "report.html"
    write_text(
        path,
        _build_page(
            out,
            results,
            unigram_entropy,
            fill_results,
            model,
            f1_scores,
            task_model,
            test,
            time.monotonic() - start_time,
        ),
    )
    _log(start_time, "done")
    return path


def compare_f1(
    out: Path, train: list[Example], test: Sequence[Example], num_seeds: int
) -> tuple[dict[str, list[float]], LanguageModel]:
    """F1 by four means. A seed draws the sentences to learn from, the new weights and the order of the examples."""
    settings = FinetuneConfig(epochs=6, batch_size=8, optimizer=OptimizerConfig(lr=1e-3), truncate=True)
    base = out / "pretrain" / "model"
    f1_scores: dict[str, list[float]] = {}
    for seed in range(num_seeds):
        train_sample = _sample(train, NUM_TRAIN, seed)

        def finetuned_scores(
            out_folder: Path | None, scratch: bool, train_sample: list[Example] = train_sample, seed: int = seed
        ) -> Any:
            return finetune(
                base, "tagging", train_sample, test, out_folder, settings, first_seed=seed, from_scratch=scratch
            )["mean"]

        for name, scores in {
            "majority": majority_baseline(train_sample, test, "tagging"),
            "linear, window of words": linear_baseline(train_sample, test, "tagging"),
            "BERT from scratch": finetuned_scores(None, True),
            "BERT, pre-trained": finetuned_scores(out / "task" if seed == 0 else None, False),
        }.items():
            f1_scores.setdefault(name, []).append(scores["f1"])
    return f1_scores, polyseme.load(out / "task" / "model")


def _sample(examples: list[Example], num_examples: int, seed: int) -> list[Example]:
    if len(examples) < num_examples:
        raise DataError(f"only {len(examples)} sentences with code words were found here; {num_examples} are needed")
    return random.Random(seed).sample(examples, num_examples)


def _unigram_entropy(corpus: Corpus) -> float:
    """The entropy of single tokens in nats: what a model that knows only frequencies can reach."""
    counts = Counter(
        corpus.gather_tokens(corpus.sentence_offsets[corpus.document_offsets[:-1]], _document_lengths(corpus)).tolist()
    )
    total = counts.total()
    return -sum(n / total * math.log(n / total) for n in counts.values())


def _document_lengths(corpus: Corpus) -> Any:
    offsets = corpus.sentence_offsets[corpus.document_offsets]
    return offsets[1:] - offsets[:-1]


def _mean_and_deviation(scores: Sequence[float]) -> str:
    mean = f"{statistics.fmean(scores):.3f}"
    return f"{mean} ± {statistics.stdev(scores):.3f} ({len(scores)} seeds)" if len(scores) > 1 else mean


def _log(start_time: float, message: str) -> None:
    seconds = int(time.monotonic() - start_time)
    print(f"[{seconds // 60}:{seconds % 60:02d}] {message}", file=sys.stderr, flush=True)


def _build_page(
    out: Path,
    results: dict[str, Any],
    unigram_entropy: float,
    fill_results: Sequence[tuple[str, Any]],
    model: LanguageModel,
    f1_scores: dict[str, list[float]],
    task_model: LanguageModel,
    test: Sequence[Example],
    seconds: float,
) -> str:
    fills = [
        (text, "; ".join(", ".join(f"{g.token} {g.probability:.0%}" for g in guesses) for guesses in masks))
        for text, masks in fill_results
    ]
    task_table = report.html_table(
        ["", "F1 on held-out modules"],
        [(name, _mean_and_deviation(scores)) for name, scores in f1_scores.items()],
    )
    shown_examples = test[:6]
    tagged_examples = [
        (example, prediction.tags or ())
        for example, prediction in zip(shown_examples, task_model.predict(shown_examples))
    ]
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
    return report.html_page(
        "Polyseme: the demo",
        lead,
        [
            (
                "Pre-training: predict the masked words",
                report.loss_chart(report.read_log(out / "pretrain"), {"word frequencies alone": unigram_entropy})
                + report.metrics_table(results["valid"]),
            ),
            ("Filling in masks", report.html_table(["text", "best guesses"], fills)),
            (
                "Transfer: find the code words",
                "<p>The backticks were removed from documentation; which words stood in them? "
                f"{NUM_TRAIN} sentences to learn from, {NUM_TEST} sentences to be measured on, from modules that "
                "neither the tokenizer nor the model has seen.</p>"
                + task_table
                + "".join(_highlight_tags(*tagged_example) for tagged_example in tagged_examples)
                + '<p class="note">Underlined: found by the pre-trained model. Struck through: wrong. A seed draws '
                "the training sentences, the new weights and the order.</p>",
            ),
            ("What the heads look at", report.attention_grid(*attention_maps(model, ATTENTION_SENTENCE))),
            ("Cost of pre-training", report.cost_table(results)),
            (
                "The exact recipe",
                report.code(json.loads((out / "pretrain" / "recipe.json").read_text())["recipe"]),
            ),
            ("What to try next", report.code(commands)),
        ],
    )


def _highlight_tags(example: Example, tags: Sequence[str]) -> str:
    """A sentence with the words found, and the mistakes struck through."""
    parts = []
    for word, gold, tag in zip(example.words or (), example.tags or (), tags):
        text = html.escape(word)
        text = f'<b class="code">{text}</b>' if tag == "code" else text
        parts.append(f"<s>{text}</s>" if tag != gold else text)
    return f"<p>{' '.join(parts)}</p>"

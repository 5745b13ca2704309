"""The demo: pre-train on the documentation of the installed Python, fine-tune, and write a report.

The model that it pre-trains in minutes is compared with the bundled one, which was trained on much more text.
"""

import json
import logging
import random
import statistics
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from polyseme.corpus.build.prepare import PrepareConfig, prepare
from polyseme.corpus.sources.python_docs import read_documents
from polyseme.corpus.store import Corpus
from polyseme.errors import DataError
from polyseme.finetuning.config import FinetuneConfig
from polyseme.finetuning.experiment import RunOptions, TaskData
from polyseme.finetuning.finetune import finetune
from polyseme.inference.load import load_neural
from polyseme.inference.neural_lm import NeuralLM
from polyseme.io.atomic import write_text
from polyseme.io.json import read_json, write_json
from polyseme.io.model_path import resolve_model
from polyseme.pipelines.codewords import is_held_out, load_examples
from polyseme.recipes.encoders import demo as recipe
from polyseme.report.charts import Bar, bar_chart
from polyseme.report.heatmap import Labels, attention_grid, heat_map
from polyseme.report.html import (
    Html,
    code,
    collapsed,
    escape,
    figure,
    html_page,
    html_table,
    key_figures,
    next_steps,
    note,
    paragraph,
    warning,
)
from polyseme.report.pages.pretraining_page import (
    cost_table,
    curves_section,
    format_guesses,
    format_seconds,
    neighbors_section,
    read_rows,
    samples_section,
)
from polyseme.report.run_page import read_log
from polyseme.report.svg import format_number
from polyseme.tasks.tagging import TaggingExample, TaggingTask
from polyseme.text.tokenizer import Tokenizer
from polyseme.train.optimizer import OptimizerConfig
from polyseme.train.pretrain import pretrain
from polyseme.train.recipe import BudgetConfig

logger = logging.getLogger(__name__)

VOCAB_SIZE = 6000
NUM_TRAIN, NUM_TEST = 500, 1000
BUNDLED_MODEL = "mini"
FINETUNING = FinetuneConfig(epochs=6, batch_size=8, optimizer=OptimizerConfig(lr=1e-3), truncate=True)
BUNDLED_FINETUNING = FINETUNING.replace(epochs=5.0, optimizer=OptimizerConfig(lr=2e-4))
LINEAR = "linear, window of words"
SCRATCH, PRETRAINED, BUNDLED = "BERT from scratch", "BERT, pre-trained here", f"{BUNDLED_MODEL}, the bundled model"
MARKER_FILE = "demo.json"  # marks a folder as written by the demo, which the next demo may replace
MASKED_SENTENCES = (
    "Return the [MASK] of the array.",
    "If True, the [MASK] is returned.",
    "This function is [MASK] since version 3.8.",
    "The default value [MASK] None.",
    "Raises a [MASK] if the file does not exist.",
    "Compute the [MASK] of two [MASK].",
)
ATTENTION_SENTENCE = "Returns the first element of the list, or None if it is empty."
NEXT_STEPS = (
    ("Fill a mask", 'polyseme fill {out}/pretrain/model "Return the [MASK] of the array."'),
    ("Tag your own sentences", "polyseme predict {out}/task/model --data SENTENCES.conll --out tagged.conll"),
    ("Serve both models, with a playground in the browser", "polyseme serve {out}/task {out}/pretrain"),
    ("Pre-train longer", "polyseme demo --minutes 15"),
    (
        "Fine-tune the bundled model on your labels",
        "polyseme finetune mini --task classification --train train.tsv --dev dev.tsv --out my/task",
    ),
    (
        "Do the same with your own text",
        "polyseme tokenizer train TEXT/ --vocab-size 16000 --out my/tokenizer\n"
        "polyseme prepare TEXT/ --tokenizer my/tokenizer --out my/corpus\n"
        "polyseme pretrain bert-tiny --corpus my/corpus --out my/run",
    ),
    (
        "Fine-tune that model",
        "polyseme finetune my/run/model --task classification --train train.tsv --dev dev.tsv --out my/task --seeds 3",
    ),
)


@dataclass(frozen=True)
class DemoResults:
    """Everything that the report of the demo shows."""

    pretraining: dict[str, Any]  # the results of the pre-training run
    unigram_entropy: float
    filled: Sequence[tuple[str, Any]]  # masked sentences and predictions
    model: NeuralLM
    f1_scores: dict[str, list[float]]  # by method, one per seed
    task_model: NeuralLM
    test: Sequence[TaggingExample]
    seconds: float


def run_demo(out: Path, minutes: float, num_seeds: int) -> Path:
    """Run every step from text to task model; write a report and return its path."""
    start_time = time.monotonic()
    torch.set_num_threads(min(torch.get_num_threads(), 8))  # more threads do not speed up so small a model
    write_json(out / MARKER_FILE, {"minutes": minutes, "seeds": num_seeds})
    _log(start_time, "reading the documentation of the installed Python")
    texts = [text for _, text in read_documents(keep=lambda name: not is_held_out(name))]
    text_path = out / "text.jsonl"
    write_text(text_path, "".join(json.dumps({"text": text}) + "\n" for text in texts))
    num_chars = sum(map(len, texts))
    _log(start_time, f"training a tokenizer on {num_chars / 1e6:.1f} MB of {len(texts)} modules")
    tokenizer = Tokenizer.train("wordpiece", iter(texts), VOCAB_SIZE, lowercase=False)
    config = PrepareConfig(clean="none", dedup="none")  # the paragraphs are distinct
    prepare([text_path], tokenizer, out / "corpus", config)
    text_path.unlink()
    unigram_entropy = _unigram_entropy(Corpus.open(out / "corpus"))

    pretrain_recipe = recipe().replace(budget=BudgetConfig(minutes=minutes))
    baseline = f"the unigram baseline has a loss of {unigram_entropy:.2f} nats"
    _log(start_time, f"pre-training a small BERT for {minutes:g} minutes; {baseline}")
    results = pretrain(pretrain_recipe, out / "corpus", out / "pretrain")
    model = load_neural(out / "pretrain" / "model")
    _log(start_time, f"held-out masked loss {results['valid']['masked']:.2f} nats; filling masks")
    filled = [(text, model.fill(text, 4)) for text in MASKED_SENTENCES]
    for text, masks in filled:
        logger.info(f"  {text}  " + "; ".join(" ".join(guess.token for guess in guesses) for guesses in masks))

    _log(start_time, f"fine-tuning on {NUM_TRAIN} sentences: which words were in backticks?")
    train, test = load_examples(is_test=False), load_examples(is_test=True)
    train_words = {example.words for example in train}
    test = _sample([example for example in test if example.words not in train_words], NUM_TEST, seed=0)
    f1_scores, task_model = compare_f1(out, train, test, num_seeds)
    for name, scores in f1_scores.items():
        logger.info(f"  {name:24} F1 {_mean_and_deviation(scores)}")
    seconds = time.monotonic() - start_time
    demo_results = DemoResults(results, unigram_entropy, filled, model, f1_scores, task_model, test, seconds)
    write_text(out / "report.html", _build_page(out, demo_results))
    _log(start_time, "done")
    return out / "report.html"


def compare_f1(
    out: Path, train: list[TaggingExample], test: Sequence[TaggingExample], num_seeds: int
) -> tuple[dict[str, list[float]], NeuralLM]:
    """Return the F1 scores of each method by seed, which draws the training sentences, new weights and order."""
    base, bundled = out / "pretrain" / "model", resolve_model(BUNDLED_MODEL)
    f1_scores: dict[str, list[float]] = {}
    for seed in range(num_seeds):
        sample = _sample(train, NUM_TRAIN, seed)
        task, data = TaggingTask.from_examples(sample), TaskData(TaggingTask(), sample, test)
        task_folder, options = out / "task" if seed == 0 else None, RunOptions([seed])
        metrics_by_method = {
            "majority": task.baseline_metrics("majority", sample, test),
            LINEAR: task.baseline_metrics("linear", sample, test),
            SCRATCH: finetune(base, data, None, FINETUNING, replace(options, from_scratch=True))["mean"],
            PRETRAINED: finetune(base, data, None, FINETUNING, options)["mean"],
            BUNDLED: finetune(bundled, data, task_folder, BUNDLED_FINETUNING, options)["mean"],
        }
        for name, metrics in metrics_by_method.items():
            f1_scores.setdefault(name, []).append(metrics["f1"])
    return f1_scores, load_neural(out / "task" / "model")


def _sample(examples: list[TaggingExample], num_examples: int, seed: int) -> list[TaggingExample]:
    if len(examples) < num_examples:
        raise DataError(f"only {len(examples)} sentences with code words are installed; {num_examples} are needed")
    return random.Random(seed).sample(examples, num_examples)


def _unigram_entropy(corpus: Corpus) -> float:
    """Return the entropy of the token frequencies in nats: the loss of a unigram model."""
    offsets = corpus.sentence_offsets[corpus.document_offsets]
    counts = np.bincount(corpus.gather_tokens(offsets[:-1], np.diff(offsets)))
    probs = counts[counts > 0] / counts.sum()
    return float(-(probs * np.log(probs)).sum())


def _mean_and_deviation(scores: Sequence[float]) -> str:
    mean = f"{statistics.fmean(scores):.3f}"
    return f"{mean} ± {statistics.stdev(scores):.3f} ({len(scores)} seeds)" if len(scores) > 1 else mean


def _log(start_time: float, message: str) -> None:
    seconds = int(time.monotonic() - start_time)
    logger.info(f"[{seconds // 60}:{seconds % 60:02d}] {message}")


def _build_page(out: Path, results: DemoResults) -> str:
    lead = (
        f"A BERT of {results.pretraining['parameters']:,} parameters, pre-trained on the documentation of the "
        f"installed Python, and the bundled model {BUNDLED_MODEL}, both fine-tuned to find code words, in "
        f"{results.seconds / 60:.1f} minutes on this machine."
    )
    scores = {name: statistics.fmean(values) for name, values in results.f1_scores.items()}
    gain = scores[PRETRAINED] - scores[SCRATCH]
    figures = [
        (f"F1 of {BUNDLED_MODEL}", f"{scores[BUNDLED]:.3f}", f"{scores[BUNDLED] - scores[LINEAR]:+.3f} over linear"),
        ("F1 of our BERT", f"{scores[PRETRAINED]:.3f}", f"{gain:+.3f} by pre-training"),
        ("Held-out loss", f"{results.pretraining['valid']['masked']:.2f}", f"unigrams {results.unigram_entropy:.2f}"),
        ("Tokens read", format_number(results.pretraining["tokens"]), f"{results.pretraining['steps']:,} steps"),
        ("Time", format_seconds(results.seconds), "everything on this page"),
    ]
    references = {"unigrams": results.unigram_entropy}
    sections = [
        ("Pre-training", curves_section(read_log(out / "pretrain"), references)),
        ("Filling masks", _fill_section(results)),
        ("During pre-training", samples_section(read_rows(out / "pretrain" / "samples.jsonl"))),
        ("Transfer", _transfer_section(results)),
        ("Attention of the heads", _attention_section(results)),
        ("Nearest words", neighbors_section(out / "pretrain")),
        ("Cost of pre-training", cost_table(results.pretraining)),
        ("Recipe", collapsed("The exact recipe", code(read_json(out / "pretrain" / "recipe.json")["recipe"]))),
        ("Next steps", next_steps([(text, command.format(out=out)) for text, command in NEXT_STEPS])),
    ]
    top = "".join(map(warning, results.pretraining.get("warnings", ()))) + key_figures(figures)
    return html_page("Polyseme: the demo", escape(lead), sections, top)


def _fill_section(results: DemoResults) -> str:
    rows = [
        (text, Html("<br>".join(format_guesses([(g.token, g.probability) for g in guesses]) for guesses in masks)))
        for text, masks in results.filled
    ]
    caption = (
        "Grammar comes first: look whether the guesses have the right part of speech, then whether they make sense."
    )
    return html_table(["text", "best guesses"], rows) + note(caption)


def _transfer_section(results: DemoResults) -> str:
    """Render the F1 scores and some tagged sentences."""
    bars = []
    for name, scores in results.f1_scores.items():
        mean, std = statistics.fmean(scores), statistics.stdev(scores) if len(scores) > 1 else 0.0
        interval = (mean - std, mean + std) if std else None
        is_reference = name not in (PRETRAINED, BUNDLED)
        bars.append(Bar(name, mean, interval, is_reference, _mean_and_deviation(scores)))
    examples = results.test[:6]
    predictions = results.task_model.predict(examples)
    return (
        paragraph(
            "The backticks were removed from documentation; which words were in them? "
            f"{NUM_TRAIN} training sentences and {NUM_TEST} test sentences, the latter from modules that "
            "neither the tokenizer nor the model has seen."
        )
        + figure(
            bar_chart(bars, "F1 on held-out modules"),
            "BERT is the same network without pre-training, and with minutes of it on this machine: the difference is "
            f"what the unlabeled text is worth. {BUNDLED_MODEL} was pre-trained for longer, on other text. A seed "
            "determines the training sentences, the new weights and the order.",
        )
        + "".join(_highlight_tags(example, p.tags) for example, p in zip(examples, predictions))
        + note(f"Underlined: predicted by {BUNDLED_MODEL}. Struck through: wrong.")
    )


def _attention_section(results: DemoResults) -> str:
    """Render all heads as small maps, and the mean of the last layer with its tokens."""
    attention = results.model.attention(ATTENTION_SENTENCE)["self"]
    tokens, maps = attention.queries, attention.weights
    labels = Labels(tokens, tokens, "reads", f"layer {len(maps)}, mean of its heads")
    return figure(
        attention_grid(maps),
        f"“{ATTENTION_SENTENCE}” Each map is a head, each row a token, dark where it looks. Look for diagonals "
        "(heads that read the word before or after) and for columns (heads that rest on one token).",
    ) + collapsed(
        "The last layer with its tokens",
        figure(
            heat_map(maps[-1].mean(0), labels, cell_size=22),
            "Rows add up to one. Look for words that belong together: a verb and its object, a word and its article.",
        ),
    )


def _highlight_tags(example: TaggingExample, tags: Sequence[str]) -> str:
    """Render a sentence with the predicted words underlined and the errors struck through."""
    parts = []
    for word, gold, tag in zip(example.words, example.tags or (), tags):
        text = escape(word)
        text = f'<b class="code">{text}</b>' if tag == "code" else text
        parts.append(f"<s>{text}</s>" if tag != gold else text)
    return f"<p>{' '.join(parts)}</p>"

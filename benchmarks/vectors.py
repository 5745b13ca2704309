"""Word vectors compared with gensim: the same text, words, cores, epochs and settings.

    python benchmarks/vectors.py CORPUS --words FOLDER [--seeds 3] [--epochs 3] [--threads 2] [--method skipgram]

CORPUS was prepared with a lowercase tokenizer of kind `words`; FOLDER contains EN-WS-353-ALL.txt, EN-SIMLEX-999.txt,
EN-MEN-TR-3k.txt and questions-words.txt. Words/s counts words of the vocabulary, per second of training and per second
of processor time (less affected by other processes). gensim gets the same samples as lists of words in memory.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from pathlib import Path

import numpy as np
import torch

from polyseme.corpus.sampling import build_samples, count_tokens
from polyseme.corpus.store import Corpus
from polyseme.inference.word_vectors import WordVectors
from polyseme.objectives.word2vec import Word2Vec
from polyseme.recipes import get_training_recipe
from polyseme.text.tokenizer import Tokenizer
from polyseme.train.pretrain import pretrain
from polyseme.train.recipe import BudgetConfig, Recipe
from polyseme.word_vectors.evaluation import read_analogy_questions, read_similarity_pairs

SETS = {"WordSim-353": "EN-WS-353-ALL.txt", "SimLex-999": "EN-SIMLEX-999.txt", "MEN": "EN-MEN-TR-3k.txt"}
METHODS = {
    "skipgram": ("word2vec-tiny", {"sg": 1, "negative": 5}),
    "skipgram-tree": ("word2vec-tiny", {"sg": 1, "hs": 1, "negative": 0}),
    "cbow": ("cbow-tiny", {"sg": 0, "negative": 5}),
    "fasttext": ("fasttext-tiny", {"sg": 1, "negative": 5, "bucket": 100_000, "min_n": 3, "max_n": 6}),
}


def evaluate(vectors: WordVectors, folder: Path) -> dict[str, float]:
    """Evaluate similarity and analogies."""
    pairs = {name: read_similarity_pairs(folder / file) for name, file in SETS.items()}
    scores = {name: vectors.evaluate_similarity(rated).spearman for name, rated in pairs.items()}
    sections = vectors.evaluate_analogies(read_analogy_questions(folder / "questions-words.txt"))
    return scores | {"analogy": sum(s.num_correct for s in sections) / sum(s.num_answerable for s in sections)}


def recipe_of(method: str, corpus: Corpus, epochs: int, seed: int, at_once: int, damp: float) -> Recipe:
    """Return the recipe of a method, with changes."""
    recipe = get_training_recipe(METHODS[method][0])
    assert isinstance(recipe.objective, Word2Vec)
    if method.endswith("tree"):
        recipe = recipe.replace(objective=recipe.objective.replace(loss="hierarchical_softmax"))
    optim = recipe.optimizer.replace(
        words_per_update=at_once or recipe.optimizer.words_per_update,
        count_damping=damp or recipe.optimizer.count_damping,
    )
    budget = BudgetConfig(tokens=corpus.num_tokens * epochs)
    return recipe.replace(
        seed=seed, optimizer=optim, budget=budget, valid_fraction=0.0, save_every=10**9, eval_every=10**9
    )


def ours(recipe: Recipe, path: Path, known: float) -> tuple[WordVectors, float, float]:
    """Return the vectors, words/s, and words per second of processor time, which includes the whole run."""
    with tempfile.TemporaryDirectory() as folder:
        start = time.process_time()
        results = pretrain(recipe, path, Path(folder) / "run")
        cpu_seconds, words = time.process_time() - start, known * results["tokens"]
        return (
            WordVectors.load(Path(folder) / "run" / "model"),
            words / (results["device_hours"] * 3600),
            words / cpu_seconds,
        )


def theirs(
    method: str, recipe: Recipe, sentences: list[list[str]], words: list[str], epochs: int, threads: int
) -> tuple:
    """Train with gensim; return the vectors, words/s, and words per second of processor time."""
    from gensim.models import FastText, Word2Vec

    settings = METHODS[method][1]
    model = (FastText if method == "fasttext" else Word2Vec)(
        vector_size=100, window=5, min_count=1, sample=1e-3, workers=threads, seed=recipe.seed, epochs=epochs,
        alpha=recipe.optimizer.lr, **settings,
    )  # fmt: skip
    model.build_vocab(sentences)
    start, cpu_start = time.perf_counter(), time.process_time()
    model.train(sentences, total_examples=model.corpus_count, epochs=epochs)
    seconds, cpu_seconds = time.perf_counter() - start, time.process_time() - cpu_start
    words = [word for word in words if word in model.wv]  # in our order, since answers are limited to the first words
    vectors = WordVectors(words, np.stack([model.wv[word] for word in words]))
    number = sum(map(len, sentences)) * epochs
    return vectors, number / seconds, number / cpu_seconds


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("corpus", type=Path)
    parser.add_argument("--words", type=Path, required=True)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--epochs", type=int, default=3)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--method", choices=METHODS, default="skipgram")
    parser.add_argument("--at-once", type=int, default=0)
    parser.add_argument("--damp", type=float, default=0.0)
    parser.add_argument("--alone", action="store_true", help="without gensim")
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    corpus, tokenizer = Corpus.open(args.corpus), Tokenizer.load(args.corpus / "tokenizer")
    counts = count_tokens(corpus, tokenizer.vocab_size)
    special = sorted(tokenizer.all_special_ids)
    known = 1 - float(counts[special].sum() / counts.sum())
    words = [word for i, word in enumerate(tokenizer.vocabulary) if i not in tokenizer.all_special_ids]
    print(f"{corpus.num_tokens:,} tokens, {known:.1%} known, {len(words):,} words, {args.epochs} epochs,", end=" ")
    print(f"{args.threads} threads, {args.method}, gpu {torch.cuda.is_available()}", flush=True)
    sentences: list[list[str]] = []
    if not args.alone:
        samples, pieces = build_samples(corpus, 256), np.array(tokenizer.vocabulary, object)
        for start, length in zip(samples.starts, samples.lengths):
            ids = corpus.gather_tokens(np.array([start]), np.array([length]))
            sentences.append(pieces[ids[~np.isin(ids, special)]].tolist())
    rows: dict[str, list[dict[str, float]]] = {"polyseme": [], "gensim": []}
    for seed in range(1, args.seeds + 1):
        recipe = recipe_of(args.method, corpus, args.epochs, seed, args.at_once, args.damp)
        sides = {"polyseme": lambda r=recipe: ours(r, args.corpus, known)}
        if not args.alone:
            sides["gensim"] = lambda r=recipe: theirs(args.method, r, sentences, words, args.epochs, args.threads)
        for name, train in sides.items():
            vectors, rate, cpu_rate = train()
            rows[name].append({"words/s": rate, "words/CPU s": cpu_rate} | evaluate(vectors, args.words))
            shown = ", ".join(f"{k} {v:,.4f}" if v < 10 else f"{k} {v:,.0f}" for k, v in rows[name][-1].items())
            print(f"seed {seed} {name}: {shown}", flush=True)
    for name, runs in rows.items():
        for key in runs[0] if runs else ():
            values = np.array([run[key] for run in runs])
            print(f"{name} {key}: {values.mean():,.4f} ± {values.std(ddof=1) if len(values) > 1 else 0:,.4f}")


if __name__ == "__main__":
    main()

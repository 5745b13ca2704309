"""Word vectors beside gensim's: the same text, words, cores, epochs and settings, in one run.

    python benchmarks/vectors.py CORPUS --words FOLDER [--seeds 3] [--epochs 3] [--threads 2] [--method skipgram]

CORPUS was made with a tokenizer of kind `words` in lower case; FOLDER holds EN-WS-353-ALL.txt, EN-SIMLEX-999.txt,
EN-MEN-TR-3k.txt and questions-words.txt. Words a second are those of the vocabulary, over the time of training alone,
and over the seconds of all its threads (which others on the machine disturb less). gensim is given the same runs of
sentences, as lists of words that are in memory already.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from pathlib import Path

import numpy as np
import torch

from polyseme.corpus.sampling import build_samples
from polyseme.corpus.store import Corpus
from polyseme.objectives.word2vec import Word2Vec, count_tokens
from polyseme.recipes import get_training_recipe
from polyseme.text.tokenizer import Tokenizer
from polyseme.train.pretrain import pretrain
from polyseme.train.recipe import BudgetConfig, Recipe
from polyseme.word_vectors.model import WordVectors, load, read_analogy_questions, read_similarity_pairs

SETS = {"WordSim-353": "EN-WS-353-ALL.txt", "SimLex-999": "EN-SIMLEX-999.txt", "MEN": "EN-MEN-TR-3k.txt"}
METHODS = {
    "skipgram": ("word2vec-tiny", {"sg": 1, "negative": 5}),
    "skipgram-tree": ("word2vec-tiny", {"sg": 1, "hs": 1, "negative": 0}),
    "cbow": ("cbow-tiny", {"sg": 0, "negative": 5}),
    "fasttext": ("fasttext-tiny", {"sg": 1, "negative": 5, "bucket": 100_000, "min_n": 3, "max_n": 6}),
}


def measured(vectors: WordVectors, folder: Path) -> dict[str, float]:
    found = {
        name: vectors.evaluate_similarity(read_similarity_pairs(folder / file)).spearman for name, file in SETS.items()
    }
    sections = vectors.evaluate_analogies(read_analogy_questions(folder / "questions-words.txt"))
    return found | {"analogy": sum(s.num_correct for s in sections) / sum(s.num_answerable for s in sections)}


def recipe_of(method: str, corpus: Corpus, epochs: int, seed: int, at_once: int, damp: float) -> Recipe:
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
    """The vectors, known words a second, and those a second of the processor, in which all else of the run counts."""
    with tempfile.TemporaryDirectory() as folder:
        began = time.process_time()
        results = pretrain(recipe, path, Path(folder) / "run")
        used, words = time.process_time() - began, known * results["tokens"]
        return load(Path(folder) / "run" / "model"), words / (results["device_hours"] * 3600), words / used


def theirs(
    method: str, recipe: Recipe, sentences: list[list[str]], words: list[str], epochs: int, threads: int
) -> tuple:
    from gensim.models import FastText, Word2Vec

    given = METHODS[method][1]
    model = (FastText if method == "fasttext" else Word2Vec)(
        vector_size=100, window=5, min_count=1, sample=1e-3, workers=threads, seed=recipe.seed, epochs=epochs,
        alpha=recipe.optimizer.lr, **given,
    )  # fmt: skip
    model.build_vocab(sentences)
    began, before = time.perf_counter(), time.process_time()
    model.train(sentences, total_examples=model.corpus_count, epochs=epochs)
    seconds, used = time.perf_counter() - began, time.process_time() - before
    there = [word for word in words if word in model.wv]  # in our order: the answers of analogies are among the first
    vectors = WordVectors(there, np.stack([model.wv[word] for word in there]))
    number = sum(map(len, sentences)) * epochs
    return vectors, number / seconds, number / used


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("corpus", type=Path)
    parser.add_argument("--words", type=Path, required=True)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--epochs", type=int, default=3)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--method", choices=METHODS, default="skipgram")
    parser.add_argument("--at-once", type=int, default=0)
    parser.add_argument("--damp", type=float, default=0.0)
    parser.add_argument("--alone", action="store_true", help="without gensim")
    given = parser.parse_args()
    torch.set_num_threads(given.threads)
    corpus, tokenizer = Corpus.open(given.corpus), Tokenizer.load(given.corpus / "tokenizer")
    counts = count_tokens(corpus, tokenizer.vocab_size)
    special = sorted(tokenizer.all_special_ids)
    known = 1 - float(counts[special].sum() / counts.sum())
    words = [word for i, word in enumerate(tokenizer.vocabulary) if i not in tokenizer.all_special_ids]
    print(f"{corpus.num_tokens:,} tokens, {known:.1%} known, {len(words):,} words, {given.epochs} epochs,", end=" ")
    print(f"{given.threads} threads, {given.method}, gpu {torch.cuda.is_available()}", flush=True)
    sentences: list[list[str]] = []
    if not given.alone:
        samples, pieces = build_samples(corpus, 256), np.array(tokenizer.vocabulary, object)
        for start, length in zip(samples.starts, samples.lengths):
            ids = corpus.gather_tokens(np.array([start]), np.array([length]))
            sentences.append(pieces[ids[~np.isin(ids, special)]].tolist())
    rows: dict[str, list[dict[str, float]]] = {"polyseme": [], "gensim": []}
    for seed in range(1, given.seeds + 1):
        recipe = recipe_of(given.method, corpus, given.epochs, seed, given.at_once, given.damp)
        both = {"polyseme": lambda r=recipe: ours(r, given.corpus, known)}
        if not given.alone:
            both["gensim"] = lambda r=recipe: theirs(given.method, r, sentences, words, given.epochs, given.threads)
        for name, train in both.items():
            vectors, pace, steady = train()
            rows[name].append({"words/s": pace, "words/CPU s": steady} | measured(vectors, given.words))
            shown = ", ".join(f"{k} {v:,.4f}" if v < 10 else f"{k} {v:,.0f}" for k, v in rows[name][-1].items())
            print(f"seed {seed} {name}: {shown}", flush=True)
    for name, found in rows.items():
        for key in found[0] if found else ():
            values = np.array([row[key] for row in found])
            print(f"{name} {key}: {values.mean():,.4f} ± {values.std(ddof=1) if len(values) > 1 else 0:,.4f}")


if __name__ == "__main__":
    main()

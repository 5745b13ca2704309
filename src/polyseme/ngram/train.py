"""Training of an n-gram model: recipe and corpus to a run folder."""

import math
import platform
import shutil
import time
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

import numpy as np

from polyseme.config import Config
from polyseme.corpus.card import corpus_facts
from polyseme.corpus.inspect.characters import characters_per_token
from polyseme.corpus.store import Corpus, verify_corpus
from polyseme.errors import ConfigError
from polyseme.io.atomic import ensure_new_directory
from polyseme.io.hashes import hashed_directory
from polyseme.io.json import write_json
from polyseme.io.lock import locks_folder
from polyseme.ngram.count import count_ngrams, sentence_streams
from polyseme.ngram.estimate import estimate_kneser_ney
from polyseme.ngram.model import FAMILY, NgramFolder
from polyseme.ngram.trie import MAX_ORDER, NgramTrie, NgramVocab
from polyseme.progress import progress
from polyseme.report.cards.run_card import write_run_card
from polyseme.report.run_page import write_report
from polyseme.text.tokenizer import Tokenizer


@dataclass(frozen=True)
class NgramRecipe(Config):
    """Settings of an n-gram model. `valid_fraction` holds out the same documents as in every recipe.

    An n-gram that occurs at most `cutoffs[n - 1]` times is dropped; the last cutoff applies to all longer n-grams.
    """

    name: str
    family: str = FAMILY
    order: int = 5
    cutoffs: tuple[int, ...] = ()
    valid_fraction: float = 0.01
    memory_mb: int = 256  # for sorting, approximate; the tables are memory-mapped files

    def check(self) -> Self:
        """Return the recipe if its values are valid, else raise `ConfigError`."""
        if not 1 <= self.order <= MAX_ORDER:
            raise ConfigError(f"order is {self.order}, expected 1 to {MAX_ORDER}")
        self.check_range(0, 1, "valid_fraction")
        self.check_range(1, math.inf, "memory_mb")
        return self


@locks_folder("pretrain")
def train_ngram(recipe: NgramRecipe, corpus_path: Path, out: Path) -> dict[str, Any]:
    """Count, estimate and evaluate an n-gram model; write a run folder atomically and return its results."""
    start_time = time.perf_counter()
    recipe = recipe.check()
    ensure_new_directory(out)
    verify_corpus(corpus_path)
    corpus, tokenizer = Corpus.open(corpus_path), Tokenizer.load(corpus_path / "tokenizer")
    vocab = NgramVocab.from_tokenizer(tokenizer)
    train_corpus, valid_corpus = corpus.split(recipe.valid_fraction)
    train_corpus = train_corpus.resample_by_weight()
    with hashed_directory(out) as folder:
        work_dir = folder / ".work"
        work_dir.mkdir()
        with progress("count", train_corpus.num_tokens, "tokens") as bar:

            def streams() -> Iterable[np.ndarray]:
                for stream in sentence_streams(train_corpus, vocab):
                    yield stream
                    bar.advance(len(stream))

            counts = count_ngrams(streams(), vocab, recipe.order, work_dir, recipe.memory_mb << 20)
        ngrams, discounts = estimate_kneser_ney(counts, vocab, work_dir, recipe.cutoffs)
        ratio = None if valid_corpus is None else characters_per_token(corpus, valid_corpus, tokenizer)
        results = {
            "valid": {} if valid_corpus is None else measure_perplexity(ngrams, valid_corpus),
            "steps": 1,
            "parameters": sum(ngrams.sizes),
            "ngrams": ngrams.sizes,
            "discounts": discounts,
            "tokens": train_corpus.num_tokens,
            "flops": 0,
            "device_hours": (time.perf_counter() - start_time) / 3600,
            **({} if ratio is None else {"characters_per_token": ratio}),
            "environment": {"numpy": np.__version__, "machine": platform.machine(), "device": "cpu"},
        }
        metadata = {"recipe": recipe.to_json(), "results": results, "corpus": corpus.manifest_hash}
        metadata["corpus_facts"] = corpus_facts(corpus.manifest, corpus_path)
        languages = corpus.manifest.get("languages", {})
        main_language = max(languages, key=lambda name: languages[name].get("tokens", 0), default="en")
        NgramFolder(out, ngrams, tokenizer, main_language).save(folder / "model", metadata)
        del ngrams, counts
        shutil.rmtree(work_dir)
        saved_recipe = {"recipe": recipe.to_json(), "corpus": str(corpus.path), "corpus_hash": corpus.manifest_hash}
        write_json(folder / "recipe.json", saved_recipe)
        write_json(folder / "results.json", results)
        write_report(folder)
        write_run_card(folder)
    return results


def measure_perplexity(ngrams: NgramTrie, corpus: Corpus) -> dict[str, float]:
    """Return the mean loss in nats and the perplexity, counting EOS as a token, like other n-gram tools.

    `perplexity_words` divides the same sum by the tokens without EOS, for comparison with models that predict no EOS.
    """
    total_loss, num_events = 0.0, 0
    for stream in sentence_streams(corpus, ngrams.vocab):
        total_loss -= float(ngrams.log10_probs(stream).sum()) * math.log(10)
        num_events += int((stream != ngrams.vocab.bos_id).sum())
    loss, word_loss = total_loss / num_events, total_loss / corpus.num_tokens
    return {"next": loss, "perplexity": math.exp(loss), "perplexity_words": math.exp(word_loss)}

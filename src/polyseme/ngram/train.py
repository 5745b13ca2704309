"""A run that counts: a recipe and a corpus to a run folder with a model of n-grams in it."""

from __future__ import annotations

import math
import platform
import shutil
import time
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from polyseme.config import Spec
from polyseme.corpus.store import Corpus, verify
from polyseme.errors import UserError
from polyseme.io.files import new_folder, whole_folder, write_json
from polyseme.ngram.count import count, sentences
from polyseme.ngram.estimate import estimate
from polyseme.ngram.model import FAMILY, NgramModel
from polyseme.ngram.trie import MOST, Ngrams, Words
from polyseme.progress import progress
from polyseme.report.html import write_report
from polyseme.text.tokenizer import Tokenizer


@dataclass(frozen=True)
class NgramRecipe(Spec):
    """How n-grams are counted. `holdout` is as for every recipe: the same documents are held out.

    An n-gram that occurs at most `cutoffs[n - 1]` times is left out; the last cut-off holds for longer ones too.
    """

    name: str
    family: str = FAMILY
    order: int = 5
    cutoffs: tuple[int, ...] = ()
    holdout: float = 0.01
    memory_mb: int = 256  # what sorting takes, about; tables are files that are mapped

    def check(self) -> NgramRecipe:
        """Itself, if its numbers can be used."""
        if not 1 <= self.order <= MOST:
            raise UserError(f"order is {self.order}, expected a number from 1 to {MOST}")
        self.within(0, 1, "holdout")
        self.within(1, math.inf, "memory_mb")
        return self


def count_corpus(recipe: NgramRecipe, corpus_path: Path, out: Path) -> dict[str, Any]:
    """Count, estimate, measure on held-out text; returns the results.

    The run folder appears whole when all is done: there is nothing to resume, since counting again is quick.
    """
    began = time.perf_counter()
    recipe = recipe.check()
    new_folder(out)
    verify(corpus_path)
    corpus, tokenizer = Corpus.open(corpus_path), Tokenizer.load(corpus_path / "tokenizer")
    words = Words.of(tokenizer)
    kept, held = corpus.split(recipe.holdout)
    kept = kept.weighted()
    with whole_folder(out) as folder:
        work = folder / ".work"
        work.mkdir()
        with progress("count", kept.num_tokens, "tokens") as bar:

            def streams() -> Iterable[np.ndarray]:
                for stream in sentences(kept, words):
                    yield stream
                    bar.advance(len(stream))

            counts = count(streams(), words, recipe.order, work, recipe.memory_mb << 20)
        ngrams, discounts = estimate(counts, words, work, recipe.cutoffs)
        results = {
            "valid": {} if held is None else measure(ngrams, held),
            "steps": 1,
            "parameters": sum(ngrams.sizes),
            "ngrams": ngrams.sizes,
            "discounts": discounts,
            "tokens": kept.num_tokens,
            "flops": 0,
            "device_hours": (time.perf_counter() - began) / 3600,
            "environment": {"numpy": np.__version__, "machine": platform.machine(), "device": "cpu"},
        }
        notes = {"recipe": recipe.to_json(), "results": results, "corpus": corpus.manifest_hash}
        NgramModel(out, ngrams, tokenizer, language_of(corpus)).save(folder / "model", notes)
        del ngrams, counts
        shutil.rmtree(work)
        about = {"recipe": recipe.to_json(), "corpus": str(corpus.path), "corpus_hash": corpus.manifest_hash}
        write_json(folder / "recipe.json", about)
        write_json(folder / "results.json", results)
        write_report(folder)
    return results


def measure(ngrams: Ngrams, corpus: Corpus) -> dict[str, float]:
    """Mean loss in nats and perplexity; ends of sentences count as tokens, as other tools have it.

    `perplexity_words` spreads the same sum over the tokens alone, to stand beside models that predict no ends.
    """
    total, events = 0.0, 0
    for stream in sentences(corpus, ngrams.words):
        total -= float(ngrams.log10(stream).sum()) * math.log(10)
        events += int((stream != ngrams.words.start).sum())
    return {
        "next": total / events,
        "perplexity": math.exp(total / events),
        "perplexity_words": math.exp(total / corpus.num_tokens),
    }


def language_of(corpus: Corpus) -> str:
    """The language of most of the corpus: how texts to score are cut into sentences."""
    languages: dict[str, dict[str, int]] = corpus.manifest.get("languages", {})
    return max(languages, key=lambda name: languages[name].get("tokens", 0), default="en")

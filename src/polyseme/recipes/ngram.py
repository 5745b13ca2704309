"""Recipes of n-gram models, which are counted, not trained."""

from __future__ import annotations

from polyseme.ngram.train import NgramRecipe


def ngram3() -> NgramRecipe:
    """Trigrams with interpolated modified Kneser-Ney smoothing: a baseline in a second."""
    return NgramRecipe(name="ngram-3", order=3)


def ngram5() -> NgramRecipe:
    """Up to 5-grams with interpolated modified Kneser-Ney smoothing (Chen and Goodman 1999)."""
    return NgramRecipe(name="ngram-5", order=5)

"""Translation metrics: BLEU and chrF by `sacrebleu`, with their signatures."""

from collections.abc import Sequence
from typing import Any

from polyseme.errors import DataError, require_package

LENGTH_BUCKETS = (10, 15, 20, 30, 40)  # words of a source


def score_translations(hypotheses: Sequence[str], references: Sequence[str], sources: Sequence[str]) -> dict[str, Any]:
    """Return BLEU and chrF of all translations, and BLEU by the length of the source in words."""
    sacrebleu = require_package("sacrebleu.metrics", "BLEU", "'polyseme[translate]'")
    if not len(hypotheses) == len(references) == len(sources):
        raise DataError(f"{len(hypotheses)} translations of {len(sources)} texts and {len(references)} references")
    if not hypotheses:
        raise DataError("there is nothing to measure: no text was translated")
    bleu, chrf = sacrebleu.BLEU(), sacrebleu.CHRF()
    bleu_score, chrf_score = (m.corpus_score(list(hypotheses), [list(references)]) for m in (bleu, chrf))
    lengths = [len(source.split()) for source in sources]
    rows = []
    for low, high in zip((0, *LENGTH_BUCKETS), (*LENGTH_BUCKETS, 10**9)):
        indices = [i for i, length in enumerate(lengths) if low < length <= high]
        if indices:
            chosen = [hypotheses[i] for i in indices], [[references[i] for i in indices]]
            bucket = f"{low + 1} to {high}" if high < 10**9 else f"more than {low}"
            rows.append({"words": bucket, "texts": len(indices), "bleu": sacrebleu.BLEU().corpus_score(*chosen).score})
    return {
        "bleu": bleu_score.score,
        "bleu_signature": str(bleu.get_signature()),
        "brevity_penalty": bleu_score.bp,
        "chrf": chrf_score.score,
        "chrf_signature": str(chrf.get_signature()),
        "by_length": rows,
        "texts": len(hypotheses),
    }

"""Translation metrics: BLEU and chrF by `sacrebleu`, with their signatures."""

from collections.abc import Sequence
from typing import Any

from polyseme.errors import DataError, require_package

LENGTH_BUCKETS = (10, 15, 20, 30, 40)  # words of a source
BUCKETS = tuple(zip((0, *LENGTH_BUCKETS), (*LENGTH_BUCKETS, 10**9)))
Statistics = dict[str, dict[str, Any]]  # name -> number of texts and counts, as JSON


def score_translations(hypotheses: Sequence[str], references: Sequence[str], sources: Sequence[str]) -> dict[str, Any]:
    """Return BLEU and chrF of all translations, and BLEU by the length of the source in words."""
    statistics: Statistics = {}
    add_statistics(statistics, hypotheses, references, sources)
    return translation_metrics(statistics)


def add_statistics(
    statistics: Statistics, hypotheses: Sequence[str], references: Sequence[str], sources: Sequence[str]
) -> None:
    """Add what BLEU and chrF count in some translations to what they count in others: a few numbers in all."""
    sacrebleu = require_package("sacrebleu.metrics", "BLEU", "'polyseme[translate]'")
    if not len(hypotheses) == len(references) == len(sources):
        raise DataError(f"{len(hypotheses)} translations of {len(sources)} texts and {len(references)} references")
    lengths = [len(source.split()) for source in sources]
    bleu_rows, chrf_rows = (
        metric._extract_corpus_statistics(list(hypotheses), [list(references)])
        for metric in (sacrebleu.BLEU(), sacrebleu.CHRF())
    )
    chosen = {"bleu": bleu_rows, "chrf": chrf_rows}
    for low, high in BUCKETS:
        chosen[f"bleu {low}"] = [row for row, length in zip(bleu_rows, lengths) if low < length <= high]
    for name, rows in chosen.items():
        if rows:
            previous = statistics.get(name, {"texts": 0, "counts": [0] * len(rows[0])})
            counts = [sum(column) for column in zip(previous["counts"], *rows)]
            statistics[name] = {"texts": previous["texts"] + len(rows), "counts": counts}


def translation_metrics(statistics: Statistics) -> dict[str, Any]:
    """Return the metrics of all translations that were added to the statistics."""
    if not statistics:
        raise DataError("there is nothing to measure: no text was translated")
    sacrebleu = require_package("sacrebleu.metrics", "BLEU", "'polyseme[translate]'")
    bleu, chrf = sacrebleu.BLEU(), sacrebleu.CHRF()
    bleu.num_refs = chrf.num_refs = 1  # for the signatures
    bleu_score, chrf_score = (
        metric._aggregate_and_compute([statistics[name]["counts"]]) for metric, name in ((bleu, "bleu"), (chrf, "chrf"))
    )
    rows = []
    for low, high in BUCKETS:
        if bucket := statistics.get(f"bleu {low}"):
            words = f"{low + 1} to {high}" if high < 10**9 else f"more than {low}"
            score = bleu._aggregate_and_compute([bucket["counts"]]).score
            rows.append({"words": words, "texts": bucket["texts"], "bleu": score})
    return {
        "bleu": bleu_score.score,
        "bleu_signature": str(bleu.get_signature()),
        "brevity_penalty": bleu_score.bp,
        "chrf": chrf_score.score,
        "chrf_signature": str(chrf.get_signature()),
        "by_length": rows,
        "texts": statistics["bleu"]["texts"],
    }

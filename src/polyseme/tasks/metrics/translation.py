"""How good translations are: BLEU and chrF as `sacrebleu` measures them, with the signatures that say how."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from polyseme.errors import UserError

BORDERS = (10, 15, 20, 30, 40)  # words of a source


def scores(found: Sequence[str], references: Sequence[str], sources: Sequence[str]) -> dict[str, Any]:
    """BLEU and chrF of all translations, and BLEU of those whose sources are of like length, in words."""
    try:
        from sacrebleu.metrics import BLEU, CHRF
    except ImportError:
        raise UserError("BLEU needs the package sacrebleu: pip install polyseme[translate]") from None
    if not len(found) == len(references) == len(sources):
        raise UserError(f"{len(found)} translations of {len(sources)} texts and {len(references)} references")
    if not found:
        raise UserError("there is nothing to measure: no text was translated")
    bleu, chrf = BLEU(), CHRF()
    total, letters = (
        bleu.corpus_score(list(found), [list(references)]),
        chrf.corpus_score(list(found), [list(references)]),
    )
    lengths = [len(source.split()) for source in sources]
    rows = []
    for low, high in zip((0, *BORDERS), (*BORDERS, 10**9)):
        some = [i for i, length in enumerate(lengths) if low < length <= high]
        if some:
            part = BLEU().corpus_score([found[i] for i in some], [[references[i] for i in some]])
            name = f"{low + 1} to {high}" if high < 10**9 else f"more than {low}"
            rows.append({"words": name, "texts": len(some), "bleu": part.score})
    return {
        "bleu": total.score,
        "bleu_signature": str(bleu.get_signature()),
        "brevity": total.bp,
        "chrf": letters.score,
        "chrf_signature": str(chrf.get_signature()),
        "by_length": rows,
        "texts": len(found),
    }

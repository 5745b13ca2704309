"""Translations of the lines of a file in bounded memory: what metrics and a report need is a summary."""

from pathlib import Path
from typing import Any

from polyseme.errors import DataError
from polyseme.evaluation.streaming import Source
from polyseme.generation.config import GenerationConfig
from polyseme.generation.text import Split
from polyseme.inference.base import LanguageModel
from polyseme.tasks.metrics.translation import add_statistics
from polyseme.tasks.readers.rows import iter_lines

NUM_EXAMPLES = 30  # in a report
MAX_CHARACTERS = 1 << 17  # of a window: less than for other commands, because a search takes longer
TextPair = tuple[str, str | None]  # a text and its reference


def read_text_pairs(data: Path, reference: Path | None) -> Source[TextPair]:
    """Return the lines of a file, including empty ones, each with its reference if there are any."""
    texts = Source(data, lambda _: iter_lines(data, keep_blank=True))
    if reference is None:
        return Source(data, lambda _: ((text, None) for text in texts))
    references = Source(reference, lambda _: iter_lines(reference, keep_blank=True))
    if texts.total != references.total:
        counts = f"{data} has {texts.total} lines, and {reference} has {references.total}"
        raise DataError(f"{counts}: they are not parallel")
    return Source(data, lambda _: zip(texts, references))


def translate_window(
    model: LanguageModel, config: GenerationConfig, split: Split | None, window: list[TextPair], summary: dict[str, Any]
) -> list[str]:
    """Return the translation of each text as one line, and add the statistics of metrics to the summary."""
    texts = [text for text, _ in window]
    translations = model.translate(texts, config, split=split)
    lines = [" ".join(translation.text.split()) for translation in translations]
    num_unfinished = sum(not translation.is_finished for translation in translations)
    summary["num_unfinished"] = summary.get("num_unfinished", 0) + num_unfinished
    references = [reference for _, reference in window if reference is not None]
    if references:
        add_statistics(summary.setdefault("statistics", {}), lines, references, texts)
        examples = summary.setdefault("examples", [])
        examples += list(zip(texts, references, lines))[: max(NUM_EXAMPLES - len(examples), 0)]
    return lines

"""Translations of the lines of a file in bounded memory: what metrics and a report need is a summary."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from polyseme.errors import DataError
from polyseme.evaluation.streaming import Source
from polyseme.evaluation.text_rows import open_texts
from polyseme.generation.config import GenerationConfig
from polyseme.generation.text import Split
from polyseme.inference.base import LanguageModel
from polyseme.tasks.metrics.translation import add_statistics

NUM_EXAMPLES = 30  # in a report
MAX_CHARACTERS = 1 << 17  # of a window: less than for other commands, because a search takes longer


class TranslationInput(NamedTuple):
    """A text with its row, and its reference translation."""

    text: str
    row: dict[str, Any]
    reference: str | None


@dataclass(frozen=True)
class TranslationInputs:
    """The texts of a file with their references, the names of all its columns, and the file of the references."""

    source: Source[TranslationInput]
    names: list[str]
    references: Source[Any] | None = None


def open_inputs(data: str | Path, reference: str | Path | None, model: Path) -> TranslationInputs:
    """Open the texts of a file, including empty ones, each with its reference if there are any."""
    texts = open_texts(data, model, allow_blank=True)
    if reference is None:
        unpaired = Source(texts.source.path, lambda _: (TranslationInput(*row[:2], None) for row in texts.source))
        return TranslationInputs(unpaired, texts.names)
    references = open_texts(reference, allow_blank=True).source
    if texts.source.total != references.total:
        counts = f"{data} has {texts.source.total} texts, and {reference} has {references.total}"
        raise DataError(f"{counts}: they are not parallel")
    pairs = Source(
        texts.source.path,
        lambda _: (TranslationInput(*row[:2], other.text) for row, other in zip(texts.source, references)),
    )
    return TranslationInputs(pairs, texts.names, references)


def translate_window(
    model: LanguageModel,
    config: GenerationConfig,
    split: Split | None,
    window: list[TranslationInput],
    summary: dict[str, Any],
) -> list[str]:
    """Return the translation of each text as one line, and add the statistics of metrics to the summary."""
    texts = [pair.text for pair in window]
    translations = model.translate(texts, config, split=split)
    lines = [" ".join(translation.text.split()) for translation in translations]
    num_unfinished = sum(not translation.is_finished for translation in translations)
    summary["num_unfinished"] = summary.get("num_unfinished", 0) + num_unfinished
    references = [pair.reference for pair in window if pair.reference is not None]
    if references:
        add_statistics(summary.setdefault("statistics", {}), lines, references, texts)
        examples = summary.setdefault("examples", [])
        examples += list(zip(texts, references, lines))[: max(NUM_EXAMPLES - len(examples), 0)]
    return lines

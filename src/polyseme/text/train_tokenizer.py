"""Word counts from sources of text, or from texts in memory, for training a tokenizer."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from polyseme.corpus.sources.readers import SourceFile
from polyseme.corpus.sources.sources import SourceReader, open_sources
from polyseme.errors import ConfigError, DataError
from polyseme.progress import progress
from polyseme.text.counts import MAX_SAMPLE_CHARS, MAX_WORDS, TextGroup, WordCounts
from polyseme.text.trainers import MAX_ALPHABET, check_vocab_size

logger = logging.getLogger(__name__)


def count_words(
    kind: str,
    sources: str | Path | Iterable[Any],
    lowercase: bool | None = None,
    sample_characters: int = MAX_SAMPLE_CHARS,
    **source_options: Any,
) -> WordCounts:
    """Count the words of sources (a path, or a list of `Path`), or of an iterable of texts.

    After `sample_characters` characters half of the documents are read, after as many again a quarter, and so on. Other
    options are those of `open_sources`: `key`, `split`, `format`, `lang`, `skip_bad`.
    """
    if isinstance(sources, str | Path):
        sources = [Path(sources) if isinstance(sources, Path) else sources]
    elif not (isinstance(sources, list | tuple) and all(isinstance(source, Path) for source in sources) and sources):
        if source_options:
            raise ConfigError(f"{', '.join(source_options)} apply to files, and texts in memory were given")
        counts = WordCounts(kind, lowercase, sample_characters)
        for text in sources:
            counts.add(text)
        return counts
    reader = open_sources(list(sources), **source_options)
    counts = count_source_words(kind, reader, lowercase, sample_characters)
    log_counts(counts, reader)
    return counts


def count_source_words(kind: str, reader: SourceReader, lowercase: bool | None, sample_characters: int) -> WordCounts:
    """Count the words of opened sources, each language and source by itself."""
    groups = {(file.source_index, file.lang) for file in reader.files}
    counts = WordCounts(kind, lowercase, sample_characters, len(groups))
    with progress("read", None, "characters") as bar:
        for file, text in iter_texts(reader):
            bar.advance(len(text))
            counts.add(text, TextGroup(file.lang, file.source_index, reader.sources[file.source_index].weight))
    if not counts.num_chars:
        raise DataError(f"there is no text in {', '.join(source.path for source in reader.sources)}")
    return counts


def log_counts(counts: WordCounts, reader: SourceReader) -> None:
    """Log how much text was read and counted, and what was dropped or skipped."""
    logger.info("%s characters read, %s of them counted", f"{counts.num_chars:,}", f"{counts.num_sampled_chars:,}")
    if counts.dropped_fraction:
        logger.info("rare words dropped to save memory: %s of the text", f"{counts.dropped_fraction:.2%}")
    if num_bad := reader.skipped.num_bad:
        logger.warning("%s bad rows were skipped, the first: %s", f"{num_bad:,}", reader.skipped.bad_row_messages[0])


def iter_texts(reader: SourceReader) -> Iterator[tuple[SourceFile, str]]:
    """Yield every non-blank text with its file; a bad row raises, or is counted if the reader skips bad rows."""
    for file, document in reader.documents():
        yield file, document.text


def resolve_vocab_size(
    kind: str, vocab_size: int | None, max_alphabet: int = MAX_ALPHABET, num_sentinels: int = 0
) -> int:
    """The size to train with; kinds whose vocabulary follows from the text may do without one."""
    if vocab_size is None and kind not in ("characters", "words", "whitespace"):
        raise ConfigError(f"vocab_size is missing: the maximum number of entries in a {kind} vocabulary")
    if vocab_size is None:
        vocab_size = max_alphabet if kind == "characters" else MAX_WORDS
    check_vocab_size(kind, vocab_size, num_sentinels)
    return vocab_size

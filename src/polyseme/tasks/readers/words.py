"""Texts as words, for models that read words and not pieces."""

import re
from functools import lru_cache

WORD_PATTERN = re.compile(r"\w+|[^\w\s]")


@lru_cache(1024)  # many questions of one text
def split_words(text: str) -> tuple[str, ...]:
    """Split a text into runs of letters and digits, and every other character by itself."""
    return tuple(WORD_PATTERN.findall(text))

"""The demo's task, *find the code words*: which words of a sentence stood in backticks before these were removed?

The labels were made by the authors of the documentation, there are thousands of them on every Python machine, and the
question has an answer that depends on context ("the axis to sum over": is `axis` a parameter or a word?).
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterator

from polyseme.corpus.clean.sentences import split_sentences
from polyseme.corpus.sources.python_docs import documents
from polyseme.tasks.examples import Example

WORD = re.compile(r"[^\W_][\w.\-]*\w|\w|[^\w\s]")
QUOTED = re.compile(r"(`+)([^`\n]+?)\1")
MOST_WORDS = 40


def held_out(module: str) -> bool:
    """One module of ten, by its name: the test set, in neither pre-training nor tokenizer.

    The choices of docs/log.md were made on another tenth (the digest's first byte), so these modules are fresh.
    """
    tuned_on, drawn = hashlib.sha256(module.encode()).digest()[:2]
    return tuned_on >= 26 and drawn < 28


def examples(test: bool) -> list[Example]:
    """Sentences with at least one code word and one plain word, from the held-out modules or from the others."""
    found = []
    for module, text in documents(keep=lambda name: held_out(name) == test):
        for sentence in split_sentences(text):
            words, tags = tagged(sentence)
            if 4 <= len(words) <= MOST_WORDS and 0 < tags.count("code") <= len(tags) / 2:
                found.append(Example(module, words=tuple(words), tags=tuple(tags)))
    return found


def tagged(sentence: str) -> tuple[list[str], list[str]]:
    """Words and tags of a sentence, backticks removed."""
    words, tags = [], []
    for text, inside in _pieces(sentence):
        for word in WORD.findall(text):
            if word != "`":
                words.append(word)
                tags.append("code" if inside else "O")
    return words, tags


def _pieces(sentence: str) -> Iterator[tuple[str, bool]]:
    at = 0
    for quoted in QUOTED.finditer(sentence):
        yield sentence[at : quoted.start()], False
        yield quoted[2], True
        at = quoted.end()
    yield sentence[at:], False

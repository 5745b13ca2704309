"""The demo's task, *find the code words*: which words of a sentence stood in backticks before these were removed?

The labels were made by the authors of the documentation, there are thousands of them on every Python machine, and the
question has an answer that depends on context ("the axis to sum over": is `axis` a parameter or a word?).
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterator

from polyseme.corpus.clean.sentences import split_sentences
from polyseme.corpus.sources.python_docs import read_documents
from polyseme.tasks.tagging import TaggingExample

WORD_PATTERN = re.compile(r"[^\W_][\w.\-]*\w|\w|[^\w\s]")
BACKTICK_PATTERN = re.compile(r"(`+)([^`\n]+?)\1")
MAX_WORDS = 40


def is_held_out(module: str) -> bool:
    """One module of ten, by its name: the test set, in neither pre-training nor tokenizer.

    The choices of docs/log.md were made on another tenth (the digest's first byte), so these modules are fresh.
    """
    tuning_byte, test_byte = hashlib.sha256(module.encode()).digest()[:2]
    return tuning_byte >= 26 and test_byte < 28


def load_examples(is_test: bool) -> list[TaggingExample]:
    """Sentences with at least one code word and one plain word, from the held-out modules or from the others."""
    tagged_sentences = []
    for module, text in read_documents(keep=lambda name: is_held_out(name) == is_test):
        for sentence in split_sentences(text):
            words, tags = tag_code_words(sentence)
            if 4 <= len(words) <= MAX_WORDS and 0 < tags.count("code") <= len(tags) / 2:
                tagged_sentences.append(TaggingExample(module, tuple(words), tuple(tags)))
    return tagged_sentences


def tag_code_words(sentence: str) -> tuple[list[str], list[str]]:
    """Words and tags of a sentence, backticks removed."""
    words, tags = [], []
    for text, is_code in _split_at_backticks(sentence):
        for word in WORD_PATTERN.findall(text):
            if word != "`":
                words.append(word)
                tags.append("code" if is_code else "O")
    return words, tags


def _split_at_backticks(sentence: str) -> Iterator[tuple[str, bool]]:
    position = 0
    for match in BACKTICK_PATTERN.finditer(sentence):
        yield sentence[position : match.start()], False
        yield match[2], True
        position = match.end()
    yield sentence[position:], False

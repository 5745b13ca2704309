"""Task of the demo: find the words of a sentence that were in backticks before these were removed.

The labels come from the authors of the documentation, every machine with Python has thousands of them, and the answer
depends on context ("the axis to sum over": is `axis` a parameter or a word?).
"""

import hashlib
import re

from polyseme.corpus.clean.sentences import split_sentences
from polyseme.corpus.sources.python_docs import read_documents
from polyseme.tasks.tagging import TaggingExample

WORD_PATTERN = re.compile(r"[^\W_][\w.\-]*\w|\w|[^\w\s]")
BACKTICK_PATTERN = re.compile(r"(`+)([^`\n]+?)\1")
MAX_WORDS = 40


def is_held_out(module: str) -> bool:
    """Return whether a module is in the test set: one in ten, by a hash of its name.

    Test modules are used for neither pre-training nor the tokenizer. The choices recorded in docs/log.md were made on
    another tenth (by the first byte of the digest), so the test modules played no part in them.
    """
    tuning_byte, test_byte = hashlib.sha256(module.encode()).digest()[:2]
    return tuning_byte >= 26 and test_byte < 28


def load_examples(is_test: bool) -> list[TaggingExample]:
    """Load sentences with some code words, at most half of all words, from the test modules or the others."""
    tagged_sentences = []
    for module, text in read_documents(keep=lambda name: is_held_out(name) == is_test):
        for sentence in split_sentences(text):
            words, tags = tag_code_words(sentence)
            if 4 <= len(words) <= MAX_WORDS and 0 < tags.count("code") <= len(tags) / 2:
                tagged_sentences.append(TaggingExample(module, tuple(words), tuple(tags)))
    return tagged_sentences


def tag_code_words(sentence: str) -> tuple[list[str], list[str]]:
    """Return the words of a sentence without backticks, and their tags `code` or `O`."""
    words: list[str] = []
    tags: list[str] = []
    for i, text in enumerate(BACKTICK_PATTERN.split(sentence)):  # text, backticks, code, text, …
        text_words = [word for word in WORD_PATTERN.findall(text) if word != "`"]
        words += text_words
        tags += ["code" if i % 3 == 2 else "O"] * len(text_words)
    return words, tags

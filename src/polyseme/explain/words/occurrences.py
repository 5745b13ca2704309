"""Find the occurrences of a word in texts; the sentences with ambiguous words that come with the package."""

import logging
import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from importlib.resources import files

from polyseme.errors import DataError, suggest
from polyseme.text.arguments import check_text, check_texts

logger = logging.getLogger(__name__)

MAX_OCCURRENCES = 2000
BUNDLED_WORDS = ("bank", "spring", "stick")
_MAX_SUGGESTED = 20_000  # words that are compared with one that does not occur
_WORD = re.compile(r"\w+")


@dataclass(frozen=True)
class Occurrence:
    """A word in a text, by its first character and the one after its last, and its sense if that is known."""

    text: str
    start: int
    end: int
    sense: str = ""

    def keyword_in_context(self, width: int) -> tuple[str, str, str]:
        """Return at most `width` characters before the word, the word, and at most `width` characters after it."""
        left, right = self.text[max(self.start - width - 1, 0) : self.start], self.text[self.end : self.end + width + 1]
        left = "…" + left[-width:].partition(" ")[2] if len(left) > width else left
        right = right[:width].rpartition(" ")[0] + "…" if len(right) > width else right
        return left.replace("\n", " "), self.text[self.start : self.end], right.replace("\n", " ")

    def context_words(self, num_words: int = 10) -> list[str]:
        """Return the words before and after this one, in lower case."""
        before, after = (_WORD.findall(part.lower()) for part in (self.text[: self.start], self.text[self.end :]))
        return before[-num_words:] + after[:num_words]


def bundled_sentences() -> tuple[list[str], list[str]]:
    """Return sentences with the words bank, spring and stick, and the sense of the word in each."""
    content = files("polyseme.explain.words").joinpath("words.tsv").read_text("utf-8")
    rows = [line.split("\t") for line in content.splitlines()[1:]]
    return [text for text, _ in rows], [sense for _, sense in rows]


def find_occurrences(
    word: str, texts: Sequence[str], senses: Sequence[str] | None = None, ignore_case: bool = True
) -> tuple[list[Occurrence], int]:
    """Return the first 2,000 occurrences of a word as a whole, and the number of all; fewer than two are an error.

    `senses` has one for each text.
    """
    texts = check_texts(texts)
    if senses is not None and len(senses) != len(texts):
        raise DataError(f"{len(senses)} senses for {len(texts)} texts: one per text is expected")
    word = " ".join(check_text(word, "word").split())
    if not word:
        raise DataError("the word is empty")
    expression = r"\s+".join(map(re.escape, word.split()))
    pattern = re.compile(rf"(?<!\w){expression}(?!\w)", re.IGNORECASE if ignore_case else 0)
    occurrences = [
        Occurrence(text, *match.span(), sense)
        for text, sense in zip(texts, [""] * len(texts) if senses is None else senses)
        for match in pattern.finditer(text)
    ]
    if len(occurrences) < 2:
        raise DataError(_too_few(word, texts, len(occurrences), ignore_case))
    if len(occurrences) > MAX_OCCURRENCES:
        logger.warning(f"{word!r} occurs {len(occurrences):,} times: the first {MAX_OCCURRENCES:,} are used")
    return occurrences[:MAX_OCCURRENCES], len(occurrences)


def _too_few(word: str, texts: Sequence[str], count: int, ignore_case: bool) -> str:
    """Return the message for a word that occurs at most once: a similar word, or what the texts are about."""
    if count:
        return f"{word!r} occurs once in {len(texts):,} texts: at least two occurrences are needed to compare them"
    counts = Counter(match for text in texts for match in _WORD.findall(text))
    frequent = [name for name, number in counts.most_common(_MAX_SUGGESTED) if number > 1]
    hint = suggest(word, frequent)
    if not hint.startswith("did you mean"):
        content_words = sorted(frequent, key=lambda name: (len(name) < 4, -counts[name], name))[:8]
        hint = f"frequent words are {', '.join(content_words)}" if content_words else "no word occurs twice"
    has_other_case = not ignore_case and any(word.lower() in text.lower() for text in texts)
    case = " with these upper and lower case letters, which the model distinguishes" if has_other_case else ""
    return f"{word!r} does not occur in {len(texts):,} texts{case}; {hint}"

"""Regular expressions of tokenizers made by others: some take forever on some texts, so each is tried out first.

`tokenizers` runs them in this process, where nothing can stop them. A probe in another process can be stopped.
"""

import json
import re
import subprocess
import sys
from collections.abc import Iterator
from functools import cache
from typing import Any

from tokenizers import Tokenizer

from polyseme.errors import ModelError
from polyseme.io.limits import MAX_PATTERN_SECONDS

_WORD = r"[^\r\n\p{L}\p{N}]?\p{L}+"
_PUNCTUATION = r" ?[^\s\p{L}\p{N}]+[\r\n]*"
_SPACES = r"\s*[\r\n]+|\s+(?!\S)|\s+"
# Ours, and those of GPT-2, GPT-4, Llama 3 and Qwen 2
KNOWN_PATTERNS = {
    r"\A\s+|\s+\z",
    r"\s+",
    r"\p{Han}|[\w&&[^\p{Han}]]+|\s|[^\w\s]",
    r"\A +|[ ▁]+\z| +(?= )",
    r"▁*[^▁]+|▁+",
    r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+",
    rf"(?i:'s|'t|'re|'ve|'m|'ll|'d)|{_WORD}|\p{{N}}{{1,3}}|{_PUNCTUATION}|{_SPACES}",
    rf"(?i:'s|'t|'re|'ve|'m|'ll|'d)|{_WORD}|\p{{N}}|{_PUNCTUATION}|{_SPACES}",
}
_PROBE_CODE = """
import json, sys
from tokenizers import Regex, pre_tokenizers
pattern, texts = json.load(sys.stdin)
split = pre_tokenizers.Split(Regex(pattern), "isolated")
for text in texts:
    split.pre_tokenize_str(text)
"""


def check_patterns(tokenizer: Tokenizer, source: object) -> None:
    """Raise `ModelError` if a regular expression of a tokenizer may take forever; known ones are not tried."""
    for part in (tokenizer.normalizer, tokenizer.pre_tokenizer, tokenizer.decoder):
        for pattern in _find_patterns(json.loads(part.__getstate__())) if part is not None else ():
            if not _is_known(pattern) and not _is_fast(pattern):
                problem = f"the regular expression {pattern[:100]!r} takes too long on some texts"
                raise ModelError(f"{source}: {problem}: simplify it, for instance a repeated group that repeats")


def is_panic(error: BaseException) -> bool:
    """Return whether an error is a panic of `tokenizers`, which is no `Exception`."""
    return type(error).__name__ == "PanicException"


def _find_patterns(value: Any) -> Iterator[str]:
    """Yield the regular expressions of a normalizer, pre-tokenizer or decoder, as `tokenizer.json` writes them."""
    if isinstance(value, dict):
        if isinstance(value.get("Regex"), str):
            yield value["Regex"]
        value = list(value.values())
    if isinstance(value, list):
        for inner in value:
            yield from _find_patterns(inner)


def _is_known(pattern: str) -> bool:
    repetitions = set("*+{") & set(re.sub(r"\\.", "", pattern, flags=re.DOTALL))
    return pattern in KNOWN_PATTERNS or not repetitions


@cache
def _is_fast(pattern: str) -> bool:
    """Try a regular expression on long repetitions of characters that it may repeat."""
    characters = dict.fromkeys([*"a1 .\n-_é", *(c for c in pattern if c.isprintable())][:60])
    units = [*characters, "ab", "a ", "1.", " \n"]
    texts = [unit * length + end for length in (40, 2000) for unit in units for end in ("", "!", "\0")]
    arguments = [sys.executable, "-c", _PROBE_CODE]
    try:
        probe = subprocess.run(
            arguments, input=json.dumps([pattern, texts]).encode(), timeout=MAX_PATTERN_SECONDS, capture_output=True
        )
    except subprocess.TimeoutExpired:
        return False
    return probe.returncode == 0

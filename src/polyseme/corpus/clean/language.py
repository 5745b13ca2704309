"""Which language a text is in, by py3langid and the model it brings along."""

from __future__ import annotations

import re
from functools import cache
from typing import Any

from polyseme.errors import UserError

SAMPLE = 300  # characters looked at; of 600 English passages none is taken for another language with this many
_PLACES = 3
_LEAST = 20  # letters below which nothing is said
_NO_LETTERS = re.compile(r"[\d_\s!-/:-@\[-`{-~]+")
_NONE = "zxx"  # what the model calls text without language: lists of numbers, code
# Codes that are told apart by region, writing or age more than by what stands in a text, under one name each.
_SAME = {
    **dict.fromkeys(("nb", "nn"), "no"),
    **dict.fromkeys(("hr", "sr", "bs", "srl"), "sh"),
    **dict.fromkeys(("arz", "ary", "arb"), "ar"),
    **dict.fromkeys(("yue", "wuu", "cmn"), "zh"),
    **dict.fromkeys(("ms", "in", "zsm"), "id"),
    **{"iw": "he", "hbo": "he", "fil": "tl", "uzs": "uz", "sdh": "ku", "gug": "gn", "pes": "fa", "prs": "fa"},
}


class Identifier:
    """Says the language of a text and how probable it is; ("", 0.0) where there is too little to say."""

    def __init__(self) -> None:
        self._model = _model()
        self._known = {language(label) for label in self._model.labels if label != _NONE}

    def __call__(self, text: str) -> tuple[str, float]:
        shown = _NO_LETTERS.sub(" ", sample(text))
        if len(shown) < _LEAST:
            return "", 0.0
        found, probability = self._model.classify(shown)
        return ("", 0.0) if found == _NONE else (str(found), float(probability))

    def knows(self, lang: str) -> bool:
        return language(lang) in self._known

    def wrong(self, text: str, lang: str, least: float) -> tuple[str, float] | None:
        """The language a text has instead of `lang`, if that is at least so probable.

        Nothing can be said against a language the model does not know, or one that was not told.
        """
        if not self.knows(lang):
            return None
        found, probability = self(text)
        return (found, probability) if found and language(found) != language(lang) and probability >= least else None


def language(code: str) -> str:
    """The language of a code with or without a region or a script: `pt_BR`, `zh-Hans`."""
    bare = re.split("[-_.@]", code.strip().lower())[0]
    return _SAME.get(bare, bare)


def sample(text: str) -> str:
    """The beginning, the middle and the end of a long text."""
    if len(text) <= SAMPLE:
        return text
    length = SAMPLE // _PLACES
    starts = [(len(text) - length) * place // (_PLACES - 1) for place in range(_PLACES)]
    return " ".join(text[start : start + length] for start in starts)


@cache
def _model() -> Any:
    try:
        from py3langid.langid import MODEL_FILE, LanguageIdentifier
    except ImportError:
        raise UserError("languages are told by py3langid, which is not installed: pip install py3langid") from None
    return LanguageIdentifier.from_model_file(MODEL_FILE, norm_probs=True)

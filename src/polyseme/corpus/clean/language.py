"""Which language a text is in, by py3langid and the model it brings along."""

from __future__ import annotations

import re
from functools import cache
from typing import Any

from polyseme.errors import UnsupportedError

SAMPLE_CHARS = 300  # characters looked at; of 600 English passages none is taken for another language with this many
_NUM_SAMPLES = 3
_MIN_LETTERS = 20  # letters below which nothing is said
_NO_LETTERS = re.compile(r"[\d_\s!-/:-@\[-`{-~]+")
_NO_LANGUAGE = "zxx"  # what the model calls text without language: lists of numbers, code
# Codes that are told apart by region, writing or age more than by what stands in a text, under one name each.
_LANGUAGE_ALIASES = {
    **dict.fromkeys(("nb", "nn"), "no"),
    **dict.fromkeys(("hr", "sr", "bs", "srl"), "sh"),
    **dict.fromkeys(("arz", "ary", "arb"), "ar"),
    **dict.fromkeys(("yue", "wuu", "cmn"), "zh"),
    **dict.fromkeys(("ms", "in", "zsm"), "id"),
    **{"iw": "he", "hbo": "he", "fil": "tl", "uzs": "uz", "sdh": "ku", "gug": "gn", "pes": "fa", "prs": "fa"},
}


class LanguageDetector:
    """Says the language of a text and how probable it is; ("", 0.0) where there is too little to say."""

    def __init__(self) -> None:
        self._model = _load_model()
        self._supported = {normalize_language(label) for label in self._model.labels if label != _NO_LANGUAGE}

    def __call__(self, text: str) -> tuple[str, float]:
        letters = _NO_LETTERS.sub(" ", sample_text(text))
        if len(letters) < _MIN_LETTERS:
            return "", 0.0
        detected_lang, probability = self._model.classify(letters)
        return ("", 0.0) if detected_lang == _NO_LANGUAGE else (str(detected_lang), float(probability))

    def supports(self, lang: str) -> bool:
        return normalize_language(lang) in self._supported

    def detect_mismatch(self, text: str, lang: str, min_probability: float) -> tuple[str, float] | None:
        """The language a text has instead of `lang`, if that is at least so probable.

        Nothing can be said against a language the model does not know, or one that was not told.
        """
        if not self.supports(lang):
            return None
        detected_lang, probability = self(text)
        return (
            (detected_lang, probability)
            if detected_lang
            and normalize_language(detected_lang) != normalize_language(lang)
            and probability >= min_probability
            else None
        )


def normalize_language(code: str) -> str:
    """The language of a code with or without a region or a script: `pt_BR`, `zh-Hans`."""
    base_code = re.split("[-_.@]", code.strip().lower())[0]
    return _LANGUAGE_ALIASES.get(base_code, base_code)


def sample_text(text: str) -> str:
    """The beginning, the middle and the end of a long text."""
    if len(text) <= SAMPLE_CHARS:
        return text
    length = SAMPLE_CHARS // _NUM_SAMPLES
    starts = [(len(text) - length) * index // (_NUM_SAMPLES - 1) for index in range(_NUM_SAMPLES)]
    return " ".join(text[start : start + length] for start in starts)


@cache
def _load_model() -> Any:
    try:
        from py3langid.langid import MODEL_FILE, LanguageIdentifier
    except ImportError:
        raise UnsupportedError(
            "languages are told by py3langid, which is not installed: pip install py3langid"
        ) from None
    return LanguageIdentifier.from_model_file(MODEL_FILE, norm_probs=True)

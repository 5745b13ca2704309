"""Language detection with py3langid and the model that it includes."""

from __future__ import annotations

import re
from functools import cache
from typing import Any

from polyseme.errors import UnsupportedError

SAMPLE_CHARS = 300  # of a long text; enough to classify all of 600 English passages correctly
_NUM_SAMPLES = 3
_MIN_LETTERS = 20  # no detection below this length
_NO_LETTERS = re.compile(r"[\d_\s!-/:-@\[-`{-~]+")
_NO_LANGUAGE = "zxx"  # the model's label for text without language: numbers, code
# Codes that differ in region, script or age rather than in content are treated as one language.
_LANGUAGE_ALIASES = {
    **dict.fromkeys(("nb", "nn"), "no"),
    **dict.fromkeys(("hr", "sr", "bs", "srl"), "sh"),
    **dict.fromkeys(("arz", "ary", "arb"), "ar"),
    **dict.fromkeys(("yue", "wuu", "cmn"), "zh"),
    **dict.fromkeys(("ms", "in", "zsm"), "id"),
    **{"iw": "he", "hbo": "he", "fil": "tl", "uzs": "uz", "sdh": "ku", "gug": "gn", "pes": "fa", "prs": "fa"},
}


class LanguageDetector:
    """Detects the language of a text and its probability; ("", 0.0) if the text is too short."""

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
        """Return whether the model knows a language."""
        return normalize_language(lang) in self._supported

    def detect_mismatch(self, text: str, lang: str, min_probability: float) -> tuple[str, float] | None:
        """Return the detected language and its probability if it is not `lang` and at least `min_probability`.

        Returns None if the model does not know `lang`, or if `lang` is empty.
        """
        if not self.supports(lang):
            return None
        detected_lang, probability = self(text)
        is_same = not detected_lang or normalize_language(detected_lang) == normalize_language(lang)
        return None if is_same or probability < min_probability else (detected_lang, probability)


def normalize_language(code: str) -> str:
    """Return the language of a code that may have a region or script, e.g. `pt_BR`, `zh-Hans`."""
    base_code = re.split("[-_.@]", code.strip().lower())[0]
    return _LANGUAGE_ALIASES.get(base_code, base_code)


def sample_text(text: str) -> str:
    """Return the beginning, middle and end of a long text; a short text unchanged."""
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
            "language detection needs py3langid, which is not installed: pip install py3langid"
        ) from None
    return LanguageIdentifier.from_model_file(MODEL_FILE, norm_probs=True)

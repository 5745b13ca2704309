"""The attention of every layer and head on a page."""

from collections.abc import Sequence
from typing import Any

from polyseme.errors import UnsupportedError
from polyseme.explain.explanation import Explanation
from polyseme.explain.translation import explain_translation
from polyseme.inference.base import LanguageModel
from polyseme.inference.load import load_neural


def explain_attention(models: Sequence[LanguageModel], texts: Sequence[str], **settings: Any) -> Explanation:
    """Show the attention of one or two models on one or two texts."""
    network = load_neural(models[0])
    if not network.is_seq2seq:
        raise UnsupportedError(f"{network.path} cannot translate")
    page = explain_translation(network, texts[0], **settings)
    return Explanation(page, {}, {}, f"the translation of {texts[0]!r}")

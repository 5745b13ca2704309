"""Short names of models for charts."""

from collections.abc import Sequence

from polyseme.inference.base import LanguageModel
from polyseme.report.cards.readme import short_name


def model_names(models: Sequence[LanguageModel]) -> list[str]:
    """Return a short name for each model; equal ones are numbered."""
    names = [short_name(model.path) for model in models]
    return [name if names.count(name) == 1 else f"{name} {names[: i + 1].count(name)}" for i, name in enumerate(names)]

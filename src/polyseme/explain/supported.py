"""Which figures `explain` can draw of a model, for the message about one that it cannot."""

from typing import NoReturn

from polyseme.errors import UnsupportedError
from polyseme.inference.base import LanguageModel
from polyseme.inference.neural_lm import NeuralLM
from polyseme.nn.trunks.recurrent import RecurrentTrunkConfig
from polyseme.nn.trunks.transformer import TransformerConfig

# the title of each figure, and the option of the command that asks for it; `explain_NAME` draws it
FIGURES = {
    "attention": ("attention", "text"),
    "translation": ("the beam of a translation", "text"),
    "attribution": ("attribution", "attribute"),
    "logit_lens": ("the logit lens", "lens"),
    "patching": ("activation patching", "patch"),
    "word": ("words in context", "word"),
    "geometry": ("the geometry of layers", "geometry"),
}


def supported_figures(model: LanguageModel) -> list[str]:
    """Return the names of the figures that a model supports, such as `attention` and `logit_lens`."""
    operations = set(model.capabilities)
    predicts_tokens = isinstance(model, NeuralLM) and bool({"masked", "next", "previous"} & set(model.model.heads))
    is_supported = {
        "attention": "attention" in operations,
        "translation": "translate" in operations,
        "attribution": "attribute" in operations,
        "logit_lens": predicts_tokens,
        "patching": predicts_tokens and _supports_patching(model),
        "word": "embed" in operations,
        "geometry": "embed" in operations,
    }
    return [name for name in FIGURES if is_supported[name]]


def _supports_patching(model: LanguageModel) -> bool:
    trunk = model.model.config.trunk if isinstance(model, NeuralLM) else None
    is_forward_rnn = isinstance(trunk, RecurrentTrunkConfig) and trunk.direction == "forward"
    return isinstance(trunk, TransformerConfig) or is_forward_rnn


def unsupported(model: LanguageModel, figure: str) -> NoReturn:
    """Raise the error for a figure that a model does not support: it lists those that it does."""
    titles = [f"{title} (`{option}`)" for title, option in map(FIGURES.__getitem__, supported_figures(model))]
    problem = f"{model.path} is {model.description}, for which explain cannot show {FIGURES[figure][0]}"
    raise UnsupportedError(f"{problem}; it can show {', '.join(titles) or 'no figure'}")

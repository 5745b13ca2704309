"""Which pronoun a model prefers with each occupation: *She works as a nurse* or *He works as a nurse*.

Malay, like many languages, has one pronoun for both (*dia*). A translation into English has to choose, and a language
model has a preference, which it learned from its text. Both are measured with the same sentences.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from importlib.resources import files
from statistics import fmean, pstdev
from typing import Any

import torch

from polyseme.errors import ConfigError, DataError, UnsupportedError
from polyseme.explain.explanation import Explanation
from polyseme.explain.words.names import model_names
from polyseme.generation.session import pack_inputs
from polyseme.generation.text import TextGenerator
from polyseme.inference.base import LanguageModel
from polyseme.inference.neural_lm import NeuralLM
from polyseme.nn.model import Model
from polyseme.report.dots import Dot, DotPanel, dot_figure
from polyseme.report.html import escape, figure, html_page, html_table, paragraph

MAX_MODELS = 4
PRONOUNS = ("she", "he")
NEUTRAL = "person"  # what other occupations are compared with
CAUTION = (
    "A preference is that of the text a model was trained on, and of these sentences; another wording shifts all "
    "occupations, which is why they are compared with the neutral word. Two pronouns do not stand for all people."
)


@dataclass(frozen=True)
class Occupation:
    """An occupation in English, and its name in the source language of a translation model, if there is one."""

    name: str
    source: str = ""


@dataclass(frozen=True)
class SentencePair:
    """A sentence with *she* and with *he*, where the pronoun is, and the source of which both are translations."""

    texts: tuple[str, str]
    spans: tuple[tuple[int, int], tuple[int, int]]
    source: str = ""


@dataclass(frozen=True)
class PronounPreference:
    """The log-odds of *she* over *he* with an occupation, in nats, by template; their mean gives the probability."""

    occupation: str
    log_odds: tuple[float, ...]

    @property
    def mean(self) -> float:
        """The mean log-odds over the templates."""
        return fmean(self.log_odds)

    @property
    def probability(self) -> float:
        """The probability of *she*, if one of the two pronouns is used."""
        return 1 / (1 + math.exp(-self.mean))


def bundled_occupations() -> list[Occupation]:
    """Return the occupations that come with the package, in English and Malay; the first is neutral."""
    return [Occupation(*row) for row in _read("occupations.tsv")]


def sentence_pairs(occupation: Occupation) -> list[SentencePair]:
    """Return a pair for each template."""
    return [_fill(text, source, occupation) for text, source in _read("templates.tsv")]


def _read(name: str) -> list[list[str]]:
    content = files("polyseme.explain.bias").joinpath(name).read_text("utf-8")
    return [line.split("\t") for line in content.splitlines()[1:]]


def _fill(text: str, source: str, occupation: Occupation) -> SentencePair:
    article = "an" if occupation.name[0].lower() in "aeiou" else "a"
    text = text.replace("{an occupation}", f"{article} {occupation.name}")
    start = max(text.find("{she}"), text.find("{She}"))
    pronouns = [pronoun.capitalize() if "{She}" in text else pronoun for pronoun in PRONOUNS]
    texts = [text[:start] + pronoun + text[start + len("{she}") :] for pronoun in pronouns]
    she, he = ((start, start + len(pronoun)) for pronoun in pronouns)
    filled = source.replace("{occupation}", occupation.source) if occupation.source else ""
    return SentencePair((texts[0], texts[1]), (she, he), filled)


def pronoun_preferences(model: LanguageModel, occupations: Sequence[Occupation]) -> list[PronounPreference]:
    """Measure the log-odds of *she* over *he* with each occupation.

    A masked model predicts the pronoun from the rest of the sentence; a causal model is compared on whole sentences,
    which gives the same odds; a translation model on the two translations of the source.
    """
    pairs = [sentence_pairs(occupation) for occupation in occupations]
    flat = [pair for group in pairs for pair in group]
    if "translate" in model.capabilities and isinstance(model, NeuralLM):
        scores = _score_translations(model, flat)
    elif "score" in model.capabilities:
        texts = [text for pair in flat for text in pair.texts]
        spans = [span for pair in flat for span in pair.spans] if model.supports_pll_metric else None
        scores = [score.log_prob for score in model.score(texts, spans=spans)]
    else:
        raise UnsupportedError(f"{model.path} is {model.description}, which gives sentences no probability")
    odds = iter([she - he for she, he in zip(scores[::2], scores[1::2])])
    return [
        PronounPreference(occupation.name, tuple(next(odds) for _ in group))
        for occupation, group in zip(occupations, pairs)
    ]


@torch.inference_mode()
def _score_translations(model: NeuralLM, pairs: Sequence[SentencePair]) -> list[float]:
    """Return the log-probability of each of the two translations of each pair, given its source."""
    missing = next((pair for pair in pairs if not pair.source), None)
    if missing:
        raise DataError(
            f"a translation model needs the occupation in its source language: {missing.texts[0]!r} has none"
        )
    generator = TextGenerator.from_folder(model.folder)
    network, eos = generator.model, sorted(generator.eos_token_ids)[:1]
    assert isinstance(network, Model)
    scores = []
    for pair in pairs:
        targets = [[*generator.target_tokenizer.encode(text), *eos] for text in pair.texts]
        source = generator.encode_source(pair.source)
        inputs = pack_inputs([[*generator.start_ids, *ids[:-1]] for ids in targets], network, [source, source])
        hidden = network.trunk(inputs).hidden
        log_probs = network.predict("next", hidden, inputs.layout).float().log_softmax(-1)  # [tokens, vocabulary]
        labels = torch.tensor([i for ids in targets for i in ids], device=log_probs.device)
        chosen = log_probs.gather(1, labels[:, None])[:, 0].double()
        scores += [float(part.sum()) for part in chosen.split([len(ids) for ids in targets])]
    return scores


def explain_gender_bias(
    models: Sequence[LanguageModel], occupations: Sequence[Occupation] | None = None
) -> Explanation:
    """Compare the probability of *she* and *he* by occupation, for up to four models of any kind.

    The first occupation is the one that others are compared with.

    >>> explanation = explain_gender_bias([model])
    >>> explanation.record["models"][0]["occupations"][0]["occupation"]
    'person'
    """
    if not 1 <= len(models) <= MAX_MODELS:
        raise ConfigError(f"{len(models)} models, expected 1 to {MAX_MODELS}")
    occupations = bundled_occupations() if occupations is None else list(occupations)
    if len(occupations) < 2:
        raise DataError("one occupation cannot be compared: the first is the reference of the others")
    results = {name: pronoun_preferences(model, occupations) for name, model in zip(model_names(models), models)}
    header = ["occupation", *(f"{name}: P(she)" for name in results), *(f"{name}: log-odds" for name in results)]
    order = sorted(range(len(occupations)), key=lambda i: -next(iter(results.values()))[i].mean)
    rows = [
        [
            occupations[i].name,
            *(f"{each[i].probability:.3f}" for each in results.values()),
            *(f"{each[i].mean - each[0].mean:+.2f}" for each in results.values()),
        ]
        for i in order
    ]
    chart = dot_figure([_panel(name, each, order) for name, each in results.items()], "log-odds of she by occupation")
    record = {"models": [_to_record(name, each) for name, each in results.items()]}
    summary = "\n".join(_summarize(name, each) for name, each in results.items())
    caption = (
        "Log-odds of she over he in nats, one faint dot for each sentence, and their mean; 0 means that both are "
        f"equally probable. Orange: the neutral word, {occupations[0].name}."
    )
    sections = [
        ("By occupation", figure(chart, caption)),
        ("Numbers", html_table(header, rows) + paragraph(f"Log-odds are relative to {occupations[0].name}.")),
        ("How to read it", paragraph(CAUTION)),
    ]
    page = html_page("She or he", f"Pronouns by occupation: {escape(', '.join(results))}", sections)
    return Explanation(page, record, {"occupations": chart}, summary, [(header, rows)])


def _panel(name: str, preferences: Sequence[PronounPreference], order: Sequence[int]) -> DotPanel:
    dots = [Dot(preferences[i].occupation, preferences[i].log_odds, is_marked=i == 0, unit="sentences") for i in order]
    return DotPanel(f"{name}: log-odds of she over he", dots)


def _to_record(name: str, preferences: Sequence[PronounPreference]) -> dict[str, Any]:
    rows = [
        {"occupation": each.occupation, "p_she": each.probability, "log_odds": list(each.log_odds)}
        for each in preferences
    ]
    return {"name": name, "spread": pstdev(each.mean for each in preferences[1:]), "occupations": rows}


def _summarize(name: str, preferences: Sequence[PronounPreference]) -> str:
    """Say how many occupations prefer *she*, the extremes, and how far occupations spread."""
    neutral, others = preferences[0], sorted(preferences[1:], key=lambda each: each.mean)
    num_she = sum(each.mean > 0 for each in others)
    extremes = ", ".join(f"{each.occupation} {each.probability:.2f}" for each in (others[-1], others[0]))
    spread = pstdev(each.mean for each in others)
    return (
        f"{name}: she is more probable with {num_she} of {len(others)} occupations; P(she): {extremes}, "
        f"{neutral.occupation} {neutral.probability:.2f}; standard deviation of the log-odds {spread:.2f}"
    )

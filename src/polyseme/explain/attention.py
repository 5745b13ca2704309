"""The attention of every layer and head on a page, with the beam search of a translation."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from polyseme.errors import ConfigError, DataError
from polyseme.explain.attention_page.page import (
    MAP_TITLES,
    AttentionPanel,
    attention_script,
    attention_section,
    panel_figures,
    pattern_section,
    pattern_tables,
)
from polyseme.explain.attention_page.panels import build_maps, choose_start, match_start
from polyseme.explain.explanation import Explanation, PrintedTable
from polyseme.explain.self_attention import AttentionSteps, attention_steps, steps_section
from polyseme.explain.supported import unsupported
from polyseme.explain.translation import ExplainedTranslation, explain_translation
from polyseme.inference.base import LanguageModel
from polyseme.inference.inspection.attention import Attention
from polyseme.inference.neural_lm import NeuralLM
from polyseme.report.html import escape, html_page
from polyseme.report.svg import shorten
from polyseme.text.tokenizer import Tokenizer

_SIGNIFICANT_DIGITS = 7  # of a weight in the record, those of float32
_MAX_TITLE_CHARS = 80
_MAX_LEAD_CHARS = 300


@dataclass(frozen=True, eq=False)
class _Reading:
    """One model that reads one text: its attention, and its translation of the text, where it has them."""

    model: LanguageModel
    text: str
    pair: str | None
    target: str | Sequence[int] | None
    attention: Attention
    tokenizers: Sequence[Tokenizer]
    translation: ExplainedTranslation | None


def explain_attention(
    models: Sequence[LanguageModel],
    texts: Sequence[str],
    *,
    pair: str | None = None,
    target: str | None = None,
    token: str | None = None,
    layer: int | None = None,
    head: int | None = None,
    num_beams: int | None = None,
    length_penalty: float | None = None,
) -> Explanation:
    """Show the attention of every layer and head of a model that reads a text; two texts or two models side by side.

    `pair` is the second text of the same input. An encoder-decoder reads `target`, by default the best translation
    of a beam search, which the page shows too; `num_beams` and `length_penalty` are its settings. `token` is the word
    that the page starts with, `layer` and `head`, from 1, the head; by default the one where the word attends most to
    another.

    >>> explanation = explain_attention([model], ["the cat sat"], token="cat")
    >>> explanation.save("attention.html")[0].name
    'attention.html'
    """
    if not 1 <= len(models) * len(texts) <= 2:
        sizes = f"{len(models)} models and {len(texts)} texts"
        raise ConfigError(f"{sizes}, expected one model and one or two texts, or two models and one text")
    beam = {"num_beams": num_beams, "length_penalty": length_penalty}
    beam = {name: value for name, value in beam.items() if value is not None}
    readings = [_read(model, text, pair, target, beam) for model in models for text in texts]
    panels = _build_panels(readings, token, layer, head)
    first_place = {"token": token, "layer": layer, "head": head}
    if not any(panels) and (unused := [name for name, value in first_place.items() if value is not None]):
        raise ConfigError(f"`{unused[0]}` has no effect: {models[0].path} has no attention")
    figures = [panel_figures(panel) if panel else {} for panel in panels]
    steps = [_steps(reading, panel) if panel else None for reading, panel in zip(readings, panels)]
    return Explanation(
        _page(readings, panels, figures, steps),
        {"figure": "attention", "readings": list(map(_record, readings, panels, steps))},
        _name_figures(readings, figures),
        "\n".join(map(_summarize, readings)),
        _tables(readings, panels),
    )


def _read(model: LanguageModel, text: str, pair: str | None, target: str | None, beam: dict[str, Any]) -> _Reading:
    """Read a text with a model; a model that has no attention and does not translate is an error."""
    has_attention, translates = "attention" in model.capabilities, "translate" in model.capabilities
    if not has_attention and not translates:
        unsupported(model, "attention")
    if not text.strip():
        raise DataError("there is nothing to read: the text is empty")
    if beam and (not translates or target is not None):
        reason = "the target is set by `target`" if translates else f"{model.path} does not translate"
        raise ConfigError(f"`{next(iter(beam))}` has no effect: {reason}")
    assert isinstance(model, NeuralLM)
    inspector = model.attention_inspector
    translation = explain_translation(model, text, **beam) if translates and target is None else None
    read_target = target if translation is None else translation.target_ids
    attention = Attention()
    if has_attention:
        with torch.inference_mode():
            attention = inspector.attention(inspector.read(text, pair, read_target))
    elif pair is not None:
        raise ConfigError("`pair` has no effect: an encoder-decoder reads one text as its source")
    tokenizers = [model.tokenizer, *([inspector.generator.target_tokenizer] if inspector.generator else [])]
    return _Reading(model, text, pair, read_target, attention, tokenizers, translation)


def _build_panels(
    readings: Sequence[_Reading], token: str | None, layer: int | None, head: int | None
) -> list[AttentionPanel | None]:
    """Build the panel of each reading with attention; a second one starts like the first."""
    panels: list[AttentionPanel | None] = []
    for reading, title in zip(readings, _titles(readings)):
        maps = build_maps(reading.attention, reading.tokenizers)
        first = next(filter(None, panels), None)
        if not maps:
            panels.append(None)
            continue
        start = choose_start(maps, token, layer, head) if first is None else match_start(maps, first)
        panels.append(AttentionPanel(title, maps, start))
    return panels


def _steps(reading: _Reading, panel: AttentionPanel) -> AttentionSteps:
    """Compute step by step what the first head of a panel does for its word."""
    start = panel.start
    return attention_steps(
        reading.model,
        reading.text,
        start.layer + 1,
        start.head + 1,
        start.token,
        name=start.map,
        pair=reading.pair,
        target=reading.target,
    )


def _steps_section(steps: Sequence[AttentionSteps], panels: Sequence[AttentionPanel]) -> str:
    """Render the steps of all panels side by side."""
    parts = [
        (f'<div><h3 dir="auto">{escape(panel.title)}</h3>' if len(panels) > 1 else "<div>")
        + f"{steps_section(each)}</div>"
        for each, panel in zip(steps, panels)
    ]
    return f'<div class="pair">{"".join(parts)}</div>'


def _model_name(model: LanguageModel) -> str:
    """Return the name of a model's folder, after that of its run if it is only called `model`."""
    path = model.path.absolute()  # that of the folder `.` has no name
    return f"{path.parent.name}/{path.name}" if path.name == "model" else path.name


def _titles(readings: Sequence[_Reading]) -> list[str]:
    """Return what distinguishes readings: texts, or the names or else the paths of models."""
    for describe in (
        lambda reading: shorten(reading.text, _MAX_TITLE_CHARS),
        lambda reading: _model_name(reading.model),
        lambda reading: str(reading.model.path),
    ):
        titles = [describe(reading) for reading in readings]
        if len(set(titles)) == len(titles):
            return titles
    return [f"{i}. {title}" for i, title in enumerate(titles, 1)]


def _page(
    readings: Sequence[_Reading],
    panels: Sequence[AttentionPanel | None],
    figures: Sequence[dict[str, str]],
    steps: Sequence[AttentionSteps | None],
) -> str:
    names = " and ".join(dict.fromkeys(_model_name(reading.model) for reading in readings))
    sections: list[tuple[str, str]] = []
    top, leads = "", []
    suffixes = [f": {title}" if len(readings) > 1 else "" for title in _titles(readings)]
    for reading, suffix in zip(readings, suffixes):
        lead = f'<span dir="auto">{escape(shorten(reading.text, _MAX_LEAD_CHARS))}</span>'
        if (translation := reading.translation) is not None:
            sections += [(f"{heading}{suffix}", content) for heading, content in translation.sections]
            top += translation.top
            lead += f' → <b dir="auto">{escape(shorten(translation.best, _MAX_LEAD_CHARS))}</b>'
        leads.append(lead)
    script = ""
    if shown := [panel for panel in panels if panel]:
        sections.append(("Attention", attention_section(shown, [drawn for drawn in figures if drawn])))
        sections.append(("Step by step", _steps_section([each for each in steps if each], shown)))
        sections.append(("Fixed patterns", pattern_section(shown)))
        script = attention_script(shown)
    title = f"A translation by {names}" if readings[0].translation else f"Attention of {names}"
    return html_page(title, "<br>".join(dict.fromkeys(leads)), sections, top, script)


def _name_figures(readings: Sequence[_Reading], figures: Sequence[dict[str, str]]) -> dict[str, str]:
    """Name the figures of all readings; those of a second one end in 2."""
    names: dict[str, str] = {}
    for i, (reading, drawn) in enumerate(zip(readings, figures), 1):
        charts = drawn | (reading.translation.figures if reading.translation else {})
        names |= {name if i == 1 else f"{name}{i}": chart for name, chart in charts.items()}
    return names


def _record(reading: _Reading, panel: AttentionPanel | None, steps: AttentionSteps | None) -> dict[str, Any]:
    """Return the exact numbers of a reading, and of the steps of the head that the page shows first."""
    record: dict[str, Any] = {"model": str(reading.model.path), "text": reading.text}
    record |= {"pair": reading.pair} if reading.pair is not None else {}
    if reading.translation is not None:
        record["translation"] = reading.translation.record
    if panel is None or steps is None:
        return record
    record["maps"] = [
        {
            "name": each.name,
            "queries": each.queries,
            "keys": each.keys,
            "query_words": each.query_words,
            "key_words": each.key_words,
            "query_word_ids": each.query_word_ids,
            "key_word_ids": each.key_word_ids,
            "patterns": {name: round_significant(mean) for name, mean in panel_map.tokens.patterns.items()},
            "weights": round_significant(each.weights),
        }
        for each, panel_map in zip(reading.attention.maps, panel.maps)
    ]
    return record | {"steps": steps.record()}


def round_significant(values: np.ndarray, digits: int = _SIGNIFICANT_DIGITS) -> list[Any]:
    """Return nested lists of values with a number of significant digits."""
    if values.ndim > 3:
        return [round_significant(part, digits) for part in values]  # to bound the memory
    values = values.astype(np.float64)
    magnitudes = np.floor(np.log10(np.abs(values), where=values != 0, out=np.zeros_like(values)))
    scales = 10.0 ** (digits - 1 - magnitudes)
    return (np.rint(values * scales) / scales).tolist()


def _summarize(reading: _Reading) -> str:
    """Return one line about a reading."""
    parts = [
        f"{MAP_TITLES[each.name]}: layers {each.num_layers}, heads {each.num_heads}, queries {len(each.queries)}, "
        f"keys {len(each.keys)}"
        for each in reading.attention.maps
    ]
    if reading.translation is not None:
        parts.insert(0, f"translation {shorten(reading.translation.best, _MAX_TITLE_CHARS)!r}")
    return f"{_model_name(reading.model)} reads {shorten(reading.text, _MAX_TITLE_CHARS)!r}; {'; '.join(parts)}"


def _tables(readings: Sequence[_Reading], panels: Sequence[AttentionPanel | None]) -> list[PrintedTable]:
    """Return the tables that the command line prints: translations, and the patterns of each kind of attention."""
    tables: list[PrintedTable] = [reading.translation.table for reading in readings if reading.translation]
    for title, header, rows in pattern_tables([panel for panel in panels if panel]):
        tables.append(([f"{title}: {header[0]}", *header[1:]], rows))
    return tables

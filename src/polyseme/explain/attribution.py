"""A page about a prediction: which words it depends on by several methods, and how faithful each method is."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from polyseme.errors import ConfigError, DataError, suggest
from polyseme.explain.deletion import RANDOM, Deletion, delete_words, deletion_chart
from polyseme.explain.explanation import Explanation, PrintedTable
from polyseme.explain.supported import unsupported
from polyseme.inference.base import LanguageModel
from polyseme.inference.inspection.attribution import (
    METHODS,
    Attribution,
    AttributionInput,
    AttributionRequest,
    attribute_input,
)
from polyseme.progress import progress
from polyseme.report.html import Html, collapsed, escape, figure, html_page, html_table, key_figures, note, paragraph
from polyseme.report.svg import format_number, shorten, svg_image, svg_text, text_width
from polyseme.text.arguments import check_texts

TITLES = {
    "integrated_gradients": "integrated gradients",
    "gradient_x_input": "gradient × input",
    "erasure": "erasure",
    "leave_one_out": "leave-one-out",
}
MAX_SHOWN_TEXTS = 20
MAX_BARS = 60  # words in the figure
_STYLE = """<style>
.words{display:flex;flex-wrap:wrap;gap:.35rem .3rem;margin:.3rem 0 1.2rem}
.words>span{display:inline-grid;justify-items:center;line-height:1.35}
.words b{font-weight:400;padding:.05rem .3rem;border-radius:4px 4px 0 0}
.words i{display:block;height:5px;width:100%;background:var(--tint)}
.words i::before{content:"";display:block;height:5px;width:var(--share)}
.words .plus b{background:color-mix(in srgb,var(--s2) calc(var(--share)*.5),transparent)}
.words .minus b{background:color-mix(in srgb,var(--s1) calc(var(--share)*.5),transparent)}
.words .plus i::before{background:var(--s2)}
.words .minus i::before{background:repeating-linear-gradient(90deg,var(--s1) 0 3px,transparent 3px 5px)}
.words small{font-size:.68rem;color:var(--soft);font-variant-numeric:tabular-nums}
</style>"""
CAVEAT = (
    "An attribution says what this score of this model depends on, given one meaning of “without a word”; it is not "
    "the model's reasoning, and methods disagree. Texts with erased words are unlike those that the model was trained "
    "on, and the curves erase words as erasure does, which favors it."
)


def explain_attribution(
    model: LanguageModel,
    text: str | Sequence[str],
    label: str | None = None,
    *,
    pair: str | None = None,
    contrast: str | None = None,
    method: str | None = None,
    baseline: str | None = None,
) -> Explanation:
    """Show which words of a text a prediction depends on, by one method or by all, and how faithful each is.

    The arguments are those of `LanguageModel.attribute`. The curves of a list of texts are averaged.
    """
    if "attribute" not in model.capabilities:
        unsupported(model, "attribution")
    if method is not None and method not in METHODS:
        raise ConfigError(f"`method` is {method!r}; {suggest(method, METHODS)}")
    texts = [text] if isinstance(text, str) else check_texts(text)
    if not texts:
        raise DataError("there are no texts to explain")
    network: Any = model
    problems: list[AttributionInput] = []
    attributions: list[list[Attribution]] = []
    with progress("attribute", len(texts), "texts", show=len(texts) > 1) as bar:
        for each in texts:
            problem = network.attribution_input(AttributionRequest(each, label, pair, contrast, baseline))
            methods = [method] if method else [m for m in METHODS if m != "erasure" or problem.mask_id is not None]
            attributions.append([attribute_input(problem, name) for name in methods])
            problems.append(problem)
            bar.advance(1)
    deletion = delete_words(problems, attributions)
    return _build(model, texts, pair, attributions, deletion)


def _build(
    model: LanguageModel,
    texts: Sequence[str],
    pair: str | None,
    attributions: Sequence[Sequence[Attribution]],
    deletion: Deletion,
) -> Explanation:
    figures = {"words": word_bars(attributions[0])} if len(texts) == 1 else {}
    figures["deletion"] = deletion_chart(deletion, TITLES, direct_labels=True)
    method_table = _method_table(attributions, deletion)
    sections = [
        ("Words", _words_section(texts, attributions, figures.get("words", ""))),
        ("How faithful are they?", _deletion_section(deletion_chart(deletion, TITLES), method_table, len(texts))),
        ("Tokens", _token_tables(attributions[0]) if len(texts) == 1 else ""),
        ("Methods", html_table(["method", "what it measures"], _descriptions(attributions[0]))),
    ]
    question = _question([rows[0] for rows in attributions])
    lead = f'<b dir="auto">{escape(texts[0])}</b>' if len(texts) == 1 else f"{len(texts)} texts"
    lead += f' <span dir="auto">‖ {escape(pair)}</span>' if pair else ""
    page = html_page(
        question,
        f"{lead}, read by {escape(model.name)}",
        sections,
        key_figures(_cards(attributions)) + _STYLE,
    )
    record = {
        "model": model.name,
        "texts": [_describe(text, pair, rows) for text, rows in zip(texts, attributions)],
        "deletion": deletion.describe(),
    }
    tables: list[PrintedTable] = [method_table]
    if len(texts) == 1:
        tables.insert(0, _word_table(attributions[0]))
    return Explanation(page, record, figures, f"{question} {_format_score([rows[0] for rows in attributions])}", tables)


def _question(rows: Sequence[Attribution]) -> str:
    """Return the question that an attribution of each text answers."""
    labels, contrast = {row.label for row in rows}, rows[0].contrast
    label = f"“{rows[0].label}”" if len(labels) == 1 else "these predictions"
    label = label if not rows[0].is_number else "this number" if len(rows) == 1 else "these numbers"
    return f"Why {label} and not “{contrast}”?" if contrast else f"Why {label}?"


def _format_score(rows: Sequence[Attribution]) -> str:
    """Return what is attributed, with its value or the mean over texts."""
    label, contrast = rows[0].label if len({row.label for row in rows}) == 1 else "label", rows[0].contrast
    name = f"log p({label})" + (f" − log p({contrast})" if contrast else "")
    name = "The predicted number" if rows[0].is_number else name
    score, baseline_score = (float(np.mean([getattr(row, n) for row in rows])) for n in ("score", "baseline_score"))
    texts = f"the texts (means over {len(rows)})" if len(rows) > 1 else "the text"
    return f"{name} is {_number(score)}, and {_number(baseline_score)} without {texts}."


def _number(value: float) -> str:
    return f"{value:.3f}".replace("-", "−")


def _cards(attributions: Sequence[Sequence[Attribution]]) -> list[tuple[str, str, str]]:
    first = attributions[0][0]
    name = "Predicted number" if first.is_number else "Log-odds" if first.contrast else "Log-probability"
    errors = [row.completeness_error for rows in attributions for row in rows if row.method == "integrated_gradients"]
    completeness = [("Completeness error", _percent(max(errors)), "of integrated gradients")] if errors else []
    if len(attributions) > 1:
        scores, bases = ([getattr(rows[0], n) for rows in attributions] for n in ("score", "baseline_score"))
        detail = f"mean; {_number(float(np.mean(bases)))} without the texts"
        return [("Texts", str(len(attributions)), ""), (name, _number(float(np.mean(scores))), detail), *completeness]
    odds = format_number(float(np.exp(abs(first.score))))
    detail = f"{odds} to 1" if first.score > 0 else f"1 to {odds}"
    if not first.contrast:
        detail = "" if first.is_number else f"probability {np.exp(first.score):.3g}"
    return [
        (name, _number(first.score), detail),
        ("Without the text", _number(first.baseline_score), f"each token replaced by {first.baseline}"),
        ("Largest", first.words[int(np.argmax(np.abs(first.word_scores)))], f"by {TITLES[first.method]}"),
        *completeness,
    ]


# ----------------------------------------------------------------------------------------------------------- words


def _words_section(texts: Sequence[str], attributions: Sequence[Sequence[Attribution]], bars: str) -> str:
    meaning = paragraph(
        "A word on an orange ground, with a solid bar and a plus, raises the score; a blue one, with a striped bar and "
        "a minus, lowers it. Grounds and bars are relative to the largest word of a row."
    ) + note(CAVEAT)
    if len(texts) == 1:
        rows = "".join(f"<h3>{escape(TITLES[row.method])}</h3>{shaded_words(row)}" for row in attributions[0])
        caption = "The same numbers word by word. Bars of each method are relative to its largest."
        return meaning + rows + figure(bars, caption)
    shown = "".join(
        f"<h3>{escape(rows[0].label)}: {_number(rows[0].score)}</h3>{shaded_words(rows[0])}"
        for rows in attributions[:MAX_SHOWN_TEXTS]
    )
    left_out = len(texts) - MAX_SHOWN_TEXTS
    more = note(f"{left_out} more texts are in the JSON file.") if left_out > 0 else ""
    return meaning + note(f"By {TITLES[attributions[0][0].method]}.") + shown + more


def shaded_words(attribution: Attribution) -> str:
    """Render words with a ground, a bar and a number by their scores."""
    largest = max(map(abs, attribution.word_scores), default=0.0) or 1.0
    spans = []
    for i, (word, score) in enumerate(zip(attribution.words, attribution.word_scores)):
        spans += ['<span aria-hidden="true">‖</span>'] if i == attribution.pair_start else []
        kind = "plus" if score > 0 else "minus" if score < 0 else "zero"
        spans.append(
            f'<span class="{kind}" style="--share:{100 * abs(score) / largest:.0f}%" title="{score:+.6g}">'
            f'<b dir="auto">{escape(word)}</b><i></i><small>{_signed(score, largest)}</small></span>'
        )
    return f'<div class="words">{"".join(spans)}</div>'


def _percent(share: float) -> str:
    """Format a small share, such as 0.0013 %."""
    return f"{100 * share:.2g} %" if share >= 1e-6 else "< 0.0001 %"


def _signed(score: float, largest: float) -> str:
    """Format a score with two decimals, or two digits if all scores of a method are small."""
    if abs(score) < largest / 200:
        return "0"
    return (f"{score:+.2f}" if largest >= 0.1 else f"{score:+.2g}").replace("-", "−", 1)


def word_bars(attributions: Sequence[Attribution]) -> str:
    """Draw the scores of words as bars to the left and right of zero, one column per method."""
    words = attributions[0].words
    sizes = np.max([np.abs(row.word_scores) for row in attributions], axis=0)
    shown = np.sort(np.argsort(-sizes, kind="stable")[:MAX_BARS])
    labels = [shorten(words[i], 18) for i in shown]
    left, width, row_height, top = max(map(text_width, labels)) + 12, 165, 20, 30
    parts = []
    for column, attribution in enumerate(attributions):
        scores = np.array(attribution.word_scores)
        largest, middle = np.abs(scores).max() or 1.0, left + column * width + width / 2
        parts.append(svg_text(middle, 14, TITLES[attribution.method], "middle", ' style="font-weight:600"'))
        end = top + row_height * len(shown)
        parts.append(f'<path d="M{middle:.1f} {top - 6}V{end}" style="stroke:var(--faint)"/>')
        for row, i in enumerate(shown):
            y, size = top + row * row_height, 40 * abs(scores[i]) / largest
            start, fill = (middle, "var(--s2)") if scores[i] > 0 else (middle - size, "var(--s1)")
            parts.append(
                f'<rect x="{start:.1f}" y="{y}" width="{size:.1f}" height="13" style="fill:{fill}">'
                f"<title>{escape(words[i])}: {scores[i]:+.6g}</title></rect>"
            )
            side, anchor = (middle + size + 4, "start") if scores[i] >= 0 else (middle - size - 4, "end")
            parts.append(svg_text(side, y + 11, _signed(scores[i], largest), anchor, ' style="font-size:11px"'))
    parts += [svg_text(left - 8, top + row * row_height + 11, label, "end") for row, label in enumerate(labels)]
    size = left + width * len(attributions), top + row_height * len(shown) + 6
    return svg_image(*size, "".join(parts), "scores of words by method", scalable=False)


# ---------------------------------------------------------------------------------------------------------- tables


def _word_table(rows: Sequence[Attribution]) -> PrintedTable:
    header = ["word", *(TITLES[row.method] for row in rows)]
    is_small = [max(map(abs, row.word_scores)) < 0.1 for row in rows]
    return header, [
        (word, *(f"{score:+.2e}" if small else f"{score:+.3f}" for score, small in zip(scores, is_small)))
        for word, *scores in zip(rows[0].words, *(row.word_scores for row in rows))
    ]


def _method_table(attributions: Sequence[Sequence[Attribution]], deletion: Deletion) -> PrintedTable:
    """Return the completeness and the faithfulness of each method."""
    header = ["method", "completeness error", "AOPC", "beyond random", "least first", "area"]
    rows: list[tuple[str, ...]] = []
    for i, row in enumerate(attributions[0]):
        most, least = deletion.most_first[row.method], deletion.least_first[row.method]
        errors = [each[i].completeness_error for each in attributions]
        error = _percent(max(errors)) if row.method == "integrated_gradients" else "–"
        difference = deletion.over_random(row.method)
        margin = f" ± {difference.aopc_margin:.3f}" if len(attributions) > 1 else ""
        numbers = [most.aopc, difference.aopc, least.aopc, deletion.area(row.method)]
        cells = [_number(value) + margin * (i == 1) for i, value in enumerate(numbers)]
        rows.append((TITLES[row.method], error, *cells))
    rows.append((RANDOM, "", _number(deletion.random.aopc), "", "", ""))
    return header, rows


def _deletion_section(chart: str, table: PrintedTable, num_texts: int) -> str:
    caption = (
        "The score without the most important words, by each method's own order. A faithful method makes it drop fast: "
        "its line is above that of random orders, and the faint one, which erases the least important words first, "
        "below."
    )
    if num_texts > 1:
        caption += " The lower panel has the difference from random orders, text by text, with its 95 % interval."
    meaning = (
        "AOPC is the mean drop over all steps (Samek et al. 2017), also as the difference from random orders and with "
        "the least important words first; the area is between the two curves of a method. Only integrated gradients "
        "promise to sum to the score minus that of the baseline; the completeness error says how far they are from it."
    )
    return figure(chart, caption) + html_table(*table) + note(meaning)


def _token_tables(rows: Sequence[Attribution]) -> str:
    """Return the scores of tokens, which integrated gradients and gradient × input add up to words."""
    header = ["token", "word", *(TITLES[row.method] for row in rows)]
    words = [Html("") if i is None else rows[0].words[i] for i in rows[0].word_ids]
    columns = [[f"{score:+.4f}" for score in row.scores] for row in rows]
    table = html_table(header, list(zip(rows[0].tokens, words, *columns)))
    return collapsed(f"{len(rows[0].tokens)} tokens, as the model reads them", table)


def _descriptions(rows: Sequence[Attribution]) -> list[tuple[str, str]]:
    return [(TITLES[row.method], METHODS[row.method]) for row in rows]


def _describe(text: str, pair: str | None, rows: Sequence[Attribution]) -> dict[str, Any]:
    first = rows[0]
    names = ("label", "contrast", "score", "baseline", "baseline_score", "words", "tokens", "word_ids")
    shared: Mapping[str, Any] = {name: getattr(first, name) for name in names}
    methods = {
        row.method: {
            "scores": row.scores,
            "word_scores": row.word_scores,
            "completeness_error": row.completeness_error,
        }
        for row in rows
    }
    return {"text": text, "pair": pair, **shared, "methods": methods}

"""The page of `polyseme describe`: statistics of a corpus as HTML."""

import shlex
from itertools import accumulate
from pathlib import Path
from typing import Any

from polyseme.corpus.inspect.statistics import CorpusStatistics, SourceStats, TokenCount
from polyseme.report.charts import Series, histogram, line_chart
from polyseme.report.html import (
    Cell,
    code,
    collapsed,
    columns,
    escape,
    figure,
    html_page,
    html_table,
    key_figures,
    next_steps,
    note,
    quote,
    warning,
)
from polyseme.report.svg import Axis, format_number

SMALLEST_RECIPE = {  # by kind of tokenizer
    "wordpiece": "bert-tiny", "bpe": "gpt2-tiny", "byte-bpe-roberta": "roberta-tiny", "events": "music-tiny"
}  # fmt: skip
_MAX_ROWS = 40  # of a table whose length depends on the corpus
_SHOWN_SAMPLES = 2
_MAX_UNKNOWN_RATE = 0.01
_SHOWN_ROWS = 8  # of a long table; the others are collapsed


def summary_rows(description: CorpusStatistics) -> list[tuple[str, str]]:
    """Return the rows that the command prints."""
    unigram, removed = description.unigram, description.removed
    duplicates = removed.get("duplicates", {})
    num_removed = sum(step.get("removed", 0) for step in removed.get("cleaning", {}).values())
    num_removed += duplicates.get("exact", 0) + duplicates.get("near", 0)
    unknown_rate = unigram.num_unknown / max(description.counts["tokens"], 1)
    used = f"{unigram.num_types:,} of {unigram.vocab_size:,} ({unigram.num_types / unigram.vocab_size:.1%})"
    return [
        *_size_rows(description),
        ("vocabulary used", used),
        ("unknown tokens", f"{unigram.num_unknown:,} ({unknown_rate:.4%})"),
        ("unigram entropy", f"{unigram.entropy:.4f} bits per token (perplexity {2**unigram.entropy:,.1f})"),
        ("documents removed", f"{num_removed:,}"),
    ]


def _size_rows(description: CorpusStatistics) -> list[tuple[str, str]]:
    counts = description.counts
    tokens = max(counts["tokens"], 1)
    return [
        *((name, f"{value:,}") for name, value in counts.items()),
        ("bytes on disk", f"{description.num_bytes:,}"),
        ("tokens per document", f"{tokens / max(counts['documents'], 1):,.1f}"),
        ("tokens per sentence", f"{tokens / max(counts['sentences'], 1):,.1f}"),
        ("tokens per word", f"{tokens / max(description.unigram.num_words, 1):.3f}"),
        ("characters per token", f"{counts['characters'] / tokens:.3f}"),
    ]


def render_page(description: CorpusStatistics) -> str:
    """Render one self-contained HTML page."""
    corpus, recipe = shlex.quote(description.path), SMALLEST_RECIPE.get(description.tokenizer_kind, "RECIPE")
    steps = [
        ("Pre-train a small model on it", f"polyseme pretrain {recipe} --corpus {corpus} --out RUN"),
        ("Choose another recipe", "polyseme recipes"),
        ("Look for evaluation texts that leaked into it", f"polyseme overlap {corpus} --evaluation-set FILE"),
    ]
    return html_page(
        f"Corpus: {Path(description.path).resolve().name}",
        escape(f"{description.tokenizer_kind} vocabulary of {description.unigram.vocab_size:,}, {description.path}"),
        [
            ("Size", html_table(["", ""], _size_rows(description))),
            ("Sources", _source_table("source", description.sources)),
            ("Languages", _source_table("language", description.languages)),
            ("Lengths", _length_section(description)),
            ("Tokens", _token_section(description)),
            ("What was removed", _removed_section(description.removed)),
            ("Random documents", _sample_section(description)),
            ("Settings", collapsed("Settings of the corpus, as in its manifest", code(description.settings))),
            ("Next steps", next_steps(steps)),
        ],
        _top(description),
    )


def _top(description: CorpusStatistics) -> str:
    """Render warnings and key figures."""
    counts, unigram = description.counts, description.unigram
    tokens = max(counts["tokens"], 1)
    unknown_rate, used = unigram.num_unknown / tokens, unigram.num_types / unigram.vocab_size
    warnings = ""
    if unknown_rate > _MAX_UNKNOWN_RATE:
        text = f"{unknown_rate:.2%} of the tokens are unknown: the vocabulary lacks characters of this text."
        warnings = warning(f"{text} Train a tokenizer on it.")
    figures = [
        ("Tokens", format_number(counts["tokens"]), f"{format_number(counts['characters'])} characters"),
        ("Documents", format_number(counts["documents"]), f"{tokens / max(counts['documents'], 1):,.0f} tokens each"),
        ("Vocabulary used", f"{used:.0%}", f"{unigram.num_types:,} of {unigram.vocab_size:,}"),
        ("Unigram perplexity", format_number(2**unigram.entropy, 4), "a model has to be better than this"),
    ]
    return warnings + key_figures(figures)


def _long_table(header: list[str], rows: list[Any], what: str) -> str:
    """Render a table whose rows after the first few are collapsed."""
    num_shown = len(rows) if len(rows) <= _SHOWN_ROWS + 2 else _SHOWN_ROWS
    rest = collapsed(
        f"{len(rows) - num_shown} more {what}", html_table(header, rows[num_shown:]) if rows[num_shown:] else ""
    )
    return html_table(header, rows[:num_shown]) + rest


def _source_table(group_by: str, sources: tuple[SourceStats, ...]) -> str:
    if not sources:
        return note("The manifest does not list them.") if group_by == "source" else ""
    largest = sorted(sources, key=lambda source: -source.counts["tokens"])[:_MAX_ROWS]
    has_weights = any(source.weight != 1 for source in sources)
    rows = []
    for source in sources if len(sources) <= _MAX_ROWS else largest:
        counts = source.counts
        weight = "" if source.weight is None else f"{source.weight:g}"
        rows.append([
            source.name, *([source.lang] if group_by == "source" else []),
            *(counts[name] for name in ("documents", "tokens", "characters")),
            f"{counts['characters'] / max(counts['tokens'], 1):.2f}",
            Cell(f"{source.token_share:.2%}", source.token_share),
            *([weight, f"{source.weighted_share:.2%}"] if has_weights else []),
        ])  # fmt: skip
    header = [group_by, *(["language"] if group_by == "source" else []), "documents", "tokens", "characters"]
    header += ["characters per token", "share", *(["weight", "weighted share"] if has_weights else [])]
    table = _long_table(header, rows, f"{group_by}s")
    if len(sources) > len(rows):
        table += note(f"and {len(sources) - len(rows):,} smaller ones")
    return table + (note("Shares are of tokens; training uses the weighted ones.") if has_weights else "")


def _length_section(description: CorpusStatistics) -> str:
    captions = {
        "document": "Documents longer than the model's maximum length are read in several samples.",
        "sentence": "Very long sentences are often lists, tables or code that the sentence splitter did not split.",
    }
    charts, rows = [], []
    for name, lengths in (("document", description.document_lengths), ("sentence", description.sentence_lengths)):
        axis = Axis(f"tokens per {name}", log=True)
        charts.append(figure(histogram(lengths.bin_edges, lengths.counts, axis, f"{name}s"), captions[name]))
        rows.append((name, f"{lengths.mean:,.1f}", lengths.min, *lengths.quartiles, lengths.max))
    header = ["tokens per", "mean", "shortest", "lower quartile", "median", "upper quartile", "longest"]
    return html_table(header, rows) + "".join(charts)


def _token_section(description: CorpusStatistics) -> str:
    unigram, counts = description.unigram, description.counts
    tokens = max(counts["tokens"], 1)
    num_continuations = tokens - unigram.num_words
    rows = [
        ("unigram entropy, bits per token", f"{unigram.entropy:.4f}"),
        ("the same, bits per character", f"{unigram.entropy * tokens / max(counts['characters'], 1):.4f}"),
        ("unigram perplexity", f"{2**unigram.entropy:,.1f}"),
        ("vocabulary", unigram.vocab_size),
        ("vocabulary used", f"{unigram.num_types:,} ({unigram.num_types / unigram.vocab_size:.1%})"),
        ("vocabulary unused", unigram.vocab_size - unigram.num_types),
        ("unknown tokens", f"{unigram.num_unknown:,} ({unigram.num_unknown / tokens:.4%})"),
        ("words", unigram.num_words),
        ("word-internal tokens", f"{num_continuations:,} ({num_continuations / tokens:.1%})"),
    ]

    growth = Series("", unigram.vocabulary_growth, show_points=True)
    chart = figure(
        line_chart([growth], Axis("tokens read", log=True), Axis("different tokens seen", from_zero=True)),
        "The curve flattens when the vocabulary is used up: a curve that still rises at its right end says that more "
        "text would use more of the vocabulary.",
    )
    tops = {"at the start of a word": unigram.top_word_initial, "inside words": unigram.top_word_internal}
    return (
        html_table(["", ""], rows)
        + chart
        + columns(*(_frequent_tokens(f"Most frequent {place}", top, tokens) for place, top in tops.items()))
        + note(
            "␣ is a space, ⏎ a line break; a part of a character is shown as the vocabulary writes it. "
            "Shares are of all tokens, summed from the top of each table."
        )
    )


def _frequent_tokens(title: str, top: tuple[TokenCount, ...], total: int) -> str:
    if not top:
        return ""
    sums = accumulate(each.count for each in top)
    texts = [each.text.replace(" ", "␣").replace("\n", "⏎").replace("\t", "⇥") for each in top]
    rows = [
        (text, each.count, Cell(f"{each.count / total:.3%}", each.count / top[0].count), f"{cumulative / total:.2%}")
        for text, each, cumulative in zip(texts, top, sums)
    ]
    return f"<h3>{title}</h3>" + _long_table(["token", "count", "share", "cumulative"], rows, "tokens")


def _removed_section(removed: dict[str, Any]) -> str:
    steps, duplicates = removed.get("cleaning", {}), removed.get("duplicates", {})
    rows = [(name, s.get("changed", 0), s.get("removed", 0), s.get("characters", 0)) for name, s in steps.items()]
    rows += [(f"{kind} duplicates", 0, duplicates[kind], "") for kind in ("exact", "near") if kind in duplicates]
    if duplicates:
        total = duplicates.get("exact", 0) + duplicates.get("near", 0)
        rows.append(("all duplicates", 0, total, duplicates.get("characters", 0)))
    header = ["step", "documents changed", "documents removed", "characters removed"]
    active_rows = [row for row in rows if any(row[1:])]
    html = html_table(header, active_rows) if active_rows else ""
    if idle_steps := [row[0] for row in rows if not any(row[1:])]:
        html += note(f"Without effect: {', '.join(idle_steps)}.")
    for name, step in {**steps, "duplicates": duplicates}.items():
        quotes = ""
        for example in step.get("examples", ()):
            repeats = f" repeats {example['duplicate_of']}" if "duplicate_of" in example else ""
            quotes += note(f"{example.get('location', '')}{repeats}") + quote(example.get("text", ""))
        html += collapsed(f"Examples: {name}", quotes)
    num_bad, messages = removed.get("num_bad", 0), removed.get("bad_row_messages", [])
    num_blank, num_empty = removed.get("num_blank", 0), removed.get("num_empty", 0)
    html += note(f"Blank documents: {num_blank:,}. Documents without tokens: {num_empty:,}. Bad rows: {num_bad:,}.")
    if messages:
        omitted = f"and {num_bad - _MAX_ROWS:,} more" if num_bad > _MAX_ROWS else ""
        rows_html = html_table(["bad row"], [[message] for message in messages[:_MAX_ROWS]]) + note(omitted)
        html += collapsed("Bad rows", rows_html)
    return html


def _sample_section(description: CorpusStatistics) -> str:
    html_parts = []
    for sample in description.samples:
        suffix = "" if sample.is_complete else ", the beginning"
        caption = f"document {sample.document_number:,}, {sample.num_tokens:,} tokens{suffix}"
        html_parts.append(note(f"{caption} · {sample.source}" if sample.source else caption))
        html_parts.append(quote(sample.text if sample.is_complete else sample.text + " …"))
    num_shown = 2 * _SHOWN_SAMPLES
    num_more = (len(html_parts) - num_shown) // 2
    return "".join(html_parts[:num_shown]) + collapsed(f"{num_more} more documents", "".join(html_parts[num_shown:]))

"""The page of `polyseme describe`: statistics of a corpus as HTML."""

import shlex
from itertools import accumulate
from pathlib import Path
from typing import Any

from polyseme.corpus.inspect.statistics import CorpusStatistics, SourceStats, TokenCount
from polyseme.report.charts import Series, histogram, line_chart
from polyseme.report.html import code, columns, escape, figure, html_page, html_table, note, quote
from polyseme.report.svg import Axis

SMALLEST_RECIPE = {  # by kind of tokenizer
    "wordpiece": "bert-tiny", "bpe": "gpt2-tiny", "byte-bpe-roberta": "roberta-tiny", "events": "music-tiny"
}  # fmt: skip
_MAX_ROWS = 40  # of a table whose length depends on the corpus


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
    next_command = f"polyseme pretrain {recipe} --corpus {corpus} --out RUN"
    summary = f"{description.counts['documents']:,} documents, {description.counts['tokens']:,} tokens"
    return html_page(
        f"Corpus: {Path(description.path).resolve().name}",
        escape(f"{summary}, {description.tokenizer_kind} vocabulary of {description.unigram.vocab_size:,}"),
        [
            ("Size", html_table(["", ""], _size_rows(description))),
            ("Sources", _source_table("source", description.sources)),
            ("Languages", _source_table("language", description.languages)),
            ("Lengths", _length_section(description)),
            ("Tokens", _token_section(description)),
            ("What was removed", _removed_section(description.removed)),
            ("Random documents", _sample_section(description)),
            ("Settings", code(description.settings)),
            ("What next", code(f"polyseme recipes\n{next_command}\npolyseme overlap {corpus} --evaluation-set FILE")),
        ],
    )


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
            f"{counts['characters'] / max(counts['tokens'], 1):.2f}", f"{source.token_share:.2%}",
            *([weight, f"{source.weighted_share:.2%}"] if has_weights else []),
        ])  # fmt: skip
    header = [group_by, *(["language"] if group_by == "source" else []), "documents", "tokens", "characters"]
    header += ["characters per token", "share", *(["weight", "weighted share"] if has_weights else [])]
    table = html_table(header, rows)
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
    rows = [(t, e.count, f"{e.count / total:.3%}", f"{s / total:.2%}") for t, e, s in zip(texts, top, sums)]
    return f"<h3>{title}</h3>" + html_table(["token", "count", "share", "cumulative"], rows)


def _removed_section(removed: dict[str, Any]) -> str:
    steps, duplicates = removed.get("cleaning", {}), removed.get("duplicates", {})
    rows = [(name, s.get("changed", 0), s.get("removed", 0), s.get("characters", 0)) for name, s in steps.items()]
    rows += [(f"{kind} duplicates", 0, duplicates[kind], "") for kind in ("exact", "near") if kind in duplicates]
    if duplicates:
        total = duplicates.get("exact", 0) + duplicates.get("near", 0)
        rows.append(("all duplicates", 0, total, duplicates.get("characters", 0)))
    header = ["step", "documents changed", "documents removed", "characters removed"]
    html = html_table(header, rows) if rows else ""
    for name, step in {**steps, "duplicates": duplicates}.items():
        html += f"<h3>{escape(name)}</h3>" if step.get("examples") else ""
        for example in step.get("examples", ()):
            repeats = f" repeats {example['duplicate_of']}" if "duplicate_of" in example else ""
            html += note(f"{example.get('location', '')}{repeats}") + quote(example.get("text", ""))
    num_bad, messages = removed.get("num_bad", 0), removed.get("bad_row_messages", [])
    num_blank, num_empty = removed.get("num_blank", 0), removed.get("num_empty", 0)
    html += note(f"Blank documents: {num_blank:,}. Documents without tokens: {num_empty:,}. Bad rows: {num_bad:,}.")
    if messages:
        omitted = f"and {num_bad - _MAX_ROWS:,} more" if num_bad > _MAX_ROWS else ""
        html += html_table(["bad row"], [[message] for message in messages[:_MAX_ROWS]]) + note(omitted)
    return html


def _sample_section(description: CorpusStatistics) -> str:
    html_parts = []
    for sample in description.samples:
        suffix = "" if sample.is_complete else ", the beginning"
        caption = f"document {sample.document_number:,}, {sample.num_tokens:,} tokens{suffix}"
        html_parts.append(note(f"{caption} · {sample.source}" if sample.source else caption))
        html_parts.append(quote(sample.text if sample.is_complete else sample.text + " …"))
    return "".join(html_parts)

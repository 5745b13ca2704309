"""`polyseme describe`: a page about a corpus."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from polyseme.errors import ConfigError

if TYPE_CHECKING:
    from polyseme.corpus.inspect.statistics import CorpusStatistics, LengthHistogram, SourceStats, TokenCount

SMALLEST_RECIPE = {
    "wordpiece": "bert-tiny",
    "bpe": "gpt2-tiny",
    "byte-bpe-roberta": "roberta-tiny",
    "events": "music-tiny",
}  # a recipe that fits a kind of tokenizer
_MAX_ROWS = 40  # of a table whose length the corpus decides


def describe(
    corpus: Annotated[Path, typer.Argument(help="a corpus folder made by `polyseme prepare`")],
    out: Annotated[Path | None, typer.Option(help="the page to write; default: description.html in the corpus")] = None,
    seed: Annotated[int, typer.Option(help="which documents are shown")] = 0,
    num_samples: Annotated[int, typer.Option(help="how many documents are shown")] = 5,
    top_k: Annotated[int, typer.Option(help="how many frequent tokens of each kind are shown")] = 50,
) -> None:
    """Write a page about a corpus: sizes, sources, lengths, tokens, entropy, what was removed, random documents."""
    from polyseme.cli.output import print_table
    from polyseme.corpus.inspect.statistics import compute_statistics as run
    from polyseme.corpus.store import Corpus
    from polyseme.io.atomic import write_text

    out = out or corpus / "description.html"
    if out.suffix.lower() not in (".html", ".htm"):
        raise ConfigError(f"--out {out}: the page is HTML, and its name has to end in .html")
    if seed < 0:
        raise ConfigError(f"seed is {seed}: it cannot be less than 0")
    description = run(Corpus.open(corpus), seed, num_samples, top_k)
    write_text(out, render_page(description))
    print_table([str(corpus), ""], summary_rows(description))
    print(f"{out}: the whole description")


def summary_rows(description: CorpusStatistics) -> list[tuple[str, str]]:
    """What the command prints."""
    unigram = description.unigram
    return [
        *_size_rows(description),
        (
            "vocabulary used",
            f"{unigram.num_types:,} of {unigram.vocab_size:,} ({unigram.num_types / unigram.vocab_size:.1%})",
        ),
        (
            "unknown tokens",
            f"{unigram.num_unknown:,} ({unigram.num_unknown / max(description.counts['tokens'], 1):.4%})",
        ),
        ("unigram entropy", f"{unigram.entropy:.4f} bits a token (perplexity {2**unigram.entropy:,.1f})"),
        ("documents removed", f"{_count_removed_documents(description.removed):,}"),
    ]


def _size_rows(description: CorpusStatistics) -> list[tuple[str, str]]:
    counts = description.counts
    tokens = max(counts["tokens"], 1)
    return [
        *((name, f"{value:,}") for name, value in counts.items()),
        ("bytes on disk", f"{description.num_bytes:,}"),
        ("tokens a document", f"{tokens / max(counts['documents'], 1):,.1f}"),
        ("tokens a sentence", f"{tokens / max(counts['sentences'], 1):,.1f}"),
        ("tokens a word", f"{tokens / max(description.unigram.num_words, 1):.3f}"),
        ("characters a token", f"{counts['characters'] / tokens:.3f}"),
    ]


def render_page(description: CorpusStatistics) -> str:
    """One self-contained HTML page."""
    from polyseme.report.html import code, escape, html_page, html_table

    corpus = shlex.quote(description.path)
    next_command = (
        f"polyseme pretrain {SMALLEST_RECIPE.get(description.tokenizer_kind, 'RECIPE')} --corpus {corpus} --out RUN"
    )
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
    from polyseme.report.html import html_table, note

    visible_sources = (
        sorted(sources, key=lambda source: -source.counts["tokens"])[:_MAX_ROWS]
        if len(sources) > _MAX_ROWS
        else sources
    )
    rows = []
    for source in visible_sources:
        counts = source.counts
        rows.append([
            source.name,
            *([source.lang] if group_by == "source" else []),
            *(counts[name] for name in ("documents", "tokens", "characters")),
            f"{counts['characters'] / max(counts['tokens'], 1):.2f}",
            f"{source.token_share:.2%}",
            "" if source.weight is None else f"{source.weight:g}",
            f"{source.weighted_share:.2%}",
        ])  # fmt: skip
    if not rows:
        return note("The manifest does not say.") if group_by == "source" else ""
    header = [group_by, *(["language"] if group_by == "source" else []), "documents", "tokens", "characters"]
    header += ["characters a token", "share", "weight", "share read"]
    omitted_note = (
        note(f"and {len(sources) - len(visible_sources):,} smaller ones") if len(sources) > len(visible_sources) else ""
    )
    has_weights = any(source.weight != 1 for source in sources)
    weights_note = (
        note("Shares are of tokens; the last one after the weights, as training reads them.") if has_weights else ""
    )
    if not has_weights:
        header, rows = header[:-2], [row[:-2] for row in rows]
    return html_table(header, rows) + omitted_note + weights_note


def _length_section(description: CorpusStatistics) -> str:
    from polyseme.report.charts import histograms
    from polyseme.report.html import columns, html_table

    def format_row(name: str, lengths: LengthHistogram) -> tuple[Any, ...]:
        return name, f"{lengths.mean:,.1f}", lengths.min, *lengths.quartiles, lengths.max

    length_stats = {"document": description.document_lengths, "sentence": description.sentence_lengths}
    charts = [
        histograms({f"tokens a {name}": (lengths.bin_edges, lengths.counts)}, f"{name}s")
        for name, lengths in length_stats.items()
    ]  # one picture each, so that they stand one above the other on a small screen
    header = ["tokens in a", "mean", "shortest", "lower quartile", "median", "upper quartile", "longest"]
    return columns(*charts) + html_table(header, [format_row(name, lengths) for name, lengths in length_stats.items()])


def _token_section(description: CorpusStatistics) -> str:
    from polyseme.report.charts import log_line_chart
    from polyseme.report.html import columns, html_table, note

    unigram, counts = description.unigram, description.counts
    tokens = max(counts["tokens"], 1)
    num_continuations = tokens - unigram.num_words
    rows = [
        ("unigram entropy, bits a token", f"{unigram.entropy:.4f}"),
        ("the same, bits a character", f"{unigram.entropy * tokens / max(counts['characters'], 1):.4f}"),
        ("unigram perplexity", f"{2**unigram.entropy:,.1f}"),
        ("vocabulary", unigram.vocab_size),
        ("of it seen", f"{unigram.num_types:,} ({unigram.num_types / unigram.vocab_size:.1%})"),
        ("never seen", unigram.vocab_size - unigram.num_types),
        ("unknown tokens", f"{unigram.num_unknown:,} ({unigram.num_unknown / tokens:.4%})"),
        ("words", unigram.num_words),
        ("tokens that go on with a word", f"{num_continuations:,} ({num_continuations / tokens:.1%})"),
    ]

    def frequent_tokens_table(title: str, token_counts: tuple[TokenCount, ...]) -> str:
        if not token_counts:
            return ""
        cumulative, table_rows = 0, []
        for token_count in token_counts:
            cumulative += token_count.count
            visible_text = token_count.text.replace(" ", "␣").replace("\n", "⏎").replace("\t", "⇥")
            table_rows.append(
                (visible_text, token_count.count, f"{token_count.count / tokens:.3%}", f"{cumulative / tokens:.2%}")
            )
        return f"<h3>{title}</h3>" + html_table(["token", "count", "share", "summed"], table_rows)

    growth_chart = log_line_chart(unigram.vocabulary_growth, "tokens read", "different tokens seen")
    word_start_table = frequent_tokens_table("Most frequent at the start of a word", unigram.top_word_initial)
    return (
        columns(html_table(["", ""], rows), growth_chart)
        + columns(word_start_table, frequent_tokens_table("Most frequent inside words", unigram.top_word_internal))
        + note(
            "␣ is a space, ⏎ a line break; a part of a character is shown as the vocabulary writes it. "
            "Shares are of all tokens, summed from the top of each table."
        )
    )


def _count_removed_documents(removed: dict[str, Any]) -> int:
    duplicates = removed.get("duplicates", {})
    cleaning_steps = removed.get("cleaning", {}).values()
    return (
        sum(step.get("removed", 0) for step in cleaning_steps) + duplicates.get("exact", 0) + duplicates.get("near", 0)
    )


def _removed_section(removed: dict[str, Any]) -> str:
    from polyseme.report.html import escape, html_table, note, quote

    html_parts = []
    cleaning_steps, duplicates = removed.get("cleaning", {}), removed.get("duplicates", {})
    rows = [
        (name, s.get("changed", 0), s.get("removed", 0), s.get("characters", 0)) for name, s in cleaning_steps.items()
    ]
    for kind in ("exact", "near"):
        if kind in duplicates:
            rows.append((f"{kind} duplicates", 0, duplicates[kind], ""))
    if duplicates:
        rows.append(
            (
                "all duplicates",
                0,
                duplicates.get("exact", 0) + duplicates.get("near", 0),
                duplicates.get("characters", 0),
            )
        )
    if rows:
        html_parts.append(html_table(["step", "documents changed", "documents removed", "characters taken out"], rows))
    for name, step in cleaning_steps.items():
        if step.get("examples"):
            html_parts.append(f"<h3>{escape(name)}</h3>")
            html_parts += [
                note(example.get("location", "")) + quote(example.get("text", "")) for example in step["examples"]
            ]
    if duplicates.get("examples"):
        html_parts.append("<h3>duplicates</h3>")
        for example in duplicates["examples"]:
            html_parts.append(
                note(f"{example.get('location', '')} repeats {example.get('duplicate_of', '')}")
                + quote(example.get("text", ""))
            )
    blank, bad, messages = removed.get("num_blank", 0), removed.get("num_bad", 0), removed.get("bad_row_messages", [])
    empty = removed.get("num_empty", 0)
    summary = f"Blank documents passed over: {blank:,}. Documents that leave no token: {empty:,}."
    html_parts.append(note(f"{summary} Rows that could not be read: {bad:,}."))
    if messages:
        omitted = f"and {bad - _MAX_ROWS:,} more" if bad > _MAX_ROWS else ""
        html_parts.append(
            html_table(["row that could not be read"], [[example] for example in messages[:_MAX_ROWS]]) + note(omitted)
        )
    return "".join(html_parts)


def _sample_section(description: CorpusStatistics) -> str:
    from polyseme.report.html import note, quote

    html_parts = []
    for sample in description.samples:
        suffix = "" if sample.is_complete else ", the beginning"
        caption = f"document {sample.document_number:,}, {sample.num_tokens:,} tokens{suffix}"
        html_parts.append(note(f"{caption} · {sample.source}" if sample.source else caption))
        html_parts.append(quote(sample.text if sample.is_complete else sample.text + " …"))
    return "".join(html_parts)

"""`polyseme describe`: a page about a corpus."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from polyseme.errors import UserError

if TYPE_CHECKING:
    from polyseme.corpus.inspect.statistics import Description, Lengths, Piece, Source

SMALLEST = {
    "wordpiece": "bert-tiny",
    "bpe": "gpt2-tiny",
    "bpe-masked": "roberta-tiny",
    "events": "music-tiny",
}  # a recipe that fits a kind of tokenizer
_ROWS = 40  # of a table whose length the corpus decides


def describe(
    corpus: Annotated[Path, typer.Argument(help="a corpus folder made by `polyseme prepare`")],
    out: Annotated[Path | None, typer.Option(help="the page to write; default: description.html in the corpus")] = None,
    seed: Annotated[int, typer.Option(help="which documents are shown")] = 0,
    samples: Annotated[int, typer.Option(help="how many documents are shown")] = 5,
    top: Annotated[int, typer.Option(help="how many frequent tokens of each kind are shown")] = 50,
) -> None:
    """Write a page about a corpus: sizes, sources, lengths, tokens, entropy, what was removed, random documents."""
    from polyseme.cli.output import print_table
    from polyseme.corpus.inspect.statistics import describe as run
    from polyseme.corpus.store import Corpus
    from polyseme.io.files import write_text

    out = out or corpus / "description.html"
    if out.suffix.lower() not in (".html", ".htm"):
        raise UserError(f"--out {out}: the page is HTML, and its name has to end in .html")
    if seed < 0:
        raise UserError(f"seed is {seed}: it cannot be less than 0")
    found = run(Corpus.open(corpus), seed, samples, top)
    write_text(out, write_page(found))
    print_table([str(corpus), ""], main_figures(found))
    print(f"{out}: the whole description")


def main_figures(found: Description) -> list[tuple[str, str]]:
    """What the command prints."""
    unigram = found.unigram
    return [
        *_sizes(found),
        ("vocabulary used", f"{unigram.seen:,} of {unigram.vocab_size:,} ({unigram.seen / unigram.vocab_size:.1%})"),
        ("unknown tokens", f"{unigram.unknown:,} ({unigram.unknown / max(found.counts['tokens'], 1):.4%})"),
        ("unigram entropy", f"{unigram.entropy:.4f} bits a token (perplexity {2**unigram.entropy:,.1f})"),
        ("documents removed", f"{_removed_documents(found.removed):,}"),
    ]


def _sizes(found: Description) -> list[tuple[str, str]]:
    counts = found.counts
    tokens = max(counts["tokens"], 1)
    return [
        *((name, f"{value:,}") for name, value in counts.items()),
        ("bytes on disk", f"{found.bytes:,}"),
        ("tokens a document", f"{tokens / max(counts['documents'], 1):,.1f}"),
        ("tokens a sentence", f"{tokens / max(counts['sentences'], 1):,.1f}"),
        ("tokens a word", f"{tokens / max(found.unigram.words, 1):.3f}"),
        ("characters a token", f"{counts['characters'] / tokens:.3f}"),
    ]


def write_page(found: Description) -> str:
    """One self-contained HTML page."""
    from polyseme.report.html import code, escape, page, table

    corpus = shlex.quote(found.path)
    go_on = f"polyseme pretrain {SMALLEST.get(found.tokenizer, 'RECIPE')} --corpus {corpus} --out RUN"
    about = f"{found.counts['documents']:,} documents, {found.counts['tokens']:,} tokens"
    return page(
        f"Corpus: {Path(found.path).resolve().name}",
        escape(f"{about}, {found.tokenizer} vocabulary of {found.unigram.vocab_size:,}"),
        [
            ("Size", table(["", ""], _sizes(found))),
            ("Sources", _source_table("source", found.sources)),
            ("Languages", _source_table("language", found.languages)),
            ("Lengths", _length_section(found)),
            ("Tokens", _token_section(found)),
            ("What was removed", _removed_section(found.removed)),
            ("Random documents", _samples(found)),
            ("Settings", code(found.settings)),
            ("What next", code(f"polyseme recipes\n{go_on}\npolyseme overlap {corpus} --with FILE")),
        ],
    )


def _source_table(what: str, sources: tuple[Source, ...]) -> str:
    from polyseme.report.html import note, table

    shown = sorted(sources, key=lambda each: -each.counts["tokens"])[:_ROWS] if len(sources) > _ROWS else sources
    rows = []
    for each in shown:
        counts = each.counts
        rows.append([
            each.name,
            *([each.lang] if what == "source" else []),
            *(counts[name] for name in ("documents", "tokens", "characters")),
            f"{counts['characters'] / max(counts['tokens'], 1):.2f}",
            f"{each.share:.2%}",
            "" if each.weight is None else f"{each.weight:g}",
            f"{each.read:.2%}",
        ])  # fmt: skip
    if not rows:
        return note("The manifest does not say.") if what == "source" else ""
    head = [what, *(["language"] if what == "source" else []), "documents", "tokens", "characters"]
    head += ["characters a token", "share", "weight", "share read"]
    left = note(f"and {len(sources) - len(shown):,} smaller ones") if len(sources) > len(shown) else ""
    weighted = any(each.weight != 1 for each in sources)
    said = note("Shares are of tokens; the last one after the weights, as training reads them.") if weighted else ""
    if not weighted:
        head, rows = head[:-2], [row[:-2] for row in rows]
    return table(head, rows) + left + said


def _length_section(found: Description) -> str:
    from polyseme.report.html import histograms, side_by_side, table

    def row(name: str, of: Lengths) -> tuple[Any, ...]:
        return name, f"{of.mean:,.1f}", of.shortest, *of.quarters, of.longest

    parts = {"document": found.documents, "sentence": found.sentences}
    pictures = [
        histograms({f"tokens a {name}": (of.borders, of.counts)}, f"{name}s") for name, of in parts.items()
    ]  # one picture each, so that they stand one above the other on a small screen
    head = ["tokens in a", "mean", "shortest", "lower quartile", "median", "upper quartile", "longest"]
    return side_by_side(*pictures) + table(head, [row(name, of) for name, of in parts.items()])


def _token_section(found: Description) -> str:
    from polyseme.report.html import growth, note, side_by_side, table

    unigram, counts = found.unigram, found.counts
    tokens = max(counts["tokens"], 1)
    going_on = tokens - unigram.words
    rows = [
        ("unigram entropy, bits a token", f"{unigram.entropy:.4f}"),
        ("the same, bits a character", f"{unigram.entropy * tokens / max(counts['characters'], 1):.4f}"),
        ("unigram perplexity", f"{2**unigram.entropy:,.1f}"),
        ("vocabulary", unigram.vocab_size),
        ("of it seen", f"{unigram.seen:,} ({unigram.seen / unigram.vocab_size:.1%})"),
        ("never seen", unigram.vocab_size - unigram.seen),
        ("unknown tokens", f"{unigram.unknown:,} ({unigram.unknown / tokens:.4%})"),
        ("words", unigram.words),
        ("tokens that go on with a word", f"{going_on:,} ({going_on / tokens:.1%})"),
    ]

    def frequent(title: str, pieces: tuple[Piece, ...]) -> str:
        if not pieces:
            return ""
        summed, lines = 0, []
        for piece in pieces:
            summed += piece.count
            shown = piece.text.replace(" ", "␣").replace("\n", "⏎").replace("\t", "⇥")
            lines.append((shown, piece.count, f"{piece.count / tokens:.3%}", f"{summed / tokens:.2%}"))
        return f"<h3>{title}</h3>" + table(["token", "count", "share", "summed"], lines)

    curve = growth(unigram.growth, "tokens read", "different tokens seen")
    tables = frequent("Most frequent at the start of a word", unigram.starting)
    return (
        side_by_side(table(["", ""], rows), curve)
        + side_by_side(tables, frequent("Most frequent inside words", unigram.inside))
        + note(
            "␣ is a space, ⏎ a line break; a part of a character is shown as the vocabulary writes it. "
            "Shares are of all tokens, summed from the top of each table."
        )
    )


def _removed_documents(removed: dict[str, Any]) -> int:
    again = removed.get("duplicates", {})
    steps = removed.get("cleaning", {}).values()
    return sum(step.get("removed", 0) for step in steps) + again.get("exact", 0) + again.get("near", 0)


def _removed_section(removed: dict[str, Any]) -> str:
    from polyseme.report.html import escape, note, quote, table

    parts = []
    steps, again = removed.get("cleaning", {}), removed.get("duplicates", {})
    rows = [(name, s.get("changed", 0), s.get("removed", 0), s.get("characters", 0)) for name, s in steps.items()]
    for kind in ("exact", "near"):
        if kind in again:
            rows.append((f"{kind} duplicates", 0, again[kind], ""))
    if again:
        rows.append(("all duplicates", 0, again.get("exact", 0) + again.get("near", 0), again.get("characters", 0)))
    if rows:
        parts.append(table(["step", "documents changed", "documents removed", "characters taken out"], rows))
    for name, step in steps.items():
        if step.get("examples"):
            parts.append(f"<h3>{escape(name)}</h3>")
            parts += [note(each.get("where", "")) + quote(each.get("text", "")) for each in step["examples"]]
    if again.get("examples"):
        parts.append("<h3>duplicates</h3>")
        for each in again["examples"]:
            parts.append(note(f"{each.get('where', '')} repeats {each.get('of', '')}") + quote(each.get("text", "")))
    blank, bad, messages = removed.get("blank", 0), removed.get("bad", 0), removed.get("bad_rows", [])
    empty = removed.get("empty", 0)
    said = f"Blank documents passed over: {blank:,}. Documents that leave no token: {empty:,}."
    parts.append(note(f"{said} Rows that could not be read: {bad:,}."))
    if messages:
        left = f"and {bad - _ROWS:,} more" if bad > _ROWS else ""
        parts.append(table(["row that could not be read"], [[each] for each in messages[:_ROWS]]) + note(left))
    return "".join(parts)


def _samples(found: Description) -> str:
    from polyseme.report.html import note, quote

    parts = []
    for each in found.samples:
        rest = "" if each.whole else ", the beginning"
        place = f"document {each.document:,}, {each.tokens:,} tokens{rest}"
        parts.append(note(f"{place} · {each.source}" if each.source else place))
        parts.append(quote(each.text if each.whole else each.text + " …"))
    return "".join(parts)

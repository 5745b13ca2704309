"""`polyseme translate`: texts to their translations, and how good these are."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer


def translate(
    model: Annotated[Path, typer.Argument(help="a model folder that writes a target for a source")],
    data: Annotated[Path, typer.Option(help="texts to translate, one a line; an empty line has an empty translation")],
    reference: Annotated[Path | None, typer.Option(help="their right translations, one a line: BLEU and chrF")] = None,
    out: Annotated[Path | None, typer.Option(help="the file to write, one translation a line")] = None,
    beams: Annotated[int, typer.Option(help="the width of the beam; 0 takes the likeliest token", min=0)] = 5,
    penalty: Annotated[float, typer.Option(help="scores are divided by length to this power")] = 1.0,
    patience: Annotated[
        float, typer.Option(help="stop when beams × this many have ended, sooner; 0 when nothing better can come")
    ] = 0.0,
    most: Annotated[int, typer.Option(help="tokens of a translation; 0 goes by its source", min=0)] = 0,
    split: Annotated[bool, typer.Option("--split", help="translate sentence by sentence what is too long")] = False,
    lang: Annotated[str, typer.Option(help="the language of the texts, by which --split finds sentences")] = "en",
    report: Annotated[Path | None, typer.Option(help="an HTML page with the measures and examples")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="print the measures as JSON")] = False,
) -> None:
    """Translate each line by beam search; with references, measure it as sacrebleu does."""
    import polyseme
    from polyseme.cli.output import print_json
    from polyseme.corpus.clean.sentences import split_sentences
    from polyseme.errors import UserError
    from polyseme.generation.text import Search
    from polyseme.io.files import write_text
    from polyseme.tasks.metrics.translation import scores

    for path in (out, report):
        if path is not None and path.exists():
            raise UserError(f"{path} is already there: choose another name, or remove it first")
    if reference is None and (report is not None or as_json):
        raise UserError("there is nothing to report without --reference")
    texts = _lines(data)
    right = _lines(reference) if reference else None
    if right is not None and len(right) != len(texts):
        raise UserError(f"{data} has {len(texts)} lines, and {reference} {len(right)}: they are no pairs")
    opened = polyseme.load(model)
    cut = (lambda text: split_sentences(text, lang)) if split else None
    found = opened.translate(texts, Search(most, beams=beams, penalty=penalty, patience=patience), cut)
    lines = [" ".join(each.text.split()) for each in found]
    if out is not None:
        write_text(out, "".join(line + "\n" for line in lines))
    elif right is None:
        for line in lines:
            print(line)
    if open_ends := sum(not each.finished for each in found):
        typer.echo(f"note: {open_ends:,} translations were cut off at the most tokens they may have", err=True)
    if right is not None:
        measured = scores(lines, right, texts) | {"beams": beams, "penalty": penalty}
        if report is not None:
            write_text(report, page_of(model, measured, texts, right, lines))
        if as_json:
            print_json(measured)
        else:
            tell(measured)


def _lines(path: Path) -> list[str]:
    """The lines of a file, empty ones too: an answer stands in the line of its text."""
    from polyseme.errors import UserError
    from polyseme.io.files import unpacked

    try:
        text = b"".join(unpacked(path)).decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise UserError(f"{path} is not UTF-8 text (byte {error.start})") from None
    return [line.removesuffix("\r") for line in text.removesuffix("\n").split("\n")]


def tell(measured: dict[str, Any]) -> None:
    from polyseme.cli.output import print_table

    print(f"BLEU {measured['bleu']:.2f}  {measured['bleu_signature']}")
    print(f"chrF {measured['chrf']:.2f}  {measured['chrf_signature']}")
    rows = [(row["words"], row["texts"], round(row["bleu"], 2)) for row in measured["by_length"]]
    print_table(["words of the source", "texts", "BLEU"], rows)


def page_of(model: Path, measured: dict[str, Any], texts: list[str], right: list[str], found: list[str]) -> str:
    """A page with what was measured, and the first translations beside what they should be."""
    from polyseme.report.html import code, page, table

    lengths = [(row["words"], row["texts"], round(row["bleu"], 2)) for row in measured["by_length"]]
    numbers = [("BLEU", round(measured["bleu"], 2), measured["bleu_signature"]),
               ("chrF", round(measured["chrf"], 2), measured["chrf_signature"])]  # fmt: skip
    sections = [
        ("Measures", table(["measure", "value", "signature"], numbers)),
        ("BLEU by length of the source", table(["words", "texts", "BLEU"], lengths)),
        ("Translations", table(["source", "reference", "translation"], list(zip(texts, right, found))[:30])),
        ("Search", code({key: measured[key] for key in ("beams", "penalty", "texts", "brevity")})),
    ]
    return page(f"Translations of {model.name}", f"{measured['texts']:,} texts", sections)

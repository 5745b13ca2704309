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
    num_beams: Annotated[int, typer.Option(help="the width of the beam; 0 takes the likeliest token", min=0)] = 5,
    length_penalty: Annotated[float, typer.Option(help="scores are divided by length to this power")] = 1.0,
    patience: Annotated[
        float, typer.Option(help="stop when beams × this many have ended, sooner; 0 when nothing better can come")
    ] = 0.0,
    max_new_tokens: Annotated[int, typer.Option(help="tokens of a translation; 0 goes by its source", min=0)] = 0,
    by_sentence: Annotated[
        bool, typer.Option("--split-sentences", help="translate sentence by sentence what is too long")
    ] = False,
    lang: Annotated[str, typer.Option(help="the language of the texts, for --split-sentences")] = "en",
    report: Annotated[Path | None, typer.Option(help="an HTML page with the measures and examples")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="print the measures as JSON")] = False,
) -> None:
    """Translate each line by beam search; with references, measure it as sacrebleu does."""
    import polyseme
    from polyseme.cli.output import print_json
    from polyseme.corpus.clean.sentences import split_sentences
    from polyseme.errors import ConfigError, DataError
    from polyseme.generation.text import GenerationConfig
    from polyseme.io.atomic import write_text
    from polyseme.tasks.metrics.translation import score_translations

    for path in (out, report):
        if path is not None and path.exists():
            raise ConfigError(f"{path} is already there: choose another name, or remove it first")
    if reference is None and (report is not None or as_json):
        raise ConfigError("there is nothing to report without --reference")
    texts = _read_lines(data)
    references = _read_lines(reference) if reference else None
    if references is not None and len(references) != len(texts):
        raise DataError(f"{data} has {len(texts)} lines, and {reference} {len(references)}: they are no pairs")
    language_model = polyseme.load(model)
    sentence_splitter = (lambda text: split_sentences(text, lang)) if by_sentence else None
    translations = language_model.translate(
        texts,
        GenerationConfig(max_new_tokens, num_beams=num_beams, length_penalty=length_penalty, patience=patience),
        sentence_splitter,
    )
    lines = [" ".join(translation.text.split()) for translation in translations]
    if out is not None:
        write_text(out, "".join(line + "\n" for line in lines))
    elif references is None:
        for line in lines:
            print(line)
    if num_unfinished := sum(not translation.is_finished for translation in translations):
        typer.echo(f"note: {num_unfinished:,} translations were cut off at the most tokens they may have", err=True)
    if references is not None:
        metrics = score_translations(lines, references, texts)
        metrics |= {"num_beams": num_beams, "length_penalty": length_penalty}
        if report is not None:
            write_text(report, render_page(model, metrics, texts, references, lines))
        if as_json:
            print_json(metrics)
        else:
            print_metrics(metrics)


def _read_lines(path: Path) -> list[str]:
    """The lines of a file, empty ones too: an answer stands in the line of its text."""
    from polyseme.errors import DataError
    from polyseme.io.compression import read_decompressed

    try:
        text = b"".join(read_decompressed(path)).decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise DataError(f"{path} is not UTF-8 text (byte {error.start})") from None
    return [line.removesuffix("\r") for line in text.removesuffix("\n").split("\n")]


def print_metrics(metrics: dict[str, Any]) -> None:
    from polyseme.cli.output import print_table

    print(f"BLEU {metrics['bleu']:.2f}  {metrics['bleu_signature']}")
    print(f"chrF {metrics['chrf']:.2f}  {metrics['chrf_signature']}")
    rows = [(row["words"], row["texts"], round(row["bleu"], 2)) for row in metrics["by_length"]]
    print_table(["words of the source", "texts", "BLEU"], rows)


def render_page(
    model: Path, metrics: dict[str, Any], texts: list[str], references: list[str], translations: list[str]
) -> str:
    """A page with what was measured, and the first translations beside what they should be."""
    from polyseme.report.html import code, html_page, html_table

    lengths = [(row["words"], row["texts"], round(row["bleu"], 2)) for row in metrics["by_length"]]
    metric_rows = [("BLEU", round(metrics["bleu"], 2), metrics["bleu_signature"]),
               ("chrF", round(metrics["chrf"], 2), metrics["chrf_signature"])]  # fmt: skip
    search_keys = ("num_beams", "length_penalty", "texts", "brevity_penalty")
    sections = [
        ("Measures", html_table(["measure", "value", "signature"], metric_rows)),
        ("BLEU by length of the source", html_table(["words", "texts", "BLEU"], lengths)),
        (
            "Translations",
            html_table(["source", "reference", "translation"], list(zip(texts, references, translations))[:30]),
        ),
        ("Search", code({key: metrics[key] for key in search_keys})),
    ]
    return html_page(f"Translations of {model.name}", f"{metrics['texts']:,} texts", sections)

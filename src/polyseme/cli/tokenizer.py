"""`polyseme tokenizer`: train, inspect, or import a tokenizer."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from polyseme.cli.output import SOURCES_HELP
from polyseme.errors import DataError

if TYPE_CHECKING:
    from polyseme.text.inspection import TokenizationStats
    from polyseme.text.tokenizer import Tokenizer

app = typer.Typer(help="Train, inspect, or import a tokenizer.", no_args_is_help=True, rich_markup_mode=None)

_KEY_HELP = "key or column of the text; a+b joins two"
_SPLIT_HELP = "document unit in text files: file, blank (separated by blank lines), or line"
_LANG_HELP = "language of sources that do not name one"
_FORMAT_HELP = "file format, if the file names do not show it"
_SKIP_BAD_HELP = "skip bad rows and count them"


@app.callback()
def group() -> None:
    """Train, inspect, or import a tokenizer."""


@app.command()
def train(
    source: Annotated[list[str], typer.Argument(help=SOURCES_HELP)],
    out: Annotated[Path, typer.Option(help="output folder")],
    vocab_size: Annotated[
        int | None,
        typer.Option(help="maximum vocabulary size; optional for characters, words and whitespace"),
    ] = None,
    kind: Annotated[
        str,
        typer.Option(
            help="wordpiece (as BERT), bpe (byte-level, as GPT-2), byte-bpe-roberta (as RoBERTa), unigram (as ALBERT), "
            "characters, words (punctuation split off) or whitespace (split at white space)"
        ),
    ] = "wordpiece",
    lowercase: Annotated[bool | None, typer.Option(help="default: on for wordpiece, off for the others")] = None,
    min_frequency: Annotated[int, typer.Option(help="minimum frequency of a WordPiece or BPE merge, or of a word")] = 2,
    max_alphabet: Annotated[int, typer.Option(help="maximum number of characters in the alphabet", min=1)] = 10_000,
    smoothing: Annotated[
        float,
        typer.Option(
            help="smoothing of language sizes: a language of n characters counts as n to this power; 1: none",
            min=0,
            max=1,
        ),
    ] = 0.7,
    num_sentinels: Annotated[
        int, typer.Option(help="number of sentinel tokens for span corruption; T5 has 100", min=0)
    ] = 0,
    sample_characters: Annotated[
        int,
        typer.Option(help="after this many characters half of the documents are sampled, then a quarter, …", min=1),
    ] = 200_000_000,
    key: Annotated[str, typer.Option(help=_KEY_HELP)] = "text",
    split: Annotated[str, typer.Option(help=_SPLIT_HELP)] = "file",
    format: Annotated[str, typer.Option(help=_FORMAT_HELP)] = "",
    lang: Annotated[str, typer.Option(help=_LANG_HELP)] = "en",
    skip_bad: Annotated[bool, typer.Option(help=_SKIP_BAD_HELP)] = False,
) -> None:
    """Train a tokenizer, check it, and save it in a folder that `transformers` can open."""
    from polyseme.corpus.sources.sources import open_sources
    from polyseme.io.atomic import atomic_directory, ensure_new_directory
    from polyseme.text.counts import count_source_words, log_counts
    from polyseme.text.tokenizer import Tokenizer
    from polyseme.text.trainers import VocabularyConfig

    ensure_new_directory(out)
    config = VocabularyConfig(kind, vocab_size, min_frequency, max_alphabet, num_sentinels)
    reader = open_sources(source, key, split, skip_bad, lang=lang, format=format)
    counts = count_source_words(kind, reader, lowercase, sample_characters)
    tokenizer = Tokenizer.from_counts(counts, config, smoothing)
    with atomic_directory(out) as folder:
        tokenizer.save(folder)
    _print_tokenizer(out, tokenizer)
    log_counts(counts, reader)  # only now: a failed command writes one line


@app.command()
def inspect(
    tokenizer: Annotated[Path, typer.Argument(help="tokenizer folder, or a published vocabulary")],
    text: Annotated[
        list[str] | None, typer.Option(help=f"text to measure the tokenizer on, by language: {SOURCES_HELP}")
    ] = None,
    key: Annotated[str, typer.Option(help=_KEY_HELP)] = "text",
    split: Annotated[str, typer.Option(help=_SPLIT_HELP)] = "file",
    format: Annotated[str, typer.Option(help=_FORMAT_HELP)] = "",
    lang: Annotated[str, typer.Option(help=_LANG_HELP)] = "en",
    skip_bad: Annotated[bool, typer.Option(help=_SKIP_BAD_HELP)] = False,
    as_json: Annotated[bool, typer.Option("--json", help="print JSON")] = False,
) -> None:
    """Show the composition of a vocabulary and, on texts, token lengths and the rate of unknown tokens."""
    from polyseme.cli.output import print_json
    from polyseme.corpus.sources.sources import open_sources
    from polyseme.progress import progress
    from polyseme.text.inspection import describe_vocabulary, measure_tokenization
    from polyseme.text.tokenizer import Tokenizer

    loaded_tokenizer = Tokenizer.load(tokenizer)
    facts = describe_vocabulary(loaded_tokenizer)
    stats: dict[Any, TokenizationStats] = {}
    if text:
        sources = open_sources(text, key, split, skip_bad, lang=lang, format=format)
        with progress("read", None, "characters") as bar:

            def texts() -> Iterator[tuple[tuple[str, str], str]]:
                for file, document in sources.documents():
                    bar.advance(len(document.text))
                    yield (file.lang, sources.sources[file.source_index].path), document.text

            stats = measure_tokenization(loaded_tokenizer, texts())
        if not stats:
            raise DataError(f"there is no text in {', '.join(text)}")
    if as_json:
        rows = [{"lang": lang, "source": path, **sums.to_row()} for (lang, path), sums in stats.items()]
        print_json(facts | ({"texts": rows} if text else {}))
        return
    _print_facts(facts)
    if stats:
        _print_stats(stats)


@app.command("import")
def import_(
    file: Annotated[
        list[Path],
        typer.Argument(help="BERT's vocab.txt, vocab.json and merges.txt (GPT-2, GPT), a .model, or tokenizer.json"),
    ],
    out: Annotated[Path, typer.Option(help="output folder")],
    kind: Annotated[str, typer.Option(help="required kind: wordpiece, bpe or unigram")] = "",
    lowercase: Annotated[
        bool | None, typer.Option(help="for BERT and GPT-2; default: inferred from the vocabulary, off for GPT-2")
    ] = None,
) -> None:
    """Import a published vocabulary as a tokenizer folder; the format is detected from the content."""
    from polyseme.io.atomic import atomic_directory, ensure_new_directory
    from polyseme.text.tokenizer import Tokenizer

    ensure_new_directory(out)
    tokenizer = Tokenizer.import_files(file, lowercase)
    if kind and tokenizer.kind != kind:
        raise DataError(f"{', '.join(map(str, file))}: the kind is {tokenizer.kind}, not {kind}")
    with atomic_directory(out) as folder:
        tokenizer.save(folder)
    _print_tokenizer(out, tokenizer)


def _print_tokenizer(out: Path, tokenizer: Tokenizer) -> None:
    case = "lower case" if tokenizer.lowercase else "case kept"
    print(f"{out}: {tokenizer.kind}, {tokenizer.vocab_size} pieces, {case}")


def _print_facts(facts: dict[str, Any]) -> None:
    from polyseme.cli.output import print_table

    unit = "characters" if facts["characters"] is not None else "bytes"
    inner, lengths = facts["continuation pieces"], facts["lengths"]
    rows = [
        ("kind", f"{facts['kind']}, {'lower case' if facts['lowercase'] else 'case kept'}"),
        ("pieces", f"{facts['pieces']:,}"),
        ("special tokens", " ".join(f"{role} {token} {number}" for role, (token, number) in facts["specials"].items())),
        ("continuation pieces", "not marked" if inner is None else f"{inner:.1%}"),
        ("alphabet", f"{facts['characters']:,} characters" if facts["characters"] is not None else "256 bytes"),
        (f"{unit} a piece", f"{facts['mean length']:.2f} on average"),
        *((f"  {length}", f"{count:,} pieces") for length, count in list(lengths.items())[:20]),
    ]
    if len(lengths) > 20:
        rows.append(("  more", f"{sum(list(lengths.values())[20:]):,} pieces"))
    print_table(["tokenizer", ""], rows)


def _print_stats(stats: dict[Any, TokenizationStats]) -> None:
    from polyseme.cli.output import print_table

    header = ["language", "source", "words", "tokens", "tokens/word", "characters/token", "unknown", "whole words"]
    rows = []
    for (lang, path), sums in stats.items():
        row = sums.to_row()
        shares = [f"{row['unknown']:.3%}", f"{row['whole words']:.1%}"]
        ratios = [f"{row['tokens per word']:.3f}", f"{row['characters per token']:.3f}"]
        rows.append([lang, path, sums.num_words, sums.num_tokens, *ratios, *shares])
    print()
    print_table(header, rows)

"""`polyseme tokenizer`: learn a vocabulary, look at one, or import a published one."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from polyseme.cli.output import SOURCES_HELP
from polyseme.errors import ConfigError, DataError

if TYPE_CHECKING:
    from polyseme.corpus.sources.readers import SourceFile
    from polyseme.corpus.sources.sources import SourceReader
    from polyseme.text.inspection import TokenizationStats
    from polyseme.text.tokenizer import Tokenizer

app = typer.Typer(
    help="Learn a vocabulary from text, look at one, or import one.", no_args_is_help=True, rich_markup_mode=None
)

_KEY_HELP = "the key or column of the text; a+b joins two"
_SPLIT_HELP = "what is a document in a text file: file, blank (lines) or line"
_LANG_HELP = "the language of sources that do not say their own"
_FORMAT_HELP = "the format, where the names of the files do not tell"
_SKIP_BAD_HELP = "go on past bad rows and count them"


@app.callback()
def group() -> None:
    """Learn a vocabulary from text, look at one, or import one."""


@app.command()
def train(
    source: Annotated[list[str], typer.Argument(help=SOURCES_HELP)],
    out: Annotated[Path, typer.Option(help="the folder to write")],
    vocab_size: Annotated[
        int | None,
        typer.Option(help="how many pieces at most; characters and words may do without: then as the text needs"),
    ] = None,
    kind: Annotated[
        str,
        typer.Option(
            help="wordpiece (as BERT), bpe (byte-level, as GPT-2), byte-bpe-roberta (as RoBERTa), unigram (as ALBERT), "
            "characters, words (with punctuation apart) or whitespace (words as white space parts them)"
        ),
    ] = "wordpiece",
    lowercase: Annotated[bool | None, typer.Option(help="default: on for wordpiece, off for the others")] = None,
    min_frequency: Annotated[
        int, typer.Option(help="how often a piece of wordpiece or bpe, or a word, must occur")
    ] = 2,
    max_alphabet: Annotated[int, typer.Option(help="how many characters get an entry at most", min=1)] = 10_000,
    smoothing: Annotated[
        float, typer.Option(help="a language of n characters counts as n to this power; 1 is none", min=0, max=1)
    ] = 0.7,
    num_sentinels: Annotated[
        int, typer.Option(help="how many of the pieces stand for spans taken out of a text; T5 has 100", min=0)
    ] = 0,
    sample_characters: Annotated[
        int,
        typer.Option(
            help="after so many characters half of the documents are read, after as many again a quarter, …", min=1
        ),
    ] = 200_000_000,
    key: Annotated[str, typer.Option(help=_KEY_HELP)] = "text",
    split: Annotated[str, typer.Option(help=_SPLIT_HELP)] = "file",
    format: Annotated[str, typer.Option(help=_FORMAT_HELP)] = "",
    lang: Annotated[str, typer.Option(help=_LANG_HELP)] = "en",
    skip_bad: Annotated[bool, typer.Option(help=_SKIP_BAD_HELP)] = False,
) -> None:
    """Train a tokenizer on text, check it, and save it where `transformers` opens it too."""
    from polyseme.corpus.sources.sources import open_sources
    from polyseme.io.atomic import atomic_directory, ensure_new_directory
    from polyseme.progress import progress
    from polyseme.text.counts import MAX_WORDS, TextGroup, WordCounts
    from polyseme.text.tokenizer import Tokenizer
    from polyseme.text.trainers import check_vocab_size

    ensure_new_directory(out)
    if vocab_size is None and kind not in ("characters", "words", "whitespace"):
        raise ConfigError(f"--vocab-size is missing: how many pieces a vocabulary of kind {kind} may have")
    if vocab_size is None:
        vocab_size = max_alphabet if kind == "characters" else MAX_WORDS
    check_vocab_size(kind, vocab_size, num_sentinels)
    sources = open_sources(source, key, split, skip_bad, lang=lang, format=format)
    groups = {(source_file.source_index, source_file.lang) for source_file in sources.files}
    counts = WordCounts(kind, lowercase, sample_characters, len(groups))
    with progress("read", None, "characters") as bar:
        for source_file, text in _iter_texts(sources):
            bar.advance(len(text))
            counts.add(
                text,
                TextGroup(source_file.lang, source_file.source_index, sources.sources[source_file.source_index].weight),
            )
    if not counts.num_chars:
        raise DataError(f"there is no text in {', '.join(source)}")
    tokenizer = Tokenizer.from_counts(counts, vocab_size, min_frequency, max_alphabet, smoothing, num_sentinels)
    with atomic_directory(out) as folder:
        tokenizer.save(folder)
    _print_tokenizer(out, tokenizer)
    print(f"{counts.num_chars:,} characters read, {counts.num_sampled_chars:,} of them counted")
    if counts.dropped_fraction:
        print(f"rare words dropped to save memory: {counts.dropped_fraction:.2%} of the text")
    if sources.num_bad:
        print(f"{sources.num_bad:,} bad rows were skipped, the first: {sources.bad_row_messages[0]}")


@app.command()
def inspect(
    tokenizer: Annotated[Path, typer.Argument(help="a folder with a tokenizer, or a published vocabulary")],
    text: Annotated[list[str] | None, typer.Option(help=f"how it does on a text, by language: {SOURCES_HELP}")] = None,
    key: Annotated[str, typer.Option(help=_KEY_HELP)] = "text",
    split: Annotated[str, typer.Option(help=_SPLIT_HELP)] = "file",
    format: Annotated[str, typer.Option(help=_FORMAT_HELP)] = "",
    lang: Annotated[str, typer.Option(help=_LANG_HELP)] = "en",
    skip_bad: Annotated[bool, typer.Option(help=_SKIP_BAD_HELP)] = False,
    as_json: Annotated[bool, typer.Option("--json", help="print everything as JSON")] = False,
) -> None:
    """Show what a vocabulary is made of and, on texts, how long its pieces are and how much it does not know."""
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
                for source_file, content in _iter_texts(sources):
                    bar.advance(len(content))
                    yield (source_file.lang, sources.sources[source_file.source_index].path), content

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
    out: Annotated[Path, typer.Option(help="the folder to write")],
    kind: Annotated[str, typer.Option(help="refuse what is not of this kind: wordpiece, bpe or unigram")] = "",
    lowercase: Annotated[
        bool | None, typer.Option(help="for BERT and GPT-2; default: as the vocabulary looks, and off for GPT-2")
    ] = None,
) -> None:
    """Turn a published vocabulary into a tokenizer folder; what a file is, its content says."""
    from polyseme.io.atomic import atomic_directory, ensure_new_directory
    from polyseme.text.tokenizer import Tokenizer

    ensure_new_directory(out)
    tokenizer = Tokenizer.import_files(file, lowercase)
    if kind and tokenizer.kind != kind:
        raise DataError(f"{', '.join(map(str, file))}: the kind is {tokenizer.kind}, not {kind}")
    with atomic_directory(out) as folder:
        tokenizer.save(folder)
    _print_tokenizer(out, tokenizer)


def _iter_texts(sources: SourceReader) -> Iterator[tuple[SourceFile, str]]:
    """Every text with the input it comes from; bad rows stop this or are counted, as asked for."""
    for position, document in sources.read():
        if isinstance(document, DataError):
            if not sources.skip_bad:
                raise document
            sources.num_bad += 1
            sources.bad_row_messages += [str(document)] * (not sources.bad_row_messages)
        elif document.text and not document.text.isspace():
            yield sources.files[position.file_index], document.text


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

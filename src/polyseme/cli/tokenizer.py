"""`polyseme tokenizer`: train, inspect, or import a tokenizer."""

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from typer import Argument, Option, Typer

from polyseme.cli import options
from polyseme.cli.completion import TOKENIZER_KINDS, complete
from polyseme.cli.output import print_json, print_table
from polyseme.errors import ConfigError, DataError
from polyseme.io.lock import locks_folder

if TYPE_CHECKING:
    from polyseme.text.inspection import TokenizationStats
    from polyseme.text.tokenizer import Tokenizer

app = Typer(help="Train, inspect, or import a tokenizer.", no_args_is_help=True, rich_markup_mode=None)
KIND_HELP = (
    "wordpiece (BERT), bpe (byte-level, GPT-2), byte-bpe-roberta (RoBERTa), unigram (ALBERT), unigram-roberta "
    "(XLM-RoBERTa), characters, words (punctuation split off) or whitespace."
)
SMOOTHING_HELP = "Smoothing of language sizes: a language of n characters counts as n to this power; 1: none."
SAMPLE_HELP = "After this many characters half of the documents are sampled, then a quarter, …"
ALPHABET_HELP = "Maximum number of characters in the alphabet of wordpiece, unigram or characters."
VOCABULARY_HELP = "BERT's vocab.txt, vocab.json and merges.txt (GPT-2, GPT), a .model, or tokenizer.json."


@app.callback()
def group() -> None:
    """Train, inspect, or import a tokenizer."""


@app.command()
@locks_folder("tokenizer train")
def train(
    source: options.SourceArgument,
    out: Annotated[Path, Option(help="Output folder.")],
    vocab_size: Annotated[
        int | None, Option(help="Maximum vocabulary size; optional for characters and words.")
    ] = None,
    kind: Annotated[str, Option(help=KIND_HELP, autocompletion=complete(TOKENIZER_KINDS))] = "wordpiece",
    lowercase: Annotated[bool | None, Option(help="Default: on for wordpiece, off for the others.")] = None,
    min_frequency: Annotated[int, Option(help="Minimum frequency of a WordPiece or BPE merge, or of a word.")] = 2,
    max_alphabet: Annotated[int, Option(help=ALPHABET_HELP, min=1)] = 10_000,
    smoothing: Annotated[float, Option(help=SMOOTHING_HELP, min=0, max=1)] = 0.7,
    num_sentinels: Annotated[int, Option(help="Sentinel tokens for span corruption; T5 has 100.", min=0)] = 0,
    sample_characters: Annotated[int, Option(help=SAMPLE_HELP, min=1)] = 200_000_000,
    text_column: options.TextColumnOption = "",
    split: options.SplitOption = "file",
    format: options.FormatOption = "",
    lang: options.LangOption = "en",
    skip_bad: options.SkipBadOption = False,
    allow_large: options.AllowLargeOption = False,
) -> None:
    """Train a tokenizer, check it, and save it.

    `transformers` can open the folder.
    """
    from polyseme.corpus.sources.sources import open_sources
    from polyseme.io.atomic import ensure_new_directory
    from polyseme.text.counts import count_source_words, log_counts
    from polyseme.text.tokenizer import Tokenizer
    from polyseme.text.trainers import VocabularyConfig

    ensure_new_directory(out)
    config = VocabularyConfig(kind, vocab_size, min_frequency, max_alphabet, num_sentinels)
    reader = open_sources(source, text_column, split, skip_bad, lang=lang, format=format, allow_large=allow_large)
    counts = count_source_words(kind, reader, lowercase, sample_characters)
    _save(out, Tokenizer.from_counts(counts, config, smoothing))
    log_counts(counts, reader)  # at the end, so that a failed command prints one line


@app.command()
def inspect(
    tokenizer: Annotated[Path, Argument(help="Tokenizer folder, or a published vocabulary.")],
    text: Annotated[list[str] | None, Option(help=f"Text to evaluate on, by language. {options.SOURCES_HELP}")] = None,
    text_column: options.TextColumnOption = "",
    split: options.SplitOption = "file",
    format: options.FormatOption = "",
    lang: options.LangOption = "en",
    skip_bad: options.SkipBadOption = False,
    allow_large: options.AllowLargeOption = False,
    as_json: options.JsonOption = False,
) -> None:
    """Summarize a vocabulary and how it splits texts.

    With --text, also tokens per word and the rate of unknown tokens, by language.
    """
    from polyseme.corpus.sources.sources import open_sources
    from polyseme.progress import progress
    from polyseme.text.inspection import describe_vocabulary, measure_tokenization
    from polyseme.text.tokenizer import Tokenizer

    loaded = Tokenizer.load(tokenizer)
    facts = describe_vocabulary(loaded)
    stats: dict[Any, TokenizationStats] = {}
    unused = {"text_column": text_column, "split": split != "file", "format": format, "lang": lang != "en"}
    unused |= {"skip_bad": skip_bad, "allow_large": allow_large}
    if not text and (names := [name for name, value in unused.items() if value]):
        raise ConfigError(f"`{names[0]}` has no effect without `text`")
    if text:
        sources = open_sources(text, text_column, split, skip_bad, lang=lang, format=format, allow_large=allow_large)
        with progress("read", None, "characters") as bar:

            def texts() -> Iterator[tuple[tuple[str, str], str]]:
                for file, document in sources.documents():
                    bar.advance(len(document.text))
                    yield (file.lang, sources.sources[file.source_index].path), document.text

            stats = measure_tokenization(loaded, texts())
        if not stats:
            raise DataError(f"there is no text in {', '.join(text)}")
        sources.log_skipped()
    if as_json:
        rows = [{"lang": lang, "source": path, **sums.to_row()} for (lang, path), sums in stats.items()]
        print_json(facts | ({"texts": rows} if text else {}))
        return
    _print_facts(facts)
    if stats:
        _print_stats(stats)


@app.command("import")
@locks_folder("tokenizer import")
def import_(
    file: Annotated[list[Path], Argument(help=VOCABULARY_HELP)],
    out: Annotated[Path, Option(help="Output folder.")],
    kind: Annotated[str, Option(help="Required kind: wordpiece, bpe or unigram.")] = "",
    lowercase: Annotated[bool | None, Option(help="For BERT and GPT-2; default: inferred, off for GPT-2.")] = None,
) -> None:
    """Import a published vocabulary as a tokenizer folder.

    The format is detected from the content.
    """
    from polyseme.io.atomic import ensure_new_directory
    from polyseme.text.tokenizer import Tokenizer

    ensure_new_directory(out)
    tokenizer = Tokenizer.import_files(file, lowercase)
    if kind and tokenizer.kind != kind:
        raise DataError(f"{', '.join(map(str, file))}: the kind is {tokenizer.kind}, not {kind}")
    _save(out, tokenizer)


def _save(out: Path, tokenizer: "Tokenizer") -> None:
    from polyseme.io.atomic import atomic_directory

    with atomic_directory(out) as folder:
        tokenizer.save(folder)
    case = "lower case" if tokenizer.lowercase else "case kept"
    print(f"{out}: {tokenizer.kind}, {tokenizer.vocab_size} pieces, {case}")


def _print_facts(facts: dict[str, Any]) -> None:
    unit = "characters" if facts["characters"] is not None else "bytes"
    inner, lengths = facts["continuation pieces"], facts["lengths"]
    rows = [
        ("kind", f"{facts['kind']}, {'lower case' if facts['lowercase'] else 'case kept'}"),
        ("pieces", f"{facts['pieces']:,}"),
        ("special tokens", " ".join(f"{role} {token} {number}" for role, (token, number) in facts["specials"].items())),
        ("continuation pieces", "not marked" if inner is None else f"{inner:.1%}"),
        ("alphabet", f"{facts['characters']:,} characters" if facts["characters"] is not None else "256 bytes"),
        (f"{unit} per piece", f"{facts['mean length']:.2f} on average"),
        *((f"  {length}", f"{count:,} pieces") for length, count in list(lengths.items())[:20]),
    ]
    if len(lengths) > 20:
        rows.append(("  more", f"{sum(list(lengths.values())[20:]):,} pieces"))
    print_table(["tokenizer", ""], rows)


def _print_stats(stats: "dict[Any, TokenizationStats]") -> None:
    header = ["language", "source", "words", "tokens", "tokens/word", "characters/token", "unknown", "whole words"]
    rows = []
    for (lang, path), sums in stats.items():
        row = sums.to_row()
        shares = [f"{row['unknown']:.3%}", f"{row['whole words']:.1%}"]
        ratios = [f"{row['tokens per word']:.3f}", f"{row['characters per token']:.3f}"]
        rows.append([lang, path, sums.num_words, sums.num_tokens, *ratios, *shares])
    print()
    print_table(header, rows)

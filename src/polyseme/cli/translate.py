"""`polyseme translate`: translate texts and score the translations."""

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from typer import Argument, Option

from polyseme.cli import options
from polyseme.cli.output import print_json, print_table
from polyseme.errors import ConfigError, require_packages

if TYPE_CHECKING:
    from polyseme.generation.config import GenerationConfig

PATIENCE_HELP = "Stop when num_beams × patience texts are complete; 0: when no better one can follow."
REFERENCE_HELP = "Reference translations in the same order, for BLEU and chrF."
PENALTY_HELP = "α: scores of n tokens are divided by ((c + n) / (c + 1))^α; default: 0.6."
OFFSET_HELP = "c in the length penalty; default: 5, as in Wu et al. (2016). 0 divides by n^α."
_SHOWN_EXAMPLES = 10  # translations on the page; the others are collapsed
LENGTH_HELP = "Maximum number of generated tokens; 0: derived from the source length."


def translate(
    model: Annotated[Path, Argument(help="Folder of a sequence-to-sequence model.")],
    data: Annotated[Path, Option(help=f"Texts to translate; an empty one stays empty: {options.INPUT_HELP}")],
    reference: Annotated[Path | None, Option(help=REFERENCE_HELP)] = None,
    out: Annotated[Path | None, Option(help=options.OUTPUT_HELP)] = None,
    num_beams: Annotated[int, Option(help="Width of the beam search; 0: greedy decoding.", min=0)] = 4,
    length_penalty: Annotated[float | None, Option(help=PENALTY_HELP)] = None,
    length_offset: Annotated[float | None, Option(help=OFFSET_HELP, min=0)] = None,
    patience: Annotated[float, Option(help=PATIENCE_HELP)] = 0.0,
    max_new_tokens: Annotated[int, Option(help=LENGTH_HELP, min=0)] = 0,
    by_sentence: Annotated[bool, Option("--split-sentences", help="Split long texts into sentences.")] = False,
    lang: Annotated[str, Option(help="Language of the texts, for --split-sentences.")] = "en",
    report: Annotated[Path | None, Option(help="HTML page with metrics and examples.")] = None,
    as_json: Annotated[bool, Option("--json", help="Print the metrics as JSON.")] = False,
    resume: options.ResumeOutputOption = False,
) -> None:
    """Translate each text by beam search.

    By default, 4 beams and length penalty 0.6 (Vaswani et al. 2017). References add BLEU and chrF, by sacrebleu.
    """
    import polyseme
    from polyseme.corpus.clean.sentences import split_sentences
    from polyseme.evaluation import translate_file as files
    from polyseme.evaluation.streaming import hash_path, open_row_output, run_windows
    from polyseme.io.atomic import write_text
    from polyseme.io.table_output import TableOutput
    from polyseme.tasks.metrics.translation import translation_metrics

    _check_files(out, report, reference, as_json, resume)
    inputs = files.open_inputs(data, reference, model)
    source, references = inputs.source, inputs.references
    table = TableOutput(out or Path("console.txt"), inputs.names)
    search = {"num_beams": num_beams, "length_penalty": length_penalty, "length_offset": length_offset}
    config = _build_config(search | {"max_new_tokens": max_new_tokens, "patience": patience})
    search = {name: getattr(config, name) for name in search}
    splitter = (lambda text: split_sentences(text, lang)) if by_sentence else None
    language_model = polyseme.load(model)

    def settings() -> dict[str, Any]:
        hashes = {"input": source.hash, "model": hash_path(model), "reference": references and references.hash}
        return {**hashes, "data": str(data), **config.to_json(), "split_sentences": by_sentence, "lang": lang}

    def compute(window: list[Any], start: int, summary: dict[str, Any]) -> list[bytes]:
        lines = files.translate_window(language_model, config, splitter, window, summary)
        return [table.encode([(pair.row, {"translation": line}) for pair, line in zip(window, lines)], start).encode()]

    def write_report(summary: dict[str, Any]) -> list[bytes]:
        if report is not None:  # before the output is complete: a run that is killed here can be resumed
            metrics = translation_metrics(summary["statistics"]) | search
            write_text(report, _render_page(model, metrics, summary["examples"]))
        return [b""]

    def show(text: str) -> None:
        print(text if reference is None else "", end="", flush=True)

    output = open_row_output(table if out else None, show, settings, resume)
    summary = run_windows(source, source.windows(files.MAX_CHARACTERS), output, compute, write_report, "translate")
    if num_unfinished := summary["num_unfinished"]:
        print(f"{num_unfinished:,} translations reached the maximum number of tokens", file=sys.stderr)
    if reference is not None:
        _print_metrics(translation_metrics(summary["statistics"]) | search, as_json)


def _check_files(out: Path | None, report: Path | None, reference: Path | None, as_json: bool, resume: bool) -> None:
    for path in (out, report):
        if path is not None and path.exists() and not resume:
            raise ConfigError(f"{path} already exists: choose another name, or remove it first")
    if reference is None and (report is not None or as_json):
        raise ConfigError("--report and --json need --reference")
    if reference is not None:
        require_packages({"sacrebleu": "BLEU"})


def _length_rows(metrics: dict[str, Any]) -> list[tuple[Any, ...]]:
    return [(row["words"], row["texts"], round(row["bleu"], 2)) for row in metrics["by_length"]]


def _build_config(search_options: dict[str, Any]) -> "GenerationConfig":
    """Return the default search of a translation with the options that were passed."""
    from polyseme.generation.config import TRANSLATION, GenerationConfig

    passed = {name: value for name, value in search_options.items() if value is not None}
    return GenerationConfig.from_options(TRANSLATION, passed)


def _print_metrics(metrics: dict[str, Any], as_json: bool) -> None:
    if as_json:
        print_json(metrics)
        return
    print(f"BLEU {metrics['bleu']:.2f}  {metrics['bleu_signature']}")
    print(f"chrF {metrics['chrf']:.2f}  {metrics['chrf_signature']}")
    print_table(["words of the source", "texts", "BLEU"], _length_rows(metrics))


def _render_page(model: Path, metrics: dict[str, Any], examples: list[list[str]]) -> str:
    """Return a page with the metrics, and the first translations next to their references."""
    from polyseme.report.charts import Bar, bar_chart
    from polyseme.report.html import collapsed, figure, html_page, html_table, key_figures

    search = f"beam {metrics['num_beams']}, length penalty {metrics['length_penalty']:g}"
    figures = [
        ("BLEU", f"{metrics['bleu']:.2f}", "0 to 100"),
        ("chrF", f"{metrics['chrf']:.2f}", "0 to 100"),
        ("Brevity penalty", f"{metrics['brevity_penalty']:.3f}", "below 1: too short"),
        ("Texts", f"{metrics['texts']:,}", search),
    ]
    lengths = _length_rows(metrics)
    chart = bar_chart([Bar(f"{words} words ({texts:,} texts)", bleu) for words, texts, bleu in lengths], "BLEU")
    caption = "A fall with the length means that the model loses track of long sources; few texts give noisy bars."
    signatures = [(name, metrics[f"{name.lower()}_signature"]) for name in ("BLEU", "chrF")]
    header = ["source", "reference", "translation"]
    more = html_table(header, examples[_SHOWN_EXAMPLES:]) if examples[_SHOWN_EXAMPLES:] else ""
    sections = [
        ("BLEU by length of the source", figure(chart, caption)),
        (
            "Translations",
            html_table(header, examples[:_SHOWN_EXAMPLES])
            + collapsed(f"{len(examples) - _SHOWN_EXAMPLES} more translations", more),
        ),
        ("Signatures", html_table(["metric", "signature"], signatures)),
    ]
    return html_page(f"Translations of {model.name}", f"{metrics['texts']:,} texts", sections, key_figures(figures))

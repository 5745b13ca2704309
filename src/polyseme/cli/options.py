"""Options that several commands share."""

from pathlib import Path
from typing import Annotated

from typer import Argument, Option

from polyseme.io.limits import MAX_INTEGER

SOURCES_HELP = (
    "Files or folders of text, JSON lines, CSV, TSV, Parquet, WikiExtractor, WET or MIDI, plain or compressed (.gz .xz "
    ".zst .bz2); - for standard input (needs --format); python-docs or gettext. Each may end in options such as "
    "::lang=de,weight=2,text=body,format=jsonl."
)

ModelArgument = Annotated[Path, Argument(help="Folder of a model or run, or a name from `polyseme models`.")]
JsonOption = Annotated[bool, Option("--json", help="Print JSON.")]
JsonLinesOption = Annotated[bool, Option("--json", help="Print one JSON object per line.")]
INPUT_HELP = (
    "text (one per line), CSV, TSV, JSON lines or Parquet, plain or compressed; - for standard input. Columns and "
    "format may follow: FILE::text=review,label=stars,format=csv."
)
EXAMPLES_HELP = f"Examples: CoNLL columns, SQuAD's JSON, or {INPUT_HELP}"
OUTPUT_HELP = (
    "Output file: .csv, .tsv, .jsonl or .parquet with all columns of the input followed by ours, or .txt with the "
    "results alone."
)
PLL_HELP = (
    "Pseudo-log-likelihood of a masked or hybrid model: original, or within_word_l2r (mask the rest of a word too)."
)
TextsOption = Annotated[Path, Option(help=f"Texts: {INPUT_HELP}")]
SetOption = Annotated[
    list[str], Option("--set", help="Override a setting: path=value, e.g. optimizer.lr=1e-4 or objective=CausalLM.")
]
BudgetOption = Annotated[str, Option(help="Training budget: 20m, 1h30m, 90s, 500steps or 1e9tokens.")]
RESUME_HELP = "Resume the run in --out with its saved settings; a larger --budget extends it."
ResumeOption = Annotated[bool, Option("--resume", help=RESUME_HELP)]
SeedOption = Annotated[int | None, Option(help="Random seed; default: that of the recipe.", min=0, max=MAX_INTEGER)]
ResumeOutputOption = Annotated[bool, Option("--resume", help="Resume an interrupted run with the same options.")]
RunOption = Annotated[Path, Option(help="Run folder to write, or to resume.")]
SeedsOption = Annotated[str, Option(help="Number of random seeds, or the seeds themselves: 3, or 7,11,13 (one: 7,).")]

# Files of labeled examples.
TextColumnOption = Annotated[str, Option(help="Column or key of the text, for all files; default: text.")]
PairColumnOption = Annotated[str, Option(help="Column or key of the second text; default: pair.")]
LabelColumnOption = Annotated[str, Option(help="Column or key of the label; default: label.")]
HeaderOption = Annotated[bool, Option(help="Whether tables have a header; without one, columns are numbers from 1.")]
SkipBadOption = Annotated[bool, Option(help="Skip bad rows and count them.")]
AllowLargeOption = Annotated[
    bool, Option("--allow-large", help="Read compressed files that expand more than a thousandfold.")
]

# Sources of text.
SourceArgument = Annotated[list[str], Argument(help=SOURCES_HELP)]
SplitOption = Annotated[str, Option(help="Documents in text files: file, blank (between blank lines), or line.")]
FormatOption = Annotated[str, Option(help="File format, if the file names do not show it.")]
LangOption = Annotated[str, Option(help="Language of sources that do not name one.")]

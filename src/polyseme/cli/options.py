"""Options that several commands share."""

from pathlib import Path
from typing import Annotated

from typer import Argument, Option

SOURCES_HELP = (
    "Files or folders of text, JSON lines, CSV, TSV, Parquet, WikiExtractor, WET or MIDI, plain or compressed (.gz .xz "
    ".zst .bz2); - for standard input (needs --format); python-docs or gettext. Each may end in options such as "
    "::lang=de,weight=2,key=body,format=jsonl."
)

ModelArgument = Annotated[Path, Argument(help="Model folder, or a run folder with a model.")]
JsonOption = Annotated[bool, Option("--json", help="Print JSON.")]
JsonLinesOption = Annotated[bool, Option("--json", help="Print one JSON object per line.")]
LinesOption = Annotated[Path, Option(help="Text file, one text per line.")]
SetOption = Annotated[list[str], Option("--set", help="Override a setting: path=value, e.g. optimizer.lr=1e-4.")]
BudgetOption = Annotated[str, Option(help="Training budget: 20m, 1h30m, 90s, 500steps or 1e9tokens.")]
ResumeOption = Annotated[bool, Option(help="Resume the run in --out.")]
ResumeOutputOption = Annotated[bool, Option("--resume", help="Resume an interrupted run with the same options.")]
RunOption = Annotated[Path, Option(help="Run folder to write, or to resume.")]
SeedsOption = Annotated[str, Option(help="Number of random seeds, or the seeds themselves: 3, or 7,11,13 (one: 7,).")]
LengthPenaltyOption = Annotated[float, Option(help="Divide the scores of the beam search by length to this power.")]

# Files of labeled examples.
TextColumnOption = Annotated[str, Option(help="Column or key of the text.")]
PairColumnOption = Annotated[str, Option(help="Column or key of the second text.")]
LabelColumnOption = Annotated[str, Option(help="Column or key of the label.")]
HeaderOption = Annotated[bool, Option(help="Whether TSV has a header; without one, columns are numbers from 1.")]
SkipBadOption = Annotated[bool, Option(help="Skip bad rows and count them.")]
AllowLargeOption = Annotated[
    bool, Option("--allow-large", help="Read compressed files that expand more than a thousandfold.")
]

# Sources of text.
SourceArgument = Annotated[list[str], Argument(help=SOURCES_HELP)]
KeyOption = Annotated[str, Option(help="Key or column of the text; a+b joins two.")]
SplitOption = Annotated[str, Option(help="Documents in text files: file, blank (between blank lines), or line.")]
FormatOption = Annotated[str, Option(help="File format, if the file names do not show it.")]
LangOption = Annotated[str, Option(help="Language of sources that do not name one.")]

"""Tables of compared runs: cells with means and deviations, as LaTeX and CSV."""

import csv
import io
import re
import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

LOWER_IS_BETTER = frozenset({"mse", "loss", "perplexity", "bits_per_character"})
_LATEX_SPECIAL = {
    "\\": r"\textbackslash{}", "{": r"\{", "}": r"\}", "$": r"\$", "&": r"\&", "#": r"\#", "%": r"\%", "_": r"\_",
    "~": r"\textasciitilde{}", "^": r"\textasciicircum{}", "±": r"$\pm$", "×": r"$\times$", "<": r"\textless{}",
    ">": r"\textgreater{}",
}  # fmt: skip


@dataclass(frozen=True)
class TaskScores:
    """The scores of a run on a task, one for each seed."""

    task: str
    metric: str
    values: tuple[float, ...]
    interval: tuple[float, float] | None = None  # of the mean, at 95 %

    @property
    def mean(self) -> float:
        """The mean over seeds."""
        return statistics.fmean(self.values)

    @property
    def std(self) -> float | None:
        """The sample standard deviation over seeds; None for one seed."""
        return statistics.stdev(self.values) if len(self.values) > 1 else None

    @property
    def whiskers(self) -> tuple[float, float] | None:
        """The interval, or else one standard deviation around the mean; None if neither is known."""
        around_mean = None if self.std is None else (self.mean - self.std, self.mean + self.std)
        return self.interval or around_mean

    @property
    def lower_is_better(self) -> bool:
        """Whether a lower value is better."""
        return self.metric in LOWER_IS_BETTER


@dataclass(frozen=True)
class ComparedRun:
    """A row of a comparison: a run (or the runs of one model on several tasks), its scores and its cost."""

    name: str
    scores: tuple[TaskScores, ...]
    num_parameters: int = 0
    train_flops: float | None = None
    train_seconds: float = 0.0
    ms_per_text: float | None = None
    notes: tuple[str, ...] = ()

    def get(self, task: str) -> TaskScores | None:
        """Return the scores on a task; None if the run does not have it."""
        return next((each for each in self.scores if each.task == task), None)


@dataclass(frozen=True)
class PairedTest:
    """The paired test of two runs on a task: the difference of the first and the second, its 95 % interval, and p.

    The p-value is two-sided. It is below 0.05 exactly if the interval excludes 0.
    """

    first: str
    second: str
    task: str
    difference: float
    low: float
    high: float
    p: float
    method: str = "paired bootstrap, two-sided"

    @property
    def is_significant(self) -> bool:
        """Whether the interval excludes zero."""
        return self.low > 0 or self.high < 0


@dataclass(frozen=True)
class Table:
    """The cells of a table as texts; `best` are the positions (row, column) of the best values of their column."""

    header: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    best: frozenset[tuple[int, int]] = field(default_factory=frozenset)


def list_tasks(runs: Sequence[ComparedRun]) -> dict[str, str]:
    """Return the tasks of all runs, in order, and the metric of each."""
    return {scores.task: scores.metric for run in runs for scores in run.scores}


def format_score(scores: TaskScores) -> str:
    """Format mean and standard deviation in percent, or as they are if they are no shares."""
    factor, digits = (100, 1) if all(-1 <= value <= 1 for value in scores.values) else (1, 3)
    std = "" if scores.std is None else f" ± {factor * scores.std:.{digits}f}"
    return f"{factor * scores.mean:.{digits}f}{std}"


def score_table(runs: Sequence[ComparedRun]) -> Table:
    """Return the table of runs by task, with size, training time and latency."""
    tasks = list_tasks(runs)
    columns: list[tuple[str, Callable[[ComparedRun], str]]] = [("run", lambda run: run.name)]
    best = set()
    for number, (task, metric) in enumerate(tasks.items(), 1):
        columns.append((f"{task} ({metric})", lambda run, task=task: _cell(run, task)))  # type: ignore[misc]
        means = {i: s for i, run in enumerate(runs) if (s := run.get(task)) is not None}
        if len(means) > 1:
            pick = min if metric in LOWER_IS_BETTER else max
            top = pick(s.mean for s in means.values())
            best |= {(i, number) for i, s in means.items() if s.mean == top}
    optional: list[tuple[str, Callable[[ComparedRun], str]]] = [
        ("seeds", lambda run: str(max((len(s.values) for s in run.scores), default=0))),
        ("parameters", lambda run: f"{run.num_parameters:,}" if run.num_parameters else ""),
        ("training FLOPs", lambda run: f"{run.train_flops:.2g}" if run.train_flops else ""),
        ("training s", lambda run: f"{run.train_seconds:,.0f}" if run.train_seconds else ""),
        ("ms per text", lambda run: f"{run.ms_per_text:.1f}" if run.ms_per_text else ""),
    ]
    columns += [(name, cell) for name, cell in optional if any(cell(run) for run in runs)]
    rows = tuple(tuple(cell(run) for _, cell in columns) for run in runs)
    return Table(tuple(name for name, _ in columns), rows, frozenset(best))


def _cell(run: ComparedRun, task: str) -> str:
    scores = run.get(task)
    return "" if scores is None else format_score(scores)


def latex_table(table: Table, caption: str = "") -> str:
    """Format a table for LaTeX with booktabs; the best values are bold."""
    lines = [r"% \usepackage{booktabs}", rf"\begin{{tabular}}{{l{'r' * (len(table.header) - 1)}}}", r"\toprule"]
    lines += [" & ".join(map(escape_latex, table.header)) + r" \\", r"\midrule"]
    for i, row in enumerate(table.rows):
        cells = [
            rf"\textbf{{{escape_latex(c)}}}" if (i, j) in table.best else escape_latex(c) for j, c in enumerate(row)
        ]
        lines.append(" & ".join(cells) + r" \\")
    lines += [r"\bottomrule", r"\end{tabular}", *([f"% {' '.join(caption.split())}"] if caption else [])]
    return "\n".join(lines) + "\n"


def escape_latex(text: str) -> str:
    """Escape the special characters of LaTeX."""
    return re.sub(r"[\\{}$&#%_~^±×<>]", lambda match: _LATEX_SPECIAL[match[0]], " ".join(text.split()))


def csv_scores(runs: Sequence[ComparedRun]) -> str:
    """Format the scores of every run, task and seed as CSV, a row for each, with full precision."""
    stream = io.StringIO()
    writer = csv.writer(stream, lineterminator="\n")
    writer.writerow(["run", "task", "metric", "seed_number", "score", "mean", "std", *_COST_COLUMNS])
    for run in runs:
        cost = [getattr(run, name) if getattr(run, name) is not None else "" for name in _COST_COLUMNS]
        for scores in run.scores:
            std = "" if scores.std is None else scores.std
            for number, value in enumerate(scores.values, 1):
                row = [run.name, scores.task, scores.metric, number, value, scores.mean, std]
                writer.writerow([*row, *cost])
    return stream.getvalue()


_COST_COLUMNS = ("num_parameters", "train_flops", "train_seconds", "ms_per_text")

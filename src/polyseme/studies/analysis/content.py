"""What the pages of a study say, as blocks that are rendered as Markdown and as HTML."""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from polyseme.report.pages.compare_tables import Table
from polyseme.studies.analysis.results import StudyResults
from polyseme.studies.analysis.table import (
    MINUS,
    cost_table,
    edge_arms,
    format_value,
    is_percent,
    measured_metrics,
    rate_table,
    score_table,
    unit,
    verdict_table,
    weak_arms,
)
from polyseme.studies.metrics import METRICS
from polyseme.studies.verdicts import POWER, Verdict, advise, void_reason

TOKENIZER_MISMATCH = re.compile(r"expects a tokenizer of kind (\S+), but that of the corpus is (\S+):")
ANSWERS = ("agrees", "disagrees", "undecided", "void", "missing")


@dataclass(frozen=True)
class Paragraph:
    """A paragraph of plain text below a table."""

    text: str


@dataclass(frozen=True)
class BulletList:
    """Bullets, each a term in bold and plain text."""

    entries: tuple[tuple[str, str], ...]

    @property
    def labeled(self) -> list[tuple[str, str]]:
        """The entries with a colon after each term that is no question."""
        return [(term if term.endswith("?") else f"{term}:", text) for term, text in self.entries]


@dataclass(frozen=True)
class CodeBlock:
    """Commands."""

    text: str


@dataclass(frozen=True)
class FigureBlock:
    """The place of the figure of the study."""

    caption: str


Block = Paragraph | BulletList | CodeBlock | FigureBlock | Table
Section = tuple[str, list[Block]]


def study_lead(results: StudyResults) -> str:
    """Return what was compared, in one or two sentences."""
    study = results.study
    devices = dict.fromkeys(str(row["device"]) for row in results.rows if row.get("device"))
    on_devices = f" on {', '.join(devices)}" if devices else ""
    seeds = "one seed" if results.num_seeds == 1 else f"{results.num_seeds} seeds"
    return (
        f"After {study.source}: {len(study.arms)} arms with {seeds}, {_budget(results)} of training each{on_devices}."
    )


def _budget(results: StudyResults) -> str:
    """Return the budget of an arm with a space before its unit, such as 90 s."""
    return re.sub(r"(?<=\d)(?=[a-z])", " ", str(results.settings.get("budget", "?")))


def study_sections(results: StudyResults, verdicts: Sequence[Verdict]) -> list[Section]:
    """Return the sections of the page of a study; those without content are left out."""
    rates = rate_table(results)
    sections: list[Section] = [
        ("Answers", _answers(verdicts)),
        ("Scores", _scores(results)),
        ("Cost", [cost_table(results), Paragraph(_cost_note(results))]),
        (
            "Learning rates",
            [rates, *([Paragraph(_rate_note(results))] if "tried" in rates.header else [])] if rates else [],
        ),
        ("Departures from the papers", _departures(results)),
        ("Limits", [BulletList(tuple(_limits(results, verdicts)))]),
        ("How this page was made", _provenance(results)),
    ]
    return [(heading, blocks) for heading, blocks in sections if blocks]


def _answers(verdicts: Sequence[Verdict]) -> list[Block]:
    """Return the table of answers, and what was found for those that do not agree with the paper."""
    if not verdicts:
        return []
    explained = tuple(
        (f"{verdict.answer.capitalize()}: {verdict.question.text}", explain(verdict))
        for answer in ANSWERS
        for verdict in verdicts
        if verdict.answer == answer != "agrees"
    )
    method = (
        "Differences are in the unit of the metric (points for percentages). Intervals treat pre-training seeds and "
        "test examples as random (Obuchowski and Rockette 1995, with the degrees of freedom of Hillis 2007; never "
        "narrower than Welch's t interval over the seeds). An answer needs p < 0.05 after Holm's correction for the "
        "number of questions; intervals are not corrected."
    )
    return [verdict_table(verdicts), *([BulletList(explained)] if explained else []), Paragraph(method)]


def explain(verdict: Verdict) -> str:
    """Say in one to three sentences what was found, and what could have been."""
    question, metric = verdict.question, METRICS[verdict.question.metric]
    if verdict.difference is None:
        return verdict.reason
    title = metric.title.partition(" (")[0]
    in_metric = "" if unit(metric) == metric.title else f" in {title}"
    difference = f"{format_value(metric, verdict.difference, signed=True)} {unit(metric)}{in_metric}"
    if verdict.interval is None:
        return f"{difference}. {verdict.reason}"
    low, high = (format_value(metric, end, signed=True) for end in verdict.interval)
    sentences = [f"{difference} (interval {low} to {high}); predicted was {question.predicted}."]
    if verdict.answer == "undecided" and verdict.detectable is not None:
        if verdict.interval[0] > 0 or verdict.interval[1] < 0:
            sentences.append("The interval excludes 0, but not after the correction for several questions.")
        sentences.append(
            f"This run would have found a true difference of {format_value(metric, verdict.detectable)} {unit(metric)} "
            f"or more in {100 * POWER:.0f} % of cases."
        )
        published = question.published if is_percent(metric) else None
        if published is not None and abs(published) < 100 * verdict.detectable:
            sentences.append(f"The published difference of {published:+g} is smaller.".replace("-", MINUS))
    return " ".join(sentences)


def _scores(results: StudyResults) -> list[Block]:
    names = measured_metrics(results)
    if not names:
        return []
    note = (
        "Means and standard deviations over seeds. Bold: better than every other arm (95 % interval of each difference "
        "without 0); a column without a bold value has no clear winner. ↓: lower is better."
    )
    if results.num_done < results.num_seeds * len(results.study.arms):
        note += " In parentheses: the number of seeds so far, where some are missing."
    if results.baselines:
        note += " In the last rows: simple models without pre-training, on the same examples."
    if any(name.startswith("pseudo") for name in names):
        note += " Pseudo-likelihoods are no likelihoods of text: they are not compared with them, nor ranked."
    caption = (
        "Large dots are means, small ones seeds, and lines 95 % intervals over seeds and examples, cut where they are "
        "far wider than the differences. Another color: the best arm, where the intervals allow to name one."
    )
    return [score_table(results), Paragraph(note), FigureBlock(caption)]


def _rate_note(results: StudyResults) -> str:
    share = 100 * float(results.settings["search_fraction"])
    return (
        "Every arm tried the same factors of the learning rate of its recipe in short runs, and further ones while the "
        f"best was the largest or smallest ({share:.2g} % of the budget; the loss on documents that no result uses "
        "decides). On tasks, all fine-tuned arms have one optimizer, rate and number of steps, and so have all "
        "networks over frozen features, except where the note of an arm names others."
    )


def _cost_note(results: StudyResults) -> str:
    seconds = sum(float(row.get("train_seconds") or 0.0) for row in results.rows if _trains(results, row))
    scoring = sum(m.get("seconds", 0.0) for row in results.rows for m in row.get("metrics", {}).values())
    total = f"{seconds / 60:,.0f} minutes of training and {scoring / 60:,.0f} of scoring"
    return f"Means over seeds, in total {total}. Runs that share a device take longer than they would alone."


def _trains(results: StudyResults, row: Any) -> bool:
    return not results.study.find_arm(row["arm"]).from_arm


def _departures(results: StudyResults) -> list[Block]:
    entries = tuple((arm.name, arm.note) for arm in results.study.arms if arm.note)
    return [BulletList(entries)] if entries else []


def _limits(results: StudyResults, verdicts: Sequence[Verdict]) -> list[tuple[str, str]]:
    """Return what the reader has to know before using the figures."""
    planned, done = results.num_seeds * len(results.study.arms), results.num_done
    entries = []
    if done < planned:
        entries.append(("Not finished", f"{done} of {planned} runs are done."))
    for row in results.rows:
        if "error" in row:
            entries.append((f"{row['arm']}, seed {row['seed']}, failed", str(row["error"])))
    if results.num_seeds < 5:
        text = "seeds show large differences only; intervals are as wide as that implies."
        text = "One seed shows no variation." if results.num_seeds == 1 else f"{results.num_seeds} {text}"
        entries.append(("Few seeds", text))
    entries.append(("Scale", f"{_budget(results)} of training: what holds here may not hold later."))
    if results.settings.get("limits"):
        limits = "; ".join(
            f"{_metric_title(name)} {_format_limits(each)}" for name, each in results.settings["limits"].items()
        )
        entries.append(("Part of the examples", f"At most these numbers are used: {limits}."))
    if any(not verdict.includes_examples for verdict in verdicts if verdict.interval is not None):
        names = dict.fromkeys(v.question.metric for v in verdicts if v.interval and not v.includes_examples)
        titles = ", ".join(METRICS[name].title for name in names)
        entries.append(("Examples are fixed", f"The intervals of {titles} are over seeds alone."))
    if weak := weak_arms(results):
        text = "; ".join(f"{METRICS[name].title}: {', '.join(arms)}" for name, arms in weak.items())
        entries.append(("Worse than a linear model of words", f"{text}. Differences between them show little."))
    if edges := edge_arms(results):
        text = "the best learning rate is the largest or smallest that was tried, so a better one may lie beyond."
        entries.append((f"Edge of the search ({', '.join(edges)})", text))
    return entries + _warnings(results)


def _warnings(results: StudyResults) -> list[tuple[str, str]]:
    """Return the void arms and the warnings of runs, once for all runs where only numbers differ."""
    entries, warned_arms = [], dict[str, list[tuple[str, str]]]()
    expected_kinds, kind = dict[str, str](), ""
    for arm in results.study.arms:
        rows = results.arm_rows(arm.name)
        if void := [row for row in rows if row.get("is_void")]:
            text = f"it {void_reason(void[0])}; {advise(void[0])}."
            entries.append((f"{arm.name} is void ({len(void)} of {len(rows)} seeds)", text))
        for row in rows:
            for text in row.get("warnings", []):
                if mismatch := TOKENIZER_MISMATCH.search(text):
                    expected_kinds[arm.name], kind = mismatch.groups()
                    continue
                warned_arms.setdefault(re.sub(r"\d+", "0", text), []).append((arm.name, text))
    for warned in warned_arms.values():
        names = list(dict.fromkeys(name for name, _ in warned))
        runs = f"{len(warned)} of {results.num_seeds * len(names)} runs"
        entries.append((f"{', '.join(names)} ({runs})", warned[0][1]))
    if expected_kinds:
        arms = ", ".join(f"{name} ({expected})" for name, expected in expected_kinds.items())
        entries.append(("Tokenizer", f"{kind} instead of the kind that the family expects: {arms}."))
    return entries


def _metric_title(name: str) -> str:
    return METRICS[name].title if name in METRICS else name


def _format_limits(limits: Any) -> str:
    return " and ".join(f"{count:,} {name.removeprefix('max_')}" for name, count in limits.items())


def _provenance(results: StudyResults) -> list[Block]:
    rows, settings = [row for row in results.rows if "error" not in row], results.settings
    facts = [("Text", f"{settings.get('corpus', '?')}, data {settings.get('data', '?')}")]
    for title, key in (("Hardware", "device"), ("PyTorch", "torch"), ("Commit", "commit")):
        if values := dict.fromkeys(str(row[key]) for row in rows if row.get(key)):
            facts.append((title, ", ".join(values)))
    dates = sorted({str(row["date"])[:10] for row in rows if row.get("date")})
    if dates:
        facts.append(("Date", dates[0] if len(dates) == 1 else f"{dates[0]} to {dates[-1]}"))
    facts.append(("Seeds", ", ".join(map(str, settings["seeds"]))))
    command = [CodeBlock(str(settings["command"]))] if settings.get("command") else []
    return [BulletList(tuple(facts)), *command]

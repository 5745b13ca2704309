"""The pages of a study: `results.json`, `report.md`, `report.html` and `figure.svg`, from its files alone."""

import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from polyseme.errors import ConfigError
from polyseme.finetuning.results import mean_std
from polyseme.io.atomic import write_text
from polyseme.io.json import write_json
from polyseme.report.dots import DotPanel, dot_chart, dot_figure
from polyseme.report.html import Html, bold, code, escape, html_page, html_table, key_figures, note, warning
from polyseme.report.pages.compare_tables import Table
from polyseme.report.svg import standalone_svg
from polyseme.studies.analysis.content import (
    Block,
    BulletList,
    CodeBlock,
    FigureBlock,
    Section,
    study_lead,
    study_sections,
)
from polyseme.studies.analysis.figure import study_panels
from polyseme.studies.analysis.markdown import MARKER, markdown_page
from polyseme.studies.analysis.results import StudyResults, read_results
from polyseme.studies.analysis.table import arm_interval, find_best, measured_metrics
from polyseme.studies.verdicts import Verdict, decide

INDEX_START, INDEX_END = "<!-- studies -->", "<!-- end of studies -->"


def write_pages(out: str | Path) -> Path:
    """Write the table, the verdicts, the pages and the figure of the study in a folder; return the HTML page."""
    results = read_results(Path(out))
    verdicts, panels = _decide(results), study_panels(results)
    sections = study_sections(results, verdicts)
    folder = results.path
    write_json(folder / "results.json", results_json(results, verdicts))
    write_text(folder / "figure.svg", _figure_file(results, panels))
    write_text(folder / "report.md", _markdown(results, sections, "figure.svg"))
    write_text(folder / "report.html", _html(results, verdicts, sections, panels))
    return folder / "report.html"


def export_page(out: str | Path, path: str | Path) -> Path:
    """Write the page of a study as Markdown to `path`, its figure and results next to it, and the index of the folder.

    The index is the table of studies in `README.md`, if that has a place for it.
    """
    path = Path(path)
    if path.suffix != ".md":
        raise ConfigError(f"{path}: the page of a study is Markdown: choose a file that ends in .md")
    if path.is_file() and MARKER not in path.read_text(encoding="utf-8"):
        raise ConfigError(f"{path} exists and is no page of a study: choose another file")
    for other in (path.with_suffix(".json"), path.with_suffix(".svg")):
        if other.exists() and not path.is_file():
            raise ConfigError(f"{other} exists and belongs to no page of a study: choose another name than {path.name}")
    results = read_results(Path(out))
    figure_path, verdicts = path.with_suffix(".svg"), _decide(results)
    path.parent.mkdir(parents=True, exist_ok=True)
    write_json(path.with_suffix(".json"), results_json(results, verdicts))
    write_text(figure_path, _figure_file(results, study_panels(results)))
    write_text(path, _markdown(results, study_sections(results, verdicts), figure_path.name))
    update_index(path.parent)
    return path


def update_index(folder: Path) -> None:
    """List the pages of studies in a folder between the marks of its `README.md`; do nothing without such marks."""
    readme = folder / "README.md"
    text = readme.read_text(encoding="utf-8") if readme.is_file() else ""
    if INDEX_START not in text or INDEX_END not in text:
        return
    rows = []
    for path in sorted(folder.glob("*.md")):
        page = path.read_text(encoding="utf-8")
        if MARKER in page:
            rows.append(f"| [{path.name}]({path.name}) | {page.splitlines()[0].removeprefix('# ')} |")
    before, _, rest = text.partition(INDEX_START)
    table = "\n".join(["| study | content |", "|---|---|", *rows]) if rows else "No study has been run yet."
    write_text(readme, f"{before}{INDEX_START}\n\n{table}\n\n{INDEX_END}{rest.partition(INDEX_END)[2]}")


def results_json(results: StudyResults, verdicts: Sequence[Verdict]) -> dict[str, Any]:
    """Return the content of `results.json`."""
    table = []
    for name in measured_metrics(results):
        best = find_best(results, name)
        for arm in results.study.arms:
            if values := results.values(arm.name, name):
                mean, std = mean_std(values)
                estimate = arm_interval(results, arm.name, name)
                interval = estimate.interval() if estimate is not None and estimate.has_variation else None
                facts = {"mean": mean, "std": std, "interval": interval, "values": values}
                table.append({"arm": arm.name, "metric": name, **facts, "is_best": arm.name == best})
    num_runs = {"done": results.num_done, "planned": _num_planned(results)}
    answers = [verdict.to_json() for verdict in verdicts]
    header = {"kind": "study-results", "study": results.study.name, "runs": num_runs}
    return {**header, "table": table, "baselines": dict(results.baselines), "verdicts": answers}


def _decide(results: StudyResults) -> list[Verdict]:
    return decide(results.study, results.rows, num_seeds=results.num_seeds, out=results.path)


def _num_planned(results: StudyResults) -> int:
    return results.num_seeds * len(results.study.arms)


def _title(results: StudyResults) -> str:
    return f"{results.study.title} ({results.study.name})"


def _figure_file(results: StudyResults, panels: Sequence[DotPanel]) -> str:
    figure = dot_figure(panels, f"{results.study.title}: scores of all arms")
    return standalone_svg(figure) if figure else '<svg xmlns="http://www.w3.org/2000/svg"/>\n'


def _markdown(results: StudyResults, sections: Sequence[Section], figure: str) -> str:
    return markdown_page(_title(results), study_lead(results), sections, figure)


def _html(
    results: StudyResults, verdicts: Sequence[Verdict], sections: Sequence[Section], panels: Sequence[DotPanel]
) -> str:
    done, planned = results.num_done, _num_planned(results)
    figures = [("runs", f"{done} of {planned}", f"{len(results.study.arms)} arms, {results.num_seeds} seed(s)")]
    figures += [
        (answer, str(sum(verdict.answer == answer for verdict in verdicts)), "question(s)")
        for answer in ("agrees", "disagrees", "undecided", "void", "missing")
        if any(verdict.answer == answer for verdict in verdicts)
    ]
    top = warning(f"The study is not finished: {done} of {planned} runs are done.") if done < planned else ""
    top += key_figures(figures)
    rendered = [(heading, "".join(_render(block, panels) for block in blocks)) for heading, blocks in sections]
    return html_page(_title(results), escape(study_lead(results)), rendered, top)


def _render(block: Block, panels: Sequence[DotPanel]) -> str:
    """Render a block as HTML."""
    if isinstance(block, Table):
        rows = [
            [bold(cell) if (i, j) in block.best else _number_cell(cell) for j, cell in enumerate(row)]
            for i, row in enumerate(block.rows)
        ]
        classes = "wide sticky" if block.header[0] == "arm" else "wide"
        return f'<div class="{classes}">{html_table(block.header, rows)}</div>'
    if isinstance(block, BulletList):
        entries = "".join(f"<li><b>{escape(term)}</b> {escape(text)}</li>" for term, text in block.labeled)
        return f"<ul>{entries}</ul>"
    if isinstance(block, CodeBlock):
        return code(block.text)
    if isinstance(block, FigureBlock):
        charts = "".join(f"<div>{chart}</div>" for panel in panels if (chart := dot_chart(panel)))
        caption = f"<figcaption>{escape(block.caption)}</figcaption>"
        return f'<figure><div class="panels">{charts}</div>{caption}</figure>' if charts else ""
    return note(block.text)


def _number_cell(cell: str) -> str | Html:
    """Return a cell that is aligned as a number if it is one, such as < 0.001."""
    return Html(escape(cell), is_number=True) if re.match(r"< \d", cell) else cell

"""`probe`: what can be decoded from each layer of models."""

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

from polyseme.errors import ConfigError
from polyseme.explain.explanation import Explanation
from polyseme.explain.probing.experiment import probe_task
from polyseme.explain.probing.features import build_encoder, select_layers
from polyseme.explain.probing.head_page import report_heads
from polyseme.explain.probing.heads import probe_heads
from polyseme.explain.probing.items import read_probe_data
from polyseme.explain.probing.page import CAVEAT, METHOD, TaskReport, report_expected_layers, report_task
from polyseme.explain.probing.tree_page import report_trees
from polyseme.explain.probing.trees import probe_trees, read_tree_data
from polyseme.finetuning.experiment import list_seeds
from polyseme.inference.base import LanguageModel
from polyseme.inference.feature_extraction import FeatureEncoder
from polyseme.inference.load import load
from polyseme.report.cards.readme import short_name
from polyseme.report.html import escape, html_page, paragraph

Model = str | Path | LanguageModel
Source = str | Path
MAX_EXAMPLES = 20_000


class ProbeMeasurement(NamedTuple):
    """How a task is read, measured on models, and reported."""

    read: Callable[[str, Source, Source | None, int], Any]
    measure: Callable[..., Any]  # of the data, encoders or models by name, layers and seeds
    report: Callable[[Any], TaskReport]
    needs_vectors: bool = True  # and so encoders, not models


LINEAR_PROBE = ProbeMeasurement(read_probe_data, probe_task, report_task)
MEASUREMENTS = {
    "ud-tree": ProbeMeasurement(read_tree_data, probe_trees, report_trees),
    "ud-heads": ProbeMeasurement(read_tree_data, probe_heads, report_heads, needs_vectors=False),
}


@dataclass(frozen=True)
class Probing(Explanation):
    """The explanation of probes, with the result of each task: a `TaskProbe`, `TreeProbe` or `HeadProbe`."""

    results: tuple[Any, ...] = field(default=(), repr=False)


def probe(
    models: Model | Sequence[Model],
    task: str | Sequence[str],
    data: Source | Sequence[Source],
    *,
    dev: Source | Sequence[Source] | None = None,
    layers: Sequence[int] | None = None,
    seeds: int | Sequence[int] = 3,
    max_examples: int = MAX_EXAMPLES,
) -> Probing:
    """Train linear probes on each layer of models, next to a control task and an untrained copy of each model.

    `task` is `ud-pos`, `ud-deprel`, `ud-tree` (the structural probe), `ud-heads` (attention heads by relation), `ner`,
    `wic`, or the name of a task or data set of fine-tuning with one label per word, text, or pair of texts; several
    tasks are compared by the layers at which they are solved. `data` is one file (a fifth of which is held out), one
    file with `dev`, or a folder with both, for all tasks or for each. At most `max_examples` labels are used.
    """
    tasks, loaded = _as_list(task, ","), _load_models(_as_list(models))
    sources, dev_sources = _for_tasks(tasks, data, "data"), _for_tasks(tasks, dev, "dev")
    seed_list = list_seeds(seeds)
    measurements = [MEASUREMENTS.get(name, LINEAR_PROBE) for name in tasks]
    encoders: dict[str, FeatureEncoder] = {}
    if any(each.needs_vectors for each in measurements):
        encoders = {name: build_encoder(model) for name, model in loaded.items()}
        for encoder in encoders.values():
            select_layers(encoder, layers)
    inputs = [
        each.read(name, source, dev_source, max_examples)
        for each, name, source, dev_source in zip(measurements, tasks, sources, dev_sources)
    ]
    results = tuple(
        each.measure(content, encoders if each.needs_vectors else loaded, layers, seed_list)
        for each, content in zip(measurements, inputs)
    )
    reports = [each.report(measured) for each, measured in zip(measurements, results)]
    rows = [row for report in reports for row in report.expected]
    if expected := report_expected_layers(rows):
        reports.append(expected)
    return _explain(results, reports, list(loaded), max_examples)


def _as_list(value: Any, separator: str = "") -> list[Any]:
    """Return a list of one value or several; a text may be several values between separators."""
    if isinstance(value, str) and separator:
        value = [part.strip() for part in value.split(separator) if part.strip()]
    values = [value] if isinstance(value, str | Path | LanguageModel) else list(value)
    if not values:
        raise ConfigError("a probe needs a model, a task and data")
    return values


def _for_tasks(tasks: Sequence[str], sources: Any, name: str) -> list[Any]:
    """Return the source of each task: one for all, or one for each."""
    values = [None] if sources is None else _as_list(sources)
    if len(values) not in (1, len(tasks)):
        raise ConfigError(f"`{name}` has {len(values)} sources for {len(tasks)} tasks, expected one, or one per task")
    return values * len(tasks) if len(values) == 1 else values


def _load_models(models: Sequence[Model]) -> dict[str, LanguageModel]:
    """Load models; two of the same name are told apart by number."""
    loaded: dict[str, LanguageModel] = {}
    for each in models:
        model = load(each)
        name = short_name(model.path)
        unique, number = name, 1
        while unique in loaded:
            number += 1
            unique = f"{name} {number}"
        loaded[unique] = model
    return loaded


def _explain(
    results: tuple[Any, ...], reports: Sequence[TaskReport], models: Sequence[str], max_examples: int
) -> Probing:
    """Build the page and the record."""
    sections = [(report.heading, report.html) for report in reports]
    sections.append(("How this is computed", paragraph(METHOD)))
    lead = f"What each layer of {escape(', '.join(models))} encodes, measured by linear probes. {CAVEAT}"
    page = html_page("Probes by layer", lead, sections)
    record = {"models": list(models), "max_examples": max_examples, "tasks": [asdict(each) for each in results]}
    figures = {name: chart for report in reports for name, chart in report.figures.items() if chart}
    tables = [table for report in reports for table in report.tables]
    summary = "\n".join(report.summary for report in reports if report.summary)
    return Probing(page, record, figures, summary, tables, results)

"""Model cards: `README.md` of a model folder, from what `polyseme.json` records. No figure comes from anywhere else."""

import math
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from polyseme.report.cards.readme import (
    escape,
    format_code,
    format_front_matter,
    format_list,
    format_literal,
    format_number,
    format_sections,
    format_table,
    short_name,
    write_readme,
)
from polyseme.report.cards.release import read_release, release_sections

MAX_LISTED = 30  # labels, or sources of a corpus
TOKENS_PER_PARAMETER = 20  # compute-optimal training (Hoffmann et al. 2022, table 3)


@dataclass(frozen=True)
class ModelFacts:
    """What a model is: a sentence, a table of facts, code that uses it, and known limits."""

    family: str
    summary: str
    table: Mapping[str, object]
    usage: str
    other_usage: str = ""  # code for `library`
    pipeline_tag: str = ""
    tags: tuple[str, ...] = ()
    limits: tuple[str, ...] = ()
    num_parameters: int = 0
    library: str = "polyseme"  # that the Hub names


def write_model_card(folder: Path, facts: ModelFacts, metadata: Mapping[str, Any], existing: Path) -> None:
    """Write the card of a model folder; `existing` is the folder that it replaces, whose edited card is kept."""
    write_readme(folder, format_model_card(facts, metadata, short_name(existing.absolute())), existing)


def format_model_card(facts: ModelFacts, metadata: Mapping[str, Any], folder_name: str) -> str:
    """Return the card as text, titled by its task and data, its recipe, or else the name of its folder."""
    results = _mapping(metadata.get("results"))
    title = str(metadata.get("name") or "") or _format_title(metadata, results) or folder_name
    release = release_sections(metadata)
    sections = [
        ("Intended use", release["Intended use"]),
        ("Model", format_table(["", ""], [*facts.table.items(), *_list_settings(metadata)])),
        ("Usage", _format_usage_section(facts)),
        ("Training data", _format_data(metadata, results)),
        ("Results", _format_results(metadata, results)),
        ("Benchmarks", release["Benchmarks"]),
        ("Contamination", release["Contamination"]),
        ("Command", release["Command"]),
        ("Cost", _format_cost(results)),
        ("Limits", format_list(dict.fromkeys([*_list_limits(facts, metadata, results), *facts.limits]))),
        ("License", release["License"]),
    ]
    front_matter = _build_front_matter(title, facts, metadata, results)
    return (
        format_front_matter(front_matter)
        + "\n"
        + format_sections(title, _format_lead(facts, metadata, results), sections)
    )


def _mapping(value: Any) -> dict[str, Any]:
    return dict(value) if isinstance(value, Mapping) else {}


def _corpus(metadata: Mapping[str, Any]) -> dict[str, Any]:
    return _mapping(metadata.get("corpus_facts"))


def _is_task(metadata: Mapping[str, Any]) -> bool:
    return "task" in metadata or "tasks" in metadata


def _task_summaries(metadata: Mapping[str, Any], results: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
    """Return the results of each task by name; of a single task without one."""
    if isinstance(tasks := metadata.get("tasks"), Mapping):
        return {name: _mapping(_mapping(each).get("results")) for name, each in tasks.items()}
    return {"": dict(results)} if "mean" in results else {}


def _format_title(metadata: Mapping[str, Any], results: Mapping[str, Any]) -> str:
    recipe = _mapping(metadata.get("recipe"))
    if _is_task(metadata):
        data = str(results.get("data") or metadata.get("data") or results.get("task") or "")
        base = " + ".join(_base_models(metadata, results))
        seed = f"seed {metadata['seed']}, step {metadata['step']}" if "step" in metadata else ""
        seed = seed or (f"seed {metadata['seed']}" if "seed" in metadata else "")
        return f"{data.replace('_', ' ')} ({base})" if data and base else data or base or seed
    corpus = _corpus(metadata).get("name")
    return f"{recipe['name']} on {corpus}" if recipe.get("name") and corpus else str(recipe.get("name") or "")


def _format_lead(facts: ModelFacts, metadata: Mapping[str, Any], results: Mapping[str, Any]) -> str:
    num_seeds, base = len(results.get("seeds", ())), " + ".join(_base_models(metadata, results))
    notes = [facts.summary]
    if _is_task(metadata):
        names = ", ".join(_mapping(metadata.get("tasks"))) or str(results.get("task", "a task")).replace("_", " ")
        notes.append(f"Trained for {escape(names)}{f' from {escape(base)}' if base else ''} with Polyseme.")
    elif "recipe" in metadata:
        notes.append("Pre-trained with Polyseme.")
    if num_seeds > 1:
        notes.append(f"It is seed {results.get('best_seed')}, the best of {num_seeds} seeds on the dev examples.")
    return " ".join(notes)


def _list_settings(metadata: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """Yield the main settings of fine-tuning."""
    settings = _mapping(metadata.get("settings"))
    length = f"{settings['steps']:,} steps" if settings.get("steps") else f"{settings.get('epochs', 0):g} epochs"
    if settings:
        lr = _mapping(settings.get("optimizer")).get("lr", 0)
        yield "training", f"{length}, batches of {settings.get('batch_size')}, learning rate {lr:g}"


def _build_front_matter(
    title: str, facts: ModelFacts, metadata: Mapping[str, Any], results: Mapping[str, Any]
) -> dict[str, Any]:
    corpus = _corpus(metadata)
    languages = corpus.get("languages") or metadata.get("languages") or []
    datasets = [_to_id(corpus["name"])] if corpus.get("name") else []
    datasets += [_to_id(each["data"]) for each in _task_summaries(metadata, results).values() if each.get("data")]
    base_models = list(map(_to_id, _base_models(metadata, results)))
    return {
        "library_name": facts.library,
        "license": read_release(metadata).get("license", {}).get("id", ""),
        "pipeline_tag": facts.pipeline_tag,
        "language": [lang for lang in languages if re.fullmatch(r"[a-z]{2,3}", str(lang))],
        "tags": ["polyseme", facts.family, *facts.tags],
        "datasets": list(dict.fromkeys(datasets)),
        "base_model": base_models if len(base_models) > 1 else "".join(base_models),
        "model-index": _build_model_index(title, facts, metadata, results),
    }


def _base_models(metadata: Mapping[str, Any], results: Mapping[str, Any]) -> list[str]:
    """Return the names of the models that this one was trained from: one, or those that its features come from."""
    if _is_task(metadata):
        paths = [] if results.get("from_scratch") else str(results.get("model") or "").split(" + ")
    else:
        objective = _mapping(_mapping(metadata.get("recipe")).get("objective"))
        paths = [metadata.get("initialized_from") or objective.get("teacher") or ""]
    return [short_name(path) for path in paths if path and path != "words alone"]


def _to_id(name: object) -> str:
    """Return a name with the characters that the Hub allows in one."""
    return re.sub(r"[^\w./-]+", "-", str(name), flags=re.ASCII).strip("-./") or "data"


def _build_model_index(
    title: str, facts: ModelFacts, metadata: Mapping[str, Any], results: Mapping[str, Any]
) -> list[dict[str, Any]]:
    """Return the scores in the Hub's format: the mean over the seeds, or the metrics on held-out text."""
    entries = []
    for name, summary in _task_summaries(metadata, results).items():
        task = str(summary.get("task") or name or "task")
        data = str(summary.get("data") or name or task)
        entries.append((facts.pipeline_tag or task, data, "dev", _mapping(summary.get("mean"))))
    if valid := _mapping(results.get("valid")):
        data = _corpus(metadata).get("name") or "held-out text"
        scores = {name: value for name, value in valid.items() if not _is_loss(name)}
        entries.append((facts.pipeline_tag or "language-modeling", data, "held-out", scores))
    rows = []
    for task, data, split, scores in entries:
        metrics = [{"type": n, "name": n.replace("_", " "), "value": v} for n, v in scores.items() if _is_finite(v)]
        dataset = {"name": data, "type": _to_id(data), "split": split}
        if metrics:
            rows.append({"task": {"type": task}, "dataset": dataset, "metrics": metrics})
    return [{"name": title, "results": rows}] if rows else []


def _is_finite(value: object) -> bool:
    return isinstance(value, int | float) and math.isfinite(value)


def _is_loss(name: str) -> bool:
    return not re.search("accuracy|perplexity|bits|share|rate", name)


def format_usage(folder: str, calls: Mapping[str, str]) -> str:
    """Return code that loads a folder and prints a call of it, or one for each of several tasks."""
    lines = ["import polyseme", ""]
    for task, call in calls.items():
        option = f", task={format_literal(task)}" if task else ""
        lines += [f"model = polyseme.load({format_literal(folder)}{option})", f"print(model.{call})"]
    return "\n".join(lines)


def _format_usage_section(facts: ModelFacts) -> str:
    parts = ["In the folder that contains this one:", format_code(facts.usage)]
    if facts.other_usage:
        parts += [f"With `{facts.library}`:", format_code(facts.other_usage)]
    return "\n\n".join(parts)


def _format_data(metadata: Mapping[str, Any], results: Mapping[str, Any]) -> str:
    parts = []
    if corpus := _corpus(metadata):
        parts.append(format_corpus(corpus))
    for name, summary in _task_summaries(metadata, results).items():
        task_metadata = _mapping(_mapping(metadata.get("tasks")).get(name)) if name else metadata
        parts.append(_format_task_data(name, task_metadata, summary))
    return "\n\n".join(part for part in parts if part)


def format_corpus(corpus: Mapping[str, Any]) -> str:
    """Return the facts of a corpus: sizes, cleaning and sources; no text of it."""
    rows: list[Sequence[object]] = [("corpus", corpus["name"])] if corpus.get("name") else []
    names = ("documents", "sentences", "tokens", "characters", "vocabulary")
    rows += [(name, format_number(corpus[name])) for name in names if corpus.get(name)]
    if corpus.get("languages"):
        rows.append(("languages, as declared", ", ".join(corpus["languages"])))
    rows += [(name, corpus[name]) for name in ("cleaning", "deduplication", "removed", "hash") if corpus.get(name)]
    parts = [format_table(["", ""], rows)]
    if sources := corpus.get("sources"):
        header = ["source", "language", "documents", "tokens", "weight"]
        cells = [
            [s["name"], s.get("language", ""), *(f"{s.get(n, 0):,}".removesuffix(".0") for n in header[2:])]
            for s in sources[:MAX_LISTED]
        ]
        parts.append(format_table(header, cells))
        if len(sources) > MAX_LISTED:
            parts.append(f"And {len(sources) - MAX_LISTED:,} more sources.")
    return "\n\n".join(parts)


def _format_task_data(name: str, metadata: Mapping[str, Any], summary: Mapping[str, Any]) -> str:
    rows: list[Sequence[object]] = [("task", name)] if name else []
    rows += [("type", str(summary.get("task", "")).replace("_", " ")), ("data set", summary.get("data", ""))]
    files = _mapping(metadata.get("files"))
    for split in ("train", "dev"):
        count = summary.get(f"{split}_examples")
        file = f" ({files[split]})" if files.get(split) else ""
        rows.append((f"{split} examples", f"{format_number(count)}{file}" if count is not None else ""))
    labels = _mapping(metadata.get("task")).get("labels") or []
    shown = ", ".join(map(str, labels[:MAX_LISTED]))
    if len(labels) > MAX_LISTED:
        shown += f" and {len(labels) - MAX_LISTED:,} more"
    rows.append(("labels", shown))
    return format_table(["", ""], [row for row in rows if row[1]])


def _format_results(metadata: Mapping[str, Any], results: Mapping[str, Any]) -> str:
    parts = []
    if valid := _mapping(results.get("valid")):
        rows = [(_metric_name(name), format_number(value)) for name, value in valid.items()]
        parts += ["On held-out text of the same corpus:", format_table(["metric", "value"], rows)]
    for name, summary in _task_summaries(metadata, results).items():
        if summary.get("mean"):
            parts += [_format_scores(name, summary)]
    return "\n\n".join(parts)


def _metric_name(name: str) -> str:
    words = name.replace("_", " ")
    return f"{words} loss (nats)" if _is_loss(name) else words


def _format_scores(name: str, summary: Mapping[str, Any]) -> str:
    """Tabulate the metrics of a task on the dev examples, with those of baselines."""
    mean, std, num_seeds = summary["mean"], _mapping(summary.get("std")), len(summary.get("seeds", ())) or 1
    baselines = _mapping(summary.get("baselines"))
    if before := summary.get("before"):
        baselines = {"before training": before, **baselines}
    num_examples = summary.get("dev_examples") or 0
    rows = []
    for metric, value in mean.items():
        cells = [format_number(_mapping(scores).get(metric, "")) for scores in baselines.values()]
        rows.append([metric.replace("_", " "), _format_interval(metric, value, std.get(metric), num_examples), *cells])
    what = f"mean ± standard deviation over {num_seeds} seeds" if num_seeds > 1 else "one seed, no deviation known"
    on = f" for {escape(name)}" if name else ""
    note = f"On {format_number(num_examples)} dev examples{on}: {what}. Selected by {summary.get('primary_metric')}."
    if not baselines and summary.get("majority_score") is not None:
        note += f" The majority baseline has {format_number(summary['majority_score'])}."
    return f"{note}\n\n" + format_table(["metric", "model", *map(escape, baselines)], rows)


def _format_interval(metric: str, value: float, std: float | None, num_examples: int) -> str:
    """Return a score with its deviation; of an accuracy also the interval due to the number of examples (Wilson)."""
    text = format_number(value) + (f" ± {format_number(std)}" if std is not None else "")
    if metric != "accuracy" or not num_examples or not 0 <= value <= 1:
        return text
    z = 1.96
    center = (value + z * z / (2 * num_examples)) / (1 + z * z / num_examples)
    spread = math.sqrt(value * (1 - value) / num_examples + (z / (2 * num_examples)) ** 2)
    margin = z / (1 + z * z / num_examples) * spread
    return f"{text} (95 % interval of {num_examples:,} examples: {center - margin:.3f} to {center + margin:.3f})"


def _format_cost(results: Mapping[str, Any]) -> str:
    rows: list[Sequence[object]] = []
    names = {"steps": "steps", "tokens": "tokens read", "flops": "floating-point operations"}
    for name, label in names.items():
        if results.get(name):
            rows.append((label, f"{results[name]:.3g}" if name == "flops" else format_number(results[name])))
    hours = results.get("device_hours", results["seconds"] / 3600 if results.get("seconds") else None)
    if hours is not None:
        rows.append(("device-hours", f"{hours:.3g}"))
    if "ms_per_text" in results:
        rows.append(("milliseconds per text", f"{results['ms_per_text']:.3g}"))
    environment = ", ".join(f"{name} {value}" for name, value in _mapping(results.get("environment")).items())
    rows += [("environment", environment)] if environment else []
    return format_table(["", ""], rows) if rows else ""


def _list_limits(facts: ModelFacts, metadata: Mapping[str, Any], results: Mapping[str, Any]) -> Iterator[str]:
    """Yield what a user of the model should know, as far as the records tell."""
    yield from (escape(line, 300) for line in results.get("warnings") or ())
    if _is_task(metadata):
        yield from _list_task_limits(metadata, results)
    elif (tokens := results.get("tokens")) and facts.num_parameters and "recipe" in metadata and results.get("flops"):
        ratio = tokens / facts.num_parameters
        if ratio < TOKENS_PER_PARAMETER:
            usual = f"{TOKENS_PER_PARAMETER} are compute-optimal for large models (Hoffmann et al. 2022)"
            yield f"Short training: {ratio:.2g} tokens per parameter were read; {usual}."
        if (corpus_tokens := _corpus(metadata).get("tokens")) and tokens > 10 * corpus_tokens:
            yield f"The corpus was read {tokens / corpus_tokens:.0f} times: expect memorized passages."
    if results and not results.get("valid") and not _is_task(metadata) and not metadata.get("benchmarks"):
        yield "No text was held out, so there is no score."
    if languages := _corpus(metadata).get("languages") or metadata.get("languages"):
        yield f"Languages of the training text, as declared: {', '.join(map(escape, languages))}. Others are untested."
    yield from read_release(metadata).get("limits", ())
    yield "The model repeats biases and errors of its training data; no review of these was made."


def _list_task_limits(metadata: Mapping[str, Any], results: Mapping[str, Any]) -> Iterator[str]:
    for name, summary in _task_summaries(metadata, results).items():
        prefix = f"{escape(name)}: " if name else ""
        for split, count in _mapping(summary.get("num_truncated")).items():
            total = summary.get(f"{split}_examples") or 0
            if count:
                yield f"{prefix}{count:,} of {total:,} {split} examples ({count / max(total, 1):.1%}) were truncated."
        if failed := summary.get("failed_seeds"):
            yield f"{prefix}{len(failed)} of {len(summary['seeds'])} seeds were no better than the majority baseline."
    if choices := results.get("chosen_on_dev"):
        yield f"Scores are optimistic: chosen on the same dev examples: {', '.join(map(escape, choices))}."
    if len(results.get("seeds", ())) > 1:
        yield "The saved seed was chosen on the dev examples, so its own score is optimistic; the mean is not."
    elif results:
        yield "One seed: the deviation between runs is unknown."
    if results:
        yield "Scores are on dev examples of the same source; other texts may give other scores."

"""The page of a pre-training run: curves, samples over time, nearest tokens, changes to the recipe, data, cost."""

import json
import shlex
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from polyseme.config import Config
from polyseme.errors import DataError
from polyseme.io.json import read_json, read_json_object
from polyseme.report.charts import Panel, loss_panels, panel_chart, smoothed_series
from polyseme.report.html import (
    Cell,
    Html,
    code,
    collapsed,
    escape,
    figure,
    html_page,
    html_table,
    key_figures,
    next_steps,
    note,
    paragraph,
    warning,
)
from polyseme.report.svg import Axis, color, format_number

_MAX_SAMPLE_STEPS = 6  # validations whose samples are shown at once
_MAX_SETTINGS = 12  # of a recipe that is shown in full
_TIME_UNITS = ((86400, "d"), (3600, "h"), (60, "min"))


def pretraining_page(run: Path, results: Mapping[str, Any], named_recipe: Config | None = None) -> str:
    """Render the page of a pre-training run; changes are those from `named_recipe`, if it is known."""
    record = read_json(run / "recipe.json")
    recipe, rows = record["recipe"], read_rows(run / "log.jsonl")
    sections = [
        ("Training curves", curves_section(rows)),
        ("What the model writes", samples_section(read_rows(run / "samples.jsonl"))),
        ("Nearest words", neighbors_section(run)),
        ("N-grams", _ngram_section(results)),
        ("Results on held-out text", metrics_table(results["valid"])),
        ("Recipe", recipe_section(recipe, named_recipe)),
        ("Data", _data_section(record)),
        ("Cost", cost_table(results)),
        ("Next steps", next_steps(_suggest(run, recipe, results))),
    ]
    messages = list(results.get("warnings", ()))
    if not results["valid"]:
        messages.append("no text was held out, so that nothing says how good the model is: raise `valid_fraction`.")
    warnings = "".join(map(warning, messages))
    top = warnings + key_figures(_key_figures(results, record))
    objective = recipe.get("objective", {}).get("kind", "")
    lead = f"Family {recipe['family']}{f', objective {objective}' if objective else ''}, corpus {record['corpus']}"
    return html_page(f"Pre-training: {recipe['name']}", escape(lead), sections, top)


def read_rows(path: Path) -> list[dict[str, Any]]:
    """Read the rows of a log; none if it does not exist."""
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()] if path.exists() else []


def format_seconds(seconds: float) -> str:
    """Format a duration in its largest unit: 42 s, 12.5 min, 3.2 h."""
    for unit, name in _TIME_UNITS:
        if seconds >= unit:
            return f"{seconds / unit:.3g} {name}"
    return f"{seconds:.3g} s"


def _key_figures(results: Mapping[str, Any], record: Mapping[str, Any]) -> list[tuple[str, Any, str]]:
    seconds, valid = results["device_hours"] * 3600, results["valid"]
    losses = [(name, value) for name, value in valid.items() if "accuracy" not in name and "perplexity" not in name]
    figures: list[tuple[str, Any, str]] = []
    if "perplexity" in valid:
        detail = ", ".join(f"{name} loss {value:.3f} nats" for name, value in losses[:1])
        figures.append(("Held-out perplexity", format_number(valid["perplexity"], 4), detail))
    elif losses:
        figures.append(("Held-out loss", f"{losses[0][1]:.3f}", f"{losses[0][0]}, nats"))
    num_corpus_tokens = _read_manifest(record).get("counts", {}).get("tokens", 0)
    epochs = f"{results['tokens'] / num_corpus_tokens:.2g} times the corpus" if num_corpus_tokens else ""
    figures.append(("Tokens read", format_number(results["tokens"]), epochs))
    speed = f"{format_number(results['tokens'] / max(seconds, 1e-9))} tokens per second"
    figures.append(("Time", format_seconds(seconds), speed))
    num_steps = "" if results["steps"] == 1 else f"{results['steps']:,} steps"
    label = "N-grams" if "ngrams" in results else "Parameters"
    figures.append((label, format_number(results["parameters"]), num_steps))
    return figures


def curves_section(rows: Sequence[Mapping[str, Any]], references: Mapping[str, float] | None = None) -> str:
    """Chart loss, learning rate, gradient norm and speed over the steps of a log."""
    panels = loss_panels(rows, references)
    axes = {
        "lr": Axis("learning rate", from_zero=True),
        "grad_norm": Axis("gradient norm", log=True),
        "tokens_per_second": Axis("tokens per second", from_zero=True),
    }
    for index, (key, axis) in enumerate(axes.items(), 2):
        points = [(row["step"], row[key]) for row in rows if row.get(key) is not None]
        panels.append(Panel(smoothed_series("", points, color(index)), axis, 100))
    caption = (
        "The held-out loss should fall with the training loss: a widening gap means that the model memorizes the text, "
        "a curve that still falls at the right end that more steps would help. A jump of the loss together with "
        "the gradient norm means that the learning rate is too high; a dip in the speed is time lost to something else."
    )
    return figure(panel_chart(panels, Axis("step", integers=True)), caption)


def samples_section(rows: Sequence[Mapping[str, Any]]) -> str:
    """Show what the model wrote at some validations, from the first to the last, for each held-out prompt."""
    if not rows:
        return ""
    last = len(rows) - 1
    chosen = sorted({round(i * last / (_MAX_SAMPLE_STEPS - 1)) for i in range(_MAX_SAMPLE_STEPS)})
    is_masked = "guesses" in rows[0]["samples"][0]
    intro = (
        "The same held-out sentences at several points of the training. Bold: the right word, whose place and "
        "probability should rise."
        if is_masked
        else "Continuations of the same held-out beginnings at several points of the training, drawn from the 20 most "
        "probable tokens. Look for real words first, then grammar, then sense."
    )
    parts = [paragraph(intro)]
    for number, sample in enumerate(rows[-1]["samples"]):
        step_rows = [(rows[i]["step"], *_sample_cells(rows[i]["samples"][number])) for i in chosen]
        header = ["step", "continuation"]
        if is_masked:
            header = ["step", "best guesses", f"probability of “{sample['answer'].strip()}”"]
        parts.append(f'<p dir="auto"><b>{escape(sample["prompt"])}</b></p>' + html_table(header, step_rows))
    return "".join(parts[:3]) + collapsed(f"{len(parts) - 3} more sentences", "".join(parts[3:]))


def _sample_cells(sample: Mapping[str, Any]) -> list[Any]:
    if "continuation" in sample:
        return [Html(f'<span dir="auto">{escape(sample["continuation"])}</span>')]
    share = sample["answer_probability"]
    return [Html(format_guesses(sample["guesses"], sample["answer"])), Cell(f"{100 * share:.2g}%", share)]


def format_guesses(guesses: Sequence[tuple[str, float]], answer: str = "") -> str:
    """Render tokens and their probabilities as HTML; the answer is bold."""
    words = []
    for word, probability in guesses:
        text = escape(word.strip())
        shown = f"<b>{text}</b>" if text and word.strip() == answer.strip() else text
        words.append(f'<span style="white-space:nowrap">{shown} <small>{probability:.0%}</small></span>')
    return " &nbsp; ".join(words)


def neighbors_section(run: Path) -> str:
    """Tabulate the nearest neighbors of frequent words in the trained embedding."""
    path = run / "neighbors.json"
    if not path.exists():
        return ""
    rows = [
        (
            row["token"],
            row["count"],
            Html(", ".join(f"{escape(n)} <small>{c:.2f}</small>" for n, c in row["neighbors"])),
        )
        for row in read_json(path)
    ]
    caption = (
        "Nearest words by the cosine of their vectors in the embedding layer. Neighbors of one part of speech come "
        "first in training, neighbors of one topic or meaning later; no pattern means too little training."
    )
    return html_table(["word", "count", "nearest words and cosine"], rows) + note(caption)


def recipe_section(recipe: Mapping[str, Any], named_recipe: Config | None) -> str:
    """Tabulate what differs from the named recipe; the full recipe is collapsed."""
    full = collapsed("The exact recipe, as saved in recipe.json", code(recipe))
    if reasons := recipe.get("derivation"):
        full = paragraph(f"How the recipe {recipe['name']} was derived: {' · '.join(reasons)}.") + full
    if named_recipe is None:
        leaves = [(path, _show(value)) for path, value in flatten(recipe).items()]
        return html_table(["setting", ""], leaves) if len(leaves) <= _MAX_SETTINGS else full
    values, defaults = flatten(recipe), flatten(named_recipe.to_json())
    paths = [path for path in {**defaults, **values} if values.get(path) != defaults.get(path)]
    if not paths:
        return paragraph(f"All settings are those of the recipe {recipe['name']}.") + full
    changes = [(path, _show(defaults.get(path)), _show(values.get(path))) for path in paths]
    text = f"Settings that differ from the recipe {recipe['name']}; all others are its defaults."
    return paragraph(text) + html_table(["setting", recipe["name"], "this run"], changes) + full


def flatten(value: Any, prefix: str = "") -> dict[str, Any]:
    """Return the leaves of nested dictionaries by dotted path."""
    if not isinstance(value, Mapping):
        return {prefix: value}
    leaves: dict[str, Any] = {}
    for key, part in value.items():
        leaves |= flatten(part, f"{prefix}.{key}" if prefix else str(key))
    return leaves


def _show(value: Any) -> str:
    return "–" if value is None else value if isinstance(value, str) else json.dumps(value)


def _read_manifest(record: Mapping[str, Any]) -> dict[str, Any]:
    """Read the manifest of the run's corpus; empty if the corpus is not where it was."""
    try:
        manifest = read_json(Path(record["corpus"]) / "manifest.json")
    except DataError:
        return {}
    return manifest if isinstance(manifest, dict) else {}


def _data_section(record: Mapping[str, Any]) -> str:
    manifest = _read_manifest(record)
    rows: list[tuple[str, Any]] = [("corpus", record["corpus"])]
    rows += [(name, count) for name, count in manifest.get("counts", {}).items()]
    rows.append(("hash", str(record["corpus_hash"])[:16]))
    if initial := record.get("initialized_from"):
        rows.append(("started from the model", initial))
    fraction = record["recipe"].get("valid_fraction")
    if fraction:
        rows.append(("held out for validation", f"{fraction:.3g} of the documents, spread evenly"))
    command = f"polyseme describe {shlex.quote(record['corpus'])}"
    return html_table(["", ""], rows) + note("Length distributions, vocabulary and random documents:") + code(command)


def _ngram_section(results: Mapping[str, Any]) -> str:
    sizes = results.get("ngrams")
    if not sizes:
        return ""
    largest = max(*sizes, 1)
    rows = []
    for order, size in enumerate(sizes, 1):
        discounts = results.get("discounts", [])
        cells = discounts[order - 1] if order <= len(discounts) else ()
        shown = ", ".join(f"{d:.3f}" for d in cells) if isinstance(cells, Sequence) else str(cells)
        rows.append((order, Cell(size, size / largest), shown))
    text = (
        "Kneser-Ney discounts of n-grams that occur once, twice, and three times or more. Most long n-grams occur "
        "once, so that their discount is the largest share of their count."
    )
    return html_table(["order", "n-grams", "discounts"], rows) + note(text)


def metrics_table(values: Mapping[str, float]) -> str:
    """Tabulate metrics on held-out text."""
    return (
        html_table(["held-out text", ""], [(name, f"{value:.4f}") for name, value in values.items()]) if values else ""
    )


def cost_table(results: Mapping[str, Any]) -> str:
    """Tabulate the cost of a pre-training run; its environment is collapsed."""
    seconds = results["device_hours"] * 3600
    rows = [
        ("parameters", results["parameters"]),
        ("steps", results["steps"]),
        ("tokens read", results["tokens"]),
        *([("floating-point operations", f"{results['flops']:.3g}")] if results["flops"] else []),
        ("device-hours", f"{results['device_hours']:.4f}"),
        ("tokens per second", round(results["tokens"] / max(seconds, 1e-9))),
    ]
    environment = html_table(["", ""], [(name, str(value)) for name, value in results["environment"].items()])
    return html_table(["", ""], rows) + collapsed("Environment: what the same bits need", environment)


def _suggest(run: Path, recipe: Mapping[str, Any], results: Mapping[str, Any]) -> list[tuple[str, str]]:
    """Suggest what to do with the model."""
    model, terms = shlex.quote(f"{run}/model"), set(results["valid"])
    is_ngram, objective = "ngrams" in results, recipe.get("objective", {}).get("kind", "")
    steps = [("Score new text by its probability", f"polyseme score {model} --data TEXT.txt")]
    if objective == "Translation":
        steps = [("Translate a file, one text per line", f"polyseme translate {model} --data SOURCE.txt --out OUT.txt")]
    elif {"masked", "next"} & terms and not is_ngram:
        if "next" in terms:
            steps.insert(0, ("Continue a text", f'polyseme generate {model} --prompt "Once upon a time" --do-sample'))
        if "masked" in terms:
            steps.insert(0, ("Fill a mask", f'polyseme fill {model} "The {_mask_token(run)} is here."'))
    elif "perplexity" not in terms:
        steps = [("See the nearest words of any word", f"polyseme neighbors {model} WORD")]
    if "perplexity" in terms and not is_ngram and objective != "Translation":
        command = f"polyseme finetune {model} --task classification --train train.csv --dev dev.csv --out my/task"
        steps.append(("Fine-tune it on labeled examples", command))
    return steps


def _mask_token(run: Path) -> str:
    """Return the mask token of the tokenizer of a run's model."""
    path = run / "model" / "special_tokens_map.json"
    return str(read_json_object(path).get("mask_token", "[MASK]")) if path.is_file() else "[MASK]"

"""What distillation contributes: a teacher and students that differ only in how they were trained, fine-tuned on GLUE.

    python benchmarks/distillation.py TEACHER --corpus FOLDER --data GLUE --work FOLDER --out results.json
        [--budget 5000steps] [--student SIZE] [--set micro_batch_tokens=8192] [--tasks cola sst-2 mrpc sts-b]
        [--seeds 3] [--rates 5e-5 1e-4] [--jobs 4] [--student-jobs 1] [--max-train ROWS]
    python benchmarks/distillation.py --page results.json --out docs/results/distillation.md

No installation and no network are needed: set PYTHONPATH=src:benchmarks. The students have the same size, corpus and
budget: one starts with layers of the teacher and learns from its predictions, one starts alike and learns the masked
tokens alone, and one does so from random weights. A budget in steps gives them the same text, one in minutes the same
time. Teacher and students are then fine-tuned as in `glue.py`, by default at the learning rate for their hidden size.
Students are trained in `--work`. Each student and each run is saved when it is done; the same command continues from
there. The last form writes the page.
"""

from __future__ import annotations

import argparse
import statistics
import sys
from collections.abc import Sequence
from concurrent.futures import as_completed
from pathlib import Path
from typing import Any

import torch
from glue import EPOCHS, examples, jobs_of, run, summary
from jobs import RunFile, worker_pool
from report import format_mean_std, header, table

from polyseme.cli.output import parse_settings
from polyseme.compress.result import count_megabytes, median_ms, read_text
from polyseme.corpus.store import Corpus
from polyseme.errors import PolysemeError
from polyseme.inference.load import load_neural
from polyseme.io.json import read_json
from polyseme.train.loop import count_parameters
from polyseme.weights.folder import read_model_config

BASE_ALONE = {"objective.soft_weight": 0.0, "objective.cosine_weight": 0.0, "objective.hard_weight": 1.0}
FROM_SCRATCH = {"objective.init_from_teacher": False}
STUDENTS: dict[str, dict[str, Any]] = {
    "distilled": {},
    "initialized": BASE_ALONE,
    "scratch": FROM_SCRATCH | BASE_ALONE,
    "distilled-scratch": FROM_SCRATCH,
}
NAMES = {
    "teacher": "teacher",
    "distilled": "student: teacher's layers, distillation",
    "initialized": "student: teacher's layers, no distillation",
    "scratch": "student: random weights, no distillation",
    "distilled-scratch": "student: random weights, distillation",
}
TEXTS = (
    "The committee will meet again next week to discuss the results.",
    "She put the letter back into the drawer and closed it without a word.",
    "Most of the houses along the river were built before the bridge was finished in the last century.",
    "It is not clear yet whether the new rules apply to companies that have their seat in another country.",
)
INTRODUCTION = """# Distillation

What does a student learn from its teacher? {sizes}
The students have the same size, corpus and budget ({budget}),
and differ only in their initial weights and in their loss. Each model was fine-tuned on tasks of GLUE; the scores are
the primary metric × 100 on the dev set, mean ± standard deviation over {seeds} seeds of fine-tuning{rates}.
Each student was trained once. The [guide](../guide/distillation.md) describes the loss.
`benchmarks/distillation.py` writes this page from [distillation.json](distillation.json).
"""


def train_student(name: str, teacher: str, corpus: str, work: str, settings: dict[str, Any]) -> dict[str, Any]:
    """Train one student, or continue its training, and return its results."""
    from polyseme.compress import distill

    out = Path(work) / name
    compressed = distill(teacher, corpus, out=out, resume=(out / "recipe.json").is_file(), **settings, **STUDENTS[name])
    results = compressed.record["results"]
    measures = {row.measure: [row.before, row.after] for row in compressed.rows}
    facts = {key: results[key] for key in ("steps", "tokens", "seconds", "valid") if key in results}
    return {"model": str(out / "model"), "teacher_and_student": measures, **facts}


def train_students(options: argparse.Namespace, runs: RunFile) -> None:
    """Train the students that are not finished."""
    students = runs.extra["students"]
    pending = [name for name in options.students if name not in students]
    settings = parse_settings(options.overrides, budget=options.budget) | {"student": options.student}
    arguments = str(options.teacher), str(options.corpus), str(options.work), settings
    with worker_pool(options.student_jobs) as pool:
        futures = {pool.submit(train_student, name, *arguments): name for name in pending}
        for future in as_completed(futures):
            name = futures[future]
            students[name] = future.result()
            runs.save()
            runs.print(f"{NAMES[name]}: {students[name].get('steps')} steps, {students[name].get('valid')}")


def measure(models: dict[str, str]) -> dict[str, Any]:
    """Return the size of each model, and milliseconds per text on one core and on the GPU."""
    torch.set_num_threads(1)
    facts: dict[str, Any] = {}
    for device in ["cpu", "cuda"] if torch.cuda.is_available() else ["cpu"]:
        networks = {name: load_neural(path, device) for name, path in models.items()}
        readers = [lambda text, network=network: read_text(network, text) for network in networks.values()]
        for (name, network), ms in zip(networks.items(), median_ms(readers, TEXTS)):
            size = {"parameters": count_parameters(network.model), "megabytes": count_megabytes(network.path)}
            facts.setdefault(name, size)[f"{device}_ms"] = ms
    return facts


def page(results: dict[str, Any]) -> str:
    """Return the page of the results."""
    settings, measures, students = results["settings"], results["measures"], results["students"]
    tasks = list(dict.fromkeys(row["task"] for row in results["summary"]))
    metrics = {row["task"]: row["metric"] for row in results["summary"]}
    best = {(row["model"], row["task"]): row["rates"][0] for row in results["summary"]}
    scores, costs = [], []
    for name, path in results["models"].items():
        cells = [best.get((path, task)) for task in tasks]
        mean = f"{statistics.fmean(c['mean'] for c in cells if c):.1f}" if all(cells) else ""
        scores.append([NAMES[name], *(format_mean_std(cell) if cell else "" for cell in cells), mean])
        cost, student = measures[name], students.get(name, {})
        times = [f"{cost[key]:.2f}" if key in cost else "" for key in ("cpu_ms", "cuda_ms")]
        steps = f"{student['steps']:,}" if "steps" in student else ""
        size = [f"{cost['parameters']:,}", f"{cost['megabytes']:.1f}"]
        costs.append([NAMES[name], *size, *times, steps, held_out_loss(students, name)])
    columns = ["model", *(f"{task} ({metrics[task]})" for task in tasks), "mean"]
    teacher = measures["teacher"]["parameters"]
    sizes = f"The teacher, `{Path(results['models']['teacher']).name}`, has {teacher:,} parameters."
    rates = sorted({rate["rate"] for row in results["summary"] for rate in row["rates"]})
    choice = f", at the better of the learning rates {', '.join(f'{r:g}' for r in rates)} on these examples"
    introduction = INTRODUCTION.format(
        sizes=sizes,
        budget=settings["budget"] or "half of the teacher's steps",
        seeds=settings["seeds"],
        rates=choice if len(rates) > 1 else "",
    )
    limit = f" Only {settings['max_train']} rows of each split were used." if settings["max_train"] else ""
    measured = ["model", "parameters", "MB", "ms, CPU", "ms, GPU", "steps", "held-out loss"]
    about = results["about"].replace("\n", ", ")
    sections = [f"{about}.{limit}", table(columns, scores), contributions(best, results["models"], tasks)]
    sections.append(table(measured, costs))
    notes = "Milliseconds are the median of single texts of 9 to 20 words, on the CPU with one thread. "
    notes += "The held-out loss is the mean over the masked tokens of held-out text. Sizes are those of the "
    notes += "folders; the weights of `mini` are stored in int8, those of students in float32."
    return "\n\n".join([introduction.rstrip(), *sections, notes]) + "\n"


def contributions(best: dict[Any, dict[str, float]], models: dict[str, str], tasks: Sequence[str]) -> str:
    """Say what the teacher's layers and the distillation loss add, in points on average and in each task."""
    sentences = []
    pairs = {
        "The teacher's layers add": ("initialized", "scratch"),
        "The distillation loss adds": ("distilled", "initialized"),
        "The teacher is ahead of the distilled student by": ("teacher", "distilled"),
    }
    for what, (name, reference) in pairs.items():
        try:
            gains = [best[models[name], task]["mean"] - best[models[reference], task]["mean"] for task in tasks]
        except KeyError:
            continue  # a row is missing
        parts = ", ".join(f"{task} {gain:+.1f}" for task, gain in zip(tasks, gains))
        sentences.append(f"{what} {statistics.fmean(gains):.1f} points on average ({parts}).")
    return "\n".join(f"- {sentence}" for sentence in sentences)


def held_out_loss(students: dict[str, Any], name: str) -> str:
    """Return the loss of a model on the held-out text of the corpus; the teacher was measured with a student."""
    pairs = next((v for s in students.values() for k, v in s["teacher_and_student"].items() if "valid" in k), None)
    if name == "teacher":
        return f"{pairs[0]:.3f}" if pairs else ""
    return f"{next(iter(students[name]['valid'].values())):.3f}" if students.get(name, {}).get("valid") else ""


def parse_arguments() -> argparse.Namespace:
    """Parse the command line, and check the inputs."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("teacher", nargs="?", type=Path)
    parser.add_argument("--corpus", type=Path)
    parser.add_argument("--data", help="folder of GLUE's data sets")
    parser.add_argument("--work", type=Path, help="folder for the runs of the students")
    parser.add_argument("--out", required=True, type=Path)
    parser.add_argument("--page", type=Path, help="results to write a page of")
    parser.add_argument("--students", nargs="+", default=list(STUDENTS)[:3], choices=list(STUDENTS))
    parser.add_argument("--student", default="", help="size of the students; default: half of the teacher's layers")
    parser.add_argument("--budget", default="", help="of each student: 5000steps, 20m, …; default: half the teacher's")
    parser.add_argument("--set", dest="overrides", action="append", default=[], metavar="PATH=VALUE")
    parser.add_argument("--tasks", nargs="+", default=["cola", "sst-2", "mrpc", "sts-b"], choices=list(EPOCHS))
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--rates", nargs="+", type=float, default=[0.0], help="0: the default for the hidden size")
    parser.add_argument("--epochs", type=float, default=0.0, help="default: 5, for SST-2 3")
    parser.add_argument("--jobs", type=int, default=1, help="fine-tuning runs side by side")
    parser.add_argument("--student-jobs", type=int, default=1, help="students trained side by side")
    parser.add_argument("--max-train", type=int, default=0, help="rows of each split of a task, for a quick test")
    options = parser.parse_args()
    if options.page is None:
        if missing := [name for name in ("teacher", "corpus", "data", "work") if getattr(options, name) is None]:
            parser.error(f"missing: {', '.join(missing)}")
        try:
            read_model_config(options.teacher)
            Corpus.open(options.corpus)
            for task in options.tasks:
                examples(task, options.data, options.max_train)
        except PolysemeError as error:
            sys.exit(f"error: {error}")
    return options


def glue_jobs(options: argparse.Namespace, models: Sequence[str]) -> list[Any]:
    """Return the fine-tuning runs of all models, the longest first."""
    return jobs_of(
        argparse.Namespace(**vars(options) | {"models": models, "scratch": False, "limit": options.max_train})
    )


def main() -> None:
    options = parse_arguments()
    if options.page:
        options.out.write_text(page(read_json(options.page)))
        return
    models = {"teacher": str(options.teacher)}
    models |= {name: str(options.work / name / "model") for name in options.students}
    runs = RunFile(options.out, header("Distillation on GLUE").strip(), glue_jobs(options, [*models.values()]), summary)
    saved = read_json(options.out) if options.out.exists() else {}
    settings = {
        key: getattr(options, key) for key in ("budget", "student", "seeds", "epochs", "max_train", "overrides")
    }
    for key in ("budget", "student", "max_train", "overrides"):
        if saved and saved["settings"][key] != settings[key]:
            sys.exit(f"error: {options.out} was started with {key} {saved['settings'][key]!r}: choose another file")
    runs.extra = {"settings": settings, "models": models, "students": saved.get("students", {})}
    print(f"{runs.title}\n{len(runs.jobs)} fine-tuning runs, {len(runs.pending)} of them pending", flush=True)
    train_students(options, runs)
    runs.extra["measures"] = measure(models)
    with worker_pool(options.jobs) as pool:
        runs.run_pending(lambda job: pool.submit(run, job, options.data))
    print("\n" + page(read_json(options.out)))
    runs.exit_on_failure()


if __name__ == "__main__":
    main()

"""ULMFiT on TREC questions, with and without each stage; and the speed of AWD-LSTM compared with a plain LSTM.

    python benchmarks/ulmfit.py trec --trec train_5500.label --work FOLDER (--general MODEL … | --corpus FOLDER)
        [--preset paper] [--budget 20m] [--direction both] [--seeds 3] [--sizes 100,500] [--rows NAME …] [--prepare]
    python benchmarks/ulmfit.py speed [--size paper] [--lanes 80] [--length 70] [--vocab 33278] [--steps 30]

No installation is needed: set PYTHONPATH=src:benchmarks. The official 500 test questions can be passed with `--test`;
otherwise 500 questions, the same for all rows and seeds, are held out of the training file. Labels are the six coarse
ones. Scores are errors in percent, mean and deviation over seeds. WORK/trec.json is written after every run, and the
same command continues from there.

For a machine without the sentence splitter, run the same command with `--prepare` on another machine, which prepares
the corpora and trains nothing, and copy WORK. `--sizes` adds the low-shot curve (WORK/report.html).
"""

from __future__ import annotations

import argparse
import random
import shutil
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from report import header, table
from torch import nn

from polyseme.errors import PolysemeError
from polyseme.finetuning.results import mean_std
from polyseme.io.atomic import write_text
from polyseme.io.json import read_json, write_json
from polyseme.nn.packing import Inputs, PackedLayout
from polyseme.objectives.batch import Batch, SegmentExtra, SegmentState, Targets
from polyseme.pipelines import ulmfit
from polyseme.recipes.ulmfit import ADAM
from polyseme.tasks.classification import ClassificationTask
from polyseme.tasks.readers.rows import read_lines
from polyseme.tasks.sequence import TextExample
from polyseme.text.tokenizer import Tokenizer
from polyseme.train.loop import TrainState, setup_device, train
from polyseme.train.optimizer import ScheduleConfig

HELD_OUT = 500
FULL = "three stages"
ROWS = {  # stages of each row, and changes to the settings of the classifier
    "from scratch": ((), {}),
    "general LM, classifier": (("general",), {}),
    "target LM, classifier": (("target",), {}),
    FULL: (("general", "target"), {}),
    "three stages, all layers at once": (("general", "target"), {"unfreeze_every": 0.0}),
    "three stages, one rate": (("general", "target"), {"one_rate": True}),
}


def questions(path: Path) -> list[TextExample]:
    """Read lines of `COARSE:fine question`, in Latin-1."""
    examples = []
    for number, line in enumerate(read_lines(path, "latin-1"), 1):
        label, _, text = line.partition(" ")
        if ":" not in label or not text.strip():
            raise PolysemeError(f"{path}:{number}: expected COARSE:fine and a question, not {line[:40]!r}")
        examples.append(TextExample(f"{path.name}:{number}", text.strip(), label=label.partition(":")[0]))
    return examples


def split(options: argparse.Namespace) -> tuple[list[TextExample], list[TextExample]]:
    """Return the training and test questions."""
    train = questions(options.trec)
    if options.test:
        return train, questions(options.test)
    test_ids = set(random.Random(0).sample(range(len(train)), min(HELD_OUT, len(train) // 5)))
    return [e for i, e in enumerate(train) if i not in test_ids], [train[i] for i in sorted(test_ids)]


def trec(options: argparse.Namespace) -> None:
    """Run all rows on TREC."""
    learn, measure = split(options)
    if options.limit:
        learn, measure = learn[: options.limit], measure[: options.limit]
    texts, work = [e.text for e in learn], options.work
    plan = ulmfit.UlmfitConfig(
        options.preset, options.direction, budget=options.budget, target_epochs=options.target_epochs
    )
    plan = plan.replace(classifier=plan.classifier.replace(epochs=options.epochs))
    sizes = [int(size) for size in options.sizes.split(",") if size]
    if options.prepare:
        folder = options.general[0] if options.general else options.corpus / "tokenizer"
        tokenizer = Tokenizer.load(folder)
        ulmfit.prepare_target_corpus(work / "target-corpus", tokenizer, texts)
        ulmfit.prepare_target_corpus(work / "alone" / "target-corpus", tokenizer, texts)
        for size in sizes:
            for seed in range(options.seeds):
                sample = [e.text for e in ulmfit.stratified_sample(learn, size, seed)]
                ulmfit.prepare_target_corpus(work / f"few-{size}-{seed}" / "target-corpus", tokenizer, sample)
        print(f"{work}: prepared for {len(learn)} questions")
        return
    pretrained = ulmfit.pretrain_general_lm(plan, work, [], options.corpus, options.general)
    path = work / "trec.json"
    done: list[dict[str, Any]] = read_json(path) if path.exists() else []
    for name in options.rows:
        stages, changes = ROWS[name]
        folders = {direction: model.folder for direction, model in pretrained.items()}
        if "target" in stages:
            place = work if "general" in stages else work / "alone"
            folders = ulmfit.finetune_lm(plan, place, pretrained, texts, from_general="general" in stages)
        settings = plan.classifier_settings(len(learn))
        if changes.get("one_rate"):
            settings = settings.replace(optimizer=settings.optimizer.replace(layer_decay=1.0))
        settings = settings.replace(**{k: v for k, v in changes.items() if k != "one_rate"})
        for seed in range(options.seeds):
            if any((d["row"], d["seed"]) == (name, seed) for d in done):
                continue
            start, scratch = time.perf_counter(), not stages
            run_folder = work / f"{name}-{seed}"
            metrics = ulmfit.finetune_classifier(folders, learn, measure, settings, run_folder, [seed], scratch)
            seconds = time.perf_counter() - start
            done.append({"row": name, "seed": seed, "seconds": seconds, **{d: m[0] for d, m in metrics.items()}})
            write_json(path, done)
            shutil.rmtree(run_folder)
    show(done, learn, measure, options.seeds)
    if sizes:
        points = ulmfit.low_shot_curve(plan, work, pretrained, learn, measure, sizes, (), options.seeds)
        write_text(work / "report.html", ulmfit.build_page(None, points))
        rows = [[row, *(cell(pair) for pair in line.values())] for row, line in ulmfit.error_curves(points).items()]
        print("\n" + table(["error, %", *map(str, sizes)], rows))


def show(done: Sequence[dict[str, Any]], learn: list[TextExample], measure: list[TextExample], seeds: int) -> None:
    """Print the table of errors."""
    print(header(f"TREC, {len(learn)} training questions, {len(measure)} test questions, {seeds} seed(s)"))
    directions = [d for d in ("forward", "backward", "both") if d in done[0]]
    task = ClassificationTask.from_examples(learn)
    rows = [
        [name, *[f"{100 * (1 - task.baseline_metrics(baseline, learn, measure)['accuracy']):.1f}"] * len(directions)]
        for name, baseline in (("majority", "majority"), ("linear, words", "linear"))
    ]
    for name in dict.fromkeys(d["row"] for d in done):
        runs = [d for d in done if d["row"] == name]
        rows.append([name, *(cell(mean_std([1 - run[d]["accuracy"] for run in runs])) for d in directions)])
    print(table(["error, %", *directions], rows))


def cell(pair: Sequence[float | None]) -> str:
    """Format mean and deviation in percent."""
    mean, deviation = pair
    return f"{100 * (mean or 0):.1f}" + (f" ± {100 * deviation:.1f}" if deviation else "")


# --------------------------------------------------------------------------------------------------------- speed


def speed(options: argparse.Namespace) -> None:
    """Print tokens/s of training: AWD-LSTM with all regularization, and `nn.LSTM` without any."""
    device = setup_device()
    lanes, length = options.lanes, options.length
    spec = ulmfit.PRESETS[options.size]().replace(precision="auto").model_config(options.vocab)
    model = spec.build(seed=0).to(device)
    draw = torch.Generator().manual_seed(0)
    tokens = torch.randint(0, options.vocab, (options.steps, lanes, length + 1), generator=draw)
    layout, rows, carry = PackedLayout.from_lengths([length] * lanes), torch.arange(lanes * length), SegmentState()
    none = torch.zeros(0, dtype=torch.int64)
    penalties = {
        "activation_reg": Targets(none, none, len(rows), 2.0),
        "temporal_activation_reg": Targets(none, none, len(rows) - lanes, 1.0),
    }
    batches = [
        Batch(
            Inputs(part[:, :-1].flatten(), layout),
            {"next": Targets(rows, part[:, 1:].flatten(), len(rows)), **penalties},
            len(rows),
            extra=SegmentExtra(carry, starts_fresh=number == 0),
        )
        for number, part in enumerate(tokens)
    ]
    precision = "bf16" if device.type == "cuda" else "float32"
    optimizer, schedule = ADAM.build(model, model.trunk.layer_groups()), ScheduleConfig("constant", 1)
    run = TrainState(model, optimizer, ADAM, schedule, options.steps, device, precision)
    ours, theirs = [], []
    for report in train(run, iter([([b], None) for b in batches])):
        report.metrics  # noqa: B018 (waits for the step)
        ours.append(time.perf_counter())
    for _ in plain(spec.trunk, tokens, device, precision):
        theirs.append(time.perf_counter())
    warm = max(options.steps // 3, 1)
    rates = [lanes * length * (len(t) - 1 - warm) / (t[-1] - t[warm]) for t in (ours, theirs)]
    print(header(f"AWD-LSTM {options.size}, {lanes} streams of {length}, vocabulary {options.vocab}, {precision}"))
    names = ("AWD-LSTM, all dropouts, AR, TAR", "nn.LSTM, none")
    print(table(["", "tokens/s", "×"], [[n, f"{r:,.0f}", f"{r / rates[1]:.2f}"] for n, r in zip(names, rates)]))


def plain(trunk: Any, tokens: torch.Tensor, device: torch.device, precision: str) -> Any:
    """Train torch's modules of the same sizes without dropout or penalties: Adam, clipping, carried states."""
    torch.manual_seed(0)
    inputs = (trunk.embeddings.dim, *trunk.hidden_dims[:-1])
    table_of = nn.Embedding(trunk.embeddings.vocab_size, trunk.embeddings.dim).to(device)
    layers = nn.ModuleList(nn.LSTM(a, b) for a, b in zip(inputs, trunk.hidden_dims)).to(device)
    bias = nn.Parameter(torch.zeros(trunk.embeddings.vocab_size, device=device))
    weights = [*table_of.parameters(), *layers.parameters(), bias]
    fused = torch.optim.AdamW(weights, 1e-3, fused=True)
    states: list[Any] = [None] * len(layers)
    for part in tokens:
        part = part.to(device)
        with torch.autocast(device.type, torch.bfloat16, enabled=precision == "bf16"):
            x = table_of(part[:, :-1].T)
            for i, layer in enumerate(layers):
                x, state = layer(x, states[i])
                states[i] = tuple(s.detach() for s in state)
            scores = nn.functional.linear(x.transpose(0, 1).flatten(0, 1), table_of.weight, bias)
            loss = nn.functional.cross_entropy(scores.float(), part[:, 1:].flatten())
        fused.zero_grad(set_to_none=True)
        loss.backward()
        nn.utils.clip_grad_norm_(weights, 0.25)
        fused.step()
        yield loss.item()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    verbs = parser.add_subparsers(required=True)
    one = verbs.add_parser("trec")
    one.set_defaults(run=trec)
    one.add_argument("--trec", type=Path, required=True)
    one.add_argument("--test", type=Path)
    one.add_argument("--work", type=Path, required=True)
    one.add_argument("--general", type=Path, nargs="*", default=[])
    one.add_argument("--corpus", type=Path)
    one.add_argument("--preset", default="paper", choices=list(ulmfit.PRESETS))
    one.add_argument("--direction", default="forward", choices=["forward", "backward", "both"])
    one.add_argument("--budget", default="")
    one.add_argument("--seeds", type=int, default=3)
    one.add_argument("--epochs", type=float, default=12.0)
    one.add_argument("--target-epochs", type=float, default=10.0)
    one.add_argument("--sizes", default="")
    one.add_argument("--rows", nargs="*", default=list(ROWS), choices=list(ROWS))
    one.add_argument("--limit", type=int, default=0)
    one.add_argument("--prepare", action="store_true")
    other = verbs.add_parser("speed")
    other.set_defaults(run=speed)
    other.add_argument("--size", default="paper", choices=list(ulmfit.PRESETS))
    other.add_argument("--lanes", type=int, default=80)
    other.add_argument("--length", type=int, default=70)
    other.add_argument("--vocab", type=int, default=33_278)
    other.add_argument("--steps", type=int, default=30)
    options = parser.parse_args()
    try:
        options.run(options)
    except PolysemeError as error:
        raise SystemExit(f"error: {error}") from None


if __name__ == "__main__":
    main()

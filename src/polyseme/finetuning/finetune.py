"""Fine-tuning: a pre-trained folder and labelled examples to a measured task model."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Any, Literal

from polyseme.config import Spec
from polyseme.errors import UserError
from polyseme.evaluation.predict import Extra
from polyseme.families import FAMILIES
from polyseme.finetuning.feature_extraction import NetworkSpec
from polyseme.finetuning.runner import Part, Tell, Work, run_seeds
from polyseme.nn.heads.coreference import CoreferenceHeadSpec
from polyseme.nn.heads.crf import CrfSpec
from polyseme.nn.heads.standard import HeadSpec, LabelHeadSpec
from polyseme.nn.heads.tag_schemes import broken
from polyseme.nn.model import Model
from polyseme.tasks.encoded import Encoded
from polyseme.tasks.examples import Example, Kind
from polyseme.tasks.metrics.standard import require
from polyseme.tasks.readers.squad import trainable, wrong_offsets
from polyseme.tasks.spans import SpanSpec
from polyseme.tasks.task import Task
from polyseme.tasks.text_templates import TextSpec, form_of
from polyseme.train.optimizer import OptimSpec
from polyseme.train.schedule import ScheduleSpec
from polyseme.weights.folder import ModelFolder, load_model, read_spec, save_model


@dataclass(frozen=True)
class FinetuneSpec(Spec):
    """One fine-tuning run. The defaults are those of BERT (§A.3), which has 5e-5, 16 and 3 among its best.

    `steps` overrides `epochs`; there are never fewer than `least_steps`, for small sets want more epochs (Mosbach et
    al. 2021, §6). With `patience` the dev examples are measured after every epoch, a run ends when that many in a row
    were no better than the best before, and the best is what is kept. `max_len` 0 is the model's; `freeze` parameter
    groups, counted from the input (the embeddings are the first), stay as they are. A step is read in micro-batches of
    at most `bin_tokens`.

    With `unfreeze` the new head is trained alone at first, and after every so many epochs the next group below joins;
    the schedule begins anew each time, and the last phase has what is left of `epochs` (Howard and Ruder 2018, §3.3,
    and their code). With `chunk` long texts are read so many tokens at a time with memory, the gradient reaching into
    the last `learnt` tokens alone (0 is all): their BPT3C.

    `auxiliary` is the weight of the language model's own loss on the same texts, and `both_orders` reads a pair twice,
    as GPT does (Radford et al. 2018, §3.2 and 3.3; its settings: auxiliary 0.5, rate 6.25e-5, batches of 32).

    Of several tasks (`finetuning/multitask.py`) each is drawn in proportion to its size to the power `alpha`: 1 is as
    often as alone, 0 as often as any other.

    With the `decoder` "crf" the tags of a sentence are chosen together (Lample et al. 2016, §2.2). A `network` is laid
    over frozen features (`finetuning/frozen.py`).
    """

    epochs: float = 3.0
    steps: int = 0
    batch_size: int = 16
    max_len: int = 0
    truncate: bool = False
    freeze: int = 0
    optim: OptimSpec = field(default_factory=lambda: OptimSpec(rate=5e-5))
    schedule: ScheduleSpec = field(default_factory=ScheduleSpec)
    precision: Literal["auto", "float32", "bf16"] = "auto"
    bin_tokens: int = 16384
    auxiliary: float = 0.0
    both_orders: bool = False
    unfreeze: float = 0.0
    chunk: int = 0
    learnt: int = 0
    decoder: Literal["softmax", "crf"] = "softmax"
    network: NetworkSpec | None = None
    span: SpanSpec = field(default_factory=SpanSpec)
    coreference: CoreferenceHeadSpec = field(default_factory=CoreferenceHeadSpec)
    patience: int = 0
    least_steps: int = 0
    alpha: float = 1.0

    def check(self) -> FinetuneSpec:
        self.within(1, math.inf, "batch_size", "bin_tokens")
        if self.steps < 0 or (not self.steps and self.epochs <= 0):
            raise UserError(f"there is nothing to do in {self.steps} steps or {self.epochs:g} epochs")
        self.within(0, math.inf, "freeze", "max_len", "auxiliary", "unfreeze", "chunk", "learnt")
        self.within(0, math.inf, "patience", "least_steps", "alpha")
        if self.optim.method not in ("adamw", "muon"):
            raise UserError(f"optim.method is {self.optim.method!r}: tasks are learnt by adamw or muon")
        return self

    def total(self, num_examples: int) -> int:
        epochs = math.ceil(self.epochs * math.ceil(num_examples / self.batch_size))
        return self.steps or max(epochs, self.least_steps, 1)

    def phases(self, num_examples: int, num_groups: int) -> list[tuple[int, int, int]]:
        """Runs of steps and how many groups are frozen in each: (first step, behind the last, frozen)."""
        total, each = self.total(num_examples), self.unfreeze * math.ceil(num_examples / self.batch_size)
        if not self.unfreeze:
            return [(0, total, self.freeze)]
        borders = [round(i * each) for i in range(num_groups - self.freeze + 1)]
        if borders[-1] >= total:
            raise UserError(
                f"{total} steps end before all {num_groups} groups are unfrozen, at step {borders[-1]}: "
                "more epochs, a smaller unfreeze, or freeze some for good"
            )
        return [(a, b, num_groups - i) for i, (a, b) in enumerate(pairwise([*borders, total])) if a < b]


def finetune(
    model_folder: Path,
    kind: Kind,
    train_examples: Sequence[Example],
    dev_examples: Sequence[Example],
    out: Path | None,
    settings: FinetuneSpec | None = None,
    *,
    seeds: int = 1,
    first_seed: int = 0,
    scratch: bool = False,
    primary: str = "",
    data_set: str = "",
    extra: Extra | None = None,
    others: Mapping[str, Sequence[Example]] | None = None,
    tell: Tell | None = None,
    keep: bool = False,
    checkpoints: int = 0,
) -> dict[str, Any]:
    """Fine-tune once for each seed, measure on the dev examples; report all seeds, mean and deviation.

    `primary` is the metric that counts, if it is not the one the kind has; it stands first. `data_set` is the name
    that is noted, `extra` its own metrics; `others` are more examples to measure every seed on. A seed has failed if it
    is no better than a blind guess (as runs on small sets may be; Mosbach et al. 2021, §3). `tell` hears of each seed
    what it predicts for the dev examples.

    The seed draws the new head, the order of the examples and the dropout. `out` gets `results.json`,
    `log.jsonl`, `predictions.json` and the model of the seed that did best on the dev examples (that choice flatters
    its own number, but not the mean); with `keep` also those of all seeds, in `seeds`; of each seed the last so many
    `checkpoints`, one an epoch. With `scratch` the same model starts from fresh weights: the row that says what
    pre-training was worth.
    """
    settings = (settings or FinetuneSpec()).check()
    check_run(kind, out, settings, seeds)
    form = written_form(Path(model_folder), kind, train_examples, data_set)
    task = Task.of(kind, train_examples, settings.both_orders, settings.span, settings.coreference, form)
    crf = crf_of(settings, train_examples)
    loaded = _open(Path(model_folder), task, settings, first_seed, scratch, crf)

    def part(examples: Sequence[Example]) -> Part:
        return Part(examples, _encode(task, examples, loaded, settings))

    def build(seed: int) -> Model:
        fresh = seed != first_seed
        return (_open(Path(model_folder), task, settings, seed, scratch, crf) if fresh else loaded).model

    def save(path: Path, model: Model, notes: dict[str, Any]) -> None:
        save_model(path, model, loaded.tokenizer, notes | chain_of(loaded.notes))

    more = {name: part(examples) for name, examples in (others or {}).items()}
    work = Work(task, part(trainable(train_examples)), part(dev_examples), settings, primary, extra, more)
    about: dict[str, Any] = {"data": data_set} if data_set else {}
    about |= {"model": str(model_folder), "from_scratch": scratch}
    if kind == "span":
        about["wrong_offsets"] = {"train": wrong_offsets(train_examples), "dev": wrong_offsets(dev_examples)}
    return run_seeds(work, build, save, out, range(first_seed, first_seed + seeds), about, tell, keep, checkpoints)


def written_form(path: Path, kind: Kind, examples: Sequence[Example], name: str) -> TextSpec | None:
    """How the model of a folder writes a task, if its family answers in text."""
    if not path.is_dir():
        raise UserError(f"there is no model folder at {path}")
    spec = read_spec(path)[0]
    return form_of(FAMILIES[spec.family], spec.trunk, kind, examples, name)


def chain_of(notes: dict[str, Any]) -> dict[str, Any]:
    """What a folder was fine-tuned for before, for the notes of the next."""
    before = notes.get("task")
    return {"chain": [*notes.get("chain", []), notes.get("data") or before]} if before else {}


def crf_of(settings: FinetuneSpec, examples: Sequence[Example]) -> CrfSpec | None:
    """The CRF of a run, if it has one; where the tags of its examples break the rules, nothing is barred."""
    return CrfSpec(all(broken(e.tags or ()) is None for e in examples)) if settings.decoder == "crf" else None


def check_run(kind: Kind, out: Path | None, settings: FinetuneSpec, seeds: int) -> None:
    """What can be wrong before anything is opened."""
    if seeds < 1:
        raise UserError(f"{seeds} seeds is no run: at least 1 is needed")
    if out is not None:
        _check_empty(out)
    require(kind)
    if settings.decoder == "crf" and kind != "tagging":
        raise UserError(f"the decoder crf is for tagging, not for {kind}")


def _encode(task: Task, examples: Sequence[Example], folder: ModelFolder, settings: FinetuneSpec) -> list[Encoded]:
    """Labelled examples as the model reads them."""
    folder.tokenizer.check()
    limit = folder.model.spec.trunk.embeddings.max_len
    if settings.max_len > limit:
        raise UserError(f"max_len {settings.max_len} is longer than the model reads ({limit})")
    found = task.encode(examples, folder.tokenizer, settings.max_len or limit, settings.truncate)
    for example in examples:
        if example.answer is None:
            raise UserError(f"{example.where}: there is no label")
    return found


def _open(
    path: Path, task: Task, settings: FinetuneSpec, seed: int, scratch: bool, crf: CrfSpec | None = None
) -> ModelFolder:
    return open_for(path, [(task, crf)], settings, seed, scratch)


def open_for(
    path: Path, tasks: Sequence[tuple[Task, CrfSpec | None]], settings: FinetuneSpec, seed: int, scratch: bool
) -> ModelFolder:
    """The folder with the heads of tasks in place of its own, on pre-trained or on fresh weights.

    The heads are those of the published class that has the task's, so that other tools can open what is saved. Marks
    that the family puts around texts get ids behind the vocabulary.
    """
    if not path.is_dir():
        raise UserError(f"there is no model folder at {path}")
    spec = read_spec(path)[0]
    family = FAMILIES[spec.family]
    known = family.heads(spec.trunk)
    if settings.auxiliary and ("next" not in known or any(task.text for task, _ in tasks)):
        raise UserError(f"auxiliary is the loss of a causal language model, which {family.name} is not")
    heads: dict[str, HeadSpec] = {}
    for task, crf in tasks:
        name, own = task.head_name, task.head(family, spec.trunk)
        own = own.replace(crf=crf) if isinstance(own, LabelHeadSpec) else own
        names = next((heads for heads in family.architectures.values() if name in heads), (name,))
        heads |= {n: own if n == name else known[n] for n in names}
    if settings.auxiliary:
        heads |= {"next": known["next"]}
    folder = load_model(path, heads=heads, seed=seed)
    if family.frame and not folder.tokenizer.num_added():
        tokenizer = folder.tokenizer.framed(*family.frame)
        model = folder.model.grown(max(tokenizer.vocab_size, spec.trunk.embeddings.vocab_size), seed)
        folder = dataclasses.replace(folder, tokenizer=tokenizer, model=model)
    return dataclasses.replace(folder, model=_fresh(folder.model, seed)) if scratch else folder


def _fresh(model: Model, seed: int) -> Model:
    """The same model before it has learnt anything; what is not learnt stays."""
    found = model.spec.build(seed)
    for name, buffer in model.named_buffers():
        found.get_buffer(name).copy_(buffer)
    return found


def _check_empty(out: Path) -> None:
    if out.exists() and not out.is_dir():
        raise UserError(f"{out} is a file: give a folder for the run")
    if out.is_dir() and (found := sorted(p.name for p in out.iterdir())):
        raise UserError(f"{out} already holds {found[0]}: give another folder for the run")

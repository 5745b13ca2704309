"""Fine-tuning: a pre-trained folder and labelled examples to a measured task model."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Any, Literal

from polyseme.config import Config
from polyseme.errors import ConfigError, DataError, ModelError
from polyseme.evaluation.predict import MetricsFn
from polyseme.families import FAMILIES
from polyseme.finetuning.feature_extraction import FeatureNetworkSettings
from polyseme.finetuning.runner import Experiment, OnSeedPredictions, Split, run_seeds
from polyseme.nn.heads.base import HeadConfig
from polyseme.nn.heads.classification import ClassificationHeadConfig
from polyseme.nn.heads.coreference import CoreferenceHeadConfig
from polyseme.nn.heads.crf import CRFConfig
from polyseme.nn.heads.tag_schemes import first_invalid
from polyseme.nn.model import Model
from polyseme.tasks.encoded import EncodedExample
from polyseme.tasks.examples import Example, TaskType
from polyseme.tasks.metrics.standard import require_dependencies
from polyseme.tasks.readers.squad import count_bad_offsets, with_valid_answers
from polyseme.tasks.spans import ExtractiveQAConfig
from polyseme.tasks.task import Task
from polyseme.tasks.text_templates import TextToTextTemplate, template_for
from polyseme.train.optimizer import OptimizerConfig
from polyseme.train.schedule import ScheduleConfig
from polyseme.weights.folder import ModelFolder, load_model, read_model_config, save_model


@dataclass(frozen=True)
class FinetuneConfig(Config):
    """One fine-tuning run. The defaults are those of BERT (§A.3), which has 5e-5, 16 and 3 among its best.

    `steps` overrides `epochs`; there are never fewer than `min_steps`, for small sets want more epochs (Mosbach et al.
    2021, §6). With `patience` the dev examples are measured after every epoch, a run ends when that many in a row were
    no better than the best before, and the best is what is kept. `max_len` 0 is the model's; `num_frozen_groups`
    parameter groups, counted from the input (the embeddings are the first), stay as they are. A step is read in
    micro-batches of at most `micro_batch_tokens`.

    With `unfreeze_every` the new head is trained alone at first, and after every so many epochs the next group below
    joins; the schedule begins anew each time, and the last phase has what is left of `epochs` (Howard and Ruder 2018,
    §3.3, and their code). With `chunk_size` long texts are read so many tokens at a time with memory, the gradient
    reaching into the last `grad_tokens` tokens alone (0 is all): their BPT3C.

    `lm_loss_weight` is the weight of the language model's own loss on the same texts, and `symmetric_pairs` reads a
    pair twice, as GPT does (Radford et al. 2018, §3.2 and 3.3; its settings: lm_loss_weight 0.5, lr 6.25e-5, batches of
    32).

    Of several tasks (`finetuning/multitask.py`) each is drawn in proportion to its size to the power `sampling_alpha`:
    1 is as often as alone, 0 as often as any other.

    With the `tag_decoder` "crf" the tags of a sentence are chosen together (Lample et al. 2016, §2.2). A `network` is
    laid over frozen features (`finetuning/frozen.py`).
    """

    epochs: float = 3.0
    steps: int = 0
    batch_size: int = 16
    max_len: int = 0
    truncate: bool = False
    num_frozen_groups: int = 0
    optimizer: OptimizerConfig = field(default_factory=lambda: OptimizerConfig(lr=5e-5))
    schedule: ScheduleConfig = field(default_factory=ScheduleConfig)
    precision: Literal["auto", "float32", "bf16"] = "auto"
    micro_batch_tokens: int = 16384
    lm_loss_weight: float = 0.0
    symmetric_pairs: bool = False
    unfreeze_every: float = 0.0
    chunk_size: int = 0
    grad_tokens: int = 0
    tag_decoder: Literal["softmax", "crf"] = "softmax"
    network: FeatureNetworkSettings | None = None
    span: ExtractiveQAConfig = field(default_factory=ExtractiveQAConfig)
    coreference: CoreferenceHeadConfig = field(default_factory=CoreferenceHeadConfig)
    patience: int = 0
    min_steps: int = 0
    sampling_alpha: float = 1.0

    def validate(self) -> FinetuneConfig:
        self.check_range(1, math.inf, "batch_size", "micro_batch_tokens")
        if self.steps < 0 or (not self.steps and self.epochs <= 0):
            raise ConfigError(f"there is nothing to do in {self.steps} steps or {self.epochs:g} epochs")
        self.check_range(
            0, math.inf, "num_frozen_groups", "max_len", "lm_loss_weight", "unfreeze_every", "chunk_size", "grad_tokens"
        )
        self.check_range(0, math.inf, "patience", "min_steps", "sampling_alpha")
        if self.optimizer.name not in ("adamw", "muon"):
            raise ConfigError(f"optimizer.name is {self.optimizer.name!r}: tasks are learnt by adamw or muon")
        return self

    def total_steps(self, num_examples: int) -> int:
        epoch_steps = math.ceil(self.epochs * math.ceil(num_examples / self.batch_size))
        return self.steps or max(epoch_steps, self.min_steps, 1)

    def unfreezing_phases(self, num_examples: int, num_groups: int) -> list[tuple[int, int, int]]:
        """Runs of steps and how many groups are frozen in each: (first step, behind the last, frozen)."""
        total, steps_per_phase = (
            self.total_steps(num_examples),
            self.unfreeze_every * math.ceil(num_examples / self.batch_size),
        )
        if not self.unfreeze_every:
            return [(0, total, self.num_frozen_groups)]
        boundaries = [round(i * steps_per_phase) for i in range(num_groups - self.num_frozen_groups + 1)]
        if boundaries[-1] >= total:
            raise ConfigError(
                f"{total} steps end before all {num_groups} groups are unfrozen, at step {boundaries[-1]}: "
                "more epochs, a smaller unfreeze_every, or freeze some for good"
            )
        return [(a, b, num_groups - i) for i, (a, b) in enumerate(pairwise([*boundaries, total])) if a < b]


def finetune(
    model_folder: Path,
    task_type: TaskType,
    train_examples: Sequence[Example],
    dev_examples: Sequence[Example],
    out: Path | None,
    settings: FinetuneConfig | None = None,
    *,
    seeds: int = 1,
    first_seed: int = 0,
    from_scratch: bool = False,
    primary_metric: str = "",
    dataset_name: str = "",
    extra_metrics: MetricsFn | None = None,
    extra_eval: Mapping[str, Sequence[Example]] | None = None,
    on_predictions: OnSeedPredictions | None = None,
    keep_seeds: bool = False,
    keep_checkpoints: int = 0,
) -> dict[str, Any]:
    """Fine-tune once for each seed, measure on the dev examples; report all seeds, mean and deviation.

    `primary_metric` is the metric that counts, if it is not the one the kind has; it stands first. `dataset_name` is
    the name that is noted, `extra_metrics` its own metrics; `extra_eval` are more examples to measure every seed on. A
    seed has failed if it is no better than a blind guess (as runs on small sets may be; Mosbach et al. 2021, §3).
    `on_predictions` hears of each seed what it predicts for the dev examples.

    The seed draws the new head, the order of the examples and the dropout. `out` gets `results.json`, `log.jsonl`,
    `predictions.json` and the model of the seed that did best on the dev examples (that choice flatters its own number,
    but not the mean); with `keep_seeds` also those of all seeds, in `seeds`; of each seed the last so many
    `keep_checkpoints`, one an epoch. With `from_scratch` the same model starts from fresh weights: the row that says
    what pre-training was worth.
    """
    settings = (settings or FinetuneConfig()).validate()
    validate_run(task_type, out, settings, seeds)
    template = find_template(Path(model_folder), task_type, train_examples, dataset_name)
    task = Task.from_examples(
        task_type, train_examples, settings.symmetric_pairs, settings.span, settings.coreference, template
    )
    crf = build_crf_config(settings, train_examples)
    loaded_folder = _load_for_task(Path(model_folder), task, settings, first_seed, from_scratch, crf)

    def part(examples: Sequence[Example]) -> Split:
        return Split(examples, _encode_examples(task, examples, loaded_folder, settings))

    def build(seed: int) -> Model:
        needs_reload = seed != first_seed
        return (
            _load_for_task(Path(model_folder), task, settings, seed, from_scratch, crf)
            if needs_reload
            else loaded_folder
        ).model

    def save(path: Path, model: Model, metadata: dict[str, Any]) -> None:
        save_model(path, model, loaded_folder.tokenizer, metadata | finetuning_history(loaded_folder.metadata))

    extra_splits = {name: part(examples) for name, examples in (extra_eval or {}).items()}
    experiment = Experiment(
        task,
        part(with_valid_answers(train_examples)),
        part(dev_examples),
        settings,
        primary_metric,
        extra_metrics,
        extra_splits,
    )
    run_info: dict[str, Any] = {"data": dataset_name} if dataset_name else {}
    run_info |= {"model": str(model_folder), "from_scratch": from_scratch}
    if task_type == "span":
        run_info["bad_offsets"] = {"train": count_bad_offsets(train_examples), "dev": count_bad_offsets(dev_examples)}
    return run_seeds(
        experiment,
        build,
        save,
        out,
        range(first_seed, first_seed + seeds),
        run_info,
        on_predictions,
        keep_seeds,
        keep_checkpoints,
    )


def find_template(path: Path, task_type: TaskType, examples: Sequence[Example], name: str) -> TextToTextTemplate | None:
    """How the model of a folder writes a task, if its family answers in text."""
    if not path.is_dir():
        raise ModelError(f"there is no model folder at {path}")
    config = read_model_config(path)[0]
    return template_for(FAMILIES[config.family], config.trunk, task_type, examples, name)


def finetuning_history(metadata: dict[str, Any]) -> dict[str, Any]:
    """What a folder was fine-tuned for before, for the notes of the next."""
    previous_task = metadata.get("task")
    return (
        {"finetuning_history": [*metadata.get("finetuning_history", []), metadata.get("data") or previous_task]}
        if previous_task
        else {}
    )


def build_crf_config(settings: FinetuneConfig, examples: Sequence[Example]) -> CRFConfig | None:
    """The CRF of a run, if it has one; where the tags of its examples break the rules, nothing is barred."""
    return (
        CRFConfig(all(first_invalid(e.tags or ()) is None for e in examples)) if settings.tag_decoder == "crf" else None
    )


def validate_run(task_type: TaskType, out: Path | None, settings: FinetuneConfig, seeds: int) -> None:
    """What can be wrong before anything is opened."""
    if seeds < 1:
        raise ConfigError(f"{seeds} seeds is no run: at least 1 is needed")
    if out is not None:
        _require_empty_directory(out)
    require_dependencies(task_type)
    if settings.tag_decoder == "crf" and task_type != "tagging":
        raise ConfigError(f"the tag_decoder crf is for tagging, not for {task_type}")


def _encode_examples(
    task: Task, examples: Sequence[Example], folder: ModelFolder, settings: FinetuneConfig
) -> list[EncodedExample]:
    """Labelled examples as the model reads them."""
    folder.tokenizer.validate()
    limit = folder.model.config.trunk.embeddings.max_len
    if settings.max_len > limit:
        raise ConfigError(f"max_len {settings.max_len} is longer than the model reads ({limit})")
    encoded = task.encode(examples, folder.tokenizer, settings.max_len or limit, settings.truncate)
    for example in examples:
        if example.gold is None:
            raise DataError(f"{example.location}: there is no label")
    return encoded


def _load_for_task(
    path: Path, task: Task, settings: FinetuneConfig, seed: int, from_scratch: bool, crf: CRFConfig | None = None
) -> ModelFolder:
    return load_for_tasks(path, [(task, crf)], settings, seed, from_scratch)


def load_for_tasks(
    path: Path, tasks: Sequence[tuple[Task, CRFConfig | None]], settings: FinetuneConfig, seed: int, from_scratch: bool
) -> ModelFolder:
    """The folder with the heads of tasks in place of its own, on pre-trained or on fresh weights.

    The heads are those of the published class that has the task's, so that other tools can open what is saved. Marks
    that the family puts around texts get ids behind the vocabulary.
    """
    if not path.is_dir():
        raise ModelError(f"there is no model folder at {path}")
    config = read_model_config(path)[0]
    family = FAMILIES[config.family]
    family_heads = family.pretraining_heads(config.trunk)
    if settings.lm_loss_weight and ("next" not in family_heads or any(task.text_template for task, _ in tasks)):
        raise ConfigError(f"lm_loss_weight weighs the loss of a causal language model, which {family.name} is not")
    heads: dict[str, HeadConfig] = {}
    for task, crf in tasks:
        name, head = task.head_name, task.head(family, config.trunk)
        head = head.replace(crf=crf) if isinstance(head, ClassificationHeadConfig) else head
        names = next((heads for heads in family.architectures.values() if name in heads), (name,))
        heads |= {n: head if n == name else family_heads[n] for n in names}
    if settings.lm_loss_weight:
        heads |= {"next": family_heads["next"]}
    folder = load_model(path, heads=heads, seed=seed)
    if family.finetune_template and not folder.tokenizer.num_special_tokens_to_add():
        tokenizer = folder.tokenizer.with_template(*family.finetune_template)
        model = folder.model.resize_vocab(max(tokenizer.vocab_size, config.trunk.embeddings.vocab_size), seed)
        folder = dataclasses.replace(folder, tokenizer=tokenizer, model=model)
    return dataclasses.replace(folder, model=_reinitialize(folder.model, seed)) if from_scratch else folder


def _reinitialize(model: Model, seed: int) -> Model:
    """The same model before it has learnt anything; what is not learnt stays."""
    fresh_model = model.config.build(seed)
    for name, buffer in model.named_buffers():
        fresh_model.get_buffer(name).copy_(buffer)
    return fresh_model


def _require_empty_directory(out: Path) -> None:
    if out.exists() and not out.is_dir():
        raise ConfigError(f"{out} is a file: give a folder for the run")
    if out.is_dir() and (names := sorted(p.name for p in out.iterdir())):
        raise ConfigError(f"{out} already holds {names[0]}: give another folder for the run")

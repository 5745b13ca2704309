"""Task distillation: a student learns the labels and the scores of a fine-tuned teacher (Hinton et al. 2015)."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from polyseme.config import Config
from polyseme.errors import ConfigError, DataError, ModelError, UnsupportedError
from polyseme.finetuning.experiment import Experiment
from polyseme.finetuning.resume import hash_examples
from polyseme.nn.heads.classification import ClassificationHeadConfig
from polyseme.nn.model import Model
from polyseme.nn.packing import PackedLayout
from polyseme.objectives.batch import IGNORE_INDEX, NO_EXTRA, Batch, BatchExtra, Targets
from polyseme.tasks import task_from_json
from polyseme.tasks.base import TaskConfig
from polyseme.text.tokenizer import Tokenizer
from polyseme.train.loop import setup_device
from polyseme.weights.folder import ModelFolder, hash_weights, load_model

SOFT_HEADS = ("classify", "tag", "choice", "span")  # types of heads whose scores are probabilities or numbers


@dataclass(frozen=True)
class TaskDistillation(Config):
    """How a student learns from a fine-tuned teacher; the defaults are those of DistilBERT's second step (§4).

    The loss is `hard_weight` times that of the labels, and `soft_weight` times the KL divergence of the student's
    scores from the teacher's at `temperature`, times the temperature squared; for a number, the squared difference.
    """

    temperature: float = 2.0
    soft_weight: float = 0.5
    hard_weight: float = 0.5

    def __post_init__(self) -> None:
        self.check_range(1e-3, math.inf, "temperature")
        self.check_range(0, math.inf, "soft_weight", "hard_weight")
        if not (self.soft_weight or self.hard_weight):
            raise ConfigError("soft_weight and hard_weight are 0, so nothing would be learned")


@dataclass(frozen=True, eq=False)
class TeacherExtra(BatchExtra):
    """The segments of a batch, which the teacher may read and the student not."""

    segments: Tensor | None
    supports_cuda_graphs = False


@dataclass(frozen=True, eq=False)
class TaskTeacher:
    """A fine-tuned model that a student learns from, on labeled examples and on `unlabeled` ones.

    `student` is what results call the model that the student starts from.
    """

    path: Path
    config: TaskDistillation = TaskDistillation()
    unlabeled: Sequence[Any] = field(default_factory=list)
    student: str = ""

    @cached_property
    def folder(self) -> ModelFolder:
        """The loaded teacher, frozen and without dropout."""
        folder = load_model(self.path)
        folder.model.to(setup_device()).eval().requires_grad_(False)
        return folder

    def describe(self) -> dict[str, Any]:
        """Return what determines the results of a run beside those of fine-tuning."""
        settings = self.config.to_json() | {"unlabeled": hash_examples(self.unlabeled)}
        return {"distillation": settings | {"teacher": hash_weights(self.path)[:16]}}

    def teach(self, experiment: Experiment, tokenizer: Tokenizer) -> Experiment:
        """Return the experiment with the unlabeled examples, and with the loss of a distillation."""
        (run,) = experiment.runs
        self._check(run.task, tokenizer)
        assert experiment.encode is not None
        unlabeled = [
            replace(encoded, example_index=len(run.train.examples) + encoded.example_index)
            for encoded in experiment.encode(run.task, self.unlabeled)
        ]
        train = replace(run.train, encoded=[*run.train.encoded, *unlabeled])
        metrics = run.evaluate(run.predict(self.folder.model)).metrics
        facts = {"path": str(self.path), "metrics": metrics, "num_unlabeled": len(self.unlabeled)}
        return replace(
            experiment,
            runs=(replace(run, train=train),),
            loss_fn=TaskDistillationLoss(self.config, self.folder.model, run.task.codec.head_name).compute,
            prepare_batch=lambda batch: add_soft_targets(batch, self.config),
            run_info={**experiment.run_info, "model": self.student, "teacher": facts | self.config.to_json()},
        )

    def _check(self, task: TaskConfig, tokenizer: Tokenizer) -> None:
        """Raise if the teacher cannot teach the task, with its labels, to a student with this vocabulary."""
        head, labels = self.folder.model.config.heads.get(task.codec.head_name), task.output_labels
        if task.text_template is not None:
            saved = self.folder.metadata.get("task")
            teacher_task = task_from_json(saved, (type(task),)) if saved else None
            if teacher_task is None or teacher_task.text_template != task.text_template:
                words = f"to {task.text_template.template!r}"
                raise ModelError(f"{self.path} does not answer in text {words}: fine-tune the teacher first")
            teacher_labels = teacher_task.output_labels
        elif not isinstance(head, ClassificationHeadConfig):
            raise ModelError(f"{self.path} is not fine-tuned for {task.task_type}: fine-tune the teacher first")
        else:
            teacher_labels = head.labels
        if teacher_labels != labels:
            theirs, ours = ", ".join(teacher_labels) or "a number", ", ".join(labels) or "a number"
            raise DataError(f"{self.path} predicts {theirs}, but the training examples have {ours}")
        if tokenizer.hash != self.folder.tokenizer.hash:
            raise ModelError(f"the student {self.student} has another vocabulary than its teacher {self.path}")


def check_task_type(task: type[TaskConfig]) -> None:
    """Raise if a task has no scores for a student to learn."""
    if task.head_type not in SOFT_HEADS:
        supported = "classification, regression, tagging, multiple choice and questions"
        raise UnsupportedError(f"{task.task_type} cannot be distilled: only {supported}")


def add_soft_targets(batch: Batch, config: TaskDistillation) -> Batch:
    """Return a batch of a task with targets for the scores of a teacher, in all rows, labeled or not."""
    if batch.extra is not NO_EXTRA:
        raise UnsupportedError("distillation reads each batch as a whole: set chunk_size to 0")
    ((name, hard),) = batch.targets.items()
    labels, count = torch.zeros(len(hard.rows), dtype=torch.int64), len(hard.rows)
    if hard.groups is not None:
        labels, count = labels.masked_fill(hard.groups < 0, IGNORE_INDEX), int(hard.groups.max()) + 1
    soft = Targets(hard.rows, labels, count, config.soft_weight, groups=hard.groups)
    targets = {name: replace(hard, weight=config.hard_weight), "soft": soft}
    return replace(batch, targets=targets, extra=TeacherExtra(batch.inputs.segments))


class TaskDistillationLoss:
    """The loss of a student of a task beside its teacher."""

    def __init__(self, config: TaskDistillation, teacher: Model, head: str):
        self.config, self.teacher, self.head = config, teacher, head

    def compute(self, model: Model, batch: Batch) -> dict[str, Tensor]:
        """Return the summed loss of the labels, and that of the teacher's scores."""
        hard, soft, layout = batch.targets[self.head], batch.targets["soft"], batch.inputs.layout
        hidden = batch.forward(model).hidden
        with torch.no_grad():
            teacher_hidden = self.teacher.trunk(self._teacher_inputs(batch)).hidden
            teacher_scores = self._scores(self.teacher, teacher_hidden, layout, soft)
        scores = self._scores(model, hidden, layout, soft)
        if scores.shape[-1] == 1 and soft.groups is None:  # a number
            loss = (scores - teacher_scores).square().squeeze(-1)
        else:
            divergence = (
                F.kl_div(scores, teacher_scores, log_target=True, reduction="none") * self.config.temperature**2
            )
            loss = divergence.sum(-1) if soft.groups is None else divergence.mean(-1)  # of start and end
        return {
            self.head: model.loss(self.head, hidden, layout, hard.rows, hard.labels),
            "soft": (loss * (soft.labels != IGNORE_INDEX)).sum(),
        }

    def _scores(self, model: Model, hidden: Tensor, layout: PackedLayout, soft: Targets) -> Tensor:
        """Return numbers, or log-probabilities at the temperature: of labels, of the rows of a group, or marginal ones.

        With a CRF this is posterior distillation (Wang et al. 2020, §3.3).
        """
        temperature = self.config.temperature
        if model.heads[self.head].crf is not None:
            return model.label_log_probs(self.head, hidden, layout, soft.rows, temperature)
        scores = model.predict(self.head, hidden, layout, soft.rows)
        scores = scores.to(torch.promote_types(scores.dtype, torch.float32))
        if soft.groups is not None:
            return grouped_log_softmax(scores / temperature, soft.groups)
        return scores if scores.shape[-1] == 1 else (scores / temperature).log_softmax(-1)

    def _teacher_inputs(self, batch: Batch) -> Any:
        """Return the inputs of the student with the segments that it may lack."""
        assert isinstance(batch.extra, TeacherExtra)
        segments, tokens = batch.extra.segments, batch.inputs.tokens
        if segments is not None:
            segments = F.pad(segments, (0, len(tokens) - len(segments)))  # filler
        return self.teacher.config.trunk.omit_unsupported(replace(batch.inputs, segments=segments))


def grouped_log_softmax(scores: Tensor, groups: Tensor) -> Tensor:
    """Return the log-softmax of each column [rows, columns] over the rows of each group; rows of group -1 are one."""
    index, shape = groups + 1, (len(scores) + 1, scores.shape[1])  # there are no more groups than rows, beside -1
    no_scores, spread_index = scores.new_full(shape, -math.inf), index[:, None].expand_as(scores)
    group_max = no_scores.scatter_reduce(0, spread_index, scores.detach(), "amax")
    shifted = scores - group_max.index_select(0, index)
    sums = scores.new_zeros(shape).index_add(0, index, shifted.exp())
    return shifted - sums.index_select(0, index).log()

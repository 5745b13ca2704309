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
from polyseme.errors import DataError, ModelError, UnsupportedError
from polyseme.finetuning.experiment import Experiment
from polyseme.finetuning.resume import hash_examples
from polyseme.nn.heads.classification import ClassificationHeadConfig
from polyseme.nn.model import Model
from polyseme.objectives.batch import IGNORE_INDEX, NO_EXTRA, Batch, BatchExtra, Targets
from polyseme.objectives.distillation import soft_divergence
from polyseme.tasks.base import TaskConfig
from polyseme.text.tokenizer import Tokenizer
from polyseme.train.loop import setup_device
from polyseme.weights.folder import ModelFolder, hash_weights, load_model

SOFT_HEADS = ("classify", "tag")  # types of heads whose rows have scores of their own, and not a softmax over rows


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
        head = self.folder.model.config.heads.get(task.head_name)
        if task.text_template:
            raise UnsupportedError(
                f"{self.path} answers in text, and only models with a score for each label can teach"
            )
        if not isinstance(head, ClassificationHeadConfig):
            raise ModelError(f"{self.path} is not fine-tuned for {task.task_type}: fine-tune the teacher first")
        if head.crf is not None:
            raise UnsupportedError(f"{self.path} decodes tags with a CRF, which has no scores for each: use softmax")
        if head.labels != task.output_labels:
            theirs, ours = ", ".join(head.labels) or "a number", ", ".join(task.output_labels) or "a number"
            raise DataError(f"{self.path} predicts {theirs}, but the training examples have {ours}")
        if tokenizer.hash != self.folder.tokenizer.hash:
            raise ModelError(f"the student {self.student} has another vocabulary than its teacher {self.path}")


def check_task_type(task: type[TaskConfig]) -> None:
    """Raise if a task has no scores of labels for a student to learn."""
    if task.head_type not in SOFT_HEADS:
        supported = "classification, regression and tagging, which have scores of labels"
        raise UnsupportedError(f"{task.task_type} cannot be distilled: only {supported}")


def add_soft_targets(batch: Batch, config: TaskDistillation) -> Batch:
    """Return a batch of a task with targets for the scores of a teacher, in all rows, labeled or not."""
    if batch.extra is not NO_EXTRA:
        raise UnsupportedError("distillation reads each batch as a whole: set chunk_size to 0")
    ((name, hard),) = batch.targets.items()
    soft = Targets(hard.rows, torch.zeros(len(hard.rows), dtype=torch.int64), len(hard.rows), config.soft_weight)
    targets = {name: replace(hard, weight=config.hard_weight), "soft": soft}
    return replace(batch, targets=targets, extra=TeacherExtra(batch.inputs.segments))


class TaskDistillationLoss:
    """The loss of a student of a task beside its teacher."""

    def __init__(self, config: TaskDistillation, teacher: Model, head: str):
        self.config, self.teacher, self.head = config, teacher, head

    def compute(self, model: Model, batch: Batch) -> dict[str, Tensor]:
        """Return the summed loss of the labels, and that of the teacher's scores."""
        inputs, hard, soft = batch.inputs, batch.targets[self.head], batch.targets["soft"]
        layout, hidden = inputs.layout, batch.forward(model).hidden
        with torch.no_grad():
            teacher_hidden = self.teacher.trunk(self._teacher_inputs(batch)).hidden
            teacher_scores = self.teacher.predict(self.head, teacher_hidden, layout, soft.rows).float()
        scores = model.predict(self.head, hidden, layout, soft.rows).float()
        if scores.shape[-1] == 1:
            loss = (scores - teacher_scores).square().squeeze(-1)
        else:
            loss = soft_divergence(scores, teacher_scores, self.config.temperature)
        return {
            self.head: model.loss(self.head, hidden, layout, hard.rows, hard.labels),
            "soft": (loss * (soft.labels != IGNORE_INDEX)).sum(),
        }

    def _teacher_inputs(self, batch: Batch) -> Any:
        """Return the inputs of the student with the segments that it may lack."""
        assert isinstance(batch.extra, TeacherExtra)
        segments, tokens = batch.extra.segments, batch.inputs.tokens
        if segments is not None:
            segments = F.pad(segments, (0, len(tokens) - len(segments)))  # filler
        return self.teacher.config.trunk.omit_unsupported(replace(batch.inputs, segments=segments))

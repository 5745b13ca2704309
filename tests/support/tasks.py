"""What tests of tasks share: scores, baselines and metrics in one call."""

from polyseme.finetuning.experiment import Experiment, Split, TaskData, TaskRun
from polyseme.inference.prediction import score_encoded
from polyseme.tasks import load_task


def compute_logits(model, task, encoded, max_batch_tokens=16384):
    """The scores of each encoded example, [rows, labels]."""
    return [scores.logits for scores in score_encoded(model, task, list(encoded), max_batch_tokens)]


def to_examples(values, model, metadata=None):
    return load_task(metadata or {}, model.config).read(values, needs_labels=False)


def fitted(task, train):
    """A task with the labels of a training set, however few."""
    labels = sorted({label for e in train for label in (e.gold if isinstance(e.gold, tuple) else (e.gold,))}, key=str)
    return task(labels=tuple(labels)) if hasattr(task, "labels") else task()


def baseline_metrics(task, name, train, dev, extra_metrics=None):
    task = fitted(task, train)
    name = name if name in task.baselines() else next(iter(task.baselines()))
    return task.baseline_metrics(name, train, dev, extra_metrics)


def compute_metrics(task, gold, predicted, labels=()):
    return (task(labels=tuple(labels)) if labels and hasattr(task, "labels") else task()).score(gold, predicted)


def make_experiment(task, encoded, config, model):
    """An experiment of one task over examples that are encoded already."""
    split = Split([None] * len(encoded), encoded)
    run = TaskRun(task, TaskData(task, (), ()), split, split)
    return Experiment((run,), config, lambda seed: model, None, {})

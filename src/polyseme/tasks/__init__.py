"""Tasks: labeled examples in, predictions out. `TASKS` is the only list of them."""

from collections.abc import Iterable, Mapping
from typing import Any

from polyseme.errors import ConfigError, UnsupportedError, suggest
from polyseme.nn.model import ModelConfig
from polyseme.tasks.base import TaskConfig
from polyseme.tasks.classification import ClassificationTask, PairClassificationTask
from polyseme.tasks.contrastive import ContrastiveTask
from polyseme.tasks.coreference import CoreferenceTask
from polyseme.tasks.extractive_qa import ExtractiveQATask
from polyseme.tasks.multiple_choice import MultipleChoiceTask
from polyseme.tasks.regression import RegressionTask
from polyseme.tasks.semantic_roles import SemanticRolesTask
from polyseme.tasks.tagging import TaggingTask
from polyseme.tasks.visual_qa import VisualQATask

_TASKS: tuple[type[TaskConfig], ...] = (
    *(ClassificationTask, PairClassificationTask, RegressionTask, TaggingTask, SemanticRolesTask),
    *(ExtractiveQATask, MultipleChoiceTask, CoreferenceTask, ContrastiveTask, VisualQATask),
)
TASKS: dict[str, type[TaskConfig]] = {task.task_type: task for task in _TASKS}


def task_from_json(value: Any, tasks: Iterable[type[TaskConfig]] = ()) -> TaskConfig:
    """Read a task from the JSON that `TaskConfig.to_json` wrote; users' own tasks are passed in `tasks`."""
    kind = value.get("kind") if isinstance(value, Mapping) else None
    known = {task.__name__: task for task in (*TASKS.values(), *tasks)}
    if not isinstance(kind, str) or kind not in known:
        raise ConfigError(f"there is no task {kind!r}; {suggest(str(kind), known)}")
    return known[kind].from_json(value, "task")


def load_task(metadata: Mapping[str, Any], config: ModelConfig, tasks: Iterable[type[TaskConfig]] = ()) -> TaskConfig:
    """Return the task that a model folder records in `polyseme.json`, or the task of a published head without it."""
    if isinstance(metadata.get("tasks"), Mapping):
        raise ConfigError(f"the model answers several tasks, {', '.join(metadata['tasks'])}: choose one")
    if "task" in metadata:
        return task_from_json(metadata["task"], tasks)
    for task in (*TASKS.values(), *tasks):
        if (fitted := task.from_heads(config.heads)) is not None:
            return fitted
    known = ", ".join(config.heads) or "none"
    raise UnsupportedError(f"the model has no task head (its heads: {known}): fine-tune it first")

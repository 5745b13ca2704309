"""Tasks: labeled examples in, predictions out. `TASKS` is the only list of them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

from polyseme.errors import ConfigError, UnsupportedError, suggest
from polyseme.tasks.base import TaskConfig
from polyseme.tasks.classification import ClassificationTask, PairClassificationTask
from polyseme.tasks.coreference import CoreferenceTask
from polyseme.tasks.extractive_qa import ExtractiveQATask
from polyseme.tasks.multiple_choice import MultipleChoiceTask
from polyseme.tasks.regression import RegressionTask
from polyseme.tasks.semantic_roles import SemanticRolesTask
from polyseme.tasks.tagging import TaggingTask

if TYPE_CHECKING:
    from polyseme.nn.model import ModelConfig

TASKS: dict[str, type[TaskConfig]] = {
    task.task_type: task
    for task in (
        ClassificationTask,
        PairClassificationTask,
        RegressionTask,
        TaggingTask,
        SemanticRolesTask,
        ExtractiveQATask,
        MultipleChoiceTask,
        CoreferenceTask,
    )
}


def find_task(name: str, tasks: Iterable[type[TaskConfig]] = ()) -> type[TaskConfig]:
    """Return a task by its type, one of `TASKS` or of those passed."""
    known = TASKS | {task.task_type: task for task in tasks}
    if name not in known:
        raise ConfigError(f"there is no task {name!r}; {suggest(name, known)}")
    return known[name]


def task_from_json(value: Any, tasks: Iterable[type[TaskConfig]] = ()) -> TaskConfig:
    """Read a task from the JSON that `TaskConfig.to_json` wrote; users' own tasks are passed in `tasks`."""
    known = {task.__name__: task for task in (*TASKS.values(), *tasks)}
    kind = value.get("kind") if isinstance(value, Mapping) else None
    if kind not in known:
        raise ConfigError(f"there is no task {kind!r}; {suggest(str(kind), known)}")
    return known[kind].from_json(value, "task")


def load_task(
    metadata: Mapping[str, Any], model_config: ModelConfig, tasks: Iterable[type[TaskConfig]] = ()
) -> TaskConfig:
    """Return the task of a model folder: the one that its `polyseme.json` records.

    A folder that other tools wrote records none: there its task is that of its published head.
    """
    if isinstance(metadata.get("tasks"), Mapping):
        raise ConfigError(f"the model answers several tasks, {', '.join(metadata['tasks'])}: choose one")
    if "task" in metadata:
        return task_from_json(metadata["task"], tasks)
    for task in (*TASKS.values(), *tasks):
        if (fitted := task.from_heads(model_config.heads)) is not None:
            return fitted
    known = ", ".join(model_config.heads) or "none"
    raise UnsupportedError(f"the model has no task head (its heads: {known}): fine-tune it first")

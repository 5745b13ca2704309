"""No code outside `tasks/` checks which task it handles."""

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

import polyseme
from polyseme.tasks import TASKS

PACKAGE = Path(polyseme.__file__).parent
SOURCES = [path for path in PACKAGE.rglob("*.py") if path.relative_to(PACKAGE).parts[0] != "tasks"]
CLASSES = {task.__name__ for task in TASKS.values()}


def task_checks(source: str) -> Iterator[str]:
    """Comparisons of a task's type with a literal, `isinstance` on task classes, and `match` on a task."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Compare):
            names = {getattr(side, "attr", getattr(side, "id", "")) for side in ast.walk(node)}
            has_literal = any(isinstance(side, ast.Constant) for side in ast.walk(node))
            if has_literal and names & {"task_type", "task_name"}:
                yield ast.unparse(node)
        elif isinstance(node, ast.Match) and "task" in ast.unparse(node.subject):
            yield ast.unparse(node.subject)
        elif isinstance(node, ast.Call) and ast.unparse(node.func) in ("isinstance", "issubclass"):
            names = {name.id for name in ast.walk(node.args[1]) if isinstance(name, ast.Name)}
            if names & CLASSES:
                yield ast.unparse(node)


def test_only_tasks_know_which_task_they_are():
    checks = {path.relative_to(PACKAGE).as_posix(): list(task_checks(path.read_text("utf-8"))) for path in SOURCES}
    assert not {path: lines for path, lines in checks.items() if lines}


@pytest.mark.parametrize(
    "source",
    [
        "task.task_type == 'tagging'",
        "'tagging' in (task_type,)",
        "isinstance(task, TaggingTask)",
        "match task.task_type:\n    case 'tagging': ...",
    ],
)
def test_a_task_check_is_noticed(source):
    assert list(task_checks(source))

"""No code outside a task's file checks which task it handles."""

import ast
import inspect
from collections.abc import Iterator
from pathlib import Path

import pytest

from polyseme.tasks import TASKS
from tests.design.sources import PACKAGE, TREES, nodes

FILES = {task.__name__: Path(inspect.getfile(task)).relative_to(PACKAGE).as_posix() for task in TASKS.values()}
LISTS = {"tasks/__init__.py"}  # defines TASKS


def task_checks(tree: ast.AST, classes: set[str]) -> Iterator[str]:
    """Comparisons, `isinstance`, `match` and tables that tell one task from another."""
    for node in nodes(tree):
        if isinstance(node, ast.Compare):
            sides = [node.left, *node.comparators]
            names = {getattr(side, "attr", getattr(side, "id", "")) for side in ast.walk(node)}
            literals = {side.value for side in ast.walk(node) if isinstance(side, ast.Constant)}
            has_class = any(isinstance(side, ast.Name) and side.id in classes for side in sides)
            is_task_name = names & {"task", "task_type", "task_name", "kind"} and literals & set(TASKS)
            if (literals and names & {"task_type", "task_name"}) or is_task_name or has_class:
                yield ast.unparse(node)
        elif isinstance(node, ast.Match) and "task" in ast.unparse(node.subject):
            yield ast.unparse(node.subject)
        elif isinstance(node, ast.Call) and getattr(node.func, "id", "") in ("isinstance", "issubclass"):
            if classes & {name.id for name in ast.walk(node.args[1]) if isinstance(name, ast.Name)}:
                yield ast.unparse(node)
        elif isinstance(node, ast.Dict):
            keys = {getattr(key, "id", getattr(key, "value", None)) for key in node.keys if key is not None}
            if len(keys & (classes | set(TASKS))) > 1:
                yield ast.unparse(node)


def test_only_a_task_knows_which_task_it_is():
    checks = {
        path: list(task_checks(tree, {name for name, file in FILES.items() if file != path}))
        for path, tree in TREES.items()
        if path not in LISTS
    }
    assert not {path: sources for path, sources in checks.items() if sources}


@pytest.mark.parametrize(
    "source",
    [
        "task.task_type == 'tagging'",
        "'tagging' in (task_type,)",
        "kind in ('tagging', 'regression')",
        "type(task) is TaggingTask",
        "isinstance(task, TaggingTask)",
        "match task.task_type:\n    case 'tagging': ...",
        "{'tagging': 1, 'regression': 2}",
    ],
)
def test_a_task_check_is_noticed(source):
    assert list(task_checks(ast.parse(source), set(FILES)))

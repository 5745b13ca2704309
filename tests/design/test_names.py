"""Naming rules of the package: one meaning per class name, no vague variables, documented public names."""

import ast
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

import pytest

import polyseme

PACKAGE = Path(polyseme.__file__).parent
SOURCES = {path.relative_to(PACKAGE).as_posix(): path.read_text(encoding="utf-8") for path in PACKAGE.rglob("*.py")}
VAGUE = {"found", "said", "given", "told", "kept", "made", "own", "both", "taken"}


def variables(tree: ast.AST) -> Iterator[str]:
    """Names of all variables and parameters."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            yield node.id
        elif isinstance(node, ast.arg):
            yield node.arg


def test_a_class_name_has_one_meaning():
    places = defaultdict(list)
    for path, source in SOURCES.items():
        for node in ast.walk(ast.parse(source)):
            if isinstance(node, ast.ClassDef):
                places[node.name].append(path)
    assert not {name: paths for name, paths in places.items() if len(paths) > 1 and not name.startswith("_")}


@pytest.mark.parametrize("path", sorted(SOURCES))
def test_no_variable_has_a_vague_name(path):
    assert not set(variables(ast.parse(SOURCES[path]))) & VAGUE


def test_a_vague_name_is_noticed():
    sources = ["def f(given): ...", "found = 1", "for kept in (): ...", "[made for made in ()]", "with x as told: ..."]
    assert all(set(variables(ast.parse(source))) & VAGUE for source in sources)


@pytest.mark.parametrize("name", polyseme.__all__)
def test_a_public_name_is_documented_and_listed(name):
    assert name in dir(polyseme)
    assert getattr(polyseme, name).__doc__

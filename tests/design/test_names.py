"""Naming rules of the package: one meaning per class name, no vague variables, documented public names."""

import ast
import importlib
import inspect
from collections import defaultdict
from collections.abc import Iterator

import pytest

import polyseme
from tests.design.sources import TREES, nodes

VAGUE = {"found", "said", "given", "told", "kept", "made", "own", "both", "taken", "result", "item"}
GPU_ONLY = "nn/kernels/"  # modules that need Triton and cannot be imported without it


def variables(tree: ast.AST) -> Iterator[str]:
    """Names of all variables and parameters."""
    for node in nodes(tree):
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            yield node.id
        elif isinstance(node, ast.arg):
            yield node.arg


def test_a_class_name_has_one_meaning():
    places = defaultdict(list)
    for path, tree in TREES.items():
        for node in nodes(tree):
            if isinstance(node, ast.ClassDef):
                places[node.name].append(path)
    assert not {name: paths for name, paths in places.items() if len(paths) > 1 and not name.startswith("_")}


def test_no_variable_has_a_vague_name():
    vague_names = {path: set(variables(tree)) & VAGUE for path, tree in TREES.items()}
    assert not {path: names for path, names in vague_names.items() if names}


def test_a_vague_name_is_noticed():
    sources = ["def f(given): ...", "found = 1", "for kept in (): ...", "[made for made in ()]", "with x as told: ..."]
    assert all(set(variables(ast.parse(source))) & VAGUE for source in sources)


@pytest.mark.parametrize("name", polyseme.__all__)
def test_a_public_name_is_documented_and_listed(name):
    assert name in dir(polyseme)
    assert getattr(polyseme, name).__doc__


def undocumented(module: object) -> Iterator[str]:
    """Public classes, functions, methods and properties of a module that have no docstring and inherit none."""
    for name, value in vars(module).items():
        if name.startswith("_") or getattr(value, "__module__", "") != module.__name__:
            continue
        if inspect.isclass(value):
            is_generated = (value.__doc__ or "").startswith(f"{name}(")  # the signature that dataclass writes
            if "__doc__" not in vars(value) or not value.__doc__ or is_generated:
                yield name
            fields = vars(value).get("__annotations__", {})
            methods = {key for key, member in vars(value).items() if is_documentable(member) and key[0] != "_"}
            yield from (f"{name}.{key}" for key in sorted(methods - set(fields)) if not has_doc(value, key))
        elif inspect.isroutine(value) and not inspect.getdoc(value):
            yield name


def has_doc(cls: type, name: str) -> bool:
    """Whether a member, or one that it overrides, has a docstring."""
    return any(inspect.getdoc(vars(base)[name]) for base in cls.__mro__ if name in vars(base))


def is_documentable(member: object) -> bool:
    """Whether a class attribute is a method or a property."""
    return inspect.isroutine(member) or isinstance(member, property | classmethod | staticmethod)


def test_every_public_name_has_a_docstring():
    missing = {}
    for path, tree in TREES.items():
        if tree.body and not path.startswith(GPU_ONLY):
            name = "polyseme." + path.removesuffix(".py").replace("/", ".")
            module = importlib.import_module(name.removesuffix(".__init__"))
            missing[path] = [*undocumented(module), *(["the module"] if not module.__doc__ else [])]
    assert not {path: names for path, names in missing.items() if names}


@pytest.mark.parametrize("path", [path for path in TREES if path.startswith(GPU_ONLY)])
def test_every_public_kernel_has_a_docstring(path):
    tree = TREES[path]
    nodes = [node for node in tree.body if isinstance(node, ast.ClassDef | ast.FunctionDef) and node.name[0] != "_"]
    assert ast.get_docstring(tree) and not [node.name for node in nodes if not ast.get_docstring(node)]

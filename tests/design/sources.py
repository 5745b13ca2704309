"""The parsed sources of the package, shared by the tests of its rules."""

import ast
import functools
from collections.abc import Iterator, Mapping
from pathlib import Path

import polyseme

PACKAGE = Path(polyseme.__file__).parent
ROOT = PACKAGE.parents[1]


class _Trees(Mapping[str, ast.Module]):
    """The syntax tree of each source file, parsed on first use: only one of the test workers needs them."""

    def __init__(self) -> None:
        self._paths = [path.relative_to(PACKAGE).as_posix() for path in sorted(PACKAGE.rglob("*.py"))]
        self._parse = functools.cache(lambda path: ast.parse((PACKAGE / path).read_text("utf-8")))

    def __getitem__(self, path: str) -> ast.Module:
        return self._parse(path)

    def __iter__(self) -> Iterator[str]:
        return iter(self._paths)

    def __len__(self) -> int:
        return len(self._paths)


TREES = _Trees()


@functools.cache
def nodes(tree: ast.AST) -> list[ast.AST]:
    """Return all nodes of a tree, which several rules look at."""
    return list(ast.walk(tree))

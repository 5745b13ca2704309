"""The parsed sources of the package, shared by the tests of its rules."""

import ast
from pathlib import Path

import polyseme

PACKAGE = Path(polyseme.__file__).parent
ROOT = PACKAGE.parents[1]
TREES = {
    path.relative_to(PACKAGE).as_posix(): ast.parse(path.read_text("utf-8")) for path in sorted(PACKAGE.rglob("*.py"))
}
